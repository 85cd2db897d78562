"""Make one batch from its positions: read in bulk, transform, collate. Failures name the sample that caused them."""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.batches import Batch, Fields, Parts, Want
from feedmill.loading.ahead import StepReader
from feedmill.loading.collate import collate as default_collate
from feedmill.loading.collate import collate_parts
from feedmill.loading.failures import MISTAKES, TRIES, Failure, SkipSample, Unusable, candidates, source_of, told
from feedmill.loading.labels import Labeler, Labels
from feedmill.loading.plan import PlanLike
from feedmill.loading.watchdog import Activity, Watchdog
from feedmill.planning.dealing.grid import Step
from feedmill.storage.fetching.fetch import waited

_MADE = ("read", "transform", "collate")
MASK = "__mask__"
now = threading.local()
"""What this thread is working on: `step`, the number of the batch; `position`, that of the sample in the transform, or
of the batch's first sample while it is collated; `rng`, the generator for code that takes none as an argument, or
None."""
_UNWANTED = object()


@dataclass(slots=True)
class Made:
    """A batch, and what happened to its samples.

    Attributes:
        batch: as the loader yields it, but with numpy arrays.
        step: which batch it is.
        troubles: samples that failed and were replaced, each with the error that a strict loader would raise.
        skipped: number of samples that the transform skipped.
        seconds: duration of each stage: waiting for remote data, reading, transforming, collating.
        labels: labels of the batch, if requested; `item_labels`: those of each pack or group, if this is a window.
        substitutes: position of a replaced sample -> position of its substitute.
    """

    batch: Any
    step: Step
    troubles: list[tuple[Failure, FeedmillError]] = field(default_factory=list)
    skipped: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    labels: Labels | None = None
    item_labels: list[Labels] = field(default_factory=list)
    substitutes: dict[int, int] = field(default_factory=dict)


