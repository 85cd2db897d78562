"""Read HDF5 recordings: robomimic's, ALOHA's, and other files with arrays of time steps.

Layouts::

    robomimic   data/demo_0/{actions, obs/NAME, ...}, more episodes beside it; mask/SPLIT: names of episodes;
                env_args of `data`: JSON, env_kwargs.control_freq is the rate; problem_info: language_instruction
    ALOHA       action, observations/{qpos, images/NAME, ...}: the file is one episode

If the group ``data`` has groups, these are the episodes, in the order of their numbers; otherwise the file is one. An
episode has as many steps as its ``actions`` or ``action``, or as most of its arrays have rows. Other arrays are named
and not read.

The chunk lists are made once, with h5py (the extra ``hdf5``), and kept in the cache folder. Then ranges of the file
are read directly: arrays that are contiguous or in chunks, with the filters deflate, shuffle and Fletcher-32 (which is
compared), values of variable length (``vlen``) of bytes or text, and rows of JPEG files padded with zeros. h5py reads
what has other filters or lies in the header of an object; `describe` names it.

Never followed: links to other files, soft links, virtual arrays and arrays in external files. Types of several
fields, references and complex numbers are not read.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import orjson

from feedmill.errors import DataError, FeedmillError, MissingExtra
from feedmill.formats.format import OpenRequest
from feedmill.formats.kept import Index, kept_index
from feedmill.formats.offsets import Int64s, hash_words
from feedmill.formats.recorders.dataset import (
    RecorderDataset,
    Recording,
    columns_of,
    left_out,
    open_recordings,
)
from feedmill.formats.recorders.tracks import (
    ABSENT,
    BYTES,
    IMAGE,
    TEXT,
    ArrayTrack,
    BlobTrack,
    Blocks,
    Chunks,
    Column,
    MadeTrack,
    Pieces,
    Track,
    as_text,
    corrupt,
    is_image,
    unpadded,
)
from feedmill.formats.rows import BlockCache
from feedmill.storage import Store
from feedmill.storage.codec import inflate
from feedmill.storage.reasons import HEAD, copy_again, unreadable
from feedmill.storage.window import Window

SUFFIXES = (".hdf5", ".h5")
_READER = "hdf5 1"
_DEFLATE, _SHUFFLE, _FLETCHER = 1, 2, 3
_KINDS = "biuf"
_DEEPEST = 32
_ACTIONS = ("actions", "action")
_TASKS = ("language_instruction", "task", "instruction")
_HEAP = b"GCOL"
_BUFFER, _MOST_BLOCKS = 64 << 10, 1024
_MOST_HEAP = 1 << 26
_GONE = np.zeros(0, np.int64)


def load_h5py() -> Any:
    """Return the h5py package. Raises `MissingExtra`."""
    try:
        import h5py
    except ImportError:
        raise MissingExtra("HDF5 files require h5py", "hdf5") from None
    return h5py


class Hdf5File(Recording):
    """One file.

    Args:
        cache: cache of decoded chunks, which the files of a dataset share.
    """

    def __init__(self, store: Store, path: str, cache: BlockCache) -> None:
        self._store, self._path, self._cache = store, path, cache
        entry = store.stat(path)
        self._size = entry.size
        index = kept_index(store, entry, _READER, lambda: _find(store, path, entry.size))
        facts, self._arrays = index
        self._episodes, self._tracks = facts["episodes"], facts["tracks"]
        self.names = [one["name"] for one in self._episodes]
        self.lengths = np.asarray([one["length"] for one in self._episodes], np.int64)
        self.columns = {name: Column(kind, tuple(shape)) for name, (kind, shape) in facts["columns"].items()}
        self.tasks = [one.get("task") for one in self._episodes]
        self.fps, self.remarks, self.splits = facts["fps"], facts["remarks"], facts["splits"]
        self.notes = facts["notes"]
        self.digest = hash_words([str(facts), *(str(len(one)) for one in self._arrays.values())])
        self._library = _Library(store, path, entry.size)
        self._made: dict[int, Track] = {}

    def track(self, episode: int, column: str) -> tuple[Track, int]:
        number = self._episodes[episode]["tracks"][column]
        found = self._made.get(number)
        if found is None:
            found = self._made[number] = self._make(number, column)
        return found, 0

    def _fail(self, file: int, offset: int, what: str) -> DataError:  # noqa: ARG002 - there is one file
        return corrupt(self._store.locate(self._path), offset, what)

    def _make(self, number: int, column: str) -> Track:
        facts = self._tracks[number]
        name, dtype = facts["name"], np.dtype(facts["dtype"]) if facts["dtype"] else None
        kind = self.columns[column].kind
        if facts["how"] == "library":
            made: Track = LibraryTrack(name, self._library)
        else:
            begin, stop = facts["places"]
            places = self._arrays["places"][begin:stop]
            file = np.zeros(len(places), np.int64)
            if facts["how"] == "blobs":
                make: Callable[[bytes], Any] = as_text if kind == TEXT else bytes
                if kind not in (TEXT, IMAGE, BYTES):
                    make = partial(_listed, dtype)
                return BlobTrack(name, [self._path], file, places[:, 0], places[:, 1], make, self._fail)
            assert dtype is not None
            chunks = Chunks(file, places[:, 0], places[:, 1], places[:, 2])
            decode = partial(_decode, facts["filters"], dtype.itemsize) if facts["filters"] else None
            fill = np.asarray(facts["fill"]).astype(dtype, casting="unsafe") if facts["fill"] is not None else 0
            shape = (facts["rows"], *facts["shape"])
            key = (self._path, number)
            made = ArrayTrack(
                name, [self._path], dtype, shape, facts["chunk"], chunks, decode, fill, self._cache, key, self._fail
            )
        if facts["padded"]:
            return MadeTrack(made, unpadded, self._fail)
        return MadeTrack(made, as_text, self._fail) if kind == TEXT else made


class _Library:
    """The file, opened by h5py where it is needed; again in every process."""

    def __init__(self, store: Store, path: str, size: int) -> None:
        self._store, self._path, self._size = store, path, size
        self._reset()

    def _reset(self) -> None:
        self._opened: tuple[int, Any] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_opened", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def read(self, name: str, rows: Int64s) -> list[Any]:
        """Return rows of an array. Raises `DataError`."""
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                opened = open_file(self._store, self._path, self._size)
                weakref.finalize(self, opened.close)  # before the interpreter that HDF5 calls for bytes is gone
                self._opened = os.getpid(), opened
            array = self._opened[1][name]
            try:
                return [array[row] for row in rows.tolist()]
            except (OSError, RuntimeError, ValueError) as error:
                what = f"{name!r} cannot be read: {error}"
                raise corrupt(self._store.locate(self._path), 0, what) from None


class LibraryTrack(Track):
    """An array that h5py reads."""

    def __init__(self, name: str, library: _Library) -> None:
        self.name, self.paths, self._library = name, (), library

    def pieces(self, rows: Int64s) -> Pieces:  # noqa: ARG002
        return Pieces(_GONE, _GONE, _GONE, _GONE, _GONE)

    def values(self, rows: Int64s, blocks: Blocks, read: Callable[[int, int, int], bytes]) -> list[Any]:  # noqa: ARG002
        return [_native(one) for one in self._library.read(self.name, rows)]


def _listed(dtype: Any, data: bytes) -> Any:
    """Return the bytes of numbers as an array of the machine's byte order. Raises `ValueError`."""
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))


