"""Rewrite shards of a local dataset in place, and publish all changes at once.

New shards are first staged in ``.feedmill-work/new/`` by several processes, which does not change the dataset. Then
they are published by renaming, together with the new index. A run killed before publication leaves the dataset
unchanged. A run killed during publication is finished by the same command; until then, opening the dataset raises an
error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedmill.documents.lineage.samples import kept, shard_lineage, write_shard_lineage
from feedmill.documents.lineage.sidecar import read_lineage
from feedmill.formats.energon import database, sidecar
from feedmill.formats.energon import prepared as energon
from feedmill.formats.energon import write as energon_write
from feedmill.formats.energon.prepared import idx_name
from feedmill.formats.energon.sidecar import read_splits
from feedmill.formats.offsets import Int64s, hash_words
from feedmill.jobs.dry_run import DryRun, JobReport
from feedmill.jobs.progress import Progress
from feedmill.storage import open_store
from feedmill.storage.local import LocalStore
from feedmill.writing.destination import clear_left
from feedmill.writing.index import commit, present_shards
from feedmill.writing.shard import Shard
from feedmill.writing.work import NEW, OutputWork, begin, below, finish_units, in_job

Make = Callable[["Change"], Shard]
"""Function that writes the new version of a shard to `Change.new`. It runs in worker processes."""


@dataclass(frozen=True, slots=True)
class Change:
    """One shard to rewrite.

    Attributes:
        url: the dataset.
        shard: the present version.
        new: path in the dataset where the new version is staged.
        what: the change, for the function that makes it.
    """

    url: str
    shard: Shard
    new: str
    what: Any = None


@dataclass(slots=True)
class RewriteReport(JobReport):
    """The result of `delete` and `add_parts`.

    Attributes:
        path: the dataset.
        samples: number of samples changed or deleted.
        rewritten, removed, shards: number of shards rewritten, removed, and present after the change.
        bytes: bytes written.
        missing: requested keys that do not exist.
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


