"""Read Zarr recordings: the replay buffers of UMI and Diffusion Policy, as folders or in one zip file.

Layout (Zarr 2: ``.zarray``; Zarr 3: ``zarr.json``)::

    meta/episode_ends     int[episodes]: the number of steps up to the end of each
    data/NAME             [steps, ...]: a column, of the steps of all episodes
    x.zarr.zip            the same files in a zip

Chunks are read by ranges and decoded here, without a Zarr library: Blosc, zlib, gzip, zstd, LZ4, bzip2 and xz, CRC-32C,
and none; JPEG XL through imagecodecs if that is installed. Members of a zip are compared with their CRC-32; nothing is
unpacked to disk. A chunk that is not there has the fill value, as Zarr leaves out chunks of only that: `remarks` count
them, as a lost file looks the same.

Rejected: objects (their codecs run code), several fields, filters, sharding, transposed chunks of Zarr 3, and numbers
of steps that are not those of ``episode_ends``.
"""

from __future__ import annotations

import bz2
import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from feedmill.errors import DataError, MissingExtra
from feedmill.formats.content import content_of_files
from feedmill.formats.format import OpenRequest
from feedmill.formats.kept import Index, kept_index
from feedmill.formats.objects import decode_json
from feedmill.formats.offsets import Int64s, hash_words
from feedmill.formats.recorders.dataset import CACHE_BYTES, RecorderDataset, Recording, left_out
from feedmill.formats.recorders.tracks import ABSENT, ArrayTrack, Chunks, Column, Track, corrupt
from feedmill.formats.rows import BlockCache
from feedmill.formats.tokens.zarr.blosc import lz4_decoder, unpack
from feedmill.formats.tokens.zarr.meta import configuration_of, name_of, pipeline_of
from feedmill.storage import Store
from feedmill.storage.codec import inflate, unzstd
from feedmill.storage.reasons import HEAD, copy_again, unreadable
from feedmill.storage.window import Window

ENDS, DATA = "meta/episode_ends", "data/"
_V2, _V3 = "/.zarray", "/zarr.json"
_READER = "zarr zip 1"
_KINDS = "biuf"
_LOCAL = 30
"""Bytes of the header before the name of a member of a zip."""
_ENCRYPTED = 1
_MOST_META = 1 << 20
_FILLS = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}

Decode = Callable[[bytes, int], Any]
"""(stored bytes, bytes of the chunk) -> the chunk's bytes, or its values. Raises `ValueError`."""


class Place(NamedTuple):
    """Where a file of the hierarchy lies.

    Attributes:
        path: the file in the store.
        begin, size: the range; of a member of a zip with the header before it.
        crc, method, whole: of a member: its checksum, how it is compressed, and its size; 0 for a file of its own.
    """

    path: str
    begin: int
    size: int
    crc: int = 0
    method: int = -1
    whole: int = 0


