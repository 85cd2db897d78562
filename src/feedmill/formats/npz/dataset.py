"""Read NumPy's ``.npz`` files as datasets: samples are rows of their arrays.

Layout: every file is a shard, sorted by name. An array whose first axis counts samples is a column of numbers,
booleans, bytes, text, or arrays of one shape. Values of varying length require the arrays that `write.py` adds::

    __columns__.npy     uint8: the form of each column as JSON, such as {"caption": "text", "image": "jpeg"}
    NAME.npy            values; for text, bytes and arrays of several shapes, those of all samples concatenated
    NAME.offsets.npy    int64[samples + 1]: offset of each sample in them
    NAME.shapes.npy     int64[samples, axes]: shapes, for arrays of several shapes
    NAME.present.npy    bool[samples]: which samples have a value; only if some have none, and another is stored instead

Forms are ``int``, ``float``, ``bool``, ``text``, ``json``, ``bytes``, ``jpeg``, ``png``, ``media`` (bytes that are
decoded by what they begin with) and ``array:<dtype>``. JSON is what Python reads: NaN and integers of any size. Keys
are sample numbers, or the texts of the column ``__key__``. Rejected: arrays of Python objects, two arrays of one name,
and shards whose columns differ in name, form or type. Arrays without an axis, and files that are not arrays, are not
part of samples: `describe` lists them under ``remarks``.

Read one ``.npz`` file: a zip archive of ``.npy`` files. Uncompressed members are read by ranges.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np
import orjson

from feedmill.errors import DataError, FeedmillError, NotFound, TrustError
from feedmill.formats.format import OpenRequest
from feedmill.formats.npz.arrays import npy_header, read_npy
from feedmill.formats.objects import decode_json
from feedmill.formats.offsets import Int64s, read_records
from feedmill.formats.rows import ANY, BlockCache, RowsDataset
from feedmill.formats.sample import no_such_key
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store
from feedmill.storage.limits import max_unpacked, too_large
from feedmill.storage.reasons import HEAD, damaged, unreadable
from feedmill.storage.window import Window

COLUMNS, OFFSETS, SHAPES, PRESENT, KEY = "__columns__", ".offsets", ".shapes", ".present", "__key__"
CACHE_BYTES = 512 << 20
"""Maximum bytes of offsets and decompressed arrays cached by an open dataset."""
_AT_ONCE = 64
_IMAGES = {"jpeg": "jpg", "png": "png", "media": ANY}


class Column(NamedTuple):
    """A column of a shard: its form (empty if given by the array), and the names of the arrays that belong to it."""

    name: str
    form: str
    offsets: str = ""
    shapes: str = ""
    present: str = ""


class Shard:
    """The columns of one file."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.columns = self._columns()
        counts = {column.name: self._count(column) for column in self.columns}
        if not counts:
            raise archive.refused("no array has an axis of samples", "no-samples")
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{name}: {count}" for name, count in list(counts.items())[:4])
            raise archive.refused(f"its arrays have different numbers of rows ({shown})", "other-columns")
        self.count = next(iter(counts.values()))

    def schema(self) -> dict[str, str]:
        """Return the form, or the type and shape, of each column, which must be equal in all shards."""
        members = self.archive.members
        return {c.name: c.form or _type_of(members[c.name]) for c in self.columns}

    def remarks(self) -> list[str]:
        """Return notes about content of the file that is not part of samples."""
        archive = self.archive
        used = {name for c in self.columns for name in (c.name, *c[2:])} | {COLUMNS}
        found = [f"the array {name!r} is not part of any sample" for name in archive.members if name not in used]
        found += [f"{name!r} is not an array" for name in archive.others]
        return [f"{archive.path}: {remark}" for remark in found]

    def values(self, column: Column, local: Int64s) -> list[Any]:
        """Return the values of some samples, None for missing ones. int64[n], numbers in it. Raises `DataError`."""
        values = self._stored(column, local)
        if not column.present:
            return values
        present = self.archive.array(column.present)[local].tolist()
        return [value if there else None for value, there in zip(values, present, strict=True)]

    def _stored(self, column: Column, local: Int64s) -> list[Any]:
        archive, member = self.archive, self.archive.members[column.name]
        if not column.offsets:
            blocks = archive.rows(column.name, local, local + 1)
            return [_value(member.dtype, member.row_shape, block) for block in blocks]
        offsets = self._offsets(column)
        blocks = archive.rows(column.name, offsets[local], offsets[local + 1])
        if column.shapes:
            shapes = archive.array(column.shapes)[local].tolist()
            try:
                return [_array(member.dtype, shape, block) for shape, block in zip(shapes, blocks, strict=True)]
            except ValueError as error:
                raise archive.damaged(str(error), column.name) from None
        return [self._made(column, block) for block in blocks]

    def indexes(self) -> list[str]:
        """Return the arrays of offsets, shapes and missing values that are not loaded yet."""
        names = [name for column in self.columns for name in column[2:] if name]
        return [name for name in names if not self.archive.has(name)]

    def ranges(self, column: Column, local: Int64s) -> tuple[Int64s, Int64s]:
        """Return the byte ranges that `values` will read for each sample; int64[n] each, or int64[0] for none."""
        offsets = self._offsets(column) if column.offsets else None
        if offsets is None:
            return self.archive.ranges(column.name, local, local + 1)
        return self.archive.ranges(column.name, offsets[local], offsets[local + 1])

    def _made(self, column: Column, block: bytes) -> Any:
        try:
            if column.form == "text":
                return block.decode()
            return decode_json(block) if column.form == "json" else block
        except (ValueError, RecursionError) as error:
            raise self.archive.damaged(f"a value is not {column.form} ({error})", column.name) from None

    def _columns(self) -> list[Column]:
        members = self.archive.members
        if COLUMNS not in members:
            return [Column(name, "") for name, member in members.items() if member.shape]
        try:
            forms = orjson.loads(self.archive.array(COLUMNS).tobytes())
            columns = [
                Column(name, form, *(name + end if name + end in members else "" for end in (OFFSETS, SHAPES, PRESENT)))
                for name, form in forms.items()
            ]
        except (ValueError, AttributeError, TypeError) as error:
            raise self.archive.damaged(f"the list of its columns is invalid ({error})", COLUMNS) from None
        for column in columns:
            if column.name not in members or not members[column.name].shape:
                raise self.archive.damaged("the list of columns names this array, but it is missing", column.name)
            if not column.offsets and column.form in ("text", "json", "bytes", *_IMAGES):
                raise self.archive.damaged("its offsets are missing", column.name)
        return columns

    def _count(self, column: Column) -> int:
        members = self.archive.members
        count = members[column.name].shape[0]
        if column.offsets:
            count = math.prod(members[column.offsets].shape) - 1
        for name in (column.shapes, column.present):
            if name and members[name].shape[:1] != (count,):
                raise self.archive.damaged(f"shapes {members[name].shape} do not match {count} samples", name)
        return count

    def _offsets(self, column: Column) -> Int64s:
        offsets = np.asarray(self.archive.array(column.offsets), np.int64)
        values = self.archive.members[column.name].shape[0]
        if offsets.ndim != 1 or offsets[0] != 0 or offsets[-1] != values or (np.diff(offsets) < 0).any():
            raise self.archive.damaged("its offsets are invalid", column.offsets)
        return offsets


