"""Engines: where the units of a stage run.

A stage is a function over units whose outputs are files in a store that every node reaches; what it returns are small
facts. A unit finds its own finished output and returns its facts again, so any engine may finish the work of another,
and the output is the same on all of them.

Without an engine, `feedmill.jobs.run` uses processes of this machine. In a ``with`` block of an engine it passes the
stages of the verbs called there to that engine. Runs without a stage name (small ones that read or look up) stay here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import xxhash

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.jobs.main_program import START_TIMEOUT
from feedmill.jobs.policy import check_budget
from feedmill.jobs.progress import Steps

if TYPE_CHECKING:  # storage imports numpy, whose threads would keep workers from being forked
    from feedmill.storage import Store

_SHARED = "_FEEDMILL_SHARED_WORK"
"""Variable that tells worker processes, which inherit the environment."""
PARTS = "parts"
"""Folder in a job's folder for the marks of finished parts."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings of worker processes.

    Attributes:
        shared: sent once to each worker; `function` gets it as its first argument, before the item.
        in_flight: chunks in progress or waiting to be taken, at least 1; None for four per worker.
        restarts: how often all workers are restarted after one died or hung; unfinished items are retried.
        timeout: seconds that the next result in order may take before its worker counts as hung; None for no limit.
        start_timeout: seconds that a worker has to import the main program, if work is defined in it.
        always_processes: use processes also for one worker or one item.
        fork: whether workers may be forked from this process if it has a single thread.
        check: called every second during the wait for a worker; what it raises ends the workers.
    """

    shared: Any = None
    in_flight: int | None = None
    restarts: int = 0
    timeout: float | None = None
    start_timeout: float = START_TIMEOUT
    always_processes: bool = False
    fork: bool = True
    check: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Where:
    """What a verb says of a stage that an engine may run.

    Attributes:
        stage: one word for messages, such as ``tokenizing``.
        key: identifies the stage of this job: anything on which its units depend.
        place: folder of the job that all nodes reach; None for a stage without output.
        numbers: number of each item among all units of the stage; None if the items are all units, in order. Parts of a
            job array divide the units by it.
        record: keeps the result of a unit that has no file of its own, for the run that publishes.
        last: whether the verb publishes its output after this stage.
        lasting: whether a unit finds its result again. Otherwise each part of a job array runs all units.
        copies: whether units leave copies of remote inputs in the cache of their machine, for each other.
    """

    stage: str
    key: str
    place: Store | None = field(repr=False)
    numbers: Sequence[int] | None = None
    record: Callable[[Any], None] | None = field(default=None, repr=False)
    last: bool = True
    lasting: bool = True
    copies: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage with its units.

    Attributes:
        where: what the verb says of it.
        function, items, shared, chunk: see `feedmill.jobs.run.run`.
        local: runs items on processes of this machine, in order; ``progress`` as for `feedmill.jobs.run.run`.
        steps: the items as steps of the bar of the run. The engine says which are finished.
    """

    where: Where
    function: Callable[..., Any]
    items: Iterable[Any]
    local: Callable[..., Iterator[Any]]
    shared: Any = None
    chunk: int = 1
    steps: Steps = field(default_factory=Steps, repr=False)

    @property
    def name(self) -> str:
        """Name of the stage."""
        return self.where.stage

    @property
    def key(self) -> str:
        """Return a hash that identifies the stage of this job."""
        return key_of(self.where.stage, self.where.key)


def key_of(*words: str) -> str:
    """Return a hash of words."""
    return xxhash.xxh3_64_hexdigest("\0".join(words).encode("utf-8", "surrogatepass"))


class StageUnfinished(BaseException):
    """The units of one part are finished; other parts, or ``--finish``, do the rest.

    Not an `Exception`: it ends a verb without an error, and its work is kept.

    Attributes:
        stage: name of the stage.
        units: number of units of this part.
        finished, parts: number of finished parts, and of all.
        last: whether no stage of the verb is left for the parts.
    """

    def __init__(self, stage: str, units: int, finished: int, parts: int, last: bool) -> None:
        super().__init__(f"{stage}: {finished} of {parts} parts are finished")
        self.stage, self.units, self.finished, self.parts, self.last = stage, units, finished, parts, last


