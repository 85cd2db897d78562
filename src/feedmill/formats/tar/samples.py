"""Parse samples of tars to keys and parts, one sample at a time or many in one call.

A plain sample has ustar headers with octal sizes and short names, like nearly all samples. Everything else is parsed by
the reference in `feedmill.kernels.files.tar`.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.offsets import Int64s, copy_fetched, read_remote
from feedmill.jobs.buffers import empty
from feedmill.kernels import addresses as memory
from feedmill.kernels.files import tar
from feedmill.kernels.files.ranges import read_all
from feedmill.kernels.files.tar_many import plain_samples
from feedmill.storage import Store
from feedmill.storage.limits import max_unpacked, too_large

REINDEX = "The shard changed after it was indexed: run 'feedmill prepare' again."

Parsed = tuple[str, dict[str, tuple[int, int]], Sequence[str], bytes]
"""Key, spans of the parts, their names in stored order, and the bytes that the spans refer to."""

FEW = 8
"""Fewer samples than this are read and parsed one by one."""
_MEMBERS = 1 << 16
"""Maximum number of members that are parsed together; samples after them are parsed one by one."""


def read_together(
    store: Store, paths: Sequence[str], shards: Int64s, begins: Int64s, ends: Int64s
) -> list[bytes] | None:
    """Read samples of several shards in one call, each into its own memory.

    Args:
        paths: paths of all shards.
        shards, begins, ends: int64[n], the shard of each sample and its byte range; samples of a shard are consecutive.

    Returns:
        The bytes of each sample; None if reading together is not possible or not faster.
    """
    lengths = ends - begins
    files = _open(store, paths, shards, lengths)
    if files is None:
        return None
    try:
        blocks = [_new_bytes(None, length) for length in lengths.tolist()]
    except (MemoryError, OverflowError):  # a corrupt index may request too much memory
        return None
    return blocks if files.read(begins, lengths, _addresses(blocks)) else None


def parse_together(blocks: Sequence[bytes], known: dict[bytes, str]) -> Iterator[Parsed | None]:
    """Parse samples in one call, and yield the content of each; None for samples that are not plain.

    Args:
        blocks: the samples. Fewer than `FEW` are left to `parse_plain`.
        known: cache of part names, which is filled.
    """
    if len(blocks) < FEW:
        yield from itertools.repeat(None, len(blocks))
        return
    members, firsts, keys, alike = _scanned(_addresses(blocks), np.asarray([len(block) for block in blocks], np.int64))
    spans = list(zip(members[:, 2].tolist(), members[:, 3].tolist(), strict=True))
    first = 0
    names: tuple[str, ...] = ()
    for block, behind, key, same in zip(blocks, firsts[1:].tolist(), keys.tolist(), alike.tolist(), strict=True):
        if key < 0:
            yield None
        else:
            if not same:
                names = tuple([_name(block[a:b], known) for a, b in members[first:behind, :2].tolist()])
            text = block[:key].decode("utf-8", "surrogateescape")
            yield text, dict(zip(names, spans[first:behind], strict=True)), names, block
        first = behind


class SampleBytes(NamedTuple):
    """The bytes of consecutive samples, uint8, and the begin and end of each sample in them, int64[n].

    The memory is reused when it is no longer referenced.
    """

    buffer: npt.NDArray[np.uint8]
    begins: Int64s
    ends: Int64s


def read_piece(store: Store, paths: Sequence[str], shards: Int64s, begins: Int64s, ends: Int64s) -> SampleBytes | None:
    """Read samples of any size into one buffer. Arguments and None: as for `read_together`."""
    lengths = ends - begins
    files = _open(store, paths, shards, lengths)
    if files is None:
        return None
    try:
        buffer = empty((sum(lengths.tolist()),), np.uint8)
    except (MemoryError, ValueError):  # as above
        return None
    behind = np.cumsum(lengths)
    return SampleBytes(buffer, behind - lengths, behind) if files.fill(begins, lengths, buffer) else None


def parse_alike(
    piece: SampleBytes, order: Int64s, known: dict[bytes, str], *, views: bool = True
) -> tuple[list[str], Mapping[str, Sequence[memoryview | bytes]]] | None:
    """Return keys of samples, and their parts by name; None unless all are plain with the same parts.

    Args:
        order: int64[n], the order of the samples in the result.
        known: as for `parse_together`.
        views: return views of the parts, and not their bytes.
    """
    begins = piece.begins + memory.of(piece.buffer)
    members, firsts, keys, alike = _scanned(begins, piece.ends - piece.begins)
    if keys.min() < 0 or not alike[1:].all():
        return None
    view = piece.buffer.data
    names = [_name(bytes(view[a:b]), known) for a, b in members[: firsts[1], :2].tolist()]
    if len(set(names)) < len(names):
        return None
    begins = piece.begins[order]
    spans = members.reshape(len(order), len(names), 4)[order, :, 2:] + begins[:, None, None]
    heads = zip(begins.tolist(), (begins + keys[order]).tolist(), strict=True)
    texts = [str(view[a:b], "utf-8", "surrogateescape") for a, b in heads]
    parts: dict[str, Sequence[memoryview | bytes]] = {}
    for name, starts, ends in zip(names, spans[:, :, 0].T.tolist(), spans[:, :, 1].T.tolist(), strict=True):
        # Views that outlive this line count as new objects of Python's garbage collector, which would run more often.
        ranges = map(slice, starts, ends)
        parts[name] = list(map(view.__getitem__, ranges) if views else map(bytes, map(view.__getitem__, ranges)))
    return texts, parts


def runs_of(shards: Int64s) -> Int64s:
    """Return where the samples of each shard begin, int64[runs], and the number of samples."""
    changes = np.flatnonzero(shards[1:] != shards[:-1]) + 1
    return np.concatenate((_FIRST, changes, (len(shards),))) if len(shards) else _FIRST


_FIRST = np.zeros(1, np.int64)


class _Files(NamedTuple):
    """Open files, and the file descriptor of each range to read, int64[n]."""

    files: Sequence[Any]
    fds: Int64s

    def read(self, offsets: Int64s, lengths: Int64s, addresses: Int64s) -> bool:
        """Read all ranges, int64[n], to their addresses. Return whether this succeeded."""
        return bool(read_all(self.fds, np.ascontiguousarray(offsets), lengths, addresses) == len(self.fds))

    def fill(self, offsets: Int64s, lengths: Int64s, buffer: npt.NDArray[np.uint8]) -> bool:
        """Read all ranges consecutively into a buffer. Return whether this succeeded."""
        return self.read(offsets, lengths, np.cumsum(lengths) - lengths + memory.of(buffer))


class _Remote(NamedTuple):
    """Files of a store that is not local, and the number of each range's file in `paths`, int64[n]."""

    store: Store
    paths: Sequence[str]
    numbers: Int64s

    def read(self, offsets: Int64s, lengths: Int64s, addresses: Int64s) -> bool:
        """Copy all ranges, int64[n], to their addresses. Return whether all of them were read ahead."""
        return copy_fetched(self.store, self.paths, self.numbers, offsets, lengths, addresses)

    def fill(self, offsets: Int64s, lengths: Int64s, buffer: npt.NDArray[np.uint8]) -> bool:
        """Read all ranges consecutively into a buffer. Raises `DataError` and `StorageError`."""
        read_remote(self.store, self.paths, self.numbers, offsets, lengths, buffer)
        return True


