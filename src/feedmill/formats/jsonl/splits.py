"""Splits of a JSONL file, in Feedmill's file ``qa.jsonl.split.yaml``. Energon does not read it.

.. code-block:: yaml

    samples: 60              # number of records that were divided
    last_at: 2441            # offset of the last of them
    split_parts:             # record numbers: begin (inclusive), end (exclusive)
      train: [[0, 48]]
      val: [[48, 54]]
      test: [[54, 60]]

A record may be in several splits or in none, but not twice in one. The ranges of a split are in ascending order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import yaml

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats import yamls
from feedmill.formats.offsets import Int64s
from feedmill.storage import Store

_KEYS = ("samples", "last_at", "split_parts")


class Pieces:
    """The records of one split as ranges ``[begin, end)``, in ascending order, with adjacent ranges merged."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        joined: list[tuple[int, int]] = []
        for begin, end in ranges:
            if begin == end:
                continue
            if joined and joined[-1][1] == begin:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((begin, end))
        self.ranges = joined
        self._begins = np.asarray([begin for begin, _ in joined], np.int64)
        self._before = np.cumsum([0, *(end - begin for begin, end in joined)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._before[-1])

    def records(self, indices: Int64s) -> Int64s:
        """Return the record numbers in the file of samples of the split, int64[n] in ``[0, len)``."""
        if not len(indices):
            return np.zeros(0, np.int64)
        piece = np.searchsorted(self._before, indices, side="right") - 1
        return np.asarray(self._begins[piece] + indices - self._before[piece], np.int64)

    def index(self, record: int) -> int | None:
        """Return the number in the split of a record of the file; None if it is not in the split."""
        piece = int(np.searchsorted(self._begins, record, side="right")) - 1
        if piece < 0 or record >= self.ranges[piece][1]:
            return None
        return int(self._before[piece]) + record - self.ranges[piece][0]

    def first(self, count: int) -> list[tuple[int, int]]:
        """Return the ranges of the first `count` samples."""
        out = []
        for (begin, end), before in zip(self.ranges, self._before.tolist(), strict=False):
            if before < count:
                out.append((begin, min(end, begin + count - before)))
        return out


@dataclass(frozen=True, slots=True)
class LineSplits:
    """Content of a split file.

    Attributes:
        samples: number of records that were divided.
        last_at: offset of the last of them. (Its end moves if lines are added after a last line without a line break.)
        parts: split name -> its records.
    """

    samples: int
    last_at: int
    parts: Mapping[str, Pieces]

    def part(self, name: str, where: str) -> Pieces:
        """Return the records of one split. Raises `NotFound`."""
        if name not in self.parts:
            raise NotFound(
                f"there is no split {name!r}",
                file=where,
                kind="no-such-split",
                fix=f"It has: {', '.join(self.parts) or 'none'}.",
            )
        return self.parts[name]

    def fits(self, offsets: Int64s) -> bool:
        """Return whether a file with records at `offsets`, int64[n + 1], begins with the divided records."""
        return 0 < self.samples < len(offsets) and int(offsets[self.samples - 1]) == self.last_at

    def extended(self, offsets: Int64s) -> LineSplits:
        """Return the splits of a grown file: new records join the first split, and no record moves."""
        count = len(offsets) - 1
        first = next(iter(self.parts), "train")
        old = self.parts[first].ranges if first in self.parts else []
        parts = {**self.parts, first: Pieces([*old, (self.samples, count)])}
        return LineSplits(count, int(offsets[-2]), parts)

    def runs(self) -> list[tuple[int, int, tuple[str, ...]]]:
        """Return all records as ``(begin, end, splits)`` of runs in the same splits."""
        edges = {
            0,
            self.samples,
            *(edge for pieces in self.parts.values() for piece in pieces.ranges for edge in piece),
        }
        return [
            (begin, end, tuple(name for name, pieces in self.parts.items() if pieces.index(begin) is not None))
            for begin, end in pairwise(sorted(edges))
        ]

    def moved(self, offsets: Int64s) -> LineSplits:
        """Return the splits for another file with the same number of records, at `offsets`, int64[n + 1]."""
        return LineSplits(self.samples, int(offsets[self.samples - 1]), self.parts)

    def without(self, removed: Sequence[int], offsets: Int64s) -> LineSplits:
        """Return the splits of the file without some records.

        Args:
            removed: record numbers, ascending.
            offsets: int64[n + 1], record offsets before the removal.
        """
        gone = np.asarray(removed, np.int64)
        gone = gone[gone < self.samples]

        def moved(record: int) -> int:
            return record - int(np.searchsorted(gone, record))

        parts = {
            name: Pieces([(moved(begin), moved(end)) for begin, end in pieces.ranges])
            for name, pieces in self.parts.items()
        }
        left = np.setdiff1d(np.arange(self.samples), gone, assume_unique=True)
        last_at = 0
        if len(left):
            before = gone[gone < left[-1]]
            last_at = int(offsets[left[-1]] - (offsets[before + 1] - offsets[before]).sum())
        return LineSplits(len(left), last_at, parts)


def splits_name(path: str) -> str:
    """Return the path of the split file of a JSONL file."""
    return f"{path}.split.yaml"


def write_splits(store: Store, path: str, splits: LineSplits) -> None:
    """Write the split file of a JSONL file."""
    parts = {name: [list(piece) for piece in pieces.ranges] for name, pieces in splits.parts.items()}
    content = {"samples": splits.samples, "last_at": splits.last_at, "split_parts": parts}
    store.write_bytes(splits_name(path), yaml.dump(content, sort_keys=False, default_flow_style=None).encode())


def read_splits(store: Store, path: str) -> LineSplits | None:
    """Return the splits of a JSONL file; None if it has no split file. Raises `ConfigError` for one that is invalid."""
    name = splits_name(path)
    if not store.exists(name):
        return None
    document = yamls.read_yaml(store.read_small(name), store.locate(name))
    content = document.value
    if not isinstance(content, dict) or set(content) != set(_KEYS) or not isinstance(content["split_parts"], dict):
        raise _wrong(document, (), "invalid split file: expected 'samples', 'last_at' and 'split_parts'")
    samples, last_at = content["samples"], content["last_at"]
    for key, value in (("samples", samples), ("last_at", last_at)):
        if type(value) is not int or value < 0:
            raise _wrong(document, (key,), f"{key!r} must be a number, found {value!r}")
    parts = {}
    for split, ranges in content["split_parts"].items():
        parts[split] = Pieces(_ranges(document, split, ranges, samples))
    return LineSplits(samples, last_at, parts)


def _ranges(document: yamls.Document, split: str, value: Any, samples: int) -> list[tuple[int, int]]:
    place = ("split_parts", split)
    if not isinstance(value, list):
        raise _wrong(document, place, f"the split {split!r} must be a list of ranges such as [0, 48]")
    out: list[tuple[int, int]] = []
    for number, piece in enumerate(value):
        where = (*place, number)
        if not (isinstance(piece, list) and len(piece) == 2 and all(type(edge) is int for edge in piece)):
            raise _wrong(document, where, f"a range must be two record numbers such as [0, 48], found {piece!r}")
        begin, end = piece
        if not 0 <= begin <= end <= samples:
            raise _wrong(document, where, f"the range {piece} is not within the {samples} records")
        if out and begin < out[-1][1]:
            raise _wrong(document, where, f"the range {piece} begins before the end of the previous one")
        out.append((begin, end))
    return out


def _wrong(document: yamls.Document, place: tuple[str | int, ...], what: str) -> ConfigError:
    return ConfigError(
        what,
        file=document.at(place),
        kind="bad-config",
        fix="Correct the file, or write it again: 'feedmill prepare FILE --split-ratio 8,1,1'.",
    )


def unfitting(store: Store, path: str, splits: LineSplits, offsets: Int64s) -> DataError:
    """Return the error for splits of another state of the file."""
    return DataError(
        f"the splits do not match the file: expected {splits.samples:,} records, the last at byte {splits.last_at:,};"
        f" found {len(offsets) - 1:,} records, the last at byte {int(offsets[-2]):,}",
        file=store.locate(splits_name(path)),
        kind="stale-index",
        fix="If lines were only added, run 'feedmill prepare' again. If other lines changed, divide the file again:"
        " 'feedmill prepare FILE --split-ratio 8,1,1'.",
    )