@dataclass(frozen=True, slots=True)
class Limits:
    """What units of stages may take, on any engine: a context manager for the verbs that are called in its block.

    Bad inputs that ``on_error="skip"`` leaves out are results of their units, and no failed units.

    Attributes:
        timeout: seconds that a unit may take in its worker, which is then ended; None for no limit.
        attempts: how often a unit is tried that fails, loses its worker or exceeds the timeout. Errors of inputs and
            options are final. By default, only lost workers are replaced, on Ray.
        max_failed: error budget of failed units (see `feedmill.jobs.policy`): the stage does all other units before it
            ends with `UnitsFailed`. None to end at the first.

    Raises:
        ConfigError: a limit is invalid.
    """

    timeout: float | None = None
    attempts: int | None = None
    max_failed: float | None = None

    def __post_init__(self) -> None:
        if (self.timeout is not None and self.timeout <= 0) or (self.attempts is not None and self.attempts < 1):
            raise ConfigError(
                f"a time limit of {self.timeout} s with {self.attempts} attempts is invalid",
                kind="bad-option",
                fix="Use a time above 0, and at least one attempt.",
            )
        check_budget(self.max_failed, "--max-failed-units")

    def __bool__(self) -> bool:
        return self != Limits()

    def again(self, error: BaseException | None, tries: int) -> bool:
        """Return whether a unit that has failed `tries` times runs again; its error is None if its worker was lost."""
        return tries < (self.attempts or 1) and not isinstance(error, DataError | ConfigError)

    def overdue(self, names: Sequence[str]) -> FeedmillError:
        """Return the error of a unit that took too long."""
        return FeedmillError(
            f"it exceeded its time limit of {self.timeout:g} s: {', '.join(names[:4])}",
            kind="worker-died",
            fix="Inspect that input, or raise --unit-timeout. Finished work is kept.",
        )

    def __enter__(self) -> Self:
        _limits.set((*_limits.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        _limits.set(_limits.get()[:-1])


_limits: ContextVar[tuple[Limits, ...]] = ContextVar("feedmill-limits", default=())


def limits_of(where: Where | None) -> Limits:
    """Return the limits of a stage that is run here; none for what is no stage, and inside a unit."""
    return limits_given() if where is not None and not is_inside_unit() else Limits()


def limits_given() -> Limits:
    """Return the limits of the innermost block."""
    return _limits.get()[-1] if _limits.get() else Limits()


def in_units() -> bool:
    """Return whether verbs called here run as whole units of stages: on an engine, or as their limits are for units."""
    return current() is not None or bool(limits_given())


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands for the result of a unit that has failed for good.

    Attributes:
        name: what it works on.
        error: of its last attempt.
    """

    name: str
    error: Exception


class UnitsFailed(BaseException):
    """All units of a stage have ended, and some have failed: the output is not published, and its work is kept.

    The same job runs only the failed units again. Not an `Exception`, as `StageUnfinished`.

    Attributes:
        stage: name of the stage.
        failed: its failed units.
        finished: number of units that are finished.
    """

    def __init__(self, stage: str, failed: Sequence[Failed], finished: int) -> None:
        super().__init__(f"{stage}: {len(failed):,} of {len(failed) + finished:,} units have failed")
        self.stage, self.failed, self.finished = stage, failed, finished


class Engine(ABC):
    """Where stages run; a context manager. `name` is the value of ``--engine``.

    Args:
        work: path or URL of a folder, which all machines reach, for the unfinished work on outputs in object stores; by
            default it is beside the output.
    """

    name: ClassVar[str]
    alone: ClassVar[bool] = True
    """Whether one driver at a time works on an output. Parts of a job array work side by side."""

    def __init__(self, work: str | None = None) -> None:
        self.work = None if work is None else work if "://" in work else os.path.abspath(work)
        self._token: Token[tuple[int, Engine] | None] | None = None

    @abstractmethod
    def run(self, stage: Stage) -> Iterator[Any]:
        """Yield the result of each unit, in order. An exception of a unit is raised after the results before it."""

    def settings(self) -> dict[str, Any]:
        """Return arguments for an engine like this one in another process of this machine."""
        return {"work": self.work}

    def __enter__(self) -> Self:
        if current() is not None:
            raise ConfigError("an engine is in use already", kind="busy", fix="Use one engine at a time.")
        self._token = _current.set((os.getpid(), self))
        share()
        return self

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None
            os.environ.pop(_SHARED, None)


_current: ContextVar[tuple[int, Engine] | None] = ContextVar("feedmill-engine", default=None)
"""The engine in use, and the process that set it: forked workers do not pass their own units on."""


def current() -> Engine | None:
    """Return the engine in use; None for processes of this machine."""
    found = _current.get()
    return found[1] if found is not None and found[0] == os.getpid() else None


@contextlib.contextmanager
def without_engine() -> Iterator[None]:
    """Make the verbs called in a block use processes of this machine, also inside the block of an engine."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def share() -> None:
    """Note that other machines read the files of this process and its workers."""
    os.environ[_SHARED] = "1"


def is_shared() -> bool:
    """Return whether this process, or the one whose units it runs, uses an engine: other machines read its files."""
    return _SHARED in os.environ


def part_name() -> str:
    """Return the suffix of files of this part of a job array; empty for a process that works alone."""
    engine = current()
    return "" if engine is None or engine.alone else f"-{getattr(engine, 'part', 0)}"


def is_alone() -> bool:
    """Return whether this process works on an output alone; otherwise other parts of a job array may write to it."""
    engine = current()
    return engine is None or engine.alone


def shared_work() -> str | None:
    """Return the path or URL of the folder for unfinished work on outputs in object stores.

    It is empty if the work is beside the output, and None without an engine: then it is on this machine's disk.
    """
    engine = current()
    return None if engine is None else engine.work or ""


_inside = False


def enter_unit() -> None:
    """Note that this process is a worker of an engine: units in it run one by one, without processes of their own."""
    global _inside
    _inside = True


def is_inside_unit() -> bool:
    """Return whether this process is a worker, which may not have workers itself."""
    process = sys.modules.get("multiprocessing.process")  # without this module it is no process of a pool
    return _inside or (process is not None and process.current_process().daemon)
