"""Read columns of files row by row: fields and attributes of documents, kept beside the dataset as arrays.

A column of a file is read once. ``.feedmill-cells/columns/<hash>.column`` beside the dataset is an array file
(`feedmill.formats.arrays`):

    about     JSON: identity of what was read, rows, rows without a value, hash of the values
    numbers   <u8[rows], the bits of float64; NaN without a value
    codes     |u1[rows] or <i4[rows], number of the row's value in `values`, one more without a value
    values    JSON: the different values in order: false, true, numbers, texts

It has `numbers`, or `codes` and `values`. Its name is a hash of the column and of the path of its file: a changed file
takes the place of what was read before, and other edges or quantiles read nothing. The folder may be deleted any time.

**Attributes** are spans ``[start, end, score]``. The value of a document is the score of its span, or the attribute
itself if it is a number or a text. For several spans a rule must choose, such as ``max(NAME)``; see `SPANS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill.curation.provenance import Verdict, stale, verdict
from feedmill.documents.file import ARROW, PARQUET, DocumentFile, relative
from feedmill.documents.lines import read_blocks
from feedmill.documents.rows import REFUSED, bad_row, load
from feedmill.errors import DataError, FeedmillError
from feedmill.formats.arrays import read_arrays, write_arrays
from feedmill.formats.base import Dataset
from feedmill.formats.columns import ArrowFile, ColumnFile, ParquetFile
from feedmill.formats.documents import one_a_line, read_lines, rows_of
from feedmill.formats.sample import Sample
from feedmill.jobs.memory import uncollected
from feedmill.jobs.progress import count_read
from feedmill.storage import Entry, Store, open_store
from feedmill.structs import decoder_of

FIELDS, INDEX = "fields", "index"
"""Places of columns, beside ``attributes/SET``."""
SPANS: dict[str, Callable[[list[Any]], Any]] = {
    "first": lambda scores: scores[0] if scores else None,
    "min": lambda scores: min(scores, default=None),
    "max": lambda scores: max(scores, default=None),
    "mean": lambda scores: sum(scores) / len(scores) if scores else None,
    "sum": sum,
    "count": len,
}
"""Rules for the value of a document with several spans, or none, by the scores of its spans."""
FOLDER = "columns"
_VERSION = 1
_WHOLE = 1 << 53
"""All whole numbers up to here are float64."""
_WIDEST = 1 << 63
_SAMPLES = 256
_PLAIN = frozenset((str, int, float, bool, type(None)))

Floats = npt.NDArray[np.float64]
Value = str | int | float | bool


class Wanted(NamedTuple):
    """A column of files.

    Attributes:
        place: ``fields`` or ``attributes/SET``.
        name: path of a field, such as ``metadata.topic``, or name of an attribute.
        spans: one of `SPANS`; empty: several spans are an error.
    """

    place: str
    name: str
    spans: str = ""

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"

    @property
    def set(self) -> str:
        """Name of the attribute set; empty for fields."""
        return self.place.partition("/")[2]

    @property
    def steps(self) -> tuple[str, ...]:
        """Keys that lead to the value in a row."""
        return ("attributes", self.name) if self.set else tuple(self.name.split("."))


_ID = Wanted(FIELDS, "id")


@dataclass(frozen=True)
class ColumnData:
    """A column of a file in memory, or mapped.

    Attributes:
        rows, missing: number of rows, and of those without a value.
        digest: hash of the values.
        numbers: float64[rows], NaN without a value; None for other values.
        codes: integers[rows], number of the value in `values`; ``len(values)`` without one.
        values: the different values in order.
    """

    rows: int
    missing: int
    digest: str
    numbers: Floats | None = None
    codes: npt.NDArray[Any] | None = None
    values: tuple[Value, ...] = ()


def order_of(value: Value) -> tuple[int, Any]:
    """Return the key that values are sorted by: false and true, numbers, texts."""
    return (0 if isinstance(value, bool) else 2 if isinstance(value, str) else 1), value


def plain(value: Value) -> Value:
    """Return a number without a fraction as an integer if it is exact, and other values unchanged."""
    return int(value) if isinstance(value, float) and abs(value) < _WHOLE and value.is_integer() else value


class Collected:
    """Collects the values of a column, batch by batch: as numbers until there is something else."""

    def __init__(self) -> None:
        self._numbers: list[Floats] = []
        self._codes: list[npt.NDArray[np.int64]] = []
        self._known: dict[tuple[bool, Value], int] = {}

    def add(self, values: Sequence[Any]) -> None:
        """Append plain values; None, and NaN, is no value."""
        if set(map(type, values)) <= {int, float, type(None)}:
            numbers = np.array([math.nan if value is None else value for value in values], np.float64)
            if not (np.abs(numbers) > _WHOLE).any() or not any(type(value) is int for value in values):
                self.add_numbers(numbers)
                return
        known = self._known
        codes = [
            -1 if value is None or value != value else known.setdefault((type(value) is bool, value), len(known))
            for value in values
        ]
        self._add_codes(np.array(codes, np.int64))

    def add_numbers(self, numbers: Floats) -> None:
        """Append float64[n], NaN without a value."""
        if self._codes:
            self._add_codes(self._coded(numbers))
        else:
            self._numbers.append(numbers)

    def add_texts(self, codes: npt.NDArray[np.int64], values: Sequence[str]) -> None:
        """Append texts by their numbers in `values`, int64[n], -1 without one."""
        lut = [self._known.setdefault((False, value), len(self._known)) for value in values]
        self._add_codes(np.array([*lut, -1], np.int64)[codes])

    def _add_codes(self, codes: npt.NDArray[np.int64]) -> None:
        before, self._numbers = self._numbers, []
        self._codes += [*map(self._coded, before), codes]

    def _coded(self, numbers: Floats) -> npt.NDArray[np.int64]:
        out = np.full(len(numbers), -1, np.int64)
        there = ~np.isnan(numbers)
        values, places = np.unique(numbers[there], return_inverse=True)
        lut = [self._known.setdefault((False, value), len(self._known)) for value in values.tolist()]
        out[there] = np.array(lut, np.int64)[places]
        return out

    def data(self) -> ColumnData:
        """Return the column."""
        if not self._codes:
            numbers = np.concatenate([np.zeros(0), *self._numbers]) + 0.0  # without negative zeros
            absent = np.isnan(numbers)
            numbers[absent] = np.nan  # of which there are many
            return ColumnData(len(numbers), int(absent.sum()), xxhash.xxh3_128_hexdigest(numbers.data), numbers)
        values = [plain(value) for _, value in self._known]
        order = sorted(range(len(values)), key=lambda number: order_of(values[number]))
        lut = np.empty(len(values) + 1, np.int64)
        lut[order], lut[-1] = np.arange(len(values)), len(values)
        codes = lut[np.concatenate(self._codes)].astype(np.uint8 if len(values) < 256 else np.int32)
        ordered = tuple(values[number] for number in order)
        digest = xxhash.xxh3_128(orjson.dumps(ordered))
        digest.update(codes.data)
        return ColumnData(len(codes), int((codes == len(values)).sum()), digest.hexdigest(), None, codes, ordered)


class RowReader:
    """Reads some values of JSON lines, and skips all others.

    Args:
        wanted: the columns.
        file: path or URL of the file, for errors.
    """

    def __init__(self, wanted: Sequence[Wanted], file: str) -> None:
        self.wanted, self.file, self._line = wanted, file, 1
        tree: dict[str, Any] = {}
        for one in wanted:
            inner = tree
            for step in one.steps:
                inner = inner.setdefault(step, {})
        self._paths: list[list[str]] = []
        kinds: dict[tuple[str, ...], list[str]] = {}
        row = _struct(tree, (), kinds)
        for one in wanted:
            steps = one.steps
            self._paths.append([f"f{kinds[steps[:n]].index(steps[n])}" for n in range(len(steps))])
        self._nested = any(_is_inside(tree, one.steps) for one in wanted)
        self._decode = decoder_of(row).decode_lines

    def read(self, lines: bytes) -> list[list[Any]]:
        """Return the values of each column in whole lines, None without one. Raises `DataError`."""
        found = None
        if not self._nested:
            with suppress(*REFUSED):
                rows = self._decode(lines)
                if one_a_line(lines, len(rows)):
                    found = [self._column(rows, path) for path in self._paths]
        if found is None:
            parsed = [self._parsed(row, line) for line, row in enumerate(rows_of(lines), self._line)]
            found = [[_walk(row, one.steps) for row in parsed] for one in self.wanted]
        first = self._line
        self._line += len(found[0])
        return [self.scalars(one, values, first) for one, values in zip(self.wanted, found, strict=True)]

    @staticmethod
    def _column(rows: list[Any], path: list[str]) -> list[Any]:
        values = [getattr(row, path[0]) for row in rows]
        for step in path[1:]:
            values = [None if value is None else getattr(value, step) for value in values]
        return values

    def _parsed(self, row: bytes, line: int) -> dict[str, Any]:
        try:
            value = load(row)
        except (orjson.JSONDecodeError, *REFUSED) as error:
            raise bad_row(row, str(error), self.file, line) from None
        if type(value) is not dict:
            raise bad_row(row, f"expected an object, found {type(value).__name__}", self.file, line)
        return value

    def scalars(self, wanted: Wanted, values: list[Any], first: int, noun: str = "line") -> list[Any]:
        """Return values as plain ones: spans by their rule. Raises `DataError` for others, and several spans.

        Whole numbers of more than 64 bits are also refused: no format keeps them.

        Args:
            wanted: the column.
            values: its values.
            first: number of the first row, for errors.
            noun: what a row is called there.
        """
        found = self._plain(wanted, values, first, noun)
        whole = [value for value in found if type(value) is int]
        if whole and not -_WIDEST <= min(whole) <= max(whole) < _WIDEST:
            row = next(
                n for n, value in enumerate(found, first) if type(value) is int and not -_WIDEST <= value < _WIDEST
            )
            raise DataError(
                f"the value of {wanted.name!r} is {_shown(found[row - first])}: expected a number of 64 bits",
                file=self.file,
                record=f"{noun} {row}",
                kind="bad-data",
                fix="Store it as text, or choose another column.",
            )
        return found

    def _plain(self, wanted: Wanted, values: list[Any], first: int, noun: str) -> list[Any]:
        if not wanted.spans:
            if set(map(type, values)) <= _PLAIN:
                return values
            with suppress(TypeError, IndexError):  # numbers among spans
                spans = [value or () for value in values]
                if max(map(len, spans)) <= 1:
                    return [each[0][2] if each else None for each in spans]
        return [self._scalar(wanted, value, f"{noun} {row}") for row, value in enumerate(values, first)]

    def _scalar(self, wanted: Wanted, value: Any, record: str) -> Any:
        what = "the attribute" if wanted.set else "the field"
        if type(value) in _PLAIN and (value is not None or not wanted.spans):
            return value
        spans = [] if value is None else value
        if not isinstance(spans, list) or not all(isinstance(span, list | tuple) and len(span) == 3 for span in spans):
            raise DataError(
                f"{what} {wanted.name!r} is {_shown(value)}: expected a number, a text or spans",
                file=self.file,
                record=record,
                kind="bad-data",
                fix="Choose another column.",
            )
        scores = [span[2] for span in spans]
        if len(scores) > 1 and not wanted.spans:
            raise DataError(
                f"{what} {wanted.name!r} has {len(scores)} spans, so that the document has no single value",
                file=self.file,
                record=record,
                kind="ambiguous",
                fix=f"Write 'max({wanted.name})' for the column, or another one of {', '.join(SPANS)}.",
            )
        try:
            return SPANS[wanted.spans or "first"](scores)
        except TypeError:
            raise DataError(
                f"{what} {wanted.name!r} has scores that are no numbers, which have no {wanted.spans}",
                file=self.file,
                record=record,
                kind="bad-data",
                fix="Choose 'first' or 'count'.",
            ) from None


def _is_inside(tree: dict[str, Any], steps: tuple[str, ...]) -> bool:
    """Return whether a wanted path is the beginning of another one."""
    for step in steps:
        tree = tree[step]
    return bool(tree)


def _struct(tree: dict[str, Any], at: tuple[str, ...], kinds: dict[tuple[str, ...], list[str]]) -> Any:
    """Return the type of an object with these keys, and note their order."""
    kinds[at] = list(tree)
    fields = [
        (f"f{number}", (_struct(inner, (*at, name), kinds) | None) if inner else Any, None)
        for number, (name, inner) in enumerate(tree.items())
    ]
    names = {f"f{number}": name for number, name in enumerate(tree)}
    return msgspec.defstruct("Row", fields, rename=names, gc=False)


def _walk(value: Any, steps: tuple[str, ...]) -> Any:
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"


def read_columns(file: DocumentFile, wanted: Sequence[Wanted]) -> dict[Wanted, ColumnData]:
    """Return columns of a file of documents: its fields, and its attributes.

    Raises:
        DataError: attributes are missing, were computed from other documents or have other rows; or a value is no
            plain value.
        NotFound, StorageError: a file cannot be read.
    """
    found: dict[Wanted, ColumnData] = {}
    fields = [one for one in wanted if not one.set]
    if fields:
        found |= _columns_of_table(file, fields) if file.kind in (PARQUET, ARROW) else _columns_of_lines(file, fields)
    ids: list[Any] | None = None
    for name in dict.fromkeys(one.set for one in wanted if one.set):
        store, path = file.store(), file.attributes(name)
        answer = verdict(store, name, path, Entry(file.path, file.size, file.version))
        if answer is Verdict.OTHER:
            raise stale(store, path, file.name)
        chosen = [one for one in wanted if one.set == name]
        blocks = read_lines(store, path, advance=count_read, json=True)
        if answer is Verdict.UNKNOWN:  # without a record, ids tell
            ids = _ids(file) if ids is None else ids
            found |= _compared(file, store.locate(path), chosen, blocks, ids)
        else:
            found |= _collected(RowReader(chosen, store.locate(path)), chosen, blocks)
    return found


def _ids(file: DocumentFile) -> list[Any]:
    """Return the id of each document, None without one."""
    reader, found = RowReader((_ID,), file.name), list[Any]()
    with uncollected():
        for block in read_blocks(file, fields=("id",)):
            found += reader.read(block)[0]
    return found


def _compared(
    file: DocumentFile, path: str, wanted: Sequence[Wanted], blocks: Iterator[bytes], ids: list[Any]
) -> dict[Wanted, ColumnData]:
    """Return columns of attributes whose rows have these ids. Raises `DataError` if a row has another one."""
    reader, columns, row = RowReader((*wanted, _ID), path), [Collected() for _ in wanted], 0
    with uncollected():
        for block in blocks:
            *values, own = reader.read(block)
            if own != ids[row : row + len(own)]:
                raise _misaligned(file, path, row, own, ids)
            for column, found in zip(columns, values, strict=True):
                column.add(found)
            row += len(own)
    if row != len(ids):
        raise _misaligned(file, path, row, [], ids)
    return {one: column.data() for one, column in zip(wanted, columns, strict=True)}


def _misaligned(file: DocumentFile, path: str, row: int, own: list[Any], ids: list[Any]) -> DataError:
    other = next((n for n, value in enumerate(own, row) if n >= len(ids) or value != ids[n]), row)
    if not own:
        what = f"the attributes have {row:,} rows, but {file.name} has {len(ids):,} documents"
    elif other >= len(ids):
        what = f"the attributes have more rows than {file.name} has documents ({len(ids):,})"
    else:
        what = f"the row belongs to the id {own[other - row]!r}, but the document in {file.name} is {ids[other]!r}"
    return DataError(
        what,
        file=path,
        record=f"line {other + 1}",
        kind="misaligned-attributes",
        fix="Compute the attributes again: documents and attributes must have the same rows in the same order.",
    )


def _columns_of_lines(file: DocumentFile, wanted: Sequence[Wanted]) -> dict[Wanted, ColumnData]:
    return _collected(RowReader(wanted, file.name), wanted, read_blocks(file))


def _collected(reader: RowReader, wanted: Sequence[Wanted], blocks: Iterator[bytes]) -> dict[Wanted, ColumnData]:
    columns = [Collected() for _ in wanted]
    with uncollected():
        for block in blocks:
            for column, values in zip(columns, reader.read(block), strict=True):
                column.add(values)
    return {one: column.data() for one, column in zip(wanted, columns, strict=True)}


def table_of(file: DocumentFile) -> ColumnFile:
    """Return a file of documents in columns, opened."""
    return (ParquetFile if file.kind == PARQUET else ArrowFile)(file.store(), file.path)


def _columns_of_table(file: DocumentFile, wanted: Sequence[Wanted]) -> dict[Wanted, ColumnData]:
    source = table_of(file)
    columns, row = {one: Collected() for one in wanted}, 0
    names = [one.steps[0] for one in wanted if one.steps[0] in source.schema.names]
    for block, end in enumerate(source.ends.tolist()):
        table = source.read(block, list(dict.fromkeys(names)))[0] if names else None
        for one, column in columns.items():
            if table is None or one.steps[0] not in source.schema.names:
                column.add_numbers(np.full(end - row, np.nan))
            else:
                _add_array(column, one, table.column(table.schema.names.index(one.steps[0])), file.name, row)
        row = end
    return {one: column.data() for one, column in columns.items()}


def _add_array(column: Collected, wanted: Wanted, array: Any, file: str, row: int) -> None:
    """Append an array of Arrow."""
    import pyarrow
    import pyarrow.compute as pc

    types = pyarrow.types
    array = array.combine_chunks() if isinstance(array, pyarrow.ChunkedArray) else array
    for step in wanted.steps[1:]:
        if not types.is_struct(array.type) or array.type.get_field_index(step) < 0:
            column.add_numbers(np.full(len(array), np.nan))
            return
        array = pc.struct_field(array, step)
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_floating(array.type):
        column.add_numbers(array.cast(pyarrow.float64()).to_numpy(zero_copy_only=False).astype(np.float64))
        return
    if types.is_string(array.type) or types.is_large_string(array.type):
        coded = array.dictionary_encode()
        codes = pc.fill_null(coded.indices.cast(pyarrow.int64()), -1).to_numpy(zero_copy_only=False)
        column.add_texts(codes, coded.dictionary.to_pylist())
        return
    if types.is_integer(array.type) and len(array) > array.null_count:
        low, high = pc.min_max(array).as_py().values()
        if -_WHOLE <= low <= high <= _WHOLE:
            column.add_numbers(array.cast(pyarrow.float64()).to_numpy(zero_copy_only=False).astype(np.float64))
            return
    column.add(RowReader((wanted,), file).scalars(wanted, array.to_pylist(), row, "row"))


def read_samples(dataset: Dataset, first: int, stop: int, wanted: Sequence[Wanted]) -> dict[Wanted, ColumnData]:
    """Return columns of samples that are no rows of readable files: their parts, and fields in these."""
    columns = {one: Collected() for one in wanted}
    reader = RowReader((), dataset.url)
    for start in range(first, stop, _SAMPLES):
        samples = dataset.read_raw(np.arange(start, min(start + _SAMPLES, stop)))
        for one, column in columns.items():
            values = [value_of(sample, one.name) for sample in samples]
            column.add(reader.scalars(one, values, start, "sample"))
    return {one: column.data() for one, column in columns.items()}


def value_of(sample: Sample, name: str) -> Any:
    """Return a part of a sample, or a field in a part: ``json.topic``, or ``topic`` in its only part of JSON."""
    parts = list(sample)
    if name in parts:
        value = sample[name]
        return value.item() if isinstance(value, np.generic) else value
    steps = name.split(".")
    for cut in range(len(steps) - 1, 0, -1):
        part = ".".join(steps[:cut])
        if part in parts:
            return _walk(sample[part], tuple(steps[cut:]))
    objects = [part for part in parts if part == "json" or part.endswith(".json")]
    return _walk(sample[objects[0]], tuple(steps)) if len(objects) == 1 else None


@dataclass(frozen=True)
class ColumnStore:
    """The columns that were read before.

    Attributes:
        url: folder with them.
    """

    url: str

    @property
    def store(self) -> Store:
        """The store of the folder."""
        return open_store(self.url)

    def path(self, wanted: Wanted, of: str) -> str:
        """Return the name of the file of a column. `of`: path or URL of what it is read from."""
        of = relative(of, self.url)
        return xxhash.xxh3_128_hexdigest(f"{wanted}\0{wanted.spans}\0{of}".encode()) + ".column"

    def read(self, wanted: Wanted, of: str, identity: Sequence[Any]) -> ColumnData | None:
        """Return a column that was read from this state of a file; None if it must be read (again)."""
        path = self.path(wanted, of)
        try:
            if not self.store.exists(path):
                return None
            arrays = read_arrays(self.store, path)
            about = orjson.loads(arrays["about"].tobytes())
            if about["identity"] != orjson.loads(orjson.dumps([_VERSION, *identity])):
                return None
            rows, missing, digest = about["rows"], about["missing"], about["digest"]
            if "numbers" in arrays:
                found = ColumnData(rows, missing, digest, arrays["numbers"].view(np.float64))
            else:
                values = tuple(orjson.loads(arrays["values"].tobytes()))
                found = ColumnData(rows, missing, digest, None, arrays["codes"], values)
        except (FeedmillError, ValueError, KeyError, TypeError):
            return None  # it is read again
        data = found.numbers if found.codes is None else found.codes
        return found if data is not None and data.shape == (rows,) else None

    def forget(self, wanted: Wanted, of: str) -> None:
        """Delete a column, so that it is read again."""
        self.store.delete(self.path(wanted, of))

    def write(self, wanted: Wanted, of: str, identity: Sequence[Any], column: ColumnData) -> None:
        """Keep a column."""
        about = {"identity": [_VERSION, *identity], "rows": column.rows, "missing": column.missing}
        arrays = {"about": _text({**about, "digest": column.digest})}
        if column.numbers is not None:
            arrays["numbers"] = column.numbers.view(np.uint64)
        else:
            assert column.codes is not None
            arrays |= {"codes": column.codes, "values": _text(list(column.values))}
        write_arrays(self.store, self.path(wanted, of), arrays)


def _text(value: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(orjson.dumps(value), np.uint8)


@dataclass(frozen=True)
class Reading:
    """A unit of work: columns to read from one file of documents, or from a range of samples.

    Attributes:
        wanted: the columns, each with where it is kept, and the identity of what it is read from.
        source: the file; or a dataset, with the first sample and the one after the last.
    """

    wanted: tuple[tuple[ColumnStore, Wanted, tuple[Any, ...]], ...]
    source: DocumentFile | tuple[Dataset, int, int]

    def __str__(self) -> str:
        return self.source.name if isinstance(self.source, DocumentFile) else self.of

    @property
    def of(self) -> str:
        """Path of the file, or a name for the range of samples."""
        if isinstance(self.source, DocumentFile):
            return self.source.place
        dataset, first, stop = self.source
        return f"{dataset.url} {dataset.split or ''} samples {first} to {stop}"


def read_unit(unit: Reading) -> int:
    """Read the columns of a unit, unless another run has, and keep them. Return how many were read."""
    todo = [(kept, one, identity) for kept, one, identity in unit.wanted if kept.read(one, unit.of, identity) is None]
    chosen = list(dict.fromkeys(one for _, one, _ in todo))
    if not chosen:
        return 0
    if isinstance(unit.source, DocumentFile):
        found = read_columns(unit.source, chosen)
    else:
        found = read_samples(*unit.source, chosen)
    for kept, one, identity in todo:
        kept.write(one, unit.of, identity, found[one])
    return len(chosen)
