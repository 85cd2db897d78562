"""The engine of Ray clusters: ``--engine ray`` runs units as tasks, and gets only their facts back.

Units run as plain tasks with declared processors and memory, in processes that Ray keeps warm, on
nodes that were checked (`ray_nodes.py`). Nothing of the data goes through Ray's object store.

The units of a stage as tasks of Ray: submitted in order, a bounded number at a time, with results in order.

Ray's own retries are off: a task that was lost with its worker or node is submitted again, and one that is lost again
and again is named. An exception of a unit comes back as data, so that it is the same error as on one machine.

A task that runs far longer than the others is named, and its units are tried once more on another node: the first
result is taken. The others do not wait for it, as long as what they returned is small.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import connection
from typing import IO, Any

from feedmill.errors import ConfigError, FeedmillError, MissingExtra, NotFound, StorageError
from feedmill.jobs import engine, processes
from feedmill.jobs.engine import Engine, Failed, Stage, limits_of, share
from feedmill.jobs.events import lateness, name_of, units_of
from feedmill.jobs.processes import Outcome, Sent
from feedmill.jobs.ray_nodes import (
    NodeCheck,
    Nodes,
    Place,
    at_work,
    check_of,
    complaint,
    first_line,
    forget_places,
    place_of,
    set_variables,
    stop_work,
    unfit,
)
from feedmill.jobs.resources import Resources, needed

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # would copy the environment of `uv run` to each node
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # lines that Ray would print on stdout, among the JSON of a verb
}
"""Settings of Ray in this process, unless the user has set them."""
_PATIENCE = 10.0  # seconds that the head of the cluster has to answer
_IMPORT = 120.0  # seconds that Ray has to be imported, on a busy machine
_PING = """
import sys
from ray._private import services
from ray._raylet import GcsClient
print("found", services.canonicalize_bootstrap_address(sys.argv[1]), flush=True)
GcsClient(address=services.canonicalize_bootstrap_address(sys.argv[1])).internal_kv_get(b"session_name", b"session")
print("answered", flush=True)
"""
"""Asks the head of a cluster for the name of its session. Ray does so too, and tries for minutes if nothing answers."""
_PING_CLIENT = """
import sys, ray
print("found", sys.argv[1], flush=True)
ray.init(sys.argv[1], log_to_driver=False)
print("answered", flush=True)
"""


class RayEngine(Engine):
    """Engine of a Ray cluster that is running.

    Args:
        address: ``auto`` for the cluster of ``RAY_ADDRESS``, or that of this machine; ``host:port``;
            ``ray://host:port``.
        max_tasks: tasks at the same time; None for what the cluster has processors for.
        cpus: processors of a task.
        memory: bytes that a task needs at most, for Ray's scheduler; None for no declaration.
        gpus: GPUs of a task; a fraction if several share one.
        custom: custom resources of a task, by name.
        labels: labels that a node must have to run a task. Steps of a pipeline may declare all of these, too.
        work: see `Engine`.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: there is no cluster at the address, a node cannot do the work, or none has what a task needs.
    """

    name = "ray"

    def __init__(
        self,
        address: str = "auto",
        *,
        max_tasks: int | None = None,
        cpus: float | None = None,
        memory: int | None = None,
        gpus: float | None = None,
        custom: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        work: str | None = None,
    ) -> None:
        super().__init__(work)
        if max_tasks is not None and max_tasks < 1:
            raise ConfigError(f"--max-tasks {max_tasks} is invalid", fix="Use at least 1.")
        _refuse_other(address, "--address")
        self.address, self.max_tasks = address, max_tasks
        self.resources = Resources(cpus, memory, gpus, custom or {}, labels or {})
        self._ray: Any = None
        self._nodes: Nodes
        self._ours = False
        self._copied = False

    def __enter__(self) -> RayEngine:
        super().__enter__()
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._copied:
            self._copied = False
            self._nodes.forget_copies()
        if self._ours:
            self._ours = False
            self._ray.shutdown()

    def settings(self) -> dict[str, Any]:
        address = self.address if "://" in self.address else self._ray.get_runtime_context().gcs_address
        return {**super().settings(), "address": address, "max_tasks": self.max_tasks, **self.resources.declared()}

    def _connect(self) -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            import ray
        except ImportError:
            raise MissingExtra("--engine ray needs Ray, which is not installed", "ray") from None
        self._ray, self._nodes = ray, Nodes(ray)
        if ray.is_initialized():
            return
        address = self.address
        if address == "auto" and (address := os.environ.get("RAY_ADDRESS") or "auto") != "auto":
            _refuse_other(address, "RAY_ADDRESS")
        reached = self._reach(address)
        before = _handlers()
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except ray.exceptions.AuthenticationError as error:
            raise self._not_accepted(error) from None
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise (self._not_accepted(error) if reached else self._no_cluster(error)) from None
        finally:
            for number, handler in before.items():  # Ray's own prints a trace of C++ and skips all cleaning up
                signal.signal(number, handler)
        self._ours = True

    def _reach(self, address: str) -> bool:
        """Return whether something listens at the address; False if it names no port.

        Raises:
            ConfigError: nothing does, or it does not answer as the head of a cluster. Ray itself would try for minutes.
        """
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host:
            try:
                socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
            except OSError as error:
                raise self._no_cluster(error) from None
        found, answered, said = _ping(address)
        if found and not answered:
            raise ConfigError(
                f"{found} listens, but does not answer as the head of a Ray cluster{said}",
                kind="no-cluster",
                fix="Use the port of the head: 6379, unless 'ray start --head --port' names another; 10001 with ray://."
                " The dashboard (8265) and the ports of other processes are not it.",
            )
        return bool(host)

    def _not_accepted(self, error: BaseException) -> ConfigError:
        return ConfigError(
            f"the Ray cluster at {self.address!r} did not accept this machine ({first_line(error)})",
            kind="no-cluster",
            fix="Use the versions of Ray and Python of the cluster. If it requires a token, set RAY_AUTH_MODE=token,"
            " and RAY_AUTH_TOKEN_PATH to a file with the token.",
        )

    def _no_cluster(self, error: BaseException) -> ConfigError:
        return ConfigError(
            f"there is no Ray cluster at {self.address!r} ({first_line(error)})",
            kind="no-cluster",
            fix="Start one with 'ray start --head', give its --address, or use --engine local.",
        )

    def run(self, stage: Stage) -> Iterator[Any]:
        """Yield the result of each unit, in order; see `Engine.run`."""
        place = stage.where.place
        self._copied = self._copied or stage.where.copies or not (place is None or place.is_local)
        stage.steps.note("Ray starts its workers")
        with check_of(place) as check:
            resources = needed().over(self.resources)
            self._nodes.refuse_missing(resources, stage.name)
            self._nodes.check(check, resources)
            tasks = Tasks(self._ray, stage, self._nodes, check, resources=resources, max_tasks=self.max_tasks)
            try:
                yield from tasks.results()
            finally:
                tasks.stop()


def _refuse_other(address: str, option: str) -> None:
    """Raise `ConfigError` unless an address is one of a cluster that runs: Ray would start one for some words."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto" and not (host and "/" not in host and port.isdecimal() and 0 < int(port[:9]) < 1 << 16):
        starts = ": it would start a cluster, and Feedmill joins one that runs" if address in ("", "local") else ""
        raise ConfigError(
            f"{option} {address!r} is not the address of a Ray cluster{starts}",
            kind="bad-address",
            fix="Use auto, HOST:PORT or ray://HOST:PORT; start a cluster with 'ray start --head'.",
        )


