"""Decode images to pixels in the form given by an image spec.

A spec is a container (NumPy by default, ``torch``, ``pil``), a color mode (``l``, ``rgb``, ``rgba``) and, for arrays, a
trailing ``8`` for uint8 in 0..255 instead of float32 in 0..1. NumPy arrays are ``[H, W, C]`` and tensors ``[C, H, W]``;
mode ``l`` has no channel axis.

Pixels are bit-identical to Pillow's, except that 16-bit gray pixels keep their high byte, as other 16-bit pixels do.
JPEGs that libjpeg-turbo converts identically (gray and YCbCr to RGB) are decoded by simplejpeg, which is three to four
times faster. Pillow decodes everything else, and files that simplejpeg rejects.

Pixels are turned upright if EXIF or XMP states an orientation, as Pillow's `ImageOps.exif_transpose` does, or given as
they are stored.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, MissingExtra, did_you_mean
from feedmill.formats.orientation import upright
from feedmill.jobs.buffers import empty
from feedmill.samples.imageheader import may_be_turned, orientation_in, stated_orientation

_SUFFIXES = (
    "apng avif blp bmp bw cur dcx dds dib fit fits flc fli ftc ftu gbr gif icb icns ico iim im j2c j2k jfif jp2 jpc"
    " jpe jpeg jpf jpg jpx msp pbm pcd pcx pgm png pnm ppm psd pxr ras rgb rgba sgi tga tif tiff vda vst webp xbm xpm"
)
IMAGE_SUFFIXES = frozenset(_SUFFIXES.split())
"""Suffixes decoded as images: those that Pillow reads by itself.

PostScript stays bytes because Pillow runs another program for it. So do suffixes that Pillow recognizes but does not
decode (``h5``, ``mpg``, ``wmf``, ...).
"""

IMAGE_SPECS: dict[str, tuple[str, bool, str]] = {
    **{f"{mode}8": ("numpy", False, mode.upper()) for mode in ("l", "rgb", "rgba")},
    **{mode: ("numpy", True, mode.upper()) for mode in ("l", "rgb", "rgba")},
    **{f"torch{mode}8": ("torch", False, mode.upper()) for mode in ("l", "rgb", "rgba")},
    **{f"torch{mode}": ("torch", True, mode.upper()) for mode in ("l", "rgb", "rgba")},
    **{f"pil{mode}": ("pil", False, mode.upper()) for mode in ("l", "rgb", "rgba")},
    "torch": ("torch", True, "RGB"),
    "pil": ("pil", False, "RGB"),
}
"""Spec -> (container, whether pixels are float, Pillow mode)."""

Buffer = bytes | memoryview

_CACHED = 512 << 10
"""Bytes of pixels to decode before converting them to floats, so that they are still in the processor's cache."""
_MOST_PIXELS = 178_956_970
"""Pillow's default limit of pixels per image: a header of a few bytes can declare gigabytes of pixels."""

# Conversions by libjpeg-turbo that give the same pixels as Pillow; measured to be bit-identical.
_TURBO = {"RGB": ("RGB", ("YCbCr", "Gray")), "L": ("GRAY", ("Gray",))}


def check_spec(spec: str) -> str:
    """Return the spec unchanged. Raises `ConfigError` if it is unknown."""
    if spec not in IMAGE_SPECS:
        raise ConfigError(
            f"unknown image spec {spec!r}{did_you_mean(spec, list(IMAGE_SPECS))}",
            fix=f"Use one of {', '.join(IMAGE_SPECS)}.",
            kind="bad-option",
        )
    return spec


def decode_image(data: bytes, spec: str, *, orient: bool = True) -> Any:
    """Return an image decoded in the form given by `spec`.

    Args:
        orient: Turn it upright if it states an orientation; otherwise pixels are given as they are stored.

    Raises:
        MissingExtra: Pillow is not installed, or torch for a ``torch`` spec.
        Exception: Whatever the codec raises for bytes that are not a complete image.
    """
    container, is_float, mode = IMAGE_SPECS[spec]
    if container == "pil":
        return _pillow(data, mode, orient)
    pixels = _pixels(data, mode, orient)
    if container == "numpy":
        return _unit(pixels) if is_float else pixels
    planes = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels
    return _tensor(_unit(planes) if is_float else np.ascontiguousarray(planes))


