"""Fill in the middle: rearrange documents so that a model learns to complete a gap from both sides.

A document is cut at two random places into prefix, middle and suffix, and joined with sentinel tokens (Bavarian et al.,
"Efficient Training of Language Models to Fill in the Middle", 2022):

    PSM   <prefix> prefix <suffix> suffix <middle> middle
    SPM   <prefix> <suffix> suffix <middle> prefix middle

The cuts are between tokens. Megatron-LM and others cut between characters and tokenize again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.kernels.bounds import bounds_of
from feedmill.samples.targets import ENDS, LOSS_MASK, Bools, Tokens, real_tokens

_SENTINELS = 3
_FIXED = (*ENDS, "positions", "tokens")
"""Fields that only rows of a fixed width have."""


@dataclass(frozen=True, slots=True)
class FillInMiddle:
    """A `transform` of a loader that rearranges some documents of a sample.

    Each document is rearranged with probability `rate`, drawn from the seed and the position of its sample: the same on
    any number of ranks and workers, and after a resume. A document that a loss mask excludes in part (a conversation),
    and one with fewer than 2 tokens between `bos` and `eos`, stays as it is.

    A rearranged document has 3 more tokens. Windows and packed rows keep their width: their padding makes room, and
    what still does not fit is cut off at the end of the row, as in Megatron-LM.

    Args:
        prefix, middle, suffix: ids of the sentinel tokens.
        rate: probability that a document is rearranged.
        spm: probability that a rearranged document is in the order SPM instead of PSM.
        bos, eos: ids that stay the first and the last token of a document; None for none.
        pad: id that fills rows up.
        key: the field of the tokens.

    Raises:
        ConfigError: a probability is not between 0 and 1, or two sentinels are the same.
    """

    prefix: int
    middle: int
    suffix: int
    rate: float = 0.5
    spm: float = 0.5
    bos: int | None = None
    eos: int | None = None
    pad: int = 0
    key: str = "input_ids"

    def __post_init__(self) -> None:
        for name in ("rate", "spm"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(
                    f"fim: {name} {getattr(self, name)} is not a probability", kind="bad-option", fix="Use 0 to 1."
                )
        if len({self.prefix, self.middle, self.suffix}) < _SENTINELS:
            raise ConfigError(
                f"fim: two of the sentinels {self.prefix}, {self.middle} and {self.suffix} are the same",
                kind="bad-option",
                fix="Use three different token ids.",
            )

    def __call__(self, sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the fields of a sample with some of its documents rearranged.

        Args:
            sample: a document, a window or a packed row. ``positions``, ``cu_seqlens`` or ``boundaries`` locate the
                documents of a row; without them, a window locates its own, and any other sample is one document.
            rng: draws which documents, and where they are cut.

        Raises:
            DataError: the row has no tokens.
        """
        fields = {name: sample[name] for name in sample}
        row = np.asarray(fields[self.key])
        if not len(row):
            raise DataError("a row without tokens cannot be rearranged", kind="bad-batch")
        fixed = hasattr(sample, "starts") or any(name in fields for name in _FIXED)
        real = real_tokens(fields, len(row))
        starts = _starts(sample, fields, real)
        mask = np.ones(len(row), np.bool_) if LOSS_MASK not in fields else np.asarray(fields[LOSS_MASK], np.bool_)
        pieces = list(self._pieces(row, mask, [*starts, real], rng))
        ids, kept = (np.concatenate([piece[which] for piece in pieces]) for which in (0, 1))
        lengths = np.array([len(piece[0]) for piece in pieces], np.int64)
        width = len(row) if fixed else len(ids)
        ends = np.unique(np.minimum(bounds_of(lengths), width))
        count = int(ends[-1])
        out = np.full(width, self.pad, row.dtype)
        out[:count] = ids[:count]
        fields[self.key] = out
        if LOSS_MASK in fields:
            fields[LOSS_MASK] = np.concatenate((kept[:count], np.zeros(width - count, np.bool_)))
        for name, values in fields.items():  # what is the same for a whole document, such as its group
            if name in (self.key, LOSS_MASK, *_FIXED) or np.shape(values) != row.shape:
                continue
            before = np.asarray(values)
            own = before[starts[: len(ends) - 1]]
            if np.array_equal(np.repeat(before[starts], np.diff([*starts, real])), before[:real]):
                fields[name] = np.concatenate((np.repeat(own, np.diff(ends)), before[len(row) - (width - count) :]))
        return self._located(fields, ends, width, count)

    def _pieces(
        self, row: Tokens, mask: Bools, ends: list[int], rng: np.random.Generator
    ) -> Iterator[tuple[npt.NDArray[Any], Bools]]:
        """Yield the tokens of each document, rearranged or as they are, and their loss mask."""
        drawn = rng.random((len(ends) - 1, 4))
        for begin, end, (apply, spm, first, second) in zip(ends[:-1], ends[1:], drawn, strict=True):
            low = begin + int(self.bos is not None and begin < end and int(row[begin]) == self.bos)
            high = end - int(self.eos is not None and low < end and int(row[end - 1]) == self.eos)
            if apply >= self.rate or high - low < 2 or not mask[begin:end].all():
                yield row[begin:end], mask[begin:end]
                continue
            one, two = sorted((low + int(first * (high - low + 1)), low + int(second * (high - low + 1))))
            before, middle, after = row[low:one], row[one:two], row[two:high]
            pre, mid, suf = (np.array([token], row.dtype) for token in (self.prefix, self.middle, self.suffix))
            order = (pre, suf, after, mid, before, middle) if spm < self.spm else (pre, before, suf, after, mid, middle)
            ids = np.concatenate((row[begin:low], *order, row[high:end]))
            yield ids, np.ones(len(ids), np.bool_)

    def _located(self, fields: dict[str, Any], ends: npt.NDArray[np.int64], width: int, count: int) -> dict[str, Any]:
        """Set the fields that locate documents, which the row has, for documents that end at `ends`."""
        padded = ends if count == width else np.append(ends, width)
        for name in ENDS:
            if name in fields:
                fields[name] = padded.astype(np.asarray(fields[name]).dtype)
        if "positions" in fields:
            starts = np.repeat(padded[:-1], np.diff(padded))
            fields["positions"] = (np.arange(width) - starts).astype(np.asarray(fields["positions"]).dtype)
        if "tokens" in fields:
            fields["tokens"] = count
        return fields


def _starts(sample: Any, fields: Mapping[str, Any], real: int) -> list[int]:
    """Return the starts of documents before the padding, ascending from 0."""
    for name in ENDS:
        if fields.get(name) is not None:
            ends = np.asarray(fields[name])
            return sorted({0, *ends[ends < real].tolist()})
    if fields.get("positions") is not None:
        return sorted({0, *np.flatnonzero(np.asarray(fields["positions"])[:real] == 0).tolist()})
    known = getattr(sample, "starts", None)
    return [0] if known is None else [place for place in known() if place < real]
