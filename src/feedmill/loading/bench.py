"""Measure how fast a plan loads on this machine, and in which stages the time is spent: the work of ``feedmill bench``.

Use it before a run to choose the number of workers, and to find out whether loading keeps up with the training.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.jobs.options import verb
from feedmill.jobs.reports import VerbReport
from feedmill.jobs.resources import available_cores
from feedmill.loading.loader import Loader, Output
from feedmill.loading.metrics import STAGES
from feedmill.loading.options import Bench
from feedmill.loading.workers import Workers
from feedmill.planning.dealing.grid import Grid
from feedmill.planning.given import bound_plan
from feedmill.planning.plan import Plan

_STORED = 2_000


@dataclass(frozen=True, slots=True)
class Rate:
    """Throughput with one number of workers.

    Attributes:
        workers: number of workers that made batches: processes if `processes` is true, otherwise threads.
        samples_per_second: samples of this rank per second, in a loop that only loads.
        first_batch_seconds: seconds from the start of the iteration to the first batch.
        samples: mean number of samples per batch.
        cost_spread: the highest cost of a rank divided by the mean over ranks, averaged over steps; 0 if batches are
            not balanced.
        fetch, read, transform, collate, transfer: milliseconds per batch; `fetch` is the wait for remote data.
    """

    workers: int
    processes: bool
    samples_per_second: float
    first_batch_seconds: float
    read: float
    transform: float
    collate: float
    transfer: float = 0.0
    fetch: float = 0.0
    samples: float = 0.0
    cost_spread: float = 0.0

    @property
    def work(self) -> float:
        """Return the milliseconds of work per batch, over all stages."""
        return self.fetch + self.read + self.transform + self.collate + self.transfer


def named(workers: int, *, processes: bool) -> str:
    """Return a number of workers as text.

    >>> named(0, processes=True), named(1, processes=False), named(2, processes=True)
    ('no workers', '1 thread', '2 processes')
    """
    if not workers:
        return "no workers"
    kind = ("process" if workers == 1 else "processes") if processes else ("thread" if workers == 1 else "threads")
    return f"{workers} {kind}"


@dataclass(slots=True)
class BenchReport(VerbReport):
    """Measurements of `bench`, with advice.

    Attributes:
        plan: fingerprint of the plan.
        batch_size: None for batches by the recipe's budget.
        world_size: number of ranks, the first of which was measured.
        cores: number of cores that this process may use.
        rates: one rate for each number of workers.
        undecoded_samples_per_second: rate of reading the plan's samples in its order, as bytes, in one thread.
        stored_samples_per_second: the same for neighboring samples.
        advice: advice derived from the measurements, as sentences.
        recipe: path of the recipe; None if it was not read from a file.
    """

    plan: str
    batch_size: int | None
    world_size: int
    cores: int
    rates: list[Rate] = field(default_factory=list)
    undecoded_samples_per_second: float = 0.0
    stored_samples_per_second: float = 0.0
    advice: list[str] = field(default_factory=list)
    recipe: str | None = None

    @property
    def best(self) -> Rate:
        """Return the highest of the rates."""
        return max(self.rates, key=lambda rate: rate.samples_per_second)


@verb(Bench)
def bench(options: Bench) -> BenchReport:
    """Each run begins where the previous one ended, so that it does not find its data in the page cache. After the end
    of the plan, the next run begins at position 0.

    Raises:
        ConfigError: the plan has no batch for the first rank from `start` on.
        FeedmillError: as `Recipe.load`, `Recipe.plan` and `Loader` do.
    """
    plan, path = bound_plan(options.recipe, trust=options.trust)
    batch_size, log = options.batch_size, options.log or (lambda _: None)
    if batch_size is None and (plan.dealing is None or plan.dealing.budget is None):
        batch_size = 32
    output: Output = "torch" if options.device else options.output
    others: dict[str, Any] = {"output": output, "device": options.device, "start": options.start}
    others |= {"transform": options.transform, **(options.loader or {})}
    cores = available_cores()
    counts = sorted({0, *(1 << n for n in range(cores.bit_length()) if 1 << n <= cores), cores})
    report = BenchReport(plan.fingerprint, batch_size, options.world, cores, recipe=path)
    position = options.start
    for count in options.workers if options.workers is not None else counts:
        log(named(count, processes=options.processes))
        how = Workers(count, processes=options.processes and count > 0)
        loader = Loader(plan, batch_size, rank=0, world_size=options.world, workers=how, stall=None, **others)
        rate, position = _measured(loader, how, position, options.seconds)
        report.rates.append(rate)
    log("without decoding")
    report.undecoded_samples_per_second, report.stored_samples_per_second = _undecoded(plan, position)
    report.advice = advice(report, plan)
    return report


def _measured(loader: Loader, how: Workers, position: int, seconds: float) -> tuple[Rate, int]:
    """Return the rate from a position on, and the position for the next run."""
    length = loader.plan.length
    grid = loader.layout.grid
    loader.load_state_dict({**loader.state_dict(), "position": position})
    begun = time.perf_counter()
    first = 0.0
    for _ in loader:
        now = time.perf_counter() - begun
        first = first or now
        if now - first >= seconds and loader.metrics.batches > 2:
            break
    taken = time.perf_counter() - begun
    metrics = loader.metrics
    after = loader.position
    loader.close()
    if not metrics.batches:
        raise ConfigError(
            f"there is no batch to measure from position {position:,} on: the plan has {length or 0:,} samples",
            kind="bad-option",
            fix="Begin at a lower position, or use smaller batches or fewer ranks.",
        )
    shortest = grid.global_batch if isinstance(grid, Grid) else grid.world_size  # a budget's step: one sample per rank
    if length is not None and after >= length - shortest:
        after = 0
    # The first batch includes the startup, so rates are computed from the batches after it if there are any.
    batches = max(metrics.batches - 1, 1)
    rest = taken - first if metrics.batches > 1 else taken
    samples = metrics.samples * (batches / max(metrics.batches, 1))
    work = {stage: 1e3 * spent / max(metrics.batches, 1) for stage, spent in metrics.seconds.items()}
    each, spread = metrics.samples / max(metrics.batches, 1), metrics.spreads / max(metrics.balanced, 1)
    return Rate(
        how.count, how.processes, samples / max(rest, 1e-9), first, **work, samples=each, cost_spread=spread
    ), after


def _undecoded(plan: Plan, position: int) -> tuple[float, float]:
    """Return samples per second without decoding: in the plan's order from a position on, and in stored order."""
    end = position + _STORED if plan.length is None else min(position + _STORED, plan.length)
    located = plan.bases.read_from(plan.locate(np.arange(max(0, end - _STORED), end)))
    rates = []
    for stored in (False, True):
        begun, read = time.perf_counter(), 0
        for number, source in enumerate(plan.bases.datasets):
            indices = located.index[located.source == number]
            if stored and len(indices):
                first = min(int(indices.min()), len(source) - min(len(indices), len(source)))
                indices = np.arange(first, min(first + len(indices), len(source)))
            for at in range(0, len(indices), 256):
                read += len(source.read_raw(indices[at : at + 256]))
        rates.append(read / max(time.perf_counter() - begun, 1e-9))
    return rates[0], rates[1]