def decode_images(parts: Sequence[Buffer], spec: str, *, orient: bool = True) -> Any:
    """Decode JPEGs of one size to a stacked array or tensor ``[n, ...]``, equal to `decode_image` of each.

    Returns None if the images differ in size, need Pillow, or must be turned.
    """
    container, is_float, mode = IMAGE_SPECS[spec]
    target, sources = _TURBO.get(mode, ("", ()))
    if container == "pil" or target != "RGB" or not all(bytes(data[:2]) == b"\xff\xd8" for data in parts):
        return None
    try:
        import simplejpeg
    except ImportError:
        return None
    try:
        headers = [simplejpeg.decode_jpeg_header(data) for data in parts]
        if len({header[:2] for header in headers}) != 1 or any(header[2] not in sources for header in headers):
            return None
        height, width = headers[0][:2]
        if height * width > _MOST_PIXELS or (orient and any(orientation_in(data) != 1 for data in parts)):
            return None
        planes = container == "torch"
        shape = (len(parts), 3, height, width) if planes else (len(parts), height, width, 3)
        pixels = empty(shape, np.float32 if is_float else np.uint8)
        if planes and is_float:
            _decode_units(parts, pixels, (height, width, 3))
            return _tensor(pixels)
        buffer = np.empty((height, width, 3), np.uint8)  # reused, so that it stays in the processor's cache
        for row, data in zip(pixels, parts, strict=True):
            if not planes and not is_float:
                simplejpeg.decode_jpeg(data, target, buffer=row)
                continue
            simplejpeg.decode_jpeg(data, target, buffer=buffer)
            if is_float:
                np.divide(buffer, np.float32(255), out=row)
            else:
                np.copyto(row, buffer.transpose(2, 0, 1))
    except ValueError:
        return None
    return _tensor(pixels) if planes else pixels


def form_pictures(pixels: npt.NDArray[np.uint8], spec: str) -> Any:
    """Return pictures that are pixels already, uint8[..., H, W, 3], in the form given by `spec`.

    They are equal to `decode_image` of a PNG of each; several pictures of Pillow are a list.
    """
    container, is_float, mode = IMAGE_SPECS[spec]
    room = PictureRoom.of((math.prod(pixels.shape[:-3]), 1), pixels.shape[-3:], spec)
    if room is not None:
        if container == "numpy" and not is_float:
            return pixels
        for number, picture in enumerate(pixels.reshape(-1, *pixels.shape[-3:])):
            room.put(number, 0, picture)
        return room.value.reshape(*pixels.shape[:-3], *room.value.shape[2:])
    from PIL import Image

    several = [Image.fromarray(one).convert(mode) for one in pixels.reshape(-1, *pixels.shape[-3:])]
    if container == "pil":
        return several if pixels.ndim > 3 else several[0]
    made = np.stack([np.asarray(one) for one in several])
    if container == "torch" and made.ndim == 4:
        made = np.ascontiguousarray(made.transpose(0, 3, 1, 2))
    made = (_unit(made) if is_float else made).reshape(*pixels.shape[:-3], *made.shape[1:])
    return made if container == "numpy" else _tensor(made)


class PictureRoom:
    """Room for pictures in color of one shape, which are written there in the form of an image spec.

    Attributes:
        value: array ``[n, k, H, W, 3]``, or tensor ``[n, k, 3, H, W]``; its values are those of `put`.
    """

    def __init__(self, out: npt.NDArray[Any], planes: bool, shape: tuple[int, ...]) -> None:
        self._out, self._planes, self._shape = out, planes, shape
        self.value = _tensor(out) if planes else out

    @classmethod
    def of(cls, count: tuple[int, int], shape: tuple[int, ...], spec: str) -> PictureRoom | None:
        """Return room for ``n, k`` pictures of `shape`, ``[H, W, 3]``; None for Pillow's and for other modes."""
        container, is_float, mode = IMAGE_SPECS[spec]
        if container == "pil" or mode != "RGB":
            return None
        planes = container == "torch"
        axes = (shape[2], *shape[:2]) if planes else shape
        return cls(empty((*count, *axes), np.float32 if is_float else np.uint8), planes, shape)

    def put(self, number: int, at: int, picture: npt.NDArray[np.uint8]) -> bool:
        """Write a picture, uint8[H, W, 3]; return False if it has another shape."""
        if picture.shape != self._shape or picture.dtype != np.uint8:
            return False
        out = self._out[number, at]
        if out.dtype == np.uint8:
            np.copyto(out, picture.transpose(2, 0, 1) if self._planes else picture)
        elif self._planes:
            from feedmill.kernels.pixels import unit_planes

            unit_planes(np.ascontiguousarray(picture).reshape(1, -1), out.reshape(1, -1))
        else:
            np.divide(picture, np.float32(255), out=out)
        return True


