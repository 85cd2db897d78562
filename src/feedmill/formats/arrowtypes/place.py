"""A type of Arrow with its path in a table, from which the reader of its values is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from feedmill.errors import DataError
from feedmill.formats.columns import load_pyarrow

Read = Callable[[Any], list[Any]]
"""`pyarrow.Array` -> its values, in order; None for nulls. Raises `Unreadable`."""

_NAME, _PARAMETERS = b"ARROW:extension:name", b"ARROW:extension:metadata"
"""Keys of a field's metadata: the name of an extension type that pyarrow does not know, and its parameters."""


@dataclass(frozen=True, slots=True)
class Direct:
    """A `Read` whose values are those of pyarrow, which is fast; `read` names a value that pyarrow does not read."""

    read: Read

    def __call__(self, array: Any) -> list[Any]:
        try:
            values: list[Any] = array.to_pylist()
            return values
        except (ValueError, OverflowError, KeyError):  # KeyError: an unknown time zone
            return self.read(array)


class Unreadable(ValueError):
    """A stored value that has no value in Python.

    Attributes:
        path: where it stands, such as ``messages[].time``.
        cause: what it is, such as ``a date beyond the years 1 to 9999``.
    """

    fix = "Store such values as text or as numbers, or drop them."

    def __init__(self, path: str, cause: str) -> None:
        super().__init__(path, cause)
        self.path, self.cause = path, cause

    def __str__(self) -> str:
        return f"the column {self.path!r} holds {self.cause}"

    def located(self, file: str | None = None, row: int | None = None) -> DataError:
        """Return the error for users, in the row with this number."""
        what = f"{self}{'' if row is None else f', in row {row}'}"
        return DataError(what, file=file, kind="unreadable-value", fix=self.fix)


@dataclass(slots=True)
class Context:
    """Facts about a file that all its types share.

    Attributes:
        find: returns the reader of a place.
        file: path or URL, for errors.
        plain: whether values are those of documents: lists instead of arrays, and ``{bytes, path}`` for files.
        suffixes: column -> how its files are decoded, see `RowsDataset.suffixes`; filled by the makers of readers.
    """

    find: Callable[[Place], Read]
    file: str | None = None
    plain: bool = False
    suffixes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """A type, and its path in a table.

    Attributes:
        kind: the `pyarrow.DataType`.
        path: the column and the steps to the type, such as ``messages[].content``.
        column: name of the column.
        feature: the type by the metadata of `datasets`, as it is stored there; None if unknown.
        extension: name of an extension type; empty if it is none. Its arrays are those of its storage if pyarrow does
            not know it.
        parameters: of the extension type, as they are stored.
        top: whether its values are those of the column, and not part of them.
    """

    kind: Any
    path: str
    column: str
    context: Context
    feature: Any = None
    extension: str = ""
    parameters: bytes = b""
    top: bool = True

    def of(self, inner: Any, step: str = "", feature: Any = None) -> Read:
        """Return the reader of a type within this one.

        Args:
            inner: a `pyarrow.Field` or `pyarrow.DataType`.
            step: added to the path; if empty, the inner values are the values of this place.
        """
        top = self.top and not step
        return self.context.find(replace(placed(inner, self), path=self.path + step, feature=feature, top=top))

    @property
    def storage(self) -> Any:
        """Return the type that an extension type is stored as."""
        return self.kind.storage_type if isinstance(self.kind, load_pyarrow().BaseExtensionType) else self.kind

    def refuse(self, what: str, fix: str, kind: str = "unsupported") -> NoReturn:
        """Raise `DataError`: ``the column 'x' <what>``."""
        raise DataError(f"the column {self.path!r} {what}", file=self.context.file, kind=kind, fix=fix)


def type_of(feature: Any) -> str:
    """Return the name of a feature of `datasets`; empty for a structure, a list of one feature, or nothing."""
    name = feature.get("_type") if isinstance(feature, dict) else None
    return name if isinstance(name, str) else ""


def placed(inner: Any, place: Place) -> Place:
    """Return a place for a `pyarrow.Field` or `pyarrow.DataType`, otherwise as another."""
    kind, metadata = (inner.type, inner.metadata or {}) if hasattr(inner, "nullable") else (inner, {})
    name, parameters = metadata.get(_NAME, b"").decode("utf-8", "replace"), metadata.get(_PARAMETERS, b"")
    if isinstance(kind, load_pyarrow().BaseExtensionType):
        name = kind.extension_name
        parameters = kind.__arrow_ext_serialize__() if hasattr(kind, "__arrow_ext_serialize__") else b""
    return replace(place, kind=kind, extension=name, parameters=parameters)


def storage_of(array: Any) -> Any:
    """Return the storage of an array of an extension type, whether pyarrow knows the type or not."""
    return array.storage if isinstance(array, load_pyarrow().ExtensionArray) else array