def _ping(address: str) -> tuple[str, bool, str]:
    """Ask the head of a cluster for a sign of life, in a process that is ended after `_PATIENCE`.

    Returns:
        The address that was found, whether its head has answered, and words for a message. The address is empty if
        there is none, or if the question cannot be put: `ray.init` then says why.
    """
    words = [sys.executable, "-c", _PING_CLIENT if address.startswith("ray://") else _PING, address]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, bufsize=0, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as child:
        assert child.stdout is not None and child.stderr is not None
        try:
            found = (_line(child.stdout, _IMPORT) or "").removeprefix("found").strip()
            if found in ("", "None"):
                return "", False, ""
            answer = _line(child.stdout, _PATIENCE)
            said = child.stderr.read().decode(errors="replace").strip() if answer == "" else ""
        finally:
            child.kill()
    last = said.splitlines()[-1] if said else ""
    if last and not any(name in last for name in ("RpcError", "ConnectionError")):
        return "", False, ""  # a token is missing, or versions differ
    reason = last.rpartition(":")[2].strip()[:200]
    why = f" within {_PATIENCE:g} s" if answer is None else f" ({reason})" if reason else ""
    return found if address == "auto" else address, bool(answer), why


def _line(file: IO[bytes], patience: float) -> str | None:
    """Return the next line of a process; empty if it has ended, None if there is none within these seconds."""
    return file.readline().decode(errors="replace") if connection.wait([file.fileno()], patience) else None


