"""Render attribute rows: the document's id and the spans of its duplicates, as Dolma writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.curation.dedupe.units import NO_KEY
from feedmill.curation.options import Dedupe
from feedmill.kernels.bounds import bounds_of
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
