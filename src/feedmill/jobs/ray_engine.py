"""The engine of Ray clusters: ``--engine ray`` runs units as tasks, and gets only their facts back.

Units run as plain tasks with declared processors and memory, in processes that Ray keeps warm. Ray's own retries are
off: a unit that was lost with its worker or node is submitted again at once, and one that is lost again and again is
named. An exception of a unit comes back as data, so that it is the same error as on one machine. Nothing of the data
goes through Ray's object store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from typing import Any

from feedmill import __version__
from feedmill.errors import ConfigError, FeedmillError, MissingExtra, StorageError
from feedmill.jobs import processes
from feedmill.jobs.engine import Engine, Stage, share
from feedmill.jobs.processes import Outcome, name_of
from feedmill.storage import LocalStore, Store, open_store
from feedmill.storage.cache.copies import forget_copies
from feedmill.storage.staging import staged

logger = logging.getLogger("feedmill")

_PASSED = ("FEEDMILL_", "_FEEDMILL_", "AWS_", "GOOGLE_", "AZURE_", "HF_", "MSC_")
"""Beginnings of the names of variables that tasks get from the driver; a node's own processes do not have them."""
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # would copy the environment of `uv run` to each node
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # lines that Ray would print on stdout, among the JSON of a verb
}
"""Settings of Ray in this process, unless the user has set them."""
_LOOK = 1.0  # seconds between looks at Ctrl-C and at the size of the cluster
_RESIZE = 10.0
_PATIENCE = 10.0
_TRIES = 5
_MEMORY_TRIES = 3


@dataclass(slots=True)
class _Chunk:
    """Units of one task, and what happened to it so far."""

    items: Sequence[Any]
    tries: int = 0
    memory: int | None = None
    begin: float = 0.0  # not before this time


