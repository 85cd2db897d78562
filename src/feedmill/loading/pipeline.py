"""Pipeline between a plan and the training loop: prefetch the batches, and deliver them one by one.

`Pipeline` combines the workers, the groups and the copy to a device. `Delivery` converts each batch for the training
loop, counts its samples and failures, and advances the position. `Loader` creates both. `Iteration` is one pass, which
`iter(loader)` returns. Batches that were prefetched but not yielded do not count: they are made again after a resume.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from inspect import GEN_RUNNING, getgeneratorstate
from typing import TYPE_CHECKING, Any, Self

from feedmill.errors import ConfigError, shortened
from feedmill.loading.batches import BatchMaker, MadeBatch
from feedmill.loading.collate import to_torch
from feedmill.loading.failures import Tally
from feedmill.loading.groups import Delivered, GroupMaker, batches_of
from feedmill.loading.labels import Labeled, Labels
from feedmill.loading.metrics import Metrics, Telemetry
from feedmill.loading.progress import Progress
from feedmill.loading.workers import Pace
from feedmill.planning.dealing.dealer import dealer_of
from feedmill.planning.dealing.grid import Grid, Step
from feedmill.storage.fetching.fetch import Interrupted, interruptible

if TYPE_CHECKING:
    from feedmill.loading.transfer import Transfer
    from feedmill.loading.workers import Workers


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Makes the batches of a loader.

    Attributes:
        make: makes one batch, or one window of packs or groups.
        workers: threads or processes that make them.
        prefetch: maximum number of batches per worker that are in progress or ready.
        transfer: copies batches to a device; None if they stay where they are.
        pace: decides whether workers or the loop make batches; kept from one iteration to the next.
    """

    make: BatchMaker | GroupMaker
    workers: Workers
    prefetch: int
    transfer: Transfer | None
    pace: Pace = field(default_factory=Pace)

    def batches(self, progress: Progress) -> Generator[Delivered, None, None]:
        """Return a generator of the batches from `progress` on. Its threads or processes end with it."""
        given = self._steps(progress) if progress.cursor is None else self._packs(progress)
        return given if self.transfer is None else self.transfer.ahead(given)

    def _made(self, steps: Iterator[Step], progress: Progress) -> Generator[MadeBatch, None, None]:
        """Yield the batches of steps in order, and read their remote data ahead."""
        grid = progress.grid
        walked = None
        if getattr(progress.plan, "is_remote", False):
            from feedmill.loading.ahead import walk

            walked = walk(steps, progress.plan, grid.rank, grid.world_size, processes=self.workers.processes)
        ready = walked.ready if walked else None
        from feedmill.loading.workers import make_ahead

        made_ahead = make_ahead(self.make, walked or steps, self.workers, self.prefetch, self.pace, ready)
        with closing(walked) if walked else nullcontext(), closing(made_ahead) as ahead:
            for made in ahead:
                if walked:
                    walked.done()
                    if walked.waited:
                        made.seconds["fetch"] = made.seconds.get("fetch", 0.0) + walked.waited
                        walked.waited = 0.0
                yield made
                del made

    def _steps(self, progress: Progress) -> Generator[Delivered, None, None]:
        """Yield the batches of the grid."""
        dealer = dealer_of(progress.plan, progress.grid, progress.layout.dealing)
        steps = dealer.batches(progress.consumed, progress.skip, progress.every)
        with closing(self._made(steps, progress)) as ahead:
            for made in ahead:
                given = Delivered(made.batch, made.step.end, [made], labels=made.labels, rest=made.rest)
                made.batch = None
                del made  # or the batch would stay in memory while the loop waits for the next one
                yield given
                del given

    def _packs(self, progress: Progress) -> Generator[Delivered, None, None]:
        """Yield the batches of packs or groups."""
        cursor, make, grid = progress.cursor, self.make, progress.grid
        assert cursor is not None and isinstance(make, GroupMaker) and isinstance(grid, Grid)
        steps = (cursor.step(first) for _, first, _ in cursor.windows())
        together = make.batch if make.packs else None
        with closing(self._made(steps, progress)) as ahead:
            keep = grid.remainder != "drop"
            yield from batches_of(cursor.windows(), ahead, together, grid.batch_size, keep_last=keep)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Converts batches for the training loop, and counts their samples and failures.

    Attributes:
        tensors: whether to convert arrays to tensors.
        labeled: holds the labels of the last batch; None without labels.
        tally: counts failures against their budget.
        metrics: metrics of the loader.
        telemetry: destination and interval of the metrics; None for no reports.
    """

    tensors: bool
    labeled: Labeled | None
    tally: Tally
    metrics: Metrics
    telemetry: Telemetry | None

    def finished(self, batch: Any, labels: Labels | None) -> Any:
        """Return a batch in the form that the loop gets."""
        batch = to_torch(batch) if self.tensors else batch
        if self.labeled is not None and labels is not None:
            self.labeled.finish(labels, batch)
        return batch

    def deliver(self, given: Delivered, progress: Progress, requested_at: float) -> Any:
        """Return the batch of a request, and count it; `progress` advances last, after everything that can fail."""
        batch = self.finished(given.batch, given.labels)
        seconds = {"transfer": given.transfer}
        for made in given.made:
            for stage, taken in made.seconds.items():
                seconds[stage] = seconds.get(stage, 0.0) + taken
            self.metrics.skipped += made.skipped
            self.metrics.counted(made.counts)
            self.tally.note_all(made.step.positions.tolist() if made.troubles else (), made.troubles)
            self.metrics.made(made.seconds, made.step.real, made.step.spread, made.step.budget_share)
        self.metrics.transferred(given.transfer)
        progress.advance(given.after)
        if self.labeled is not None:
            self.labeled.keep(given.labels)
        now = time.perf_counter()
        self.metrics.given(now - requested_at, now, seconds)
        self.metrics.position = progress.position
        if self.telemetry is not None:
            self.metrics.report(self.telemetry, time.monotonic())
        return batch

    def deliver_next(self, given: Delivered, progress: Progress) -> Any:
        """Return the next batch of the `rest` of a delivery, and count it."""
        requested_at = time.perf_counter()
        batch, after = given.rest.popleft()
        progress.advance(after)
        self.metrics.position = after
        self.metrics.given_ready(requested_at, given.size)
        if self.telemetry is not None:
            self.metrics.report(self.telemetry, time.monotonic())
        return batch


logger = logging.getLogger("feedmill")
REWIND = (
    "To begin each pass at the start, use Loader(..., rewind=True); for more passes in one plan, raise its 'epochs' or"
    " 'samples'."
)


class Iteration(Iterator[Any]):
    """One pass of a loader. Its threads or processes end when it is exhausted, closed, or no longer referred to.

    Args:
        progress: the position at which the pass begins; it advances with each batch.
        pipeline: makes the batches.
        delivery: converts them for the training loop and counts them.
        again: what to do if the pass begins at the end of the plan.

    A pass without a batch is reported in the log: a loop over it does nothing.
    """

    def __init__(self, progress: Progress, pipeline: Pipeline, delivery: Delivery, again: str = REWIND) -> None:
        self._progress, self._delivery, self._again = progress, delivery, again
        self._began_at_end, self._is_empty = progress.ended, True
        self._stop = threading.Event()
        self._given = pipeline.batches(progress)
        self._last: Delivered | None = None  # whose `rest` comes next
        self._closed = self._forked = False
        self._in_next = threading.Lock()
        _running.add(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise _ended()
        if self._forked:
            raise ConfigError(
                "this iteration cannot continue in a forked process: its threads were not inherited",
                kind="wrong-process",
                fix="Iterate the loader again in this process: it continues from its position.",
            )
        if not self._in_next.acquire(blocking=False):
            raise ConfigError(
                "another thread is taking a batch from this iteration: it cannot be shared by threads",
                kind="wrong-process",
                fix="Take batches in one thread and hand them on, or give each thread a loader with a rank of its own.",
            )
        try:
            last = self._last
            if last is not None:
                if last.rest:
                    return self._delivery.deliver_next(last, self._progress)
                self._last = None
            return self._next()
        except Exception as error:  # its own cause stays
            raise shortened(error)  # noqa: B904
        finally:
            self._in_next.release()

    def _next(self) -> Any:
        requested_at = time.perf_counter()
        try:
            with interruptible(self._stop):
                given = next(self._given, None)
            if self._closed:  # by another thread or a signal handler during the wait
                raise _ended()
            if given is not None:
                self._is_empty = False
                batch = self._delivery.deliver(given, self._progress, requested_at)
                if given.rest:
                    given.batch, given.size, self._last = None, given.made[0].step.real, given
                return batch
        except BaseException as error:
            interrupted = isinstance(error, Interrupted) and self._stop.is_set()
            self.close()
            if interrupted:
                raise _ended() from None
            if isinstance(error, StopIteration):  # raised by a handler: the loop would end early without an error
                raise RuntimeError("the handler of failures raised StopIteration") from error
            raise
        self._delivery.metrics.pause()
        if self._is_empty:
            self._report_empty()
        self._progress.finish()
        raise StopIteration

    def _report_empty(self) -> None:
        progress = self._progress
        # Of several processes, the first reports it; that a whole plan gives no batch was reported when it was made.
        if self._began_at_end and progress.skip == 0 and progress.position:
            logger.warning(
                "this pass of the loader gave no batch: position %s is the end of its plan. %s",
                f"{progress.position:,}",
                self._again,
            )
        elif progress.cursor is not None and not self._began_at_end:
            logger.warning(
                "this pass of the loader gave no batch: its task encoder made none of the samples from position %s on."
                " Check its hooks of packing and grouping.",
                f"{progress.position:,}",
            )

    def close(self) -> None:
        """End the iteration. If another thread waits for a batch, that thread ends it, and its wait for remote data."""
        self._closed, self._last = True, None
        self._stop.set()
        self._delivery.metrics.pause()
        if self._forked:
            return
        try:
            self._given.close()
        except ValueError:
            if getgeneratorstate(self._given) != GEN_RUNNING:
                raise


def _ended() -> ConfigError:
    return ConfigError(
        "this iteration was ended by an error, close(), load_state_dict() or a newer iteration of its loader",
        fix="Iterate the loader again: it continues from its position.",
    )


_running: weakref.WeakSet[Iteration] = weakref.WeakSet()
_of_parent: list[Any] = []


def _leave_to_parent() -> None:
    """Disable running iterations in a forked process: a fork has no threads, and their locks may stay locked.

    The iterations can therefore neither continue nor be closed here. Their generators are kept alive, because
    collecting them would close them.
    """
    for iteration in list(_running):
        iteration._forked = True
        _of_parent.append(iteration._given)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
