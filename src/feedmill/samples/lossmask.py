"""Which targets count in the loss: those between two markers, by whole documents or row by row as Modalities does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.formats.base import Sample

Tokens = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]
_FIRST_LOOK = 1 << 12
"""Tokens before a row that are read first to find the last marker; each further look reads four times as many."""


@dataclass(frozen=True, slots=True)
class LossMask:
    """A loss mask that keeps the targets between a begin and an end marker, and ignores all others.

    The markers themselves are ignored. With the scope ``document`` each document is judged as a whole, wherever rows
    begin and end: a row that begins inside an answer keeps it, and an answer without an end marker reaches to the end
    of its document (as with ``feedmill merge --learn-between``). Where a row does not show whether it begins inside an
    answer, the tokens of its document before the row are read.

    The scope ``row`` is Modalities': every row stands alone, a row without any begin or without any end is ignored as a
    whole, and an end before its begin is an error. For a batch of one row the two programs agree.

    Args:
        begin, end: ids of the markers.
        ignore: what ignored targets become.
        scope: ``document`` or ``row``.

    Raises:
        ConfigError: both markers are the same, or there is no such scope.

    >>> LossMask(begin=1, end=2)(np.array([[9, 1, 8, 7, 2, 9]])).tolist()
    [[-100, -100, 8, 7, -100, -100]]
    """

    begin: int
    end: int
    ignore: int = -100
    scope: Literal["document", "row"] = "document"

    def __post_init__(self) -> None:
        if self.begin == self.end:
            raise ConfigError(
                f"the begin and the end marker are both {self.begin}", fix="Give two different ids.", kind="bad-markers"
            )
        if self.scope not in ("document", "row"):
            raise ConfigError(f"there is no scope {self.scope!r}", fix="Use document or row.")

    def __call__(self, targets: Tokens) -> npt.NDArray[np.int64]:
        """Return the targets with all others ignored by the scope ``row``, a new int64[n, width].

        Args:
            targets: integers[n, width].

        Raises:
            DataError: a row has an end before its begin, or a begin inside of a begin; names the row and the place.
        """
        begins, ends = targets == self.begin, targets == self.end
        usable = begins.any(axis=1) & ends.any(axis=1)
        inside = np.cumsum(begins.astype(np.int8) - ends.astype(np.int8), axis=1, dtype=np.int64)
        wrong = np.argwhere(usable[:, None] & ((inside < 0) | (inside > 1)))
        if len(wrong):
            row, place = wrong[0].tolist()
            raise _bad_markers(row, place, int(inside[row, place]))
        kept = usable[:, None] & (inside == 1) & ~begins
        return np.where(kept, targets, np.int64(self.ignore)).astype(np.int64, copy=False)

    def learned(self, sample: Any, tokens: Tokens, starts: Sequence[int], number: int = 0) -> Bools:
        """Return which tokens of a row lie in an answer of their document.

        Args:
            sample: the row's sample. A method ``before(place, most)`` gives the tokens of the document at a place of
                the row that stand before it, the last `most` of them; a `Sample` without it is a whole document. For
                anything else the row's own markers decide.
            tokens: integers[width], the row.
            starts: where documents begin in the row, rising from 0.
            number: of the row in the batch, for errors.

        Returns:
            bool[width].

        Raises:
            DataError: an end before its begin, or a begin inside of a begin; names the row and the place.
        """
        step = (tokens == self.begin).astype(np.int64) - (tokens == self.end)
        markers = np.flatnonzero(step)
        level = np.cumsum(step)
        for at, stop in zip(starts, [*starts[1:], len(tokens)], strict=True):
            inside = self._inside(sample, at, step, markers[(markers >= at) & (markers < stop)])
            level[at:stop] += inside - (int(level[at] - step[at]) if stop > at else 0)
        wrong = np.flatnonzero((level < 0) | (level > 1))
        if len(wrong):
            raise _bad_markers(number, int(wrong[0]), int(level[wrong[0]]))
        return np.asarray((level == 1) & (tokens != self.begin), np.bool_)

    def _inside(self, sample: Any, at: int, step: npt.NDArray[np.int64], markers: npt.NDArray[np.int64]) -> int:
        """1 where the document at a place is inside an answer there, else 0."""
        first = int(step[markers[0]]) if len(markers) else 0
        if first > 0:
            return 0
        before = getattr(sample, "before", None)
        if before is None:
            return int(first < 0 and (at > 0 or not isinstance(sample, Sample)))
        if first < 0:  # an answer ends: it began before, or there is nothing before and the markers are wrong
            return int(len(before(at, 1)) > 0)
        most = _FIRST_LOOK
        while True:
            tokens = before(at, most)
            last = np.flatnonzero((tokens == self.begin) | (tokens == self.end))
            if len(last) or len(tokens) < most:
                return int(len(last) > 0 and int(tokens[last[-1]]) == self.begin)
            most *= 4


def _bad_markers(row: int, place: int, level: int) -> DataError:
    what = "an end marker comes before its begin" if level < 0 else "a second begin marker follows"
    return DataError(
        f"row {row} of the batch: {what}, at target {place}",
        kind="bad-markers",
        fix="Fix the document, or check the marker ids.",
    )
