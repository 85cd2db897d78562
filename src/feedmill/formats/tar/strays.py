"""Members of tars that spoil samples: files that systems and archivers add, and parts that are not adjacent.

macOS writes an AppleDouble file ``d/._x.jpg`` before each ``d/x.jpg`` with extended attributes; archives of it have
``__MACOSX/``; old tar programs unpack extension headers as ``PaxHeaders.1/x.jpg``. WebDataset and Energon take all of
them for parts: they become samples of their own, and split those around them. `samples_of` leaves them out.

A tar that has all ``.jpg`` before all ``.txt`` gives two samples of each key, with half of the parts each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from feedmill.errors import DataError
from feedmill.kernels.files.tar import ShardScan

_STRAY = re.compile(
    r"(?:.*/)?(?:__MACOSX/.*|PaxHeaders?(?:\.[^/]*)?/.*|\._[^/]*|\.DS_Store|(?i:(?:eh)?thumbs\.db|desktop\.ini))", re.S
)
_HINTS = ("/\0", "__macosx/", "paxheader", "thumbs\0", "desktop\0")
"""What the NUL-terminated keys of strays contain, case folded: few shards have one, and finding a word in all keys at
once takes a thirtieth of the time of an expression."""


def printable(name: str) -> str:
    """Return a name with escapes for bytes that are not UTF-8, so that it can be stored and printed."""
    return name.encode("utf-8", "backslashreplace").decode()


def regroup(folder: str) -> str:
    """Return how to bring the pieces of samples together."""
    return f"Bring them together: 'feedmill convert {folder} OUT --to wds --regroup'."


def is_stray(name: str) -> bool:
    """Return whether a system or archiver made a file, by its path.

    >>> is_stray("d/._x.jpg"), is_stray("__MACOSX/x.jpg"), is_stray("Thumbs.db"), is_stray("d/x.jpg")
    (True, True, True, False)
    """
    return _STRAY.fullmatch(name) is not None


class Strays(NamedTuple):
    """The number of files that are not data, and the name of the first one."""

    number: int = 0
    example: str = ""

    @property
    def what(self) -> str:
        """Return how they are called, with the example."""
        of = "AppleDouble files of macOS" if "._" in self.example else "files that a system or archiver added"
        return f"{of}, such as {self.example!r}" if self.example else of


class Halves(NamedTuple):
    """The number of keys whose parts are not adjacent, and the first one with its parts, as text."""

    number: int = 0
    example: str = ""


def hidden_of(scan: ShardScan) -> Strays:
    """Return the strays at the top of a tar, which all readers skip."""
    return Strays(scan.hidden, "._*" if scan.hidden else "")


def samples_of(scan: ShardScan) -> tuple[ShardScan, Strays]:
    """Return a scan without the samples that consist of strays; the pieces of samples around them become one again.

    A sample with other parts, too, is kept as it is.
    """
    hidden = hidden_of(scan)
    keys_of_all = "\0".join([*scan.keys, ""]).casefold()
    if not any(hint in keys_of_all for hint in _HINTS):
        return scan, hidden
    owners = scan.sample.tolist()
    names = [f"{scan.keys[owner]}.{part}" for owner, part in zip(owners, scan.parts, strict=True)]
    real = {owner for owner, name in zip(owners, names, strict=True) if not is_stray(name)}
    if len(real) == len(scan.keys):
        return scan, hidden
    lost = [name for owner, name in zip(owners, names, strict=True) if owner not in real]
    number = np.full(len(scan.keys), -1, np.int32)
    keys: list[str] = []
    starts: list[int] = []
    for owner in sorted(real):
        if not keys or scan.keys[owner] != keys[-1]:
            keys.append(scan.keys[owner])
            starts.append(int(scan.starts[owner]))
        number[owner] = len(keys) - 1
    sample = number[scan.sample]
    kept = np.flatnonzero(sample >= 0)
    clean = replace(
        scan,
        keys=keys,
        starts=np.asarray([*starts, int(scan.starts[-1])], np.int64),
        sample=sample[kept],
        parts=[scan.parts[row] for row in kept.tolist()],
        data=scan.data[kept],
        sizes=scan.sizes[kept],
    )
    return clean, Strays(len(lost) + scan.hidden, printable(lost[0]))


def groups_of(keys: Sequence[str]) -> list[list[int]]:
    """Return the numbers of the samples of each key, in the order in which the keys begin."""
    groups: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def pieces_of(scan: ShardScan) -> list[list[int]]:
    """Return the numbers of the pieces of each key whose parts are not adjacent; a key that repeats a part has none."""
    if len(set(scan.keys)) == len(scan.keys):
        return []
    parts: dict[int, set[str]] = {}
    for owner, part in zip(scan.sample.tolist(), scan.parts, strict=True):
        parts.setdefault(owner, set()).add(part)
    groups = [group for group in groups_of(scan.keys) if len(group) > 1]
    return [
        group
        for group in groups
        if len(set[str]().union(*(parts[n] for n in group))) == sum(len(parts[n]) for n in group)
    ]


def halves_of(scan: ShardScan) -> Halves:
    """Return how many keys have pieces, and the first one."""
    split = pieces_of(scan)
    if not split:
        return Halves()
    bounds = np.searchsorted(scan.sample, np.asarray([split[0], np.asarray(split[0]) + 1])).T.tolist()
    pieces = " and ".join("+".join(scan.parts[begin:end]) for begin, end in bounds[:3])
    return Halves(len(split), printable(f"{scan.keys[split[0][0]]!r}: {pieces}"[:200]))


def doubled_of(scan: ShardScan) -> int:
    """Return how many parts are followed by another of the same name in their sample, which alone is read."""
    if len(scan.parts) == len(scan.keys):
        return 0  # each sample has one
    codes = {name: code for code, name in enumerate(dict.fromkeys(scan.parts))}
    code = np.fromiter(map(codes.__getitem__, scan.parts), np.int64, len(scan.parts))
    return len(code) - len(np.unique(scan.sample * np.int64(len(codes)) + code))


def stray_error(file: str, folder: str, strays: Strays) -> DataError:
    """Return the error for a shard whose strays Energon and WebDataset take for samples."""
    return DataError(
        f"{strays.number:,} {'member is' if strays.number == 1 else 'members are'} not data ({strays.what}), but"
        " Energon and WebDataset read them as samples",
        file=file,
        kind="stray-members",
        fix=f"Copy the samples without them: 'feedmill convert {folder} OUT --to wds'."
        + (" Write tars on macOS with 'COPYFILE_DISABLE=1 tar ...'." if "._" in strays.example else ""),
    )


def halves_error(file: str, folder: str, halves: Halves) -> DataError:
    """Return the error for a shard with samples in pieces."""
    return DataError(
        f"the parts of {halves.number:,} {'key is' if halves.number == 1 else 'keys are'} not adjacent, so that each"
        f" piece is a sample ({halves.example})",
        file=file,
        kind="split-samples",
        fix=regroup(folder),
    )
