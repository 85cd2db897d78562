"""Mask the loss to targets between two markers, by whole documents or row by row as Modalities does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.formats.sample import Sample

Tokens = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]
_FIRST_LOOK = 1 << 12
"""Tokens read first before a row to find the last marker; each further read takes four times as many."""


@dataclass(frozen=True, slots=True)
class LossMask:
    """A loss mask that keeps the targets between a begin and an end marker, and ignores all others.

    The markers themselves are ignored. With the scope ``document``, each document is masked as a whole, wherever rows
    begin and end: a row that begins inside an answer keeps that answer, and an answer without an end marker extends to
    the end of its document (as with ``feedmill merge --learn-between``). If a row does not show whether it begins
    inside an answer, the tokens of its document before the row are read.

    The scope ``row`` is that of Modalities: each row is masked on its own. A row without a begin marker or without an
    end marker is ignored entirely, and an end before its begin is an error. For a batch of one row, Feedmill and
    Modalities agree.

    Args:
        begin, end: Token ids of the markers.
        ignore: Value of ignored targets.
        scope: ``document`` or ``row``.

    Raises:
        ConfigError: Both markers are the same, or the scope is unknown.

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
                f"the begin marker and the end marker are both {self.begin}",
                fix="Use two different token ids.",
                kind="bad-markers",
            )
        if self.scope not in ("document", "row"):
            raise ConfigError(f"unknown loss mask scope {self.scope!r}", fix="Use document or row.")

    def __call__(self, targets: Tokens) -> npt.NDArray[np.int64]:
        """Return a copy of the targets, int64[n, width], masked with the scope ``row``.

        Args:
            targets: integers[n, width].

        Raises:
            DataError: A row has an end before its begin, or two begins without an end between them. The error names
                the row and the target.
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
        """Return a mask of the tokens of a row that lie inside an answer of their document.

        Args:
            sample: The row's sample. If it has a method ``before(place, most)``, the method returns the last `most`
                tokens before a position of the row that belong to the document at that position. A `Sample` without
                the method is a whole document. For anything else only the row's own markers are used.
            tokens: integers[width], the row.
            starts: Positions in the row at which documents begin, ascending from 0.
            number: Number of the row in the batch, for errors.

        Returns:
            bool[width].

        Raises:
            DataError: An end comes before its begin, or two begins have no end between them. The error names the row
                and the target.
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
        """Return 1 if the document at a position is inside an answer there, otherwise 0."""
        first = int(step[markers[0]]) if len(markers) else 0
        if first > 0:
            return 0
        before = getattr(sample, "before", None)
        if before is None:
            return int(first < 0 and (at > 0 or not isinstance(sample, Sample)))
        if first < 0:  # an answer ends here: it began before the row, or the document starts here and is invalid
            return int(len(before(at, 1)) > 0)
        most = _FIRST_LOOK
        while True:
            tokens = before(at, most)
            last = np.flatnonzero((tokens == self.begin) | (tokens == self.end))
            if len(last) or len(tokens) < most:
                return int(len(last) > 0 and int(tokens[last[-1]]) == self.begin)
            most *= 4


def _bad_markers(row: int, place: int, level: int) -> DataError:
    what = "an end marker has no begin marker before it" if level < 0 else "a begin marker follows another one"
    return DataError(
        f"row {row} of the batch: {what}, at target {place}",
        kind="bad-markers",
        fix="Fix the document, or check the marker ids.",
    )
