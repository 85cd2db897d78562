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
from typing import Any

import orjson

from feedmill.curation.attribute_set import FOLDER
from feedmill.errors import FeedmillError, NotFound
from feedmill.formats.documents import ATTRIBUTES, DOCUMENTS
from feedmill.storage import LocalStore, Store, open_store, real_place


class Finished:
    """What is known of the outputs in a folder, by their paths in it."""

    def __init__(self, folder: str) -> None:
        inside = f"{real_place(folder).rstrip('/')}/{FOLDER}"
        place = _beside(folder) or inside
        self._store = open_store(place)
        self._before = open_store(inside) if place != inside else None

    def read(self, path: str) -> dict[str, Any] | None:
        """Return the record of an output; None where there is none that can be read."""
        for store in (self._store, self._before):
            if store is not None and store.exists(f"{path}.json"):
                with contextlib.suppress(orjson.JSONDecodeError, FeedmillError):
                    found = orjson.loads(store.read(f"{path}.json"))
                    if isinstance(found, dict):
                        return found
        return None

    def write(self, path: str, record: dict[str, Any]) -> None:
        """Write the record of an output that is whole."""
        data = orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        self._store.write_note(f"{path}.json", data)
        self._remove_old(path)

    def move(self, path: str, record: dict[str, Any]) -> None:
        """Bring a record to its place that an earlier version wrote between the outputs."""
        if self._before is not None and self._before.exists(f"{path}.json"):
            self.write(path, record)

    def _remove_old(self, path: str) -> None:
        if self._before is None:
            return
        with contextlib.suppress(FeedmillError):
            self._before.delete(f"{path}.json")
        if isinstance(self._before, LocalStore):
            _remove_empty(self._before, path)

    def paths(self) -> list[str]:
        """Return the outputs that have a record."""
        return sorted({path for store in (self._store, self._before) if store is not None for path in _recorded(store)})


def _recorded(store: Store) -> list[str]:
    try:
        return [entry.path.removesuffix(".json") for entry in store.files() if entry.path.endswith(".json")]
    except NotFound:
        return []


def _beside(folder: str) -> str | None:
    """Return the place for records beside a folder; None where there is none."""
    spelled = [part for part in folder.split("/") if part not in ("", ".")]
    special = [n for n, part in enumerate(spelled) if part in (DOCUMENTS, ATTRIBUTES)]
    depth = len(spelled) - special[-1] if special else 1
    parts = real_place(folder).rstrip("/").split("/")
    if len(parts) - depth < (3 if "://" in folder else 1):
        return None
    base, name = "/".join(parts[:-depth]), "/".join(parts[-depth:])
    if "://" not in folder and not _may_write("/".join(parts), base or "/"):
        return None
    return f"{base}/{FOLDER}/mix-{name}"


def _may_write(folder: str, base: str) -> bool:
    """Whether both are on one file system, so that they are kept and moved together, and `base` can be written."""
    while not os.path.isdir(base):  # it will be made
        base = os.path.dirname(base)
    if not os.access(base, os.W_OK):
        return os.access(f"{base}/{FOLDER}", os.W_OK)
    return not os.path.isdir(folder) or os.stat(folder).st_dev == os.stat(base).st_dev


def _remove_empty(store: LocalStore, path: str) -> None:
    folder = os.path.dirname(store.locate(path))
    with contextlib.suppress(OSError):
        while folder.startswith(store.root):
            os.rmdir(folder)
            folder = os.path.dirname(folder)
