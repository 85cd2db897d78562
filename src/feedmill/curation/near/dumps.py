"""Folder of signatures: read its dumps, and remove unfinished work of interrupted runs.

A dump is the set of files that one run added to the folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from feedmill.curation.near.view import WORK, open_view
from feedmill.curation.options import Neardedupe
from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.signatures import (
    LOCK,
    RECORD,
    VERSION,
    damaged,
    dump_name,
    read_record,
    write_record,
)
from feedmill.jobs.engine import PARTS, is_alone
from feedmill.storage import Entry, LocalStore, Store, open_store
from feedmill.storage.staging import TEMPORARY_SUFFIX


class DumpFile(NamedTuple):
    """Position of a file's documents: the dump, the number of the first document, and the file's entry in the dump."""

    dump: int
    first: int
    record: dict[str, Any]


@dataclass(slots=True)
class Dumps:
    """Records of all dumps of a folder of signatures."""

    store: Store
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """Path or URL of the folder."""
        return self.store.url

    @property
    def documents(self) -> int:
        """Number of documents in all dumps."""
        return sum(record["rows"] for record in self.records)

    def known(self) -> dict[str, DumpFile]:
        """Return the place of each file in the dumps, by its location."""
        found = {}
        for number, record in enumerate(self.records):
            first = record["first"]
            for file in record["files"]:
                found[file["location"]] = DumpFile(number, first, file)
                first += file["rows"]
        return found

    def forget_work(self, keep: frozenset[str] = frozenset()) -> None:
        """Remove files that belong to no dump, markers of files whose dump is recorded, and without `keep` also the
        markers of finished attribute files.

        Args:
            keep: Fingerprints of files and dumps whose work is kept.
        """
        if not is_alone():
            return  # other parts may be writing
        prints = {file["print"] for record in self.records for file in record["files"]} | keep
        folders = {record["folder"].rpartition("/")[2] for record in self.records} | keep
        for name in names_in(self.store, "segments"):
            of = name.partition("-")[0].removesuffix(".json")
            done = name.endswith(".json") and of not in keep  # the dump's record says the same, and is synced
            if name.endswith(TEMPORARY_SUFFIX) or of not in prints or done:
                self._remove(f"segments/{name}")
        for name in names_in(self.store, "dumps"):
            if name not in folders:
                self._remove(f"dumps/{name}")
        for folder in ("", *(f"dumps/{name}/" for name in folders)):
            done = folder != "" and os.path.basename(folder[:-1]) not in keep
            for name in names_in(self.store, folder):
                if name.endswith(TEMPORARY_SUFFIX) or (done and name == WORK):
                    self._remove(f"{folder}{name}")
        if not keep:
            for name in ("done", PARTS):  # parts may have marked stages that the last run had no need of
                self._remove(name)

    def forget_decisions(self, options: Neardedupe) -> None:
        """Remove all but the signatures if these were compared with other options, such as another threshold.

        For a folder of a run's own. A run that is killed here begins here again.
        """
        record = read_record(self.store, RECORD)
        if record is not None and record.get("options") != options.signature():
            for name in names_in(self.store):
                if name not in (RECORD, LOCK, "segments"):
                    self._remove(name)
            write_record(self.store, RECORD, {"version": VERSION, "options": options.signature()})

    def _remove(self, path: str) -> None:
        if not isinstance(self.store, LocalStore):
            below = [entry.path for entry in _entries(self.store, path)]
            for one in below or [path]:
                self.store.delete(one)
        elif os.path.isdir(self.store.writable(path)):
            self.store.remove_folder(path)
        else:
            self.store.delete(path)


@contextlib.contextmanager
def open_dumps(folder: str, options: Neardedupe) -> Iterator[Dumps]:
    """Open the folder of signatures for this run alone. It is created if it does not exist.

    In an object store it belongs to a job, which has locked its output.

    Raises:
        ConfigError: Its signatures were made with other options, or it contains other files.
        StorageError: Another run is using it.
        DataError: A record is corrupt.
    """
    store = open_store(folder)
    _refuse_others(store)
    with _locked(store):
        _agree(store, options)
        dumps = Dumps(store)
        while (record := read_record(store, dump_name(len(dumps.records)))) is not None:
            if record.get("first") != dumps.documents or not isinstance(record.get("files"), list):
                raise damaged(store, dump_name(len(dumps.records)), "it does not follow the dumps before it")
            dumps.records.append(record)
        open_view.cache_clear()  # cached views can be of an earlier run in this folder, and keep files mapped
        try:
            yield dumps
        finally:
            open_view.cache_clear()


def refuse_other_signatures(folder: str, options: Neardedupe) -> None:
    """Raise `ConfigError` if a folder has other files, or signatures that were made with other options."""
    store = open_store(folder)
    _refuse_others(store)
    _agree(store, options, plan=True)


def _locked(store: Store) -> contextlib.AbstractContextManager[object]:
    if not isinstance(store, LocalStore):
        return contextlib.nullcontext()
    what = "another process is writing these signatures"
    return store.lock(LOCK, what=what, file=store.root, shared=not is_alone())


def tidy_signatures(folder: str, options: Neardedupe) -> None:
    """Remove markers that a run could not remove at its end, or that reappeared after a power loss."""
    if os.path.isdir(os.path.join(folder, "done")):
        with contextlib.suppress(FeedmillError), open_dumps(folder, options) as dumps:  # another run may use them
            dumps.forget_work()


def _refuse_others(store: Store) -> None:
    """Raise `ConfigError` if the folder has files but no signatures.

    Unfinished work is found and removed by its path, so a user's own folder ``dumps/`` would be deleted.
    """
    there = [name for name in names_in(store) if name != LOCK and not name.endswith(TEMPORARY_SUFFIX)]
    if there and not store.exists(RECORD):  # checked after listing: it is the first file of a folder of signatures
        raise ConfigError(
            f"the folder contains files but no signatures: {', '.join(there[:3])}",
            file=store.url,
            kind="other-format",
            fix="Use a folder for signatures that is empty or does not exist yet.",
        )


def _agree(store: Store, options: Neardedupe, plan: bool = False) -> None:
    """Raise `ConfigError` if the signatures have other options. A new folder gets these, except for a `plan`."""
    wanted = options.signature()
    record = read_record(store, RECORD)
    if record is None:
        if not plan:
            write_record(store, RECORD, {"version": VERSION, "options": wanted})
        return
    if record.get("version") != VERSION or not isinstance(record.get("options"), dict):
        raise damaged(store, RECORD, f"expected version {VERSION}")
    names = {**wanted, **record["options"]}  # an option may be missing from one of them
    different = [name for name in names if record["options"].get(name) != wanted.get(name)]
    if different:
        found, new = ([one.get(name, "the default") for name in different] for one in (record["options"], wanted))
        differences = ", ".join(
            f"{name} {old} instead of {other}" for name, old, other in zip(different, found, new, strict=True)
        )
        raise ConfigError(
            f"these signatures were made with other options: {differences}",
            file=store.locate(RECORD),
            kind="settings-differ",
            fix="Use those options, or another folder.",
        )


def names_in(store: Store, folder: str = "") -> list[str]:
    """Return the names directly in a folder, sorted."""
    if isinstance(store, LocalStore):
        try:
            return sorted(os.listdir(store.locate(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []
    below = folder.rstrip("/") + "/" if folder else ""
    return sorted({entry.path.removeprefix(below).split("/")[0] for entry in _entries(store, folder)})


def _entries(store: Store, folder: str) -> list[Entry]:
    try:
        return list(store.files(folder))
    except NotFound:
        return []
