"""Walk the headers of a tar, and group its members into samples.

Sources: POSIX.1-2017 pax "ustar Interchange Format" and "pax Extended Header", the GNU tar manual ("Basic Tar Format",
"Storing Sparse Files"), and the layout rules of WebDataset as Energon applies them (docs/formats/energon.md).

`walk` is the plain Python reference: it supports every header (v7, ustar prefix, PAX ``x`` and ``g``, GNU long names,
sparse files, base-256 sizes), and also reads single samples. `scan` indexes a whole shard: large shards with the
compiled kernel, others with the reference. Both give the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.kernels.files.tar_fields import BLOCK, bad_header, cut_header, cut_member, decimal, number
from feedmill.kernels.files.tar_sparse import fits, gnu_pieces, pax_pieces

_REGULAR = b"0\x007S"
_BUILT_IN = b"0\x0012345676S"  # types whose data size POSIX defines; links, devices and folders carry no data
_SKIPPED = re.compile(r"__[^/]*__(?:/|$)")
_NO_DATA = b"123456"
_LINKS = b"12"
COMPILED_FROM = 64 << 20
"""Minimum bytes of a tar for which the compiled kernel is worth compiling, on the first use on a machine."""


class Member(NamedTuple):
    """One file of a tar.

    Attributes:
        start: offset of its first header, including extension headers.
        data: offset of the content.
        size: bytes of the expanded content.
        end: offset of the next header.
        sparse: (offset, length) of the stored pieces of a sparse file, which follow each other from `data` on; None for
            an ordinary file.
        link: whether it is a hard or symbolic link.
    """

    start: int
    data: int
    size: int
    end: int
    name: str
    regular: bool
    sparse: tuple[tuple[int, int], ...] | None = None
    link: bool = False


@dataclass(slots=True)
class ShardScan:
    """The samples of one shard.

    Attributes:
        keys: one per sample, in stored order.
        starts: int64[n + 1], the offset of each sample's first header, then the end of the last member.
        sample: int32[m], the number of each part's sample.
        parts: m part names.
        data, sizes: int64[m], offset and size of each part's content.
        problem: the error that stopped the scan before the end of the tar, or None; earlier samples are valid.
        closed: whether the end-of-archive marker was found.
        trailing: bytes from the first one behind the marker that is not zero to the end of the file, as in two
            concatenated tars; tar readers stop at the marker.
        links: number of hard and symbolic links whose names are those of parts; they are skipped.
        hidden: number of AppleDouble files at the top (``._x.jpg``); they are skipped, as all dot files at the top.
    """

    keys: list[str]
    starts: npt.NDArray[np.int64]
    sample: npt.NDArray[np.int32]
    parts: list[str]
    data: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    problem: DataError | None = None
    closed: bool = True
    trailing: int = 0
    links: int = 0
    hidden: int = 0


@dataclass(slots=True)
class _Extension:
    """Settings of extension headers for the next member."""

    start: int | None = None
    name: bytes | None = None
    pax: dict[bytes, bytes] = field(default_factory=dict)
    sparse_map: list[int] = field(default_factory=list)


def sample_name(name: str) -> tuple[str, str] | None:
    """Return key and part of a member name, which is divided at the first dot after the last slash.

    Returns None if it is not a part of a sample: no dot, a dot file at the top, or a name below ``__...__``.
    """
    slash = name.rfind("/") + 1
    dot = name.find(".", slash)
    if dot <= 0 or (name.startswith("__") and _SKIPPED.match(name)):
        return None
    return name[:dot], name[dot + 1 :]


def walk(
    buffer: memoryview | bytes, position: int = 0, end: int | None = None, *, headers: list[int] | None = None
) -> Iterator[Member]:
    """Yield the members of a tar, or of a range of it that begins and ends at headers, in stored order.

    Args:
        buffer: the bytes; all offsets are relative to its beginning.
        position: offset of the first header.
        end: offset at which to stop; by default the end of the buffer.
        headers: receives the offset of every header, including extension headers.

    Raises:
        DataError: ``bad-header``, ``truncated-header`` or ``truncated-member``, with the offset.
    """
    end = len(buffer) if end is None else end
    globals_: dict[bytes, bytes] = {}
    pending = _Extension()
    while position < end:
        header = bytes(buffer[position : position + BLOCK])
        if len(header) < BLOCK or position + BLOCK > end:
            raise cut_header(position, min(len(header), end - position))
        if not header[0] and not any(header):
            return
        if headers is not None:
            headers.append(position)
        kind = header[156:157]
        size = number(header[124:136], position)
        data = position + BLOCK
        if kind in b"xgXLK":
            stop = data + -(-size // BLOCK) * BLOCK
            if data + size > end:
                raise cut_member(position, f"extension header {kind.decode()!r}", size, end - data)
            content = bytes(buffer[data : data + size])
            if kind == b"g":
                globals_.update(_pax_records(content, position))
            else:
                pending.start = position if pending.start is None else pending.start
                if kind == b"L":
                    pending.name = content.split(b"\0", 1)[0]
                elif kind != b"K":
                    pending.pax.update(_pax_records(content, position, pending.sparse_map))
            position = stop
            continue
        member = _member(buffer, header, position, size, end, {**globals_, **pending.pax}, pending)
        if member.end > end:
            raise cut_member(position, member.name, member.end - member.data, end - member.data)
        yield member
        position = member.end
        pending = _Extension()
    if pending.start is not None:
        raise cut_header(end, 0)


def _member(
    buffer: memoryview | bytes,
    header: bytes,
    position: int,
    size: int,
    end: int,
    pax: dict[bytes, bytes],
    pending: _Extension,
) -> Member:
    """Return the member whose own header is at `position`, with the settings of its extension headers."""
    kind = header[156:157]
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0]
    if prefix and kind not in b"LKS":
        name = prefix + b"/" + name
    if pending.name is not None:
        name = pending.name
    name = pax.get(b"GNU.sparse.name") or pax.get(b"path") or name
    if b"size" in pax:
        size = decimal(pax[b"size"], position)
    data = position + BLOCK
    regular = kind in _REGULAR and not (kind == b"\0" and name.endswith(b"/"))
    stored = 0 if kind in _NO_DATA or (kind == b"\0" and not regular) else size
    stop = data + -(-stored // BLOCK) * BLOCK
    sparse: tuple[tuple[int, int], ...] | None = None
    if kind == b"S":
        sparse, size, data = gnu_pieces(buffer, header, position, end)
        stop = data + -(-stored // BLOCK) * BLOCK
    elif any(key.startswith(b"GNU.sparse.") for key in pax):
        sparse, data = pax_pieces(buffer, pax, pending.sparse_map, position, data)
        size = decimal(pax.get(b"GNU.sparse.realsize") or pax.get(b"GNU.sparse.size") or b"%d" % size, position)
    if sparse is not None and not fits(sparse, size, stop - data):
        raise bad_header(position)
    start = position if pending.start is None else pending.start
    return Member(start, data, size, stop, name.decode("utf-8", "surrogateescape"), regular, sparse, kind in _LINKS)


def expand(buffer: memoryview | bytes, member: Member) -> bytes:
    """Return the content of a sparse member with holes as zeros. Raises `DataError` if it does not fit in memory."""
    try:
        out = bytearray(member.size)
    except MemoryError:
        raise bad_header(member.start, member.name) from None
    position = member.data
    for offset, length in member.sparse or ():
        out[offset : offset + length] = buffer[position : position + length]
        position += length
    return bytes(out)


def _pax_records(content: bytes, position: int, sparse_map: list[int] | None = None) -> dict[bytes, bytes]:
    """Parse records ``<length> <key>=<value>\\n``. Repeated sparse 0.0 offsets and lengths go to `sparse_map`."""
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(content) and content[at]:
        space = content.find(b" ", at, at + 21)
        length = int(content[at:space]) if space > at and content[at:space].isdigit() else 0
        key, equals, value = content[space + 1 : at + length - 1].partition(b"=")
        if length < 5 or not equals or content[at + length - 1 : at + length] != b"\n":
            raise bad_header(position)
        if sparse_map is not None and key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            sparse_map.append(decimal(value, position))
        records[key] = value
        at += length
    return records


def scan(buffer: npt.NDArray[np.uint8], *, compiled: bool | None = None) -> ShardScan:
    """Return the samples of a whole tar.

    Args:
        buffer: uint8[size], the tar, usually mapped.
        compiled: use the numba kernel; by default for large tars.

    Invalid data raises no error: `ShardScan.problem` has the error that stopped the scan.
    """
    if compiled is None:
        compiled = len(buffer) >= COMPILED_FROM
    if compiled:
        found = scan_compiled(buffer) or scan_reference(buffer)
    else:
        found = scan_reference(buffer)
    rest = buffer[int(found.starts[-1]) :] if found.closed else buffer[:0]
    first = int(rest.view(np.bool_).argmax()) if len(rest) else 0  # 0: all are zeros, as the first block is
    found.trailing = len(rest) - first if first else 0
    return found


def scan_compiled(buffer: npt.NDArray[np.uint8]) -> ShardScan | None:
    """Scan with the kernel. Returns None if the tar needs the reference."""
    from feedmill.kernels.files.tar_compiled import find_samples

    found = find_samples(buffer)
    return None if found is None else ShardScan(*found)


def scan_reference(buffer: npt.NDArray[np.uint8]) -> ShardScan:
    """Scan in plain Python: the test oracle of the compiled kernel, and the fallback for unsupported tars."""
    view = memoryview(buffer)  # type: ignore[arg-type]
    keys: list[str] = []
    starts: list[int] = []
    sample: list[int] = []
    parts: list[str] = []
    data: list[int] = []
    sizes: list[int] = []
    headers: list[int] = []
    last, problem, end, links, hidden = None, None, 0, 0, 0
    try:
        for member in walk(view, headers=headers):
            end = member.end
            name = sample_name(member.name) if member.regular or member.link else None
            if name is None:
                hidden += member.regular and member.name.startswith("._")
                continue
            if member.link:
                links += 1
                continue
            if name[0] != last:
                last = name[0]
                keys.append(last)
                starts.append(member.start)
            sample.append(len(keys) - 1)
            parts.append(name[1])
            data.append(member.data)
            sizes.append(member.size)
    except DataError as error:
        problem = error
    wrong = first_bad_checksum(buffer, np.asarray(headers, np.int64))
    if wrong is not None and (problem is None or wrong <= (problem.offset or 0)):
        return _cut(keys, starts, sample, parts, data, sizes, bad_header(wrong), wrong)
    closed = problem is None and bool(len(buffer) >= end + BLOCK and not buffer[end : end + BLOCK].any())
    return ShardScan(
        keys,
        np.asarray([*starts, end], np.int64),
        np.asarray(sample, np.int32),
        parts,
        np.asarray(data, np.int64),
        np.asarray(sizes, np.int64),
        problem,
        closed,
        links=links,
        hidden=hidden,
    )


def _cut(
    keys: list[str],
    starts: list[int],
    sample: list[int],
    parts: list[str],
    data: list[int],
    sizes: list[int],
    problem: DataError,
    at: int,
) -> ShardScan:
    """Return the scan up to the header at `at`."""
    kept = int(np.searchsorted(np.asarray(data, np.int64), at))
    samples = sample[kept - 1] + 1 if kept else 0
    return ShardScan(
        keys[:samples],
        np.asarray([*starts[:samples], at], np.int64),
        np.asarray(sample[:kept], np.int32),
        parts[:kept],
        np.asarray(data[:kept], np.int64),
        np.asarray(sizes[:kept], np.int64),
        problem,
        False,
    )


def first_bad_checksum(buffer: npt.NDArray[np.uint8], headers: npt.NDArray[np.int64]) -> int | None:
    """Return the first of these header offsets whose checksum is wrong; computed for 2,048 headers at a time.

    Both the signed and the unsigned sum are accepted, since old writers differ.
    """
    for low in range(0, len(headers), 2048):
        batch = headers[low : low + 2048]
        blocks = np.lib.stride_tricks.sliding_window_view(buffer, BLOCK)[batch]
        text = blocks[:, 148:156]
        total = blocks.sum(axis=1, dtype=np.int64) - text.sum(axis=1, dtype=np.int64) + 8 * 32
        signed = total - 256 * ((blocks >= 128).sum(axis=1) - (text >= 128).sum(axis=1))
        for at, want, want_signed, raw in zip(batch.tolist(), total.tolist(), signed.tolist(), text, strict=True):
            field_ = raw.tobytes().split(b"\0", 1)[0].strip()
            if not field_ or any(c not in b"01234567" for c in field_) or int(field_, 8) not in (want, want_signed):
                return int(at)
    return None