def _handlers() -> dict[int, Any]:
    """Return the handlers of SIGTERM and SIGINT, if this thread can restore them."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}


logger = logging.getLogger("feedmill")

_LOOK = 1.0  # seconds between looks at Ctrl-C and at the size of the cluster
_RESIZE = 10.0
_HELD = 60.0  # seconds that Ray may take to end an attempt, which holds the lock of the output
_END = 10.0  # seconds that Ray has to kill the process of an attempt that was not needed
_SOFT = 3.0  # seconds that tasks have to end when they are interrupted
_AGAIN, _SOON = 3.0, 6.0
"""Medians and seconds after which a unit that was begun is tried once more. A copy costs little: one unit's work."""
_IDLE = 2.0  # medians, if cores have nothing else to do
_BESIDE = 4  # attempts of a unit at the same time
_UNBEGUN = 60.0  # seconds before a unit that no worker has begun is late: a new worker may take half a minute
_FREE = 10.0  # the same, if cores have nothing else to do
_BEGINS = 64  # units of which is asked in a look whether a worker has begun them
_TRIES = 5
_MEMORY_TRIES = 3
_WARNINGS = 1000  # texts of warnings that are logged for a stage


_KEPT = 256 << 20
"""Bytes of facts that may wait for an unfinished unit before them, beyond those of four tasks for each that runs."""
_PLACES = 8
"""Oldest units whose places are looked up."""
_MARGIN = 8  # tasks that may overtake another in Ray's queue


@dataclass(slots=True)
class _Chunk:
    """Units of one task, and what happened to it so far.

    Attributes:
        first: number of the first unit.
        begin: not before this time.
        expected: number of ended tasks from which on a task that was submitted then has begun.
        attempts: tasks of it that were submitted, also lost ones.
        tasks: those in progress, with the number of the attempt.
        retried: whether it is tried a second time because the first takes long.
        begun: when a worker was seen to have begun it; None if none was.
        held: until this time, an attempt that was ended may hold the lock of the output.
    """

    first: int
    items: Sequence[Any]
    tries: int = 0
    memory: int | None = None
    begin: float = 0.0
    expected: int = 0
    attempts: int = 0
    tasks: dict[Any, int] = field(default_factory=dict)
    retried: bool = False
    begun: float | None = None
    held: float = 0.0