def _decode_units(parts: Sequence[Buffer], out: npt.NDArray[np.float32], shape: tuple[int, int, int]) -> None:
    """Fill `out`, float32[n, 3, H, W], in batches of JPEGs that fit the processor's cache."""
    import simplejpeg

    from feedmill.kernels.pixels import unit_planes

    size = math.prod(shape)
    at_once = max(1, min(len(parts), _CACHED // size))
    buffer = np.empty((at_once, *shape), np.uint8)
    for first in range(0, len(parts), at_once):
        batch = parts[first : first + at_once]
        for row, data in zip(buffer, batch, strict=False):
            simplejpeg.decode_jpeg(data, "RGB", buffer=row)
        unit_planes(
            buffer[: len(batch)].reshape(len(batch), size), out[first : first + at_once].reshape(len(batch), size)
        )


def _unit(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    # One pass in the target memory order is several times faster than a cast, a division and a transposed copy.
    result = np.empty(pixels.shape, np.float32)
    return np.divide(pixels, np.float32(255), out=result)


def _pixels(data: bytes, mode: str, orient: bool) -> npt.NDArray[np.uint8]:
    if data[:2] == b"\xff\xd8":
        pixels = _turbo(data, mode)
        if pixels is not None:
            turn = orientation_in(data) if orient else 1
            return upright(pixels, turn) if pixels.ndim == 3 else upright(pixels[..., None], turn)[..., 0]
    return np.array(_pillow(data, mode, orient))


def _turbo(data: bytes, mode: str) -> npt.NDArray[np.uint8] | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    target, sources = _TURBO.get(mode, ("", ()))
    try:
        height, width, source = simplejpeg.decode_jpeg_header(data)[:3]
        if source not in sources or height * width > _MOST_PIXELS:
            return None
        pixels = empty((height, width, 3 if target == "RGB" else 1), np.uint8)
        simplejpeg.decode_jpeg(data, target, buffer=pixels)
    except ValueError:
        return None  # Pillow decides whether it is an image, and its error message is more specific
    return pixels[:, :, 0] if target == "GRAY" else pixels


def _pillow(data: bytes, mode: str, orient: bool) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("decoding images needs Pillow", extra="media") from None
    with Image.open(io.BytesIO(data)) as image:
        turn = left_to_turn(image, orient=orient) if may_be_turned(data) else 1
        return turned_image(converted(image, mode), turn)


def left_to_turn(image: Any, *, orient: bool = True) -> int:
    """Load a Pillow image. Return the orientation by which it is still to be turned to be upright, or as it is stored.

    Pillow turns TIFF files when it loads them, and no other files (findings/pillow_tiff_orientation.sh).
    """
    stated = stated_orientation(image)
    image.load()
    left = stated_orientation(image)
    if orient or left == stated:
        return left if orient else 1
    return {6: 8, 8: 6}.get(stated, stated)


def turned_image(image: Any, orientation: int) -> Any:
    """Return a Pillow image with an orientation turned upright, without the metadata that states the orientation."""
    from PIL.Image import Transpose
    from PIL.ImageOps import exif_transpose

    if orientation != 1 and stated_orientation(image) == orientation:
        return exif_transpose(image)
    steps = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image if orientation == 1 else image.transpose(steps[orientation])


def converted(image: Any, mode: str) -> Any:
    """Convert a Pillow image to another mode.

    Gray pixels of 16 bits keep their high byte: Pillow would turn all values above 255 white.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        from PIL import Image

        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert(mode)


def _tensor(array: npt.NDArray[Any]) -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra("the 'torch' image specs need torch", extra="torch") from None
    return torch.from_numpy(array)
