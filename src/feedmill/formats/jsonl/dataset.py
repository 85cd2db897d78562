"""Read JSONL files: one JSON object per line, with Energon's index ``.jsonl.idx``.

Layout of the index: ``n + 1`` u64 little endian; entry i is the offset of record i (0 for the first), the last is the
file's size. Blank lines belong to the previous record. Every other line must begin with ``{`` and end with ``}``.

A record's key is its number as text, its only part is ``json``. Without an index, the lines are scanned at opening.
Splits are stored in a separate file (`jsonl_splits`); a record has the same key in every split.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import DataError, NotFound
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.batches import Batch, Parts, Want
from feedmill.formats.content import content_hash
from feedmill.formats.cost_cache import digest_of, kept_costs
from feedmill.formats.costs import bad_cost, field_costs
from feedmill.formats.extents import Extents
from feedmill.formats.format import OpenRequest
from feedmill.formats.jsonl.splits import LineSplits, Pieces, read_splits, unfitting
from feedmill.formats.line_ranges import Arrays, begin_of, on_engine
from feedmill.formats.offsets import Int64s, hash_words, load_offsets, read_record, read_records
from feedmill.formats.sample import Sample, Source, no_such_key, number_of
from feedmill.kernels.jsonl.lines import LineIndex, index_lines, joined, line_starts
from feedmill.storage import Store
from feedmill.storage.cache.mapped import mapped
from feedmill.storage.reasons import HEAD, other_format

MARK = codecs.BOM_UTF8
"""The byte order mark of UTF-8, which JSON does not allow. Some editors write it at the beginning of a file: there, it
is skipped."""
_STEP = 8 << 20
_LARGE = 64 << 20
"""Size in bytes from which results of reading a file are cached."""
_AT_ONCE = 4096


def idx_name(path: str) -> str:
    """Return the index file of a JSONL file."""
    return f"{path}.idx"


def index_file(store: Store, path: str, folder: Store | None = None) -> Int64s:
    """Return the offset of each record of a JSONL file, and the file's size, int64[n + 1].

    Args:
        folder: work folder, to use the engine in use.

    Raises:
        DataError: the file is empty or blank, or a line is not an object; it names the offset of the line.
    """
    where = store.locate(path)
    if not store.stat(path).size:
        with store.local_copy(path):  # raises for what is no regular file
            pass
        raise DataError("the file is empty", file=where, kind="empty-file", fix="Write one JSON object per line.")
    if folder is not None:
        parts = [LineIndex(part["starts"], part["bad"]) for _, part in on_engine(_lines_of, store, path, folder)]
        found = joined(parts, store.stat(path).size)
    else:
        with mapped(store, path) as data:
            found = index_lines(data)
    bad = found.bad.tolist()
    if bad[:1] == [0] and begins_with_mark(store, path):
        bad = bad[1:]
    if bad:
        begin = b"" if bad[0] else store.read(path, 0, min(HEAD, store.stat(path).size))
        raise other_format(begin, "text", "safetensors", file=where) or bad_line(store, path, bad[0])
    if len(found.starts) < 2:
        raise DataError(
            "the file has only blank lines", file=where, kind="empty-file", fix="Write one JSON object per line."
        )
    return found.starts


def _lines_of(store: Store, path: str, size: int, span: tuple[int, int]) -> Arrays:
    """Return the lines that begin in a range of bytes."""
    begin, end = (begin_of(store, path, size, at) for at in span)
    found = line_starts(np.frombuffer(store.read(path, begin, end - begin), np.uint8))
    return {"starts": found.starts + begin, "bad": found.bad + begin}


def bad_line(store: Store, path: str, offset: int) -> DataError:
    """Return the error for a line that is not one whole JSON object."""
    text = store.read(path, offset, min(60, store.stat(path).size - offset)).split(b"\n")[0]
    what = "this line is not a JSON object from '{' to '}'"
    fix = "Correct the line (each must have one complete object), or run 'feedmill repair' to remove it."
    if text.startswith(MARK + b"{"):
        what = "this line begins with a UTF-8 byte order mark, which JSON does not allow"
        fix = "Save the file without it, or run 'feedmill repair' to remove the mark."
    shown = text.removeprefix(MARK).decode("utf-8", "replace")
    return DataError(what, file=store.locate(path), offset=offset, record=shown, kind="bad-line", fix=fix)


def begins_with_mark(store: Store, path: str) -> bool:
    """Return whether the first line of a file is an object after a byte order mark."""
    return store.read(path, 0, min(len(MARK) + 1, store.stat(path).size)) == MARK + b"{"


def is_marked(line: bytes) -> bool:
    """Return whether a line is a JSON object after a byte order mark."""
    text = line.removeprefix(MARK).strip()
    if not line.startswith(MARK + b"{") or not text.endswith(b"}"):
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return _odd_but_json(text)
    return True


def bad_records(store: Store, path: str, starts: Int64s) -> Iterator[DataError]:
    """Yield the lines that look like objects but are not valid JSON, found by parsing every one."""
    for low in range(0, len(starts) - 1, 4096):
        begins = starts[low : min(low + 4096, len(starts) - 1)]
        ends = starts[low + 1 : low + 1 + len(begins)]
        for begin, line in zip(begins.tolist(), read_records(store, path, begins, ends), strict=True):
            line = line if begin else line.removeprefix(MARK)
            try:
                orjson.loads(line)
            except orjson.JSONDecodeError as error:
                if not _odd_but_json(line):
                    found = bad_line(store, path, begin)
                    found.what = f"this line is not valid JSON ({error})"
                    yield found


def _odd_but_json(line: bytes) -> bool:
    """Return whether Python's parser accepts the line: NaN, Infinity and huge integers are not JSON, but common."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def write_index(store: Store, path: str, starts: Int64s | None = None) -> Int64s:
    """Write ``<path>.idx`` and return the offsets, int64[n + 1].

    Args:
        starts: the offsets; by default, the file is scanned.
    """
    index = index_file(store, path) if starts is None else starts
    store.write_bytes(idx_name(path), index.astype("<u8").tobytes())
    return index


