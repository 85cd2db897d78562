"""The records of steps: what each step of a run drew, made once and read ever after.

``steps/RUN/00004711.json`` in the folder of the rollouts, or in another one, has

    run, step    what it is the record of
    version      of the policy that the step trains
    horizon      number of commits that were visible
    settings     how groups were drawn (`feedmill.planning.rollouts.draw.Settings`)
    picks        [commit, number in it] of each group
    left_out     number of the other groups, by reason

Several ranks may draw a step at once, with other horizons. The record of one of them is published
(`feedmill.formats.rollouts.numbered`), and all use it. So ranks agree without talking to one another, and a run that is
killed and resumed at a step draws the same groups, on any number of ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.offsets import Int64s
from feedmill.formats.rollouts.commits import Rollouts
from feedmill.formats.rollouts.numbered import Numbered, seal, unseal
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.rollouts.draw import Drawn, Settings, draw
from feedmill.storage import Store, join_url, open_store

_FIRST_PAUSE, _PAUSE = 0.05, 1.0
"""Seconds between two looks for new commits: doubled from the first to the second."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a step drew; see the module."""

    run: str
    step: int
    version: int
    horizon: int
    settings: Settings
    picks: list[list[int]]
    left_out: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as in the file."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {"v": 1, **named, "settings": self.settings._asdict()}

    @classmethod
    def of(cls, facts: Mapping[str, Any], file: str) -> Record:
        """Return the record with these facts. Raises `DataError` for those of a later release."""
        if facts.get("v") != 1 or set(facts) != {"v", *cls.__slots__}:
            what, fix = "this is no record of a step that this release reads", "Use the release that wrote it."
            raise DataError(what, file=file, kind="unsupported", fix=fix)
        fields = {name: facts[name] for name in cls.__slots__}
        return cls(**{**fields, "settings": Settings(**facts["settings"])})


