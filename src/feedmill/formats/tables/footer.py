"""Read the locations of the row groups of a Parquet file from its footer.

pyarrow only returns them per column, and aborts the process (an uncaught C++ exception) if the size statistics of a
column are corrupt. So this module parses offsets and sizes of the footer itself. It is a struct of the Thrift compact
protocol: https://github.com/apache/parquet-format (parquet.thrift, ``FileMetaData``) and
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from feedmill.formats.offsets import Int64s

_MOST_DEPTH = 16
_ROW_GROUPS, _COLUMNS, _FILE, _METADATA, _CRYPTO, _PATH = 4, 1, 1, 3, 8, 3
_COMPRESSED_SIZE, _DATA_PAGE, _DICTIONARY_PAGE = 7, 9, 11


def unusual(footer: bytes) -> tuple[list[str], list[str]]:
    """Return the names of encrypted columns, and the other files that hold columns, as in ``_metadata`` of Spark.

    Raises:
        ValueError: the footer is corrupt.
    """
    try:
        columns = [each for group in _Reader(footer).struct(0).get(_ROW_GROUPS, []) for each in group[_COLUMNS]]
        encrypted = [column[_METADATA][_PATH][0].decode() for column in columns if _CRYPTO in column]
        files = [column[_FILE].decode() for column in columns if column.get(_FILE)]
        return list(dict.fromkeys(encrypted)), list(dict.fromkeys(files))
    except _ERRORS as error:
        raise _damaged(error) from None


def extents(footer: bytes) -> Int64s:
    """Return offset and length of each row group's columns in the file, int64[row groups, 2].

    Args:
        footer: the ``FileMetaData``, without the length and magic number after it.

    Raises:
        ValueError: the footer is corrupt.
    """
    try:
        groups = _Reader(footer).struct(0).get(_ROW_GROUPS, [])
        found = [_extent([column[_METADATA] for column in group[_COLUMNS] if _METADATA in column]) for group in groups]
        return np.asarray(found, np.int64).reshape(-1, 2)
    except _ERRORS as error:
        raise _damaged(error) from None


_ERRORS = (IndexError, KeyError, TypeError, AttributeError, OverflowError)


def _damaged(error: BaseException) -> ValueError:
    return ValueError(f"its footer is damaged ({type(error).__name__})")


def _extent(columns: list[dict[int, Any]]) -> tuple[int, int]:
    starts = [min(column[_DATA_PAGE], column.get(_DICTIONARY_PAGE) or column[_DATA_PAGE]) for column in columns]
    begin = min(starts, default=0)
    ends = [start + column[_COMPRESSED_SIZE] for start, column in zip(starts, columns, strict=True)]
    return begin, max(ends, default=0) - begin


class _Reader:
    """Reader of the Thrift compact protocol: structs as dicts by field number, lists as lists, text as bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._read: dict[int, Callable[[int], Any]] = {
            1: lambda _: True,
            2: lambda _: False,
            3: lambda _: self._byte(),
            4: lambda _: self._zigzag(),
            5: lambda _: self._zigzag(),
            6: lambda _: self._zigzag(),
            7: lambda _: self._skip(8),
            8: lambda _: self._bytes(self._varint()),
            9: self._list,
            10: self._list,
            12: self.struct,
        }

    def struct(self, depth: int) -> dict[int, Any]:
        """Return the struct at the current position."""
        if depth > _MOST_DEPTH:
            raise ValueError("its footer is nested too deeply")
        out: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._zigzag()
            out[field] = self._read[head & 15](depth + 1)
        return out

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > len(self._data) - self._at:
            raise ValueError("its footer is damaged (a list is longer than the file)")
        kind = head & 15
        read = (lambda _: self._byte() == 1) if kind in (1, 2) else self._read[kind]
        return [read(depth) for _ in range(count)]

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("its footer is damaged (a number is too long)")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _bytes(self, count: int) -> bytes:
        self._skip(count)
        return self._data[self._at - count : self._at]

    def _skip(self, count: int) -> None:
        self._at += count
        if self._at > len(self._data):
            raise IndexError
