"""Read rows of columns as values, by the table of all types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

from feedmill.errors import DataError
from feedmill.formats.arrowtypes import table as types
from feedmill.formats.arrowtypes.arrays import chunks_of, items_at, take
from feedmill.formats.arrowtypes.features import features_of
from feedmill.formats.arrowtypes.nested import read_all
from feedmill.formats.arrowtypes.place import Context, Direct, Place, Read, Unreadable, placed, type_of
from feedmill.formats.columns import load_pyarrow
from feedmill.formats.offsets import Int64s
from feedmill.formats.rows import Lazy


class Columns:
    """The readers of a file's columns.

    Args:
        schema: the `pyarrow.Schema`.
        file: path or URL, for errors.
        features: column -> feature of `datasets`, if the schema's metadata has none.
        plain: whether values are those of documents: lists instead of arrays, and ``{bytes, path}`` for files.

    Attributes:
        suffixes: columns that hold files, see `RowsDataset.suffixes`.

    Raises:
        DataError: there are no columns, two have the same name, or a type is not supported.
    """

    def __init__(
        self,
        schema: Any,
        file: str | None = None,
        *,
        features: Mapping[str, Any] | None = None,
        plain: bool = False,
    ) -> None:
        check_names(schema.names, file, plain=plain)
        known = features_of(schema, file) or features or {}
        context = Context(_find, file, plain)
        self._reads = {field.name: _reader(field, field.name, known.get(field.name), context) for field in schema}
        self.suffixes = context.suffixes

    def rows(self, table: Any, numbers: Int64s) -> list[dict[str, Any]]:
        """Return rows of a table or record batch as dicts of samples.

        A value that Python does not have is a `Lazy` that raises `DataError`: other values of its row, and other rows,
        can be read.
        """
        names = table.schema.names
        columns = [self._at(name, column, numbers) for name, column in zip(names, table.columns, strict=True)]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def singly(self, table: Any) -> list[tuple[str, Any, Any]]:
        """Return the names of a table's columns, the array from which `row` takes a value or None, and the columns."""
        named = zip(table.schema.names, table.columns, strict=True)
        return [
            (name, chunks[0] if len(chunks := chunks_of(column)) == 1 and self._is_direct(name) else None, column)
            for name, column in named
        ]

    def row(self, singly: Sequence[tuple[str, Any, Any]], number: int) -> dict[str, Any]:
        """Return the one row of `rows` for a table of which `singly` was asked before."""
        found = {}
        for name, array, column in singly:
            if array is not None:
                with suppress(ValueError, OverflowError, LookupError):
                    found[name] = array[number].as_py()
                    continue
            (found[name],) = self._each(name, column.slice(number, 1), _refusing)
        return found

    def _is_direct(self, name: str) -> bool:
        return isinstance(self._reads[name], Direct)

    def _at(self, name: str, column: Any, numbers: Int64s) -> list[Any]:
        """Return rows of a column. Bytes and text are copied once, by their offsets."""
        chunks = chunks_of(column)
        if len(chunks) == 1 and self._is_direct(name):
            with suppress(ValueError, OverflowError, LookupError):  # such as text that is not UTF-8: see below
                if (found := items_at(chunks[0], numbers)) is not None:
                    return found
        return self._each(name, take(column, numbers), _refusing)

    def values(self, table: Any) -> dict[str, list[Any]]:
        """Return the values of each column; `Unreadable` in place of those that Python does not have."""
        names = table.schema.names
        return {name: self._each(name, column) for name, column in zip(names, table.columns, strict=True)}

    def documents(self, table: Any) -> list[dict[str, Any]]:
        """Return the rows as dicts, with values as of `values`."""
        columns = self.values(table)
        rows = zip(*columns.values(), strict=True) if columns else [()] * table.num_rows
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _each(self, name: str, column: Any, marked: Callable[[Unreadable], Any] = lambda error: error) -> list[Any]:
        read = self._reads[name]
        try:
            return read_all(read, column)
        except Unreadable:
            return [_one(read, column.slice(row, 1), marked) for row in range(len(column))]


def values(column: Any, name: str = "") -> list[Any]:
    """Return the values of an array or chunked array of the column `name`.

    Raises:
        Unreadable: Python has no such value.
        DataError: the type is not supported.
    """
    field = load_pyarrow().field(name, column.type)
    return read_all(_reader(field, name, None, Context(_find)), column)


def _one(read: Read, column: Any, marked: Callable[[Unreadable], Any]) -> Any:
    try:
        return read_all(read, column)[0]
    except Unreadable as error:
        return marked(error)


def _refusing(error: Unreadable) -> Lazy:
    return Lazy(partial(_refuse, error), partial(_refuse, error))


def _refuse(error: Unreadable) -> Any:
    raise error.located()


def _reader(field: Any, column: str, feature: Any, context: Context) -> Read:
    return _find(placed(field, Place(None, column, column, context, feature)))


def _find(place: Place) -> Read:
    """Return the reader of a place by the first row of the table that fits: feature, extension type, type."""
    feature = type_of(place.feature)
    if feature:
        read = _made(_by_name(types.FEATURES).get(feature), place, f"has the feature {feature!r} of 'datasets'")
        if read is not None:
            return read
    if place.extension:
        row = _by_name(types.EXTENSIONS).get(place.extension)
        read = _made(row, place, f"has the extension type {place.extension!r}")
        if read is None:
            place.refuse(
                f"has the extension type {place.extension!r}, but is stored as {place.kind}", "Write it again."
            )
        return read
    read = _made(_types().get(place.kind.id), place, f"has the type {place.kind}")
    assert read is not None
    return read


def _made(row: types.Row | None, place: Place, what: str) -> Read | None:
    if row is None or row.make is None:
        fix = "Write the column with a type of Arrow, or leave it out; the types are listed in docs/formats/parquet.md."
        place.refuse(f"{what}, which is not supported", fix)
    return row.make(place)


@cache
def _by_name(rows: tuple[types.Row, ...]) -> dict[str, types.Row]:
    return {name: row for row in rows for name in row.names}


@cache
def _types() -> dict[int, types.Row]:
    """Return the rows of Arrow's types by their number in pyarrow."""
    lib = load_pyarrow().lib
    return {getattr(lib, f"Type_{name}"): row for name, row in _by_name(types.TYPES).items()}


def check_names(names: list[str], file: str | None, *, plain: bool = False) -> None:
    """Raise `DataError` if a file has no columns, unless they are those of documents, or two of one name."""
    if not names and not plain:  # of documents, columns are selected
        raise DataError("it has no columns", file=file, kind="no-column", fix="Write it with at least one column.")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"two columns have the same name, {twice[0]!r}, and only one of them could be read",
            file=file,
            kind="duplicate-part",
            fix="Rename or drop all but one.",
        )
