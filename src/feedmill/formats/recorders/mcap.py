"""Read MCAP recordings: a file is an episode, and its steps are the messages of one topic.

Layout (little-endian; records are an opcode u8, a length u64 and content)::

    magic, header, chunks with their message indices, data end, summary, footer, magic
    chunk           times, size and CRC-32 of its records, compression (none, lz4, zstd), the records
    message index   of a channel in the chunk before it: time and offset of each message
    summary         schemas, channels, and where each chunk and its message indices lie

Opening reads the footer, the summary and the message indices, in two or three requests; what they say is kept in the
cache folder. A step then costs the chunks that its messages are in; they are decompressed once and cached.

**Which steps.** The topic ``steps`` of `feedmill.open`; by default the first whose name ends in ``action`` or
``command`` (or with an s), else the topic of images with the most messages, else that with the most messages. Each
step has the last message of every other topic that was logged at or before its own. Steps before the first message of
any topic are left out, and so is a topic that begins after half of the steps; `remarks` say so. The rate is that of the
median time between two steps.

**Columns.** Topics are named with dots for slashes. Messages in JSON have a column for each value, ``TOPIC.FIELD``:
numbers and lists of numbers (float64, or int64 if the JSON schema says ``integer``), truth values and texts; the
``data`` of `foxglove.CompressedImage` is an image, ``TOPIC``. Messages in other encodings (ROS, protobuf, ...) are
bytes, as stored. ``log_time`` is that of the step, in nanoseconds.

Rejected: files without a summary or message indices, as an interrupted recording is.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import orjson

from feedmill.errors import ConfigError, DataError, did_you_mean
from feedmill.formats.columns import load_pyarrow
from feedmill.formats.format import OpenRequest
from feedmill.formats.kept import Index, kept_index
from feedmill.formats.offsets import Int64s, hash_words
from feedmill.formats.recorders.dataset import CACHE_BYTES, RecorderDataset, Recording, left_out, open_recordings
from feedmill.formats.recorders.tracks import BYTES, IMAGE, TEXT, Blocks, Column, Pieces, Track, corrupt
from feedmill.formats.rows import BlockCache
from feedmill.storage import Store
from feedmill.storage.codec import unzstd
from feedmill.storage.limits import max_unpacked, too_large
from feedmill.storage.reasons import HEAD, copy_again, unreadable

SUFFIX = ".mcap"
MAGIC = b"\x89MCAP0\r\n"
LOG_TIME = "log_time"
_READER = "mcap 2"
_FOOTER = 1 + 8 + 20 + 8
_FIRST = 256 << 10
"""Bytes of the end of a file that are read at once: the summary of an hour has fewer."""
_ACTIONS = ("action", "actions", "command", "commands")
_IMAGES = ("foxglove.CompressedImage", "sensor_msgs/CompressedImage", "sensor_msgs/msg/CompressedImage")
_COMPRESSIONS = ("", "lz4", "zstd")
_DEEPEST = 8
_MOST_SUMMARY = 1 << 28
_MESSAGE = 5
_HEAD = np.dtype([("kind", "u1"), ("length", "<u8"), ("channel", "<u2"), ("sequence", "<u4"), ("time", "<i8")])
"""How a message begins."""


class Message(NamedTuple):
    """A channel's description.

    Attributes:
        topic, encoding: of its messages.
        schema: name of its schema.
        described: content of the schema.
    """

    topic: str
    encoding: str
    schema: str
    described: bytes


class McapFile(Recording):
    """One file.

    Args:
        steps: topic whose messages are the steps; None for the default.
        cache: cache of decompressed chunks, which the files of a dataset share.
    """

    def __init__(self, store: Store, path: str, cache: BlockCache, steps: str | None = None) -> None:
        self._store, self._path, self._cache = store, path, cache
        entry = store.stat(path)
        self.index = kept_index(store, entry, _READER, lambda: _find(store, path, entry.size))
        facts, arrays = self.index
        self._chunks, self._topics = arrays["chunks"], facts["topics"]
        self._messages = arrays["messages"]
        topics: dict[str, dict[str, Any]] = {one["topic"]: one for one in facts["topics"]}
        where = store.locate(path)
        if steps is not None and steps not in topics:
            raise ConfigError(
                f"steps: there is no topic {steps!r}{did_you_mean(steps, list(topics))}",
                file=where,
                kind="bad-option",
                fix=f"Topics are: {', '.join(sorted(topics))}.",
            )
        self.topic = _default(topics) if steps is None else steps
        messages = {name: arrays["messages"][slice(*one["span"])] for name, one in topics.items()}
        times = messages[self.topic][:, 0]
        begins = {name: int(rows[0, 0]) for name, rows in messages.items()}
        middle = int(times[len(times) // 2])
        late = [name for name, begin in begins.items() if begin > middle and name != self.topic]
        kept = [name for name in topics if name not in late]
        first = int(np.searchsorted(times, max(begins[name] for name in kept)))
        times = times[first:]
        self.names, self.lengths = [path], np.asarray([len(times)], np.int64)
        self.columns = {LOG_TIME: Column("int64")}
        self._tracks: dict[str, Track] = {LOG_TIME: _Times(times)}
        remarks = [left_out(late, "the topic begins after half of the steps")] if late else []
        if first:
            remarks.append(f"{first:,} steps before the first message of every topic: left out")
        others: list[str] = []
        notes: list[str] = []
        for name in kept:
            rows = messages[name]
            at = rows[np.searchsorted(rows[:, 0], times, side="right") - 1]
            one = topics[name]
            if one["encoding"] != "json":
                notes.append(f"{name}: messages in the encoding {one['encoding']!r} are bytes, as stored")
            for column, (kind, shape, keys) in one["columns"].items():
                if column in self.columns:
                    what = f"two values would be the column {column!r}"
                    raise DataError(what, file=where, record=name, kind="name-clash", fix="Rename one of them.")
                self.columns[column] = Column(kind, tuple(shape))
                make = bytes if kind == BYTES else partial(_value, tuple(keys), kind, tuple(shape))
                self._tracks[column] = MessageTrack(name, self, at[:, 1], at[:, 2], make)
            others += one["skipped"]
        if others:
            remarks.append(left_out(others, "values of other types than numbers, lists of them, and texts"))
        self.remarks, self.notes = remarks, notes
        self.fps = _rate(times)
        self.digest = hash_words([self.topic, str(facts), str(len(self._chunks))])

    def track(self, episode: int, column: str) -> tuple[Track, int]:  # noqa: ARG002 - a file is one episode
        return self._tracks[column], 0

    @property
    def path(self) -> str:
        """Return the path of the file."""
        return self._path

    def place(self, chunk: int) -> tuple[int, int]:
        """Return the range of a chunk's record."""
        begin, size = self._chunks[chunk, :2].tolist()
        return begin, begin + size

    def has(self, chunk: int) -> bool:
        """Return whether the records of a chunk are cached."""
        return (self._path, chunk) in self._cache

    def records(self, chunk: int, read: Callable[[], bytes]) -> bytes:
        """Return the decompressed records of a chunk. Raises `DataError`."""

        def make() -> tuple[bytes, int]:
            begin = int(self._chunks[chunk, 0])
            try:
                found = _unpack(read(), int(self._chunks[chunk, 2]), self._store.locate(self._path))
                self._compare(chunk, found)
            except (ValueError, struct.error) as error:
                raise self.fail(begin, f"a chunk cannot be read: {error}") from None
            return found, len(found)

        found: bytes = self._cache.get((self._path, chunk), make)
        return found

    @cached_property
    def _by_chunk(self) -> tuple[Int64s, Int64s, Int64s]:
        """Rows of messages by chunk, where those of each chunk begin, and the number of each channel's topic."""
        order = np.argsort(self._messages[:, 1], kind="stable")
        bounds = np.searchsorted(self._messages[order, 1], np.arange(len(self._chunks) + 1))
        topics = np.full(1 << 16, -1)
        for number, one in enumerate(self._topics):
            topics[one["channels"]] = number
        return order, bounds, topics

    def _compare(self, chunk: int, records: bytes) -> None:
        """Raise `ValueError` if the index, which has no checksum, does not name the messages of a chunk."""
        order, bounds, topics = self._by_chunk
        rows = order[bounds[chunk] : bounds[chunk + 1]]
        times, _, places = self._messages[rows].T
        if len(rows) and not 0 <= places.min() <= places.max() <= len(records) - _HEAD.itemsize:
            raise ValueError("a message of the index lies outside of it")
        stored = np.frombuffer(records, np.uint8)
        heads = stored[places[:, None] + np.arange(_HEAD.itemsize)].view(_HEAD)[:, 0]
        owners = np.searchsorted([one["span"][1] for one in self._topics], rows, side="right")
        wrong = (heads["kind"] != _MESSAGE) | (heads["time"] != times) | (topics[heads["channel"]] != owners)
        if wrong.any():
            raise ValueError(f"{int(wrong.sum()):,} of its {len(rows):,} messages are not those of the index")

    def fail(self, offset: int, what: str) -> DataError:
        """Return the error for bytes that do not match the index."""
        return corrupt(self._store.locate(self._path), offset, what)


