"""Attribute rows: the spans of duplicates beside each document's id, as Dolma writes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.curation.dedupe.options import DedupeOptions
from feedmill.curation.dedupe.units import NO_KEY

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Rendered:
    """Rows to write, and how many documents and units of them are duplicates."""

    rows: list[bytes]
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
    options: DedupeOptions,
) -> Rendered:
    """The attribute rows of a block.

    Args:
        ids, states, rows, starts, ends, bounds: as in `feedmill.curation.dedupe.units.Units`.
        found: bool[keys], whether each key was seen before.
    """
    flagged, scores = _scores(bounds, found, options)
    head = b'{"attributes":{' + orjson.dumps(options.attribute) + b":["
    empty, without = head + b']},"id":', b'{"attributes":{},"id":'
    out = [
        (without if state == NO_KEY else empty) + one + b"}" for one, state in zip(ids, states.tolist(), strict=True)
    ]
    spans: dict[int, list[bytes]] = {}
    which = zip(rows[flagged].tolist(), starts[flagged].tolist(), ends[flagged].tolist(), scores, strict=True)
    for row, start, end, score in which:
        spans.setdefault(row, []).append(b"[%d,%d,%b]" % (start, end, score))
    for row, parts in spans.items():
        out[row] = head + b",".join(parts) + b']},"id":' + ids[row] + b"}"
    return Rendered(out, len(spans), len(flagged))


def _scores(bounds: Ints, found: npt.NDArray[np.bool_], options: DedupeOptions) -> tuple[Ints, list[bytes]]:
    """Which units are written down, and their scores."""
    if options.ngram == 0:
        flagged = np.flatnonzero(found)  # one key each
        return flagged, [b"1"] * len(flagged)
    sums = np.zeros(len(found) + 1, np.int64)
    np.cumsum(found, out=sums[1:])
    used = bounds[1] - bounds[0]
    share = (sums[bounds[1]] - sums[bounds[0]]).astype(np.float32) / np.maximum(used, 1).astype(np.float32)
    flagged = np.flatnonzero((used > 0) & (share >= np.float32(options.threshold)))
    return flagged, [orjson.dumps(score) for score in share[flagged].astype(np.float64).tolist()]
