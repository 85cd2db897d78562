"""Extract texts from rows as JSON without decoding them, and replace spans in them.

A text is extracted if it has Feedmill's own form: UTF-8 without unnecessary escapes, and ``\\b \\f \\n \\r \\t`` for
these characters. Then each character is itself, or a backslash and one more byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.jsonl.jsonlines import behind_character, has_escape
from feedmill.kernels.jsonl.spanlists import Chosen, Int64s
from feedmill.kernels.machine import copy, load64
from feedmill.kernels.native import kernel


class Lifted(NamedTuple):
    """Rows without their texts.

    Attributes:
        rows: JSON array of all rows, with an empty string for each extracted text. If it is valid JSON, each row is one
            of its values.
        texts: (begin, end) of each row's text with its quotes, in the bytes of the lines; (-1, -1) if the text was not
            extracted.
    """

    rows: bytes
    texts: list[list[int]]


def lift(lines: bytes) -> Lifted | None:
    """Return the rows of whole lines without their texts; None if a line does not look like a document.

    >>> lift(b'{"text":"a\\\\n","id":1}\\n{"text":"\\\\u0041"}\\n')
    Lifted(rows=b'[{"text":"","id":1},{"text":"\\\\u0041"}]', texts=[[8, 13], [-1, -1]])
    """
    texts, made = np.empty((len(lines) // len('{"text":""}') + 1, 2), np.int64), np.zeros(1, np.int64)
    out = np.empty(len(lines) + 3, np.uint8)
    rows = _lift_texts(np.frombuffer(lines, np.uint8), out, texts, made)
    return Lifted(out[: made[0]].tobytes(), texts[:rows].tolist()) if rows else None


class Cut(NamedTuple):
    """Texts whose spans are replaced.

    Attributes:
        data, bounds: the concatenated texts as JSON, and the start of each, int64[n + 1].
        passed: int64[n], number of skipped spans. See `feedmill.curation.mix.spans.replace`.
        odd: bool[n], whether any of these was empty, inverted or began beyond the text.
        sound: bool[n], whether the text has enough visible ASCII characters.
    """

    data: memoryview
    bounds: list[int]
    passed: Int64s
    odd: npt.NDArray[np.bool_]
    sound: npt.NDArray[np.bool_]


def cut(texts: Sequence[bytes], spans: Chosen, new: Sequence[bytes], enough: int) -> Cut:
    """Replace spans of characters.

    Args:
        texts: extracted texts.
        new: replacement for the spans of each choice, JSON without quotes.
        enough: required number of characters, see `Cut.sound`.
    """
    bounds, new_bounds = _bounds(texts), _bounds(new)
    widest = max(map(len, new), default=0)
    out = np.empty(bounds[-1] + widest * len(spans.starts), np.uint8)
    made = np.zeros(len(bounds), np.int64)
    passed, odd, sound = np.zeros(len(texts), np.int64), *np.zeros((2, len(texts)), np.bool_)
    data, news = (np.frombuffer(b"".join(strings), np.uint8) for strings in (texts, new))
    _cut_texts(data, bounds, *spans, news, new_bounds, enough, out, made, passed, odd, sound)
    return Cut(out.data, made.tolist(), passed, odd, sound)


def _bounds(pieces: Sequence[bytes]) -> Int64s:
    bounds = bounds_of([len(piece) for piece in pieces])
    return bounds


# --- compiled ---------------------------------------------------------------------------------------------------------

_QUOTE, _SLASH, _NEWLINE, _OPEN, _CLOSE, _COLON, _COMMA = 0x22, 0x5C, 0x0A, 0x7B, 0x7D, 0x3A, 0x2C
_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_SPACES, _QUOTES, _SLASHES = _ONES * np.uint64(0x20), _ONES * np.uint64(_QUOTE), _ONES * np.uint64(_SLASH)
_TOP = np.uint64(56)


@kernel
def _special(data, at, end):  # type: ignore[no-untyped-def]
    """Return the first byte from here that is a quote, a backslash, a control character or beyond ASCII; or `end`."""
    while at + 8 <= end:
        word = load64(data, at)
        # The lowest mark is exact, because a borrow can only begin at a matching byte.
        marks = (word | (word - _SPACES) | ((word ^ _QUOTES) - _ONES) | ((word ^ _SLASHES) - _ONES)) & _HIGHS
        if marks:
            below = (marks & (~marks + np.uint64(1))) - np.uint64(1)
            return at + np.int64(((below & _ONES) * _ONES) >> _TOP) - 1
        at += 8
    while at < end:
        byte = data[at]
        if byte < 0x20 or byte >= 0x80 or byte == _QUOTE or byte == _SLASH:
            return at
        at += 1
    return at


@kernel
def _text(data, at, end):  # type: ignore[no-untyped-def]
    """Return the end of the string whose quote is before `at`; -1 if it does not have Feedmill's own form."""
    while True:
        at = _special(data, at, end)
        if at >= end:
            return -1
        byte = data[at]
        if byte == _QUOTE:
            return at + 1
        if byte == _SLASH:
            after = data[at + 1] if at + 1 < end else np.uint8(0)
            # " \ b f n r t
            if after not in (_QUOTE, _SLASH, 0x62, 0x66, 0x6E, 0x72, 0x74):
                return -1
            at += 2
        elif byte < 0x20:
            return -1
        else:
            at = behind_character(data, at, end)
            if at < 0:
                return -1


