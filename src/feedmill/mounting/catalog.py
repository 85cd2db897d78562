"""List the names of a dataset as folders and files, read from an index on demand.

Samples are shown flat (the file ``key.part``) or as one folder per sample (``key/last.part``, where ``last`` is the
key's last component). Slashes in keys become folders. If a file and a folder have the same name, the folder is shown.

A tar of the folder ``.`` has keys that begin with ``./``: if all keys do, the prefix is the root. Other components that
a file system cannot show are replaced: ``.`` by ``%2E``, ``..`` by ``%2E%2E``, and an empty one, as in ``/a/b``, by
``%``.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from feedmill.formats.energon.database import bad_index, open_index
from feedmill.formats.sample import number_of

_KEYS = "SELECT sample_key FROM samples WHERE sample_key >= ? AND sample_key < ? ORDER BY sample_key LIMIT ?"
_FILES = (  # the parts of the samples between two keys
    "SELECT s.sample_key, p.part_name FROM samples s"
    " JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index"
    " WHERE s.sample_key >= ? AND s.sample_key < ? ORDER BY s.sample_key, p.content_byte_offset"
)
_PARTS = (
    "SELECT p.part_name, p.content_byte_size, p.content_byte_offset, s.tar_file_id, s.sample_index FROM samples s"
    " JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index"
    " WHERE s.sample_key = ? ORDER BY p.content_byte_offset"
)
_EDGES = "SELECT MIN(sample_key), MAX(sample_key) FROM samples"
_LAST = "\U0010ffff"
_HERE = "./"
_SHOWN = {"": "%", ".": "%2E", "..": "%2E%2E"}
_MEANT = {shown: name for name, shown in _SHOWN.items()}
_AT_ONCE = 1000


class File(NamedTuple):
    """A part: its member's name, size in bytes, and location."""

    name: str
    size: int
    offset: int = 0
    shard: int = 0
    sample: int = 0


class Child(NamedTuple):
    """An entry of a folder."""

    name: str
    is_folder: bool


class Catalog(ABC):
    """Interface of a tree of names below one root. Folders are given as ``""`` or ``"a/b/"``. It is thread-safe."""

    @abstractmethod
    def children(self, folder: str) -> Iterator[Child]:
        """Yield the entries of an existing folder, each once."""

    @abstractmethod
    def is_folder(self, folder: str) -> bool:
        """Return whether the folder exists."""

    @abstractmethod
    def file(self, path: str) -> File | None:
        """Return the file at a path, or None."""


