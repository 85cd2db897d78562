"""Check quickly which lines of a block are certainly valid JSON.

A line is plain if it is one JSON value by RFC 8259 in valid UTF-8, nests at most 64 deep, and has no number of more
than 300 characters. Python's ``json.loads`` accepts every plain line; all other lines must be
checked with it.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.kernels.jsonl.limits import MOST_DEPTH, MOST_NUMBER
from feedmill.kernels.jsonl.lines import newlines

Int64s = npt.NDArray[np.int64]
COMPILED_FROM = 1 << 17
"""Minimum size in bytes for which the compiled kernel is worth its loading time."""


def plain_lines(buffer: npt.NDArray[np.uint8], *, compiled: bool | None = None) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Return the lines of a block and whether each is plain.

    Args:
        buffer: uint8[size], whole lines; the last may lack its newline.
        compiled: use the compiled kernel; by default if the block has at least `COMPILED_FROM` bytes.

    Returns:
        int64[n], the end of each line without its newline, and bool[n].
    """
    if compiled is None:
        compiled = len(buffer) >= COMPILED_FROM
    if compiled:
        from feedmill.kernels.jsonl.jsonlines_compiled import judge

        ends = newlines(buffer)
        if len(buffer) and buffer[-1] != 10:
            ends = np.append(ends, len(buffer))
        good = np.empty(len(ends), np.bool_)
        judge(buffer, ends, good)
        return ends, good
    parts = buffer.tobytes().split(b"\n")
    if not parts[-1]:
        parts.pop()
    ends = np.cumsum([len(part) + 1 for part in parts], dtype=np.int64) - 1
    return ends, np.asarray([is_plain(part) for part in parts], np.bool_)


def is_plain(line: bytes) -> bool:
    """Return whether a line is plain, in plain Python: the test oracle of the kernel."""

    def no_constant(name: str) -> Any:
        raise ValueError(name)

    def short(text: str) -> str:
        if len(text) > MOST_NUMBER:
            raise ValueError(text)
        return text

    try:
        text = line.decode()
        if text.startswith("\ufeff"):
            return False
        value = json.loads(text, parse_constant=no_constant, parse_int=short, parse_float=short)
    except (ValueError, RecursionError):
        return False
    return not _is_deeper(value, MOST_DEPTH)


def _is_deeper(value: Any, depth: int) -> bool:
    """Return whether lists and objects are nested more than `depth` deep."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is not None and (depth == 0 or any(_is_deeper(one, depth - 1) for one in inner))