class _Times(Track):
    """The times of steps, which the index has."""

    def __init__(self, times: Int64s) -> None:
        self.name, self.paths, self._times = LOG_TIME, (), times

    def pieces(self, rows: Int64s) -> Pieces:  # noqa: ARG002
        return _NONE

    def values(self, rows: Int64s, blocks: Blocks, read: Callable[[int, int, int], bytes]) -> list[Any]:  # noqa: ARG002
        found: list[Any] = self._times[rows].tolist()
        return found


class MessageTrack(Track):
    """Messages of a topic, or a value of each.

    Args:
        chunk, offset: int64[steps], the chunk of each step's message, and where it begins in its records.
        make: makes the value from the bytes of a message. Raises `ValueError`.
    """

    def __init__(self, name: str, file: McapFile, chunk: Int64s, offset: Int64s, make: Callable[[bytes], Any]) -> None:
        self.name, self.paths, self._file = name, [file.path], file
        self._chunk, self._offset, self._make = chunk, offset, make

    def pieces(self, rows: Int64s) -> Pieces:
        chunks = self._chunk[rows]
        there = np.flatnonzero([not self._file.has(chunk) for chunk in chunks.tolist()])
        places = np.asarray([self._file.place(chunk) for chunk in chunks[there].tolist()], np.int64).reshape(-1, 2)
        return Pieces(there, chunks[there], np.zeros(len(there), np.int64), places[:, 0], places[:, 1])

    def values(self, rows: Int64s, blocks: Blocks, read: Callable[[int, int, int], bytes]) -> list[Any]:
        out = []
        for chunk, offset in zip(self._chunk[rows].tolist(), self._offset[rows].tolist(), strict=True):
            place = self._file.place(chunk)
            records = self._file.records(chunk, lambda c=chunk, p=place: blocks[c] if c in blocks else read(0, *p))  # type: ignore[misc]
            try:
                out.append(self._make(_message(records, offset)))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                what = f"a message of {self.name!r} cannot be read: {error}"
                raise self._file.fail(place[0], what) from None
        return out