@kernel
def _string(data, at, end):  # type: ignore[no-untyped-def]
    """Return the end of the string whose quote is before `at`, in any form; -1 if the line ends before it."""
    while True:
        at = _special(data, at, end)
        if at >= end or data[at] == _NEWLINE:
            return -1
        byte = data[at]
        if byte == _QUOTE:
            return at + 1
        at += 2 if byte == _SLASH else 1


@kernel
def _blanks(data, at, end):  # type: ignore[no-untyped-def]
    """Return the end of the blanks."""
    while at < end and (data[at] == 0x20 or data[at] == 0x09):
        at += 1
    return at


@kernel
def _is_text(data, low, high):  # type: ignore[no-untyped-def]
    """Return whether these bytes are ``"text"``."""
    return (
        high - low == 6
        and data[low + 1] == 0x74
        and data[low + 2] == 0x65
        and data[low + 3] == 0x78
        and data[low + 4] == 0x74
    )


@kernel
def _find_text(data, at, end, texts, row):  # type: ignore[no-untyped-def]
    """Return the end of the object at `at`, and write the bounds of its text to `texts`.

    Returns -1 if the line is not one object, a key is escaped, or there are two texts.

    Brackets are counted but not distinguished: invalid JSON is detected when the row without its text is parsed.
    """
    texts[row, 0] = texts[row, 1] = -1
    if at >= end or data[at] != _OPEN:
        return -1
    depth, key, seen = 1, True, False
    at += 1
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            low = at
            at = _string(data, at + 1, end)
            if at < 0:
                return -1
            if depth == 1 and key:
                if has_escape(data, low, at):
                    return -1
                if not _is_text(data, low, at):
                    continue
                if seen:
                    return -1
                seen = True
                at = _blanks(data, at, end)
                if at >= end or data[at] != _COLON:
                    return -1
                key = False
                at = _blanks(data, at + 1, end)
                behind = _text(data, at + 1, end) if at < end and data[at] == _QUOTE else -1
                if behind >= 0:
                    texts[row, 0], texts[row, 1] = at, behind
                    at = behind
            continue
        at += 1
        if byte == _OPEN or byte == 0x5B:
            depth += 1
        elif byte == _CLOSE or byte == 0x5D:
            depth -= 1
            if depth == 0:
                return at if byte == _CLOSE else -1
        elif byte == _NEWLINE:
            return -1
        elif depth == 1:
            if byte == _COMMA:
                key = True
            elif byte == _COLON:
                key = False
    return -1


