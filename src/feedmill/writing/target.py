"""The dataset that shards are written to: a new one, or one that grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from feedmill.errors import ConfigError, DataError
from feedmill.formats import energon, energon_members, energon_write, sidecar
from feedmill.formats.energon import idx_name
from feedmill.samples.description import declared_map, unreadable
from feedmill.storage import LocalStore, Store, open_store
from feedmill.writing.commit import Media, commit
from feedmill.writing.layout import Layout
from feedmill.writing.present import need_prepared, present_shards
from feedmill.writing.shard import Shard
from feedmill.writing.work import Work, tidy, unfinished


class Target:
    """Where new shards go. Killed at any moment, the same target opened again knows the shards that are done.

    Args:
        url: the folder.
        layout: names and limits of the shards.
        job: plain data that tells this work from other work.
        split: what split the new shards join; None for the first that there is (``train`` in a new dataset).
        description: content of ``dataset.yaml``.
        append: add to the prepared dataset that is there.
        overwrite: replace the dataset that is there.
        media: an index whose media metadata a new dataset takes over.

    Attributes:
        done: shards that an interrupted run of the same work has finished, by path.

    Raises:
        ConfigError: there is a dataset, or there are tars of unknown origin; or there is none to append to.
        StorageError: another process writes to it, or it cannot be written.
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
    ) -> None:
        self.url, self.layout, self.split, self.append = url, layout, split, append
        self.description, self.media = description, media
        self.store: Store = open_store(url)
        self.base: list[Shard] = []
        if append:
            need_prepared(self.store, url)
        elif not overwrite:
            self._refuse_present(job)
        self.work = Work(self.store, {**job, "append": append, "layout": layout.as_dict()})
        try:
            self._clear(overwrite)
            if append:
                self._grow()
            else:
                self._replace()
            self.done = self.work.finished() if self.work.resumed else {}
        except BaseException:
            if self.work.resumed or self.work.left is not None or self.work.job.get("replaced"):
                self.work.close()
            else:  # nothing was begun
                self.work.finish()
            raise

    def _refuse_present(self, job: Mapping[str, Any]) -> None:
        """Refuse a folder with data that no unfinished writing has left, before anything is made in it."""
        left = unfinished(self.store)
        if left is not None and left.get("verb") == job["verb"] and not left.get("append"):
            return
        if self.store.exists(energon.INFO) or self.store.exists(energon.INFO_YAML):
            tidy(self.store)
            raise ConfigError(
                "there is a dataset here",
                file=self.url,
                kind="exists",
                fix="Write to another folder, append to it, or replace it with overwrite (--overwrite).",
            )
        tars = [path for path in _tars(self.store) if not (left is not None and self.layout.number(path) is not None)]
        if tars:
            raise _foreign(self.url, tars[0], "Write to another folder, or index them with 'feedmill prepare'.")

    def _clear(self, overwrite: bool) -> None:
        """Remove what other unfinished work has left, and with `overwrite` the dataset that is there."""
        if self.work.left is not None:
            clear_left(self.store, self.work.left)
            self.work.note()
            if isinstance(self.store, LocalStore):
                self.store.sweep()
        if overwrite and "replaced" not in self.work.job:
            self.work.note(replaced=self._replaceable())

    def _replaceable(self) -> list[str]:
        """The shards of the dataset that is there, and those whose names the new ones may get."""
        known = self.store.exists(energon.INFO) or self.store.exists(energon.INFO_YAML)
        listed = set(energon.read_info(self.store)) if known else set()
        tars = _tars(self.store)
        others = [path for path in tars if path not in listed and self.layout.number(path) is None]
        if others:
            raise _foreign(self.url, others[0], "Move them elsewhere, or write to another folder.")
        return tars

    def _replace(self) -> None:
        replaced = self.work.job.get("replaced")
        if not replaced:
            return
        for name in (energon.INFO, energon.INFO_YAML, energon.INDEX, energon.UUID, energon_members.PATH, sidecar.PATH):
            self.store.delete(name)  # the dataset is gone with the first of them
        for name in ("split.yaml", "split.json", "dataset.yaml"):
            self.store.delete(f"{energon.META}/{name}")
        for shard in replaced:
            self.store.delete(shard)
            self.store.delete(idx_name(shard))
        self.work.note(replaced=[])

    def _grow(self) -> None:
        """Number new shards behind those that are there."""
        present = present_shards(self.store)
        base = self.work.job.get("base") if self.work.resumed else None
        if base is None:
            numbers = [self.layout.number(path) for path in _tars(self.store)]
            first = max((number for number in numbers if number is not None), default=self.layout.first - 1) + 1
            self.work.note(first=first, base=[shard.path for shard in present])
            base = self.work.job["base"]
        self.base = [shard for shard in present if shard.path in set(base)]
        if [shard.path for shard in self.base] != base:
            raise ConfigError(
                "the dataset has lost shards since the interrupted run",
                file=self.url,
                kind="changed",
                fix=f"Remove {self.work.folder} and run the command again.",
            )
        self.layout = replace(self.layout, first=self.work.job["first"])

    def finish(self, shards: Sequence[Shard], splits: Mapping[str, Sequence[str]] | None = None) -> None:
        """Make the new shards part of the dataset; of a new one, with the media metadata of `self.media`.

        Args:
            splits: split -> new shards; by default all are in the target's split.
        """
        if not shards:
            raise DataError(
                "there are no samples to write", file=self.url, kind="no-samples", fix="Give at least one sample."
            )
        if self.append:
            self._refuse_unreadable(shards)
        paths = [shard.path for shard in shards]
        base = [shard.path for shard in self.base]
        present = _present_splits(self.store, base) if self.append else energon.Splits()
        if splits is None:
            splits = {self.split or next(iter(present.parts), "train"): paths}
        parts, exclude = _joined(present, splits)
        if self.append:  # other work that comes after a kill can then tell where the new shards belong
            self.work.note(joins={name: list(names) for name, names in splits.items()})
        whole = [*self.base, *shards]
        commit(self.store, whole, parts, exclude=exclude, description=self.description, media=self.media)
        self.work.finish()

    def _refuse_unreadable(self, shards: Sequence[Shard]) -> None:
        """Refuse new samples that the declared sample type could not read, and remove them."""
        field_map = declared_map(self.store)
        for shard in shards if field_map else ():
            problem = unreadable(field_map, shard.scan, self.store.locate(shard.path))
            if problem is not None:
                self.drop()  # the same command would find it again
                problem.file = self.url
                problem.offset = None
                problem.fix = f"Nothing was appended. {problem.fix}"
                raise problem

    def drop(self) -> None:
        """Remove what was written, as if nothing had been begun."""
        clear_left(self.store, self.work.job)
        self.work.finish()

    def close(self) -> None:
        """Let go of it; what is unfinished stays for the next time."""
        self.work.close()


