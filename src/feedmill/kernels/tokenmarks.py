"""Which tokens have characters of given ranges, where the bytes of the tokens are the text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import kernel

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def token_marks(
    texts: Sequence[str],
    ids: npt.NDArray[np.uint32],
    lengths: Int64s,
    spans: Sequence[Sequence[tuple[int, int]] | None],
    spelled: tuple[npt.NDArray[np.uint8], Int64s],
) -> tuple[Bools, Bools]:
    """Return which tokens have a character of the ranges of their text, and of which texts that is unknown.

    Args:
        texts: n texts.
        ids, lengths: their concatenated tokens, and the number of tokens of each.
        spans: for each text, ranges of characters in order; None if all tokens count.
        spelled: the bytes of all tokens of the vocabulary, and where each begins, with the end of the last.

    Returns:
        bool[tokens], and bool[n]: the bytes of the tokens are not the text.

    >>> vocabulary = np.frombuffer(b"abcd", np.uint8), np.array([0, 2, 3, 4])
    >>> ids, lengths = np.array([0, 1, 2, 0], np.uint32), np.array([3, 1])
    >>> marks, unknown = token_marks(["abcd", "x"], ids, lengths, [[(1, 3)], []], vocabulary)
    >>> marks.tolist(), unknown.tolist()
    ([True, True, False, False], [False, True])
    """
    raw = np.frombuffer("".join(texts).encode() or b"\0", np.uint8)
    counts = np.array([-1 if one is None else len(one) for one in spans], np.int64)
    flat = chain.from_iterable(chain.from_iterable(one for one in spans if one))
    ranges = np.fromiter(flat, np.int64, 2 * int(counts[counts > 0].sum()))
    characters = np.fromiter(map(len, texts), np.int64, len(texts))
    marks, unknown = np.empty(len(ids), np.bool_), np.empty(len(texts), np.bool_)
    size = sum(map(len, texts)) and len(raw)
    _token_marks(raw[:size], characters, ids, np.ascontiguousarray(lengths), ranges, counts, *spelled, marks, unknown)
    return marks, unknown


@kernel("u8[:], i64[:], u32[:], i64[:], i64[:], i64[:], u8[:], i64[:], out b[:], out b[:]")
def _token_marks(raw, characters, ids, lengths, ranges, counts, spelled, starts, marks, unknown):  # type: ignore[no-untyped-def]
    """Do the work of `token_marks`.

    Args:
        raw: the texts in UTF-8, one after another; `characters`: of each.
        ranges: begins and ends; `counts`: of the ranges of each text, -1 for None.
        spelled, starts: the vocabulary.
        marks, unknown: filled.
    """
    size = len(raw)
    at, token, first = 0, 0, 0
    for n in range(len(lengths)):
        seen, same = 0, True
        span = first
        last = first + max(counts[n], 0)
        begin = at
        for _ in range(lengths[n]):
            number = np.int64(ids[token])
            low = starts[number]
            high = starts[number + 1]
            same = same and at + high - low <= size and high > low
            marks[token] = counts[n] < 0
            if same:
                # A token that begins inside of a character has this one too.
                start = seen - 1 if raw[at] & 0xC0 == 0x80 else seen
                for i in range(high - low):
                    byte = raw[at + i]
                    same = same and byte == spelled[low + i]
                    seen += 1 if byte & 0xC0 != 0x80 else 0
                at += high - low
                while span < last and ranges[2 * span + 1] <= max(start, ranges[2 * span]):
                    span += 1
                if span < last and ranges[2 * span] < seen:
                    marks[token] = True
            token += 1
        first = last
        same = same and seen == characters[n] and (at == size or raw[at] & 0xC0 != 0x80)
        unknown[n] = not same
        if not same:
            at, seen = begin, 0
            while at < size and (seen < characters[n] or raw[at] & 0xC0 == 0x80):
                seen += 1 if raw[at] & 0xC0 != 0x80 else 0
                at += 1