class Rewrite:
    """Context manager that changes shards of a local prepared dataset. A killed change is resumed.

    Args:
        url: the dataset.
        verb, job: plain data that identifies this change.

    Attributes:
        shards: the present shards; empty if `swapping`.
        swapping: whether a killed run had begun to publish the change, which only needs `finish`.
    """

    def __init__(self, url: str, verb: str, job: Mapping[str, Any]) -> None:
        self.url = url
        store = open_store(url)
        assert isinstance(store, LocalStore)
        self.store = store
        self.work = OutputWork(store)
        try:
            begin(self.work, {"verb": verb, **job}, clear_left)
            self.swapping = self.work.roll_forward()
            self.shards = [] if self.swapping else present_shards(store)
        except BaseException:
            self.work.close()
            raise

    def make(
        self, changes: Mapping[str, Any], function: Make, *, workers: int | None, progress: bool | None, label: str
    ) -> list[Shard]:
        """Write the new versions of the shards in `changes` and return them, in the order of the dataset.

        Args:
            changes: shard path -> the change.
        """
        done = self.work.finished()
        units = [
            Change(self.url, shard, _new_path(shard), changes[shard.path])
            for shard in self.shards
            if shard.path in changes
        ]
        finished = {number: done[unit.new] for number, unit in enumerate(units) if unit.new in done}
        steps = [1] * len(units)
        options: dict[str, Any] = {"shared": function, "workers": workers, "preload": (__name__,)}
        with Progress(label, len(units), "shards", enabled=progress) as bar:
            made = finish_units(_call, units, finished, record=self.work.add_shard, bar=bar, steps=steps, **options)
            with closing(made):
                return list(made)

    def swap(
        self,
        changed: Mapping[str, str],
        removed: Sequence[str],
        *,
        rows_out: Mapping[str, Int64s] | None = None,
        samples_out: Sequence[str] = (),
        members_out: Sequence[str] = (),
        parts_in: Collection[str] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Write the index and publish it with the new shards. Return warnings, which are added to those of `facts`.

        Args:
            changed: shard path -> path of its new version.
            removed: shards to delete.
            rows_out: shard path -> numbers of its deleted samples, int64[n].
            samples_out: keys of deleted samples.
            members_out: member names of deleted samples.
            parts_in: names of new or overwritten parts, whose media metadata is collected.
            facts: content of the report, recorded in case publication is interrupted.
        """
        new = self.store.below(NEW)
        made = self.work.shards()
        shards = {shard.path: shard for shard in self.shards}
        records = sidecar.with_words(self.store, {staged: made[staged][0] for staged in changed.values()})
        shards |= {path: Shard(path, records[staged], made[staged][1]) for path, staged in changed.items()}
        gone = set(removed)
        whole = [shards[path] for path in energon.read_info(self.store) if path not in gone]
        splits, exclude = self._splits(removed, set(samples_out))
        probed = [Shard(staged, records[staged], made[staged][1]) for staged in changed.values() if parts_in]
        broken = commit(
            self.store,
            whole,
            splits,
            exclude=exclude,
            removed=members_out,
            probed=probed,
            probed_parts=parts_in,
            out=new,
        )
        places = {self.store.locate(staged): self.store.locate(path) for path, staged in changed.items()}
        for error in broken:
            error.file = places[error.file or ""]
        warnings = [str(error) for error in broken]
        facts = {**(facts or {}), "warnings": [*(facts or {}).get("warnings", ()), *warnings]}
        moves = [(staged, path) for path, staged in changed.items()]
        moves += [(idx_name(staged), idx_name(path)) for staged, path in moves]
        moves += self._lineages(changed, rows_out or {})
        moves += [(f"{NEW}/{path}", path) for path in below(new) if path.startswith(f"{database.META}/")]
        deletes = [file for path in removed for file in (path, idx_name(path), shard_lineage(path))]
        self.work.publish([(in_job(staged), path) for staged, path in moves], deletes, facts=facts)
        self.finish()
        return warnings

    def _lineages(self, changed: Mapping[str, str], rows_out: Mapping[str, Int64s]) -> list[tuple[str, str]]:
        """Write the lineages of changed shards that have one, and return their paths and those they are moved to."""
        out = []
        for path, staged in changed.items():
            lineage = read_lineage(self.store.locate(path))
            if lineage is not None:
                rows = np.delete(np.arange(lineage.header.rows), rows_out.get(path, ()))
                write_shard_lineage(kept(lineage, rows), self.store, staged, self.store.locate(path))
                out.append((shard_lineage(staged), shard_lineage(path)))
        return out

    def finish(self, report: RewriteReport | None = None) -> None:
        """Finish publication and end the job. Set the attributes of the report to what `swap` has recorded."""
        self.work.roll_forward()
        energon_write.match_modes(self.store, list(energon.read_info(self.store)))
        for name, value in self.work.noted["facts"].items() if report is not None else ():
            if name != "path":
                setattr(report, name, value)
        self.work.finish()

    def _splits(self, removed: Sequence[str], samples_out: set[str]) -> tuple[dict[str, list[str]] | None, list[str]]:
        """Return splits and exclusions without removed shards and samples; None if the split file does not change."""
        present = read_splits(self.store)
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
        """Release the lock. Unfinished work is kept for the next run."""
        if self.work.noted.get("published") or self.work.units.exist:
            self.work.close()
        else:  # there is nothing to keep
            self.work.finish()

    def __enter__(self) -> Rewrite:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _new_path(shard: Shard) -> str:
    """Return the staging path of a shard. It depends on the shard's version, so stale staged files are not reused."""
    word = hash_words([shard.path, str(shard.record.size), shard.record.version])
    return f"{NEW}/{word}.tar"


def plan_rewrite(dry: DryRun, change: Rewrite, sizes: Mapping[str, int | None], removed: Sequence[str] = ()) -> None:
    """Add to a dry run the shards to rewrite, with their new sizes, and those to remove."""
    dry.reads(shard.record.size for shard in change.shards if shard.path in sizes)
    for path, size in sizes.items():
        dry.writes(change.store, path, size)
    if sizes or removed:
        dry.writes(change.store, f"{database.META}/")
    dry.deletes_all(change.store, removed)


def _call(function: Make, change: Change) -> Shard:
    return function(change)