_GONE = np.zeros(0, np.int64)
_NONE = Pieces(_GONE, _GONE, _GONE, _GONE, _GONE)


def _message(records: bytes, offset: int) -> bytes:
    """Return the content of the message that begins there. Raises `ValueError`."""
    if offset < 0 or offset + 31 > len(records) or records[offset] != 5:
        raise ValueError(f"no message begins at {offset:,} of the chunk")
    length = int.from_bytes(records[offset + 1 : offset + 9], "little")
    if length < 22 or offset + 9 + length > len(records):
        raise ValueError("it ends after the chunk")
    return records[offset + 31 : offset + 9 + length]


def _unpack(record: bytes, size: int, file: str) -> bytes:
    """Return the records of a chunk. Raises `ValueError`, and `DataError` if they are too large."""
    if len(record) < 49 or record[0] != 6:
        raise ValueError("there is no chunk")
    _, _, unpacked, crc = struct.unpack_from("<QQQI", record, 9)
    name, at = _text(record, 37)
    packed = memoryview(record)[at + 8 : at + 8 + int.from_bytes(record[at : at + 8], "little")]
    if unpacked != size:
        raise ValueError(f"its size is {unpacked:,}, and in the summary {size:,}")
    if size > (limit := max_unpacked(len(packed))):
        raise too_large(limit, file=file)
    if name == "zstd":
        found = unzstd(packed, size) if size else b""
    elif name == "lz4":
        try:
            found = load_pyarrow("chunks in LZ4").Codec("lz4").decompress(packed, size, asbytes=True)
        except OSError as error:
            raise ValueError(f"the LZ4 data are corrupt ({error})") from None
    else:
        found = bytes(packed)
    if len(found) != size or (crc and zlib.crc32(found) != crc):
        raise ValueError("its checksum (CRC-32) differs from its content")
    return found