class BatchMaker:
    """Makes the batches of a plan. Stateless, so that any thread or process can make any batch.

    Args:
        transform: ``transform(sample)`` or ``transform(sample, rng)``, or None.
        collate: list of samples -> batch, or None for the default.
        lists: return plain lists of samples.
        seed: seed of the generators for the transform.
        rank: rank for records of failures.
        substitute: replace a sample that fails; otherwise the failure is raised.
        stall: seconds after which a batch in progress is reported in the log; None for never.
        of_fields: makes a batch from the type, the fields and the positions of samples, if the plan can read these: the
            same batch as that of `transform` and `collate`, without building samples.
        mask: add the field ``__mask__``, bool[n]: which samples belong to the plan and are not padding.
        labels: report where the samples come from.
    """

    def __init__(
        self,
        plan: PlanLike,
        transform: Callable[..., Any] | None,
        collate: Callable[[list[Any]], Any] | None,
        *,
        lists: bool,
        seed: int,
        rank: int,
        substitute: bool,
        mask: bool = False,
        labels: bool = False,
        stall: float | None = None,
        of_fields: Callable[[type[Any], dict[str, Any], list[int]], Any] | None = None,
    ) -> None:
        self._plan = plan
        self._transform = transform
        self._random = transform is not None and takes_rng(transform)
        self._named = transform is not None and named_rng(transform)
        self._collate = collate or default_collate
        self._lists = lists
        self._seed, self._rank = seed, rank
        self._substitutes = substitute
        self._mask = mask
        self._label = Labeler(plan) if labels else None
        plain = transform is None and collate is None and not lists
        self._want: Want | None = "parts" if plain else "fields" if of_fields else None
        self._of_fields = of_fields
        self.step_reader: StepReader | None = None
        self._watchdog = None if stall is None else Watchdog(stall, rank, self._where)

    @property
    def has_user_code(self) -> bool:
        """Whether a transform or a collate function was given."""
        return self._transform is not None or self._collate is not default_collate

    def generator(self, position: int, stage: int) -> np.random.Generator:
        """Return the random generator of a stage at a position.

        Stages: 0 the transform, 1 the rest of a packed sample, 2 a batch or window of samples, 3 an item of a window, 4
        a batch of packs.
        """
        return generator(self._seed, position, stage)

    def put_together(self, step: Step, stage: int, place: int = 0) -> None:
        """Record that this thread collates a batch or window of samples, in one of the stages after the transform."""
        now.step, now.position, now.rng = step.number, step.first, self.generator(step.first + place, stage)

    def __call__(self, step: Step) -> Made:
        """Return the batch of a step's positions.

        Raises:
            FeedmillError: a sample failed and has no substitute; the error says which.
        """
        made = Made(None, step)
        activity = Activity(step.number, step.first, step.stop)
        watched = nullcontext() if self._watchdog is None else self._watchdog.watch(activity)
        with watched, nullcontext() if self.step_reader is None else self.step_reader.reading(self._plan, step):
            self._fill(made, activity)
        if self._mask:
            self._add_mask(made)
        return made

    def again(self, positions: Sequence[int]) -> Made:
        """Return the batch of any positions; each sample is what it was in its own batch. Raises as a call does."""
        first, stop = min(positions), max(positions) + 1
        made = Made(None, Step(first, stop, stop, dealt=np.array(positions, np.int64)))
        self._fill(made, Activity(0, first, stop))
        return made

    def _fill(self, made: Made, activity: Activity) -> None:
        clock, before = [time.perf_counter()], waited()
        located = made.step.located if self._label is None else self._label.located(made.step)
        self._fill_at(made, activity, made.step.positions.tolist(), located, clock)
        if "read" in made.seconds:
            made.seconds["fetch"] = min(waited() - before, made.seconds["read"])
            made.seconds["read"] -= made.seconds["fetch"]
        if self._label is not None:
            made.labels = self._label(made.step, located, made.substitutes)

    def _fill_at(self, made: Made, activity: Activity, positions: list[int], located: Any, clock: list[float]) -> None:
        now.step = made.step.number
        try:
            if self._in_one(made, activity, positions, located, clock):
                return
            samples = self._read(positions, located)
            clock.append(time.perf_counter())
            if self._transform is not None:
                activity.stage = "transform"
                samples = [self._wanted(s, place, activity) for s, place in zip(samples, positions, strict=True)]
        except Exception as error:
            made.batch = self._one_by_one(positions, made, error)
        else:
            for row in [row for row, sample in enumerate(samples) if sample is _UNWANTED]:
                samples[row] = self._usable(positions[row], made)
            clock.append(time.perf_counter())
            activity.stage, activity.position = "collate", None
            self.put_together(made.step, 2)
            try:
                made.batch = self._together(samples)
            except Exception as error:
                made.batch = self._one_by_one(positions, made, error)
        clock.append(time.perf_counter())
        made.seconds = dict(zip(_MADE, np.diff(clock).tolist(), strict=False))

    def _in_one(self, made: Made, activity: Activity, positions: list[int], located: Any, clock: list[float]) -> bool:
        """Make the batch without building samples, if the plan can; return whether it was made."""
        if self._want is None:
            return False
        read = self._plan.read_batch(np.asarray(positions, np.int64), self._want, located)
        if read is None:
            return False
        clock += [time.perf_counter()] * 2
        activity.stage = "collate"
        made.batch = self._batch_of(read, positions)
        made.seconds = dict(zip(_MADE, np.diff([*clock, time.perf_counter()]).tolist(), strict=False))
        return True

    def _batch_of(self, read: Batch, positions: list[int]) -> Any:
        if isinstance(read, Parts):
            return collate_parts(read)
        if isinstance(read, Fields):
            assert self._of_fields is not None
            return self._of_fields(read.type, read.values, positions)
        return read

    def _add_mask(self, made: Made) -> None:
        if not isinstance(made.batch, dict):
            raise ConfigError(
                f"a batch that is filled up says so in its field {MASK!r}, and this batch is no dict",
                fix="Collate to a dict, or use remainder='drop' or 'uneven'.",
            )
        made.batch[MASK] = made.step.mask

    def _together(self, samples: list[Any]) -> Any:
        return samples if self._lists else self._collate(samples)

    def _read(self, positions: Sequence[int], located: Any = None) -> list[Any]:
        samples = self._plan.read(np.asarray(positions, np.int64), located)
        if len(samples) != len(positions):
            raise FeedmillError(f"the plan gave {len(samples)} samples for {len(positions)} positions", kind="bad-plan")
        return samples

    def _transformed(self, sample: Any, position: int) -> Any:
        assert self._transform is not None
        now.position, now.rng = position, None
        if not (self._random or self._named):
            return self._transform(sample)
        now.rng = generator(self._seed, position)
        return self._transform(sample, rng=now.rng) if self._named else self._transform(sample, now.rng)

    def _wanted(self, sample: Any, position: int, activity: Activity) -> Any:
        """Return the transformed sample; `_UNWANTED` if the transform skips it."""
        activity.position = position
        try:
            return self._transformed(sample, position)
        except SkipSample:
            return _UNWANTED

    def _one_by_one(self, positions: list[int], made: Made, error: Exception) -> Any:
        """Return a batch that failed, made sample by sample: bad ones are found, reported, and replaced if allowed."""
        samples = [self._usable(position, made) for position in positions]
        self.put_together(made.step, 2)
        try:
            return self._together(samples)
        except Exception as again:
            where = f"the positions {made.step.first} to {made.step.stop - 1}"
            raise told(again, "collate", where, f"{where} (each of them works alone)") from error

    def _usable(self, position: int, made: Made) -> Any:
        """Return the sample of a position, or its substitute."""
        why: FeedmillError | None = None
        refused: list[Exception] = []
        try:
            return self._alone(position, position)
        except SkipSample:
            made.skipped += 1
            found = self._substitute(position, refused)
        except Unusable as unusable:
            error = why = unusable.told(self._where(position))
            if not self._substitutes or isinstance(unusable.error, MISTAKES):
                raise error from unusable.error
            found = self._substitute(position, refused)
            failure = self._failure(unusable, position, made.step.number, found and found[1])
            made.troubles.append((failure, error))
        if found is None:
            last = refused[-1] if refused else None
            raise FeedmillError(
                f"nothing of the same source can stand in for the sample at {self._where(position)}"
                + ("" if why is None else f", which failed: {why.what}")
                + ("" if last is None else f"; the last of {len(refused):,} failures: {type(last).__name__}: {last}"),
                kind="no-substitute",
                fix="Look at the source and at the transform: they refuse every sample that was tried.",
            ) from (last or why)
        made.substitutes[position] = found[1]
        return found[0]

    def _substitute(self, position: int, refused: list[Exception]) -> tuple[Any, int] | None:
        """The first usable candidate, and its position; None if there is none; `refused` gets why others failed."""
        for candidate in islice(candidates(self._plan, position, self._seed), TRIES):
            try:
                return self._alone(candidate, position), candidate
            except SkipSample:
                continue
            except Unusable as unusable:
                refused.append(unusable.error.with_traceback(None))  # a thousand of them would hold much
        return None

    def _alone(self, position: int, place: int) -> Any:
        """The sample at `position`, read, transformed as at `place`, and decoded. Raises `SkipSample`, `Unusable`."""
        stage, sample = "read", None
        try:
            sample = self._read([position])[0]
            stage = "transform"
            made = sample if self._transform is None else self._transformed(sample, place)
            stage = "collate"
            self._together([made])
            return made
        except SkipSample:
            raise
        except Exception as error:
            raise Unusable(stage, sample, error) from error

    def _failure(self, unusable: Unusable, position: int, step: int, substitute: int | None) -> Failure:
        located = self._plan.locate(np.array([position], np.int64))
        number, index, epoch = int(located.source[0]), int(located.index[0]), int(located.epoch[0])
        names = self._plan.names
        error, source = unusable.error, source_of(unusable.sample)
        if source is None:
            with contextlib.suppress(Exception):  # the place of a sample that cannot be read may be unknown too
                source = self._plan.locate_sample(number, index)
        found = error if isinstance(error, FeedmillError) else FeedmillError(str(error), kind=type(error).__name__)
        return Failure(
            position=position,
            step=step,
            rank=self._rank,
            stage=unusable.stage,
            source=names[number] if names else number,
            index=index,
            epoch=epoch,
            file=found.file or (source.where if source else None),
            offset=found.offset if found.offset is not None else source.offset if source else None,
            key=source.key if source else found.record,
            kind=found.kind,
            error=found.what,
            substitute=substitute,
        )

    def _where(self, position: int) -> str:
        located = self._plan.locate(np.array([position], dtype=np.int64))
        number, index, epoch = int(located.source[0]), int(located.index[0]), int(located.epoch[0])
        source = repr(self._plan.names[number]) if self._plan.names else number
        return f"position {position} (source {source}, sample {index}, epoch {epoch})"


def generator(seed: int, position: int, stage: int = 0) -> np.random.Generator:
    """Return the random generator of a position: Philox with the key (seed, position). Creating one takes about 6 us.

    The stages of a position draw from parts of its stream that are 2^192 apart.

    Counter-based generators with different keys are independent streams (Salmon et al., "Parallel random numbers: as
    easy as 1, 2, 3", 2011), so the draws of a transform depend only on the position of its sample.
    """
    return np.random.Generator(np.random.Philox(key=(seed % (1 << 64) << 64) | position, counter=stage << 192))


def takes_rng(transform: Callable[..., Any]) -> bool:
    """Return whether the transform takes a generator: a parameter ``rng``, or a second one without a default."""
    try:
        parameters = list(inspect.signature(transform).parameters.values())
    except (TypeError, ValueError):  # built-in functions may have no signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].name == "rng" or positional[1].default is inspect.Parameter.empty)


def named_rng(transform: Callable[..., Any]) -> bool:
    """Return whether the transform takes a generator only as the keyword ``rng``."""
    try:
        found = inspect.signature(transform).parameters.get("rng")
    except (TypeError, ValueError):
        return False
    return found is not None and found.kind is found.KEYWORD_ONLY