def advice(report: BenchReport, plan: Plan) -> list[str]:
    """Return advice derived from the measurements, as sentences."""
    best, alone = report.best, report.rates[0]
    out = []
    share = {stage: getattr(best, stage) / max(best.work, 1e-9) for stage in STAGES}
    most = max(share, key=lambda stage: share[stage])
    description = {
        "fetch": "waiting for remote data",
        "read": "reading, with what a declared sample type decodes",
        "transform": "the transform",
        "collate": "decoding and collating",
        "transfer": "copying to the device",
    }[most]
    out.append(f"{100 * share[most]:.0f} % of the work is {description}.")
    if best.workers:
        kind = "processes=True" if best.processes else "threads"
        gain = best.samples_per_second / max(alone.samples_per_second, 1e-9)
        out.append(f"workers={best.workers} ({kind}) was fastest: {gain:.1f} times as fast as the first line.")
    elif any(rate.workers for rate in report.rates):
        out.append("Workers made nothing faster: workers=0 keeps the cores for the training.")
    if most == "transform" and not best.processes and best.workers < report.cores:
        out.append("A transform in Python holds the interpreter: try --processes, or numpy and native libraries in it.")
    storage = best.samples / max(report.undecoded_samples_per_second, 1e-9) / max(best.read / 1e3, 1e-9)
    ratio = report.stored_samples_per_second / max(report.undecoded_samples_per_second, 1e-9)
    if most == "read" and storage > 0.3 and ratio > 2:
        out.append(f"Stored order reads {ratio:.0f} times as fast as the plan's: shuffle by blocks, or by larger ones.")
    if most == "fetch" and getattr(plan, "cache", None) is None:
        out.append(
            "A cache on disk (FEEDMILL_CACHE_SIZE) keeps remote data for the next epoch and for other processes."
        )
    return out
