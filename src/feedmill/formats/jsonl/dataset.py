"""Read JSONL files: one JSON object per line.

A record's key is its number as text, its only part is ``json``. `feedmill.formats.jsonl.index` finds the lines.
Splits are stored in a separate file (`jsonl_splits`); a record has the same key in every split.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import DataError
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.batches import Batch, Parts, Want
from feedmill.formats.content import content_hash
from feedmill.formats.costs import bad_cost, field_costs, field_values, text_hashes
from feedmill.formats.format import OpenRequest
from feedmill.formats.jsonl.index import MARK, lines_of, open_lines
from feedmill.formats.jsonl.splits import LineSplits, Pieces, read_splits, unfitting
from feedmill.formats.kept import digest_of, kept_costs
from feedmill.formats.offsets import Extents, Int64s, hash_words, read_records
from feedmill.formats.sample import Sample, Source, no_such_key, number_of
from feedmill.storage import Store
from feedmill.structs import decoder_of

_LARGE = 64 << 20
"""Size in bytes from which results of reading a file are cached, and from which a record is not copied."""
_END = 1 << 16
_AT_ONCE = 4096


class JsonlDataset(Dataset):
    """The records of one JSONL file, or of one of its splits.

    Attributes:
        line_splits: content of its split file; None without one.
    """

    format = "jsonl"

    def __init__(self, store: Store, path: str, *, name: str, split: str | None = None) -> None:
        self.store, self.path, self.url, self.split = store, path, name, split
        self._index = open_lines(store, path, name)
        self.line_splits = self._read_splits()
        self._pieces = self._chosen(split)
        self._fingerprints: dict[int, str] = {}

    @property
    def _offsets(self) -> Int64s:
        """Offset of each record, and the size of the file, int64[n + 1]."""
        return self._index.offsets

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

    def _media_advice(self) -> str:
        return (
            f"If its rows name media files, 'feedmill import FOLDER {self.url} SHARDS' puts them into shards, with the"
            " files of FOLDER. Then run 'feedmill edit prepare-media SHARDS --media-by-extension'."
        )

    def __len__(self) -> int:
        return len(self._offsets) - 1 if self._pieces is None else len(self._pieces)

    def _records(self, indices: Int64s) -> Int64s:
        """Return numbers of lines, int64[n], whose offsets are in `_offsets`."""
        records = indices if self._pieces is None else self._pieces.records(indices)
        self._index.check(records)
        return records

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
        begins, ends = self._offsets[records], self._offsets[records + 1]
        if len(large := np.flatnonzero(ends - begins >= _LARGE)):
            ends = ends.copy()
            ends[large] = [self._text_end(begins[i], ends[i]) for i in large.tolist()]
        return [line.strip() for line in read_records(self.store, self.path, begins, ends)]

    def _text_end(self, begin: int, end: int) -> int:
        """Return where the blanks at the end of a record begin, so that a large one is not copied without them."""
        size = min(_END, end - begin)
        return end - size + len(self.store.read(self.path, end - size, size).rstrip())

    def _read_one(self, index: int) -> Sample:
        record = index if self._pieces is None else int(self._records(np.asarray([index], np.int64))[0])
        self._index.check_one(record)
        begin, end = self._offsets[record : record + 2].tolist()
        if end - begin >= _LARGE:
            end = self._text_end(begin, end)
        line = self.store.read(self.path, begin, end - begin)
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
            self._index.forget()
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
        self._index.check_one(record)
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
            known = self._index.facts.aligned
            self.__dict__["_blank"] = None if known else lines_of(self.store, self.path, self._offsets)
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
        values = self._find_values(by, texts=False)
        return None if values is None else field_costs(values, None, by, file=self.url)

    def _find_values(self, by: str, *, texts: bool) -> npt.NDArray[Any] | None:
        if by not in self.cost_fields:
            line = self.read_raw([0])[0].raw("json") if texts and len(self) else b""
            if by not in _fields(line, str):
                return None
        else:
            texts = False
        records = self._records(np.arange(len(self)))
        begins, ends = self._offsets[records], self._offsets[records + 1]
        places = digest_of(begins, ends)
        large = int((ends - begins).sum()) >= _LARGE
        return kept_costs(
            self.store,
            self.path,
            f"{'texts' if texts else 'numbers'} {by} of {places}",
            len(self),
            lambda: line_values(self.store, self.path, begins, ends, by, file=self.url, texts=texts),
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
        if self._pieces is None:
            starts = self._index.spaced(count)  # cheap for any size, and detects most edits
            end = int(self._index.at(np.asarray([count]))[0])
            return [self.path, str(count), str(end), starts.tobytes().hex(), content_hash(self.store, self.path, end)]
        starts = self._index.at(self._pieces.records(np.arange(0, count, max(1, count // 1000))))
        edges = np.asarray(self._pieces.first(count), np.int64).reshape(-1, 2)
        offsets = self._index.at(edges.reshape(-1)).reshape(-1, 2)
        words = [self.path, str(count), edges.tobytes().hex(), offsets.tobytes().hex()]
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
            "indexed": bool(self._index.facts.index),
            **({"remarks": self._index.facts.remarks} if self._index.facts.remarks else {}),
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
        from feedmill.storage.codec import missing_file

        raise missing_file(store, path)
    return JsonlDataset(store, path, name=name, split=split)


def open_found(wanted: OpenRequest) -> JsonlDataset:
    """See `open_jsonl`."""
    return open_jsonl(wanted.store, wanted.name, wanted.url, wanted.split)


def numeric_fields(line: bytes) -> list[str]:
    """Return the fields of a record whose value is a number; empty if the line is not a JSON object."""
    return _fields(line, int, float)


def _fields(line: bytes, *kinds: type) -> list[str]:
    """Return the fields of a record whose value is of one of these types."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return []
    return [name for name, value in record.items() if type(value) in kinds] if isinstance(record, dict) else []


