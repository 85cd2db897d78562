"""Records of finished outputs of a filter: one small JSON file per output, in the place of `feedmill.documents.beside`.

Records that earlier versions wrote inside the folder of the outputs are moved.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import orjson

from feedmill.documents.beside import Place, beside, inside
from feedmill.documents.lineage.sidecar import hidden
from feedmill.errors import FeedmillError
from feedmill.storage import LocalStore, Store


class Finished:
    """Records of the finished outputs in a folder, by their paths in it."""

    def __init__(self, folder: str) -> None:
        here, there = inside(folder), beside(folder)
        self._place = here if there is None else there
        self._before = None if there is None else here

    @property
    def folder(self) -> Store:
        """Return the folder of the records."""
        return self._place.store.below(self._place.folder)

    @property
    def _places(self) -> list[Place]:
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

    def write_lineage(self, output: str, data: bytes) -> None:
        """Write the lineage of a published output."""
        self._place.store.write_note(hidden(self._place, output), data)

    def has_lineage(self, output: str) -> bool:
        """Return whether there is the lineage of an output."""
        return self._place.store.exists(hidden(self._place, output))

    def remove_lineage(self, output: str) -> None:
        """Remove the lineage of an output that is about to be replaced, or removed."""
        self._place.store.delete(hidden(self._place, output))

    def outputs(self) -> list[str]:
        """Return the outputs that have a record."""
        return sorted({output for place in self._places for output in place.outputs()})