def _native(value: Any) -> Any:
    if isinstance(value, np.number | np.bool_):
        return value.item()
    return value.astype(value.dtype.newbyteorder("="), copy=False) if isinstance(value, np.ndarray) else value


class _Blocks(Window):
    """A file whose blocks are read once: HDF5 reads its many headers in pieces of some bytes."""

    def __init__(self, store: Store, path: str, offset: int, length: int) -> None:
        super().__init__(store, path, offset, length)
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        number, at = divmod(self._at, _BUFFER)
        if self._at >= self.length:
            return 0
        if number not in self._blocks:
            begin = number * _BUFFER
            self._blocks[number] = self.store.read(self.path, begin, min(_BUFFER, self.length - begin))
            if len(self._blocks) > _MOST_BLOCKS:
                self._blocks.popitem(last=False)
        part = self._blocks[number][at : at + len(view)]
        view[: len(part)] = part
        self._at += len(part)
        if len(part) < len(view) and self._at < self.length:  # h5py takes a short read for the end of the file
            return len(part) + self.readinto(view[len(part) :])
        return len(part)


def open_file(store: Store, path: str, size: int) -> Any:
    """Open a file with h5py, which reads ranges of it. Raises `DataError`, `MissingExtra`."""
    h5py = load_h5py()
    try:
        if store.is_local:
            with store.local_copy(path) as local:
                return h5py.File(local, "r")  # which is the file itself
        return h5py.File(_Blocks(store, path, 0, size), "r")
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        begin = store.read(path, 0, min(size, HEAD))
        what = f"the file cannot be read: {_reason(error)}"
        raise unreadable(begin, "HDF5", what=what, kind="bad-data", file=store.locate(path)) from None


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _find(store: Store, path: str, size: int) -> Index:
    """Return the index of a file. Raises `DataError`, `MissingExtra`."""
    where = store.locate(path)
    with open_file(store, path, size) as file:
        try:
            return _Finder(store, path, size, file).index()
        except FeedmillError:
            raise
        except (OSError, RuntimeError, ValueError, KeyError, OverflowError) as error:
            raise corrupt(where, 0, f"the file cannot be read: {_reason(error)}") from None