def _open(store: Store, paths: Sequence[str], shards: Int64s, lengths: Int64s) -> _Files | _Remote | None:
    """Open the files of the ranges; None if the samples are not read together."""
    if len(shards) < FEW or (lengths < 512).any():
        return None
    if not store.is_local:
        return _Remote(store, paths, shards)
    runs = runs_of(shards)
    files = store.descriptors([paths[number] for number in shards[runs[:-1]].tolist()])
    if files is None:
        return None
    return _Files(files, np.repeat(np.asarray([file.fd for file in files], np.int64), np.diff(runs)))


_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
"""Create uninitialized bytes (Python's C API). The creator must fill them before sharing them."""
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_ssize_t]
_address = ctypes.pythonapi.PyBytes_AsString
_address.restype, _address.argtypes = ctypes.c_void_p, [ctypes.py_object]


_HEAD = bytes.__basicsize__ - 1
"""Bytes of an object of bytes before its content."""


def _addresses(blocks: Sequence[bytes]) -> Int64s:
    """Return where the content of each block begins in memory, int64[n]."""
    if _address(blocks[0]) == id(blocks[0]) + _HEAD:  # as in every CPython
        return np.fromiter(map(id, blocks), np.int64, len(blocks)) + _HEAD
    return np.fromiter(map(_address, blocks), np.int64, len(blocks))


