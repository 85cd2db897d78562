"""The limit on unpacked sizes, the same for every reader, checked while unpacking.

A record (a line, a part, a member, the shard of MDS, the rows beside a token file) may unpack to 64 MiB, or to 100
times its stored bytes if that is more, and never to more than 2 GiB. So a small file cannot exhaust a machine's memory,
and data with the usual compression ratios of text, tokens and images never reaches the limit. `VARIABLE` replaces it
by a plain number of bytes.
"""

from __future__ import annotations

import os
import re
from typing import Any

from feedmill.errors import ConfigError, DataError

VARIABLE = "FEEDMILL_MAX_UNPACKED"
MOST = 2 << 30
SMALL, RATIO = 64 << 20, 100
DEEPEST = 100
"""Levels of lists and mappings in configurations, manifests and notes; no tool writes more than some ten."""
TOO_DEEP = f"this is nested more than {DEEPEST} levels deep"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.I)


def max_unpacked(stored: int) -> int:
    """Return the most bytes that a record of `stored` bytes (its own, or those of its file) may unpack to.

    Raises:
        ConfigError: the variable is not a valid size.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return parse_size(given, VARIABLE) or 0
    return min(MOST, max(SMALL, RATIO * stored))


def too_large(
    limit: int, *, file: str | None = None, record: str | None = None, offset: int | None = None
) -> DataError:
    """Return the error for a record that unpacks to more than `limit` bytes; of kind ``too-large``."""
    return DataError(
        f"it unpacks to more than the limit of {limit:,} bytes",
        file=file,
        record=record,
        offset=offset,
        kind="too-large",
        fix=f"If the data is meant to be so, raise the limit: set {VARIABLE}, for example to 8GiB.",
    )


def parse_size(text: str | int | None, name: str | None = None) -> int | None:
    """Return a size in bytes from a number or text such as ``"500MB"``, ``"1G"`` (decimal) or ``"1GiB"`` (binary).

    >>> parse_size("1.5GB"), parse_size("64 MiB")
    (1500000000, 67108864)

    Args:
        name: the option or variable that gave it, for the message.

    Raises:
        ConfigError: it is not a valid size.
    """
    if text is None or isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        what = f"{text!r} is not a size" if name is None else f"{name}={text!r} is not a size"
        raise ConfigError(what, kind="bad-limit", fix="Write for example 500MB, 1G or 1GiB.")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " "))


def check_nesting(value: Any, where: str) -> None:
    """Raise an error for values nested deeper than `DEEPEST`, on which recursive code would fail."""
    level = [value]
    for _ in range(DEEPEST + 1):
        lists = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [child for children in lists for child in children]
        if not level:
            return
    raise ConfigError(TOO_DEEP, file=where, kind="too-deep", fix="Check the brackets.")
