"""Shards changed in their place, all of them in one moment.

The new shards are written beside the dataset first, in ``.nv-meta/feedmill.work/new/``, by several processes; until
then nothing has changed. Then they are put in place, which is only renaming, and the index is rewritten. A run that
is killed before that moment leaves the dataset as it was; one that is killed in it is finished by the same command,
and until then opening the dataset raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import xxhash

from feedmill.errors import DataError
from feedmill.formats import energon, sidecar
from feedmill.formats.energon import idx_name
from feedmill.formats.offsets import hash_words
from feedmill.formats.sidecar import ShardRecord
from feedmill.formats.tar_scan import in_file, scan_shard
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import Policy, run
from feedmill.kernels.files.tar import ShardScan
from feedmill.storage import open_store
from feedmill.storage.local import LocalStore
from feedmill.writing.commit import commit
from feedmill.writing.present import present_shards
from feedmill.writing.shard import Shard
from feedmill.writing.target import clear_left
from feedmill.writing.work import NEW, Work

Make = Callable[["Change"], Shard]
"""Writes the new form of a shard at `Change.new`. Runs in other processes."""


@dataclass(frozen=True, slots=True)
class Change:
    """One shard to be rewritten.

    Attributes:
        url: the dataset.
        shard: the shard as it is.
        new: path in the dataset where its new form is written.
        what: the change, for the function that makes it.
    """

    url: str
    shard: Shard
    new: str
    what: Any = None


@dataclass(slots=True)
class RewriteReport:
    """What a change cost.

    Attributes:
        path: the dataset.
        samples: samples that were changed or deleted.
        rewritten, removed, shards: shards rewritten, shards that are gone, shards that are there now.
        bytes: bytes written for it.
        missing: keys that were asked for and are not there.
        seconds: wall time.
    """

    path: str
    samples: int = 0
    rewritten: int = 0
    removed: int = 0
    shards: int = 0
    bytes: int = 0
    missing: list[str] = field(default_factory=list)
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {name: getattr(self, name) for name in self.__slots__}


class Rewrite:
    """A change of some shards of a local prepared dataset. A context manager; killed, it is taken up again.

    Args:
        url: the dataset.
        verb, job: plain data that tells this change from others.

    Attributes:
        shards: the shards as they are; empty where an interrupted change only has to be put in place.
        swapping: whether that is so.
    """

    def __init__(self, url: str, verb: str, job: Mapping[str, Any]) -> None:
        self.url = url
        store = open_store(url)
        assert isinstance(store, LocalStore)
        self.store = store
        self.work = Work(store, {"verb": verb, **job})
        try:
            if self.work.left is not None:
                clear_left(store, self.work.left)
                self.work.note()
                store.sweep()
            if not self.work.resumed:
                store.remove_folder(NEW)
            self.swapping = bool(self.work.job.get("swapping"))
            self.shards = [] if self.swapping else present_shards(store)
        except BaseException:
            self.work.close()
            raise

    def make(
        self, changes: Mapping[str, Any], function: Make, *, workers: int | None, progress: bool, label: str
    ) -> list[Shard]:
        """Write the new form of some shards; their new forms, in the order of the dataset.

        Args:
            changes: shard path -> the change.
        """
        done = self.work.finished()
        todo = [
            Change(self.url, shard, _new_path(shard), changes[shard.path])
            for shard in self.shards
            if shard.path in changes
        ]
        out: list[Shard] = []
        with Progress(label, len(todo), "shards", enabled=progress) as bar:
            rest = [change for change in todo if change.new not in done]
            results = run(_call, rest, workers=workers, preload=(__name__,), policy=Policy(shared=function))
            with closing(results):
                for change in todo:
                    shard = done.get(change.new)
                    if shard is None:
                        shard = next(results)
                        self.work.add(shard)
                    out.append(shard)
                    bar.advance()
        return out

    def swap(
        self,
        changed: Mapping[str, str],
        removed: Sequence[str],
        *,
        samples_out: Sequence[str] = (),
        members_out: Sequence[str] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Put the new shards in place and write the index.

        Args:
            changed: shard path -> path of its new form.
            removed: shards that go.
            samples_out: keys that are gone; `members_out` their member names.
            facts: what the report says, kept in case this is interrupted.
        """
        self.work.journal.sync()  # what is put in place is known from it alone
        records = self.work.journal.read()
        self.work.note(
            swapping=True,
            records={new: msgspec.to_builtins(records[new][0]) for new in changed.values()},
            changed=dict(changed),
            removed=list(removed),
            samples_out=list(samples_out),
            members_out=list(members_out),
            facts=dict(facts or {}),
        )
        self.finish(trust=True)

    def finish(self, *, trust: bool = False) -> dict[str, Any]:
        """Put in place what is noted; the facts of the report."""
        job = self.work.job
        changed: dict[str, str] = job["changed"]
        removed: list[str] = job["removed"]
        noted = msgspec.convert(job.get("records", {}), dict[str, ShardRecord])
        before = self.shards or present_shards(self.store, trust=trust, leave_out={*changed, *removed})
        kept = {shard.path: shard for shard in before}
        order = list(job.setdefault("order", [p for p in energon.read_info(self.store) if p not in set(removed)]))
        self.work.note()
        journal, indexed = self.work.journal.read(), sidecar.read(self.store)
        for path, new in changed.items():
            for source, target in ((new, path), (idx_name(new), idx_name(path))):
                if self.store.exists(source):  # else it is in place already
                    self.store.rename(self.store, source, target)
            known, scan = journal.get(new, (None, None))
            record = self._proven(path, known or noted.get(new), indexed.get(path))
            kept[path] = Shard(path, record, self._scanned(path) if scan is None else scan)
        splits, exclude = self._splits(removed, set(job["samples_out"]))
        commit(self.store, [kept[p] for p in order], splits, exclude=exclude, removed=job["members_out"])
        for path in removed:
            self.store.delete(path)
            self.store.delete(idx_name(path))
        facts: dict[str, Any] = job["facts"]
        self.work.finish()
        return facts

    def _proven(self, path: str, made: ShardRecord | None, indexed: ShardRecord | None) -> ShardRecord:
        """The record of a shard that was put in place. Raises `DataError` where it is not what was `made`.

        Without a record of what was made (releases before this one noted none, and a journal may be lost with the
        machine's power): its new form is not waiting any more, so it is in place.
        """
        entry = self.store.stat(path)
        for record in (made, indexed if made is None else None):
            if record is not None and (record.size, record.version) == (entry.size, entry.version):
                return record
        digest = xxhash.xxh3_128_hexdigest(np.memmap(self.store.locate(path), np.uint8, "r").data)
        if made is not None and (made.size, made.digest) != (entry.size, digest):
            raise DataError(
                "the shard is neither its old nor its new form",
                file=self.store.locate(path),
                kind="changed",
                fix=f"Restore it, or remove {self.work.folder}, then run 'feedmill prepare'.",
            )
        samples = len(self._scanned(path).keys) if made is None else made.samples
        return ShardRecord(entry.size, entry.version, samples, digest)

    def _scanned(self, path: str) -> ShardScan:
        scan = scan_shard(self.store, path)
        if scan.problem is not None:
            raise in_file(scan.problem, self.store.locate(path))
        return scan

    def _splits(self, removed: Sequence[str], samples_out: set[str]) -> tuple[dict[str, list[str]] | None, list[str]]:
        """The split file without shards and samples that are gone; None where it needs no change."""
        present = energon.read_splits(self.store)
        if present is None:
            return None, []
        gone = set(removed)
        listed = {shard for shards in present.parts.values() for shard in shards} | present.shards_out
        if not gone & listed and not any(key in samples_out for _, key in present.samples_out):
            return None, []
        parts = {name: [s for s in shards if s not in gone] for name, shards in present.parts.items()}
        samples = [f"{s}/{k}" for s, k in present.samples_out if k not in samples_out and s not in gone]
        return parts, [*sorted(present.shards_out - gone), *samples]

    def close(self) -> None:
        """Release the lock; unfinished work stays for the next run."""
        if self.work.job.get("swapping") or self.work.journal.exists:
            self.work.close()
        else:  # nothing was made
            self.work.finish()

    def __enter__(self) -> Rewrite:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _new_path(shard: Shard) -> str:
    """Where the new form of a shard is written: that of a shard which has changed since is not taken for it."""
    word = hash_words([shard.path, str(shard.record.size), shard.record.version])
    return f"{NEW}/{word}.tar"


def _call(function: Make, change: Change) -> Shard:
    return function(change)