def _scanned(addresses: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Return what `plain_samples` fills: members, firsts, keys, alike."""
    count = len(lengths)
    members = np.empty((min(int(lengths.sum()) // 512, _MEMBERS), 4), np.int64)
    firsts, keys, alike = np.empty(count + 1, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    header = np.empty(512, np.uint8)
    plain_samples(addresses, lengths, header, memory.of(header), members, firsts, keys, alike)
    return members[: firsts[-1]], firsts, keys, alike


def _name(tail: bytes, known: dict[bytes, str]) -> str:
    return known.get(tail) or known.setdefault(tail, tail.decode("utf-8", "surrogateescape"))


def parse_plain(block: bytes, known: dict[bytes, str]) -> Parsed | None:
    """Return key and part spans of a sample with only plain headers; None for any other sample.

    This is the inner loop of all tar reading, so it checks only what is necessary.
    """
    key, prefix = None, b""
    spans: dict[str, tuple[int, int]] = {}
    names: list[str] = []
    at, end = 0, len(block)
    while at < end:
        if block[at + 156 : at + 157] != b"0" or block[at + 345 : at + 346] != b"\0":
            return None
        stop = block.find(b"\0", at, at + 100)
        name = block[at : stop if stop >= 0 else at + 100]
        try:
            size = int(block[at + 124 : at + 135], 8)
        except ValueError:
            return None
        data = at + 512
        at = data + (size + 511 & -512)
        if at > end or size < 0:
            return None
        if key is None:
            text = name.decode("utf-8", "surrogateescape")
            found = tar.sample_name(text)
            if found is None:
                continue
            key, part = found
            prefix = key.encode("utf-8", "surrogateescape") + b"."
        elif name.startswith(prefix) and b"/" not in (tail := name[len(prefix) :]):
            part = _name(tail, known)
        else:
            return None
        spans[part] = (data, data + size)
        names.append(part)
    return None if key is None else (key, spans, names, block)


def parse_any(block: bytes) -> Parsed | None:
    """Do the same with the reference parser, for long names, PAX headers, sparse files and skipped members.

    Strays are skipped, unless the sample begins with one: then they are samples of an index by Energon.
    """
    key: str | None = None
    strays = False
    spans: dict[str, tuple[int, int]] = {}
    names: list[str] = []
    limit = max_unpacked(len(block))
    size, expanded = len(block), [block]  # expanded contents are appended to the block
    from feedmill.formats.tar.strays import is_stray

    for member in tar.walk(block):
        found = tar.sample_name(member.name) if member.regular else None
        if found is None:
            continue
        if key is None:
            key, strays = found[0], is_stray(member.name)
        elif found[0] != key:
            if not strays and is_stray(member.name):
                continue
            raise DataError(
                f"another sample, {found[0]!r}, begins inside this one",
                offset=member.start,
                kind="stale-index",
                fix=REINDEX,
            )
        if member.sparse is None:
            spans[found[1]] = (member.data, member.data + member.size)
        else:
            size += member.size
            if size - len(block) > limit:
                raise too_large(limit, record=member.name, offset=member.start)
            expanded.append(tar.expand(block, member))
            spans[found[1]] = (size - member.size, size)
        names.append(found[1])
    content = block if len(expanded) == 1 else b"".join(expanded)
    return None if key is None else (key, spans, names, content)
