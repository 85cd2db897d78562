"""Records of finished outputs of a filter: one small JSON file per output, beside the folder of the outputs.

The outputs are often the documents of the next step, and the patterns of other programs (``x/documents/*`` in Dolma's
``dedupe`` and ``mix``) match hidden names too. So their folder contains outputs only. The records are in
``.feedmill/mix-<folder>`` beside it, or beside the folder ``documents`` or ``attributes`` that it is or is in.

If that is impossible (the root of a bucket, a mount point, a parent folder that is not writable), the records are in
``.feedmill`` inside the folder. Earlier versions always wrote them there; such records are moved.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, NamedTuple

import orjson

from feedmill.curation.attribute_set import FOLDER
from feedmill.errors import FeedmillError, NotFound
from feedmill.formats.documents import ATTRIBUTES, DOCUMENTS
from feedmill.storage import LocalStore, Store, canonical_location, open_store


class _Place(NamedTuple):
    """Folder for records: its store, and its path below it. (Paths below a store are not written through links.)"""

    store: Store
    folder: str

    def path(self, output: str) -> str:
        return f"{self.folder}/{output}.json"

    def outputs(self) -> list[str]:
        """Return the outputs that have a record here."""
        try:
            paths = [entry.path for entry in self.store.files(self.folder)]
        except NotFound:
            return []
        return [path.removeprefix(f"{self.folder}/").removesuffix(".json") for path in paths if path.endswith(".json")]


class Finished:
    """Records of the finished outputs in a folder, by their paths in it."""

    def __init__(self, folder: str) -> None:
        inside = _Place(open_store(folder), FOLDER)
        beside = _beside(folder)
        self._place = inside if beside is None else beside
        self._before = None if beside is None else inside

    @property
    def folder(self) -> Store:
        """Return the folder of the records."""
        return self._place.store.below(self._place.folder)

    @property
    def _places(self) -> list[_Place]:
        return [self._place, self._before] if self._before is not None else [self._place]

    def read(self, output: str) -> dict[str, Any] | None:
        """Return the record of an output, or None if it is missing or invalid."""
        for place in self._places:
            if place.store.exists(place.path(output)):
                with contextlib.suppress(orjson.JSONDecodeError, FeedmillError):
                    found = orjson.loads(place.store.read(place.path(output)))
                    if isinstance(found, dict):
                        return found
        return None

    def write(self, output: str, record: dict[str, Any]) -> None:
        """Write the record of a published output."""
        data = orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        self._place.store.write_note(self._place.path(output), data)
        self._remove_old(output)

    def move(self, output: str, record: dict[str, Any]) -> None:
        """Move a record that an earlier version wrote among the outputs, and remove a folder that a killed run left."""
        if self._before is not None and self._before.store.exists(self._before.path(output)):
            self.write(output, record)
        else:
            self._remove_old(output)

    def _remove_old(self, output: str) -> None:
        """Remove a record that an earlier version wrote among the outputs, and its folder if that is empty then."""
        if self._before is None:
            return
        store, path = self._before.store, self._before.path(output)
        with contextlib.suppress(FeedmillError):
            store.delete(path)
        if isinstance(store, LocalStore):
            with contextlib.suppress(OSError):
                while path := os.path.dirname(path):
                    os.rmdir(store.locate(path))

    def outputs(self) -> list[str]:
        """Return the outputs that have a record."""
        return sorted({output for place in self._places for output in place.outputs()})


def _beside(folder: str) -> _Place | None:
    """Return the place for records beside a folder, or None if there is none."""
    spelled = [part for part in folder.split("/") if part not in ("", ".")]
    special = [n for n, part in enumerate(spelled) if part in (DOCUMENTS, ATTRIBUTES)]
    depth = len(spelled) - special[-1] if special else 1
    parts = canonical_location(folder).rstrip("/").split("/")
    if len(parts) - depth < (3 if "://" in folder else 1):
        return None
    base, name = "/".join(parts[:-depth]), "/".join(parts[-depth:])
    if "://" not in folder and not _may_write("/".join(parts), base or "/"):
        return None
    return _Place(open_store(base or "/"), f"{FOLDER}/mix-{name}")


def _may_write(folder: str, base: str) -> bool:
    """Return whether `base` is writable and on the same file system as `folder`, so that both are moved together."""
    while not os.path.isdir(base):  # it will be created
        base = os.path.dirname(base)
    if not os.access(base, os.W_OK):
        return os.access(f"{base}/{FOLDER}", os.W_OK)
    return not os.path.isdir(folder) or os.stat(folder).st_dev == os.stat(base).st_dev
