"""Trees of JSON lines, as Dolma stores documents: their files, rows and output names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from feedmill.documents.file import is_hidden
from feedmill.errors import DataError, NotFound
from feedmill.formats.documents import read_rows
from feedmill.formats.jsonl import LINE_SUFFIXES
from feedmill.formats.objects import decode_json
from feedmill.formats.tar.names import common_top, expand_patterns, is_pattern
from feedmill.storage import Entry, is_local_folder, open_store, split_url


def is_tree(url: str) -> bool:
    """Return whether a folder holds files of JSON lines."""
    try:
        return any(not is_hidden(entry.path) for entry in open_store(url).files(suffixes=LINE_SUFFIXES))
    except NotFound:
        return False


def line_files(url: str) -> tuple[str, list[Entry]]:
    """Return the folder of a tree, a pattern or a single file, and its files of JSON lines, sorted by path.

    Raises:
        NotFound: there are no files of JSON lines.
    """
    if is_pattern(url):
        folder, names = common_top(expand_patterns([url]))
        store = open_store(folder)
        return folder, [store.stat(name) for name in sorted(names)]
    if url.endswith(LINE_SUFFIXES) and not is_local_folder(url):
        folder, name = split_url(url)
        store = open_store(folder)
        if store.exists(name):
            return folder, [store.stat(name)]
    found = [entry for entry in open_store(url).files(suffixes=LINE_SUFFIXES) if not is_hidden(entry.path)]
    if not found:
        raise NotFound("there are no files of JSON lines", file=url, kind="no-documents", fix="Check the path.")
    return url, found


def stem(path: str) -> str:
    """Return a path without its suffix for JSON lines.

    >>> stem("documents/web/0.jsonl.gz")
    'documents/web/0'
    """
    suffix = max((s for s in LINE_SUFFIXES if path.endswith(s)), key=len)
    return path[: -len(suffix)]


def rows_in(folder: str, path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the number (from 0, blank lines are counted) and bytes of each row of a file. Blank lines are skipped."""
    number = 0
    for rows in read_rows(open_store(folder), path):
        for row in rows:
            if row and not row.isspace():
                yield number, row
            number += 1


class Line(dict[str, Any]):
    """The object of a line, with the bytes of the line: they are copied unchanged when lines are written again."""

    line: bytes


def parse(line: bytes) -> Line:
    """Return the object of a line. Raises `DataError` if the line is not a JSON object."""
    try:
        row = decode_json(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the line is not valid JSON ({error})", kind="bad-line", fix="Fix the line.") from None
    if type(row) is not dict:
        raise DataError("the line is not a JSON object", kind="bad-line", fix="Write one complete object per line.")
    out = Line(row)
    out.line = line
    return out
