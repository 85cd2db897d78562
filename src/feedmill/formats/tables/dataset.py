"""Read tables as datasets, one sample per row: Parquet and Arrow files, and the base of formats with columns.

Layout: a ``.parquet`` file, or a folder of them at any depth, sorted by path; or ``.arrow``, ``.feather`` and
``.arrows`` files, in the same way. The schemas of the files are united (see `schemas.py`). A part is a column: text,
numbers, null, times and nested values as Python objects, lists of numbers as numpy arrays, bytes as bytes. Images and
audio stored as ``{bytes, path}`` (as Hugging Face writes them) are decoded. Keys are row numbers, or the values of the
column ``__key__`` if it exists.

Row groups are read whole and cached up to `CACHE_BYTES`; memory holds at least one. Rejected: files whose types differ
so that values would change, tables without columns, encrypted files, Feather of version 1, corrupt footers and pages
(checksums are verified if present).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.arrowtypes.arrays import filled, is_list, list_lengths, take_rows
from feedmill.formats.arrowtypes.features import with_features
from feedmill.formats.arrowtypes.reading import Columns, check_names, values
from feedmill.formats.base import Indices
from feedmill.formats.columns import ArrowFile, ColumnFile, ParquetFile, damaged, load_pyarrow
from feedmill.formats.costs import field_costs, field_values, text_hashes
from feedmill.formats.format import OpenRequest
from feedmill.formats.offsets import Int64s, place_of
from feedmill.formats.rows import BlockCache, RowsDataset
from feedmill.formats.sample import no_such_key
from feedmill.formats.tables import ARROW_SUFFIXES
from feedmill.formats.unread_files import listed
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store, open_store

if TYPE_CHECKING:
    from feedmill.formats.tables.schemas import Unity

KEY = "__key__"
_LEROBOT = "/meta/info.json"
_INSIDE = re.compile(r"(.+)/data(?:/chunk-[0-9]+)?/?")
"""A folder that may be that of the tables of a LeRobot dataset."""
_MANAGED = {
    "a Delta": re.compile(r"(^|/)_delta_log/[^/]+\.json$"),
    "an Iceberg": re.compile(r"(^|/)metadata/[^/]+\.metadata\.json$"),
}
"""Kind of table -> its log, among the files of the folder. Removed and replaced rows stay in files beside it."""
_HIVE = re.compile(r"(?:(?<=/)|^)(([^/=]+)=[^/]*)(?=/)")
CACHE_BYTES = 512 << 20
"""Maximum bytes of decoded row groups cached by an open dataset."""


class OpenFiles(list[ColumnFile]):
    """The opened files of one table.

    Attributes:
        remarks: messages about columns that some files lack, and about bytes that are not read.
    """

    remarks: Sequence[str] = ()


@dataclass(slots=True)
class _Block:
    """A block in memory, and its columns as `Columns.row` takes them, once a single row was read."""

    table: Any
    singly: list[tuple[str, Any, Any]] | None = None


class TableDataset(RowsDataset):
    """The rows of files of columns.

    Args:
        files: paths in the store.
        columns: the opened files; by default, all are opened as Parquet.
        key_column: the column with the keys; None for row numbers.
        features: column -> feature of `datasets`, if the files do not have them.

    Raises:
        DataError: a column has a type that is not supported, or the name of another.
    """

    format: ClassVar[str] = "parquet"

    def __init__(
        self,
        store: Store,
        files: Sequence[str],
        *,
        name: str,
        split: str | None = None,
        columns: Sequence[ColumnFile] | None = None,
        key_column: str | None = None,
        base: str | None = None,
        features: Mapping[str, Any] | None = None,
    ) -> None:
        self._columns = open_columns(store, files, ParquetFile) if columns is None else columns
        super().__init__(store, name=name, files=files, counts=self._counted(), split=split, base=base)
        self.schema = with_features(self._first_schema(), features)
        self.names: list[str] = list(self.schema.names) if self.schema is not None else []
        self._features = features
        self._readers: dict[int, Columns] = {}
        self.suffixes = {} if self.schema is None else self._reader(0, self.schema).suffixes
        self.key_column = key_column or (KEY if KEY in self.names else None)
        self._blocks = BlockCache(CACHE_BYTES)
        self._located: set[int] = set()  # files whose block extents were read
        self._keys: list[list[str]] | None = None
        self._numbers: dict[str, int] | None = None

    @property
    def remarks(self) -> Sequence[str]:
        return getattr(self._columns, "remarks", ())

    def _first_schema(self) -> Any:
        """Return the `pyarrow.Schema` of the files; None without files."""
        return self._columns[0].schema if self._columns else None

    def _counted(self) -> Int64s:
        return np.asarray([len(file) for file in self._columns], np.int64)

    def _rows(self, file: int, local: Int64s) -> list[dict[str, Any]]:
        columns = self._columns[file]
        stored = self._stored(file, local)
        if len(stored) == 1:  # sorting one row by its block takes longer than reading it
            out = self._block_rows(file, place_of(columns.ends, int(stored[0]))[0], stored)
        else:
            block = np.searchsorted(columns.ends, stored, side="right")
            out = [{}] * len(stored)
            for number in np.unique(block).tolist():
                places = np.flatnonzero(block == number)
                for place, row in zip(places.tolist(), self._block_rows(file, number, stored[places]), strict=True):
                    out[place] = row
        if self.key_column is not None:
            for row in out:
                row.pop(self.key_column, None)
        return out

    def _block_rows(self, file: int, number: int, stored: Int64s) -> list[dict[str, Any]]:
        """Return the values of rows of one block by their numbers in the file, int64[n]. Raises `DataError`."""
        columns, table = self._columns[file], self._block(file, number).table
        first = int(columns.ends[number - 1]) if number else 0
        rows = self._reader(file, table.schema).rows(table, stored - first)
        if len(rows) != len(stored):
            where, record = self.store.locate(self.files[file]), f"rows {stored[0]} ..."
            error = ValueError(f"{len(rows)} rows of {len(stored)} could be read")
            raise damaged(where, error, offset=int(columns.extents[number, 0]), record=record)
        return rows

    def _row(self, file: int, local: int) -> dict[str, Any]:
        stored = int(self._stored(file, np.asarray([local], np.int64))[0])
        number, at = place_of(self._columns[file].ends, stored)
        block = self._block(file, number)
        if at >= block.table.num_rows or type(self)._rows is not TableDataset._rows:
            return super()._row(file, local)  # damaged, or the rows of a format with files of its own
        reader = self._readers.get(file) or self._reader(file, block.table.schema)
        if block.singly is None:
            block.singly = reader.singly(block.table)
        row = reader.row(block.singly, at)
        if self.key_column is not None:
            row.pop(self.key_column, None)
        return row

    def _block(self, file: int, number: int) -> _Block:
        def read() -> tuple[_Block, int]:
            table, size = self._columns[file].read(number)
            return _Block(table), size

        return cast(_Block, self._blocks.get((file, number), read))

    def _reader(self, file: int, schema: Any) -> Columns:
        """Return the readers of a file's columns. Raises `DataError`."""
        if file not in self._readers:
            where = self.store.locate(self.files[file])
            self._readers[file] = Columns(schema, where, features=self._features)
        return self._readers[file]

    def _load(self, files: Sequence[int]) -> None:
        missing = [file for file in files if file not in self._located]
        workers = min(64, len(missing)) if len(missing) > 1 else 0
        for _ in ordered_map(lambda file: self._columns[file].extents, missing, workers=workers, in_flight=128):
            pass
        self._located.update(missing)
        if self.key_column is not None:
            self._all_keys()

    def _ranges(self, file: int, local: Int64s) -> tuple[Int64s, Int64s, Int64s] | None:
        columns = self._columns[file]
        if not isinstance(columns, ParquetFile):  # Arrow files are copied when they are opened
            return None
        numbers, block = np.unique(
            np.searchsorted(columns.ends, self._stored(file, local), side="right"), return_inverse=True
        )
        missing = np.asarray([(file, number) not in self._blocks for number in numbers.tolist()], bool)
        which = np.flatnonzero(missing[block])
        begins, lengths = columns.extents[numbers[block[which]]].T
        return which, begins, begins + lengths

    def arrow_rows(self, indices: Indices) -> Any:
        """Return rows as an Arrow table with all columns, in the requested order. `indices`: int64 in ``[0, len)``."""
        pyarrow = load_pyarrow()
        wanted = np.asarray(indices, np.int64)
        if not len(wanted):
            return (self.schema or pyarrow.schema([])).empty_table()
        files = np.searchsorted(self._ends, wanted, side="right")
        pieces = []
        for places in np.split(np.arange(len(wanted)), np.flatnonzero(np.diff(files)) + 1):
            number = int(files[places[0]])
            columns = self._columns[number]
            stored = self._stored(number, wanted[places] - self._starts[number])
            blocks = np.searchsorted(columns.ends, stored, side="right")
            for run in np.split(np.arange(len(stored)), np.flatnonzero(np.diff(blocks)) + 1):
                block = int(blocks[run[0]])
                table = self._block(number, block).table
                first = int(columns.ends[block - 1]) if block else 0
                piece = take_rows(table, stored[run] - first)
                if not piece.schema.equals(self.schema):  # of a format whose files are opened one by one, as LeRobot's
                    from feedmill.formats.tables.schemas import fitted

                    piece = fitted(piece, self.schema, self.store.locate(self.files[number]))
                pieces.append(piece)
        return pyarrow.concat_tables(pieces)

    def blocks(self, indices: range) -> list[range]:
        """Divide consecutive samples by block: the samples of a block are read, or lost, together."""
        wanted = np.asarray(indices, np.int64)
        files = np.searchsorted(self._ends, wanted, side="right")
        cuts = [0]
        for number in np.unique(files).tolist():
            stored = self._stored(number, wanted[files == number] - self._starts[number])
            blocks = np.searchsorted(self._columns[number].ends, stored, side="right")
            cuts += [cuts[-1] + int(at) for at in np.flatnonzero(np.diff(blocks, append=-1)) + 1]
        return [indices[a:b] for a, b in pairwise(cuts)]

    def _extent(self, file: int, local: int) -> tuple[int, int]:
        columns = self._columns[file]
        stored = int(self._stored(file, np.asarray([local]))[0])
        offset, length = columns.extents[int(np.searchsorted(columns.ends, stored, side="right"))].tolist()
        return offset, length

    def _file_hash(self, file: int) -> str:
        return self._columns[file].digest

    def _key(self, file: int, local: int) -> str:
        return super()._key(file, local) if self.key_column is None else self._all_keys()[file][local]

    def _all_keys(self) -> list[list[str]]:
        """Return the key of every sample, read once from the key column alone."""
        if self._keys is None:
            workers = 0 if self.store.is_local else 16
            files = range(len(self.files))
            self._keys = list(ordered_map(self._keys_of, files, workers=workers, in_flight=64))
        return self._keys

    def _keys_of(self, file: int) -> list[str]:
        assert self.key_column is not None
        columns = self._columns[file]
        found: list[str] = []
        for block in range(len(columns.ends)):
            column = columns.read(block, [self.key_column])[0].column(0)
            if column.null_count:
                raise DataError(
                    f"{column.null_count:,} rows have no key in the column {self.key_column!r}",
                    file=self.store.locate(self.files[file]),
                    kind="missing-field",
                    fix="Give each row a key, or rename the column: then keys are row numbers.",
                )
            where, record = self.store.locate(self.files[file]), f"column {self.key_column!r}"
            try:
                keys = values(column)
            except ValueError as error:  # text that is not UTF-8
                raise damaged(where, error, offset=int(columns.extents[block, 0]), record=record) from None
            found.extend(_as_key(key, where, record) for key in keys)
        stored = self._stored(file, np.arange(int(self.counts[file])))
        return found if len(stored) == len(found) else [found[at] for at in stored.tolist()]

    @property
    def cost_fields(self) -> Sequence[str]:
        types = load_pyarrow().types
        fields = self.schema or ()
        return [field.name for field in fields if types.is_integer(field.type) or types.is_floating(field.type)]

    def _find_costs(self, by: str) -> Int64s | None:
        """Return the values of a numeric column, read alone."""
        if by not in self.cost_fields:
            return None
        return field_costs(*self._numbers_of(by, filled), by, file=self.url)

    def _find_values(self, by: str, *, texts: bool) -> npt.NDArray[Any] | None:
        if by in self.cost_fields:
            return field_values(*self._numbers_of(by, filled), by, file=self.url)
        types, known = load_pyarrow().types, {field.name: field.type for field in self.schema or ()}
        if not texts or by not in known or not (types.is_string(known[by]) or types.is_large_string(known[by])):
            return None
        return field_values(*self._numbers_of(by, _hashes), by, file=self.url)

    def _numbers_of(
        self, name: str, numbers_of: Callable[[Any], npt.NDArray[Any]]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return a number for each value of a column, and whether it is there."""
        numbers, present = [np.zeros(0, np.int64)], [np.zeros(0, bool)]
        for blocks, stored in self._column(name):
            numbers.append(np.concatenate([numbers_of(block) for block in blocks])[stored])
            present.append(np.concatenate([np.asarray(block.is_valid()) for block in blocks])[stored])
        return np.concatenate(numbers[1:] or numbers), np.concatenate(present)

    def _column(self, name: str) -> Iterator[tuple[list[Any], Int64s]]:
        """Yield for each file a column in its blocks, and the rows of them that the dataset has, int64[n]."""
        for file, columns in enumerate(self._columns):
            blocks = [columns.read(block, [name])[0].column(0) for block in range(len(columns.ends))]
            yield blocks, self._stored(file, np.arange(int(self.counts[file])))

    def list_lengths(self, column: str) -> Int64s | None:
        """Return the length of each row's list in a column, which is read alone; None if it has no lists.

        Null has the length 0.
        """
        if self.schema is None or column not in self.names or not is_list(self.schema.field(column).type):
            return None
        found = [np.zeros(0, np.int64)]
        for blocks, stored in self._column(column):
            found.append(np.concatenate([np.zeros(0, np.int64), *map(list_lengths, blocks)])[stored])
        return np.concatenate(found).astype(np.int64)

    def costs_advice(self, by: str) -> str:
        if by == "tokens":
            return super().costs_advice(by)
        return f"Add a numeric column {by!r}, or choose one of: {', '.join(self.cost_fields) or 'none'}."

    def find(self, key: str) -> int:
        if self.key_column is None:
            return super().find(key)
        if self._numbers is None:
            numbers: dict[str, int] = {}
            for start, keys in zip(self._starts.tolist(), self._all_keys(), strict=True):
                for local, found in enumerate(keys):
                    numbers.setdefault(found, start + local)
            self._numbers = numbers
        if key not in self._numbers:
            raise no_such_key(self.url, key)
        return self._numbers[key]

    def verify(self) -> Sequence[FeedmillError]:
        """Read every block once, and then the keys."""
        findings: list[FeedmillError] = []
        for number in range(len(self.files)):
            try:
                columns = self._columns[number]
            except FeedmillError as error:
                findings.append(error)
                continue
            try:
                self._reader(number, columns.schema)
            except FeedmillError as error:
                findings.append(error)
            for block in range(len(columns.ends)):
                try:
                    columns.read(block)
                except FeedmillError as error:
                    findings.append(error)
        if self.key_column is not None and not findings:
            findings += self._wrong_keys(self._keys_of, self.key_column)
        return findings

    def describe(self) -> dict[str, Any]:
        """Return plain facts for `info`; ``columns`` maps each column to its type."""
        columns = {} if self.schema is None else {field.name: str(field.type) for field in self.schema}
        return {**super().describe(), "columns": columns, **({"remarks": list(self.remarks)} if self.remarks else {})}


def open_columns(store: Store, files: Sequence[str], opener: Callable[[Store, str], ColumnFile]) -> OpenFiles:
    """Open the files of one table, several at a time, and unite their schemas (see `feedmill.formats.tables.schemas`).

    Raises:
        DataError: a file cannot be read, has no columns or several of one name, or its columns differ from the others.
    """
    load_pyarrow()  # raises on this thread if pyarrow is missing
    from feedmill.formats.tables.schemas import Unity

    out, unity = OpenFiles(), Unity()
    with closing(ordered_map(lambda p: opener(store, p), files, workers=8, in_flight=32)) as opened:
        for path, columns in zip(files, opened, strict=True):
            check_names(columns.schema.names, store.locate(path))
            unity.add(columns.schema, path, store.locate(path))
            out.append(columns)
    for columns in out:
        columns.fit(unity.schema)
    out.remarks = [*unity.notes, *_in_folders(files, unity), *(remark for columns in out for remark in columns.remarks)]
    return out


def _as_key(value: Any, where: str, record: str) -> str:
    """Return a value of the column of keys as text. Raises `DataError` for bytes that are none."""
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        what, fix = (
            f"a key is bytes that are not UTF-8 text ({value!r:.60})",
            "Rename the column: keys are row numbers.",
        )
        raise DataError(what, file=where, record=record, kind="bad-encoding", fix=fix) from None


def _in_folders(files: Sequence[str], unity: Unity) -> Iterator[str]:
    """Yield notes on columns whose values are only in the names of folders, as Hive and Spark write them."""
    names = {name: part for path in files for part, name in _HIVE.findall(path)}
    for name, part in names.items():
        if name not in unity.schema.names:
            yield f"values of {name!r} are only in the names of folders, such as {part!r}: they are not read"


def _of_folder(store: Store, files: Sequence[str]) -> Iterator[str]:
    """Yield notes on a folder of Parquet files: what is beside them, and files that other readers leave out.

    Raises:
        ConfigError: the files are those of LeRobot datasets in folders below.
    """
    beside = [entry.path for entry in store.files(suffixes=(*ARROW_SUFFIXES, ".json"))]
    robots = [path.removesuffix(_LEROBOT) for path in beside if path.endswith(_LEROBOT)]
    if robots:
        raise ConfigError(
            f"{len(robots):,} LeRobot datasets lie below this folder, such as {robots[0]!r}: their Parquet files are"
            " frames, and tables about them",
            file=store.url,
            kind="other-format",
            fix=f"Open {store.locate(robots[0])}.",
        )
    inside = _INSIDE.fullmatch(store.url)
    if inside is not None and open_store(inside[1]).exists(_LEROBOT[1:]):
        yield f"these are tables of a LeRobot dataset: open {inside[1]} to have its cameras, tasks and episodes, too"
    others = [path for path in beside if path.endswith(ARROW_SUFFIXES)]
    if others:
        yield f"{listed(others, 'Arrow')} beside the Parquet files: not read"
    aside = [path for path in files if any(part.startswith("_") for part in path.split("/")[:-1])]
    if aside:
        yield (
            f"{listed(aside, 'Parquet')} in a folder whose name begins with '_', as unfinished work of Spark does: they"
            " are read, though other readers skip them"
        )
    for kind, sign in _MANAGED.items():
        if any(sign.search(path) for path in beside):
            yield f"this is the folder of {kind} table: files that its log no longer has are read too"


def open_parquet(store: Store, name: str, url: str, names: Sequence[str] = ()) -> TableDataset:
    """Open a Parquet file, several files, or a folder. Raises `NotFound`, `DataError`, `MissingExtra`."""
    files = _files(store, name, names, (".parquet",))
    columns = open_columns(store, files, ParquetFile)
    if not name and not names:
        columns.remarks = [*columns.remarks, *_of_folder(store, files)]
    return TableDataset(store, files, name=url, columns=columns, base=store.url if names else None)


def open_arrow(store: Store, name: str, url: str, names: Sequence[str] = ()) -> TableDataset:
    """Open an Arrow file, several files, or a folder. Raises `NotFound`, `DataError`, `MissingExtra`."""
    files = _files(store, name, names, ARROW_SUFFIXES)
    columns = open_columns(store, files, ArrowFile)
    return ArrowTable(store, files, name=url, columns=columns, base=store.url if names else None)


def _files(store: Store, name: str, names: Sequence[str], suffixes: tuple[str, ...]) -> list[str]:
    """Return the paths of a file, of several, or of all in a folder. Raises `NotFound`."""
    named = [name] if name else list(names)
    for path in named:
        if not store.exists(path):
            from feedmill.storage.codec import missing_file

            raise missing_file(store, path)
    return named or [entry.path for entry in store.files(suffixes=suffixes)]


def arrow_folder(store: Store) -> str | None:
    """Return a mark if the Arrow files of a folder are one table, else None.

    Those below a folder of `datasets` are not: it has caches beside its data, and lists the files of each split. Those
    of a Lance table say which of its rows are deleted.
    """
    if not any("/_deletions/" not in f"/{entry.path}" for entry in store.files(suffixes=ARROW_SUFFIXES)):
        return None
    names = {entry.path.rpartition("/")[2] for entry in store.files(suffixes=(".json",))}
    return None if names & {"state.json", "dataset_info.json"} or store.exists("meta_data/info.json") else ""


class ArrowTable(TableDataset):
    """The rows of Arrow files."""

    format: ClassVar[str] = "arrow"


def open_found_parquet(wanted: OpenRequest) -> TableDataset:
    """See `open_parquet`."""
    return open_parquet(wanted.store, wanted.name, wanted.url, wanted.names)


def open_found_arrow(wanted: OpenRequest) -> TableDataset:
    """See `open_arrow`."""
    return open_arrow(wanted.store, wanted.name, wanted.url, wanted.names)


def _hashes(column: Any) -> npt.NDArray[np.uint64]:
    """Return a hash of each text of an array or chunked array; of the empty one in place of nulls."""
    distinct = column.dictionary_encode()
    distinct = distinct.combine_chunks() if hasattr(distinct, "chunks") else distinct
    numbers = np.asarray(distinct.indices.fill_null(len(distinct.dictionary)), np.int64)
    hashes: npt.NDArray[np.uint64] = text_hashes([*distinct.dictionary.to_pylist(), ""])[numbers]
    return hashes
