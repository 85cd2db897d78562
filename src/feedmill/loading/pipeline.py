"""Pipeline between a plan and the training loop: prefetch the batches, and deliver them one by one.

`Pipeline` combines the workers, the groups and the copy to a device. `Delivery` converts each batch for the training
loop, counts its samples and failures, and advances the position. `Loader` creates both.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import Any

from feedmill.loading.ahead import walk
from feedmill.loading.batches import BatchMaker, Made
from feedmill.loading.collate import to_torch
from feedmill.loading.failures import Tally
from feedmill.loading.groups import Given, GroupMaker, batches_of
from feedmill.loading.labels import Labeled, Labels
from feedmill.loading.metrics import Metrics, Telemetry
from feedmill.loading.pace import Pace
from feedmill.loading.progress import Progress
from feedmill.loading.transfer import Transfer
from feedmill.loading.workers import Workers, make_ahead
from feedmill.planning.dealing.dealer import dealer_of
from feedmill.planning.dealing.grid import Grid, Step


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

    def batches(self, progress: Progress) -> Generator[Given, None, None]:
        """Return a generator of the batches from `progress` on. Its threads or processes end with it."""
        given = self._steps(progress) if progress.cursor is None else self._packs(progress)
        return given if self.transfer is None else self.transfer.ahead(given)

    def _made(self, steps: Iterator[Step], progress: Progress) -> Generator[Made, None, None]:
        """Yield the batches of steps in order, and read their remote data ahead."""
        grid = progress.grid
        walked = walk(steps, progress.plan, grid.rank, grid.world_size, processes=self.workers.processes)
        ready = walked.ready if walked else None
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

    def _steps(self, progress: Progress) -> Generator[Given, None, None]:
        """Yield the batches of the grid."""
        dealer = dealer_of(progress.plan, progress.grid, progress.layout.dealing)
        steps = dealer.batches(progress.consumed, progress.skip, progress.every)
        with closing(self._made(steps, progress)) as ahead:
            for made in ahead:
                given = Given(made.batch, made.step.end, [made], labels=made.labels)
                made.batch = None
                del made  # or the batch would stay in memory while the loop waits for the next one
                yield given
                del given

    def _packs(self, progress: Progress) -> Generator[Given, None, None]:
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

    def deliver(self, given: Given, progress: Progress, requested_at: float) -> Any:
        """Return the batch of a request, and count it; `progress` advances last, after everything that can fail."""
        batch = self.finished(given.batch, given.labels)
        seconds = {"transfer": given.transfer}
        for made in given.made:
            for stage, taken in made.seconds.items():
                seconds[stage] = seconds.get(stage, 0.0) + taken
            self.metrics.skipped += made.skipped
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