def _foreign(url: str, path: str, fix: str) -> ConfigError:
    return ConfigError(
        f"the folder has tar files that are of no dataset, such as {path!r}", file=url, kind="exists", fix=fix
    )


def _present_splits(store: Store, base: Sequence[str]) -> energon.Splits:
    """The splits that are there. Without any, what is there is in no split, and would be passed over once there is
    one."""
    return energon.read_splits(store) or energon.Splits({"train": list(base)})


def _joined(present: energon.Splits, joins: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[str]], list[str]]:
    """Splits and exclusions once these shards have joined these splits."""
    new = {shard for names in joins.values() for shard in names}
    parts = {name: [s for s in names if s not in new] for name, names in present.parts.items()}
    for name, names in joins.items():
        parts.setdefault(name, []).extend(names)
    return parts, [*sorted(present.shards_out), *(f"{s}/{k}" for s, k in present.samples_out)]


def clear_left(store: Store, left: Mapping[str, Any]) -> None:
    """Remove the unlisted shards that unfinished work has left; those that it had listed join their splits."""
    _join_left(store, left)
    listed = set(energon.read_info(store)) if store.exists(energon.INFO) else set()
    if "layout" not in left:
        return
    layout = Layout(**left["layout"])
    first = left.get("first", layout.first)
    for path in _tars(store):
        number = layout.number(path)
        if path not in listed and number is not None and number >= first:
            store.delete(path)
            store.delete(idx_name(path))


def _join_left(store: Store, left: Mapping[str, Any]) -> None:
    """Where a dataset was killed when it had grown but for its split file: its new shards would be in no split."""
    joins = left.get("joins")
    if not isinstance(joins, dict) or not store.exists(energon.INFO):
        return
    info, present = energon.read_info(store), _present_splits(store, left.get("base", ()))
    listed = {shard for names in present.parts.values() for shard in names} | present.shards_out
    missing = {name: [s for s in names if s in info and s not in listed] for name, names in joins.items()}
    if any(missing.values()):
        energon_write.write_splits(store, *_joined(present, missing))


def _tars(store: Store) -> list[str]:
    try:
        return [entry.path for entry in store.files(suffixes=(".tar",))]
    except LookupError:
        return []
