"""Packed rows of whole samples: text beside images, video and sound, in the rows that a pack plan made of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class SampleRow(Sequence[Any]):
    """A row of a pack plan: a sequence of samples.

    Attributes:
        samples: the samples, in the order of the row: decoded as without packing. A document of token files, or a part
            of one, is a dict with its ``input_ids``, int64[tokens], and ``loss_mask``, bool[tokens], if it has one.
        lengths: int32[n], tokens of each sample by its prediction, without padding.
        cu_seqlens: int32[n + 1], where each sample begins in the row, and where the last one ends. A place is `lengths`
            rounded up to the plan's `multiple`.
        seq_len: tokens of a full row; what follows ``cu_seqlens[-1]`` is padding.
        keys: the key of each sample.
        sources: the source of each sample, as the plan names it.
        multiple: what the place of each sample is rounded up to.
        mismatch: what a collator does with a sample that the row has no room for, or that the processor refuses:
            ``error``, or ``drop``, which makes its place padding.
        groups, members: int32[n], the number of each sample's group in the row, and the number of the sample in the
            group, as stored; None if no source has `groups`.
    """

    samples: list[Any]
    lengths: npt.NDArray[np.int32]
    cu_seqlens: npt.NDArray[np.int32]
    seq_len: int
    keys: list[str]
    sources: list[str]
    multiple: int = 1
    mismatch: Literal["error", "drop"] = "error"
    groups: npt.NDArray[np.int32] | None = None
    members: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: Any) -> Any:
        """Return a sample, or the list of those of a slice."""
        return self.samples[place]

    def __repr__(self) -> str:
        filled = int(self.cu_seqlens[-1])
        return f"<SampleRow: {len(self)} samples, {filled:,} of {self.seq_len:,} tokens>"


def note_place(error: BaseException, place: int) -> None:
    """Note in an error which sample of its row it is of; `place_of` finds it."""
    with suppress(AttributeError):  # classes with __slots__
        error.place_in_row = place  # type: ignore[attr-defined]


def place_of(error: BaseException, row: Any) -> int | None:
    """Return which sample of a row an error is of; None if that is not known.

    An error that does not say so is of the only sample that has its key, or a part with its name.
    """
    place = getattr(error, "place_in_row", None)
    if place is not None or not isinstance(row, SampleRow):
        return place
    record = getattr(error, "record", None)
    if not isinstance(record, str):
        return None
    found = [n for n, key in enumerate(row.keys) if record == key or record.startswith(f"{key}.")]
    return found[0] if len(found) == 1 else None
