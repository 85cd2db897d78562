"""The units of a stage as tasks of Ray: submitted in order, a bounded number at a time, with results in order.

Ray's own retries are off: a task that was lost with its worker or node is submitted again, and one that is lost again
and again is named. An exception of a unit comes back as data, so that it is the same error as on one machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.jobs import processes
from feedmill.jobs.engine import Stage, share
from feedmill.jobs.processes import Outcome, name_of
from feedmill.jobs.ray_nodes import NodeCheck, Nodes, complaint, first_line, unfit

logger = logging.getLogger("feedmill")

_LOOK = 1.0  # seconds between looks at Ctrl-C and at the size of the cluster
_RESIZE = 10.0
_TRIES = 5
_MEMORY_TRIES = 3
_WARNINGS = 1000  # texts of warnings that are logged for a stage


@dataclass(slots=True)
class _Chunk:
    """Units of one task, and what happened to it so far."""

    items: Sequence[Any]
    tries: int = 0
    memory: int | None = None
    begin: float = 0.0  # not before this time


class Tasks:
    """Tasks of one stage.

    Args:
        ray: the module.
        stage: the units.
        nodes: the cluster.
        check: what a node must have and see.
        cpus, memory, max_tasks: see `feedmill.jobs.ray_engine.RayEngine`.
    """

    def __init__(
        self,
        ray: Any,
        stage: Stage,
        nodes: Nodes,
        check: NodeCheck,
        *,
        cpus: float,
        memory: int | None,
        max_tasks: int | None,
    ) -> None:
        self._ray, self._stage, self._nodes, self._check = ray, stage, nodes, check
        self._cpus, self._memory, self._max_tasks = cpus, memory, max_tasks
        self._options = {"num_cpus": cpus, "max_retries": 0, "retry_exceptions": False, "scheduling_strategy": "SPREAD"}
        self._remote = ray.remote(_call)
        self._shared = None if stage.shared is None else ray.put(stage.shared)
        self._chunks = _chunks(stage)
        self._warned = False
        self._logged: set[str] = set()
        self._unlogged = 0
        self._waiting: dict[Any, int] = {}
        self._open: dict[int, _Chunk] = {}
        self._done: dict[int, Outcome] = {}

    def results(self) -> Iterator[Any]:
        """Yield results in order."""
        again: deque[int] = deque()
        head, sent, resized, most, more = 0, 0, 0.0, 8, True
        while more or head < sent:
            if time.monotonic() - resized > _RESIZE:  # the cluster may grow
                resized, most = time.monotonic(), self._at_once()
            while len(self._waiting) < most:
                if again and self._open[again[0]].begin <= time.monotonic():
                    self._submit(again.popleft())
                elif more and sent < head + 4 * most:  # bounds the results that wait for the first one
                    chunk = next(self._chunks, None)
                    if chunk is None:
                        more = False
                        break
                    self._open[sent] = chunk
                    self._submit(sent)
                    sent += 1
                else:
                    break
            for number, outcome in self._ended():
                if outcome is None:
                    again.append(number)
                else:
                    self._done[number] = outcome
                    del self._open[number]
            while head in self._done:
                outcome = self._done.pop(head)
                yield from outcome.results
                if outcome.error is not None:
                    raise outcome.error
                head += 1

    def _submit(self, number: int) -> None:
        chunk = self._open[number]
        memory = chunk.memory or self._memory
        task = self._remote.options(**self._options, **({} if memory is None else {"memory": memory}))
        self._waiting[task.remote(self._stage.function, self._shared, chunk.items, self._check)] = number

    def _ended(self) -> Iterator[tuple[int, Outcome | None]]:
        """Wait for tasks; yield the numbers of chunks that have ended, with None for those to be submitted again."""
        ray = self._ray
        if not self._waiting:
            time.sleep(0.05)
            return
        found, _ = ray.wait(list(self._waiting), num_returns=1, timeout=_LOOK)
        if found:  # and all others that have ended
            found, _ = ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)
        for reference in found:
            number = self._waiting.pop(reference)
            try:
                outcome, warnings = ray.get(reference)
                self._warn(warnings)
                yield number, outcome
            except ray.exceptions.RayError as error:
                yield number, self._lost(self._open[number], error)

    def _warn(self, warnings: Sequence[str]) -> None:
        """Log what units logged, each text once: Ray keeps the output of workers on their nodes."""
        for text in warnings:
            if text in self._logged:
                continue
            if len(self._logged) < _WARNINGS:
                self._logged.add(text)
                logger.warning("%s", text)
            else:
                self._unlogged += 1

    def _lost(self, chunk: _Chunk, error: Exception) -> Outcome | None:
        """Return None if the chunk must be submitted again, else its error."""
        exceptions = self._ray.exceptions
        chunk.tries += 1
        memory = isinstance(error, exceptions.OutOfMemoryError)
        most = _MEMORY_TRIES if memory else _TRIES
        if isinstance(error, exceptions.RayTaskError) or chunk.tries >= most:
            return Outcome([], self._poisoned(chunk, error, memory))
        if memory:  # at most what a node has: a task that fits nowhere would never start
            more = 2 * (chunk.memory or self._memory or 1 << 30)
            chunk.memory = min(more, self._nodes.largest_memory()) or None
        chunk.begin = time.monotonic() + 0.5 * 2 ** (chunk.tries - 1) * random.uniform(0.5, 1.5)
        logger.warning(
            "%s: a worker was lost (%s); its unit runs again (%d of %d)",
            self._stage.name,
            type(error).__name__,
            chunk.tries,
            most - 1,
        )
        return None

    def _at_once(self) -> int:
        """Return the number of tasks to hand to Ray: more than can run, so that none waits for this machine."""
        slots = self._nodes.slots(self._memory or 0)
        if not slots and not self._warned:
            memory = f" and {self._memory / 2**30:.1f} GiB of memory" if self._memory else ""
            logger.warning("no node of the cluster has %g free cores%s for a unit: waiting for one", self._cpus, memory)
        self._warned = not slots
        most = min(max(8, 3 * slots), 4096)
        return most if self._max_tasks is None else min(most, self._max_tasks)

    def _poisoned(self, chunk: _Chunk, error: Exception, memory: bool) -> FeedmillError:
        names = [name_of(item) for item in chunk.items]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        fix = (
            "Declare more --task-memory, or use machines with more memory."
            if memory
            else "Run it with --engine local --workers 1 to see what happens."
        )
        return FeedmillError(
            f"a unit of {self._stage.name} ended its worker {chunk.tries} times ({first_line(error)}): {shown}",
            kind="worker-died",
            fix=f"{fix} Finished work is kept.",
        )

    def stop(self) -> None:
        """End the tasks that still run."""
        if self._unlogged:
            logger.warning("%s: %s more warnings are in Ray's logs", self._stage.name, f"{self._unlogged:,}")
            self._unlogged = 0
        if not self._waiting:
            return
        with contextlib.suppress(Exception):  # the cluster may be gone
            for reference in self._waiting:
                self._ray.cancel(reference, force=True)
            self._ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=5)
        self._waiting.clear()


def _chunks(stage: Stage) -> Iterator[_Chunk]:
    items = iter(stage.items)
    while taken := list(islice(items, max(1, stage.chunk))):
        yield _Chunk(taken)


_passed: set[bytes] = set()
"""Checks that this worker has passed."""


class _Kept(logging.Handler):
    """Keeps the texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.texts[record.getMessage()] = None


def _call(
    function: Callable[..., Any], shared: Any, items: Sequence[Any], check: NodeCheck
) -> tuple[Outcome, list[str]]:
    """Run units in a worker of Ray; return their outcome, and the warnings that they logged."""
    kept = _Kept()
    logger.addHandler(kept)
    try:
        return _outcome(function, shared, items, check), list(kept.texts)
    finally:
        logger.removeHandler(kept)


def _outcome(function: Callable[..., Any], shared: Any, items: Sequence[Any], check: NodeCheck) -> Outcome:
    if check.content not in _passed:
        found = complaint(check)
        if found is not None:
            return Outcome([], unfit(socket.gethostname(), found))
        _passed.add(check.content)
    with contextlib.suppress(OSError):
        os.chdir(check.here)  # relative paths are those of the driver
    processes.enter_unit()
    share()
    try:
        outcome = processes.outcome(function, shared, items)
        if isinstance(outcome.error, StorageError | NotFound):  # of this node alone, perhaps: its disk is full
            outcome.error.what += f" (on the node {socket.gethostname()})"
        return outcome
    except SystemExit as error:
        return Outcome([], FeedmillError(f"a unit ended its process ({error})", kind="worker-error"))
