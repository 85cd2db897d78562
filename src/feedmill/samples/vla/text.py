"""Text: token ids (``json.gz``, or ``.pth`` fields), and documents that are still to be tokenized (``json``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.formats import pth
from feedmill.formats.base import Sample, locate
from feedmill.samples.vla.columns import columns
from feedmill.storage.codec import gunzip

TENSOR = ".pth"
Tokenize = Callable[[Sequence[str]], Sequence[npt.NDArray[np.integer[Any]]]]
"""Texts -> token ids of each."""

_TEXT = "text"


def tensor_fields(sample: Sample) -> dict[str, Any] | None:
    """Return the ``.pth`` parts by name without it; None if the sample has none. Raises `DataError`."""
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
    """Return the error for a sample without a part that its modality needs."""
    source = sample.source
    return DataError(
        f"the sample has no {what} (it has: {', '.join(sorted(sample)) or 'nothing'})",
        file=source.where,
        record=sample.key,
        offset=source.offset,
        kind="missing-part",
        fix="Fix the sample or leave it out, or correct dataset_modality.",
    )


def bad_sample(sample: Sample, what: str, kind: str = "bad-part", fix: str = "Fix it or leave it out.") -> DataError:
    """Return the error for a sample whose content is not what its modality needs."""
    source = sample.source
    return DataError(what, file=source.where, record=sample.key, offset=source.offset, kind=kind, fix=fix)


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """Sequences of token ids.

    Attributes:
        seq_len: samples need more tokens than this (a target for each); longer ones are cut to ``seq_len + 1`` from a
            random place. None takes them as they are.

    A sample gives ``input_ids`` int64[S], and with tensors whatever else it has (``labels``, ``attention_mask``).
    """

    seq_len: int | None = None

    def cook(self, sample: Sample, rng: np.random.Generator | None = None) -> dict[str, Any]:
        """Return the sample's fields. Raises `DataError`; of kind ``too-short`` where it has too few tokens."""
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
                raise bad_sample(sample, f"it has {len(ids)} tokens, {self.seq_len + 1} are needed", "too-short")
            spare = len(ids) - self.seq_len - 1
            start = int(rng.integers(spare + 1)) if spare and rng is not None else 0
            ids = ids[start : start + self.seq_len + 1]
        return {"__key__": sample.key, "input_ids": ids, "attention_mask": None}

    def _ids(self, sample: Sample) -> npt.NDArray[np.int64]:
        try:
            text = gunzip(sample.raw("json.gz"))
            return np.array(msgspec.json.decode(text, type=list[int]), np.int64)
        except DataError as error:
            raise locate(error, sample.source, f"{sample.key}.json.gz") from None
        except (OSError, EOFError, ValueError, OverflowError) as error:
            raise bad_sample(sample, f"its json.gz is not a list of token ids: {error}") from None

    def batch(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Columns; ``attention_mask`` is None if no sample has one."""
        out = columns(samples)
        if all(value is None for value in out.get("attention_mask", (None,))):
            out["attention_mask"] = None
        return out


@dataclass(frozen=True, slots=True)
class RawText:
    """Documents, tokenized when a batch is made of them.

    Attributes:
        tokenize: texts to token ids; without it batches have ``text``.
        seq_len: ids are cut to ``seq_len + 1`` or filled up with `pad`.
        pad: the id that fills; ``attention_mask`` is False there.

    A member that begins with ``{`` and is JSON with a "text" is that text; any other is itself the text.
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
            raise bad_sample(sample, f"its text is not UTF-8 ({error})") from None
        return {"__key__": sample.key, _TEXT: _text_of(text)}

    def batch(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """``text`` as a list, or ``input_ids`` int64[B, seq_len + 1] and ``attention_mask`` bool of that shape."""
        out = columns(samples)
        if self.tokenize is None or _TEXT not in out:
            return out
        if self.seq_len is None:
            raise ConfigError("tokenized text needs a length", fix="Give seq_len.")
        ids = np.full((len(samples), self.seq_len + 1), self.pad, np.int64)
        mask = np.zeros(ids.shape, bool)
        for row, found in enumerate(self.tokenize(out.pop(_TEXT))):
            kept = found[: self.seq_len + 1]
            ids[row, : len(kept)], mask[row, : len(kept)] = kept, True
        return {**out, "input_ids": ids, "attention_mask": mask}


def _text_of(text: str) -> str:
    if text.startswith("{"):
        try:
            found = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
        if isinstance(found, dict) and "text" in found:
            return str(found["text"])
    return text