class NpzDataset(RowsDataset):
    """The rows of ``.npz`` files, by number."""

    format: ClassVar[str] = "npz"

    def __init__(self, store: Store, paths: Sequence[str], *, name: str, base: str | None = None) -> None:
        cache = BlockCache(CACHE_BYTES)
        sizes = {path: store.stat(path).size for path in paths}
        threads = 0 if store.is_local else 16
        self.shards = list(
            ordered_map(
                lambda path: Shard(Archive(store, path, sizes[path], cache)), paths, workers=threads, in_flight=64
            )
        )
        counts = np.asarray([shard.count for shard in self.shards], np.int64)
        super().__init__(store, name=name, files=paths, counts=counts, base=base)
        first = self.shards[0].columns if self.shards else []
        self.columns = self.shards[0].schema() if self.shards else {}
        for path, shard in zip(paths, self.shards, strict=True):
            schema = shard.schema()
            if schema != self.columns:
                name = next(n for n in [*self.columns, *schema] if schema.get(n) != self.columns.get(n))
                have, there = schema.get(name, "missing"), self.columns.get(name, "missing")
                raise DataError(
                    f"its columns differ from {paths[0]!r}: {name!r} is {have} here and {there} there",
                    file=store.locate(path),
                    kind="other-columns",
                    fix="Files of one dataset must have the same columns: fix this one, or mix them with a recipe.",
                )
        self.key_column = KEY if self.columns.get(KEY) in ("text", "str") else None
        self.suffixes = {
            column.name: _IMAGES.get(column.form, ANY)
            for column in first
            if column.form in _IMAGES or (not column.form and self._dtype(column).kind == "S")
        }
        self._keys: list[list[str]] | None = None
        self._numbers: Mapping[str, int] | None = None

    def _dtype(self, column: Column) -> np.dtype[Any]:
        return self.shards[0].archive.members[column.name].dtype

    def _rows(self, file: int, local: Int64s) -> list[dict[str, Any]]:
        shard = self.shards[file]
        columns = self._parts(shard)
        values = [shard.values(column, local) for column in columns]
        return [dict(zip((c.name for c in columns), row, strict=True)) for row in zip(*values, strict=True)]

    def _parts(self, shard: Shard) -> list[Column]:
        """Return the columns that are parts of samples."""
        return [column for column in shard.columns if column.name != self.key_column]

    def _load(self, files: Sequence[int]) -> None:
        wanted = [(self.shards[file].archive, name) for file in files for name in self.shards[file].indexes()]
        workers = min(_AT_ONCE, len(wanted)) if len(wanted) > 1 else 0
        for _ in ordered_map(lambda each: each[0].array(each[1]), wanted, workers=workers, in_flight=2 * _AT_ONCE):
            pass
        if self.key_column is not None:
            self._all_keys()

    def _ranges(self, file: int, local: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        shard = self.shards[file]
        found = [shard.ranges(column, local) for column in self._parts(shard)]
        which = [np.arange(len(begins)) for begins, _ in found]
        begins, ends = (np.concatenate(column) for column in zip(*found, strict=True))
        return np.concatenate(which), begins, ends

    def _extent(self, file: int, local: int) -> tuple[int, int]:  # noqa: ARG002
        return 0, self.shards[file].archive.size  # its values lie in several places

    def _key(self, file: int, local: int) -> str:
        return super()._key(file, local) if self.key_column is None else self._all_keys()[file][local]

    def _all_keys(self) -> list[list[str]]:
        """Return the key of every sample, read once from the key column alone."""
        if self._keys is None:
            column = next(column for column in self.shards[0].columns if column.name == KEY)
            threads = 0 if self.store.is_local else 16
            self._keys = list(
                ordered_map(
                    lambda shard: shard.values(column, np.arange(shard.count)),
                    self.shards,
                    workers=threads,
                    in_flight=64,
                )
            )
        return self._keys

    def find(self, key: str) -> int:
        """See `Dataset.find`."""
        if self.key_column is None:
            return super().find(key)
        if self._numbers is None:
            keys = [key for keys in self._all_keys() for key in keys]
            self._numbers = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
        if key not in self._numbers:
            raise no_such_key(self.url, key)
        return self._numbers[key]

    def _file_hash(self, file: int) -> str:
        return self.shards[file].archive.digest

    def verify(self) -> Sequence[FeedmillError]:
        """Compare all arrays with their checksums, and read every value once."""
        findings: list[FeedmillError] = []
        for number, shard in enumerate(self.shards):
            wrong = shard.archive.verify()
            if wrong is not None:
                findings.append(wrong)
                continue
            try:
                for low in range(0, shard.count, 1024):
                    self._rows(number, np.arange(low, min(low + 1024, shard.count)))
            except FeedmillError as error:
                findings.append(error)
        if self.key_column is not None and not findings:
            findings += self._wrong_keys(lambda file: self._all_keys()[file], self.key_column)
        return findings

    def describe(self) -> dict[str, Any]:
        """Return plain facts for `info`; ``columns`` maps each column to its form or dtype."""
        remarks = [remark for shard in self.shards for remark in shard.remarks()]
        return {**super().describe(), "columns": self.columns, **({"remarks": remarks} if remarks else {})}


def _type_of(member: Member) -> str:
    kind = {"U": "str", "S": "bytes"}.get(member.dtype.kind) or str(member.dtype.newbyteorder("="))
    return f"{kind}{list(member.row_shape)}" if member.row_shape else kind


def _value(dtype: np.dtype[Any], shape: Sequence[int], block: bytes) -> Any:
    array = np.frombuffer(block, dtype)
    return array[0].item() if not shape else _array(dtype, shape, block)


def _array(dtype: np.dtype[Any], shape: Sequence[int], block: bytes) -> Any:
    return np.frombuffer(block, dtype).reshape(shape).copy()


def open_found(wanted: OpenRequest) -> NpzDataset:
    """Open a file, several files, or all files of a folder. Raises `DataError`, `NotFound`, `ConfigError`."""
    store, names = wanted.store, list(wanted.names)
    if wanted.name:
        return NpzDataset(store, [wanted.name], name=wanted.url, base=store.url)
    paths = names or sorted(entry.path for entry in store.files(suffixes=(".npz",)))
    if not paths:
        raise NotFound("no .npz files", file=wanted.url, fix="Check the path.")
    return NpzDataset(store, paths, name=wanted.url)


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
