"""Shards: their names and limits, and a shard being written: members are written in bulk, hashed and indexed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
import xxhash

from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.energon.write import write_idx
from feedmill.formats.offsets import Int64s
from feedmill.formats.tar.write import END, Members
from feedmill.kernels.files.tar import ShardScan
from feedmill.storage import Store
from feedmill.storage.base import is_disk_error, storage_error
from feedmill.writing.encoding import Encoded

_NUMBER = re.compile(r"%(0\d+)?d")
PATTERN = "shards/%06d.tar"
SAMPLES = 10_000
SIZE = 3 * 10**9


@dataclass(frozen=True, slots=True)
class Layout:
    """Names and limits of shards.

    Attributes:
        pattern: path of a shard in the dataset, with one ``%06d`` (or ``%d``) for its number.
        samples: maximum number of samples per shard; None for no limit.
        size: maximum size of a shard in bytes, including headers; None for no limit. A larger sample gets a shard of
            its own.
        first: number of the first shard.

    Raises:
        ConfigError: the pattern or a limit is invalid.
    """

    pattern: str = PATTERN
    samples: int | None = SAMPLES
    size: int | None = SIZE
    first: int = 0

    def __post_init__(self) -> None:
        parts = self.pattern.split("/")
        hidden = any(part in ("", "..", ".") or part.startswith(".") for part in parts)
        if len(_NUMBER.findall(self.pattern)) != 1 or self.pattern.count("%") != 1 or "\0" in self.pattern:
            raise _bad_pattern(self.pattern, "it must have exactly one placeholder for the shard's number")
        if hidden or not self.pattern.endswith(".tar"):
            raise _bad_pattern(self.pattern, "it must be a relative path without hidden folders, and end in .tar")
        for name, limit in (("samples", self.samples), ("bytes", self.size)):
            if limit is not None and limit < 1:
                raise ConfigError(f"invalid shard limit: {limit} {name}", kind="bad-option", fix="Use 1 or more.")

    def shard(self, number: int) -> str:
        """Return the path of the shard with this number, counted from 0."""
        return self.pattern % (self.first + number)

    def number(self, path: str) -> int | None:
        """Return the number in a path that matches the pattern, as in the path; None for other paths."""
        before, after = re.split(r"%(?:0\d+)?d", self.pattern)
        digits = path[len(before) : len(path) - len(after)]
        if not digits.isdecimal() or not digits.isascii() or self.pattern % int(digits) != path:
            return None
        return int(digits)

    def as_dict(self) -> dict[str, Any]:
        """Return the layout as plain data, for a job's identity."""
        return {name: getattr(self, name) for name in self.__slots__}


def cut(count: int, sizes: Int64s | None, samples: int | None, size: int | None) -> list[int]:
    """Return where consecutive samples are divided into shards within limits: ``[0, ..., count]``.

    Args:
        sizes: bytes of each sample, int64[count]; needed for a limit in bytes.
        samples, size: maximum number and bytes of the samples of a shard; None for no limit. A larger sample gets a
            shard of its own.
    """
    most = samples or max(count, 1)
    if size is None or sizes is None:
        return [*range(0, count, most), count]
    ends = np.cumsum(sizes)
    cuts = [0]
    while cuts[-1] < count:
        at = cuts[-1]
        before = int(ends[at - 1]) if at else 0
        fits = int(np.searchsorted(ends, before + size, side="right"))
        cuts.append(max(at + 1, min(fits, at + most, count)))
    return cuts


def _bad_pattern(pattern: str, why: str) -> ConfigError:
    return ConfigError(
        f"invalid shard pattern {pattern!r}: {why}", kind="bad-pattern", fix=f"Use for example {PATTERN!r}."
    )


BATCH_SAMPLES, BATCH_BYTES = 512, 4 << 20
"""Samples and bytes from which samples are written together."""
_JOINED = 1 << 20
"""Contents of at least this many bytes are written directly; smaller ones are joined first."""


