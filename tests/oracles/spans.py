"""Write spans as the JSON of attributes in plain Python, see `feedmill.kernels.jsonl.spans`."""

from __future__ import annotations

import msgspec


def fragment(names: list[str], kinds: list[int], starts: list[int], ends: list[int], scores: list[float]) -> bytes:
    """Return the inside of one document's ``attributes`` object: kinds in the order of their first span.

    >>> fragment(["x__a", "x__b"], [1, 0, 1], [0, 0, 2], [2, 4, 4], [1.0, 0.123456789, 2.5])
    b'"x__b":[[0,2,1.0],[2,4,2.5]],"x__a":[[0,4,0.12346]]'
    """
    found: dict[str, list[tuple[int, int, float]]] = {}
    for kind, start, end, score in zip(kinds, starts, ends, scores, strict=True):
        found.setdefault(names[kind], []).append((start, end, round(float(score), 5)))
    return msgspec.json.encode(found)[1:-1]
