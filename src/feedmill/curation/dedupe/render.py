"""Render attribute rows: the document's id and the spans of its duplicates, as Dolma writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.curation.dedupe.units import NO_KEY
from feedmill.curation.options import Dedupe
from feedmill.formats.arrays import Arrays
from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.hashing.windows import BEGINS, ENDS
from feedmill.kernels.jsonl import spanrows

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Rendered:
    """Rows to write, with line ends, and the numbers of documents with duplicates and of duplicate units in them."""

    rows: bytes
    documents: int
    units: int


def render(
    ids: list[bytes],
    states: npt.NDArray[np.uint8],
    rows: Ints,
    starts: Ints,
    ends: Ints,
    bounds: Ints,
    found: npt.NDArray[np.bool_],
    options: Dedupe,
) -> Rendered:
    """Return the attribute rows of a block.

    Args:
        ids, states, rows, starts, ends, bounds: See `feedmill.curation.dedupe.units.Units`.
        found: Whether each key was seen before, bool[keys].
    """
    flagged, numbers, scores = _scores(bounds, found, options)
    name, bare = orjson.dumps(options.attribute), states == NO_KEY
    rows, starts, ends = (a[flagged].astype(np.int64) for a in (rows, starts, ends))
    text = _span_rows(ids, bare, rows, starts, ends, numbers, scores, name)
    documents = int(np.count_nonzero(np.diff(rows))) + bool(len(rows))
    return Rendered(text, documents, len(flagged))


def render_windows(ids: list[bytes], a: Arrays, found: npt.NDArray[np.bool_], options: Dedupe) -> Rendered:
    """Return the attribute rows of a segment of windows: spans over all bytes, or tokens, that repeated windows have.

    A span has the characters that are whole in these.

    Args:
        a: See `feedmill.curation.dedupe.substrings`.
        found: Whether each window is repeated, bool[windows].
    """
    firsts, lasts = a["bounds"]
    places = np.repeat(np.arange(len(firsts)), lasts - firsts)  # of each window
    marked = a["marked"] != 0
    found = found & ~marked[places]
    edge = np.zeros(len(found) + 1, np.bool_)  # between windows of different places
    edge[firsts[firsts < lasts]] = edge[-1] = True
    before = np.append(False, found)[:-1] & ~edge[:-1]
    after = np.append(found, False)[1:] & ~edge[1:]
    low, high = np.flatnonzero(found & ~before), np.flatnonzero(found & ~after)  # first and last windows of runs
    of, whole = places[low], np.flatnonzero(marked)
    numbers = np.concatenate([whole, of])
    starts = np.concatenate([a["starts"][whole], a["starts"][of] + (low - firsts[of])])
    stops = np.concatenate([a["ends"][whole], a["starts"][of] + (high - firsts[of]) + options.length])
    characters = a["characters"].astype(np.int64)
    if "marks" in a:
        begins, ends = (a["marks"] & BEGINS) != 0, (a["marks"] & ENDS) != 0
        sums, other = bounds_of(begins), bounds_of(ends)
        first = characters[of, 0] + sums[low] - sums[firsts[of]]
        last = characters[of, 1] + other[high] - other[firsts[of]] - 1 + ends[high]
    else:
        first, last = a["firsts"][low].astype(np.int64), a["lasts"][high].astype(np.int64)
    first, last = np.concatenate([characters[whole, 0], first]), np.concatenate([characters[whole, 2], last])
    order = np.lexsort((starts, numbers))
    rows, starts, stops, first, last = (one[order] for one in (a["rows"][numbers], starts, stops, first, last))
    new = np.ones(len(rows), np.bool_)
    new[1:] = (np.diff(rows) > 0) | (starts[1:] > stops[:-1])
    low, high = np.flatnonzero(new), np.flatnonzero(np.append(new, True)[1:])
    rows, first, last = rows[low].astype(np.int64), first[low], last[high]
    seen = first < last  # others are bytes inside of one character
    rows, first, last = rows[seen], first[seen], last[seen]
    none, name = np.zeros(len(ids), np.bool_), orjson.dumps(options.attribute)
    text = _span_rows(ids, none, rows, first, last, np.zeros(len(rows), np.int64), [b"1"], name)
    return Rendered(text, int(np.count_nonzero(np.diff(rows))) + bool(len(rows)), len(rows))


def _span_rows(
    ids: list[bytes],
    bare: npt.NDArray[np.bool_],
    rows: Ints,
    starts: Ints,
    ends: Ints,
    numbers: Ints,
    scores: list[bytes],
    name: bytes,
) -> bytes:
    marks = [b'{"attributes":{' + name + b":[", b'{"attributes":{', b']},"id":', b'},"id":', b"}\n"]
    (id_bytes, id_ends), (score_bytes, score_ends), (mark_bytes, mark_ends) = map(_strings, (ids, scores, marks))
    longest = max(map(len, scores), default=0)
    size = len(id_bytes) + len(ids) * len(mark_bytes) + len(rows) * (2 * spanrows.NUMBER + longest + 5)
    out = np.empty(size, np.uint8)
    size = spanrows.fill_rows(
        id_bytes, id_ends, bare, rows, starts, ends, numbers, score_bytes, score_ends, mark_bytes, mark_ends, out
    )
    return out[:size].tobytes()


def _strings(strings: Sequence[bytes]) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return the concatenated strings, and the end of each."""
    ends = np.cumsum([len(string) for string in strings], dtype=np.int64)
    return np.frombuffer(b"".join(strings) or b" ", np.uint8), ends


def _scores(bounds: Ints, found: npt.NDArray[np.bool_], options: Dedupe) -> tuple[Ints, Ints, list[bytes]]:
    """Return the units to mark, the index of each one's score, and the scores as JSON."""
    if options.ngram == 0:
        flagged = np.flatnonzero(found)  # one key each
        return flagged, np.zeros(len(flagged), np.int64), [b"1"]
    sums = bounds_of(found)
    used = bounds[1] - bounds[0]
    share = (sums[bounds[1]] - sums[bounds[0]]).astype(np.float32) / np.maximum(used, 1).astype(np.float32)
    flagged = np.flatnonzero((used > 0) & (share >= np.float32(options.threshold)))
    values, numbers = np.unique(share[flagged], return_inverse=True)
    return flagged, numbers.astype(np.int64), [orjson.dumps(score) for score in values.astype(np.float64).tolist()]
