"""Make one batch from its positions: read the samples in bulk, transform them, and collate them.

`BatchMaker` does this for a `Loader`, in the training loop's thread or in any worker. Its errors report the sample that
caused them, and it replaces failed samples if the loader's `on_error` allows it.

Log batches that take too long: the sample, the stage and the code location of each stalled worker.

A `Loader` starts a watchdog unless ``stall=None``. It logs a warning while the batch is stalled, so that a hung run can
be diagnosed from its log. Each process watches its own threads, so worker processes are covered like threads.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.batches import Batch, Columns, Fields, Parts, Want
from feedmill.jobs.buffers import SMALL
from feedmill.jobs.threads import frame_of
from feedmill.loading.collate import collate as default_collate
from feedmill.loading.collate import collate_parts, divided
from feedmill.loading.failures import (
    MISTAKES,
    TRIES,
    Failure,
    SkipSample,
    Unusable,
    as_error,
    candidates,
    note_row,
    raised,
    source_of,
)
from feedmill.loading.plan import PlanLike
from feedmill.planning.dealing.grid import Step, Steps
from feedmill.planning.nodes.base import Located
from feedmill.samples.rows import place_of
from feedmill.storage.fetching.fetch import waited

if TYPE_CHECKING:
    from feedmill.loading.labels import Labels
    from feedmill.loading.step_reader import StepReader
    from feedmill.planning.packing.packed import PackedPlan


logger = logging.getLogger("feedmill")

IntArray = npt.NDArray[np.int64]
_STAGES = ("read", "transform", "collate")
MASK = "__mask__"
now = threading.local()
"""The current work of this thread.

