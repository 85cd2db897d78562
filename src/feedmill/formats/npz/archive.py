"""Read one ``.npz`` file: a zip archive of ``.npy`` files. Uncompressed members are read by ranges.

Nothing is unpickled: arrays of objects are rejected by the header of their file. A compressed member is decompressed as
a whole, up to the limit of `feedmill.storage.limits`.
"""

from __future__ import annotations

import io
import lzma
import math
import struct
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

import numpy as np

from feedmill.errors import DataError, TrustError
from feedmill.formats.npz.arrays import npy_header, read_npy
from feedmill.formats.offsets import Int64s, read_records
from feedmill.formats.rows import BlockCache
from feedmill.storage import Store
from feedmill.storage.limits import max_unpacked, too_large
from feedmill.storage.reasons import HEAD, damaged, unreadable
from feedmill.storage.window import Window

KINDS = "biufSU"
"""Supported kinds of dtypes: numbers, booleans, bytes and text."""
_HEAD = 10_000
"""Maximum bytes of an ``.npy`` header, as in NumPy."""
_LEAST = 22
"""Bytes of an empty zip archive."""
_REWRITE = "rewrite it with numpy.savez"
_FIX = "Rewrite it with numpy.savez."
_ENCRYPTED = 1  # a flag of zip
_END, _NPY = b"PK\5\6", b"\x93NUMPY"
_BAD = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, struct.error, ValueError)
"""What `zipfile` raises for an archive that it cannot read, but for what it does not support."""


class Member(NamedTuple):
    """An array of the archive.

    Attributes:
        name: without ``.npy``.
        at: offset of its values in the archive; None if they are compressed or in Fortran order.
        head: bytes before the values in the member.
        info: the member's entry in the archive's directory.
        end: offset of the next entry in the archive.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    at: int | None
    head: int
    info: zipfile.ZipInfo
    end: int

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of one row."""
        return self.shape[1:]

    @property
    def row_bytes(self) -> int:
        """Return the size of one row in bytes."""
        return self.dtype.itemsize * math.prod(self.row_shape)


