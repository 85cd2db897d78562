"""Journal of the finished units of a job: an append-only file of frames.

    u64 length of name and facts, u32 length of the name, u64 xxh3 of both, name (UTF-8), facts

An object store cannot append to objects. There, each frame is a numbered object below that name.

A torn or foreign tail is ignored, and the next frame overwrites it. Frames are synced only by `sync`: a unit lost in a
power failure is processed again. A job that cannot process it again must call `sync`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import struct
from collections.abc import Iterator
from typing import BinaryIO

import xxhash

from feedmill.errors import NotFound
from feedmill.jobs.dry_run import active
from feedmill.jobs.threads import ordered_map
from feedmill.storage import LocalStore, Store
from feedmill.storage.os_errors import storage_error
from feedmill.storage.staging import sync

_HEAD = struct.Struct("<QIQ")
_NUMBERED = re.compile(r"/\d{12}-[0-9a-f]{8}$")
_AT_ONCE = 16
"""Number of frames read concurrently from an object store."""


class Units:
    """Finished units in the file `name` of a folder; read once, then appended to.

    Args:
        part: suffix of this process's own file, where several processes append: the parts of a job array.

    Attributes:
        place: the folder.
    """

    def __init__(self, place: Store, name: str, part: str = "") -> None:
        self._stem, self._suffix = os.path.splitext(name)
        self.place = self._place = place
        self._name = f"{self._stem}{part}{self._suffix}" if place.is_local else name  # objects have names of their own
        self._file: BinaryIO | None = None
        self._whole = 0
        self._next: int | None = None
        self._run = secrets.token_hex(4)

    def read(self) -> dict[str, bytes]:
        """Return the facts of each finished unit; the later facts if a unit was finished twice."""
        found = {}
        for data in self._blocks():
            at = 0
            while at + _HEAD.size <= len(data):
                length, named, digest = _HEAD.unpack_from(data, at)
                body = data[at + _HEAD.size : at + _HEAD.size + length]
                if len(body) < length or named > length or xxhash.xxh3_64_intdigest(body) != digest:
                    break
                with contextlib.suppress(UnicodeDecodeError):
                    found[str(body[:named], "utf-8")] = bytes(body[named:])
                at = self._whole = at + _HEAD.size + length
        return found

    def _blocks(self) -> Iterator[memoryview]:
        """Yield the frames of other parts, then this process's own."""
        if not isinstance(self._place, LocalStore):
            paths = self._objects()
            for data in ordered_map(self._place.read, paths, workers=_AT_ONCE, in_flight=2 * _AT_ONCE):
                yield memoryview(data)
            return
        for name in [*self._others(), self._name]:
            self._whole = 0
            with contextlib.suppress(NotFound):
                yield memoryview(self._place.read(name))

    def _others(self) -> list[str]:
        """Return the files of the parts of a job array, without this process's own."""
        assert isinstance(self._place, LocalStore)
        try:
            names = os.listdir(self._place.root)
        except (FileNotFoundError, NotADirectoryError):
            return []
        of_parts = re.compile(rf"{re.escape(self._stem)}(-\d+)?{re.escape(self._suffix)}")
        return sorted(name for name in names if of_parts.fullmatch(name) and name != self._name)

    def _objects(self) -> list[str]:
        """Return the paths of frames in an object store, in order."""
        with contextlib.suppress(NotFound):
            paths = [entry.path for entry in self._place.files(self._name) if _NUMBERED.search(entry.path)]
            self._next = 1 + (int(paths[-1].rpartition("/")[2][:12]) if paths else -1)
            return paths
        return []

    def add(self, unit: str, facts: bytes) -> None:
        """Append a finished unit. Raises `StorageError`.

        A unit whose name is not UTF-8 is not recorded, so it is processed again. In a dry run nothing is.
        """
        if active() is not None:
            return
        try:
            name = unit.encode()
        except UnicodeEncodeError:
            return
        digest = xxhash.xxh3_64(name)
        digest.update(facts)
        head = _HEAD.pack(len(name) + len(facts), len(name), digest.intdigest())
        if not isinstance(self._place, LocalStore):
            if self._next is None:
                self._objects()
            number = self._next or 0
            self._place.write_bytes(f"{self._name}/{number:012d}-{self._run}", head + name + facts)
            self._next = number + 1
            return
        try:
            if self._file is None:
                self._file = self._place.append(self._name)
                self._file.truncate(self._whole)
            self._file.write(head + name + facts)
            self._file.flush()
        except OSError as error:
            self._abandon()
            raise storage_error(error, self._place.locate(self._name)) from None
        self._whole += len(head) + len(name) + len(facts)

    def _abandon(self) -> None:
        """Close the file without the unwritten rest of a frame, which closing would try to write again."""
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            if file is not None:
                file.close()

    def sync(self) -> None:
        """Wait until every frame is on the disk. Raises `StorageError`."""
        if not self._place.is_local:
            return
        path = self._place.locate(self._name)
        try:
            if os.path.exists(path):
                sync(path)
                sync(os.path.dirname(path))
        except OSError as error:
            raise storage_error(error, path) from None

    @property
    def exist(self) -> bool:
        """Return whether any unit is finished, in this run or an earlier one."""
        if isinstance(self._place, LocalStore):
            return self._place.exists(self._name) or bool(self._others())
        return bool(self._objects())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def clear(self) -> None:
        """Delete all units."""
        self.close()
        if active() is not None:
            return
        self._whole, self._next = 0, None
        local = isinstance(self._place, LocalStore)
        for path in [*self._others(), self._name] if local else self._objects():
            self._place.delete(path)
