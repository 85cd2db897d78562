"""Copies of raw documents: lines with the same text, and the near-duplicates that `dedupe --near` named."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import xxhash

from feedmill.curation.mix.verdict import attribute_files
from feedmill.documents.file import kind_of
from feedmill.documents.lineage.chain import Row, blocks_of
from feedmill.documents.rows import load
from feedmill.formats.documents import rows_of
from feedmill.storage import open_store, split_url

MOST_BYTES, MOST_COPIES = 256 << 20, 100
"""Bytes of stored files that are read, and copies that are returned."""


@dataclass(frozen=True)
class Copy:
    """A copy of a document: where it is, its id, and whether it has the same text or is a near-duplicate."""

    row: Row
    id: Any
    characters: int
    same: bool


class Texts:
    """The texts of raw files as hashes, read once, to find copies.

    Args:
        files: raw files; those that are no documents are left out.

    Attributes:
        whole: whether all files were read. They are up to `MOST_BYTES`.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self.whole = True
        self._firsts: list[int] = []
        self._files: list[str] = []
        self._ids: list[Any] = []
        self._near: dict[str, list[int]] = defaultdict(list)  # id of an original -> its near-duplicates
        self._named: dict[int, set[str]] = defaultdict(set)  # document -> ids of its originals
        hashes, sizes, read = list[int](), list[int](), 0
        for path in (path for path in files if kind_of(path) is not None):
            folder, name = split_url(path)
            read += open_store(folder).stat(name).size
            if read > MOST_BYTES:
                self.whole = False
                break
            self._files.append(path)
            self._firsts.append(len(self._ids))
            for document in _documents(path):
                text = document.get("text")
                text = text if isinstance(text, str) else ""
                hashes.append(xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) if text else 0)
                sizes.append(len(text))
                self._ids.append(document.get("id"))
            for attributes in attribute_files(path).values():
                self._add_named(attributes, self._firsts[-1])
        self._hashes, self._sizes = np.array(hashes, np.uint64), np.array(sizes, np.int64)
        self._by_id: dict[str, list[int]] = defaultdict(list)
        for number, identity in enumerate(self._ids):
            if identity is not None and (word := _word(identity)) in self._near:
                self._by_id[word].append(number)

    def _add_named(self, attributes: str, first: int) -> None:
        """Add what a file of attributes says of near-duplicates."""
        for block_first, lines in _lines(attributes):
            for number, line in enumerate(lines, block_first):
                if b'"duplicate_of"' in line and (original := load(line).get("duplicate_of")) is not None:
                    self._near[_word(original)].append(first + number)
                    self._named[first + number].add(_word(original))

    def copies(self, row: Row) -> list[Copy]:
        """Return the copies of a document, without itself; none if its file was not read."""
        if row.path not in self._files:
            return []
        own = self._firsts[self._files.index(row.path)] + row.row
        if own >= len(self._ids):
            return []
        found = dict[int, bool]()
        if self._hashes[own]:
            found.update(dict.fromkeys(np.flatnonzero(self._hashes == self._hashes[own]).tolist(), True))
        identity = self._ids[own]
        for original in {*self._named.get(own, ()), *([] if identity is None else [_word(identity)])}:
            for number in (*self._by_id.get(original, ()), *self._near.get(original, ())):
                found.setdefault(number, False)
        found.pop(own, None)
        return [self._copy(number, same=found[number]) for number in list(found)[:MOST_COPIES]]

    def _copy(self, number: int, *, same: bool) -> Copy:
        file = int(np.searchsorted(self._firsts, number, side="right")) - 1
        place = Row(self._files[file], number - self._firsts[file])
        return Copy(place, self._ids[number], int(self._sizes[number]), same)


def _lines(path: str) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the lines of each block of a file, with the number of the first one."""
    first = 0
    for block in blocks_of(path):
        lines = rows_of(block)
        yield first, lines
        first += len(lines)


def _documents(path: str) -> Iterator[dict[str, Any]]:
    """Yield the documents of a file; an empty one for a line that is none."""
    for _, lines in _lines(path):
        for line in lines:
            try:
                value = load(line)
            except (orjson.JSONDecodeError, ValueError, RecursionError):
                value = None
            yield value if isinstance(value, dict) else {}


def _word(identity: Any) -> str:
    """Return an id as JSON, so that the number 1 and the text "1" differ."""
    return orjson.dumps(identity, default=str).decode("utf-8", "replace")
