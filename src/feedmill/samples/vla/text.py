"""Modalities of text: token ids (``json.gz``, or ``.pth`` fields), untokenized documents (``json``), and captions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.formats import pth
from feedmill.formats.sample import Sample, locate
from feedmill.samples.decode import Decoder
from feedmill.samples.vla.columns import columns
from feedmill.storage.codec import gunzip
from feedmill.structs import decode_as

TENSOR = ".pth"
Tokenize = Callable[[Sequence[str]], Sequence[npt.NDArray[np.integer[Any]]]]
"""Function of texts -> token ids of each text."""

_TEXT = "text"


def tensor_fields(sample: Sample) -> dict[str, Any] | None:
    """Return the ``.pth`` parts by name without the suffix; None if the sample has none. Raises `DataError`."""
    names = [name for name in sample if name.endswith(TENSOR)]
    if not names:
        return None
    out = {}
    for name in names:
        try:
            out[name.removesuffix(TENSOR)] = pth.load(sample.raw(name))
        except DataError as error:
            raise locate(error, sample.source, f"{sample.key}.{name}") from error
    return out


def missing(sample: Sample, what: str) -> DataError:
    """Return the error for a sample that lacks a part required by its modality."""
    have = ", ".join(sorted(sample)) or "nothing"
    fix = "Fix or remove the sample, or correct dataset_modality."
    return bad_sample(sample, f"the sample has no {what} (it has: {have})", "missing-field", fix)


def bad_sample(sample: Sample, what: str, kind: str = "bad-part", fix: str = "Fix or remove the sample.") -> DataError:
    """Return the error for a sample whose content is invalid for its modality."""
    return locate(DataError(what, kind=kind, fix=fix), sample.source, sample.key)


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """Modality of sequences of token ids.

    Attributes:
        seq_len: Number of input tokens. Samples must have more tokens than this (one target for each input); longer
            samples are cut to ``seq_len + 1`` tokens from a random position. None keeps samples as they are.

    A sample has ``input_ids`` int64[S]; samples of tensor fields also keep their other fields (``labels``,
    ``attention_mask``).
    """

    seq_len: int | None = None

    def cook(self, sample: Sample, rng: np.random.Generator | None = None) -> dict[str, Any]:
        """Return the sample's fields. Raises `DataError`, with kind ``too-short`` if it has too few tokens."""
        fields = tensor_fields(sample)
        if fields is not None:
            if "input_ids" not in fields:
                raise missing(sample, "input_ids.pth")
            return {"__key__": sample.key, **fields}
        if "json.gz" not in sample:
            raise missing(sample, "json.gz or input_ids.pth")
        ids = self._ids(sample)
        if self.seq_len is not None:
            if len(ids) <= self.seq_len:
                raise bad_sample(
                    sample,
                    f"the sample is too short: it has {len(ids)} tokens, expected {self.seq_len + 1}",
                    "too-short",
                )
            spare = len(ids) - self.seq_len - 1
            start = int(rng.integers(spare + 1)) if spare and rng is not None else 0
            ids = ids[start : start + self.seq_len + 1]
        return {"__key__": sample.key, "input_ids": ids, "attention_mask": None}

    def _ids(self, sample: Sample) -> npt.NDArray[np.int64]:
        try:
            text = gunzip(sample.raw("json.gz"))
            return np.array(decode_as(text, list[int]), np.int64)
        except DataError as error:
            raise locate(error, sample.source, f"{sample.key}.json.gz") from None
        except (OSError, EOFError, ValueError, OverflowError) as error:
            raise bad_sample(sample, f"json.gz is not a list of token ids: {error}") from None

    def batch(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return columns; ``attention_mask`` is None if no sample has one."""
        out = columns(samples)
        if all(value is None for value in out.get("attention_mask", (None,))):
            out["attention_mask"] = None
        return out


@dataclass(frozen=True, slots=True)
class RawText:
    """Modality of documents that are tokenized when a batch is collated.

    Attributes:
        tokenize: Texts -> token ids; without it batches have ``text``.
        seq_len: Token ids are cut or padded to ``seq_len + 1``.
        pad: The padding id; ``attention_mask`` is False there.

    If a ``json`` part begins with ``{`` and is JSON with a "text", the text is that field. Otherwise the whole part is
    the text.
    """

    tokenize: Tokenize | None = None
    seq_len: int | None = None
    pad: int = 0

    def cook(self, sample: Sample, rng: np.random.Generator | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Return the sample's fields. Raises `DataError`."""
        fields = tensor_fields(sample)
        if fields is not None:
            return {"__key__": sample.key, **fields}
        if "json" not in sample:
            raise missing(sample, "json")
        try:
            text = sample.raw("json").decode()
        except UnicodeDecodeError as error:
            raise bad_sample(sample, f"the text is not valid UTF-8: {error}") from None
        return {"__key__": sample.key, _TEXT: _text_of(text)}

    def batch(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return ``text`` as a list, or ``input_ids`` int64[B, seq_len + 1] and ``attention_mask`` of that shape."""
        out = columns(samples)
        if self.tokenize is None or _TEXT not in out:
            return out
        if self.seq_len is None:
            raise ConfigError("tokenizing text requires a sequence length", fix="Set seq_len.")
        ids = np.full((len(samples), self.seq_len + 1), self.pad, np.int64)
        mask = np.zeros(ids.shape, bool)
        for row, found in enumerate(self.tokenize(out.pop(_TEXT))):
            kept = found[: self.seq_len + 1]
            ids[row, : len(kept)], mask[row, : len(kept)] = kept, True
        return {**out, "input_ids": ids, "attention_mask": mask}


def _text_of(text: str) -> str:
    if text.startswith("{"):
        try:
            content = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
        if isinstance(content, dict) and "text" in content:
            return str(content["text"])
    return text


IMAGES = ("jpg", "png", "jpeg", "webp")
"""Suffixes of images, in order of preference."""


@dataclass(frozen=True, slots=True)
class Captions:
    """Modality of images with captions: ``txt`` and ``jpg``, ``png``, ``jpeg`` or ``webp``; or ``.pth`` fields.

    Attributes:
        image_size: Resize images to this height and width. Samples then have ``pixel_values`` float32[3, S, S] instead
            of ``image`` uint8[H, W, 3].
    """

    image_size: int | None = None

    def cook(self, sample: Sample, rng: np.random.Generator | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Return ``image`` (or ``pixel_values``) and ``text``.

        Raises:
            DataError: A part cannot be decoded, or is missing (``missing-field``).
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
