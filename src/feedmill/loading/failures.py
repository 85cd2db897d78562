"""Samples that cannot be used: what stands in their place, who is notified, and when it is too much.

A position of the plan always gives a sample. Where its own cannot be read, decoded or transformed, another sample of
the same source stands in: the first usable one of a sequence that depends on seed, position and plan alone, so every
layout and every resume sees the same substitute, all ranks have as many batches as before, and nothing behind it moves.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.base import Source
from feedmill.jobs.policy import check_budget, over_budget
from feedmill.loading.metrics import Metrics
from feedmill.planning.nodes.base import LONGEST

if TYPE_CHECKING:
    from feedmill.loading.plan import PlanLike

TRIES = 1000
_DRAWS, _ROUNDS = 64, 12
_WINDOW = 1 << 24


MISTAKES = (
    SystemError,
    SyntaxError,
    ImportError,
    StopIteration,
    StopAsyncIteration,
    MemoryError,
    RecursionError,
    ReferenceError,
    NameError,
)
"""What is wrong with the program and not with a sample."""


class SkipSample(Exception):
    """Raised by a transform that does not want a sample: a substitute takes its place. No failure, but counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One sample that could not be used.

    Attributes:
        position: its place in the stream; `step`: the batch of this rank since the plan's start; `rank`.
        stage: ``read``, ``transform`` or ``collate`` (which decodes what the transform did not touch).
        source, index, epoch: which sample of which source, by name where the plan has names.
        file, offset, key: where it lies, as far as that is known.
        kind, error: the class of the exception (or the error's kind), and its message.
        substitute: the position whose sample took the place.
    """

    position: int
    step: int
    rank: int
    stage: str
    source: int | str
    index: int
    epoch: int
    file: str | None
    offset: int | None
    key: str | None
    kind: str
    error: str
    substitute: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as it is written to the quarantine file."""
        return {name: getattr(self, name) for name in self.__slots__}


Handler = Callable[[Failure], str | None]


@dataclass(frozen=True, slots=True)
class Substitute:
    """The error policy of a loader that replaces samples that cannot be used.

    Args:
        quarantine: JSONL file to which every failure is appended, ``{rank}`` in it replaced by the rank's number. A
            recipe's skip list takes it as it is (docs/ledger.md).
        budget: how much this rank bears before it stops: a whole number of failures, or, below 1, their share of the
            samples (of a thousand at least). None: without end.
        handler: called with each `Failure`; ``"raise"`` stops the run, None or ``"substitute"`` continues.
        in_a_row: stop where this number of samples of this rank have failed one after another: then it is the program
            or a whole file that is broken. None: without end.

    Raises:
        ConfigError: a budget or a number in a row that is out of range, or a quarantine in an object store, to which
            nothing can be appended.
    """

    quarantine: str | os.PathLike[str] | None = None
    budget: float | None = None
    handler: Handler | None = None
    in_a_row: int | None = None

    def __post_init__(self) -> None:
        check_budget(self.budget, "budget")
        if self.in_a_row is not None and self.in_a_row < 1:
            raise ConfigError(f"in_a_row={self.in_a_row} is invalid", fix="Give at least 1, or None.")
        if self.quarantine is not None and "://" in os.fspath(self.quarantine):
            raise ConfigError(
                "a quarantine file is appended to, which object stores cannot do",
                file=os.fspath(self.quarantine),
                fix="Give a path of this machine.",
            )


def policy_for(on_error: str | Substitute) -> Substitute | None:
    """What a loader's argument `on_error` means; None if failures are raised. Raises ConfigError for other words."""
    if isinstance(on_error, Substitute):
        return on_error
    if on_error not in ("raise", "substitute"):
        raise ConfigError(
            f"on_error={on_error!r} is unknown", fix="Use 'raise', 'substitute' or a feedmill.Substitute."
        )
    return Substitute() if on_error == "substitute" else None


class Tally:
    """Failures of one loader against its policy, in the order of its batches."""

    def __init__(self, policy: Substitute | None, metrics: Metrics) -> None:
        self.policy, self.metrics = policy, metrics
        self._row = 0

    def note_all(self, positions: Sequence[int], troubles: Sequence[tuple[Failure, FeedmillError]]) -> None:
        """Write down the failures of a batch of these positions. Raises as `note` does."""
        failed = {failure.position: (failure, error) for failure, error in troubles}
        if not failed:
            self._row = 0
            return
        for position in positions:
            if position in failed:
                self._row += 1
                self.note(*failed[position])
            else:
                self._row = 0

    def note(self, failure: Failure, error: FeedmillError) -> None:
        """Write a failure down. Raises `error`, saying why, where this is one too many or the handler says so."""
        policy = self.policy or Substitute()
        self.metrics.failures += 1
        if policy.quarantine is not None:
            self._write(os.fspath(policy.quarantine), failure)
        over = over_budget(policy.budget, self.metrics.failures, self.metrics.samples)
        if policy.in_a_row is not None and self._row >= policy.in_a_row:
            over = f"{self._row:,} samples in a row have failed"
        if over:
            error.what = f"{error.what}; with this one: {over}"
            error.fix = "Fix the data or the program, or raise the failure budget."
            raise error
        if policy.handler is not None and policy.handler(failure) == "raise":
            raise error

    def _write(self, name: str, failure: Failure) -> None:
        """One line in one write, so that ranks may share a file."""
        path = Path(name.replace("{rank}", str(self.metrics.rank)))
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            cut = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"  # by a kill, or a disk that was full
            # Names that are no Unicode have lone surrogates: as escapes they are JSON.
            line = json.dumps(failure.as_dict(), ensure_ascii=False, separators=(",", ":")) + "\n"
            file.write(b"\n" * cut + line.encode("utf-8", "backslashreplace"))


def candidates(plan: PlanLike, position: int, seed: int) -> Iterator[int]:
    """Positions whose samples may stand in at `position`: of the same source, another sample, in an order of their own.

    A pure function of its arguments. They are from anywhere in the plan, and then from around the position, as a source
    may come in a late stage only. Ends where no other sample of the source turns up among some hundred thousand
    positions of either.
    """
    here = plan.locate(np.array([position], np.int64))
    source, index = int(here.source[0]), int(here.index[0])
    rng = np.random.Generator(np.random.Philox(key=((seed % (1 << 64)) << 64) | position, counter=1 << 255))
    end = LONGEST if plan.length is None else plan.length
    spans = [(0, _WINDOW if plan.length is None else end, _DRAWS << number) for number in range(_ROUNDS)]
    around = [_DRAWS << 2 * number for number in range(_ROUNDS)]
    spans += [(max(0, position - n), min(position + n, end), _DRAWS << number) for number, n in enumerate(around)]
    for low, high, draws in spans:
        drawn = rng.integers(low, high, draws, dtype=np.int64)
        found = plan.locate(drawn)
        fits = (np.asarray(found.source) == source) & (np.asarray(found.index) != index)
        yield from drawn[fits].tolist()


class Unusable(Exception):
    """One sample failed by itself, in a stage."""

    def __init__(self, stage: str, sample: Any, error: Exception) -> None:
        super().__init__(stage)
        self.stage, self.sample, self.error = stage, sample, error

    def told(self, where: str) -> FeedmillError:
        """Return the error for display."""
        found = told(self.error, self.stage, where, f"the sample at {where}", self.sample)
        found.__cause__ = self.error
        return found


_DOING = {"read": "reading", "transform": "transforming", "collate": "collating"}
_FIX = {
    "transform": "Fix the transform, or let it accept such samples.",
    "collate": "Give the samples of a batch fields that can be put together, or pass your own collate.",
}


def told(error: Exception, stage: str, where: str, whom: str, sample: Any = None) -> FeedmillError:
    """Return the error with the sample that it concerns; a `FeedmillError` keeps its class and its own fix."""
    if isinstance(error, FeedmillError):
        found = copy.copy(error)
        found.what = f"{error.what} (at {where})"
        found.args = (found.what,)
        return found
    source = source_of(sample)
    return DataError(
        f"{_DOING[stage]} {whom} failed with {type(error).__name__}: {error}",
        file=source.where if source else None,
        offset=source.offset if source else None,
        record=source.key if source else None,
        kind=f"{stage}-failed",
        fix=_FIX.get(stage),
    )


def source_of(sample: Any) -> Source | None:
    """Return where a sample lies, if it says so."""
    source = getattr(sample, "source", None)
    return source if isinstance(source, Source) else None
