"""Which groups of rollouts each step of a run trains on: the records of steps, made once and read ever after.

The order cannot be a function of the position alone, because samplers append while a trainer reads. So each step has a
record, which is made once by whichever rank comes first, and read by all others and by every later replay. What it
draws is a function of what the record says and of the steps before it, so that `check` computes it again.

``steps/RUN/00004711.json`` in the folder of the rollouts, or in another one, has

    run, step    what it is the record of
    version      of the policy that the step trains
    horizon      number of commits that were visible
    settings     how groups were drawn (`feedmill.planning.rollouts.Settings`)
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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.offsets import Int64s
from feedmill.formats.rollouts.commits import Rollouts
from feedmill.formats.rollouts.numbered import Numbered, seal, unseal
from feedmill.planning.recipes.recipe import Recipe
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


_F1, _F2, _SEED = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)


class Settings(NamedTuple):
    """How groups are drawn.

    Attributes:
        groups: number of groups of a step.
        seed: of draws by priority.
        max_age: versions by which the policy may be newer than a group; None for any.
        reuse: how often a group is drawn.
        by, of, power: draw by weight, the ``mean`` or ``spread`` of a column to a power; the oldest first without `by`.
    """

    groups: int
    seed: int = 0
    max_age: int | None = None
    reuse: int = 1
    by: str | None = None
    of: str = "mean"
    power: float = 1.0


class Drawn(NamedTuple):
    """Groups of a step.

    Attributes:
        groups: int64[n], at most as many as the settings say.
        left_out: number of other groups, by reason.
    """

    groups: Int64s
    left_out: dict[str, int]


def draw(rollouts: Rollouts, settings: Settings, step: int, version: int, end: int, times: Int64s) -> Drawn:
    """Return the groups of a step.

    By priority, groups are drawn without replacement by weights: those with the least `E / weight`, where E are
    exponential random numbers (Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir").

    Args:
        version: of the policy at this step.
        end: number of groups that are seen.
        times: int64[end], how often each was drawn before.

    Raises:
        ConfigError: no group has the column, or a weight is negative.
    """
    kept = times[:end] < settings.reuse
    left_out = {"drawn before": end - int(np.count_nonzero(kept))}
    versions = rollouts.versions[:end]
    if settings.max_age is not None:
        for reason, wrong in (
            (f"older than {settings.max_age} versions", versions < version - settings.max_age),
            ("of a later version", versions > version),
        ):
            left_out[reason] = int(np.count_nonzero(kept & wrong))
            kept &= ~wrong
    groups = np.flatnonzero(kept)
    if settings.by is not None:
        found, more = _by_priority(rollouts, settings, step, groups)
        left_out |= more
    elif settings.reuse > 1:
        found = groups[np.argsort(times[groups], kind="stable")][: settings.groups]
    else:
        found = groups[: settings.groups]
    left = len(groups) - sum(more.values()) if settings.by is not None else len(groups)
    left_out["later in line"] = left - len(found)
    return Drawn(found, {reason: count for reason, count in left_out.items() if count})


def _by_priority(rollouts: Rollouts, settings: Settings, step: int, groups: Int64s) -> tuple[Int64s, dict[str, int]]:
    assert settings.by is not None
    values = rollouts.numbers(settings.by, settings.of)
    if values is None:
        if not len(groups):
            return groups, {}
        raise ConfigError(
            f"no group has the column {settings.by!r} (columns of numbers: {', '.join(rollouts.columns())})",
            file=rollouts.path,
            kind="no-column",
            fix="Set 'by' of the recipe's priority to one of these.",
        )
    weights = values[groups]
    if np.fmin.reduce(weights, initial=0.0) < 0:
        group = int(groups[np.nanargmin(weights)])
        raise ConfigError(
            f"the {settings.of} of {settings.by!r} is {values[group]:g} for the group {rollouts.names([group])[0]!r}",
            file=rollouts.path,
            kind="bad-recipe",
            fix="A priority is not negative: use another column, or 'of: spread'.",
        )
    missing, zero = int(np.count_nonzero(np.isnan(weights))), int(np.count_nonzero(weights == 0))
    counts = {f"without a value of {settings.by!r}": missing, "of priority 0": zero}
    if missing or zero:
        kept = weights > 0
        groups, weights = groups[kept], weights[kept]
    keys = _uniform(settings.seed, step, groups)
    np.log(keys, out=keys)
    keys /= -(weights if settings.power == 1 else weights**settings.power)
    few = np.arange(len(keys))
    if len(keys) > settings.groups:
        few = np.argpartition(keys, settings.groups - 1)[: settings.groups]
    return groups[few[np.lexsort((groups[few], keys[few]))]], counts


def _uniform(seed: int, step: int, groups: Int64s) -> npt.NDArray[np.float64]:
    """Return a random number in (0, 1) for each group: SplitMix64 (Steele, Lea and Flood 2014) of its number."""
    base = np.uint64(xxhash.xxh3_64_intdigest(b"%d %d" % (seed, step)))
    value: npt.NDArray[Any] = groups.astype(np.uint64)
    value += np.uint64(1)
    value *= _SEED
    value += base
    for shift, factor in ((30, _F1), (27, _F2)):
        value ^= value >> np.uint64(shift)
        value *= factor
    value ^= value >> np.uint64(31)
    value >>= np.uint64(11)
    found = value.astype(np.float64)
    found += 0.5
    found /= 1 << 53
    return found
