"""Destination of written shards: a new dataset, a dataset that is appended to, or one that replaces another.

The replacement of a local dataset is staged in ``.feedmill-work/new/`` and published by renaming, so the old dataset
can be read until then. Object stores cannot rename, so there the old dataset is deleted first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from feedmill.documents.lineage.samples import shard_lineage
from feedmill.errors import ConfigError, DataError, did_you_mean
from feedmill.formats.energon import all_offsets, database, sidecar
from feedmill.formats.energon import members as energon_members
from feedmill.formats.energon import prepared as energon
from feedmill.formats.energon import write as energon_write
from feedmill.formats.energon.prepared import idx_name
from feedmill.formats.energon.sidecar import Splits, read_splits
from feedmill.formats.tar.finished import left_shards
from feedmill.jobs.dry_run import DryRun
from feedmill.jobs.engine import is_alone
from feedmill.jobs.work import tidy
from feedmill.samples.description import declared_map, unreadable
from feedmill.storage import LocalStore, Store, open_store
from feedmill.writing.index import Media, commit, need_prepared, present_shards
from feedmill.writing.shard import Layout, Shard
from feedmill.writing.work import OutputWork, begin, below, job_of


class Destination:
    """Destination of new shards. After a kill, opening it again finds the finished shards.

    Args:
        url: the folder.
        layout: names and limits of the shards.
        job: plain data that identifies this work.
        split: the split that new shards join; None for the first existing split (``train`` in a new dataset).
        description: content of ``dataset.yaml``.
        append: add to the existing prepared dataset.
        overwrite: replace the existing dataset.
        media: an index whose media metadata is copied into a new dataset.
        beside: files that describe a dataset's shards, and are deleted with those that are replaced.

    Attributes:
        home: the dataset's folder.
        store: where shards are written: `home`, or the staging folder if a dataset is replaced.
        done: shards that an interrupted run of the same work finished, by path.

    Raises:
        ConfigError: a dataset or tars of unknown origin exist already.
        NotFound: there is no prepared dataset to append to.
        StorageError: another process writes to the folder, or it cannot be written.
    """

    def __init__(
        self,
        url: str,
        layout: Layout,
        *,
        job: Mapping[str, Any],
        split: str | None = None,
        description: Mapping[str, Any] | None = None,
        append: bool = False,
        overwrite: bool = False,
        media: Media | None = None,
        beside: Sequence[str] = (),
    ) -> None:
        self.url, self.layout, self.split, self.append, self.beside = url, layout, split, append, beside
        self.description, self.media = description, media
        self.home: Store = open_store(url)
        self.store = self.home
        self.base: list[Shard] = []
        self._others: set[str] = set()
        if append:
            need_prepared(self.home, url)
        elif not overwrite:
            self._refuse_present(job)
        self.work = OutputWork(self.home)
        try:
            with self.work.beginning():
                begin(self.work, {**job, "append": append, "layout": layout.as_dict()}, clear_left)
                if overwrite and "replaced" not in self.work.noted:
                    staged = isinstance(self.home, LocalStore) and self._prepared
                    old = self._replaceable()
                    replaced = [*_of_dataset(old), *self.beside] if old or staged else []
                    self.work.note(replaced=replaced, staged=staged)
                published = not append and self._replace()
                self.done = self.work.finished(self.store) if self.work.resumed else {}
                if append:
                    self._grow()
            if self.store is self.home and is_alone():  # otherwise other parts of this job may be writing
                tars = set(_tars(self.home))
                left = left_shards(self.home, self.work.noted) if self.work.resumed else ()
                # A run that was killed when it had published its shards may have deleted the record of them.
                there = energon.read_info(self.home) if published else ()
                own = {*self.done, *self._indexed(), *left, *there}
                self._others = tars - (own - {shard.path for shard in self.base})
        except BaseException:
            self.work.abandon(keep=bool(self.work.noted.get("replaced")))
            raise

    def plan(self, dry: DryRun, sizes: Mapping[str, int | None]) -> None:
        """Add to a dry run the shards to write, with their sizes, and what they replace.

        Raises:
            DataError: there are no shards.
        """
        if not sizes:
            raise self._empty()
        for path, size in sizes.items():
            dry.writes(self.home, path, size)
        dry.writes(self.home, f"{database.META}/")
        dry.warnings += self._new_splits([self.split] if self.split else [])
        dry.counts["shards"] = len(sizes)
        tars = (path for path in self.work.noted.get("replaced") or () if path.endswith(".tar"))
        dry.deletes_all(self.home, [path for path in tars if path not in sizes])

    def _empty(self) -> DataError:
        return DataError("no samples to write", file=self.url, kind="no-samples", fix="Give at least one sample.")

    def claim(self, names: Sequence[str]) -> None:
        """Raise `ConfigError` if one of the shards to write would replace a tar that this job did not write."""
        for path in names:
            if path in self._others:
                raise ConfigError(
                    f"this run writes a shard {path!r}, but a tar of this name was added since it was interrupted",
                    file=self.home.locate(path),
                    kind="changed",
                    fix="Move the tar to a name that no shard of this run gets, and index it with 'feedmill prepare' if"
                    " it belongs to the dataset. Then run this command again.",
                )

    def note_units(self, count: int) -> None:
        """Record the number of shards to write, so that other work can tell them from the tars of others."""
        with self.work.beginning():
            if self.work.noted.get("units") != count:
                self.work.note(units=count)

    def record(self, shard: Shard | None) -> None:
        """Record a finished shard in the journal; None for one without samples, which has no file."""
        if shard is not None:
            self.work.add_shard(shard)

    def _refuse_present(self, job: Mapping[str, Any]) -> None:
        """Raise `ConfigError` if the folder has data that was not left by unfinished writing, before changing it."""
        left = job_of(self.home)
        placed = left is not None and (left.get("half") or left.get("published"))
        kept = left is not None and left.get("staged") and not placed  # the old dataset is untouched
        was = left["identity"] if left is not None else {}
        if was.get("verb") == job["verb"] and not was.get("append") and not kept:
            return
        if self._prepared:
            tidy(self.home)
            raise ConfigError(
                "a dataset already exists here",
                file=self.url,
                kind="exists",
                fix="Write to another folder, append to the dataset, or replace it with overwrite (--overwrite).",
            )
        own = set() if left is None else {*left_shards(self.home, left)}
        tars = [path for path in _tars(self.home) if path not in own]
        if tars:
            raise _foreign(self.url, tars[0], "Write to another folder, or index them with 'feedmill prepare'.")

    def _replaceable(self) -> list[str]:
        """Return the shards of the existing dataset, and other tars whose names new shards may get."""
        listed = set(energon.read_info(self.home)) if self._prepared else set()
        tars = _tars(self.home)
        others = [path for path in tars if path not in listed and self.layout.number(path) is None]
        if others:
            raise _foreign(self.url, others[0], "Move them elsewhere, or write to another folder.")
        return tars

    @property
    def _prepared(self) -> bool:
        return self.home.exists(energon.INFO) or self.home.exists(energon.INFO_YAML)

    def _replace(self) -> bool:
        """Delete the replaced dataset. If new shards are staged, use their folder or finish publishing instead.

        Return whether this job's dataset is published.
        """
        if self.work.roll_forward():
            return True
        self.store = self.work.outputs
        self.work.clear_away()
        return False

    def _grow(self) -> None:
        """Load the existing shards, and number new shards after them."""
        present = present_shards(self.home)
        base = self.work.noted.get("base") if self.work.resumed else None
        if base is None:
            numbers = [self.layout.number(path) for path in _tars(self.home)]
            first = max((number for number in numbers if number is not None), default=self.layout.first - 1) + 1
            self.work.note(first=first, base=[shard.path for shard in present])
            base = self.work.noted["base"]
        own = {*self.done, *self._indexed()}
        self.base = [shard for shard in present if shard.path not in own]  # also those indexed since
        if [shard.path for shard in self.base if shard.path in set(base)] != base:
            raise ConfigError(
                "the dataset has lost shards since the interrupted run",
                file=self.url,
                kind="changed",
                fix=f"Remove {self.work.folder} and run the command again.",
            )
        self.layout = replace(self.layout, first=self.work.noted["first"])

    def _indexed(self) -> set[str]:
        """Return the new shards, if an interrupted run had begun to write the index with them."""
        return {path for names in self.work.noted.get("joins", {}).values() for path in names}

    def finish(self, shards: Sequence[Shard], splits: Mapping[str, Sequence[str]] | None = None) -> list[str]:
        """Add the new shards to the dataset and write its index. Return warnings.

        A new dataset gets the media metadata of `self.media`. If a dataset that grows has media metadata, that of the
        new shards is collected.

        Args:
            splits: split -> new shards; by default all are in the target's split.
        """
        if not shards:
            raise self._empty()
        if self.append:
            self._refuse_unreadable(shards)
        paths = [shard.path for shard in shards]
        base = [shard.path for shard in self.base]
        present = _present_splits(self.home, base) if self.append else Splits()
        if splits is None:
            splits = {self.split or next(iter(present.parts), "train"): paths}
        warnings = self._new_splits(splits)
        parts, exclude = _joined(present, splits)
        if self.append:  # after a kill, other work can then add the new shards to their splits
            self.work.note(joins={name: list(names) for name, names in splits.items()})
        whole = [*self.base, *shards]
        probed = shards if self.append else ()
        broken = commit(
            self.store, whole, parts, exclude=exclude, description=self.description, media=self.media, probed=probed
        )
        if isinstance(self.store, LocalStore) and self.store is not self.home:
            self.work.publish_staged(sorted(below(self.store)))
            self.store = self.home
        self.work.finish()
        return [*warnings, *(str(error) for error in broken)]

    def _new_splits(self, splits: Iterable[str]) -> list[str]:
        """Return a warning for each split that the dataset that is appended to does not have."""
        known = list(_present_splits(self.home, ()).parts) if self.append else []
        new = [name for name in splits if known and name not in known]
        return [
            f"the split {name!r} is new{did_you_mean(name, known)}: until now the dataset had {', '.join(known)}"
            for name in new
        ]

    def _refuse_unreadable(self, shards: Sequence[Shard]) -> None:
        """Remove the new shards and raise if the declared sample type cannot read one of their samples."""
        field_map = declared_map(self.home)
        for shard in shards if field_map else ():
            problem = unreadable(field_map, shard.scan, self.store.locate(shard.path))
            if problem is not None:
                self.drop()  # the same command would fail again, so nothing is kept
                problem.file = self.url
                problem.offset = None
                problem.fix = f"Nothing was appended. {problem.fix}"
                raise problem

    def drop(self) -> None:
        """Delete everything that was written and end the job."""
        clear_left(self.home, self.work.noted)
        self.work.finish()

    def close(self) -> None:
        """Release the lock. Unfinished work is kept for the next run."""
        self.work.close()


def _foreign(url: str, path: str, fix: str) -> ConfigError:
    return ConfigError(
        f"the folder contains tar files that are not part of a dataset, such as {path!r}",
        file=url,
        kind="exists",
        fix=fix,
    )


def _present_splits(store: Store, base: Sequence[str]) -> Splits:
    """Return the splits of the dataset. Without a split file, all its shards count as ``train``: once a split file
    lists the new shards only, the old ones would be skipped.
    """
    return read_splits(store) or Splits({"train": list(base)})


def _joined(present: Splits, joins: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the splits and exclusions after the shards of `joins` have joined their splits."""
    new = {shard for names in joins.values() for shard in names}
    parts = {name: [s for s in names if s not in new] for name, names in present.parts.items()}
    for name, names in joins.items():
        parts.setdefault(name, []).extend(names)
    return parts, [*sorted(present.shards_out), *(f"{s}/{k}" for s, k in present.samples_out)]


