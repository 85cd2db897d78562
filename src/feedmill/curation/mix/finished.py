"""Which outputs of a filter are finished: a small JSON file for each, in a `RecordFolder`."""

from __future__ import annotations

import contextlib
from typing import Any

import orjson

from feedmill.documents.lineage.sidecar import hidden
from feedmill.documents.record_folders import Records
from feedmill.errors import FeedmillError


class Finished(Records):
    """Records of the finished outputs in a folder, by their paths in it."""

    def read(self, output: str) -> dict[str, Any] | None:
        """Return the record of an output, or None if it is missing or invalid."""
        for place in self.places:
            if place.store.exists(place.path(output)):
                with contextlib.suppress(orjson.JSONDecodeError, FeedmillError):
                    content = orjson.loads(place.store.read(place.path(output)))
                    if isinstance(content, dict):
                        return content
        return None

    def record(self, output: str, record: dict[str, Any]) -> None:
        """Write the record of a published output."""
        self.write(output, orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))

    def begin(self, output: str) -> None:
        """Write that a filter makes this output. It is synced: if it were lost, the output would be no filter's."""
        self.write(output, orjson.dumps({"begun": True}), durable=True)

    def forget(self, output: str) -> None:
        """Remove the record of an output that was not published."""
        for place in self.places:
            place.store.delete(place.path(output))

    def write_lineage(self, output: str, data: bytes) -> None:
        """Write the lineage of a published output."""
        self.place.store.write_note(hidden(self.place, output), data)

    def has_lineage(self, output: str) -> bool:
        """Return whether there is the lineage of an output."""
        return self.place.store.exists(hidden(self.place, output))

    def remove_lineage(self, output: str) -> None:
        """Remove the lineage of an output that is about to be replaced, or removed."""
        self.place.store.delete(hidden(self.place, output))