class Tasks:
    """Tasks of one stage.

    Args:
        ray: the module.
        stage: the units.
        nodes: the cluster.
        check: what a node must have and see.
        resources: what a task needs.
        max_tasks: see `feedmill.jobs.ray_engine.RayEngine`.
    """

    def __init__(
        self,
        ray: Any,
        stage: Stage,
        nodes: Nodes,
        check: NodeCheck,
        *,
        resources: Resources,
        max_tasks: int | None,
    ) -> None:
        self._ray, self._stage, self._nodes, self._check = ray, stage, nodes, check
        self._needs, self._memory, self._max_tasks = resources, resources.memory, max_tasks
        self._options: dict[str, Any] = {
            "num_cpus": resources.processors,
            "max_retries": 0,
            "retry_exceptions": False,
            "scheduling_strategy": "SPREAD",
        }
        for name, value in ("num_gpus", resources.gpus), ("resources", resources.custom):
            self._options |= {name: value} if value else {}
        if resources.labels:  # older releases of Ray do not have it
            self._options["label_selector"] = dict(resources.labels)
        self._remote = ray.remote(_call)
        self._shared = None if stage.shared is None else ray.put(stage.shared)
        self._limits = limits_of(stage.where)
        self._chunks = _chunks(stage)
        self._more = True
        self._warned = False
        self._logged: set[str] = set()
        self._unlogged = 0
        self._waiting: dict[Any, int] = {}
        self._late: set[Any] = set()
        """Tasks of `_waiting` that are tried a second time."""
        self._lost_races: list[Any] = []
        """Tasks that were canceled because another attempt was faster, or that took too long."""
        self._names: dict[int, str] = {}
        """Names of failed units until their turn."""
        self._open: dict[int, _Chunk] = {}
        self._done: dict[int, Sent] = {}
        self._kept = self._ended_count = 0
        self._looked = 0.0
        total = len(stage.items) if isinstance(stage.items, Sized) else None
        self._units = units_of(stage.name, total=total, numbers=stage.where.numbers)
        self._slots = 0

    def results(self) -> Iterator[Any]:
        """Yield results in order."""
        with self._units, self._stage.steps.showing(self._units):
            yield from self._results()

    def _results(self) -> Iterator[Any]:
        again: deque[int] = deque()
        head, sent, resized, most, more = 0, 0, 0.0, 8, True
        while more or head < sent:
            if time.monotonic() - resized > _RESIZE:  # the cluster may grow
                resized, most = time.monotonic(), self._at_once()
            while len(self._waiting) - len(self._late) < most:
                if again and self._open[again[0]].begin <= time.monotonic():
                    self._submit(again.popleft())
                elif more and (sent < head + 4 * most or self._kept < _KEPT):
                    chunk = next(self._chunks, None)
                    if chunk is None:
                        self._more = more = False
                        break
                    self._open[sent] = chunk
                    self._submit(sent)
                    sent += 1
                else:
                    break
            for number, ended in self._ended():
                if ended is None:
                    again.append(number)
                else:
                    self._take(number, ended)
            if time.monotonic() - self._looked >= _LOOK:
                self._looked = time.monotonic()
                again.extend(self._end_overdue())
                self._name_late()
            while head in self._done:
                packed = self._done.pop(head)
                self._kept -= len(packed.data)
                yield from (outcome := packed.outcome()).results
                if outcome.error is not None:
                    if self._limits.max_failed is None:
                        raise outcome.error
                    yield Failed(self._names.pop(head), outcome.error)
                head += 1

    def _take(self, number: int, outcome: Sent) -> None:
        """Keep the outcome of a chunk until its turn; its other attempt, if there is one, is ended."""
        if not self._ended_count:
            self._stage.steps.note("")
        chunk = self._open.pop(number)
        self._done[number] = outcome
        self._kept += len(outcome.data)
        self._ended_count += 1
        self._units.outcome(number, outcome)
        for unit in range(len(outcome.counted)):
            self._stage.steps.finish(chunk.first + unit)
        if len(outcome.counted) < len(chunk.items):
            self._names[number] = name_of(chunk.items[len(outcome.counted)])
        self._cancel(chunk)

    def _cancel(self, chunk: _Chunk) -> None:
        """End the attempts of a chunk that are in progress."""
        chunk.held = time.monotonic() + _HELD if chunk.tasks else chunk.held
        for task in chunk.tasks:
            del self._waiting[task]
            self._late.discard(task)
            self._lost_races.append(task)
            with contextlib.suppress(Exception):  # Ray kills its process, even a stopped one
                self._ray.cancel(task, force=True)
        chunk.tasks.clear()

    def _end_overdue(self) -> list[int]:
        """End attempts that exceed the time limit; return the numbers of the chunks that run again."""
        limit, again = self._limits.timeout, list[int]()
        if limit is None:
            return again
        now, asked = self._units.now, 0
        for number, chunk in list(self._open.items()):
            if chunk.begun is None and chunk.tasks and asked < _BEGINS:
                asked += 1
                at = place_of(self._check, f"{number}-{min(chunk.tasks.values())}")
                if at is not None:
                    chunk.begun = now
                    self._units.start(number, at.node, at.pid)
            if chunk.begun is None or not chunk.tasks or now - chunk.begun < limit * len(chunk.items):
                continue
            self._cancel(chunk)
            error = self._limits.overdue(list(map(name_of, chunk.items)))
            if self._is_tried_again(number, error):
                again.append(number)
            else:
                self._take(number, replace(Sent.of(Outcome([], error)), node="", process=0))
        return again

    def _is_tried_again(self, number: int, error: Exception | None) -> bool:
        """Count a failed attempt of a chunk; return whether it runs again."""
        chunk = self._open[number]
        chunk.tries += 1
        again = self._limits.again(error, chunk.tries)
        if again:
            chunk.begun, names = None, ", ".join(map(name_of, chunk.items[:4]))
            logger.warning("%s: %s (tried again, %d of %d)", names, error, chunk.tries, self._limits.attempts)
            self._units.retry(number, str(error))
        return again

    def _is_held(self, number: int, error: Exception | None) -> bool:
        """Return whether another attempt, perhaps a stopped process, holds the output: it is ended, this runs again."""
        chunk = self._open[number]
        if not (isinstance(error, FeedmillError) and error.kind == "busy"):
            return False
        self._cancel(chunk)
        if time.monotonic() >= chunk.held:  # a process of another job holds it
            return False
        chunk.begin, chunk.begun, chunk.retried = time.monotonic() + 1.0, None, False
        self._units.retry(number, "another attempt held its output")
        return True

    def _submit(self, number: int, avoid: str | None = None) -> None:
        """Submit a chunk, preferably not on the node `avoid`."""
        chunk = self._open[number]
        memory = chunk.memory or self._memory
        options = {**self._options, **({} if memory is None else {"memory": memory})}
        if avoid is not None and (other := self._nodes.another(avoid, replace(self._needs, memory=memory))) is not None:
            options["scheduling_strategy"] = other
        name = f"{number}-{chunk.attempts}"
        more = f" and {len(chunk.items) - 1} more" if chunk.items[1:] else ""
        shown = f"{self._units.verb or 'feedmill'} {self._stage.name}: {name_of(chunk.items[0])}{more}"
        options["name"] = shown  # in Ray's dashboard
        task = self._remote.options(**options).remote(
            self._stage.function, self._shared, chunk.items, self._check, name
        )
        chunk.tasks[task], self._waiting[task] = chunk.attempts, number
        chunk.attempts += 1
        chunk.expected = self._ended_count + len(self._waiting) + _MARGIN
        if len(chunk.tasks) == 1:
            count = len(chunk.items)
            size = sum(map(self._stage.steps.size_of, range(chunk.first, chunk.first + count)))
            names = list(map(name_of, chunk.items[:4]))
            self._units.begin(number, size, number=chunk.first, count=count, names=names)
        else:
            self._units.second(number)

    def _ended(self) -> Iterator[tuple[int, Sent | None]]:
        """Wait for tasks; yield the numbers of chunks that have ended, with None for those to be submitted again."""
        ray = self._ray
        if not self._waiting:
            time.sleep(0.05)
            self._units.tick()
            return
        found, _ = ray.wait(list(self._waiting), num_returns=1, timeout=_LOOK)
        if found:  # and all others that have ended
            found, _ = ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)
        self._units.tick()
        for reference in found:
            number = self._waiting.pop(reference, None)
            if number is None:  # the other attempt has just ended
                continue
            self._late.discard(reference)
            del self._open[number].tasks[reference]
            try:
                outcome = ray.get(reference)
                self._warn(outcome.logged)
                chunk = self._open[number]
                if outcome.why is not None and self._is_held(number, outcome.outcome().error):
                    yield number, None
                    continue
                if outcome.why is not None and self._is_tried_again(number, outcome.outcome().error):
                    if not chunk.tasks:
                        yield number, None
                    continue
                yield number, outcome
            except ray.exceptions.RayError as error:
                if not self._open[number].tasks:  # no other attempt is in progress
                    sent = self._lost(self._open[number], error)
                    if sent is None:
                        self._units.retry(number, f"a worker was lost ({type(error).__name__})")
                    yield number, sent

    def _name_late(self) -> None:
        """Warn of units that take far longer than others, and try them once more, elsewhere."""
        self._units.start_oldest(max(1, self._slots))
        for number in self._units.oldest_keys(_PLACES):
            chunk = self._open.get(number)
            if chunk is not None and (at := place_of(self._check, f"{number}-{max(chunk.tasks.values(), default=0)}")):
                self._units.start(number, at.node, at.pid)
        idle, places = not self._more and len(self._waiting) - len(self._late) < self._slots, list[Place]()
        for number, age in self._units.late(_IDLE if idle else _AGAIN, _SOON):
            chunk = self._open[number]
            place = place_of(self._check, f"{number}-{max(chunk.tasks.values())}")
            if place is None and (age < _FREE if idle else age < _UNBEGUN or self._ended_count < chunk.expected):
                continue  # it waits for a free core, or for a worker to start
            where = " and no worker has begun it" if place is None else f" on node {place.node}, process {place.pid}"
            text = lateness(
                self._stage.name, list(map(name_of, chunk.items)), age, self._units.median_text(number), where
            )
            self._units.named(number)
            # What no worker has begun may wait for a stopped one, also the second time.
            if not chunk.retried or (place is None and len(chunk.tasks) < _BESIDE):
                chunk.retried = True
                self._late.update(chunk.tasks)
                self._submit(number, avoid=None if place is None else place.node_id)
                text += ": it is tried once more, and the first result is taken"
            if len(self._late) >= self._slots:  # then no core is free for the second attempts
                attempts = [(self._waiting[task], task) for task in self._late]
                found = (place_of(self._check, f"{n}-{self._open[n].tasks[task]}") for n, task in attempts)
                places = [each for each in found if each is not None]
                text += "; such units hold all cores of the cluster, and of these processes the stopped ones are killed"
            logger.warning("%s", text)
        self._nodes.kill(dict.fromkeys(places), stopped=True)

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

    def _lost(self, chunk: _Chunk, error: Exception) -> Sent | None:
        """Return None if the chunk must be submitted again, else its error."""
        exceptions = self._ray.exceptions
        chunk.tries += 1
        memory = isinstance(error, exceptions.OutOfMemoryError)
        chunk.begun = None
        most = self._limits.attempts or (_MEMORY_TRIES if memory else _TRIES)
        if isinstance(error, exceptions.RayTaskError) or chunk.tries >= most:
            return replace(Sent.of(Outcome([], self._poisoned(chunk, error, memory))), node="", process=0)
        if memory:  # at most what a node has: a task that fits nowhere would never start
            more = 2 * (chunk.memory or self._memory or 1 << 30)
            chunk.memory = min(more, self._nodes.largest_memory(self._needs)) or None
        chunk.begin = time.monotonic() + 0.5 * 2 ** (chunk.tries - 1) * random.SystemRandom().uniform(0.5, 1.5)
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
        slots = self._nodes.slots(self._needs)
        if not slots and not self._warned:
            logger.warning("%s: no node of the cluster has %s: waiting for one", self._stage.name, self._needs)
        self._warned = not slots
        self._slots = slots if self._max_tasks is None else min(slots, self._max_tasks)
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
        with contextlib.suppress(Exception):  # the cluster may be gone
            if self._waiting:
                stop_work(self._check)
            places = list[Place]()
            for task in (left := self._left(list(self._waiting), _SOFT)):
                number = self._waiting[task]
                place = place_of(self._check, f"{number}-{self._open[number].tasks[task]}")
                if place is None:  # no worker has begun it
                    self._ray.cancel(task, force=True)
                else:  # it is stopped, or within code that is not Python's
                    places.append(place)
            self._nodes.kill(places)
            self._left([*left, *self._lost_races], _END)
        self._waiting.clear()
        self._lost_races.clear()
        forget_places(self._check)

    def _left(self, tasks: list[Any], patience: float) -> list[Any]:
        """Return the tasks that have not ended after these seconds."""
        return self._ray.wait(tasks, num_returns=len(tasks), timeout=patience)[1] if tasks else []


