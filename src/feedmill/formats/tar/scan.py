"""Scan a tar shard for its samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.tar.strays import Halves, Strays
from feedmill.kernels.files import tar
from feedmill.storage import Store
from feedmill.storage.reasons import HEAD, other_format

CONCATENATED = "Two tars may have been concatenated: split the file again, or rewrite all samples into one tar."
"""Fix for data after the end-of-archive marker."""


class Unread(NamedTuple):
    """Content of a shard that reading may miss, and samples in pieces; see `feedmill.kernels.files.tar.ShardScan`."""

    closed: bool = True
    trailing: int = 0
    special: int = 0
    strays: Strays = Strays()
    halves: Halves = Halves()
    doubled: int = 0

    @classmethod
    def of(cls, scan: tar.ShardScan, strays: Strays) -> Unread:
        """Return what a scan found in a shard, given the result of `samples_of`."""
        from feedmill.formats.tar.strays import doubled_of, halves_of

        return cls(scan.closed, scan.trailing, scan.special, strays, halves_of(scan), doubled_of(scan))

    def row(self) -> list[Any]:
        """Return its form in JSON."""
        return [self.closed, self.trailing, self.special, list(self.strays), list(self.halves), self.doubled]

    @classmethod
    def stored(cls, row: Sequence[Any]) -> Unread:
        """Return what `row` returned."""
        closed, trailing, special, strays, halves, doubled = row
        return cls(closed, trailing, special, Strays(*strays), Halves(*halves), doubled)

    def remarks(self, folder: str = "FOLDER") -> list[str]:
        """Return a message for each of them, without the name of the shard; `folder` is that of the dataset."""
        out = [] if self.closed else ["no end-of-archive marker; it may lack samples"]
        if self.trailing:
            out.append(f"data follows the end-of-archive marker ({self.trailing:,} bytes); its samples are not read")
        if self.special:
            fix = "For links, write the tar again with 'tar --hard-dereference --dereference'."
            out.append(f"parts that are links, devices or pipes are not read: {self.special:,}. {fix}")
        if self.doubled:
            fix = "Rename them, or rewrite the shard; 'feedmill check' lists them."
            out.append(f"of parts that a sample has twice, only the last is read: {self.doubled:,} are not. {fix}")
        if self.strays.number:
            out.append(f"files that are not data are skipped: {self.strays.number:,} ({self.strays.what})")
        if self.halves.number:
            from feedmill.formats.tar.strays import regroup

            out.append(
                f"keys whose parts are not adjacent are read in pieces: {self.halves.number:,}"
                f" ({self.halves.example}). {regroup(folder)}"
            )
        return out


def scan_shard(store: Store, path: str) -> tar.ShardScan:
    """Return the samples of one shard, up to the first problem if there is one."""
    from feedmill.storage.cache.mapped import mapped

    with mapped(store, path) as data:
        return scan_bytes(data)


def scan_bytes(data: npt.NDArray[np.uint8]) -> tar.ShardScan:
    """Return the samples of a whole shard, uint8[size], as `scan_shard`."""
    if not len(data):
        return _unreadable("the file is empty (0 bytes)", "empty-file", "Restore it or exclude it.")
    if data[:6].tobytes().startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\0")):
        return _unreadable(
            "the shard is compressed, which does not allow random access",
            "compressed-shard",
            "Decompress it (gunzip, bunzip2, unxz or zstd -d), or copy the dataset with 'feedmill convert'.",
        )
    scanned = tar.scan(data)
    if scanned.problem is not None and scanned.problem.offset == 0:
        scanned.problem = other_format(data[:HEAD].tobytes(), "tar", "text") or scanned.problem
    return scanned


def _unreadable(what: str, kind: str, fix: str) -> tar.ShardScan:
    none = np.zeros(0, np.int64)
    problem = DataError(what, kind=kind, fix=fix)
    return tar.ShardScan([], np.zeros(1, np.int64), none.astype(np.int32), [], none, none, problem)


def in_file(error: DataError, file: str) -> DataError:
    """Return the error with the name of the file added."""
    error.file = file
    return error
