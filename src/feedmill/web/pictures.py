"""Images of samples for pages: decoded, bounded in pixels, and written again, so that no byte is sent as it is."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from feedmill.errors import DataError, MissingExtra
from feedmill.formats.sample import Sample
from feedmill.samples.images import left_to_turn, turned_image
from feedmill.samples.sheet import as_image
from feedmill.web.content import kind_of, part_names

THUMBNAIL, FULL = 240, 1600
"""Longest side in pixels."""
MOST_PIXELS = 80_000_000


def picture(sample: Sample, part: str, longest: int) -> tuple[bytes, str]:
    """Return an image of a sample as PNG or JPEG bytes, and its media type.

    Raises:
        NotFound: there is no such part.
        DataError: it is not an image, does not decode, or has too many pixels.
        MissingExtra: Pillow is not installed.
    """
    data = sample.raw(part)
    image = _decoded(data, part) if kind_of(part, data) == "image" else as_image(sample[part])
    if image is None:
        raise DataError("this part is not an image", record=f"{sample.key}.{part}", kind="not-an-image")
    return encoded(image, longest, f"{sample.key}.{part}")


def encoded(image: Any, longest: int, record: str) -> tuple[bytes, str]:
    """Return a Pillow image as PNG or JPEG bytes, and its media type. Raises `DataError` if it does not decode."""
    try:
        small = image.mode in ("1", "P", "LA", "RGBA", "PA")
        image = image.convert("RGBA" if small else "RGB") if image.mode not in ("L", "RGB", "RGBA") else image
        image.thumbnail((longest, longest))
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"the image does not decode ({error})", record=record) from None
    out = BytesIO()
    if image.mode == "RGBA":
        image.save(out, "PNG", compress_level=1)
        return out.getvalue(), "image/png"
    image.save(out, "JPEG", quality=88)
    return out.getvalue(), "image/jpeg"


def _decoded(data: bytes, part: str) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingExtra("images need Pillow", extra="media") from None
    try:
        image = Image.open(BytesIO(data))
        if image.width * image.height > MOST_PIXELS:
            raise DataError(f"the image has {image.width:,} x {image.height:,} pixels", record=part, kind="too-large")
        image.draft("RGB", (FULL, FULL))
        image = turned_image(image, left_to_turn(image))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"the image does not decode ({error})", record=part, kind="bad-image") from None
    return image


def first_image(sample: Sample) -> str | None:
    """Return the name of the first part that is an image."""
    for name in part_names(sample):
        if kind_of(name, sample.raw(name)[:8]) == "image":
            return name
    return None
