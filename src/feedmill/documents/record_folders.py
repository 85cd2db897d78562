"""Files of Feedmill beside the documents and attributes that verbs write: records of finished outputs, their lineage.

The outputs are often the documents of the next step, and the patterns of other programs (``x/documents/*`` in Dolma's
``dedupe`` and ``mix``) match hidden names too; others list ``attributes`` for the names of the sets, and a set for its
files. So these folders contain outputs only. What Feedmill keeps about them is in ``.feedmill/mix-<folder>`` beside
the folder, or beside the folder ``documents`` or ``attributes`` that it is or is in.

If that is impossible (the root of a bucket, a mount point, a parent folder that is not writable), it is in
``.feedmill`` inside the folder.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from feedmill.errors import NotFound
from feedmill.formats.documents import ATTRIBUTES, DOCUMENTS
from feedmill.storage import LocalStore, Store, canonical_location, open_store

FOLDER = ".feedmill"


class RecordFolder(NamedTuple):
    """Folder for such files: its store, and its path below it. (Paths below a store are not written through links.)"""

    store: Store
    folder: str

    def path(self, output: str, suffix: str = ".json") -> str:
        """Return the path in the store of a file about an output."""
        return f"{self.folder}/{output}{suffix}"

    def lock(self, output: str, what: str, *, file: str) -> contextlib.AbstractContextManager[None]:
        """Return a block in which one process of this machine at a time writes an output, if this folder is local.

        Args:
            what: noun for the output, for the error; `file`: its path.
        """
        if not isinstance(self.store, LocalStore):
            return contextlib.nullcontext()
        path = self.path(output, ".feedmill-lock")
        return self.store.exclusive(path, what=f"another process is writing {what}", file=file)

    def outputs(self, suffix: str = ".json") -> list[str]:
        """Return the outputs that have such a file here."""
        try:
            paths = [entry.path for entry in self.store.files(self.folder)]
        except NotFound:
            return []
        return [path.removeprefix(f"{self.folder}/").removesuffix(suffix) for path in paths if path.endswith(suffix)]


def inside(folder: str) -> RecordFolder:
    """Return the place inside a folder of outputs."""
    return RecordFolder(open_store(folder), FOLDER)


def beside(folder: str) -> RecordFolder | None:
    """Return the place beside a folder of outputs, or None if there is none."""
    spelled = [part for part in folder.split("/") if part not in ("", ".")]
    special = [n for n, part in enumerate(spelled) if part in (DOCUMENTS, ATTRIBUTES)]
    depth = len(spelled) - special[-1] if special else 1
    parts = canonical_location(folder).rstrip("/").split("/")
    if len(parts) - depth < (3 if "://" in folder else 1):
        return None
    base, name = "/".join(parts[:-depth]), "/".join(parts[-depth:])
    if "://" not in folder and not _may_write("/".join(parts), base or "/"):
        return None
    return RecordFolder(open_store(base or "/"), f"{FOLDER}/mix-{name}")


def _may_write(folder: str, base: str) -> bool:
    """Return whether `base` is writable and on the same file system as `folder`, so that both are moved together."""
    while not os.path.isdir(base):  # it will be created
        base = os.path.dirname(base)
    if not os.access(base, os.W_OK):
        return os.access(f"{base}/{FOLDER}", os.W_OK)
    return not os.path.isdir(folder) or os.stat(folder).st_dev == os.stat(base).st_dev


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
