"""Brace patterns in shard lists: ``shards/s{000..014}.tar``, ``{train,val}.tar``, nested as in a shell."""

from __future__ import annotations

import re
from collections.abc import Sequence

from feedmill.errors import ConfigError

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?|([a-zA-Z])\.\.([a-zA-Z])(?:\.\.(-?\d+))?")
_NUMBER = re.compile(r"\d+")
MAX_EXPANSION = 1_000_000


def expand(pattern: str) -> list[str]:
    """Return all strings of a brace pattern, in order; numeric ranges keep their zero padding.

    A brace without a comma or a range, or without its counterpart, is taken literally.

    Raises:
        ConfigError: it expands to more than `MAX_EXPANSION` names, or has too many braces or digits.
    """
    if "{" not in pattern:
        return [pattern]
    try:
        return _expanded(pattern)
    except (RecursionError, ValueError):  # Python refuses numbers of thousands of digits
        raise ConfigError(f"the pattern {pattern[:80]!r}... has too many braces or digits") from None


def _expanded(pattern: str) -> list[str]:
    opening = pattern.find("{")
    if opening < 0:
        return [pattern]
    closing = _partner(pattern, opening)
    if closing < 0:
        return [pattern[: opening + 1] + rest for rest in _expanded(pattern[opening + 1 :])]
    head, body = pattern[:opening], pattern[opening + 1 : closing]
    choices = _choices(body)
    if choices is None:
        choices = ["{" + inner + "}" for inner in _expanded(body)]
    tails = _expanded(pattern[closing + 1 :])
    if len(choices) * len(tails) > MAX_EXPANSION:
        raise ConfigError(f"the pattern {pattern!r} expands to more than {MAX_EXPANSION:,} names")
    return [head + choice + tail for choice in choices for tail in tails]


def _partner(text: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at
    return -1


def _choices(body: str) -> list[str] | None:
    match = _RANGE.fullmatch(body)
    if match:
        return _range(match)
    pieces, depth, begin = [], 0, 0
    for at, char in enumerate(body):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            pieces.append(body[begin:at])
            begin = at + 1
    if not pieces:
        return None
    return [choice for piece in [*pieces, body[begin:]] for choice in _expanded(piece)]


def _range(match: re.Match[str]) -> list[str]:
    first, last, step, letter, last_letter, letter_step = match.groups()
    stride = abs(int(step or letter_step or 1)) or 1
    if letter is not None:
        a, b = ord(letter), ord(last_letter)
        return [chr(c) for c in range(a, b + (1 if a <= b else -1), stride if a <= b else -stride)]
    a, b = int(first), int(last)
    if abs(b - a) // stride >= MAX_EXPANSION:
        raise ConfigError(f"the range {match.group()!r} expands to more than {MAX_EXPANSION:,} names")
    padded = any(len(t.lstrip("-")) > 1 and t.lstrip("-").startswith("0") for t in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{n:0{width}d}" for n in range(a, b + (1 if a <= b else -1), stride if a <= b else -stride)]


def collapse(names: Sequence[str]) -> list[str]:
    """Return the shortest list of patterns that expands to exactly these names in order: runs of two or more names that
    differ in one number, counting up by one at the same width, become ``{first..last}``.
    """
    out: list[str] = []
    at = 0
    while at < len(names):
        length, slot = 1, None
        while at + length < len(names):
            found = _next_in_slot(names[at + length - 1], names[at + length])
            if found is None or (slot is not None and found != slot):
                break
            slot, length = found, length + 1
        if slot is None:
            out.append(names[at])
        else:
            first, last = (list(_NUMBER.finditer(n))[slot] for n in (names[at], names[at + length - 1]))
            out.append(f"{names[at][: first.start()]}{{{first[0]}..{last[0]}}}{names[at][first.end() :]}")
        at += length
    return out


def _next_in_slot(a: str, b: str) -> int | None:
    """Return which number of `a`, counted from 0, is one higher in `b`; None unless that is their only difference."""
    if len(a) != len(b) or _NUMBER.split(a) != _NUMBER.split(b):
        return None
    differing = [
        (i, x, y) for i, (x, y) in enumerate(zip(_NUMBER.findall(a), _NUMBER.findall(b), strict=True)) if x != y
    ]
    if len(differing) == 1 and len(differing[0][1]) == len(differing[0][2]):
        slot, x, y = differing[0]
        if int(y) == int(x) + 1:
            return slot
    return None
