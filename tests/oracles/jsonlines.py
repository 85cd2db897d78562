"""Plain lines of JSON in plain Python, see `feedmill.kernels.jsonl.jsonlines`."""

from __future__ import annotations

import json
from typing import Any

from feedmill.kernels.jsonl.jsonlines import MOST_DEPTH, MOST_NUMBER


def is_plain(line: bytes) -> bool:
    """Return whether a line is plain, in plain Python."""

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
