"""Write images as one picture: a contact sheet with captions."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.errors import ConfigError, MissingExtra, NotFound
from feedmill.samples.images import converted, left_to_turn, turned_image
from feedmill.storage import LocalStore, Store, open_store, split_url

if TYPE_CHECKING:
    from PIL.Image import Image

_CHANNELS = (1, 3, 4)
_GAP, _CAPTION = 8, 16


def contact_sheet(
    images: Sequence[Any], captions: Sequence[str], path: str | Path, *, columns: int | None = None, cell: int = 200
) -> tuple[int, int]:
    """Write images side by side, each with its caption below, as one picture file.

    Args:
        images: Anything that `as_image` accepts.
        captions: One text per image, truncated to the width of a cell.
        path: Output file, a path or URL; its suffix selects the format, such as PNG or JPEG.
        columns: Images per row; None makes the sheet about square.
        cell: Longest side of an image on the sheet, in pixels.

    Returns:
        Width and height of the sheet in pixels.

    Raises:
        ConfigError: There are no images, or a value is not an image.
        MissingExtra: Pillow is not installed.
        NotFound, StorageError: The file cannot be written.
    """
    need_pillow()
    from PIL import Image, ImageDraw, ImageFont

    if not images:
        raise ConfigError("there are no images for the sheet", file=str(path), fix="Choose samples with images.")
    columns = columns or math.ceil(math.sqrt(len(images)))
    rows = -(-len(images) // columns)
    step_x, step_y = cell + _GAP, cell + _CAPTION + _GAP
    width, height = columns * step_x + _GAP, rows * step_y + _GAP
    sheet = Image.new("RGB", (width, height), "#f4f4f2")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for number, (value, caption) in enumerate(zip(images, captions, strict=True)):
        image = as_image(value)
        if image is None:
            raise ConfigError(f"a value of type {type(value).__name__} is not an image", record=caption)
        picture = image.convert("RGB")
        picture.thumbnail((cell, cell))
        x, y = _GAP + number % columns * step_x, _GAP + number // columns * step_y
        sheet.paste(picture, (x + (cell - picture.width) // 2, y + (cell - picture.height) // 2))
        draw.text((x, y + cell + 1), _fit(caption, font, cell), fill="#333333", font=font)
    save_picture(sheet, path)
    return width, height


def as_image(value: Any) -> Image | None:
    """Return the value as a Pillow image, or None if it is not an image.

    Images are Pillow images, the bytes of an image file, and arrays or tensors [H, W], [H, W, C] or [C, H, W] with 1, 3
    or 4 channels: uint8, floats from 0 to 1, or depth, uint16 or floats of one channel.
    """
    need_pillow()
    from PIL import Image, UnidentifiedImageError

    if isinstance(value, Image.Image):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            image = Image.open(BytesIO(value))
            return turned_image(converted(image, "RGB"), left_to_turn(image))
        except (UnidentifiedImageError, OSError):
            return None
    if not image_shape(value):
        return None
    array = np.asarray(value)
    if array.ndim == 3 and array.shape[2] not in _CHANNELS:
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8:
        array = array.astype(np.float32)
        if array.ndim == 2 and array.size and array.max() > 1:  # depth: from its least to its greatest value
            array = (array - array.min()) / max(float(np.ptp(array)), 1e-9)
        array = (np.clip(array, 0, 1) * 255 + 0.5).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(array))


def image_shape(value: Any) -> tuple[int, int, int] | None:
    """Return width, height and channels of an array or tensor that looks like an image, otherwise None."""
    shape, dtype = getattr(value, "shape", None), str(getattr(value, "dtype", ""))
    if shape is None or not dtype.endswith(("uint8", "uint16", "float32", "float16", "float64")):
        return None
    if len(shape) == 2 and dtype.endswith("uint8") and min(shape) > 1:
        return int(shape[1]), int(shape[0]), 1
    if len(shape) == 3 and shape[2] in _CHANNELS:
        return int(shape[1]), int(shape[0]), int(shape[2])
    if len(shape) == 3 and shape[0] in _CHANNELS:
        return int(shape[2]), int(shape[1]), int(shape[0])
    return None


def _fit(text: str, font: Any, width: int) -> str:
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."


def save_picture(image: Image, path: str | Path) -> None:
    """Write a picture file atomically, to a path or URL.

    Raises:
        ConfigError: The suffix of `path` is not that of a picture.
        NotFound: The folder does not exist.
        StorageError: The file cannot be written.
    """
    from PIL import Image

    form = Image.registered_extensions().get(Path(path).suffix.lower())
    if form is None:
        raise _unknown_format(path)
    store, name = _store_of(path)
    data = BytesIO()
    try:
        image.save(data, form)
    except OSError as error:  # the format does not support the image's mode
        raise ConfigError(str(error), file=str(path), fix="Use the suffix .png.") from None
    store.write_bytes(name, data.getvalue())


def check_picture(path: str | Path) -> None:
    """Raise the errors of `save_picture` for this path, before the picture is made. Also raises `MissingExtra`."""
    need_pillow()
    from PIL import Image

    if Path(path).suffix.lower() not in Image.registered_extensions():
        raise _unknown_format(path)
    _store_of(path)


def _store_of(path: str | Path) -> tuple[Store, str]:
    """Return the store of a file's folder, and its name there. A folder of a disk must exist."""
    folder, name = split_url(path)
    store = open_store(folder)
    if isinstance(store, LocalStore) and not os.path.isdir(store.root):
        raise NotFound("there is no such folder", file=str(path), fix="Create the folder, or check the path.")
    return store, name


def _unknown_format(path: str | Path) -> ConfigError:
    return ConfigError("the picture format is unknown", file=str(path), fix="Use the suffix .png or .jpg.")


def need_pillow() -> None:
    """Raise `MissingExtra` if Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise MissingExtra("writing pictures needs Pillow", extra="media") from None