def lines_of(store: Store, path: str, offsets: Int64s) -> Int64s | None:
    """Return the line of each record, int64[n], by its offsets, int64[n + 1]; None if record i is line i for all."""
    lines, before = np.empty(len(offsets) - 1, np.int64), 0
    for begin in range(0, int(offsets[-1]), _STEP):
        block = store.read(path, begin, min(_STEP, int(offsets[-1]) - begin))
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
        first, last = np.searchsorted(offsets[:-1], [begin, begin + len(block)])
        starts = offsets[first:last].astype(np.int64) - begin
        if not begin:
            starts[:1] = len(block) - len(block.lstrip())  # the first record begins at 0, with blank lines before it
        lines[first:last] = before + np.searchsorted(ends, starts)
        before += len(ends)
    return None if (lines == np.arange(len(lines))).all() else lines


class JsonlDataset(Dataset):
    """The records of one JSONL file, or of one of its splits.

    Attributes:
        line_splits: content of its split file; None without one.
    """

    format = "jsonl"

    def __init__(self, store: Store, path: str, *, name: str, split: str | None = None) -> None:
        self.store, self.path, self.url, self.split = store, path, name, split
        self.indexed = store.exists(idx_name(path))
        self._offsets = self._load() if self.indexed else index_file(store, path)
        self.line_splits = self._read_splits()
        self._pieces = self._chosen(split)
        self._fingerprints: dict[int, str] = {}

    def _load(self) -> Int64s:
        idx = idx_name(self.path)
        again = f"Run 'feedmill prepare {self.url}' again."
        offsets = load_offsets(self.store, idx, fix=again)
        size = self.store.stat(self.path).size
        if offsets[-1] != size:
            raise DataError(
                f"the index does not match the file: expected {offsets[-1]} bytes, found {size}",
                file=self.store.locate(idx),
                kind="stale-index",
                fix=again,
            )
        return offsets

    def _read_splits(self) -> LineSplits | None:
        splits = read_splits(self.store, self.path)
        if splits is not None and not (splits.fits(self._offsets) and splits.samples == len(self._offsets) - 1):
            raise unfitting(self.store, self.path, splits, self._offsets)
        return splits

    def _chosen(self, split: str | None) -> Pieces | None:
        """Return the records of a split; None for all. If the file has no splits, any name selects all records."""
        if split is None or self.line_splits is None:
            return None
        return self.line_splits.part(split, self.store.locate(self.path))

    def __len__(self) -> int:
        return len(self._offsets) - 1 if self._pieces is None else len(self._pieces)

    def _records(self, indices: Int64s) -> Int64s:
        """Return numbers of lines, int64[n]."""
        return indices if self._pieces is None else self._pieces.records(indices)

    def read_raw(self, indices: Indices) -> list[Sample]:
        wanted = self._inside(indices)
        records = self._records(wanted)
        return [
            self._sample(index, record, self._whole(record, line))
            for index, record, line in zip(wanted.tolist(), records.tolist(), self._lines_at(records), strict=True)
        ]

    def read_batch(self, indices: Indices, want: Want) -> Batch | None:
        if want != "parts" or self.view is not None or not len(indices):
            return super().read_batch(indices, want)
        wanted = self._inside(indices)
        records = self._records(wanted)
        numbers = records.tolist()
        lines = [self._whole(*each) for each in zip(numbers, self._lines_at(records), strict=True)]
        return Parts(
            list(map(str, numbers)),
            {"json": lines},
            self.decode,
            lambda number: self._source(int(wanted[number]), numbers[number]),
        )

    def _lines_at(self, records: Int64s) -> list[bytes]:
        """Return records without the blanks around them. `records`: int64[n]."""
        found = read_records(self.store, self.path, self._offsets[records], self._offsets[records + 1])
        return [line.strip() for line in found]

    def _read_one(self, index: int) -> Sample:
        record = index if self._pieces is None else int(self._records(np.asarray([index], np.int64))[0])
        _, line = read_record(self.store, self.path, self._offsets, record)
        return self._sample(index, record, self._whole(record, line.strip()))

    def extents(self, indices: Indices) -> Sequence[Extents]:
        if self.store.is_local:
            return ()
        records = self._records(self._inside(indices))
        begins, ends = (np.asarray(self._offsets[at], np.int64) for at in (records, records + 1))
        file = np.zeros(len(records), np.int64)
        return [Extents(self.store, [self.path], np.arange(len(records)), file, begins, ends)]

    def _whole(self, record: int, line: bytes) -> bytes:
        """Return the line. Raises `DataError` if it is not one object, as it was when it was indexed."""
        line = line if record else line.removeprefix(MARK)
        if line[:1] != b"{" or line[-1:] != b"}" or b"\n" in line:
            raise DataError(
                "the file changed after it was indexed: this record is not one line from '{' to '}'",
                file=self.store.locate(self.path),
                offset=int(self._offsets[record]),
                record=str(record),
                kind="stale-index",
                fix=f"Run 'feedmill prepare {self.url}' again. If the file has no index, open it again.",
            )
        return line

    def _sample(self, index: int, record: int, line: bytes) -> Sample:
        source = partial(self._source, index, record)
        opened = self._opened
        return Sample(str(record), line, {"json": (0, len(line))}, source, opened.decode, opened.subflavors)

    def _source(self, index: int, record: int) -> Source:
        begin, end = self._offsets[record : record + 2].tolist()
        return Source(self.url, self.path, begin, end - begin, index, str(record), (f"{record}.json",))

    def locate(self, index: int) -> Source:
        checked = self._checked(index)
        return self._source(checked, int(self._records(np.asarray([checked], np.int64))[0]))

    @property
    def row_files(self) -> Sequence[str]:
        return [self.store.locate(self.path)]

    def stored_rows(self, indices: Indices) -> tuple[Int64s, Int64s]:
        records = self._records(self._inside(indices))
        lines = self._lines()
        return np.zeros(len(records), np.int64), records if lines is None else lines[records]

    def samples_of_row(self, file: int, row: int) -> list[int]:  # noqa: ARG002
        lines = self._lines()
        record = row if lines is None else int(np.searchsorted(lines, row))
        if not 0 <= record < len(self._offsets) - 1 or (lines is not None and lines[record] != row):
            return []
        index = record if self._pieces is None else self._pieces.index(record)
        return [] if index is None else [index]

    def _lines(self) -> Int64s | None:
        """Return the line of each record, int64[n]; None if there are no blank lines, which have no record.

        The file is read once for it.
        """
        if "_blank" not in self.__dict__:
            self.__dict__["_blank"] = lines_of(self.store, self.path, self._offsets)
        lines: Int64s | None = self.__dict__["_blank"]
        return lines

    def stored_sizes(self, indices: Indices) -> Int64s:
        """Return the sizes of these lines in bytes, int64[n]."""
        records = self._records(np.asarray(indices, np.int64))
        sizes: Int64s = (self._offsets[records + 1] - self._offsets[records]).astype(np.int64)
        return sizes

    def _find_costs(self, by: str) -> Int64s | None:
        if by == "bytes":
            return self.stored_sizes(np.arange(len(self)))
        if by not in self.cost_fields:
            return None
        records = self._records(np.arange(len(self)))
        begins, ends = self._offsets[records], self._offsets[records + 1]
        places = digest_of(begins, ends)
        large = int((ends - begins).sum()) >= _LARGE
        return kept_costs(
            self.store,
            self.path,
            f"field {by} of {places}",
            len(self),
            lambda: line_costs(self.store, self.path, begins, ends, by, file=self.url),
            keep=large,
        )

    @property
    def cost_fields(self) -> Sequence[str]:
        """Return the numeric fields of the first record."""
        return numeric_fields(self.read_raw([0])[0].raw("json")) if len(self) else ()

    def costs_advice(self, by: str) -> str:
        if by == "tokens":
            return super().costs_advice(by)
        return f"Add a numeric field {by!r}, or choose one of: {', '.join(self.cost_fields) or 'none'}."

    def find(self, key: str) -> int:
        record = number_of(key, len(self._offsets) - 1)
        if record is None:
            raise no_such_key(self.url, key)
        index = record if self._pieces is None else self._pieces.index(record)
        if index is None:
            raise no_such_key(f"{self.url} (split {self.split!r})", key)
        return index

    def fingerprint(self) -> str:
        return self._fingerprint(len(self))

    def fingerprint_of_first(self, count: int) -> str | None:
        return self._fingerprint(count) if 0 < count <= len(self) else None

    def _fingerprint(self, count: int) -> str:
        known = self._fingerprints.get(count)
        if known is None:
            known = self._fingerprints[count] = hash_words(self._words(count))
        return known

    def _words(self, count: int) -> list[str]:
        """Return the strings that the fingerprint of the first `count` records hashes."""
        step = max(1, count // 1000)  # cheap for any size, and detects most edits
        if self._pieces is None:
            starts = self._offsets[: count + 1 : step]
            end = int(self._offsets[count])
            return [self.path, str(count), str(end), starts.tobytes().hex(), content_hash(self.store, self.path, end)]
        starts = self._offsets[self._records(np.arange(0, count, step))]
        edges = np.asarray(self._pieces.first(count), np.int64).reshape(-1, 2)
        words = [self.path, str(count), edges.tobytes().hex(), self._offsets[edges].tobytes().hex()]
        begin, end = (int(self._offsets[record]) for record in (edges.min(initial=0), edges.max(initial=0)))
        return [*words, starts.tobytes().hex(), content_hash(self.store, self.path, end - begin, begin)]

    @property
    def splits(self) -> Mapping[str, int]:
        parts = self.line_splits.parts if self.line_splits is not None else {}
        return {name: len(pieces) for name, pieces in parts.items()}

    def describe(self) -> dict[str, Any]:
        """Return plain facts for `info`."""
        return {
            "format": self.format,
            "path": self.url,
            "split": self.split,
            "samples": len(self),
            "shards": 1,
            "bytes": int(self._offsets[-1]),
            "indexed": self.indexed,
            **(
                {"splits": {name: {"samples": n, "shards": 1} for name, n in self.splits.items()}}
                if self.splits
                else {}
            ),
            **self.about,
        }


def open_jsonl(store: Store, path: str, name: str, split: str | None = None) -> JsonlDataset:
    """Open a JSONL file. If it has no splits, any split name opens all of it.

    Raises:
        NotFound: there is no such file or split.
        DataError: a line is not an object, or the index or splits do not match the file.
        ConfigError: the split file is invalid.
    """
    if not store.exists(path):
        raise NotFound("there is no such file", file=store.locate(path), fix="Check the path.")
    return JsonlDataset(store, path, name=name, split=split)


def open_found(wanted: OpenRequest) -> JsonlDataset:
    """See `open_jsonl`."""
    return open_jsonl(wanted.store, wanted.name, wanted.url, wanted.split)


def numeric_fields(line: bytes) -> list[str]:
    """Return the fields of a record whose value is a number; empty if the line is not a JSON object."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return []
    return [name for name, value in record.items() if _is_number(value)] if isinstance(record, dict) else []


def line_costs(store: Store, path: str, begins: Int64s, ends: Int64s, by: str, *, file: str) -> Int64s:
    """Return the values of a top-level field as costs, int64[n], by reading the records once.

    Args:
        begins, ends: int64[n], offsets of each record.
        by: the field.
        file: path or URL of the dataset, for errors.

    Raises:
        DataError, ConfigError: as `field_costs`, and if a value is not a number or a line is not JSON.
    """
    pieces = [np.zeros(0, np.int64)]
    for low in range(0, len(begins), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        lines = read_records(store, path, begins[part], ends[part])
        if lines and begins[low] == 0:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        try:
            found = [record.value for record in _decoder(by).decode(b"[" + b",".join(lines) + b"]")]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # NaN, not a number, or a name that no struct may have: parse line by line.
            found = [_value(line, by, low + number, file) for number, line in enumerate(lines)]
        pieces.append(_array(found, by, low, file))
    return field_costs(np.concatenate(pieces), None, by, file=file)


@lru_cache(maxsize=8)
def _decoder(by: str) -> msgspec.json.Decoder[Any]:
    kind = msgspec.defstruct("Record", [("value", int | float | None, None)], rename={"value": by})
    return msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]


def _array(found: list[Any], by: str, first: int, file: str) -> npt.NDArray[Any]:
    """Return numbers as an array of their common type. Raises `DataError` for the first missing or too large one."""
    number = next((n for n, value in enumerate(found) if value is None or not -(2.0**63) < value < 2.0**63), None)
    if number is not None and found[number] == found[number]:  # NaN is reported later
        shown = "missing" if found[number] is None else found[number]
        raise bad_cost(by, first + number, shown, file=file)
    return np.asarray(found, np.float64 if any(type(value) is float for value in found) else np.int64)


def _value(line: bytes, by: str, number: int, file: str) -> Any:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise bad_cost(by, number, f"in a line that is not JSON ({error})", file=file) from None
    value = record.get(by)
    if value is not None and not _is_number(value):
        raise bad_cost(by, number, json.dumps(value)[:80], file=file)
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