@kernel
def _copy(out, size, data, low, high):  # type: ignore[no-untyped-def]
    copy(out, size, data, low, high - low)
    return size + high - low


@kernel("u8[:], out u8[:], out i64[:,:], out i64[:] -> i64")
def _lift_texts(data, out, texts, made):  # type: ignore[no-untyped-def]
    """Write a JSON array of the rows without their texts to `out`, uint8, and their bounds to `texts`, int64[n, 2].

    Returns the number of rows, or 0 if a line does not look like a document. `made`, int64[1], receives the number of
    bytes.
    """
    at, end, size, row = 0, len(data), 1, 0
    out[0] = 0x5B
    while at < end:
        behind = _find_text(data, at, end, texts, row) if row < len(texts) else -1
        if behind < 0 or (behind < end and data[behind] != _NEWLINE):
            return 0
        if texts[row, 0] >= 0:
            size = _copy(out, size, data, at, texts[row, 0] + 1)
            size = _copy(out, size, data, texts[row, 1] - 1, behind)
        else:
            size = _copy(out, size, data, at, behind)
        out[size] = _COMMA
        size += 1
        at, row = behind + 1, row + 1
    out[size - 1] = 0x5D
    made[0] = size
    return row


@kernel
def _advance(data, at, stop, count):  # type: ignore[no-untyped-def]
    """Return the position `count` characters further on, and the number of characters that are missing for that."""
    while count > 0 and at < stop:
        limit = min(stop, at + count)
        found = _special(data, at, limit)
        count -= found - at
        at = found
        if at < limit:
            at += 2 if data[at] == _SLASH else 1
            while at < stop and data[at] & 0xC0 == 0x80:
                at += 1
            count -= 1
    return at, count


@kernel
def _sound(data, at, end, enough):  # type: ignore[no-untyped-def]
    """Return whether there are at least `enough` printable ASCII characters."""
    while enough > 0 and at < end:
        byte = data[at]
        if byte == _SLASH:
            at += 5 if data[at + 1] == 0x75 else 1  # in a replacement, a character may be \u and four digits
        elif 0x20 < byte < 0x7F:
            enough -= 1
        at += 1
    return enough <= 0


@kernel(
    "u8[:], i64[:], i64[:], i64[:], i64[:], i64[:], u8[:], i64[:], i64, out u8[:], out i64[:], out i64[:], "
    "out b[:], out b[:]"
)
def _cut_texts(data, bounds, first, starts, ends, which, news, new_bounds, enough, out, made, passed, odd, sound):  # type: ignore[no-untyped-def]
    """Fill `out` and the arguments after it, see `cut`."""
    size = 0
    for row in range(len(bounds) - 1):
        at, stop = bounds[row] + 1, bounds[row + 1] - 1
        out[size] = _QUOTE
        size += 1
        here = done = 0  # in characters: the position of `at`, and the end of the last replaced span
        for k in range(first[row], first[row + 1]):
            start, end = starts[k], ends[k]
            if end <= start or start < done:
                passed[row] += 1
                odd[row] |= end <= start or (at == stop and start >= here)
                continue
            low = at
            at, lacking = _advance(data, at, stop, start - here)
            size = _copy(out, size, data, low, at)
            here = start - lacking
            if at == stop:
                passed[row] += 1
                odd[row] = True
                continue
            size = _copy(out, size, news, new_bounds[which[k]], new_bounds[which[k] + 1])
            at, lacking = _advance(data, at, stop, end - start)
            here, done = end - lacking, end
        size = _copy(out, size, data, at, stop)
        sound[row] = _sound(out, made[row] + 1, size, enough)
        out[size] = _QUOTE
        size += 1
        made[row + 1] = size
