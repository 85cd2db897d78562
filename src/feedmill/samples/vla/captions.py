"""Modality of images with captions: ``txt`` and ``jpg``, ``png``, ``jpeg`` or ``webp``; or ``.pth`` fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.sample import Sample, locate
from feedmill.samples.decode import Decoder
from feedmill.samples.vla.columns import columns
from feedmill.samples.vla.text import missing, tensor_fields

IMAGES = ("jpg", "png", "jpeg", "webp")
"""Suffixes of images, in order of preference."""


@dataclass(frozen=True, slots=True)
class Captions:
    """Modality of images with captions.

    Attributes:
        image_size: Resize images to this height and width. Samples then have ``pixel_values`` float32[3, S, S] instead
            of ``image`` uint8[H, W, 3].
    """

    image_size: int | None = None

    def cook(self, sample: Sample, rng: np.random.Generator | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Return ``image`` (or ``pixel_values``) and ``text``.

        Raises:
            DataError: A part cannot be decoded, or is missing (``missing-part``).
        """
        fields = tensor_fields(sample)
        if fields is not None:
            if "pixel_values" not in fields:
                raise missing(sample, "pixel_values.pth")
            return {"__key__": sample.key, **fields}
        name = next((name for name in IMAGES if name in sample), None)
        if name is None:
            raise missing(sample, "image (jpg, png, jpeg or webp)")
        if "txt" not in sample:
            raise missing(sample, "caption (txt)")
        image = picture(sample, name)
        out: dict[str, Any] = {"__key__": sample.key, "text": sample["txt"]}
        if not isinstance(out["text"], str):
            out["text"] = bytes(out["text"]).decode("utf-8", "replace")
        if self.image_size is None:
            return {**out, "image": image}
        return {**out, "pixel_values": resized(image, self.image_size, self.image_size)}

    def batch(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return columns. Images of different sizes are padded at the right and bottom."""
        return columns(samples)


_RGB = Decoder()


def picture(sample: Sample, name: str) -> npt.NDArray[np.uint8]:
    """Return an image part as uint8[H, W, 3], regardless of the dataset's decoder. Raises `DataError`."""
    try:
        found: npt.NDArray[np.uint8] = _RGB(name, sample.raw(name))
        return found
    except DataError as error:
        raise locate(error, sample.source, f"{sample.key}.{name}") from error


def resized(image: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.float32]:
    """Resize an image uint8[H, W, 3] to float32[3, height, width], bilinear between the centers of pixels."""
    planes = np.moveaxis(image, -1, 0).astype(np.float32)
    for axis, size in ((1, height), (2, width)):
        old = planes.shape[axis]
        at = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
        low = np.floor(at).astype(np.int64)
        share = (at - low).astype(np.float32).reshape((-1, 1) if axis == 1 else (-1,))
        high = np.minimum(low + 1, old - 1)
        planes = planes.take(low, axis) * (1 - share) + planes.take(high, axis) * share
    return planes