class Shard(NamedTuple):
    """A finished shard: its path, sidecar entry and samples, and the number of its media that state an orientation."""

    path: str
    record: ShardRecord
    scan: ShardScan
    turned: int = 0


class ShardFile:
    """A shard being written: a context manager that publishes it with its ``.tar.idx``, or discards it after an error.

    Attributes:
        shard: the finished shard; None until then.
    """

    def __init__(self, store: Store, path: str) -> None:
        self.store, self.path = store, path
        self.size = 0
        self._turned = 0
        self._stack = ExitStack()
        self._file: BinaryIO = self._stack.enter_context(store.write(path))
        self._hash: Any = xxhash.xxh3_128()
        self._keys: list[str] = []
        self._parts: list[str] = []
        self._columns: list[tuple[Int64s, Int64s, Int64s, Int64s]] = []
        self._waiting: list[Encoded] = []
        self._waiting_bytes = 0
        self.shard: Shard | None = None

    def add(self, sample: Encoded) -> None:
        """Append a sample, together with its neighbors. Raises as `add_all`."""
        self._waiting.append(sample)
        self._waiting_bytes += sample.size
        if self._waiting_bytes >= BATCH_BYTES or len(self._waiting) >= BATCH_SAMPLES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self.add_all(self._waiting)
            self._waiting, self._waiting_bytes = [], 0

    def add_all(self, samples: Sequence[Encoded]) -> None:
        """Append samples. Raises `StorageError`."""
        names = [name for sample in samples for name in sample.names]
        contents = [content for sample in samples for content in sample.contents]
        members = Members(names, [len(content) for content in contents])
        counts = np.fromiter((len(sample.parts) for sample in samples), np.int64, len(samples))
        first = np.cumsum(counts) - counts
        owner = np.repeat(np.arange(len(samples)) + len(self._keys), counts)
        self._columns.append((members.starts[:-1][first] + self.size, owner, members.data + self.size, members.sizes))
        self._keys += [sample.key for sample in samples]
        for sample in samples:
            self._parts += sample.parts
            self._turned += sample.turned
        self._write(members.pieces(contents))
        self.size += int(members.starts[-1])

    def _write(self, pieces: list[bytes]) -> None:
        small: list[bytes] = []
        for piece in pieces:
            if len(piece) < _JOINED:
                small.append(piece)
                continue
            self._put(b"".join(small))
            small.clear()
            self._put(piece)
        self._put(b"".join(small))

    def _put(self, data: bytes) -> None:
        self._hash.update(data)
        put(self._file, data, self.store.locate(self.path))

    def close(self) -> Shard:
        """Publish the shard. Raises `StorageError`."""
        self._flush()
        self._put(END)
        starts, owner, data, sizes = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        starts = np.append(starts, self.size)
        scan = ShardScan(self._keys, starts, owner.astype(np.int32), self._parts, data, sizes)
        write_idx(self.store, self.path, starts)  # before the shard, which is known as ours by it (`left_shards`)
        self._stack.close()
        entry = self.store.stat(self.path)
        record = ShardRecord(entry.size, entry.version, len(self._keys), self._hash.hexdigest())
        self.shard = Shard(self.path, record, scan, self._turned)
        return self.shard

    def abort(self) -> None:
        """Discard the shard."""
        self._stack.__exit__(_Aborted, _Aborted("given up"), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            if self.shard is None:
                self.abort()


def write_shard(store: Store, path: str, samples: Iterable[Encoded]) -> Shard | None:
    """Write samples as one shard and return it; None, and no file, if there are none. Raises `StorageError`."""
    with ExitStack() as stack:
        file: ShardFile | None = None
        for sample in samples:
            file = file or stack.enter_context(ShardFile(store, path))
            file.add(sample)
    return None if file is None else file.shard


def put(file: BinaryIO, data: bytes, where: str) -> None:
    """Write to an open file. Raises `StorageError` if the disk is full or damaged."""
    try:
        file.write(data)
    except OSError as error:
        if is_disk_error(error):
            raise storage_error(error, where) from None
        raise


class _Aborted(FeedmillError):
    """Passed to `Store.write` so that it discards the file."""