def _find(store: Store, path: str, size: int) -> Index:
    """Return the index of a file. Raises `DataError`."""
    where = store.locate(path)
    if store.read(path, 0, min(size, len(MAGIC))) != MAGIC:
        begin = store.read(path, 0, min(size, HEAD))
        raise unreadable(begin, "MCAP", what="this is not an MCAP file", kind="bad-data", file=where)
    end = store.read(path, max(0, size - _FIRST), min(size, _FIRST))
    if len(end) < _FOOTER or end[-len(MAGIC) :] != MAGIC or end[-_FOOTER] != 2:
        raise DataError(
            "the file is truncated: it has no footer, as its recording did not end",
            file=where,
            kind="truncated",
            fix=copy_again(instead="restore its summary with 'mcap recover'"),
        )
    start, _, crc = struct.unpack_from("<QQI", end, len(end) - _FOOTER + 9)
    stop = size - _FOOTER
    if not start:
        raise _unindexed(where, "it has no summary")
    if not len(MAGIC) <= start <= stop or stop - start > _MOST_SUMMARY:
        raise corrupt(where, size - _FOOTER, f"the summary begins at {start:,}, of {size:,}")
    have = size - len(end)
    summary = end[start - have : stop - have] if start >= have else store.read(path, start, stop - start)
    checked = summary + end[len(end) - _FOOTER : len(end) - len(MAGIC) - 4]
    if crc and zlib.crc32(checked) != crc:
        raise corrupt(where, start, "the checksum (CRC-32) of the summary differs from its content")
    try:
        return _indexed(store, path, size, summary)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise corrupt(where, start, f"the summary cannot be read: {error}") from None


def _unindexed(where: str, what: str) -> DataError:
    return DataError(
        f"the file cannot be read by ranges: {what}",
        file=where,
        kind="unsupported",
        fix="Write it again with chunks and their indices: 'mcap recover' does.",
    )


