"""Records of finished files: one for each output of an attribute set, with its inputs and options.

The record of an output is in the place of `Records`: that of ``x/attributes/<set>/<path>`` is
``x/.feedmill/mix-attributes/<set>/<path>.json``. It is written after the output. It names the inputs of the output, so
that a later run can decide whether the output is up to date:

    {"fingerprint": ..., "options": {...}, "feedmill": "0.1.0", "rows": 1000,
     "input": {"path": ..., "size": ..., "version": ..., "xxh3": ...},
     "output": {"size": ..., "version": ..., "xxh3": ...}}

`version` is the store's version of the file. The file is read to compare its hash only if the version differs.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
import xxhash

from feedmill.documents.file import RecordFolder, beside, inside
from feedmill.errors import FeedmillError
from feedmill.storage import Store
from feedmill.storage.hashed import hash_file
from feedmill.structs import decode_as


class Records:
    """Small files about the outputs in a folder, each named after its output.

    Those of a run that could not write beside the folder are inside, and are found there by all runs.

    Attributes:
        places: the places that can have a file, the current one first.
    """

    def __init__(self, folder: str) -> None:
        self.places = [place for place in (beside(folder), inside(folder)) if place is not None]

    @property
    def place(self) -> RecordFolder:
        """Return the place where files are written."""
        return self.places[0]

    @property
    def folder(self) -> Store:
        """Return the folder of the files."""
        return self.place.store.below(self.place.folder)

    def where(self, output: str) -> RecordFolder | None:
        """Return the place that has the file about an output, or None if there is none."""
        return next((place for place in self.places if place.store.exists(place.path(output))), None)

    def write(self, output: str, data: bytes, *, durable: bool = False) -> None:
        """Write the file about a published output.

        Args:
            durable: sync it. A file that is lost in a power failure costs only that its output is written again.
        """
        write = self.place.store.write_bytes if durable else self.place.store.write_note
        write(self.place.path(output), data)

    def outputs(self) -> list[str]:
        """Return the outputs that have a file."""
        return sorted({output for place in self.places for output in place.outputs()})


class FileState(msgspec.Struct):
    """State of a file. `xxh3` is the 128-bit hash of its stored bytes, in hexadecimal."""

    size: int
    version: str
    xxh3: str
    path: str = ""


class Record(msgspec.Struct):
    """Record of an output; see the module's docstring."""

    fingerprint: str
    options: dict[str, Any]
    feedmill: str
    rows: int
    input: FileState
    output: FileState


def local_state(path: str | None) -> tuple[int, int, int] | None:
    """Return the modification time, size and inode of a local file, which change if it is replaced. None stays None."""
    if path is None:
        return None
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino


def digest(store: Store, path: str) -> str:
    """Return the 128-bit xxh3 of a file's stored bytes."""
    with store.local_copy(path) as local:
        return hash_file(str(local))


def state(store: Store, path: str, xxh3: str, shown: str = "") -> FileState:
    """Return the state of a file whose bytes have this hash. Raises `NotFound`."""
    entry = store.stat(path)
    return FileState(entry.size, entry.version, xxh3, shown)


def unchanged(store: Store, path: str, was: FileState) -> bool:
    """Return whether the file is unchanged. It is read only if its size is the same and its version differs."""
    try:
        entry = store.stat(path)
        if entry.size != was.size:
            return False
        return entry.version == was.version or digest(store, path) == was.xxh3
    except FeedmillError:
        return False


def fingerprint(options: dict[str, Any]) -> str:
    """Return a fingerprint of the options."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(options, order="sorted"))


def read_record(folder: str, path: str) -> Record | None:
    """Return the record of an output of the attribute set in `folder`, or None if it is missing or invalid."""
    place = Records(folder).where(path)
    if place is None:
        return None
    try:
        return decode_as(place.store.read(place.path(path)), Record)
    except (FeedmillError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def write_record(folder: str, path: str, record: Record) -> None:
    """Write the record of a published output of the attribute set in `folder`."""
    Records(folder).write(path, msgspec.json.format(msgspec.json.encode(record)) + b"\n")
