"""The journal of a repair: what is removed from files, recorded before each removal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from feedmill.errors import DataError
from feedmill.jobs.dry_run import active
from feedmill.storage import Store


@dataclass(slots=True)
class Dropped:
    """Removed bytes: their file, offset, size, reason and keys, and where they are saved."""

    file: str
    offset: int
    bytes: int
    why: str
    keys: list[str]
    saved: str


class Taken(msgspec.Struct):
    """Like `Dropped`, with paths relative to the store."""

    file: str
    offset: int
    bytes: int
    why: str
    keys: list[str]
    saved: str


class _State(msgspec.Struct):
    """Content of ``journal.json``."""

    report: str
    excluded: list[tuple[str, str]]
    taken: list[Taken] = []


class RepairJournal:
    """The journal of a repair, written before each removal, so that the next repair finishes a killed one.

    Args:
        folder: folder of the journal and of the removed bytes.
        excluded: samples of the index that the split file excludes.

    Attributes:
        report: path of the report.
        excluded: the given samples and those of the killed run, whose index may no longer exist.

    Raises:
        DataError: the journal of a killed repair cannot be read.
    """

    def __init__(self, store: Store, folder: str, excluded: set[tuple[str, str]]) -> None:
        self._store, self._path = store, f"{folder}/journal.json"
        self._state = self._read() or _State(unused_path(store, f"{folder}/report", ".json"), [])
        self.report = self._state.report
        self.excluded = excluded | set(self._state.excluded)
        self._state.excluded = sorted(self.excluded)

    def _read(self) -> _State | None:
        if not self._store.exists(self._path):
            return None
        try:
            return msgspec.json.decode(self._store.read(self._path), type=_State)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise DataError(
                "invalid repair journal: expected the record of an interrupted repair",
                file=self._store.locate(self._path),
                kind="bad-journal",
                fix="Inspect the removed bytes saved in the same folder, then delete this file.",
            ) from None

    def saved(self, file: str, offset: int, stem: str, suffix: str = "") -> str:
        """Return the path for removed bytes: the one that a killed run used, or a new one."""
        known = [taken.saved for taken in self._state.taken if (taken.file, taken.offset) == (file, offset)]
        return known[0] if known else unused_path(self._store, stem, suffix)

    def note(self, taken: Sequence[Taken] = ()) -> None:
        """Record damage and the bytes that are about to be removed. In a dry run the journal is not written."""
        new = {(one.file, one.offset) for one in taken}
        kept = [one for one in self._state.taken if (one.file, one.offset) not in new]
        self._state.taken = [*kept, *taken]
        if (dry := active()) is None:
            self._store.write_bytes(self._path, msgspec.json.encode(self._state))
            return
        for one in taken:
            for path in (one.file, one.saved):
                if self._store.locate(path) not in {planned.path for planned in dry.outputs}:
                    dry.writes(self._store, path)

    def dropped(self) -> list[Dropped]:
        """Return everything that was removed."""
        where = self._store.locate
        return [Dropped(where(t.file), t.offset, t.bytes, t.why, t.keys, where(t.saved)) for t in self._state.taken]

    def finish(self) -> None:
        """Delete the journal. Call this after the report is written."""
        self._store.delete(self._path)


def unused_path(store: Store, stem: str, suffix: str) -> str:
    """Return an unused path, so that bytes saved by earlier repairs are kept."""
    path, number = f"{stem}{suffix}", 1
    while store.exists(path):
        number += 1
        path = f"{stem}-{number}{suffix}"
    return path
