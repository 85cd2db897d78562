"""Pack lists of spans as JSON, ``[[0,5,1],[5,9,0.5]]``, into records of numbers.

Packed spans are records of 24 bytes: start and end as int64, the score as float64. A list can be
packed if starts and ends have no sign and at most 18 digits, and scores are finite and, if they are integers, have
fewer than 16 digits (a float cannot represent larger ones exactly). Other lists must be parsed as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.jsonl.limits import RECORD

Int64s = npt.NDArray[np.int64]


def pack(lists: Sequence[bytes]) -> list[bytes] | None:
    """Return the packed spans of each list; None if any list cannot be packed.

    Args:
        lists: JSON values, valid except for the bytes of strings.
    """
    from feedmill.kernels.jsonl.spanlists_compiled import read_spans

    joined = b"".join(lists)
    most = len(joined) // len("[0,0,0]") + 1
    records, long = np.empty((most, 3), np.int64), np.empty((most, 3), np.int64)
    scores = records.view(np.float64)
    counts = np.zeros(2, np.int64)
    ends = np.cumsum([len(one) for one in lists], dtype=np.int64)
    bounds = np.zeros(len(lists) + 1, np.int64)
    if not read_spans(np.frombuffer(joined, np.uint8), ends, records, scores, long, bounds[1:], counts):
        return None
    for n, low, high in long[: counts[1]].tolist():
        scores[n, 2] = score = float(joined[low:high])
        if not math.isfinite(score):
            return None
    data = records[: counts[0]].tobytes()
    bounds *= RECORD
    return [data[low:high] for low, high in pairwise(bounds.tolist())]


def unpack(packed: bytes) -> list[tuple[int, int, float]]:
    """Return the spans of a packed list.

    >>> unpack(pack([b"[[0, 5, 1], [5, 9, 0.25]]"])[0])
    [(0, 5, 1.0), (5, 9, 0.25)]
    """
    records = np.frombuffer(packed, np.int64).reshape(-1, 3)
    scores = records.view(np.float64)[:, 2]
    return list(zip(records[:, 0].tolist(), records[:, 1].tolist(), scores.tolist(), strict=True))


class Chosen(NamedTuple):
    """Chosen spans of several rows.

    Attributes:
        first: int64[n + 1], the start of each row's spans.
        starts, ends, which: int64[spans], start, end and choice of each span. A row's spans are sorted by start; the
            sort is stable.
    """

    first: Int64s
    starts: Int64s
    ends: Int64s
    which: Int64s


def choose(packed: Sequence[Sequence[bytes]], bounds: Sequence[tuple[float, float]], rows: int) -> Chosen:
    """Return the spans with ``low <= score < high``.

    Args:
        packed: for each choice, the packed spans of each row.
        bounds: (low, high) of each choice.
        rows: number of rows.
    """
    from feedmill.kernels.jsonl.spanlists_compiled import choose_spans

    records = np.frombuffer(b"".join([one for column in packed for one in column]), np.int64).reshape(-1, 3)
    sizes = np.array([list(map(len, column)) for column in packed], np.int64).reshape(len(packed), rows)
    at = bounds_of(sizes.sum(axis=1) // RECORD)
    lows, highs = np.array(bounds, np.float64).reshape(-1, 2).T.copy()
    starts, ends, which = np.empty((3, len(records)), np.int64)
    first = np.zeros(rows + 1, np.int64)
    scores = records.view(np.float64)
    sorted_ = choose_spans(records, scores, sizes, at[:-1], lows, highs, starts, ends, which, first)
    starts, ends, which = starts[: first[-1]], ends[: first[-1]], which[: first[-1]]
    if not sorted_:
        order = np.lexsort((starts, np.repeat(np.arange(rows), np.diff(first))))
        starts, ends, which = starts[order], ends[order], which[order]
    return Chosen(first, starts, ends, which)
