"""The interface for writing a format of shards with typed columns: a `ColumnWriter`, named by its `TargetFormat`.

`feedmill.converting` surveys the values of all samples, asks the writer for the form of each column, and passes it one
shard of rows at a time.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar

from feedmill.storage import Store

JSON = "json"
"""Form of columns that hold any JSON value, including missing ones. Every format supports it."""


def encode_json(value: Any) -> bytes:
    """Return the bytes of a value of the form `JSON`: arrays as lists, dates in ISO form, the rest as text."""
    return json.dumps(value, default=_plain, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


class ColumnWriter(ABC):
    """Writer of samples as shards of columns.

    Attributes:
        exact: forms whose values are bytes and are stored unchanged.
        index: name of the index file in the folder of the shards; empty if there is none.
    """

    exact: ClassVar[AbstractSet[str]]
    index: ClassVar[str] = ""

    @abstractmethod
    def form(self, kinds: AbstractSet[str], missing: bool) -> str:
        """Choose the form of a column.

        Args:
            kinds: kinds of its values: ``text``, ``bytes``, ``jpeg``, ``png``, ``int``, ``float``, ``bool``, ``json``,
                ``big`` (an integer beyond 64 bits), ``array:<dtype>:<axes>``.
            missing: whether some sample has no value.
        """

    @abstractmethod
    def encode(self, form: str, value: Any) -> Any:
        """Return a value as `write` takes it. Raises `DataError` if the form cannot hold it."""

    @abstractmethod
    def write(self, store: Store, path: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> Any:
        """Write one shard.

        Args:
            columns: column -> form.
            rows: for each sample the encoded values, in the order of the columns.

        Returns:
            Plain data that is passed to `finish`.

        Raises:
            DataError: the shard cannot be stored.
        """

    def finish(self, store: Store, shards: Sequence[Any]) -> None:  # noqa: B027 - most formats have nothing to complete
        """Complete the dataset, for example by writing its index. `shards` has the result of each `write`."""