def line_values(
    store: Store, path: str, begins: Int64s, ends: Int64s, by: str, *, file: str, texts: bool = False
) -> npt.NDArray[Any]:
    """Return the values of a top-level field, int64[n] or float64[n], by reading the records once.

    Args:
        begins, ends: int64[n], offsets of each record.
        by: the field.
        file: path or URL of the dataset, for errors.
        texts: the values are texts; return their hashes, uint64[n].

    Raises:
        DataError: as `field_values`, and if a value has another type or a line is not JSON.
    """
    pieces: list[npt.NDArray[Any]] = [np.zeros(0, np.int64)]
    for low in range(0, len(begins), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        lines = read_records(store, path, begins[part], ends[part])
        if lines and begins[low] == 0:
            lines[0] = lines[0].removeprefix(MARK)
        try:
            found = [record.value for record in _decoder(by, texts).decode(b"[" + b",".join(lines) + b"]")]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # NaN, not a number, or a name that no struct may have: parse line by line.
            found = [_value(line, by, low + number, file, texts) for number, line in enumerate(lines)]
        if texts and None in found:
            raise bad_cost(by, low + found.index(None), "missing", file=file)
        pieces.append(text_hashes(found) if texts else _array(found, by, low, file))
    return field_values(np.concatenate(pieces[1:] or pieces), None, by, file=file)


@lru_cache(maxsize=8)
def _decoder(by: str, texts: bool) -> msgspec.json.Decoder[Any]:
    value: Any = str | None if texts else int | float | None
    kind = msgspec.defstruct("Record", [("value", value, None)], rename={"value": by})
    return decoder_of(list[kind])  # type: ignore[valid-type]


def _array(found: list[Any], by: str, first: int, file: str) -> npt.NDArray[Any]:
    """Return numbers as an array of their common type. Raises `DataError` for the first missing or too large one."""
    number = next((n for n, value in enumerate(found) if value is None or not -(2.0**63) < value < 2.0**63), None)
    if number is not None and found[number] == found[number]:  # NaN is reported later
        shown = "missing" if found[number] is None else found[number]
        raise bad_cost(by, first + number, shown, file=file)
    return np.asarray(found, np.float64 if any(type(value) is float for value in found) else np.int64)


def _value(line: bytes, by: str, number: int, file: str, texts: bool = False) -> Any:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise bad_cost(by, number, f"in a line that is not JSON ({error})", file=file) from None
    value = record.get(by)
    if value is not None and not (isinstance(value, str) if texts else _is_number(value)):
        raise bad_cost(by, number, json.dumps(value)[:80], file=file)
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
