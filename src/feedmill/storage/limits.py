"""Limits on untrusted data: the unpacked size of a record, and the nesting of configurations; and sizes.

Every reader that unpacks data checks the same limit while it unpacks, so a small file cannot exhaust the memory. A
record (a line, a part, a member of an archive, an MDS shard, the rows beside a token file) may unpack to 64 MiB, or to
100 times its stored bytes if that is more, but never to more than 2 GiB. Text, tokens and images with the usual
compression ratios do not reach the limit. The environment variable `VARIABLE` replaces it by a fixed number of bytes.

Files that describe data or models (cards, settings, lists of shards) are read as a whole only up to `DESCRIPTION`.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

from feedmill.errors import ConfigError, DataError

VARIABLE = "FEEDMILL_MAX_UNPACKED"
MOST = 2 << 30
"""Maximum size of any record in bytes."""
SMALL, RATIO = 64 << 20, 100
"""Bytes that every record may have, and the maximum ratio of unpacked to stored bytes of larger records."""
DEEPEST = 100
"""Maximum nesting of lists and mappings in configurations and manifests. No tool writes more than about ten levels."""
TOO_DEEP = f"this is nested more than {DEEPEST} levels deep"
_MOST_DIGITS = 30
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.I)


def max_unpacked(stored: int, *, most: int = MOST) -> int:
    """Return the maximum unpacked size of a record in bytes.

    Args:
        stored: its stored bytes, or those of its file.
        most: bound in bytes of what is in memory at once; files that are unpacked to the disk may have more.

    Raises:
        ConfigError: the variable is not a valid size.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return parse_size(given, VARIABLE) or 0
    return min(most, max(SMALL, RATIO * stored))


def too_large(
    limit: int, *, file: str | None = None, record: str | None = None, offset: int | None = None
) -> DataError:
    """Return the error for a record that unpacks to more than `limit` bytes, of kind ``too-large``."""
    return DataError(
        f"it unpacks to more than the limit of {limit:,} bytes",
        file=file,
        record=record,
        offset=offset,
        kind="too-large",
        fix=f"If the size is intended, raise the limit: set {VARIABLE}, for example to 8GiB.",
    )


def parse_size(text: str | int | None, name: str | None = None) -> int | None:
    """Return a size in bytes from a number or text such as ``"500MB"``, ``"1G"`` (decimal) or ``"1GiB"`` (binary).

    >>> parse_size("1.5GB"), parse_size("64 MiB")
    (1500000000, 67108864)

    Args:
        text: the size; numbers and None are returned unchanged.
        name: name of the option or variable, for the message.

    Raises:
        ConfigError: the text is not a valid size.
    """
    if text is None or isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    if match is None or len(match[1]) > _MOST_DIGITS:
        what = f"{text[:40]!r} is not a size" if name is None else f"{name}={text[:40]!r} is not a size"
        raise ConfigError(what, kind="bad-option", fix="Use for example 500MB, 1G or 1GiB.")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " "))


def check_nesting(value: Any, where: str) -> None:
    """Raise `ConfigError` for values nested deeper than `DEEPEST`, on which recursive code would fail.

    Args:
        value: a parsed configuration.
        where: its file, for the message.
    """
    level = [value]
    for _ in range(DEEPEST + 1):
        parents = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [child for children in parents for child in children]
        if not level:
            return
    raise ConfigError(TOO_DEEP, file=where, kind="too-large", fix="Check the brackets.")


def available_memory() -> int | None:
    """Return the bytes of memory that this process could take now, without swapping; None if unknown.

    That is what the system calls available, and at most the limit of its container (cgroup v2 ``memory.max``).
    """
    return _memory("MemAvailable:")


def machine_memory() -> int | None:
    """Return the bytes of memory of this machine, or of its container if that has less; None if unknown."""
    return _memory("MemTotal:")


def _memory(line_of: str) -> int | None:
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as f:
        found += [int(line.split()[1]) << 10 for line in f if line.startswith(line_of)]
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max") as f:
        found.append(int(f.read()))
    return min(found, default=None)


DESCRIPTION = 1 << 28
"""Largest size in bytes of a file that describes data, such as an index of a million shards."""


def refuse_large(size: int, file: str, most: int = DESCRIPTION) -> None:
    """Raise `DataError` for a file that describes data, or a model, and is larger than such a file can be."""
    if size > most:
        raise DataError(
            f"the file has {size:,} bytes, where a description of at most {most:,} is expected",
            file=file,
            kind="too-large",
            fix="Check that it is what its name says. If it lists many files, split the dataset.",
        )
