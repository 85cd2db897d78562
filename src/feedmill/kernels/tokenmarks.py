"""Which tokens have characters of given ranges, where the bytes of the tokens are the text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from feedmill.kernels.machine import load64
from feedmill.kernels.native import kernel

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_LOWEST = np.uint64(0x0101010101010101)
"""The lowest bit of each of eight bytes."""


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
    encoded = [text.encode() for text in texts]
    raw = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)
    sizes = np.fromiter(map(len, encoded), np.int64, len(texts))
    counts = np.array([-1 if one is None else len(one) for one in spans], np.int64)
    flat = chain.from_iterable(chain.from_iterable([one for one in spans if one]))
    ranges = np.fromiter(flat, np.int64, 2 * int(counts[counts > 0].sum()))
    marks, unknown = np.zeros(len(ids), np.bool_), np.empty(len(texts), np.bool_)
    _token_marks(raw, sizes, ids, np.ascontiguousarray(lengths), ranges, counts, *spelled, marks, unknown)
    return marks, unknown


@kernel("u8[:], i64[:], u32[:], i64[:], i64[:], i64[:], u8[:], i64[:], out b[:], out b[:]")
def _token_marks(raw, sizes, ids, lengths, ranges, counts, spelled, starts, marks, unknown):  # type: ignore[no-untyped-def]
    """Do the work of `token_marks`.

    Args:
        raw: the texts in UTF-8, one after another; `sizes`: bytes of each.
        ranges: begins and ends; `counts`: of the ranges of each text, -1 for None.
        spelled, starts: the vocabulary.
        marks, unknown: filled; of a text that is unknown, marks are not.
    """
    end, stop, last = 0, 0, 0
    for n in range(len(lengths)):
        at, token, span = end, stop, last
        end += sizes[n]
        stop += lengths[n]
        last += max(counts[n], 0)
        every = counts[n] < 0
        seen, same = 0, True
        while same and token < stop:
            low = starts[np.int64(ids[token])]
            left = starts[np.int64(ids[token]) + 1] - low
            same = left > 0 and at + left <= end
            if same:
                # A token that begins inside of a character has this one too.
                start = seen - 1 if raw[at] & 0xC0 == 0x80 else seen
                other = np.uint64(0)
                while left > 0:
                    if at + 8 <= len(raw) and low + 8 <= len(spelled):
                        width = min(left, 8)
                        word, keep = load64(raw, at), _ONES >> np.uint64(64 - 8 * width)
                        other |= (word ^ load64(spelled, low)) & keep
                        inside = (word >> np.uint64(7)) & ((word >> np.uint64(6)) ^ _ONES) & _LOWEST & keep
                        seen += width - np.int64((inside * _LOWEST) >> np.uint64(56))
                    else:
                        width = 1
                        other |= np.uint64(raw[at] ^ spelled[low])
                        seen += 1 if raw[at] & 0xC0 != 0x80 else 0
                    at += width
                    low += width
                    left -= width
                same = other == 0
                while span < last and ranges[2 * span + 1] <= max(start, ranges[2 * span]):
                    span += 1
                marks[token] = every or (span < last and ranges[2 * span] < seen)
            token += 1
        unknown[n] = not same or at != end