class Steps:
    """The steps of a run over rollouts.

    Args:
        rollouts: what they draw from.
        run: name of the run.
        store: folder with the folder ``steps``; that of the rollouts by default.
    """

    def __init__(self, rollouts: Rollouts, run: str, store: Store | None = None) -> None:
        self.rollouts, self.run = rollouts, run
        self.store = rollouts.store if store is None else store
        self.files = Numbered(self.store, f"steps/{run}", ".json", lambda store, path: store.read(path))
        self._times = np.zeros(0, np.int64)

    def find(self, step: int) -> Record | None:
        """Return the record of a step; None if it was not drawn yet. Raises `DataError` if it is damaged."""
        path = self.files.path(step)
        where = self.store.locate(path)
        try:
            record = Record.of(unseal(self.store.read(path), where), where)
        except NotFound:
            return None
        if (record.run, record.step) != (self.run, step):
            what = f"this is the record of step {record.step} of {record.run!r}"
            raise DataError(what, file=where, kind="changed", fix="Restore the file from a copy.")
        self._see(record.horizon, where)
        return record

    def drawn(self, step: int) -> Record:
        """Return the record of a step. Raises `NotFound` if it was not drawn, and `DataError`."""
        record = self.find(step)
        if record is None:
            where = self.store.locate(self.files.path(step))
            raise NotFound(
                f"step {step} of {self.run!r} was not drawn", file=where, fix="Give a step that the run has reached."
            )
        return record

    def _see(self, horizon: int, where: str) -> None:
        if self.rollouts.commits < horizon and self.rollouts.refresh() < horizon:
            raise DataError(
                f"the step drew from {horizon:,} commits, of which {self.rollouts.commits:,} are there",
                file=where,
                kind="missing-shard",
                fix=f"Restore the commits of {self.rollouts.path}; they are never deleted.",
            )

    def groups(self, record: Record) -> Int64s:
        """Return the numbers of the groups of a record, int64[n]."""
        return np.array([self.rollouts.first_group(commit) + number for commit, number in record.picks], np.int64)

    def records(self) -> Iterator[Record]:
        """Yield the records that are new since the last call. Raises `DataError`."""
        for facts in self.files.new():
            where = self.store.locate(self.files.path(self.files.count - 1))
            record = Record.of(facts, where)
            self._see(record.horizon, where)
            yield record

    def times(self) -> Int64s:
        """Return how often each group was drawn in all steps so far, int64[groups]."""
        for record in self.records():
            self._grow()
            np.add.at(self._times, self.groups(record), 1)
        self._grow()
        return self._times

    def _grow(self) -> None:
        more = len(self.rollouts) - len(self._times)
        if more > 0:
            self._times = np.concatenate([self._times, np.zeros(more, np.int64)])

    def take(
        self,
        step: int,
        settings: Settings,
        version: int,
        wait: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> Record:
        """Return the record of a step; draw the step if there is none, once enough groups are there.

        Args:
            version: of the policy, if it is drawn now.
            wait: seconds to wait for groups.
            clock, sleep: in place of those of `time`.

        Raises:
            ConfigError: an earlier step was not drawn; or, of kind ``too-few-samples``, there are not enough groups:
                the message counts those left out by reason.
        """
        until, pause = clock() + wait, _FIRST_PAUSE
        while True:
            if (record := self.find(step)) is not None:
                return record
            self.rollouts.refresh()
            times = self.times()
            if self.files.count < step:
                raise ConfigError(
                    f"step {step} of {self.run!r} cannot be drawn: step {self.files.count} was not drawn yet",
                    file=self.rollouts.path,
                    kind="bad-state",
                    fix="Begin a run at step 0, or resume it at a step that it has reached.",
                )
            if self.files.count > step:
                continue  # another rank has drawn it meanwhile
            horizon = self.rollouts.commits
            found = draw(self.rollouts, settings, step, version, len(times), times)
            if len(found.groups) == settings.groups:
                picks = self.rollouts.place(found.groups).tolist()
                record = Record(self.run, step, version, horizon, settings, picks, found.left_out)
                self.files.publish(step, seal(record.as_dict()))
                continue  # reads it back: another rank's may have been first
            if clock() >= until:
                raise self._too_few(step, settings, found, wait)
            sleep(min(pause, _PAUSE))
            pause *= 2

    def _too_few(self, step: int, settings: Settings, found: Drawn, wait: float) -> ConfigError:
        counted = ", ".join(f"{count:,} {reason}" for reason, count in found.left_out.items()) or "none"
        return ConfigError(
            f"step {step} needs {settings.groups} groups, {len(found.groups)} are there after {wait:g} s (left out of"
            f" {len(self.rollouts):,}: {counted})",
            file=self.rollouts.path,
            kind="too-few-samples",
            fix="See that samplers append; or raise 'wait', 'max_age' or 'reuse' of the recipe.",
        )

    def verify(self) -> Iterator[FeedmillError]:
        """Yield what is wrong: records that are missing or damaged, and picks that are drawn otherwise."""
        self.rollouts.refresh()
        times = np.zeros(len(self.rollouts), np.int64)
        try:
            end = self.files.last()
        except FeedmillError as error:
            yield error
            return
        for step in range(end):
            where = self.store.locate(self.files.path(step))
            try:
                record = self.find(step)
                if record is None:
                    continue
                groups = self.groups(record)
                seen = self.rollouts.first_group(record.horizon)
                again = draw(self.rollouts, record.settings, step, record.version, seen, times)
            except FeedmillError as error:
                yield error
                return  # what later steps drew depends on it
            if groups.tolist() != again.groups.tolist() or record.left_out != again.left_out:
                what = "the step drew other groups than its settings, seed and the steps before it say"
                yield DataError(
                    what, file=where, kind="changed", fix="Restore the file and those before it from a copy."
                )
            np.add.at(times, groups, 1)


def runs_of(store: Store) -> list[str]:
    """Return the names of the runs whose steps are in a folder, sorted."""
    try:
        return sorted({entry.path.split("/")[1] for entry in store.files("steps", suffixes=(".json",))})
    except NotFound:
        return []


def steps_of(recipe: Recipe) -> tuple[Steps, Settings]:
    """Return the steps and settings of a recipe. Raises `ConfigError` if it is not one of rollouts."""
    model = recipe.model.rollouts
    if model is None:
        raise ConfigError(
            "the recipe has no 'rollouts'",
            file=recipe.file,
            kind="bad-recipe",
            fix="Write 'rollouts: {path: rollouts/, groups: 16}', or use fm.Loader.",
        )
    priority = model.priority
    settings = Settings(model.groups, recipe.model.seed or 0, model.max_age, model.reuse)
    if priority is not None:
        settings = settings._replace(by=priority.by, of=priority.of, power=float(priority.power))
    store = None if model.steps is None else open_store(join_url(recipe.base, model.steps))
    return Steps(Rollouts(join_url(recipe.base, model.path)), model.run, store), settings