class _Finder:
    """Makes the index of a file."""

    def __init__(self, store: Store, path: str, size: int, file: Any) -> None:
        self.store, self.path, self.size, self.file, self.h5py = store, path, size, file, load_h5py()
        self.where = store.locate(path)
        self.direct = file.userblock_size == 0  # libraries differ in where offsets count from
        self.tracks: list[dict[str, Any]] = []
        self.places: list[Int64s] = []
        self.placed = 0
        self.skipped: Counter[tuple[str, str]] = Counter()
        self.through: Counter[str] = Counter()

    def index(self) -> Index:
        data = self._group("data")
        groups = [] if data is None else [name for name in data if self._is_group(data, name)]
        episodes: list[dict[str, Any]] = []
        columns: dict[str, dict[str, Column]] = {}
        if groups:
            for name in sorted(groups, key=_natural):
                self._episode(name, data[name], f"data/{name}", episodes, columns)
            for name in self.file:
                if name not in ("data", "mask"):
                    self.skipped[name, "it lies beside the episodes"] += 1
        else:
            self._episode("/", self.file, "", episodes, columns)
        tables = [np.zeros((0, 3), np.int64), *self.places]
        facts = {
            "episodes": episodes,
            "tracks": self.tracks,
            "columns": {name: [*one] for name, one in columns_of(columns, self.where).items()},
            "fps": self._rate(data),
            "splits": self._splits([one["name"] for one in episodes]),
            "remarks": self._remarks(),
            "notes": [f"{one}: read through h5py, which takes longer" for one in self.through],
        }
        return Index(orjson.loads(orjson.dumps(facts)), {"places": np.concatenate(tables)})

    def _group(self, name: str) -> Any:
        return self.file[name] if self._is_group(self.file, name) else None

    def _is_group(self, parent: Any, name: str) -> bool:
        hard = isinstance(parent.get(name, getlink=True), self.h5py.HardLink)
        return hard and parent.get(name, getclass=True) is self.h5py.Group

    def _episode(
        self, name: str, group: Any, prefix: str, episodes: list[dict[str, Any]], columns: dict[str, dict[str, Column]]
    ) -> None:
        arrays = dict(self._arrays(group, "", {_address(self.h5py, group)}))
        length = _steps(arrays)
        if length is None:
            what = "there are no arrays of time steps" + (" in this episode" if prefix else "")
            raise DataError(what, file=self.where, record=name, kind="no-samples", fix="Check the path.")
        facts: dict[str, Any] = {"name": name, "length": length, "tracks": {}}
        declared = group.attrs.get("num_samples")
        if prefix and declared is not None and int(declared) != length:
            raise DataError(
                f"the episode has {length} steps, but its attribute num_samples is {int(declared)}",
                file=self.where,
                record=name,
                kind="wrong-count",
                fix="Record it again, or correct the attribute.",
            )
        task = next((text for key in _TASKS if (text := _text(group.attrs.get(key))) is not None), None)
        task = task if task is not None or not prefix else self._problem(self.file["data"])
        if task is not None:
            facts["task"] = task
        if length:
            found: dict[str, Column] = {}
            for path, array in arrays.items():
                if array.ndim == 0 or array.shape[0] != length:
                    self.skipped[path, "it has not a row for each step"] += 1
                    continue
                column = path.replace("/", ".")
                if column in found:
                    raise DataError(
                        f"two arrays would be the column {column!r}", file=self.where, record=name, kind="name-clash",
                        fix="Rename one of them.",
                    )  # fmt: skip
                track = self._track(f"{prefix}/{path}".lstrip("/"), path, array)
                if track is not None:
                    found[column] = track[1]
                    facts["tracks"][column] = track[0]
            columns[name] = found
        episodes.append(facts)

    def _arrays(self, group: Any, prefix: str, above: set[Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
        """Yield path and array of each array below a group."""
        if depth > _DEEPEST:
            raise corrupt(self.where, 0, f"groups are nested more than {_DEEPEST} levels deep: {prefix[:80]!r}")
        for name in group:
            link, path = group.get(name, getlink=True), f"{prefix}{name}"
            if not isinstance(link, self.h5py.HardLink):
                kind = "to another file" if isinstance(link, self.h5py.ExternalLink) else "(soft)"
                self.skipped[path, f"it is a link {kind}"] += 1
                continue
            found = group[name]
            if isinstance(found, self.h5py.Dataset):
                yield path, found
            elif isinstance(found, self.h5py.Group):
                address = _address(self.h5py, found)
                if address in above:
                    self.skipped[path, "it leads back to a group above"] += 1
                    continue
                yield from self._arrays(found, path + "/", above | {address}, depth + 1)

    def _track(self, name: str, path: str, array: Any) -> tuple[int, Column] | None:
        """Add the track of an array; return its number and its column. None if the array is not read."""
        plist, dtype, shape = array.id.get_create_plist(), array.dtype, array.shape[1:]
        if plist.get_layout() == self.h5py.h5d.VIRTUAL or plist.get_external_count():
            self.skipped[path, "its values lie in other files"] += 1
            return None
        vlen = self.h5py.check_vlen_dtype(dtype)
        text = self.h5py.check_string_dtype(dtype)
        facts: dict[str, Any] = {"name": name, "rows": array.shape[0], "shape": list(shape), "padded": False}
        if (text is not None and text.length is None) or vlen is not None:
            return self._blobs(path, array, facts, vlen)
        if text is not None:
            column, facts["dtype"] = Column(TEXT, shape), dtype.str
            if shape:
                self.skipped[path, "arrays of text"] += 1
                return None
        elif dtype.kind in _KINDS and dtype.names is None and dtype.subdtype is None:
            column, facts["dtype"] = Column(dtype.name, shape), dtype.str
        else:
            self.skipped[path, f"the type {str(dtype)[:60]}"] += 1
            return None
        if any(size == 0 for size in shape):
            self.skipped[path, "its steps have no values"] += 1
            return None
        if dtype == np.uint8 and len(shape) == 1 and is_image(bytes(array[0, : min(16, shape[0])])):
            facts["padded"], column = True, Column(IMAGE)
        filters = [plist.get_filter(number) for number in range(plist.get_nfilters())]
        known = all(one[0] in (_DEFLATE, _SHUFFLE, _FLETCHER) for one in filters)
        layout = plist.get_layout()
        if layout == self.h5py.h5d.COMPACT or not known or not self.direct:
            names = [one[3].decode("utf-8", "replace") for one in filters if one[0] > _FLETCHER]
            why = f"the filter {names[0]}" if names else "its values lie in a header" if self.direct else "a user block"
            self.through[f"{path} ({why})"] += 1
            facts["how"] = "library"
            return self._add(facts), column
        facts["how"], facts["filters"] = "ranges", [one[0] for one in filters]
        facts["fill"] = _plain(array.fillvalue) if dtype.kind in _KINDS else None
        if layout == self.h5py.h5d.CHUNKED:
            facts["chunk"] = list(array.chunks)
            places = self._chunks(array)
        else:
            facts["chunk"] = list(array.shape)
            at = array.id.get_offset()
            places = np.asarray([[ABSENT, 0, 0] if at is None else [at, array.nbytes, 0]], np.int64)
        self._check(name, places)
        facts["places"] = self._place(places)
        return self._add(facts), column

    def _chunks(self, array: Any) -> Int64s:
        """Return begin, size and filter mask of the chunks, int64[n, 3], in the order of the grid."""
        grid = [-(-size // step) for size, step in zip(array.shape, array.chunks, strict=True)]
        places = np.zeros((int(np.prod(grid)), 3), np.int64)
        places[:, 0] = ABSENT
        corners, found = [], []

        def add(info: Any) -> None:
            corners.append(info.chunk_offset)
            found.append((info.byte_offset, info.size, info.filter_mask))

        array.id.chunk_iter(add)
        if corners:
            at = np.asarray(corners, np.int64) // np.asarray(array.chunks, np.int64)
            inside = (at < np.asarray(grid)).all(axis=1)
            places[np.ravel_multi_index(tuple(at[inside].T), grid)] = np.asarray(found, np.int64)[inside]
        return places

    def _check(self, name: str, places: Int64s) -> None:
        """Raise `DataError` if a range lies outside the file."""
        there = places[places[:, 0] != ABSENT]
        outside = (there[:, 0] < 0) | (there[:, 1] < 0) | (there[:, 0] + there[:, 1] > self.size)
        if outside.any():
            begin, size = there[outside][0, :2].tolist()
            raise DataError(
                f"the file is truncated: {size:,} bytes of {name!r} begin at {begin:,}, it has {self.size:,}",
                file=self.where,
                offset=begin,
                kind="truncated",
                fix=copy_again(),
            )

    def _blobs(self, path: str, array: Any, facts: dict[str, Any], base: Any) -> tuple[int, Column] | None:
        """Add the track of values of variable length."""
        base = None if base in (str, bytes) else base
        if array.ndim != 1 or (base is not None and np.dtype(base).kind not in _KINDS):
            self.skipped[path, "values of variable length in several axes or of other types"] += 1
            return None
        column = Column(TEXT) if base is None else Column(f"list:{np.dtype(base).name}")
        if base is not None and np.dtype(base) == np.uint8:
            first = next((value for value in (array[at] for at in range(min(8, len(array)))) if len(value)), b"")
            column = Column(IMAGE if is_image(bytes(first[:16])) else BYTES)
        facts["dtype"] = "" if base is None else np.dtype(base).str
        places = self._references(array, 1 if base is None else np.dtype(base).itemsize) if self.direct else None
        if places is None:
            self.through[f"{path} (values of variable length)"] += 1
            facts["how"] = "library"
            if column.kind == IMAGE or column.kind == BYTES:
                facts["padded"] = True
        else:
            self._check(facts["name"], places)
            facts["how"], facts["places"] = "blobs", self._place(places)
        return self._add(facts), column

    def _references(self, array: Any, width: int) -> Int64s | None:
        """Return where the values of variable length lie, int64[n, 3] as for chunks; None if they cannot be found.

        A reference is the number of values (u32), the address of a global heap (u64), and a number in it (u32). A heap
        is ``GCOL``, its version, its size, and objects of number, count of uses, size and bytes, each 8-byte aligned.
        """
        plist = array.id.get_create_plist()
        filters = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
        if not set(filters) <= {_DEFLATE, _SHUFFLE, _FLETCHER}:
            return None
        count, kind = len(array), np.dtype([("size", "<u4"), ("heap", "<u8"), ("at", "<u4")])
        if plist.get_layout() == self.h5py.h5d.CHUNKED:
            step, places = array.chunks[0], self._chunks(array)
        elif plist.get_layout() == self.h5py.h5d.CONTIGUOUS and array.id.get_offset() is not None:
            step, places = count, np.asarray([[array.id.get_offset(), count * kind.itemsize, 0]], np.int64)
        else:
            return None
        self._check(array.name, places)
        rows = np.zeros((len(places), step), kind)
        there = np.flatnonzero(places[:, 0] != ABSENT)
        blocks = self.store.read_ranges(self.path, places[there, 0].tolist(), places[there, 1].tolist())
        for number, block, mask in zip(there.tolist(), blocks, places[there, 2].tolist(), strict=True):
            size = step * kind.itemsize
            data = _decode(filters, kind.itemsize, block, size, mask) if filters else block
            rows[number] = np.frombuffer(data, kind, step)
        flat = rows.reshape(-1)[:count]
        heaps = np.unique(flat["heap"][flat["size"] > 0]).astype(np.int64)
        objects = self._objects(heaps)
        out = np.zeros((count, 3), np.int64)
        for row, (size, heap, at) in enumerate(flat.tolist()):
            if size:
                begin, length = objects.get((heap, at), (ABSENT, 0))
                if begin == ABSENT or size * width > length:
                    raise corrupt(self.where, heap, f"a value of {array.name!r} is not in its heap")
                out[row, :2] = begin, size * width
        return out

    def _objects(self, heaps: Int64s) -> dict[tuple[int, int], tuple[int, int]]:
        """Return (address of a heap, number) -> offset and size of the object."""
        out: dict[tuple[int, int], tuple[int, int]] = {}
        if len(heaps) and (int(heaps.max()) + 32 > self.size or int(heaps.min()) < 0):
            raise corrupt(self.where, int(heaps.max()), "a heap lies outside the file")
        heads = self.store.read_ranges(self.path, heaps.tolist(), [32] * len(heaps))
        whole = []
        for heap, head in zip(heaps.tolist(), heads, strict=True):
            size = int.from_bytes(head[8:16], "little")
            if head[:4] != _HEAP or head[4] != 1 or not 32 <= size <= self.size - heap:
                raise corrupt(self.where, heap, "this is not a heap of values")
            number, length = int.from_bytes(head[16:18], "little"), int.from_bytes(head[24:32], "little")
            if number and length <= size - 32:
                out[heap, number] = heap + 32, length
            behind = 32 + (length + 7) // 8 * 8
            if number and behind + 16 < size:
                whole.append((heap, min(size, _MOST_HEAP)))
        blocks = self.store.read_ranges(self.path, [heap for heap, _ in whole], [size for _, size in whole])
        for (heap, _), block in zip(whole, blocks, strict=True):
            at = 16
            while at + 16 <= len(block):
                number, length = (
                    int.from_bytes(block[at : at + 2], "little"),
                    int.from_bytes(block[at + 8 : at + 16], "little"),
                )
                if not number or length > len(block) - at - 16:
                    break
                out[heap, number] = heap + at + 16, length
                at += 16 + (length + 7) // 8 * 8
        return out

    def _place(self, places: Int64s) -> list[int]:
        self.places.append(places)
        self.placed += len(places)
        return [self.placed - len(places), self.placed]

    def _add(self, facts: dict[str, Any]) -> int:
        self.tracks.append(facts)
        return len(self.tracks) - 1

    def _rate(self, data: Any) -> float | None:
        """Return the rate of robomimic's environment, or of an attribute ``fps``."""
        owners = [self.file, *([] if data is None else [data])]
        for owner in owners:
            for key in ("fps", "control_freq"):
                value = owner.attrs.get(key)
                if isinstance(value, int | float | np.number) and 0 < float(value) < 1e6:
                    return float(value)
        found = _json(owners[-1].attrs.get("env_args")).get("env_kwargs")
        rate = found.get("control_freq") if isinstance(found, dict) else None
        return float(rate) if isinstance(rate, int | float) and 0 < rate < 1e6 else None

    def _problem(self, data: Any) -> str | None:
        found = _json(data.attrs.get("problem_info")).get("language_instruction")
        found = found[0] if isinstance(found, list) and found else found
        return found if isinstance(found, str) else None

    def _splits(self, episodes: Sequence[str]) -> dict[str, list[int]]:
        """Return the lists of episodes in the group ``mask``."""
        group, numbers, out = self._group("mask"), {name: n for n, name in enumerate(episodes)}, {}
        for name in group or ():
            array = group[name] if isinstance(group.get(name, getlink=True), self.h5py.HardLink) else None
            if not isinstance(array, self.h5py.Dataset) or array.ndim != 1:
                continue
            listed = [
                value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in array[:]
            ]
            missing = next((one for one in listed if one not in numbers), None)
            if missing is not None:
                raise DataError(
                    f"the split {name!r} lists the episode {missing!r}, which does not exist",
                    file=self.where,
                    record=f"mask/{name}",
                    kind="bad-index",
                    fix=copy_again("the file", "correct the list"),
                )
            out[name] = sorted({numbers[one] for one in listed})
        return out

    def _remarks(self) -> list[str]:
        reasons: dict[str, list[str]] = {}
        for path, why in self.skipped:
            reasons.setdefault(why, []).append(path)
        return [left_out(paths, why) for why, paths in reasons.items()]


def _address(h5py: Any, group: Any) -> Any:
    info = h5py.h5o.get_info(group.id)
    return info.fileno, info.addr


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _steps(arrays: Mapping[str, Any]) -> int | None:
    """Return the number of steps of an episode; None if it has no arrays."""
    counts = Counter(array.shape[0] for array in arrays.values() if array.ndim)
    for name in _ACTIONS:
        if name in arrays and arrays[name].ndim:
            return int(arrays[name].shape[0])
    return int(max(counts, key=lambda size: (counts[size], size))) if counts else None


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, str) else None


def _json(value: Any) -> dict[str, Any]:
    text = _text(value)
    try:
        found = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _plain(value: Any) -> Any:
    found = np.asarray(value)
    number = found.item() if found.ndim == 0 else 0
    finite = isinstance(number, int) or (isinstance(number, float) and np.isfinite(number))
    return number if finite else str(number)  # also for numbers of 128 bits, which JSON does not know


def _decode(filters: Sequence[int], width: int, data: bytes, size: int, mask: int) -> Any:
    """Undo the filters of a chunk. Raises `ValueError`."""
    found: Any = memoryview(data)
    for place in reversed(range(len(filters))):
        if mask >> place & 1:
            continue
        if filters[place] == _FLETCHER:
            if len(found) < 4 or not _same_sum(found[:-4], int.from_bytes(found[-4:], "little")):
                raise ValueError("its checksum (Fletcher-32) differs from its content")
            found = found[:-4]
        elif filters[place] == _DEFLATE:
            inner = size + (4 if _FLETCHER in filters[:place] and not mask >> filters.index(_FLETCHER) & 1 else 0)
            found = memoryview(inflate(found, inner))
        elif width > 1 and len(found):
            whole = len(found) // width * width
            numbers = np.frombuffer(found[:whole], np.uint8).reshape(width, -1)
            out = np.empty(len(found), np.uint8)
            rows = out[:whole].reshape(-1, width)
            for byte in range(width):
                rows[:, byte] = numbers[byte]
            out[whole:] = np.frombuffer(found[whole:], np.uint8)
            found = out.data
    if len(found) != size:
        raise ValueError(f"expected {size:,} bytes, found {len(found):,}")
    return found


def _same_sum(data: memoryview, expected: int) -> bool:
    """Return whether the Fletcher-32 checksum of bytes is the expected one, or that with its bytes swapped in pairs,
    which early versions of HDF5 wrote."""
    words = np.frombuffer(data[: len(data) // 2 * 2], ">u2").astype(np.int64)
    if len(data) % 2:
        words = np.append(words, data[-1] << 8)
    low = high = 0
    for first in range(0, len(words), 1 << 20):
        part = words[first : first + (1 << 20)]
        high = (high + low * len(part) + int((part * np.arange(len(part), 0, -1)).sum())) % 65535
        low = (low + int(part.sum())) % 65535
    swapped = (expected & 0xFF00FF) << 8 | (expected >> 8) & 0xFF00FF
    return any((one & 0xFFFF) % 65535 == low and (one >> 16) % 65535 == high for one in (expected, swapped))


class Hdf5Dataset(RecorderDataset):
    """The steps of HDF5 files."""

    format: ClassVar[str] = "hdf5"


def open_found(wanted: OpenRequest) -> Hdf5Dataset:
    """Open a file, several files, or all files of a folder. Raises `DataError`, `NotFound`, `MissingExtra`."""
    store = wanted.store
    names = [wanted.name] if wanted.name else list(wanted.names)
    files = names or sorted((entry.path for entry in store.files(suffixes=SUFFIXES)), key=_natural)
    from feedmill.formats.recorders.dataset import CACHE_BYTES

    load_h5py()  # raises on this thread if it is missing
    cache = BlockCache(CACHE_BYTES)
    recordings = open_recordings(store, files, lambda path: Hdf5File(store, path, cache))
    base = store.url if names else None
    return Hdf5Dataset(store, files, recordings, name=wanted.url, base=base, split=wanted.split)
