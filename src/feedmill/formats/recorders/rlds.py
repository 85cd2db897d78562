"""Read RLDS datasets: episodes in TFRecord files, as TensorFlow Datasets writes them. TensorFlow is not needed.

Layout::

    features.json                                     types and shapes; optional
    NAME-SPLIT.tfrecord-00000-of-00064, or x.tfrecord
    a record      length u64, masked CRC-32C of it, an episode, masked CRC-32C of the episode
    an episode    tf.train.Example: steps/NAME -> the values of all steps, as bytes, floats or varints;
                  or tf.train.SequenceExample: NAME -> the values of each step

Each file is read once: checksums are compared, and where the values of every step lie is kept in the cache folder
(protocol buffers, "Encoding", for the wire format). Then a step costs its own bytes: images, texts and floats are read
by ranges, and lists of integers once for each episode, as varints have no places of their own. These ranges are not
compared with the checksums again; `feedmill check` does that.

Integers and truth values have the types of ``features.json``, else int64. Without it, a list of as many numbers as
there are steps has one for each. Encoded images are decoded on access. What belongs to the episode as a whole is named
and not read.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError, FeedmillError
from feedmill.formats.format import OpenRequest
from feedmill.formats.kept import Index, kept_index
from feedmill.formats.objects import read_object
from feedmill.formats.offsets import hash_words
from feedmill.formats.recorders.dataset import (
    CACHE_BYTES,
    RecorderDataset,
    Recording,
    different,
    left_out,
    open_recordings,
)
from feedmill.formats.recorders.tracks import (
    BYTES,
    IMAGE,
    TEXT,
    ArrayTrack,
    BlobTrack,
    Chunks,
    Column,
    Track,
    as_text,
    corrupt,
    is_image,
)
from feedmill.formats.rows import BlockCache
from feedmill.kernels.hashing.crc32c import crc32c
from feedmill.storage import Store
from feedmill.storage.reasons import HEAD, copy_again, unreadable
from feedmill.storage.window import Window

FEATURES = "features.json"
_READER = "rlds 1"
_STEPS = "steps/"
_BLOBS, _FLOATS, _VARINTS = 1, 2, 3
_KINDS = ("", BYTES, "float32", "int64")
_BUFFER = 4 << 20
_ONE_EACH = ("is_first", "is_last", "is_terminal", "reward", "discount")
_NAME = re.compile(r"(?:^|/)[^/]*?-(?P<split>[^-/]+)\.tfrecord-\d+-of-\d+$")
_INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

Sizes = npt.NDArray[np.int64]


class RldsFile(Recording):
    """One file.

    Args:
        features: column -> (dtype, shape) of ``features.json``; empty without.
        cache: cache of lists of integers, which the files of a dataset share.
    """

    def __init__(
        self, store: Store, path: str, features: Mapping[str, tuple[str, tuple[int, ...]]], cache: BlockCache
    ) -> None:
        self._store, self._path, self._cache = store, path, cache
        entry = store.stat(path)
        index = kept_index(store, entry, _READER, lambda: _find(store, path, entry.size))
        facts = index.facts
        self._lists, self._sizes = index.arrays["lists"], index.arrays["sizes"]
        self.lengths = index.arrays["lengths"]
        self.names = [str(number) for number in range(len(self.lengths))]
        self._names: list[str] = facts["columns"]
        self._kinds: list[int] = facts["kinds"]
        self._bounds = np.concatenate(([0], np.cumsum(self._lists[:, :, 3].ravel())))
        self.columns = {}
        for place, name in enumerate(self._names):
            self.columns[name] = self._column(place, name, features.get(name), facts)
        self.remarks = [left_out(facts["whole"], "it belongs to the episode as a whole")] if facts["whole"] else []
        split = _NAME.search(path)
        if split is not None:
            self.splits = {split["split"]: range(len(self.lengths))}
        self.digest = hash_words([str(facts), str(len(self.lengths)), *map(str, self._lists[:1].ravel().tolist())])

    def _column(
        self, place: int, name: str, known: tuple[str, tuple[int, ...]] | None, facts: Mapping[str, Any]
    ) -> Column:
        """Return what a column is. Raises `DataError` if episodes differ, or if it is not as described."""
        kind = self._kinds[place]
        if kind == _BLOBS:
            text = name in facts["texts"] if known is None else known[0] == TEXT
            return Column(IMAGE if name in facts["images"] else TEXT if text else BYTES)
        counts, steps = self._lists[:, place, 2], np.maximum(self.lengths, 1)
        each = counts // steps
        filled = self.lengths > 0
        if (counts % steps)[filled].any() or len(set(each[filled].tolist())) > 1:
            number = int(np.flatnonzero(filled & ((counts % steps != 0) | (each != each[filled][0])))[0])
            raise DataError(
                f"{name!r} has {int(counts[number]):,} numbers for {int(self.lengths[number]):,} steps",
                file=self._store.locate(self._path),
                record=f"episode {number}",
                kind="other-columns",
                fix="Write the dataset again.",
            )
        width = int(each[filled][0]) if filled.any() else 1
        dtype, shape = known or (_KINDS[kind], () if width == 1 else (width,))
        if kind == _FLOATS:
            dtype = "float32"
        elif dtype not in _INTEGERS:
            dtype = "int64"
        if int(np.prod(shape, dtype=np.int64)) != width:
            raise DataError(
                f"{name!r} has {width:,} numbers a step, and the shape {list(shape)} in {FEATURES}",
                file=self._store.locate(self._path),
                kind="other-columns",
                fix=copy_again("the dataset"),
            )
        return Column(dtype, tuple(shape))

    def track(self, episode: int, column: str) -> tuple[Track, int]:
        place = self._names.index(column)
        begin, size, _, _ = self._lists[episode, place].tolist()
        found, steps, kind = self.columns[column], int(self.lengths[episode]), self._kinds[place]
        if kind == _BLOBS:
            flat = episode * len(self._names) + place
            sizes = self._sizes[self._bounds[flat] : self._bounds[flat + 1]].reshape(2, -1)
            file = np.zeros(steps, np.int64)
            make = as_text if found.kind == TEXT else bytes
            return BlobTrack(column, [self._path], file, begin + sizes[0], sizes[1], make, self._fail), 0
        shape = (steps, *found.shape)
        chunks = Chunks(*(np.asarray([number], np.int64) for number in (0, begin, size, 0)))
        decode = None if kind == _FLOATS else partial(_integers, shape, found.kind)
        dtype = np.dtype("<f4") if kind == _FLOATS else np.dtype(found.kind)
        key = (self._path, column, episode)
        facts = dtype, shape, shape, chunks, decode, 0, self._cache, key, self._fail
        return ArrayTrack(column, [self._path], *facts), 0

    def _fail(self, file: int, offset: int, what: str) -> DataError:  # noqa: ARG002 - there is one file
        return corrupt(self._store.locate(self._path), offset, what)

    def verify(self) -> Iterator[FeedmillError]:
        """Compare the checksums of all records."""
        try:
            for _ in records(self._store, self._path, self._store.stat(self._path).size):
                pass
        except FeedmillError as error:
            yield error


def records(store: Store, path: str, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield offset and content of the records of a TFRecord file. Raises `DataError`."""
    where, at, number = store.locate(path), 0, 0
    with io.BufferedReader(Window(store, path, 0, size), _BUFFER) as stream:
        while at < size:
            head = stream.read(12)
            length = int.from_bytes(head[:8], "little")
            if len(head) < 12 or not _matches(head[:8], head[8:]):
                begin = store.read(path, 0, min(size, HEAD))
                what = f"the record {number} is not a record of TFRecord: its length differs from its checksum"
                facts: dict[str, Any] = {"file": where, "kind": "bad-data"}
                raise (unreadable(begin, "TFRecord", what=what, **facts) if not at else corrupt(where, at, what))
            if at + 16 + length > size:
                raise DataError(
                    f"the file is truncated: the record {number} ends at {at + 16 + length:,}, of {size:,} bytes",
                    file=where,
                    offset=at,
                    kind="truncated",
                    fix=copy_again(),
                )
            data, tail = stream.read(length), stream.read(4)
            if not _matches(data, tail):
                raise corrupt(where, at, f"the checksum (CRC-32C) of the record {number} differs from its content")
            yield at + 12, data
            at, number = at + 16 + length, number + 1