def _indexed(store: Store, path: str, size: int, summary: bytes) -> Index:
    where = store.locate(path)
    schemas: dict[int, tuple[str, bytes]] = {}
    channels: dict[int, Message] = {}
    chunks: list[tuple[int, int, int, int]] = []
    counted: int | None = None
    for opcode, data in _records(summary):
        if opcode == 3:
            number = int.from_bytes(data[:2], "little")
            name, at = _text(data, 2)
            _, at = _text(data, at)
            schemas[number] = name, data[at + 4 :]
        elif opcode == 4:
            number, schema = struct.unpack_from("<HH", data)
            topic, at = _text(data, 4)
            encoding, _ = _text(data, at)
            channels[number] = Message(topic, encoding, *schemas.get(schema, ("", b"")))
        elif opcode == 8:
            _, _, begin, length = struct.unpack_from("<QQQQ", data)
            at = 36 + int.from_bytes(data[32:36], "little")
            indices = int.from_bytes(data[at : at + 8], "little")
            compression, at = _text(data, at + 8)
            _, unpacked = struct.unpack_from("<QQ", data, at)
            if compression not in _COMPRESSIONS:
                raise DataError(
                    f"chunks are compressed with {compression!r}", file=where, kind="unsupported",
                    fix="Write them with zstd or lz4.",
                )  # fmt: skip
            if begin + length + indices > size:
                raise corrupt(where, begin, f"a chunk ends at {begin + length + indices:,}, of {size:,}")
            chunks.append((begin, length, unpacked, indices))
        elif opcode == 11:
            counted = int.from_bytes(data[:8], "little")
    if not chunks:
        raise _unindexed(where, "its messages are not in chunks, or there are none")
    chunks.sort()
    found = store.read_ranges(path, [a + b for a, b, _, _ in chunks], [one[3] for one in chunks])
    rows: dict[str, list[Any]] = {}
    for number, block in enumerate(found):
        for opcode, data in _records(block):
            if opcode != 7:
                raise ValueError(f"a record of the kind {opcode} lies among the indices of messages")
            channel = int.from_bytes(data[:2], "little")
            if channel not in channels:
                raise ValueError(f"there is no channel {channel}")
            places = np.frombuffer(data, "<u8", offset=6).reshape(-1, 2).astype(np.int64)
            rows.setdefault(channels[channel].topic, []).append(
                np.column_stack([places[:, 0], np.full(len(places), number), places[:, 1]])
            )
    if not rows:
        raise _unindexed(where, "chunks have no indices of messages")
    indexed = sum(len(table) for several in rows.values() for table in several)
    if counted is not None and indexed != counted:
        raise _unindexed(where, f"its index has {indexed:,} messages, and it says that it has {counted:,}")
    topics: list[dict[str, Any]] = []
    tables: list[Int64s] = []
    at = 0
    table = np.asarray([one[:3] for one in chunks], np.int64)
    opened: dict[int, bytes] = {}
    for one in {each.topic: each for each in channels.values()}.values():
        several = {each.encoding for each in channels.values() if each.topic == one.topic}
        if one.topic not in rows:
            continue
        if len(several) > 1:
            what = f"the topic {one.topic!r} has several encodings: {', '.join(sorted(several))}"
            raise DataError(what, file=where, kind="unsupported", fix="Write them to topics of their own.")
        messages = np.concatenate(rows[one.topic])
        messages = messages[np.argsort(messages[:, 0], kind="stable")]
        first = int(messages[0, 1])
        if first not in opened:
            begin, length, unpacked = table[first].tolist()
            opened = {first: _unpack(store.read(path, begin, length), unpacked, where)}
        columns, skipped = _columns(one, _message(opened[first], int(messages[0, 2])))
        span = [at, at + len(messages)]
        topics.append(
            {"topic": one.topic, "encoding": one.encoding, "schema": one.schema, "span": span,
             "columns": columns, "skipped": skipped,
             "channels": [number for number, each in channels.items() if each.topic == one.topic]}
        )  # fmt: skip
        tables.append(messages)
        at += len(messages)
    return Index({"topics": topics}, {"chunks": table, "messages": np.concatenate(tables)})


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield opcode and content of records. Raises `ValueError`."""
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at + 1 : at + 9], "little")
        if at + 9 + length > len(data):
            raise ValueError("a record ends after its section")
        yield data[at], data[at + 9 : at + 9 + length]
        at += 9 + length


def _text(data: bytes, at: int) -> tuple[str, int]:
    """Return the text at an offset, and where it ends."""
    length = int.from_bytes(data[at : at + 4], "little")
    if at + 4 + length > len(data):
        raise ValueError("a text ends after its record")
    return data[at + 4 : at + 4 + length].decode(), at + 4 + length


def _columns(channel: Message, first: bytes) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the columns of a topic by its first message (kind, shape, keys), and the values that are not read."""
    name = channel.topic.strip("/").replace("/", ".")
    if channel.encoding != "json":
        return {name: [BYTES, [], []]}, []
    try:
        content = orjson.loads(first)
        schema = orjson.loads(channel.described) if channel.described else {}
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the first message of {channel.topic!r} is not JSON ({error})") from None
    columns: dict[str, list[Any]] = {}
    skipped: list[str] = []
    _add_columns(columns, skipped, name, content, schema, [], channel.schema)
    return columns, skipped


