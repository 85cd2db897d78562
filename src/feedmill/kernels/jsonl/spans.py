"""Write spans as the JSON of attributes, for a batch of documents at once: kinds in the order of their first span.

Integer scores are formatted here; the few other scores are passed as text.
"""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import Array, kernel

_OPEN, _CLOSE, _COMMA, _ZERO, _MINUS, _POINT = 91, 93, 44, 48, 45, 46


@kernel
def _write(out, at, value):  # type: ignore[no-untyped-def]
    """Write the digits of an integer, and return their end."""
    if value < 0:
        out[at] = _MINUS
        at += 1
        value = -value
    digits, rest = 1, value
    while rest >= 10:
        rest //= 10
        digits += 1
    for i in range(at + digits - 1, at - 1, -1):
        out[i] = _ZERO + value % 10
        value //= 10
    return at + digits


def fragments(
    first: Array,
    kinds: Array,
    starts: Array,
    ends: Array,
    whole: Array,
    texts: Array,
    bounds: Array,
    which: Array,
    heads: Array,
    head_bounds: Array,
) -> tuple[Array, Array]:
    """Return the JSON of each document's attributes, without the braces.

    Args:
        first: int64[documents + 1], the start of each document's spans.
        kinds, starts, ends: int64[spans].
        whole: int64[spans], integer scores.
        which: int64[spans], -1, or the index of the text to write as the score.
        texts, bounds: uint8, int64: these texts and the start of each.
        heads, head_bounds: the same for the text before each kind's spans: ``"name":[``.

    Returns:
        The bytes, uint8, and the start of each document's bytes, int64[documents + 1].
    """
    widest = int(np.diff(head_bounds).max(initial=0))
    out = np.empty(len(kinds) * (70 + widest) + len(texts) + 1, np.uint8)
    offsets, seen = np.empty(len(first), np.int64), np.full(len(head_bounds) - 1, -1, np.int64)
    at = _fragments(first, kinds, starts, ends, whole, texts, bounds, which, heads, head_bounds, seen, out, offsets)
    return out[:at], offsets


@kernel(
    "i64[:], i64[:], i64[:], i64[:], i64[:], u8[:], i64[:], i64[:], u8[:], i64[:], out i64[:], out u8[:], "
    "out i64[:] -> i64"
)
def _fragments(first, kinds, starts, ends, whole, texts, bounds, which, heads, head_bounds, seen, out, offsets):  # type: ignore[no-untyped-def]
    at = 0
    offsets[0] = 0
    for k in range(len(first) - 1):
        low, high = first[k], first[k + 1]
        begin = at
        for i in range(low, high):
            kind = kinds[i]
            if seen[kind] == k:
                continue
            seen[kind] = k
            if at > begin:
                out[at] = _COMMA
                at += 1
            for j in range(head_bounds[kind], head_bounds[kind + 1]):
                out[at] = heads[j]
                at += 1
            for j in range(i, high):
                if kinds[j] != kind:
                    continue
                if j > i:
                    out[at] = _COMMA
                    at += 1
                out[at] = _OPEN
                at = _write(out, at + 1, starts[j])
                out[at] = _COMMA
                at = _write(out, at + 1, ends[j])
                out[at] = _COMMA
                at += 1
                if which[j] < 0:
                    at = _write(out, at, whole[j])
                    out[at], out[at + 1] = _POINT, _ZERO
                    at += 2
                else:
                    for c in range(bounds[which[j]], bounds[which[j] + 1]):
                        out[at] = texts[c]
                        at += 1
                out[at] = _CLOSE
                at += 1
            out[at] = _CLOSE
            at += 1
        offsets[k + 1] = at
    return at