def _matches(data: bytes, stored: bytes) -> bool:
    """Return whether the masked checksum of bytes is the stored one."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF == int.from_bytes(stored, "little")


def _find(store: Store, path: str, size: int) -> Index:
    """Return the index of a file. Raises `DataError`."""
    where = store.locate(path)
    if not size:
        raise unreadable(b"", what="", kind="bad-data", file=where)
    columns: list[str] | None = None
    kinds: list[int] = []
    images: list[str] = []
    texts: list[str] = []
    whole: dict[str, None] = {}
    lists: list[list[list[int]]] = []
    sizes: list[Sizes] = []
    lengths: list[int] = []
    for number, (offset, data) in enumerate(records(store, path, size)):
        try:
            found, others = _episode(data)
        except (ValueError, IndexError, struct.error) as error:
            raise corrupt(where, offset, f"the episode {number} cannot be read: {error}") from None
        whole |= dict.fromkeys(others)
        steps = _count(found)
        if steps is None:
            raise DataError(
                f"the record {number} has no steps: expected features such as 'steps/action', found"
                f" {', '.join(map(repr, others[:4])) or 'none'}",
                file=where,
                kind="no-samples",
                fix="Only RLDS datasets are read, whose records are episodes.",
            )
        if columns is None:
            columns = sorted(found)
            kinds = [found[name].kind for name in columns]
            for name in columns:
                one = found[name]
                first = data[one.begins[0] : one.begins[0] + one.sizes[0]] if one.begins else b""
                if one.kind == _BLOBS and is_image(first[:16]):
                    images.append(name)
                elif one.kind == _BLOBS and _is_text(first):
                    texts.append(name)
        if sorted(found) != columns or [found[name].kind for name in columns] != kinds:
            expected = {name: Column(_KINDS[kind]) for name, kind in zip(columns, kinds, strict=True)}
            have = {name: Column(_KINDS[one.kind]) for name, one in found.items()}
            differs = different(where, have, "episode 0", expected)
            differs.record = f"episode {number}"
            raise differs
        rows = []
        for name in columns:
            one = found[name]
            if one.kind == _BLOBS and one.count != steps:
                what = f"{name!r} has {one.count:,} values for {steps:,} steps"
                raise DataError(
                    what, file=where, record=f"episode {number}", kind="other-columns", fix="Write the dataset again."
                )
            rows.append([offset + one.begin, one.size, one.count, 2 * one.count if one.kind == _BLOBS else 0])
            if one.kind == _BLOBS:
                sizes.append(np.asarray([np.asarray(one.begins, np.int64) - one.begin, one.sizes], np.int64).ravel())
        lists.append(rows)
        lengths.append(steps)
    shape = (len(lists), len(columns or ()), 4)
    arrays = {
        "lists": np.asarray(lists, np.int64).reshape(shape),
        "sizes": np.concatenate([np.zeros(0, np.int64), *sizes]),
        "lengths": np.asarray(lengths, np.int64),
    }
    return Index(
        {"columns": columns or [], "kinds": kinds, "images": images, "texts": texts, "whole": list(whole)}, arrays
    )


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class _List:
    """The values of a feature: kind, begin and size in the record, their number, and for bytes each begin and size."""

    __slots__ = ("begin", "begins", "count", "kind", "size", "sizes")

    def __init__(self, kind: int, begin: int, size: int, count: int) -> None:
        self.kind, self.begin, self.size, self.count = kind, begin, size, count
        self.begins: list[int] = []
        self.sizes: list[int] = []


def _count(found: Mapping[str, _List]) -> int | None:
    """Return the number of steps of an episode; None if nothing says it."""
    for name in _ONE_EACH:
        if name in found:
            return found[name].count
    blobs = [one.count for one in found.values() if one.kind == _BLOBS]
    if blobs:
        return blobs[0]
    counts = [one.count for one in found.values()]
    return int(np.gcd.reduce(counts)) if counts else None


def _episode(data: bytes) -> tuple[dict[str, _List], list[str]]:
    """Return the lists of the steps of an episode by column, and names of what belongs to it as a whole.

    Raises `ValueError`.
    """
    found: dict[str, _List] = {}
    others: list[str] = []
    fields = list(_fields(data, 0, len(data)))
    if any(number == 2 for number, *_ in fields):  # a SequenceExample
        for number, _, begin, end in fields:
            for _, _, low, high in _fields(data, begin, end):
                name, value = _entry(data, low, high)
                if number == 1:
                    others.append(name)
                elif value is not None:
                    found[name.removeprefix(_STEPS).replace("/", ".")] = _joined(data, *value)
        return found, others
    for _, _, begin, end in fields:
        for _, _, low, high in _fields(data, begin, end):
            name, value = _entry(data, low, high)
            if not name.startswith(_STEPS):
                others.append(name)
            elif value is not None:
                column = name.removeprefix(_STEPS).replace("/", ".")
                if column in found:
                    raise ValueError(f"two features are the column {column!r}")
                one = _list(data, *value)
                if one is not None:
                    found[column] = one
    return found, others


def _entry(data: bytes, begin: int, end: int) -> tuple[str, tuple[int, int] | None]:
    """Return key and place of the value of an entry of a map."""
    name, value = "", None
    for number, _, low, high in _fields(data, begin, end):
        if number == 1:
            name = data[low:high].decode()
        elif number == 2:
            value = low, high
    return name, value


def _list(data: bytes, begin: int, end: int) -> _List | None:
    """Return the list of a ``tf.train.Feature``; None if it is empty of any kind."""
    for kind, _, low, high in _fields(data, begin, end):
        if kind == _BLOBS:
            one = _List(kind, low, high - low, 0)
            for _, _, first, last in _fields(data, low, high):
                one.begins.append(first)
                one.sizes.append(last - first)
            one.count = len(one.begins)
            return one
        if kind in (_FLOATS, _VARINTS):
            parts = list(_fields(data, low, high))
            if len(parts) > 1 or (parts and parts[0][1] != 2):
                raise ValueError("numbers are not packed: write the dataset with TensorFlow 2")
            first, last = (parts[0][2], parts[0][3]) if parts else (low, low)
            if kind == _FLOATS:
                return _List(kind, first, last - first, (last - first) // 4)
            ends = np.frombuffer(data, np.uint8, last - first, first) < 0x80
            return _List(kind, first, last - first, int(ends.sum()))
    return None


def _joined(data: bytes, begin: int, end: int) -> _List:
    """Return the values of a ``tf.train.FeatureList``, one ``Feature`` for each step, as values of bytes.

    Raises `ValueError` for lists of numbers, which do not lie together.
    """
    found = _List(_BLOBS, begin, end - begin, 0)
    for _, _, low, high in _fields(data, begin, end):
        one = _list(data, low, high)
        if one is None or one.kind != _BLOBS or one.count != 1:
            raise ValueError("a step of a SequenceExample has numbers or several values: only single bytes are read")
        found.begins += one.begins
        found.sizes += one.sizes
    found.count = len(found.begins)
    return found


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, begin and end of the fields of a message. Raises `ValueError`."""
    while at < end:
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == 2:
            length, at = _varint(data, at, end)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        elif wire == 0:
            start = at
            _, at = _varint(data, at, end)
            yield number, wire, start, at
            continue
        else:
            raise ValueError(f"a field has the wire type {wire}")
        if length > end - at:
            raise ValueError("a field ends after its message")
        yield number, wire, at, at + length
        at += length


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number does not end")


