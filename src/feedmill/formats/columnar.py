"""The interface for writing a format of shards with typed columns: a `ColumnWriter`, named by its `TargetFormat`.

`feedmill.converting` surveys the values of all samples, chooses the form of each column from the writer's `Forms`, and
passes it one shard of rows at a time.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from feedmill.storage import Store

JSON = "json"
"""Form of columns that hold any JSON value, including missing ones. Every format supports it."""


@dataclass(frozen=True)
class Forms:
    """The forms that columns of a format can have, by the kinds of values of `feedmill.converting.fates`.

    Attributes:
        kinds: kind of value -> the form that gives such values back.
        array: dtype and number of axes (0 also if it varies) -> the form of arrays, or "".
        text, bytes: the forms of text and of bytes.
        media: the form of encoded bytes of several kinds, such as images. If it is that of bytes, the name of a column
            must end in their suffix.
        exact: forms whose values are bytes and are stored unchanged.
        lists: the form of lists of encoded bytes of several kinds; "" if there is none.
        nulls: whether every form can have missing values.
        json: ``json`` if a column of JSON is read back as values, ``json text`` if as text.
    """

    kinds: Mapping[str, str]
    array: Callable[[np.dtype[Any], int], str]
    text: str
    bytes: str
    media: str
    exact: AbstractSet[str]
    lists: str = ""
    nulls: bool = False
    json: str = JSON

    def own(self, kinds: AbstractSet[str]) -> set[str]:
        """Return the forms that give values of these kinds back, "" among them if a kind has none."""
        arrays = [kind.split(":") for kind in kinds if kind.startswith("array:")]
        axes = {int(count) for _, _, count in arrays}
        found = {self.array(np.dtype(dtype), max(axes) if len(axes) == 1 else 0) for _, dtype, _ in arrays}
        return found | {
            self.kinds.get(kind, self.kinds.get(kind.partition(":")[0] if kind.startswith("media") else kind, ""))
            for kind in kinds
            if not kind.startswith("array:")
        }


def encode_json(value: Any) -> bytes:
    """Return the bytes of a value of the form `JSON`: arrays as lists, dates in ISO form, the rest as text."""
    return json.dumps(value, default=_as_json, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _as_json(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


class ColumnWriter(ABC):
    """Writer of samples as shards of columns.

    Attributes:
        forms: the forms of its columns.
        index: name of the index file in the folder of the shards; empty if there is none.
    """

    forms: ClassVar[Forms]
    index: ClassVar[str] = ""

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
