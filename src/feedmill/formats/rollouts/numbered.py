"""A folder of numbered files that are published one after another and never change.

Each file has *facts*: a small JSON object that ends with its own checksum (`seal`). Opening lists the folder once and
reads the facts of all files; after that, only those of new files. As 10^5 files would be as many requests, the facts of
each 1,000 files are also kept in one file, ``.facts/<block>.z``: their lines, compressed (zlib). It is written by
whoever finds it missing or damaged. It depends on the numbered files alone, so it may be deleted at any time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import orjson

from feedmill.errors import DataError, FeedmillError, NotFound, StorageError
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store

BLOCK = 1000
_CHECKSUM = b',"crc32":"'


def seal(facts: dict[str, Any]) -> bytes:
    """Return facts as JSON that ends with its checksum.

    >>> seal({"step": 7})
    b'{"step":7,"crc32":"feaf18b5"}'
    """
    body = orjson.dumps(facts)[:-1]
    return b'%s%s%08x"}' % (body, _CHECKSUM, zlib.crc32(body))


def unseal(data: bytes, file: str) -> dict[str, Any]:
    """Return facts. Raises `DataError` if they are not what `seal` returned."""
    body, _, rest = data.rpartition(_CHECKSUM)
    if rest != b'%08x"}' % zlib.crc32(body) or not body:
        raise DataError(
            "its facts are damaged: their checksum differs",
            file=file,
            kind="bad-data",
            fix="Restore the file from a copy; it was never changed after it was written.",
        )
    found: dict[str, Any] = orjson.loads(body + b"}")
    return found


class Numbered:
    """Numbered files, and how many of them this process has seen.

    Args:
        store: where they are.
        folder: their folder in it, which need not exist.
        suffix: end of their names.
        sealed: returns the facts of a file as `seal` made them, given the store and its path; raises `NotFound`.

    Attributes:
        count: number of files that `new` has returned the facts of.
    """

    def __init__(self, store: Store, folder: str, suffix: str, sealed: Callable[[Store, str], bytes]) -> None:
        self.store, self.folder, self.suffix, self._sealed = store, folder, suffix, sealed
        self.count = 0
        self._listed = False
        self._block: list[bytes] = []  # sealed facts of the last block, while it is incomplete

    def path(self, number: int) -> str:
        """Return the path of a file in the store."""
        return f"{self.folder}/{number:08d}{self.suffix}"

    def publish(self, number: int, data: bytes) -> bool:
        """Write a file as a whole; return False if the number is taken. Raises `StorageError`."""
        return self.store.put_new(self.path(number), data)

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the facts of the files that are new since the last call, in order.

        Raises:
            DataError: a number is missing between others (kind ``missing-shard``), or a file is damaged.
        """
        if not self._listed:
            end = self.last()
            while self.count + BLOCK <= end and not self._block:
                facts = self.summary(self.count // BLOCK)
                if facts is None:
                    yield from self._each(self.count + BLOCK)
                else:
                    self.count += BLOCK
                    yield from facts
            yield from self._each(end)
            self._listed = True
        with suppress(NotFound):
            while True:
                yield self._seen(self._sealed(self.store, self.path(self.count)))

    def _each(self, end: int) -> Iterator[dict[str, Any]]:
        """Yield the facts of the files up to a number, each read by itself."""
        paths = [self.path(number) for number in range(self.count, end)]
        with closing(ordered_map(lambda path: self._sealed(self.store, path), paths, workers=8, in_flight=64)) as found:
            for line in found:
                yield self._seen(line)

    def _seen(self, line: bytes) -> dict[str, Any]:
        facts = unseal(line, self.store.locate(self.path(self.count)))
        self._block.append(line)
        self.count += 1
        if self.count % BLOCK == 0:
            data, self._block = zlib.compress(b"\n".join(self._block), 1), []
            with suppress(StorageError):  # a reader may have no right to write; others read the files themselves
                self.store.write_note(self.summary_path(self.count // BLOCK - 1), data)
        return facts

    def summary_path(self, block: int) -> str:
        """Return the path of the copies of a block's facts."""
        return f"{self.folder}/.facts/{block:08d}.z"

    def summary(self, block: int) -> list[dict[str, Any]] | None:
        """Return the facts of a block from their copies; None if there are none, or they are damaged."""
        try:
            lines = zlib.decompress(self.store.read(self.summary_path(block))).split(b"\n")
            facts = [unseal(line, "") for line in lines]
        except (FeedmillError, zlib.error):
            return None
        return facts if len(facts) == BLOCK else None

    def last(self) -> int:
        """Return the number after the last file. Raises `DataError` if one before it is missing."""
        numbers = self.listed()
        missing = sorted(set(range(numbers[-1] + 1)).difference(numbers)) if numbers else []
        for number in missing:  # it may have been published after its place was listed
            if not self.store.exists(self.path(number)):
                last = self.path(numbers[-1]).rpartition("/")[2]
                raise DataError(
                    f"this file is missing, but {last} is there: numbers have no holes",
                    file=self.store.locate(self.path(number)),
                    kind="missing-shard",
                    fix="Restore it from a copy. Files of this folder are never deleted one by one.",
                )
        return numbers[-1] + 1 if numbers else 0

    def listed(self) -> list[int]:
        """Return the numbers of the files in the folder, sorted."""
        try:
            entries = [entry.path for entry in self.store.files(self.folder, suffixes=(self.suffix,))]
        except NotFound:
            return []
        names = (path.removeprefix(f"{self.folder}/").removesuffix(self.suffix) for path in entries)
        return sorted(int(name) for name in names if len(name) == 8 and name.isdecimal() and name.isascii())