def _chunks(stage: Stage) -> Iterator[_Chunk]:
    items, first = iter(stage.items), 0
    while taken := list(islice(items, max(1, stage.chunk))):
        yield _Chunk(first, taken)
        first += len(taken)


_passed: set[bytes] = set()
"""Checks that this worker has passed."""


def _call(function: Callable[..., Any], shared: Any, items: Sequence[Any], check: NodeCheck, name: str) -> Sent:
    """Run units in a worker of Ray; return their outcome.

    Args:
        name: of this attempt, among all of the stage.
    """
    with at_work(check, name):
        try:
            return Sent.of(_outcome(function, shared, items, check))
        except KeyboardInterrupt as stop:
            if any(frame.name == "<module>" for frame in traceback.extract_tb(stop.__traceback__)):
                os._exit(1)  # within an import, which a worker cannot begin once more
            raise


def _outcome(function: Callable[..., Any], shared: Any, items: Sequence[Any], check: NodeCheck) -> Outcome:
    if check.content not in _passed:
        found = complaint(check)
        if found is not None:
            return Outcome([], unfit(socket.gethostname(), found))
        _passed.add(check.content)
    set_variables(check.variables)
    with contextlib.suppress(OSError):
        os.chdir(check.here)  # relative paths are those of the driver
    engine.enter_unit()
    share()
    try:
        outcome = processes.outcome(function, shared, items)
        if isinstance(outcome.error, StorageError | NotFound):  # of this node alone, perhaps: its disk is full
            outcome.error.what += f" (on the node {socket.gethostname()})"
        return outcome
    except SystemExit as error:
        return Outcome([], FeedmillError(f"a unit ended its process ({error})", kind="worker-error"))