class IndexCatalog(Catalog):
    """Catalog of the names in an ``index.sqlite``.

    Args:
        database: The index, written by Energon 7.0 or later or by Feedmill.
        sample_folders: Show each sample as a folder.
    """

    def __init__(self, database: Path, sample_folders: bool) -> None:
        self.database, self.sample_folders = database, sample_folders
        # A pool rather than a connection per thread, because every FUSE call appears to Python as a new thread.
        self._idle: list[sqlite3.Connection] = []

    def _ask(self, question: str, arguments: tuple[str | int, ...]) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = open_index(self.database)
            connection.execute("PRAGMA mmap_size = 0")  # otherwise each connection would map the whole file
            connection.execute("PRAGMA cache_size = -4096")
        try:
            return connection.execute(question, arguments).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # sqlite raises both for corrupt text
            raise bad_index(str(self.database), str(error)) from None
        finally:
            self._idle.append(connection)

    @cached_property
    def _root(self) -> str:
        """The prefix of all keys that the root replaces."""
        edges = self._ask(_EDGES, ())[0]
        return _HERE if all(type(key) is str and key.startswith(_HERE) for key in edges) else ""

    def _meant(self, path: str) -> str:
        """Convert a displayed path to the path in the index."""
        parts = path.split("/")
        last = parts.pop()
        return self._root + "".join(f"{_MEANT.get(part, part)}/" for part in parts) + last

    def children(self, folder: str) -> Iterator[Child]:
        for child in self._children(self._meant(folder)):
            yield Child(_SHOWN[child.name], child.is_folder) if child.name in _SHOWN else child

    def _children(self, folder: str) -> Iterator[Child]:
        if self.sample_folders and folder:
            key = folder[:-1]
            last = key.rpartition("/")[2]
            for name in dict.fromkeys(part for part, *_ in self._parts(key)):
                if not self._is_folder(f"{folder}{last}.{name}/"):
                    yield Child(f"{last}.{name}", False)
        cursor, end = folder, folder + _LAST
        while True:
            keys = [key for (key,) in self._ask(_KEYS, (cursor, end, _AT_ONCE))]
            if not keys:
                return
            if not all(type(key) is str and cursor <= key for key in keys):  # otherwise the loop would never end
                raise bad_index(str(self.database), f"its keys from {cursor!r:.80} on are out of order")
            here, cursor = self._before_folder(keys, len(folder))
            yield from self._samples(folder, here)
            if len(here) < len(keys):
                name = keys[len(here)][len(folder) :].partition("/")[0]
                cursor = f"{folder}{name}0"  # the first text that sorts after all keys with the prefix "name/"
                if not (self.sample_folders and self._parts(folder + name)):
                    yield Child(name, True)

    def _before_folder(self, keys: list[str], skip: int) -> tuple[list[str], str]:
        """Return the keys before the first one in a subfolder, and the cursor to continue from."""
        for i, key in enumerate(keys):
            if "/" in key[skip:]:
                return keys[:i], ""
        return keys, keys[-1] + "\0"

    def _samples(self, folder: str, keys: list[str]) -> Iterator[Child]:
        if not keys:
            return
        skip = len(folder)
        if self.sample_folders:
            yield from (Child(key[skip:], True) for key in keys if len(key) > skip)
            return
        last = None
        for key, part in self._ask(_FILES, (keys[0], keys[-1] + "\0")):
            name = f"{key[skip:]}.{part}"
            if name != last:  # if two parts have one name, the first is shown
                yield Child(name, False)
            last = name

    def is_folder(self, folder: str) -> bool:
        return not folder or self._is_folder(self._meant(folder))

    def _is_folder(self, folder: str) -> bool:
        if self._ask(_KEYS, (folder, folder + _LAST, 1)):
            return True
        return self.sample_folders and bool(self._parts(folder[:-1]))

    def _parts(self, key: str) -> list[tuple[Any, ...]]:
        return self._ask(_PARTS, (key,))

    def file(self, path: str) -> File | None:
        where, slash, name = self._meant(path).rpartition("/")
        key, dot, part = name.partition(".")
        if not dot:
            return None
        if self.sample_folders and where.rpartition("/")[2] != key:
            return None
        key = where if self.sample_folders else f"{where}{slash}{key}"
        for found, size, offset, shard, sample in self._parts(key):
            if found == part:
                if not all(type(value) is int for value in (size, offset, shard, sample)):
                    raise bad_index(str(self.database), f"the location of {key}.{part} is not a number")
                return File(f"{key}.{part}", size, offset, shard, sample)
        return None


class LinesCatalog(Catalog):
    """Catalog of the records of a JSONL file: ``<number>.json``.

    Args:
        sizes: Number of a record -> its size in bytes.
        count: Number of records.
        sample_folders: Show each record as a folder.
    """

    def __init__(self, sizes: Mapping[int, int], count: int, sample_folders: bool) -> None:
        self.sizes, self.count, self.sample_folders = sizes, count, sample_folders

    def children(self, folder: str) -> Iterator[Child]:
        if folder:
            yield Child(f"{folder[:-1]}.json", False)
            return
        for number in range(self.count):
            yield Child(str(number), True) if self.sample_folders else Child(f"{number}.json", False)

    def is_folder(self, folder: str) -> bool:
        return not folder or (self.sample_folders and self._number(folder[:-1]) is not None)

    def _number(self, text: str) -> int | None:
        return number_of(text, self.count)

    def file(self, path: str) -> File | None:
        where, _, name = path.rpartition("/")
        key, _, part = name.partition(".")
        number = self._number(key)
        if number is None or part != "json" or where != (key if self.sample_folders else ""):
            return None
        return File(name, self.sizes[number], sample=number)
