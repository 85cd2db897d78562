"""What lies in samples of tars: their keys and parts, one sample at a time, or many in one call.

A plain sample has ustar headers with octal sizes and short names, as nearly all have; what else a tar may hold is left
to the reference in `feedmill.kernels.tar`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.offsets import Int64s
from feedmill.kernels import tar
from feedmill.kernels.tar_many_compiled import plain_samples, read_all
from feedmill.storage import Store

REINDEX = "The shard changed after it was indexed: run 'feedmill prepare' again."

Parsed = tuple[str, dict[str, tuple[int, int]], Sequence[str], bytes]
"""Key, spans of the parts, their names in stored order, and the bytes that the spans refer to."""

FEW, SMALL, MOST = 8, 32 << 10, 16 << 20
"""Fewer samples than this are not worth a call for all. Samples of more bytes, in the mean, are read each into its own
memory; smaller ones into one piece of at most so many bytes, of which they are copied: so they are parsed in one call
too."""

_local = threading.local()


def read_together(
    store: Store, paths: Sequence[str], shards: Int64s, begins: Int64s, ends: Int64s, known: dict[bytes, str]
) -> Iterator[tuple[Parsed | None, bytes]] | None:
    """Samples of several shards, read and parsed in two calls: what lies in each, None for one that is not plain, and
    its bytes, to be taken before this thread calls again. None where that is not possible, or does not pay.

    Args:
        paths: of all shards.
        shards, begins, ends: int64[n]: the shard of each sample, in which neighbours stand together, and its place.
        known: names of parts that were met before, to be filled.
    """
    lengths = ends - begins
    if len(shards) < FEW or (lengths < 512).any():
        return None
    numbers, places = np.unique(shards, return_inverse=True)
    files = store.descriptors([paths[number] for number in numbers.tolist()])
    if files is None:
        return None
    fds = np.asarray([file.fd for file in files], np.int64)[places]
    total = sum(lengths.tolist())
    if total > SMALL * len(shards):
        try:
            blocks = [_new_bytes(None, length) for length in lengths.tolist()]
        except (MemoryError, OverflowError):  # a damaged index asks for more than there is
            return None
        addresses = np.asarray([_address(block) for block in blocks], np.int64)
        whole = read_all(fds, np.ascontiguousarray(begins), lengths, addresses) == len(shards)
        return ((None, block) for block in blocks) if whole else None
    if total > MOST:
        return None
    buffer = _scratch(total)
    behind = np.cumsum(lengths)
    addresses = behind - lengths + buffer.__array_interface__["data"][0]
    if read_all(fds, np.ascontiguousarray(begins), lengths, addresses) < len(shards):
        return None  # whoever reads them one by one says why
    return _parsed(buffer, behind, known)


_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
"""Bytes that are not filled yet, which only their maker may do, before anyone else sees them (Python's C API)."""
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_ssize_t]
_address = ctypes.pythonapi.PyBytes_AsString
_address.restype, _address.argtypes = ctypes.c_void_p, [ctypes.py_object]


def _scratch(size: int) -> npt.NDArray[np.uint8]:
    """Memory of this thread, used again by the next call."""
    found = getattr(_local, "buffer", None)
    if found is None or len(found) < size:
        found = _local.buffer = np.empty(size, np.uint8)
    return found[:size]


def _parsed(
    buffer: npt.NDArray[np.uint8], ends: Int64s, known: dict[bytes, str]
) -> Iterator[tuple[Parsed | None, bytes]]:
    count = len(ends)
    members = np.empty((len(buffer) // 512, 4), np.int64)
    firsts, keys, alike = np.empty(count + 1, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    plain_samples(buffer, ends, members, firsts, keys, alike)
    members = members[: firsts[-1]]
    spans = list(zip(members[:, 2].tolist(), members[:, 3].tolist(), strict=True))
    labels = list(zip(members[:, 0].tolist(), members[:, 1].tolist(), strict=True))
    view, begin, first = buffer.data, 0, 0
    names: tuple[str, ...] = ()
    for end, behind, key, same in zip(ends.tolist(), firsts[1:].tolist(), keys.tolist(), alike.tolist(), strict=True):
        block = bytes(view[begin:end])
        if key < 0:
            yield None, block
        else:
            if not same:
                names = tuple([_name(block[a:b], known) for a, b in labels[first:behind]])
            text = block[:key].decode("utf-8", "surrogateescape")
            yield (text, dict(zip(names, spans[first:behind], strict=True)), names, block), block
        begin, first = end, behind


def _name(tail: bytes, known: dict[bytes, str]) -> str:
    return known.get(tail) or known.setdefault(tail, tail.decode("utf-8", "surrogateescape"))


def parse_plain(block: bytes, known: dict[bytes, str]) -> Parsed | None:
    """Key and part spans of a sample made of plain headers only; None where anything else turns up.

    This is the inner loop of all tar reading, so it looks at no more than it must.
    """
    key, prefix = None, b""
    spans: dict[str, tuple[int, int]] = {}
    names: list[str] = []
    at, end = 0, len(block)
    while at < end:
        if block[at + 156 : at + 157] != b"0" or block[at + 345 : at + 346] != b"\0":
            return None
        name = block[at : block.find(b"\0", at, at + 100)] if block[at + 99] == 0 else block[at : at + 100]
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
    """The same through the reference walk, for long names, PAX headers, sparse files and skipped members."""
    key: str | None = None
    spans: dict[str, tuple[int, int]] = {}
    names: list[str] = []
    content = block
    for member in tar.walk(block):
        found = tar.sample_name(member.name) if member.regular else None
        if found is None:
            continue
        if key is None:
            key = found[0]
        elif found[0] != key:
            raise DataError(
                f"another sample, {found[0]!r}, begins inside this one",
                offset=member.start,
                kind="stale-index",
                fix=REINDEX,
            )
        if member.sparse is None:
            spans[found[1]] = (member.data, member.data + member.size)
        else:
            expanded = tar.expand(block, member)
            spans[found[1]] = (len(content), len(content) + len(expanded))
            content += expanded
        names.append(found[1])
    return None if key is None else (key, spans, names, content)
