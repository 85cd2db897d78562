"""Rows of CSV files whose fields may be longer than the module `csv` allows."""

from __future__ import annotations

import csv
import itertools
import threading
from collections.abc import Iterable, Iterator

_limiting = threading.Lock()


def csv_rows(lines: Iterable[str], longest: int, *, delimiter: str = ",") -> Iterator[list[str]]:
    """Yield the cells of each row; an empty line is an empty row.

    The limit of `csv` belongs to the whole process, other libraries' readers included, so it is changed for 256 rows
    at a time.

    Args:
        lines: of the file, with their ends as they are.
        longest: characters that a field may have.
        delimiter: one character between fields.

    Raises:
        csv.Error: a field is longer, or the text is no CSV. As what `lines` raises, it comes after the rows before it.
    """
    rows = csv.reader(lines, delimiter=delimiter)
    while True:
        batch: list[list[str]] = []
        failure: Exception | None = None
        with _limiting:
            before = csv.field_size_limit()
            csv.field_size_limit(max(before, longest))
            try:
                batch.extend(itertools.islice(rows, 256))
            except Exception as error:  # rows before it are given first
                failure = error
            finally:
                csv.field_size_limit(before)
        yield from batch
        if failure is not None:
            raise failure
        if not batch:
            return