class Archive:
    """The arrays of a file.

    Attributes:
        members: the arrays by name.
        others: names of files in the archive that are not arrays.

    Args:
        cache: cache of decompressed members.

    Raises:
        DataError: the file is not such an archive, or one of its arrays is invalid.
        TrustError: an array holds Python objects.
    """

    def __init__(self, store: Store, path: str, size: int, cache: BlockCache) -> None:
        self.store, self.path, self.size, self._cache = store, path, size, cache
        self.members: dict[str, Member] = {}
        self.others: list[str] = []
        with self._opened() as archive:
            offsets = sorted({*(info.header_offset for info in archive.infolist()), archive.start_dir, size})
            for info in archive.infolist():
                if not info.filename.endswith(".npy"):
                    self.others.append(info.filename)
                    continue
                behind = offsets[bisect_right(offsets, info.header_offset) :]
                member = self._member(archive, info, behind[0] if behind else size)
                if member.name in self.members:
                    raise self.refused("two arrays have one name", "other-columns", member.name)
                self.members[member.name] = member

    @property
    def digest(self) -> str:
        """Return a hash of the content: of the checksums of all arrays."""
        return " ".join(f"{m.name}:{m.info.CRC:08x}" for m in self.members.values())

    def array(self, name: str) -> Any:
        """Return a whole array. Raises `DataError`."""
        member = self.members[name]
        return self._cache.get((self.path, name), lambda: self._loaded(member))

    def rows(self, name: str, begins: Int64s, ends: Int64s) -> list[bytes]:
        """Return the bytes of runs of rows (of the first axis), in the requested order. int64[n] each."""
        places = self._places(self.members[name], begins, ends)
        if places is None:
            array = self.array(name)
            return [array[b:e].tobytes() for b, e in zip(begins.tolist(), ends.tolist(), strict=True)]
        return read_records(self.store, self.path, *places)

    def ranges(self, name: str, begins: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
        """Return the byte ranges that `rows` will read for each run, int64[n] each; int64[0] if it will read none."""
        member = self.members[name]
        places = self._places(member, begins, ends)
        if places is not None:
            return places
        count = 0 if self.has(name) else len(begins)
        return np.full(count, member.info.header_offset, np.int64), np.full(count, member.end, np.int64)

    def has(self, name: str) -> bool:
        """Return whether the whole array is cached."""
        return (self.path, name) in self._cache

    def _places(self, member: Member, begins: Int64s, ends: Int64s) -> tuple[Int64s, Int64s] | None:
        """Return the offsets of runs of rows in the archive, and their ends; None if they cannot be read alone."""
        width = member.row_bytes
        return None if member.at is None else (member.at + begins * width, member.at + ends * width)

    def verify(self) -> DataError | None:
        """Read all members and compare them with their checksums."""
        try:
            with self._opened() as archive:
                bad = archive.testzip()
        except DataError as error:
            return error
        if bad is None:
            return None
        return damaged(
            "checksum mismatch: its bytes do not match the checksum in the archive's directory",
            file=self.store.locate(self.path),
            record=bad,
            kind="hash-mismatch",
            instead=_REWRITE,
        )

    @contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        with self._reading():
            if self.size < _LEAST:
                raise zipfile.BadZipFile(f"its {self.size} bytes are not a zip archive")
            if self.size == _LEAST and self.store.read(self.path, 0, 4) == _END:
                raise self.refused("the archive is empty", "no-samples")
            with (
                io.BufferedReader(Window(self.store, self.path, 0, self.size), 1 << 16) as stream,
                zipfile.ZipFile(stream) as archive,
            ):
                yield archive

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except NotImplementedError as error:
            raise self.refused(f"the archive has what is not supported ({error})", "unsupported") from None
        except _BAD as error:
            begin = self.store.read(self.path, 0, min(self.size, HEAD))
            raise unreadable(begin, "zip", **self._facts(str(error))) from None
        except OSError as error:  # of bz2, for corrupt data
            if error.errno is not None:
                raise
            raise self.damaged(str(error)) from None

    def _member(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, end: int) -> Member:
        name = info.filename.removesuffix(".npy")
        if info.flag_bits & _ENCRYPTED:
            raise self.refused("the archive is encrypted", "unsupported", name)
        start = None
        if info.compress_type == zipfile.ZIP_STORED:
            local = self.store.read(self.path, info.header_offset, 30)
            start = info.header_offset + 30 + sum(struct.unpack("<HH", local[26:30]))
            stream: IO[bytes] = Window(self.store, self.path, start, info.file_size)  # type: ignore[assignment]
        else:
            stream = archive.open(info)
        with stream:
            dtype, shape, fortran, head = self._header(stream, name)
        if dtype.hasobject:
            raise TrustError(
                f"the array {name!r} contains Python objects, and reading them can run code",
                file=self.store.locate(self.path),
                record=name,
                fix="Rewrite it as arrays of numbers or text.",
            )
        if dtype.kind not in KINDS:
            error = self.refused(f"arrays of the dtype {dtype} are not supported", "unsupported", name)
            error.fix = "Rewrite it as an array of numbers, booleans, bytes or text."
            raise error
        values = math.prod(shape) * dtype.itemsize  # in Python: NumPy's product would overflow
        if min(shape, default=0) < 0 or head + values != info.file_size:
            raise self.damaged(f"its shape {shape} needs {head + values} bytes, there are {info.file_size}", name)
        at = None if start is None or fortran else start + head
        return Member(name, dtype, shape, at, head, info, end)

    def _header(self, stream: IO[bytes], name: str) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
        """Return dtype, shape, whether in Fortran order, and length of the header of an ``.npy`` file."""
        data = io.BytesIO(stream.read(_HEAD + 12))
        length = int.from_bytes(data.getvalue()[8 : 10 if data.getvalue()[6:7] == b"\1" else 12], "little")
        if length > _HEAD and data.getvalue().startswith(_NPY):
            what = f"its header has {length:,} bytes, more than the {_HEAD:,} that are read"
            raise self.refused(what, "unsupported", name)
        try:
            shape, fortran, dtype = npy_header(data, _HEAD)
        except ValueError as error:
            raise self.damaged(
                f"it is not an .npy file: {error}".replace(": it is not an .npy file", ""), name
            ) from None
        return dtype, shape, fortran and len(shape) > 1, data.tell()

    def _loaded(self, member: Member) -> tuple[Any, int]:
        size = math.prod(member.shape) * member.dtype.itemsize
        limit = max_unpacked(self.size)
        if size > max(limit, self.size):
            raise too_large(limit, file=self.store.locate(self.path), record=member.name)
        if member.at is not None:
            data = self.store.read(self.path, member.at, size)
            return np.frombuffer(data, member.dtype).reshape(member.shape), size
        begin = member.info.header_offset  # one request reads the whole member, without the directory
        stored = io.BytesIO(self.store.read(self.path, begin, member.end - begin))
        with self._reading():
            stored.seek(30 + sum(struct.unpack("<HH", stored.getbuffer()[26:30])))
            with zipfile.ZipExtFile(stored, "r", member.info) as stream:
                data = stream.read()
        try:
            return read_npy(data), size
        except ValueError as error:
            raise self.damaged(str(error), member.name) from None

    def damaged(self, why: str, record: str | None = None) -> DataError:
        """Return the error for an archive that is not as it was written."""
        return damaged(**self._facts(why, record))

    def _facts(self, why: str, record: str | None = None) -> dict[str, Any]:
        what, file = f"the archive cannot be read: {why}", self.store.locate(self.path)
        return {"what": what, "file": file, "record": record, "kind": "bad-data", "instead": _REWRITE}

    def refused(self, what: str, kind: str, record: str | None = None) -> DataError:
        """Return the error for a whole archive that is no dataset, or has what is not supported."""
        return DataError(what, file=self.store.locate(self.path), record=record, kind=kind, fix=_FIX)