def _add_columns(
    columns: dict[str, list[Any]], skipped: list[str], name: str, value: Any, schema: Any, keys: list[str], kind: str
) -> None:
    schema = schema if isinstance(schema, dict) else {}
    if isinstance(value, dict) and len(keys) < _DEEPEST:
        properties = schema.get("properties")
        for key, item in value.items():
            if key == "data" and not keys and kind in _IMAGES and isinstance(item, str):
                columns[name] = [IMAGE, [], [key]]
                continue
            below = properties.get(key) if isinstance(properties, dict) else None
            _add_columns(columns, skipped, f"{name}.{key}", item, below, [*keys, key], "")
        return
    if name in columns:
        raise ValueError(f"two values would be the column {name!r}: rename one of them")
    if isinstance(value, bool):
        columns[name] = ["bool", [], keys]
    elif isinstance(value, str):
        columns[name] = [TEXT, [], keys]
    elif isinstance(value, int | float):
        columns[name] = ["int64" if schema.get("type") == "integer" else "float64", [], keys]
    elif isinstance(value, list) and (array := _numbers(value)) is not None and array.size:
        items = schema
        for _ in range(array.ndim):
            items = items.get("items") if isinstance(items.get("items"), dict) else {}
        columns[name] = ["int64" if items.get("type") == "integer" else "float64", list(array.shape), keys]
    else:
        skipped.append(name)


def _numbers(value: list[Any]) -> Any:
    try:
        found = np.asarray(value)
    except ValueError:  # of different lengths
        return None
    return found if found.dtype.kind in "iuf" else None


def _value(keys: tuple[str, ...], kind: str, shape: tuple[int, ...], message: bytes) -> Any:
    """Return a value of a message in JSON. Raises `ValueError`, `KeyError` or `TypeError`."""
    found = orjson.loads(message)
    for key in keys:
        found = found[key]
    if kind == IMAGE:
        try:
            return base64.b64decode(found, validate=True)
        except binascii.Error as error:
            raise ValueError(f"the image is not base64 ({error})") from None
    if kind == TEXT:
        if not isinstance(found, str):
            raise ValueError(f"{'.'.join(keys)} is not text")
        return found
    array = np.asarray(found)
    # Whole numbers beyond int64 are uint64 here.
    fits = {"bool": "b", "int64": "bi", "float64": "biuf"}[kind]
    if array.dtype.kind not in fits or array.shape != shape:
        raise ValueError(f"{'.'.join(keys)} is {array.dtype}{list(array.shape)}, expected {kind}{list(shape)}")
    made = array.astype(kind)
    return made if shape else made.item()


def _default(topics: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the topic whose messages are the steps if none is given."""
    for name in topics:
        if name.rstrip("/").rpartition("/")[2].lower() in _ACTIONS:
            return name
    pictures = [name for name, one in topics.items() if one["schema"] in _IMAGES]
    return max(pictures or topics, key=lambda name: topics[name]["span"][1] - topics[name]["span"][0])


def _rate(times: Int64s) -> float | None:
    """Return the steps a second: the nearest whole number if it is within 2 percent, else two decimals."""
    if len(times) < 2 or not (between := float(np.median(np.diff(times)))):
        return None
    rate = 1e9 / between
    whole = round(rate)
    return float(whole) if whole and abs(rate / whole - 1) < 0.02 else round(rate, 2)


class McapDataset(RecorderDataset):
    """The steps of MCAP files."""

    format: ClassVar[str] = "mcap"

    def stepped(self, topic: str) -> McapDataset:
        """Return the dataset with the messages of another topic as steps. Raises `ConfigError`."""
        return _opened(self.store, self.files, self.url, self._base, topic)

    def describe(self) -> dict[str, Any]:
        """Return plain facts for `info`."""
        topics = sorted({one.topic for one in self.recordings if isinstance(one, McapFile)})
        return {**super().describe(), "steps": ", ".join(topics)}


def _opened(store: Store, files: Sequence[str], url: str, base: str | None, steps: str | None) -> McapDataset:
    cache = BlockCache(CACHE_BYTES)
    recordings = open_recordings(store, files, lambda path: McapFile(store, path, cache, steps))
    return McapDataset(store, files, recordings, name=url, base=base)


def open_found(wanted: OpenRequest) -> McapDataset:
    """Open a file, several files, or all files of a folder. Raises `DataError`, `NotFound`."""
    store = wanted.store
    names = [wanted.name] if wanted.name else list(wanted.names)
    files = names or [entry.path for entry in store.files(suffixes=(SUFFIX,))]
    return _opened(store, files, wanted.url, store.url if names else None, None)
