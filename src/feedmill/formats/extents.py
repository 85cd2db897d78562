"""Byte ranges that a dataset will read for samples, known from its index before any of them is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from feedmill.formats.offsets import Int64s
from feedmill.storage import Store


class Extents(NamedTuple):
    """Byte ranges of files of one store.

    Attributes:
        store: the store of the files.
        paths: paths in the store.
        sample: int64[m], position of each range's sample in the requested indices, in any order.
        file: int64[m], number of each range's file in `paths`.
        begins, ends: int64[m], begin and end of each range in bytes.
        check: compares files (their numbers) with the index, which waits for their bytes; None if reading does not
            compare. Called once the ranges are requested, so that the reader does not wait; with ``awaited=True`` if it
            waits for the ranges, and then only for files for which it would wait again.
    """

    store: Store
    paths: Sequence[str]
    sample: Int64s
    file: Int64s
    begins: Int64s
    ends: Int64s
    check: Callable[..., object] | None = None

    def of_samples(self, places: Int64s) -> Extents:
        """Return the same ranges for samples at other positions: ``places[i]`` is that of sample i, int64[n]."""
        return self._replace(sample=np.asarray(places, np.int64)[self.sample])

    def joined(self, other: Extents) -> Extents:
        """Return these ranges and others of the same files."""
        sample, file, begins, ends = (np.concatenate(pair) for pair in zip(self[2:6], other[2:6], strict=True))
        return self._replace(sample=sample, file=file, begins=begins, ends=ends)
