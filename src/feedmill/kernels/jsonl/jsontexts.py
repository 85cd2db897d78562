"""Fast extraction of the texts of JSON lines, unescaped."""

from __future__ import annotations

import json

import numpy as np

from feedmill.kernels.jsonl.jsonlines import (
    behind_blanks,
    behind_string,
    behind_value,
    has_escape,
    hexadecimal,
)
from feedmill.kernels.machine import copy64, trailing
from feedmill.kernels.native import kernel

_LEAST = len('{"":"x"}')  # length of the shortest line, without the name


class TextTaker:
    """Extractor of the texts from blocks of lines.

    Args:
        name: key of the text in each object.
    """

    def __init__(self, name: str) -> None:
        self._key = np.frombuffer(json.dumps(name, ensure_ascii=False).encode(errors="surrogatepass")[1:-1], np.uint8)
        self._out, self._ends = np.empty(0, np.uint8), np.empty(0, np.int64)

    def take(self, block: bytes | memoryview) -> list[str] | None:
        """Return the texts of whole lines, none of them empty; None if any line is not plain.

        A line is plain if it is an object by RFC 8259 that has the key exactly once, with a string, nests at most 65
        deep, has no escaped top-level keys, and has no escaped NUL in the text. Other lines may be valid or invalid.

        >>> lines = b'{"id": [1], "text": "a\\\\u00e9\\\\n"}\\n'
        >>> TextTaker("text").take(lines), TextTaker("id").take(lines)
        (['aé\\n'], None)
        """
        if len(self._out) < len(block) + 64:
            self._out = np.empty(len(block) + 64, np.uint8)
            self._ends = np.empty(len(block) // (_LEAST + len(self._key)) + 1, np.int64)
        rows = _take_texts(np.frombuffer(block, np.uint8), self._key, self._out, self._ends)
        if rows < 0:
            return None
        out, ends = self._out.data, self._ends[:rows].tolist()
        try:
            return [str(out[begin:end], "utf-8") for begin, end in zip([0, *ends], ends, strict=False)]
        except UnicodeDecodeError:
            return None


# --- compiled ---------------------------------------------------------------------------------------------------------

_QUOTE, _SLASH, _NEWLINE, _OPEN, _CLOSE, _COLON, _COMMA = 0x22, 0x5C, 0x0A, 0x7B, 0x7D, 0x3A, 0x2C


@kernel
def _digit(byte):  # type: ignore[no-untyped-def]
    return byte - 48 if byte <= 57 else (byte | 32) - 87


@kernel
def _unit(data, at, end):  # type: ignore[no-untyped-def]
    """Return the number in four hexadecimal digits at `at`; -1 if they are not digits."""
    if at + 4 > end:
        return -1
    found = np.int64(0)
    for i in range(at, at + 4):
        if not hexadecimal(data[i]):
            return -1
        found = found * 16 + np.int64(_digit(np.int64(data[i])))
    return found


@kernel
def _simple(byte):  # type: ignore[no-untyped-def]
    """Return the character that a backslash and this byte represent; 0 if the escape is invalid."""
    if byte == 0x6E:
        return 0x0A
    if byte == _QUOTE or byte == _SLASH or byte == 0x2F:
        return np.int64(byte)
    if byte == 0x74:
        return 0x09
    if byte == 0x72:
        return 0x0D
    if byte == 0x62:
        return 0x08
    return 0x0C if byte == 0x66 else 0


@kernel
def _character(data, at, end, out, to, made):  # type: ignore[no-untyped-def]
    """Write the character whose escape, a ``\\u``, is at `at` to `out`, and return the end of the escape in `data`.

    Returns -1 if the escape is invalid, half a pair or a NUL. `made` receives the character's end in `out`.
    """
    if at + 1 >= end or data[at + 1] != 0x75:
        return -1
    code = _unit(data, at + 2, end)
    at += 6
    if code <= 0 or 0xDC00 <= code < 0xE000:
        return -1
    if 0xD800 <= code < 0xDC00:
        if at + 6 > end or data[at] != _SLASH or data[at + 1] != 0x75:
            return -1
        low = _unit(data, at + 2, end)
        if low < 0xDC00 or low >= 0xE000:
            return -1
        code = 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
        at += 6
    if code < 0x80:
        out[to] = code
        to += 1
    elif code < 0x800:
        out[to], out[to + 1] = 0xC0 | code >> 6, 0x80 | code & 63
        to += 2
    elif code < 0x10000:
        out[to], out[to + 1], out[to + 2] = 0xE0 | code >> 12, 0x80 | (code >> 6) & 63, 0x80 | code & 63
        to += 3
    else:
        out[to], out[to + 1] = 0xF0 | code >> 18, 0x80 | (code >> 12) & 63
        out[to + 2], out[to + 3] = 0x80 | (code >> 6) & 63, 0x80 | code & 63
        to += 4
    made[0] = to
    return at


@kernel
def _text(data, at, end, out, to, made):  # type: ignore[no-untyped-def]
    """Write the string whose quote is before `at` to `out`, and return its end in `data`; -1 if it is invalid.

    `made` receives its end in `out`. Up to 64 more bytes of `out` may be overwritten.
    """
    safe = end - 65  # the last position with 65 more bytes: a backslash may need one more than 64
    while at <= safe:
        marks, valid = copy64(out, to, data, at), np.int64(64)  # number of bytes from `at` that `marks` covers
        while marks:
            n = np.int64(trailing(marks))
            at += n
            to += n
            if data[at] == _QUOTE:
                made[0] = to
                return at + 1
            if data[at] != _SLASH:
                return -1
            escaped = _simple(data[at + 1])
            if not escaped:
                at = _character(data, at, end, out, to, made)
                if at < 0:
                    return -1
                to, valid = made[0], np.int64(0)
                break
            out[to] = escaped
            at += 2
            to += 1
            valid -= n + 2
            if valid <= 0 or at > safe:
                valid = np.int64(0)
                break
            marks >>= np.uint64(n + 2)
            copy64(out, to, data, at)
        at += valid
        to += valid
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            made[0] = to
            return at + 1
        if byte == _SLASH:
            escaped = _simple(data[at + 1]) if at + 1 < end else 0
            if escaped:
                out[to] = escaped
                at += 2
                to += 1
            else:
                at = _character(data, at, end, out, to, made)
                if at < 0:
                    return -1
                to = made[0]
        elif byte < 0x20:
            return -1
        else:
            out[to] = byte
            at += 1
            to += 1
    return -1


@kernel
def _is(data, low, high, key):  # type: ignore[no-untyped-def]
    if high - low != len(key):
        return False
    for i in range(len(key)):
        if data[low + i] != key[i]:
            return False
    return True


@kernel
def _member(data, at, end, key, out, to, made):  # type: ignore[no-untyped-def]
    """Return the end of the object at `at`; -1 if it is not plain or has no single text. `made`: as above."""
    seen = False
    if at >= end or data[at] != _OPEN:
        return -1
    at += 1
    while True:
        at = behind_blanks(data, at, end)
        if at >= end or data[at] != _QUOTE:
            return -1
        low = at + 1
        at = behind_string(data, low, end)
        if at < 0 or has_escape(data, low, at - 1):
            return -1
        wanted = _is(data, low, at - 1, key)
        at = behind_blanks(data, at, end)
        if at >= end or data[at] != _COLON:
            return -1
        at = behind_blanks(data, at + 1, end)
        if not wanted:
            at = behind_value(data, at, end)
        elif seen or at >= end or data[at] != _QUOTE:
            return -1
        else:
            seen = True
            at = _text(data, at + 1, end, out, to, made)
            if at >= 0 and made[0] == to:  # an empty text is reported elsewhere
                return -1
        if at < 0:
            return -1
        at = behind_blanks(data, at, end)
        if at >= end:
            return -1
        if data[at] == _CLOSE:
            return at + 1 if seen else -1
        if data[at] != _COMMA:
            return -1
        at += 1


@kernel("u8[:], u8[:], out u8[:], out i64[:] -> i64")
def _take_texts(data, key, out, ends):  # type: ignore[no-untyped-def]
    """Extract the texts and return the number of lines; -1 if a line is not plain (see `TextTaker.take`).

    Args:
        data: uint8[n], whole lines.
        key: uint8, the key of the text as JSON without quotes.
        out: uint8[n + 64], filled: the concatenated texts.
        ends: int64, filled: the end of each text.
    """
    at, end, to, row = 0, len(data), 0, 0
    while at < end:
        made = ends[row : row + 1]
        at = _member(data, at, end, key, out, to, made)
        if at < 0:
            return -1
        at = behind_blanks(data, at, end)
        if at < end and data[at] != _NEWLINE:
            return -1
        at += 1
        to = made[0]
        row += 1
    return row