def _integers(shape: tuple[int, ...], kind: str, data: bytes, size: int, mask: int) -> Any:  # noqa: ARG001
    """Return packed varints as an array of a shape and type. Raises `ValueError`."""
    stored = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(stored < 0x80)
    if len(last) != int(np.prod(shape, dtype=np.int64)) or (len(stored) and stored[-1] >= 0x80):
        raise ValueError(f"expected {int(np.prod(shape, dtype=np.int64)):,} numbers, found {len(last):,}")
    if not len(last):
        return np.zeros(shape, kind)
    first = np.concatenate(([0], last[:-1] + 1))
    place = np.arange(len(stored)) - np.repeat(first, last - first + 1)
    if place.max() > 9:
        raise ValueError("a number has more than 64 bits")
    values = np.add.reduceat((stored & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64), first)
    return values.view(np.int64).astype(kind).reshape(shape)


def read_features(store: Store, path: str = FEATURES) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return column -> (dtype, shape) of the steps; empty without the file. Raises `DataError`."""
    if not store.exists(path):
        return {}
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    content = read_object(store, path, kind="bad-index", fix=copy_again())
    try:
        steps = content["featuresDict"]["features"]["steps"]
        _add_features(found, "", _inner(steps))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise DataError(
            f"it does not describe steps ({type(error).__name__}: {error})",
            file=store.locate(path),
            kind="bad-index",
            fix=copy_again(),
        ) from None
    return found


def _inner(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the feature of the items of a sequence or dataset."""
    for key in ("sequence", "dataset"):
        if key in node:
            found: Mapping[str, Any] = node[key]["feature"]
            return found
    raise KeyError("sequence")