`step` is the number of the batch. `position` is that of the sample in the transform, or that of the first sample while
a batch is collated. `item` is the number of the pack in its window while it is made. `rng` is the generator for code
that does not take one as an argument, or None.
"""
_SKIPPED = object()


@dataclass(slots=True)
class MadeBatch:
    """A batch, with the failures, labels and timings of its samples.

    Attributes:
        batch: as the loader yields it, but with numpy arrays.
        step: which batch it is.
        troubles: samples that failed and were replaced, each with the error that a strict loader would raise.
        skipped: number of samples that the transform skipped.
        counts: what the collate function counted, see `Metrics.counts`.
        seconds: duration of each stage: waiting for remote data, reading, transforming, collating.
        labels: labels of the batch, if requested; `item_labels`: those of each pack or group, if this is a window.
        substitutes: position of a replaced sample -> position of its substitute.
        rest: the next batches, as the loader yields them, and the position after each, if these were made as well:
            nothing has failed in them, and they have no labels.
    """

    batch: Any
    step: Step
    troubles: list[tuple[Failure, FeedmillError]] = field(default_factory=list)
    skipped: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    labels: Labels | None = None
    item_labels: list[Labels] = field(default_factory=list)
    substitutes: dict[int, int] = field(default_factory=dict)
    rest: deque[tuple[Any, int]] = field(default_factory=deque)


class Read(NamedTuple):
    """The samples of one step, read together with those of others.

    Attributes:
        samples: the samples, or None.
        columns: its rows of the columns or parts that were read instead, or None.
        seconds, waited: its share of the time of reading, and the part of that in which it waited for remote data.
    """

    samples: list[Any] | None
    columns: Columns | Parts | None
    seconds: float
    waited: float


class BatchMaker:
    """Factory of the batches of a plan. It has no state, so that any thread or process can make any batch.

    Args:
        plan: locates and reads the samples.
        transform: ``transform(sample)`` or ``transform(sample, rng)``, or None.
        collate: list of samples -> batch, or None for the default. If it has a function `of_columns`, columns -> batch,
            columns that the plan can read are passed to it; it returns None if the batch needs the samples. If it has a
            function `row_counts`, this returns what was counted since its last call, by names of `Metrics.counts`. A
            function `row_places` returns where the samples of this thread's last batch are in their rows.
        lists: return plain lists of samples.
        seed: seed of the generators for the transform.
        rank: rank for records of failures.
        substitute: whether to replace a sample that fails; if not, the failure is raised.
        stall: seconds after which a batch in progress is reported in the log; None for never.
        of_fields: makes a batch from the type, the fields and the positions of samples, if the plan can read these. The
            batch must equal that of `transform` and `collate`; no samples are built for it.
        mask: add the field ``__mask__``, bool[n]: which samples belong to the plan and are not padding.
        labels: report where the samples come from.

    Attributes:
        runs: whether batches are yielded as they are made, so that several can be made at once; `tensors`: then with
            tensors in place of arrays.
    """

    runs = tensors = False

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
        self._counts: Callable[[], dict[str, int]] = getattr(collate, "row_counts", dict)
        self._counts()  # what was collated before, by hand or by another loop, is not counted in this one
        self._places = None if lists else getattr(collate, "row_places", None)
        self._lists = lists
        self._seed, self._rank = seed, rank
        self._substitutes = substitute
        self._data: dict[int, list[Any] | None] = {}
        self._mask = mask
        from feedmill.loading.labels import Labeler

        self._label = Labeler(plan) if labels else None
        plain = transform is None and collate is None and not lists
        self._of_columns = getattr(collate, "of_columns", None) if transform is None and not lists else None
        self._want: Want | None = (
            "parts"
            if plain
            else "fields"
            if of_fields
            else getattr(collate, "want", "columns")
            if self._of_columns is not None
            else None
        )
        self._of_fields = of_fields
        self.step_reader: StepReader | None = None
        self._watchdog = None if stall is None else Watchdog(stall, rank, self._where)

    @property
    def has_user_code(self) -> bool:
        """Return whether a transform or a collate function was given."""
        return self._transform is not None or self._collate is not default_collate

    def generator(self, position: int, stage: int) -> np.random.Generator:
        """Return the random generator of a stage at a position.

        Stages: 0 the transform, 1 the rest of a packed sample, 2 a batch or window of samples, 3 an item of a window, 4
        a batch of packs.
        """
        from feedmill.loading.generators import generator

        return generator(self._seed, position, stage)

    def begin_collating(self, step: Step, stage: int, item: int = 0) -> None:
        """Record in `now` that this thread collates a batch or window of samples.

        Args:
            step: the batch or window.
            stage: a stage of `generator` after the transform.
            item: number of the item in the window, for generators that differ between items.
        """
        now.step, now.position, now.rng = step.number, step.first, self.generator(step.first + item, stage)

    @property
    def is_plain(self) -> bool:
        """Return whether samples of several steps can be read in one call; see `read_together`."""
        return self.step_reader is None and getattr(self._plan, "reads_apart", False)

    def read_together(self, steps: Sequence[Step]) -> list[Read] | MadeBatch | None:
        """Return the samples of several steps, read in one call; None if that fails or their rows cannot be separated.

        Then each step is made on its own, and raises its own error. If the steps were planned together and their
        batches need nothing after reading, return the first batch, with the `rest`.
        """
        began, before = time.perf_counter(), waited()
        if isinstance(steps, Steps):
            located = steps.located if isinstance(steps.located, Located) else None
            positions, cuts = steps.positions, range(0, len(steps.positions) + 1, steps.grid.batch_size)
            stop = int(positions[-1]) + 1
        else:
            from feedmill.loading.step_reader import joined

            rows = [step.positions for step in steps]
            positions, located = np.concatenate(rows), joined([step.located for step in steps])
            cuts, stop = np.cumsum([0, *map(len, rows)]).tolist(), steps[-1].stop
        first = steps[0]
        activity = Activity(first.number, first.first, stop)
        try:
            with nullcontext() if self._watchdog is None else self._watchdog.watch(activity):
                read = None if self._want is None else self._plan.read_batch(positions, self._want, located)
                if isinstance(read, dict) and not all(_apart(values, cuts) for values in read.values()):
                    return None
                batches = self._run_of(read, steps)
                parts = None if batches else self._cut(read, positions, located, cuts)
        except Exception as error:
            logger.debug("batches are read one by one: %s: %s", type(error).__name__, error)
            return None
        taken, late = time.perf_counter() - began, waited() - before
        if not batches or not isinstance(steps, Steps):
            return None if parts is None else [Read(*part, taken / len(steps), late / len(steps)) for part in parts]
        made = MadeBatch(batches[0], first, seconds={"read": taken - late, "fetch": late})
        made.rest.extend(zip(batches[1:], steps.ends[1:], strict=True))
        return made

    def _run_of(self, read: Batch | None, steps: Sequence[Step]) -> list[Any] | None:
        """Return the batches of columns; None if more has to be done for them."""
        plain = self.runs and self._want == "parts" and self._label is None and not self._mask
        if not (plain and isinstance(read, dict) and isinstance(steps, Steps)):
            return None
        return divided(read, len(steps), tensors=self.tensors)

    def _cut(
        self, read: Batch | None, positions: IntArray, located: Any, cuts: Sequence[int]
    ) -> list[tuple[Any, Any]] | None:
        """Return samples and columns, or parts, of steps; one of the two is None for all of them."""
        if read is None:
            samples = self._read(positions, located)
            return [(samples[a:b], None) for a, b in pairwise(cuts)]
        if isinstance(read, Parts):
            return [(None, read.cut(a, b)) for a, b in pairwise(cuts)]
        if not isinstance(read, dict):
            return None
        return [(None, {name: values[a:b] for name, values in read.items()}) for a, b in pairwise(cuts)]

    def __call__(self, step: Step, read: Read | None = None) -> MadeBatch:
        """Return the batch of a step's positions.

        Args:
            step: the step.
            read: its part of `read_together`.

        Raises:
            FeedmillError: a sample failed and has no substitute; the error has its location.
        """
        made = MadeBatch(None, step)
        activity = Activity(step.number, step.first, step.stop)
        watched = nullcontext() if self._watchdog is None else self._watchdog.watch(activity)
        with watched, nullcontext() if self.step_reader is None else self.step_reader.reading(self._plan, step):
            self._fill(made, activity, read)
        if self._mask:
            self._add_mask(made)
        return made

    def again(self, positions: Sequence[int], number: int = 0) -> MadeBatch:
        """Return a batch of any positions as batch `number`. Each sample equals that of its own step.

        Raises as a call does.
        """
        first, stop = min(positions), max(positions) + 1
        made = MadeBatch(None, Step(first, stop, stop, number, dealt=np.array(positions, np.int64)))
        self._fill(made, Activity(number, first, stop))
        return made

    def _fill(self, made: MadeBatch, activity: Activity, read: Read | None = None) -> None:
        clock, before = [time.perf_counter()], waited()
        if read is not None:
            clock[0] -= read.seconds
            before -= read.waited
        located = made.step.located if self._label is None else self._label.located(made.step)
        self._fill_at(made, activity, made.step.positions, located, clock, read)
        if "read" in made.seconds:
            made.seconds["fetch"] = min(waited() - before, made.seconds["read"])
            made.seconds["read"] -= made.seconds["fetch"]
        if self._label is not None:
            made.labels = self._label(made.step, located, made.substitutes)
            if self._places is not None:
                made.labels.placed(*self._places())

    def _fill_at(
        self, made: MadeBatch, activity: Activity, wanted: IntArray, located: Any, clock: list[float], read: Read | None
    ) -> None:
        now.step = made.step.number
        positions: list[int] = []
        failed: Exception | None = None
        try:
            samples, columns = (None, None) if read is None else (read.samples, read.columns)
            if samples is None and self._try_bulk(made, activity, wanted, located, clock, columns):
                return
            positions = wanted.tolist()
            if samples is None:
                samples = self._read(wanted, located)
            clock.append(time.perf_counter())
            if self._transform is not None:
                activity.stage = "transform"
                samples = [self._unless_skipped(s, at, activity) for s, at in zip(samples, positions, strict=True)]
        except Exception as error:
            failed = error
        else:
            for row in [row for row, sample in enumerate(samples) if sample is _SKIPPED]:
                samples[row] = self._usable(positions[row], made)
            clock.append(time.perf_counter())
            activity.stage, activity.position = "collate", None
            if not self._lists:
                self.begin_collating(made.step, 2)
            try:
                made.batch = self._collated(samples)
                made.counts = self._counts()
            except Exception as error:
                failed = error
        if failed is not None:  # not where it is handled: it would be the context of the same error, raised again
            made.batch = self._one_by_one(wanted.tolist(), made, failed)
        clock.append(time.perf_counter())
        made.seconds = _durations(clock)

    def _try_bulk(
        self,
        made: MadeBatch,
        activity: Activity,
        positions: IntArray,
        located: Any,
        clock: list[float],
        columns: Columns | Parts | None,
    ) -> bool:
        """Make the batch without building samples if the plan supports it; return whether the batch was made."""
        if self._want is None:
            return False
        read = columns or self._plan.read_batch(positions, self._want, located)
        if read is None:
            return False
        read_at = time.perf_counter()
        activity.stage = "collate"
        batch = self._batch_of(read, positions)
        if batch is None:
            return False
        made.batch = batch
        clock += [read_at] * 2
        made.seconds = _durations([*clock, time.perf_counter()])
        return True

    def _batch_of(self, read: Batch, positions: IntArray) -> Any:
        if isinstance(read, Parts):
            return collate_parts(read)
        if isinstance(read, Fields):
            assert self._of_fields is not None
            return self._of_fields(read.type, read.values, positions.tolist())
        return read if self._of_columns is None else self._of_columns(read)

    def _add_mask(self, made: MadeBatch) -> None:
        if not isinstance(made.batch, dict):
            raise ConfigError(
                f"remainder='pad' requires batches that are dicts: the mask is their field {MASK!r}, and this batch"
                f" is a {type(made.batch).__name__}",
                fix="Return a dict from collate, or use remainder='drop' or 'uneven'.",
            )
        made.batch[MASK] = made.step.mask

    def _collated(self, samples: list[Any]) -> Any:
        return samples if self._lists else self._collate(samples)

    def _read(self, positions: Sequence[int] | IntArray, located: Any = None) -> list[Any]:
        samples = self._plan.read(np.asarray(positions, np.int64), located)
        if len(samples) != len(positions):
            raise FeedmillError(
                f"the plan returned {len(samples)} samples for {len(positions)} positions: expected one per position",
                kind="bad-plan",
                fix="Return one sample per position from the plan's read().",
            )
        return samples

    def _transformed(self, sample: Any, position: int) -> Any:
        assert self._transform is not None
        now.position, now.rng = position, None
        if not (self._random or self._named):
            return self._transform(sample)
        from feedmill.loading.generators import generator

        now.rng = generator(self._seed, position)
        return self._transform(sample, rng=now.rng) if self._named else self._transform(sample, now.rng)

    def _unless_skipped(self, sample: Any, position: int, activity: Activity) -> Any:
        """Return the transformed sample; `_SKIPPED` if the transform skips it."""
        activity.position = position
        try:
            return self._transformed(sample, position)
        except SkipSample:
            return _SKIPPED

    def _one_by_one(self, positions: list[int], made: MadeBatch, error: Exception) -> Any:
        """Make a failed batch again sample by sample, so that failing samples are reported, or replaced if allowed."""
        samples = [self._usable(position, made) for position in positions]
        self.begin_collating(made.step, 2)
        self._counts()  # of samples that were collated alone, to see whether they can be
        try:
            batch = self._collated(samples)
            made.counts = self._counts()
            return batch
        except Exception as again:
            where = f"the positions {made.step.first} to {made.step.stop - 1}"
            raise as_error(again, "collate", where, f"{where} (each of them works alone)") from error

    def _usable(self, position: int, made: MadeBatch) -> Any:
        """Return the sample of a position, or its substitute."""
        why: FeedmillError | None = None
        errors: list[Exception] = []
        try:
            return self._single(position, position)
        except SkipSample:
            made.skipped += 1
            substitute = self._substitute(position, errors)
        except Unusable as unusable:
            found = self._sample_of(unusable, position)
            error = why = unusable.as_error(self._where(position, found))
            if not isinstance(unusable.error, FeedmillError):  # of user code, which got the row
                note_row(error, self._plan, position)
            if not self._substitutes or isinstance(unusable.error, MISTAKES):
                raise error from unusable.error
            substitute = self._substitute(position, errors)
            failure = self._failure(unusable, position, found, made.step.number, substitute and substitute[1])
            made.troubles.append((failure, error))
        if substitute is None:
            last = errors[-1] if errors else None
            raise FeedmillError(
                f"no other sample of the source can replace the sample at {self._where(position)}"
                + ("" if why is None else f", which failed: {why.what}")
                + ("" if last is None else f"; the last of {len(errors):,} failures: {type(last).__name__}: {last}"),
                kind="no-substitute",
                fix="Check the source and the transform: every sample that was tried failed or was skipped.",
            ) from (last or why)
        made.substitutes[position] = substitute[1]
        return substitute[0]

    def _substitute(self, position: int, errors: list[Exception]) -> tuple[Any, int] | None:
        """Return the first usable candidate and its position, or None; append the errors of the others to `errors`."""
        for candidate in islice(candidates(self._plan, position, self._seed), TRIES):
            try:
                return self._single(candidate, position), candidate
            except SkipSample:
                continue
            except Unusable as unusable:
                errors.append(unusable.error.with_traceback(None))  # the frames of a thousand errors take much memory
        return None

    def _single(self, position: int, transform_position: int) -> Any:
        """Return the sample at `position`, transformed with the generator of `transform_position`, and decoded.

        Raises:
            SkipSample: the transform skips the sample.
            Unusable: the sample failed.
        """
        stage, sample = "read", None
        try:
            sample = self._read([position])[0]
            stage = "transform"
            made = sample if self._transform is None else self._transformed(sample, transform_position)
            stage = "collate"
            self._collated([made])
            return made
        except SkipSample:
            raise
        except Exception as error:
            raise Unusable(stage, sample, error) from error

    def _sample_of(self, unusable: Unusable, position: int) -> tuple[int, int, int] | None:
        """Return source, number and epoch of the sample that failed; None if it is unknown which one of a row."""
        if not hasattr(self._plan, "locate_spans"):
            located, place = self._plan.locate(np.array([position], np.int64)), 0
        else:
            packed = cast("PackedPlan", self._plan)
            located = packed.locate_spans([position]).located
            known = (
                packed.unreadable(position) if unusable.stage == "read" else place_of(unusable.error, unusable.sample)
            )
            if known is None and len(located.source) > 1:
                return None
            place = known or 0
            unusable.place = place
        return int(located.source[place]), int(located.index[place]), int(located.epoch[place])

    def _failure(
        self, unusable: Unusable, position: int, found: tuple[int, int, int] | None, step: int, substitute: int | None
    ) -> Failure:
        number, index, epoch = found or self._located(position)
        names = self._plan.names
        error, source = unusable.error, source_of(unusable.failed)
        if source is None:
            with contextlib.suppress(Exception):  # the location of an unreadable sample may be unknown too
                source = self._plan.locate_sample(number, index)
        known = error if isinstance(error, FeedmillError) else FeedmillError(str(error), kind=type(error).__name__)
        return Failure(
            position=position,
            step=step,
            rank=self._rank,
            stage=unusable.stage,
            source=names[number] if names else number,
            index=index,
            epoch=epoch,
            file=known.file or (source.where if source else None),
            offset=known.offset if known.offset is not None else source.offset if source else None,
            key=source.key if source else known.record,
            kind=known.kind,
            error=known.what,
            substitute=substitute,
            data=self._data_of(number),
            exception=raised(error),
            sample=unusable.sample,
        )

    def _data_of(self, number: int) -> list[Any] | None:
        """Return `data_of` a source, so that a list of samples to skip is not used with other data."""
        if number not in self._data:
            self._data[number] = None
            with contextlib.suppress(Exception):  # a source of the user's own, or one that is damaged
                from feedmill.planning.recipes.skip import data_of

                self._data[number] = data_of(self._plan.sources[number])  # type: ignore[attr-defined]
        return self._data[number]

    def _located(self, position: int) -> tuple[int, int, int]:
        """Return source, sample number and epoch of a position; in a plan of rows, those of the first document."""
        located = self._plan.locate(np.array([position], dtype=np.int64))
        return int(located.source[0]), int(located.index[0]), int(located.epoch[0])

    def _where(self, position: int, found: tuple[int, int, int] | None = None) -> str:
        number, index, epoch = found or self._located(position)
        source = repr(self._plan.names[number]) if self._plan.names else number
        row = "in a row that begins with " if found is None and hasattr(self._plan, "locate_spans") else ""
        return f"position {position} ({row}source {source}, sample {index}, epoch {epoch})"


def _apart(values: Any, cuts: Sequence[int]) -> bool:
    """Return whether a column of several batches can be cut into those of each, which begin in memory as its own do."""
    if len(values) != cuts[-1]:
        return False
    if not isinstance(values, np.ndarray):
        return isinstance(values, list)
    small = values.nbytes < SMALL * (len(cuts) - 1)
    return bool(small or all(cut * values.strides[0] % 64 == 0 for cut in cuts))


def _durations(clock: Sequence[float]) -> dict[str, float]:
    """Return the seconds of each stage from the times at which they begin and end."""
    return {stage: end - begin for stage, begin, end in zip(_STAGES, clock, clock[1:], strict=False)}


@dataclass(slots=True)
class Activity:
    """The current work of a thread on a batch.

    Attributes:
        step: number of the batch.
        first, stop: the first position of the batch, and the one after its last.
        since: monotonic time at which the batch was begun.
        stage: current stage, as in `feedmill.loading.failures.Failure`.
        position: current position; None if the stage covers the whole batch.
        reports: number of warnings that were logged for this batch.
    """

    step: int
    first: int
    stop: int
    since: float = field(default_factory=time.monotonic)
    stage: str = "read"
    position: int | None = None
    reports: int = 0


class Watchdog:
    """Watches the batches in progress, and logs a warning each time one of them takes another `seconds`.

    Args:
        seconds: time after which a batch counts as stalled.
        rank: rank for the message.
        describe: returns the description of a position for the message: source and sample.
    """

    def __init__(self, seconds: float, rank: int, describe: Callable[[int], str]) -> None:
        self.seconds, self.rank, self._describe = seconds, rank, describe
        self._begin()

    def _begin(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()
        self._active: dict[int, Activity] = {}
        self._thread: threading.Thread | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "rank": self.rank, "_describe": self._describe}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @contextlib.contextmanager
    def watch(self, activity: Activity) -> Iterator[None]:
        """Watch this thread while the ``with`` block makes a batch."""
        thread = threading.get_ident()
        if self._process != os.getpid():
            self._begin()  # a fork has no watching thread, and its copy of the lock may stay locked
        with self._lock:
            self._active[thread] = activity
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="feedmill-watchdog", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._active.pop(thread, None)

    def _run(self) -> None:
        """Check the active threads periodically; end after three checks without any."""
        idle = 0
        while True:
            # Not more often than 100 times a second: many watchdogs would leave the interpreter no time.
            time.sleep(min(max(self.seconds / 4, 0.01), 1.0))
            now = time.monotonic()
            with self._lock:
                idle = 0 if self._active else idle + 1
                if idle > 2:
                    self._thread = None
                    return
                late = [
                    (thread, activity)
                    for thread, activity in self._active.items()
                    if now - activity.since > self.seconds * (activity.reports + 1)
                ]
            for thread, activity in late:
                activity.reports += 1
                logger.warning("%s", self.message(thread, activity, now))

    def message(self, thread: int, activity: Activity, now: float) -> str:
        """Return the warning about a stalled thread, with its stack."""
        names = {other.ident: other.name for other in threading.enumerate()}
        at = f"positions {activity.first} to {activity.stop - 1}"
        if activity.position is not None:
            at = f"position {activity.position}"
            with contextlib.suppress(Exception):  # the warning must not fail because a plan does
                at = self._describe(activity.position)
        frame = frame_of(thread)
        import traceback

        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        return (
            f"rank {self.rank}, worker {names.get(thread, thread)} of process {os.getpid()}: batch {activity.step} has"
            f" taken {now - activity.since:.0f} s, now in {activity.stage} of {at}\n{stack}"
        )


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
        parameter = inspect.signature(transform).parameters.get("rng")
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.kind is parameter.KEYWORD_ONLY
