"""Metrics of loading: the time that the training loop waits for batches, and the time to make them.

Use them to find out whether loading slows down a training run, and in which stage. `Telemetry` logs and exports them.

    loader = Loader(plan, 32, telemetry=Telemetry(every=60, jsonl="loading.jsonl", prometheus="/metrics/feedmill.prom"))
    loader.metrics.snapshot()

Measuring takes a few microseconds per batch. Batches are prefetched, so the time to make them is waiting time only if
the queue was empty. Shares of sources and cells are those of the plan's report at the loader's position. They are
computed from the plan on demand: they cost nothing per batch, and a resumed run and every rank have the same ones.
Reports of `Telemetry` have them on rank 0 alone, and so seldom that they take 1 % of the time at most.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger("feedmill")

STAGES = ("fetch", "read", "transform", "collate", "transfer")
"""The stages of a batch, in order; "fetch" is the part of reading that waits for remote data."""
_WAITS = (*STAGES, "other")
_COUNTS = ("row_samples", "length_misses", "row_drops")
_HELP = {
    "batches": "Batches yielded",
    "samples": "Samples yielded, without padding",
    "position": "Samples of the plan consumed by all ranks",
    "failures": "Samples that could not be used and were replaced",
    "skipped": "Samples that the transform skipped",
    "row_samples": "Samples in packed rows of samples",
    "length_misses": "Samples of these with another number of tokens than the plan predicted",
    "row_drops": "Samples of these that were replaced by padding",
    "cost_spread": "Highest cost of a rank divided by the mean over ranks, averaged over balanced steps; 0 without any",
    "over_budget": "Steps in which the batch of some rank cost more than its budget",
    "wait_seconds": "Seconds that the training loop waited for batches",
    **{f"wait_{stage}_seconds": f"Seconds of waiting while the batch was in the stage {stage}" for stage in STAGES},
    "wait_other_seconds": "Seconds of waiting while the batch was in no stage",
    "step_seconds": "Seconds between batches, including waiting",
    "fetch_seconds": "Seconds of all workers spent on waiting for remote data",
    "read_seconds": "Seconds of all workers spent on reading samples, without waiting for remote data",
    "transform_seconds": "Seconds of all workers spent on the transform",
    "collate_seconds": "Seconds of all workers spent on decoding and collating",
    "transfer_seconds": "Seconds spent on copying batches to the device",
    "fetch_requests": "Requests of this process for ranges of remote files",
    "fetch_bytes": "Bytes of the responses to these requests",
    "fetch_cached": "Bytes that were read from the cache on disk instead of requested",
    "fetch_retries": "Requests that were repeated after an error",
    "fetch_throttled": "Requests that a server rejected because of its load",
    "fetch_hedges": "Requests that were sent a second time because the first one hung",
}
_OF_SOURCES = {
    "weight_asked": "Share of the blend that the recipe asks for, in the unit of its weights",
    "weight_realised": "Share of the blend as it is scheduled, in the unit of its weights",
    "drawn": "Samples that all ranks have drawn up to the position; of packed rows, documents",
    "repeats": "How often each sample was drawn on average",
    "tokens": "Tokens of the samples drawn",
    "token_share": "Share of all tokens drawn",
    "loss_tokens": "Tokens of these that contribute to the loss",
    "loss_share": "Share of all tokens that contribute to the loss",
}
_RARELY = 100
"""Times what it took to compute the shares of sources is the least time between two reports with them."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The destination and interval of a loader's metrics.

    Args:
        every: seconds between reports.
        log: whether to log a line to the logger ``feedmill``.
        jsonl: a file to which a JSON object is appended; ``{rank}`` in it is replaced.
        prometheus: a file in Prometheus' text format, replaced as a whole (for its node exporter); ``{rank}`` as above.

    Raises:
        ConfigError: `every` is not positive.
    """

    every: float = 60.0
    log: bool = True
    jsonl: str | os.PathLike[str] | None = None
    prometheus: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.every <= 0:
            raise ConfigError(f"every={self.every} is invalid: expected seconds above 0", fix="Give a positive number.")


class Metrics:
    """Counters of one loader, and the figures of the last step.

    Attributes:
        batches, samples, failures, skipped: since the loader was created; position: that of the loader.
        counts: what `feedmill.tokens.collate_rows` counted since then: samples of rows, misses and drops.
        wait_seconds, step_seconds: waiting and step time of the training loop; `seconds`: time to make batches, by
            stage.
        waits: the waiting time by the stage in which the awaited batch was; ``other`` if it was in none.
        last_wait: seconds of waiting for the last batch.
        balanced: batches that were balanced; spreads: the sum over them of the highest cost of a rank divided by the
            mean over all ranks; worst_spread: the highest of these.
        over_budget: steps in which the batch of some rank cost more than its budget; worst_budget_share: the highest
            cost of a rank divided by its budget.
        ready: batches that were ready when requested.

    Args:
        rank: of this process.
        plan: the loader's plan; None if it has no report.
    """

    def __init__(self, rank: int = 0, plan: Any = None) -> None:
        self.rank, self._plan = rank, plan if hasattr(plan, "report") else None
        self.batches = self.samples = self.failures = self.skipped = self.ready = self.position = 0
        self.counts = dict.fromkeys(_COUNTS, 0)
        self.balanced = self.over_budget = 0
        self.spreads = self.worst_spread = self.worst_budget_share = 0.0
        self.wait_seconds = self.step_seconds = self.last_wait = 0.0
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.waits = dict.fromkeys(_WAITS, 0.0)
        self._last: float | None = None
        self._last_report = time.monotonic()
        self._next_sources = 0.0

    def given(self, waited: float, now: float, seconds: Mapping[str, float]) -> None:
        """Record that a batch was yielded after this many seconds of waiting.

        Args:
            waited: seconds that the loop waited for the batch.
            now: time at which the batch was yielded.
            seconds: seconds to make the batch, by stage. The wait is attributed to the last stages.
        """
        left = waited
        for stage in reversed(STAGES):
            share = min(left, seconds.get(stage, 0.0))
            self.waits[stage] += share
            left -= share
        self._given(waited, left, now)

    def given_ready(self, requested_at: float, samples: int) -> None:
        """Record that a batch of these samples was yielded that had been made with an earlier one."""
        now = time.perf_counter()
        self.samples += samples
        self._given(now - requested_at, now - requested_at, now)

    def _given(self, waited: float, other: float, now: float) -> None:
        self.waits["other"] += other
        self.batches += 1
        self.last_wait = waited
        self.wait_seconds += waited
        self.ready += waited < 1e-3
        if self._last is not None:
            self.step_seconds += now - self._last
        self._last = now

    def made(
        self,
        seconds: Mapping[str, float],
        samples: int,
        spread: float | None = None,
        budget_share: float | None = None,
    ) -> None:
        """Record the time to make one batch or window of samples.

        Args:
            seconds: seconds to make it, by stage.
            samples: number of its samples, without padding.
            spread: the spread of its cost over ranks, if it was balanced.
            budget_share: the share of the budget that the most expensive rank used, if there is a budget.
        """
        self.samples += samples
        if spread is not None:
            self.balanced += 1
            self.spreads += spread
            self.worst_spread = max(self.worst_spread, spread)
        if budget_share is not None:
            self.over_budget += budget_share > 1
            self.worst_budget_share = max(self.worst_budget_share, budget_share)
        for stage, taken in seconds.items():
            self.seconds[stage] += taken

    def counted(self, counts: Mapping[str, int]) -> None:
        """Add what the collate function counted while it made a batch."""
        for name, count in counts.items():
            if name in self.counts:
                self.counts[name] += count

    def transferred(self, seconds: float) -> None:
        """Record the time to copy one batch to the device."""
        self.seconds["transfer"] += seconds

    def pause(self) -> None:
        """Record that the loop has ended: the time until the next batch is not part of a step."""
        self._last = None

    def snapshot(self) -> dict[str, Any]:
        """Return all figures as plain data; rates are relative to the time in which batches were requested."""
        busy = max(self.step_seconds, self.wait_seconds, 1e-9)
        from feedmill.storage.fetching.fetch import counters

        return {
            "rank": self.rank,
            "batches": self.batches,
            "samples": self.samples,
            "position": self.position,
            "failures": self.failures,
            "skipped": self.skipped,
            **self.counts,
            "cost_spread": round(self.spreads / max(self.balanced, 1), 4),
            "worst_cost_spread": round(self.worst_spread, 4),
            "over_budget": self.over_budget,
            "worst_budget_share": round(self.worst_budget_share, 4),
            "wait_seconds": round(self.wait_seconds, 6),
            **{f"wait_{stage}_seconds": round(waited, 6) for stage, waited in self.waits.items()},
            "step_seconds": round(self.step_seconds, 6),
            **{f"{stage}_seconds": round(taken, 6) for stage, taken in self.seconds.items()},
            "samples_per_second": round(self.samples / busy, 3),
            "waiting": round(self.wait_seconds / busy, 4),
            "ready": round(self.ready / max(self.batches, 1), 4),
            **counters(),
        }

    def sources(self) -> list[dict[str, Any]]:
        """Return the accounts of each source and cell up to the position of all ranks, as ``plan.report(position)``.

        Returns:
            Of each source its ``name`` and the figures that the plan has: ``weight_asked`` and ``weight_realised``,
            ``drawn``, whether it is ``exact``, ``repeats``, and the shares of tokens
            (`feedmill.planning.report.SourceReport`). Empty if the plan is no `Plan`.
        """
        if self._plan is None:
            return []
        length = self._plan.length
        found = self._plan.report(self.position if length is None else min(self.position, length))
        return [
            {name: value for name, value in source.as_dict().items() if value is not None} for source in found.sources
        ]

    @property
    def _unit(self) -> str:
        """What the weights of the plan count."""
        units = getattr(self._plan, "units", None)
        return "samples" if units is None else str(units.unit)

    def prometheus(self, sources: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the figures in the text format of Prometheus, one series each, labeled with the rank.

        Args:
            sources: the accounts of sources, which get one series each, labeled with the source; see `sources`.
        """
        from feedmill.jobs.events import series

        figures = self.snapshot()
        kinds = {name: "gauge" if name in ("position", "cost_spread") else "counter" for name in _HELP}
        rank = {"rank": str(self.rank)}
        families = [
            series(f"feedmill_loader_{name}", kinds[name], text, [(rank, figures[name])])
            for name, text in _HELP.items()
        ]
        for name, text in _OF_SOURCES.items():
            known = [({**rank, "source": source["name"]}, source[name]) for source in sources if name in source]
            families.append(series(f"feedmill_source_{name}", "gauge", text, known))
        return "".join(families)

    def __str__(self) -> str:
        figures = self.snapshot()
        made = ", ".join(f"{stage} {taken:.1f}" for stage, taken in self.seconds.items())
        return (
            f"rank {self.rank}: {self.batches:,} batches, {figures['samples_per_second']:,.0f} samples/s,"
            f" waited {100 * figures['waiting']:.1f} % of the time (workers' seconds: {made})"
        )

    def report(self, where: Telemetry, now: float) -> None:
        """Log and export the metrics if the interval has passed. Logs a warning for a file that cannot be written."""
        if now - self._last_report < where.every:
            return
        self._last_report = now
        if where.log:
            logger.info("%s", self)
        try:
            self._write(where)
        except OSError as error:
            logger.warning("the metrics of loading cannot be written: %s", error)

    def _write(self, where: Telemetry) -> None:
        sources = self._sources_now() if where.jsonl is not None or where.prometheus is not None else []
        if where.jsonl is not None:
            import orjson

            with open(self._path(where.jsonl), "ab", buffering=0) as file:
                more = {"sources": sources, "unit": self._unit} if sources else {}
                file.write(orjson.dumps({"time": time.time(), **self.snapshot(), **more}) + b"\n")
        if where.prometheus is not None:
            from feedmill.jobs.events import replace_text

            replace_text(self._path(where.prometheus), self.prometheus(sources))

    def _sources_now(self) -> list[dict[str, Any]]:
        """Return the accounts of sources for a report; empty on other ranks than 0, whose are the same, and too soon.

        The last ones are not repeated: each line says where its position is.
        """
        began = time.monotonic()
        if self.rank or began < self._next_sources:
            return []
        found = self.sources()
        ended = time.monotonic()
        self._next_sources = ended + _RARELY * (ended - began)
        return found

    def _path(self, name: str | os.PathLike[str]) -> Path:
        from pathlib import Path

        path = Path(os.fspath(name).replace("{rank}", str(self.rank)))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