def _add_features(found: dict[str, tuple[str, tuple[int, ...]]], name: str, node: Mapping[str, Any]) -> None:
    if "featuresDict" in node:
        for key, item in node["featuresDict"]["features"].items():
            _add_features(found, f"{name}.{key}".lstrip("."), item)
    elif "text" in node:
        found[name] = TEXT, ()
    elif "tensor" in node:
        dimensions = (node["tensor"].get("shape") or {}).get("dimensions") or ()
        dtype = str(node["tensor"]["dtype"])
        shape = tuple(int(size) for size in dimensions)
        if all(size >= 0 for size in shape):
            found[name] = (TEXT if dtype in ("string", "object") else dtype), shape


class RldsDataset(RecorderDataset):
    """The steps of RLDS files."""

    format: ClassVar[str] = "rlds"

    def reads(self, path: str) -> bool:
        return super().reads(path) or path in (FEATURES, "dataset_info.json")


def is_folder(store: Store) -> str | None:
    """Return a mark if a folder has TFRecord files."""
    return "" if next(_files(store), None) is not None else None


def _files(store: Store) -> Iterator[str]:
    return (entry.path for entry in store.files() if ".tfrecord" in entry.path.rpartition("/")[2])


def open_found(wanted: OpenRequest) -> RldsDataset:
    """Open a file, several files, or all files of a folder. Raises `DataError`, `NotFound`."""
    store = wanted.store
    names = [wanted.name] if wanted.name else list(wanted.names)
    files = names or sorted(_files(store))
    features = read_features(store)
    cache = BlockCache(CACHE_BYTES)
    recordings = open_recordings(store, files, lambda path: RldsFile(store, path, features, cache))
    return RldsDataset(store, files, recordings, name=wanted.url, base=store.url if names else None, split=wanted.split)
