"""Copies of a raw document: lines with the same text, and the near-duplicates that `neardedupe` named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from feedmill.curation.mix.verdict import attribute_files
from feedmill.documents.kinds import kind_of
from feedmill.documents.lineage.chain import Row, blocks_of, read_raw
from feedmill.documents.rows import load
from feedmill.formats.documents import rows_of
from feedmill.storage import open_store, split_url

MOST_BYTES, MOST_COPIES = 256 << 20, 100
"""Bytes of stored files that are searched, and copies that are returned."""
_OF = b'"duplicate_of":'


@dataclass(frozen=True)
class Copy:
    """A copy of a document: where it is, its id, and whether it has the same text or is a near-duplicate."""

    row: Row
    id: Any
    characters: int
    same: bool


def copies(files: Sequence[str], row: Row) -> tuple[list[Copy], bool]:
    """Return the copies of a document in some raw files, without itself, and whether all files were searched."""
    line = read_raw(row.path, [row.row])[row.row]
    document = load(line)
    texts = [path for path in files if kind_of(path) is not None]
    found, size, whole = dict[Row, bool](), 0, True
    near = _named(row, document)
    word = orjson.dumps(document.get("text"))[1:-1]
    for path in texts:
        folder, name = split_url(path)
        size += open_store(folder).stat(name).size
        if size > MOST_BYTES:
            whole = False
            break
        for other, data in _lines(path, word):
            if load(data).get("text") == document.get("text"):
                found[other] = True
        for original in near:
            for attributes in attribute_files(path).values():
                for other, _ in _lines(attributes, _OF + original):
                    found.setdefault(Row(path, other.row), False)
        for original in near:
            for other, data in _lines(path, original):
                if orjson.dumps(load(data).get("id")) == original:
                    found.setdefault(other, False)
    found.pop(row, None)
    chosen = list(found)[:MOST_COPIES]
    return [_copy(one, same=found[one]) for one in chosen], whole


def _named(row: Row, document: Any) -> list[bytes]:
    """Return the ids, as JSON, of which the document's near-duplicates are marked as duplicates."""
    rows = (read_raw(path, [row.row])[row.row] for path in attribute_files(row.path).values())
    named = {load(line).get("duplicate_of") for line in rows} - {None}
    return [orjson.dumps(one) for one in {*named, document.get("id")} - {None}]


def _lines(path: str, word: bytes) -> list[tuple[Row, bytes]]:
    """Return the lines of a file that have these bytes."""
    first, found = 0, []
    for block in blocks_of(path):
        if word not in block:
            first += block.count(b"\n")
            continue
        lines = rows_of(block)
        found += [(Row(path, first + n), line) for n, line in enumerate(lines) if word in line]
        first += len(lines)
    return found


def _copy(row: Row, *, same: bool) -> Copy:
    document = load(read_raw(row.path, [row.row])[row.row])
    text = document.get("text")
    return Copy(row, document.get("id"), len(text) if isinstance(text, str) else 0, same)
