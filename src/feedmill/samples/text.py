"""Format values of samples for display: a few lines of text with terminal control characters escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from feedmill.jobs.amounts import human_size

__all__ = ["as_numbers", "as_text", "cut", "human_size", "printable"]

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # all but tab and newline; lone surrogates too
MAX_LINES, MAX_WIDTH = 12, 110


def as_text(value: Any, *, lines: int = MAX_LINES, width: int = MAX_WIDTH) -> str:
    """Return the value as text of at most `lines` lines of `width` characters, with a note of how much was cut."""
    if isinstance(value, str):
        return cut(value, lines, width)
    if isinstance(value, bytes):
        return _bytes(value, lines, width)
    if isinstance(value, Mapping | list | tuple):
        return cut(_json(value), lines, width)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _array(value)
    if hasattr(value, "mode") and hasattr(value, "width"):
        return f"image {value.width} x {value.height}, {value.mode}"
    return cut(repr(value), lines, width)


def cut(text: str, lines: int, width: int) -> str:
    """Return at most `lines` lines of at most `width` characters, with a note of how much was cut."""
    rows = [printable(row) for row in text.splitlines()] or [""]
    shown = [
        row if len(row) <= width else f"{row[:width]}... (+{len(row) - width:,} characters)" for row in rows[:lines]
    ]
    if len(rows) > lines:
        shown.append(f"... (+{len(rows) - lines:,} lines)")
    return "\n".join(shown)


def printable(text: str) -> str:
    """Return the text with terminal control characters replaced by escape sequences."""
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def _bytes(value: bytes, lines: int, width: int) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    if text and text.replace("\n", "").replace("\t", "").isprintable():
        return cut(text, lines, width)
    return f"{human_size(len(value))}: {cut(repr(value[:width])[2:-1], 1, width // 2)}"


def _array(value: Any) -> str:
    from feedmill.samples.sheet import image_shape

    dtype = str(value.dtype).removeprefix("torch.")
    image = image_shape(value)
    if image is not None:
        width, height, channels = image
        return f"image {width} x {height}, {channels} channel{'s' if channels > 1 else ''}, {dtype}"
    return as_numbers(value)


def as_numbers(value: Any) -> str:
    """Return an array that is no picture as text: shape, type and first values. Other values are those of `as_text`."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return as_text(value)
    dtype = str(value.dtype).removeprefix("torch.")
    shape = " x ".join(map(str, value.shape)) or "scalar"
    head = f": {value.ravel()[:8].tolist()}" if value.size and hasattr(value, "ravel") and callable(value.ravel) else ""
    return f"array {shape}, {dtype}{head[:MAX_WIDTH]}"


def _json(value: Any) -> str:
    """Return indented JSON, or one line if it is short. Values that JSON lacks are shown by `as_text`."""
    import json

    plain = dict(value) if isinstance(value, Mapping) else list(value)
    try:
        flat = json.dumps(plain, ensure_ascii=False, default=as_text)
    except TypeError:  # keys that JSON does not support
        return repr(plain)
    return flat if len(flat) <= MAX_WIDTH else json.dumps(plain, ensure_ascii=False, indent=2, default=as_text)