class ZarrArray(NamedTuple):
    """The metadata of an array.

    Attributes:
        decode: undoes the codecs of a chunk; None if its bytes are the values.
        key: makes the name of a chunk's file from its place in the grid.
        fortran: whether values of a chunk are in Fortran order.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    decode: Decode | None
    fill: Any
    key: Callable[[Sequence[int]], str]
    fortran: bool = False


class ZarrRecording(Recording):
    """The episodes of a replay buffer.

    Args:
        places: name of a file in the hierarchy -> where it lies.
        where: the folder or zip, for errors.
    """

    def __init__(self, store: Store, places: Mapping[str, Place], where: str) -> None:
        self._store, self._places, self._where = store, places, where
        self._cache = BlockCache(CACHE_BYTES)
        self._claimed: set[str] = set()
        found = self._ends()
        self.names = [str(number) for number in range(len(found))]
        self.lengths = np.diff(found, prepend=0)
        self._starts = found - self.lengths
        steps = int(found[-1]) if len(found) else 0
        self.columns, self._arrays, remarks = {}, {}, list[str]()
        apart: dict[str, list[str]] = {}
        for name in self._names():
            try:
                array = self._array(name)
            except _Unread as error:
                apart.setdefault(str(error), []).append(name)
                continue
            if not array.shape or array.shape[0] != steps:
                apart.setdefault("it has not a row for each step", []).append(name)
                continue
            column = name.removeprefix(DATA).replace("/", ".")
            if column in self.columns:
                raise DataError(
                    f"two arrays would be the column {column!r}", file=where, record=name, kind="name-clash",
                    fix="Rename one of them.",
                )  # fmt: skip
            self.columns[column] = Column(array.dtype.newbyteorder("=").name, array.shape[1:])
            self._arrays[column] = name, array
        if not self.columns and steps:
            wrong = apart.get("it has not a row for each step", [])
            counts = {name: self._array(name).shape[:1] for name in wrong[:3]}
            raise DataError(
                f"{ENDS} ends with {steps:,} steps, and no array below {DATA} has that number of rows"
                f" ({', '.join(f'{name}: {count[0] if count else 0:,}' for name, count in counts.items()) or 'none'})",
                file=where,
                kind="wrong-count",
                fix=copy_again("the dataset", "correct episode_ends"),
            )
        remarks += [left_out(names, why) for why, names in apart.items()]
        self._tracks: dict[str, ArrayTrack] = {}
        lacking = ""
        for column, (name, array) in self._arrays.items():
            track = self._tracks[column] = self._make(name, array)
            absent = int((track.chunks.begin == ABSENT).sum())
            if absent:
                lacking = lacking or name
                remarks.append(
                    f"{absent:,} of {len(track.chunks.begin):,} chunks of {name!r} are not there: their values are"
                    f" the fill value {array.fill!r}"
                )
        strays = self._strays([name for names in apart.values() for name in names])
        if strays and lacking:  # a chunk whose name is corrupt would have the fill value
            raise DataError(
                f"{strays[0]!r} is of no array ({len(strays):,} such files), and chunks of {lacking!r} are not there",
                file=where,
                kind="bad-index",
                fix=copy_again("the dataset", "remove these files"),
            )
        remarks += [left_out(strays, "it is of no array")] if strays else []
        others = sorted({path.split("/")[1] for path in places if path.startswith("meta/")} - {"episode_ends"})
        others = [f"meta/{name}" for name in others if not name.startswith(".") and name != "zarr.json"]
        self.remarks = remarks + ([left_out(others, "it lies beside the episodes")] if others else [])

    def _strays(self, unread: Sequence[str]) -> list[str]:
        """Return the files below ``data/`` that are neither metadata nor chunks of an array."""
        folders = tuple(f"{name}/" for name in unread)
        return sorted(
            path
            for path in self._places.keys() - self._claimed
            if path.startswith(DATA)
            and not path.startswith(folders)
            and not any(part.startswith(".") for part in path.split("/"))
            and not path.endswith(("/", _V3))
        )

    @cached_property
    def digest(self) -> str:  # type: ignore[override]
        """Return a hash of the names and sizes of all files, and of parts of their content."""
        names = sorted(self._places)
        words = [f"{name} {self._places[name].size} {self._places[name].crc}" for name in names]
        paths = sorted({place.path for place in self._places.values()})
        return hash_words([*words, content_of_files(self._store, paths)])

    def track(self, episode: int, column: str) -> tuple[Track, int]:
        return self._tracks[column], int(self._starts[episode])

    def _names(self) -> list[str]:
        """Return the names of the arrays below ``data/``."""
        found = []
        for name in sorted(self._places):
            for end in (_V2, _V3):
                if name.startswith(DATA) and name.endswith(end):
                    found.append(name.removesuffix(end))
        return [name for name in dict.fromkeys(found) if self._is_array(name)]

    def _is_array(self, name: str) -> bool:
        return name + _V2 in self._places or self._json(name + _V3).get("node_type") == "array"

    def _read(self, name: str) -> bytes:
        place = self._places[name]
        if place.whole > _MOST_META:
            raise corrupt(self._where, place.begin, f"{name!r} has {place.whole:,} bytes")
        data = self._store.read(place.path, place.begin, place.size)
        try:
            return bytes(_member(place, data))
        except ValueError as error:
            raise corrupt(self._where, place.begin, f"{name!r} cannot be read: {error}") from None

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = decode_json(self._read(name))
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{name!r} is not JSON ({error})", file=self._where, kind="bad-index", fix=copy_again()
            ) from None
        return found if isinstance(found, dict) else {}

    def _array(self, name: str) -> ZarrArray:
        """Return the metadata of an array. Raises `DataError`, and `_Unread` for an array that is not read."""
        try:
            return (
                _array_v2(self._json(name + _V2)) if name + _V2 in self._places else _array_v3(self._json(name + _V3))
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise DataError(
                f"the array {name!r} cannot be read: {what}", file=self._where, kind="bad-index", fix=copy_again()
            ) from None

    def _ends(self) -> Int64s:
        """Return the number of steps up to the end of each episode, int64[episodes]."""
        try:
            array = self._array(ENDS)
        except _Unread as error:
            raise DataError(f"{ENDS}: {error}", file=self._where, kind="bad-index", fix=copy_again()) from None
        if len(array.shape) != 1 or array.dtype.kind not in "iu":
            what = f"{ENDS} has the type {array.dtype} and the shape {list(array.shape)}, expected whole numbers"
            raise DataError(what, file=self._where, kind="bad-index", fix=copy_again())
        track = self._make(ENDS, array)
        rows = np.arange(array.shape[0])
        values = track.values(
            rows, {}, lambda file, begin, end: self._store.read(track.paths[file], begin, end - begin)
        )
        if track._alone:
            found = track.pieces(rows)
            spans = zip(
                found.piece.tolist(), found.file.tolist(), found.begin.tolist(), found.end.tolist(), strict=True
            )
            blocks = {p: self._store.read(track.paths[f], b, e - b) for p, f, b, e in spans}
            values = track.values(rows, blocks, lambda *_: b"")
        ends = np.asarray(values, np.int64)
        bad = np.flatnonzero(np.diff(ends, prepend=0) < 0)
        if len(bad):
            at = int(bad[0])
            raise DataError(
                f"{ENDS} does not ascend: the episode {at} ends at {int(ends[at]):,}, the one before later",
                file=self._where,
                kind="bad-index",
                fix=copy_again("the dataset", "correct episode_ends"),
            )
        return ends

    def _make(self, name: str, array: ZarrArray) -> ArrayTrack:
        grid = [-(-size // step) for size, step in zip(array.shape, array.chunk, strict=True)]
        count = int(np.prod(grid, dtype=np.int64))
        if count > 1 << 28:
            raise corrupt(self._where, 0, f"the array {name!r} has {count:,} chunks")
        paths: dict[str, int] = {}
        table = np.zeros((count, 4), np.int64)
        table[:, 1] = ABSENT
        members: dict[int, Place] = {}
        for number, corner in enumerate(np.ndindex(*grid)):
            key = f"{name}/{array.key(corner)}"
            place = self._places.get(key)
            if place is not None:
                self._claimed.add(key)
                table[number] = paths.setdefault(place.path, len(paths)), place.begin, place.size, number
                if place.method >= 0:
                    members[number] = place
        decode = None
        if array.decode is not None or members:
            decode = partial(_decode, array.decode, members)
        listed = list(paths) or [""]

        def fail(file: int, offset: int, what: str) -> DataError:
            return corrupt(self._store.locate(listed[file]), offset, what)

        chunks = Chunks(*table.T)
        facts = array.dtype, array.shape, array.chunk, chunks, decode, array.fill, self._cache, name, fail
        return ArrayTrack(name, listed, *facts, fortran=array.fortran)


class _Unread(Exception):
    """Raised for an array whose values are not read; its argument is the reason."""


def _decode(decode: Decode | None, members: Mapping[int, Place], data: bytes, size: int, number: int) -> Any:
    """Return the values of a chunk of a file or a member of a zip. Raises `ValueError`."""
    place = members.get(number)
    found: Any = data if place is None else _member(place, data)
    if decode is not None:
        return decode(found, size)
    if len(found) != size:
        raise ValueError(f"expected {size:,} bytes, found {len(found):,}")
    return found


def _member(place: Place, data: bytes) -> Any:
    """Return the content of a member of a zip from its bytes with the header. Raises `ValueError`."""
    if place.method < 0:
        return data
    if data[:4] != b"PK\3\4" or len(data) < _LOCAL:
        raise ValueError("this is not a member of a zip")
    begin = _LOCAL + sum(struct.unpack("<HH", data[26:30]))
    packed = memoryview(data)[begin:]
    if place.method == zipfile.ZIP_STORED:
        found: Any = packed[: place.whole]
    else:
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            found = stream.decompress(packed, place.whole + 1)
        except zlib.error as error:
            raise ValueError(f"the compressed data are corrupt ({error})") from None
    if len(found) != place.whole or zlib.crc32(found) != place.crc:
        raise ValueError("its checksum (CRC-32) differs from its content")
    return found


def _array_v2(found: Mapping[str, Any]) -> ZarrArray:
    if found.get("zarr_format") != 2:
        raise ValueError(f"its zarr_format is {found.get('zarr_format')!r}, expected 2")
    kind = found["dtype"]
    if not isinstance(kind, str):
        raise _Unread("types of several fields")
    if kind.lstrip("<>|=")[:1] == "O":
        raise _Unread("objects, whose codecs can run code")
    dtype = np.dtype(kind)
    if dtype.kind not in _KINDS:
        raise _Unread(f"the type {dtype}")
    if found.get("filters"):
        raise _Unread(f"the filter {str(found['filters'][0].get('id'))[:60]}")
    shape, chunk = _sizes(found["shape"], 0), _sizes(found["chunks"], 1)
    separator = found.get("dimension_separator", ".")
    if separator not in (".", "/") or len(shape) != len(chunk) or found.get("order", "C") not in ("C", "F"):
        raise ValueError("its chunks, order or separator are invalid")
    fill = found.get("fill_value")
    key = partial(_key, "", separator)
    decode = _codec_v2(found.get("compressor"), chunk, dtype)
    return ZarrArray(dtype, shape, chunk, decode, _fill(fill, dtype), key, found.get("order", "C") == "F")


def _array_v3(found: Mapping[str, Any]) -> ZarrArray:
    if found.get("zarr_format") != 3 or found.get("node_type") != "array":
        raise ValueError(
            f"it is a {found.get('node_type')!r} of {found.get('zarr_format')!r}, expected an array of Zarr 3"
        )
    kind = found["data_type"]
    try:
        dtype = np.dtype(kind) if isinstance(kind, str) else None
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in _KINDS or found.get("storage_transformers"):
        raise _Unread(f"the type {str(kind)[:60]}")
    if name_of(found["chunk_grid"]) != "regular":
        raise _Unread("chunks of different sizes")
    shape, chunk = _sizes(found["shape"], 0), _sizes(configuration_of(found["chunk_grid"])["chunk_shape"], 1)
    if len(shape) != len(chunk):
        raise ValueError("its chunks have other axes than the array")
    names = [name_of(codec) for codec in found["codecs"]]
    for name in ("sharding_indexed", "transpose"):
        if name in names:
            raise _Unread(f"the codec {name}")
    pipeline = pipeline_of(found["codecs"], dtype)
    encoding = found["chunk_key_encoding"]
    if name_of(encoding) not in ("default", "v2"):
        raise ValueError("its chunk key encoding is unknown")
    separator = configuration_of(encoding).get("separator", "/" if name_of(encoding) == "default" else ".")
    key = partial(_key, f"c{separator}" if name_of(encoding) == "default" else "", separator)
    decode = pipeline.decode if pipeline.steps else None
    return ZarrArray(dtype.newbyteorder(pipeline.order), shape, chunk, decode, _fill(found["fill_value"], dtype), key)


def _key(prefix: str, separator: str, corner: Sequence[int]) -> str:
    return prefix + separator.join(map(str, corner))


def _sizes(numbers: Any, least: int) -> tuple[int, ...]:
    if not isinstance(numbers, list) or not all(type(n) is int and least <= n < 1 << 62 for n in numbers):
        raise ValueError(f"its shape is {str(numbers)[:80]}")
    if not numbers:
        raise _Unread("it has no axes")
    return tuple(numbers)


def _fill(value: Any, dtype: np.dtype[Any]) -> Any:
    if value is None:
        return 0
    found = _FILLS.get(value, value) if isinstance(value, str) else value
    if not isinstance(found, int | float):
        raise ValueError(f"its fill value is {str(value)[:60]}")
    return np.asarray(found).astype(dtype.newbyteorder("=")).item()


def _codec_v2(found: Any, chunk: Sequence[int], dtype: np.dtype[Any]) -> Decode | None:
    """Return the decoder of a codec of numcodecs. Raises `_Unread`."""
    if found is None:
        return None
    name = found.get("id") if isinstance(found, dict) else None
    if name == "imagecodecs_jpegxl":
        return partial(_jpegxl, tuple(chunk), dtype)
    known: dict[Any, Decode] = {
        "blosc": unpack,
        "zlib": inflate,
        "gzip": partial(inflate, gzip=True),
        "zstd": unzstd,
        "lz4": _lz4,
        "bz2": partial(_of_library, bz2.BZ2Decompressor),
        "lzma": partial(_of_library, lzma.LZMADecompressor),
    }
    if name == "lzma" and (found.get("format", 1) != 1 or found.get("filters")):
        raise _Unread("the codec lzma with filters of its own")
    if name not in known:
        raise _Unread(f"the codec {str(name)[:60]}")
    return known[name]


def _lz4(data: Any, size: int) -> Any:
    """Undo LZ4 of numcodecs: the size (u32), then a block."""
    view = memoryview(data)
    if len(view) < 4 or int.from_bytes(view[:4], "little") != size:
        raise ValueError(f"its header has another size than {size:,}")
    return lz4_decoder()(view[4:], size)


def _of_library(unpacker: Callable[[], Any], data: Any, size: int) -> bytes:
    stream = unpacker()
    try:
        found: bytes = stream.decompress(bytes(data), size + 1)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise ValueError(f"the compressed data are corrupt ({error})") from None
    if len(found) != size or not stream.eof:
        raise ValueError(f"the compressed data do not end after {size:,} unpacked bytes")
    return found


def _jpegxl(chunk: tuple[int, ...], dtype: np.dtype[Any], data: Any, size: int) -> Any:  # noqa: ARG001
    """Decode a chunk of JPEG XL. The array of its values is made first, so that no other size is decoded."""
    try:
        import imagecodecs
    except ImportError:
        fix = "Install it with: pip install imagecodecs"
        raise MissingExtra("chunks of JPEG XL require imagecodecs", fix=fix) from None
    shape = chunk if len(chunk) < 4 or chunk[0] != 1 else chunk[1:]
    out = np.empty(shape, dtype.newbyteorder("="))
    try:
        return imagecodecs.jpegxl_decode(bytes(data), out=out).reshape(chunk)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"the JPEG XL data are corrupt ({error})") from None


def _zip_places(store: Store, path: str) -> dict[str, Place]:
    """Return the members of a zip by name, of two with one name the last, as other readers do. Raises `DataError`."""
    entry = store.stat(path)
    index = kept_index(store, entry, _READER, lambda: _directory(store, path, entry.size))
    table = index.arrays["places"].tolist()
    return {name: Place(path, *row) for name, row in zip(index.facts["names"], table, strict=True)}


def _directory(store: Store, path: str, size: int) -> Index:
    where = store.locate(path)
    try:
        with (
            io.BufferedReader(Window(store, path, 0, size), 1 << 16) as stream,
            zipfile.ZipFile(stream) as archive,
        ):
            infos, end = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, EOFError) as error:
        begin = store.read(path, 0, min(size, HEAD))
        what = f"the zip cannot be read: {error}"
        raise unreadable(begin, "zip", what=what, kind="bad-data", file=where) from None
    offsets = np.asarray(sorted({*(info.header_offset for info in infos), end}), np.int64)
    places: dict[str, list[int]] = {}
    for info in infos:
        if info.is_dir():
            continue
        if info.flag_bits & _ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            what = "it is encrypted, or compressed in another way than deflate"
            raise DataError(what, file=where, record=info.filename, kind="unsupported", fix="Write the zip again.")
        behind = int(np.searchsorted(offsets, info.header_offset, side="right"))
        after = int(offsets[behind]) if behind < len(offsets) else 0  # it begins behind the last place
        least = info.header_offset + _LOCAL + len(info.filename.encode()) + info.compress_size
        if least > after or after > size:
            raise corrupt(where, info.header_offset, f"the member {info.filename!r} lies outside its place")
        # Beyond its bytes only a short header may lie, of which the length is in the file, not in the directory.
        stop = min(after, least + 1024)
        places[info.filename] = [
            info.header_offset, stop - info.header_offset, info.CRC, info.compress_type, info.file_size,
        ]  # fmt: skip
    table = np.asarray(list(places.values()), np.int64).reshape(-1, 5)
    return Index({"names": list(places)}, {"places": table})


class ZarrDataset(RecorderDataset):
    """The steps of a replay buffer."""

    format: ClassVar[str] = "zarr"
    _members: Mapping[str, Place]

    def reads(self, path: str) -> bool:
        return any(place.path == path for place in self._members.values()) or path.endswith(
            (".zgroup", ".zattrs", ".zmetadata", ".zarray", "zarr.json")
        )

    def describe(self) -> dict[str, Any]:
        """Return plain facts for `info`."""
        sizes = {place.path: place.size for place in self._members.values() if place.method < 0}
        found = super().describe()
        return {**found, "bytes": sum(sizes.values()), "shards": len(sizes)} if sizes else found


def open_found(wanted: OpenRequest) -> ZarrDataset:
    """Open a folder, or a zip. Raises `DataError`, `NotFound`."""
    store = wanted.store
    if wanted.name:
        places = _zip_places(store, wanted.name)
        files, where = [wanted.name], store.locate(wanted.name)
        top = re.compile(r"^[^/]+\.zarr/")  # a zip of the folder itself
        if ENDS + _V2 not in places and ENDS + _V3 not in places:
            places = {top.sub("", name): place for name, place in places.items()}
    else:
        listed = store.files(hidden=True)
        places = {entry.path: Place(entry.path, 0, entry.size) for entry in listed}
        files, where = [ENDS + (_V2 if ENDS + _V2 in places else _V3)], store.url
    if ENDS + _V2 not in places and ENDS + _V3 not in places:
        raise DataError(
            f"there is no array {ENDS!r}, which says where episodes end",
            file=where,
            kind="no-samples",
            fix="Check the path: other Zarr files than replay buffers are not read.",
        )
    recording = ZarrRecording(store, places, where)
    dataset = ZarrDataset(store, files, [recording], name=wanted.url, base=store.url if wanted.name else None)
    dataset._members = places
    return dataset
