"""Rows of CSV files with long fields."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import pytest

from feedmill.formats.csv_rows import csv_rows


def test_longer_fields_than_csv_allows_and_its_limit_stays() -> None:
    limit = csv.field_size_limit()
    rows = csv_rows([f"a;{'x' * (limit + 1)}\r\n", "\r\n", '"b;";2\r\n'], 2 * limit, delimiter=";")
    first = next(rows)
    assert csv.field_size_limit() == limit
    assert (first[0], len(first[1])) == ("a", limit + 1)
    assert list(rows) == [[], ["b;", "2"]]


def test_rows_before_a_failure_are_given() -> None:
    limit = csv.field_size_limit()

    def lines() -> Iterator[str]:
        yield from ["1\n"] * 300
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    given = []
    with pytest.raises(UnicodeDecodeError):
        for row in csv_rows(lines(), 10):
            given.append(row)
    assert given == [["1"]] * 300
    with pytest.raises(csv.Error, match="larger than field limit"):
        list(csv_rows(["x" * (limit + 1)], limit))
    assert csv.field_size_limit() == limit