def clear_left(store: Store, left: Mapping[str, Any]) -> None:
    """Delete unlisted shards that unfinished work wrote, and add those that the index lists to their splits."""
    if left.get("staged"):  # all it wrote is in the staging folder
        return
    _join_left(store, left)
    listed = set(energon.read_info(store)) if store.exists(energon.INFO) else set()
    for path in left_shards(store, left):
        if path not in listed:
            store.delete(path)
            store.delete(idx_name(path))
            store.delete(shard_lineage(path))


def _join_left(store: Store, left: Mapping[str, Any]) -> None:
    """Add new shards to their splits, if an append was killed after writing the index but before the split file."""
    joins = left.get("joins")
    if not isinstance(joins, dict) or not store.exists(energon.INFO):
        return
    info, present = energon.read_info(store), _present_splits(store, left.get("base", ()))
    listed = {shard for names in present.parts.values() for shard in names} | present.shards_out
    missing = {name: [s for s in names if s in info and s not in listed] for name, names in joins.items()}
    if any(missing.values()):
        energon_write.write_splits(store, *_joined(present, missing))


def _of_dataset(shards: Sequence[str]) -> list[str]:
    """Return all files of a dataset, beginning with ``.info.json``, without which it is not a dataset."""
    index = [energon.INFO, energon.INFO_YAML, database.INDEX, energon.UUID, energon_members.PATH]
    index += [all_offsets.PATH, sidecar.PATH]
    described = [f"{database.META}/{name}" for name in ("split.yaml", "split.json", "dataset.yaml")]
    return [*index, *described, *(path for shard in shards for path in (shard, idx_name(shard), shard_lineage(shard)))]


def _tars(store: Store) -> list[str]:
    try:
        return [entry.path for entry in store.files(suffixes=(".tar",))]
    except LookupError:
        return []
