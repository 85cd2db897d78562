"""Which outputs of a mix are finished: a small file of JSON for each, beside the folder of the outputs.

The outputs of a mix are often the documents of the next step, and the patterns of other programs (``x/documents/*`` in
Dolma's ``dedupe`` and ``mix``) match hidden names too. So nothing but outputs lies in their folder: what is finished is
recorded in ``.feedmill/mix-<folder>`` beside it, or beside the folder ``documents`` or ``attributes`` that it is or is
in. Where there is no place for that (the root of a bucket, a folder that is mounted by itself, one in a folder that
cannot be written) it is recorded in ``.feedmill`` inside, as by earlier versions; what they left is moved.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, NamedTuple

import orjson

from feedmill.curation.attribute_set import FOLDER
from feedmill.errors import FeedmillError, NotFound
from feedmill.formats.documents import ATTRIBUTES, DOCUMENTS
from feedmill.storage import LocalStore, Store, open_store, real_place


class _Place(NamedTuple):
    """A folder for records: in which store, below what. (What is below a store is not written through links.)"""

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
    """The facts about the outputs in a folder, by their paths in it."""

    def __init__(self, folder: str) -> None:
        inside = _Place(open_store(folder), FOLDER)
        beside = _beside(folder)
        self._place = inside if beside is None else beside
        self._before = None if beside is None else inside

    @property
    def _places(self) -> list[_Place]:
        return [self._place, self._before] if self._before is not None else [self._place]

    def read(self, output: str) -> dict[str, Any] | None:
        """Return the record of an output; None if there is none that can be read."""
        for place in self._places:
            if place.store.exists(place.path(output)):
                with contextlib.suppress(orjson.JSONDecodeError, FeedmillError):
                    found = orjson.loads(place.store.read(place.path(output)))
                    if isinstance(found, dict):
                        return found
        return None

    def write(self, output: str, record: dict[str, Any]) -> None:
        """Write the record of an output that is whole."""
        data = orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        self._place.store.write_note(self._place.path(output), data)
        self._remove_old(output)

    def move(self, output: str, record: dict[str, Any]) -> None:
        """Move a record that an earlier version wrote between the outputs, and remove the folder a killed run left."""
        if self._before is not None and self._before.store.exists(self._before.path(output)):
            self.write(output, record)
        else:
            self._remove_old(output)

    def _remove_old(self, output: str) -> None:
        """Remove what an earlier version wrote between the outputs, and the folder if that was the last."""
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
    """Return the place for records beside a folder; None if there is none."""
    spelled = [part for part in folder.split("/") if part not in ("", ".")]
    special = [n for n, part in enumerate(spelled) if part in (DOCUMENTS, ATTRIBUTES)]
    depth = len(spelled) - special[-1] if special else 1
    parts = real_place(folder).rstrip("/").split("/")
    if len(parts) - depth < (3 if "://" in folder else 1):
        return None
    base, name = "/".join(parts[:-depth]), "/".join(parts[-depth:])
    if "://" not in folder and not _may_write("/".join(parts), base or "/"):
        return None
    return _Place(open_store(base or "/"), f"{FOLDER}/mix-{name}")


def _may_write(folder: str, base: str) -> bool:
    """Whether both are on one file system, so that they are kept and moved together, and `base` can be written."""
    while not os.path.isdir(base):  # it will be made
        base = os.path.dirname(base)
    if not os.access(base, os.W_OK):
        return os.access(f"{base}/{FOLDER}", os.W_OK)
    return not os.path.isdir(folder) or os.stat(folder).st_dev == os.stat(base).st_dev