class RayEngine(Engine):
    """Engine of a Ray cluster that is running.

    Args:
        address: ``auto`` for the cluster of this machine, or of ``RAY_ADDRESS``; ``host:port``; ``ray://host:port``.
        max_tasks: tasks at the same time; None for what the cluster has processors for.
        cpus: processors of a task.
        memory: bytes that a task needs at most, for Ray's scheduler; None for no declaration.
        work: see `Engine`.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: there is no cluster at the address, or a node cannot do the work.
    """

    name = "ray"

    def __init__(
        self,
        address: str = "auto",
        *,
        max_tasks: int | None = None,
        cpus: float = 1.0,
        memory: int | None = None,
        work: str | None = None,
    ) -> None:
        super().__init__(work)
        if max_tasks is not None and max_tasks < 1:
            raise ConfigError(f"--max-tasks {max_tasks} is invalid", fix="Use at least 1.")
        self.address, self.max_tasks, self.cpus, self.memory = address, max_tasks, cpus, memory
        self._ray: Any = None
        self._ours = False
        self._checked: set[tuple[str, str]] = set()
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
            self._forget_copies()
        if self._ours:
            self._ours = False
            self._ray.shutdown()

    def _connect(self) -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            import ray
        except ImportError:
            raise MissingExtra("--engine ray needs Ray, which is not installed", "ray") from None
        self._ray = ray
        if ray.is_initialized():
            return
        reached = self._reach()
        variables = {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
        before = _handlers()
        try:
            ray.init(
                address=self.address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                runtime_env={"env_vars": variables} if variables else None,
            )
        except ray.exceptions.AuthenticationError as error:
            raise self._not_accepted(error) from None
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise (self._not_accepted(error) if reached else self._no_cluster(error)) from None
        finally:
            for number, handler in before.items():  # Ray's own prints a trace of C++ and skips all cleaning up
                signal.signal(number, handler)
        self._ours = True

    def _reach(self) -> bool:
        """Return whether something listens at the address; False if it names no port.

        Raises:
            ConfigError: nothing does. Ray itself would try for minutes.
        """
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():
            try:
                socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
            except OSError as error:
                raise self._no_cluster(error) from None
            return True
        return False

    def _not_accepted(self, error: BaseException) -> ConfigError:
        return ConfigError(
            f"the Ray cluster at {self.address!r} did not accept this machine ({_first_line(error)})",
            kind="no-cluster",
            fix="Use the versions of Ray and Python of the cluster. If it requires a token, set RAY_AUTH_MODE=token,"
            " and RAY_AUTH_TOKEN_PATH to a file with the token.",
        )

    def _no_cluster(self, error: BaseException) -> ConfigError:
        return ConfigError(
            f"there is no Ray cluster at {self.address!r} ({_first_line(error)})",
            kind="no-cluster",
            fix="Start one with 'ray start --head', give its --address, or use --engine local.",
        )

    def run(self, stage: Stage) -> Iterator[Any]:
        """Yield the result of each unit, in order; see `Engine.run`."""
        place, content = stage.where.place, secrets.token_bytes(16)
        self._copied = self._copied or not (place is None or place.is_local)
        with nullcontext("") if place is None else _written(place, content) as name:
            check = _Check(os.getcwd(), "" if place is None else place.url, name, content, versions())
            self._check_nodes(check)
            run = _Run(self._ray, stage, self._options(), self._at_once, check)
            try:
                yield from run.results()
            finally:
                run.stop()

    def _options(self) -> dict[str, Any]:
        options = {"num_cpus": self.cpus, "max_retries": 0, "retry_exceptions": False, "scheduling_strategy": "SPREAD"}
        return options | ({} if self.memory is None else {"memory": self.memory})

    def _at_once(self) -> int:
        """Return the number of tasks to hand to Ray: more than can run, so that none waits for this machine."""
        resources = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        fit = [r for r in resources if r.get("CPU", 0) >= self.cpus and r.get("memory", 0) >= (self.memory or 0)]
        if not fit:
            memory = f" and {self.memory / 2**30:.1f} GiB of memory" if self.memory else ""
            logger.warning("no node of the cluster has %g free cores%s for a unit: waiting for one", self.cpus, memory)
        slots = int(sum(r["CPU"] for r in fit) / self.cpus)
        most = min(max(8, 3 * slots), 4096)
        return most if self.max_tasks is None else min(most, self.max_tasks)

    def _check_nodes(self, check: _Check) -> None:
        """Raise `ConfigError` if a node does not pass. Nodes that join later are checked by their first unit."""
        ray = self._ray
        names = self._nodes()
        errors = ray.exceptions
        lost = (errors.NodeDiedError, errors.TaskUnschedulableError, errors.WorkerCrashedError)
        nodes = [node for node in names if (node, check.folder) not in self._checked]
        for node, answer in self._on_nodes(nodes, _complaint, check).items():
            try:
                complaint = ray.get(answer, timeout=120)
            except lost:
                continue  # the node is gone, or is checked by its first unit
            except Exception as error:  # the package is absent, or does not fit
                complaint = f"it cannot run Feedmill ({_first_line(error)})"
            if complaint is not None:
                raise _unfit(names[node], complaint)
            self._checked.add((node, check.folder))

    def _nodes(self) -> dict[str, str]:
        """Return the names of the nodes that run units, by their ids."""
        nodes = [n for n in self._ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) > 0]
        return {n["NodeID"]: n["NodeManagerHostname"] for n in nodes}

    def _on_nodes(self, nodes: Iterable[str], function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Call a function on each of these nodes; return the references of the answers."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task, answers = self._ray.remote(function), {}
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            options = task.options(num_cpus=0, max_retries=0, scheduling_strategy=there)
            answers[node] = options.remote(*arguments)
        return answers

    def _forget_copies(self) -> None:
        """Remove the copies of unfinished work on all nodes. What a lost node has is evicted from its cache later."""
        with contextlib.suppress(Exception):
            answers = list(self._on_nodes(self._nodes(), forget_copies).values())
            self._ray.wait(answers, num_returns=len(answers), timeout=_PATIENCE)


@dataclass(frozen=True, slots=True)
class _Check:
    """What a node must have and see: the working directory, a file in the work folder, and versions."""

    here: str
    folder: str
    name: str
    content: bytes
    versions: dict[str, str]


def _unfit(node: str, what: str) -> ConfigError:
    return ConfigError(
        f"node {node} cannot do the work: {what}",
        kind="unfit-node",
        fix="Install the same versions on all nodes, and keep inputs and outputs where all nodes see them by one path.",
    )


@contextlib.contextmanager
def _written(place: Store, content: bytes) -> Iterator[str]:
    """Write a file for the duration of the block, and yield its name. A later process sweeps that of a killed one."""
    if isinstance(place, LocalStore):
        place.make_folder()
        with staged(os.path.join(place.root, "node-check")) as path:
            with open(path, "wb") as f:
                f.write(content)
            yield os.path.basename(path)
        return
    name = f"node-check-{secrets.token_hex(8)}"
    place.write_bytes(name, content)
    try:
        yield name
    finally:
        place.delete(name)


class _Run:
    """Tasks of one stage: submitted in order, a bounded number at a time, with results in order."""

    def __init__(
        self, ray: Any, stage: Stage, options: dict[str, Any], at_once: Callable[[], int], check: _Check
    ) -> None:
        self._ray, self._stage, self._at_once, self._check = ray, stage, at_once, check
        self._remote, self._options = ray.remote(_call), options
        self._shared = None if stage.shared is None else ray.put(stage.shared)
        self._chunks = _chunks(stage)
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
        options = self._options if chunk.memory is None else {**self._options, "memory": chunk.memory}
        task = self._remote.options(**options)
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
                yield number, ray.get(reference)
            except ray.exceptions.RayError as error:
                yield number, self._lost(self._open[number], error)

    def _lost(self, chunk: _Chunk, error: Exception) -> Outcome | None:
        """Return None if the chunk must be submitted again, else its error."""
        exceptions = self._ray.exceptions
        chunk.tries += 1
        memory = isinstance(error, exceptions.OutOfMemoryError)
        most = _MEMORY_TRIES if memory else _TRIES
        if isinstance(error, exceptions.RayTaskError) or chunk.tries >= most:
            return Outcome([], self._poisoned(chunk, error, memory))
        if memory:  # no more than a node has: a task that fits nowhere would never start
            chunk.memory = min(2 * (chunk.memory or self._options.get("memory") or 1 << 30), self._largest()) or None
        chunk.begin = time.monotonic() + 0.5 * 2 ** (chunk.tries - 1) * random.uniform(0.5, 1.5)
        logger.warning(
            "%s: a worker was lost (%s); its unit runs again (%d of %d)",
            self._stage.name,
            type(error).__name__,
            chunk.tries,
            most - 1,
        )
        return None

    def _largest(self) -> int:
        """Return the memory in bytes of the largest node that has processors for a unit."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return max((int(r.get("memory", 0)) for r in nodes if r.get("CPU", 0) >= self._options["num_cpus"]), default=0)

    def _poisoned(self, chunk: _Chunk, error: Exception, memory: bool) -> FeedmillError:
        names = [name_of(item) for item in chunk.items]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        fix = (
            "Declare more --task-memory, or use machines with more memory."
            if memory
            else "Run it with --engine local --workers 1 to see what happens."
        )
        return FeedmillError(
            f"a unit of {self._stage.name} ended its worker {chunk.tries} times ({_first_line(error)}): {shown}",
            kind="worker-died",
            fix=f"{fix} Finished work is kept.",
        )

    def stop(self) -> None:
        """End the tasks that still run."""
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


def _call(function: Callable[..., Any], shared: Any, items: Sequence[Any], check: _Check) -> Outcome:
    """Run units in a worker of Ray."""
    if check.content not in _passed:
        complaint = _complaint(check)
        if complaint is not None:
            return Outcome([], _unfit(socket.gethostname(), complaint))
        _passed.add(check.content)
    with contextlib.suppress(OSError):
        os.chdir(check.here)  # relative paths are those of the driver
    processes.enter_unit()
    share()
    try:
        outcome = processes.outcome(function, shared, items)
        if isinstance(outcome.error, StorageError):  # of this node alone, perhaps: its disk is full
            outcome.error.what += f" (on the node {socket.gethostname()})"
        return outcome
    except SystemExit as error:
        return Outcome([], FeedmillError(f"a unit ended its process ({error})", kind="worker-error"))


def _complaint(check: _Check) -> str | None:
    """Return what this node lacks; None if nothing."""
    mine = versions()
    other = {name: version for name, version in mine.items() if check.versions.get(name, version) != version}
    if other:
        name, version = min(other.items())
        return f"it has {name} {version}, and this machine {check.versions[name]}"
    content = None
    with contextlib.suppress(FeedmillError):
        content = open_store(check.folder).read(check.name) if check.folder else check.content
    return None if content == check.content else f"it does not see {check.folder}"


def versions() -> dict[str, str]:
    """Return the versions that decide the bytes of outputs."""
    import sys

    found = {"feedmill": __version__, "python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
    for name in ("numpy", "tokenizers", "fastokens", "pyarrow"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _handlers() -> dict[int, Any]:
    """Return the handlers of SIGTERM and SIGINT, if this thread can restore them."""
    import threading

    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
