"""Prefetch batches in threads or processes, or make them in the loop: the same batches in the same order.

`Workers` has the options that you pass to a `Loader`; `make_ahead` runs them.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

from feedmill.errors import ConfigError
from feedmill.jobs.cores import available_cores
from feedmill.jobs.pickling import portable_or
from feedmill.jobs.policy import whole
from feedmill.jobs.processes import START_TIMEOUT
from feedmill.jobs.run import Policy, run
from feedmill.jobs.shared_memory import Parcel, Shelf, address, pack
from feedmill.jobs.threads import ordered_map
from feedmill.loading.batches import BatchMaker, Made
from feedmill.loading.bundles import Bundles
from feedmill.loading.groups import GroupMaker
from feedmill.loading.pace import Pace, paced
from feedmill.planning.dealing.grid import Step
from feedmill.storage.fetching.fetch import check_stop, current_stop

_MOST = 16
_PRELOAD = ("feedmill.loading.workers", "feedmill.samples.open", "feedmill.planning.recipes.compile")

Make = BatchMaker | GroupMaker


@dataclass(frozen=True, slots=True)
class Workers:
    """The options of prefetching: workers, threads or processes, and batches in flight.

    Args:
        count: number of threads or processes; with 0, each batch is made when it is requested.
        processes: use processes instead of threads, for transforms that keep Python's interpreter busy. The plan (that
            of a recipe is compiled again in each), `transform` and `collate` are pickled: they must be functions at the
            top level of a module. Arrays are returned in anonymous shared memory.
        restarts: maximum number of restarts per iteration after a process died or hung. Unfinished batches are made
            again, so the stream does not change.
        timeout: seconds after which the worker of the next batch counts as hung; None: never. Requires processes,
            because a thread cannot be ended.
        start_timeout: seconds that a process has to import the main program, if `transform` or `collate` is defined
            there.
        adapt: make batches in the loop while that is measured to be faster than workers, as it is for batches that take
            less time than handing them over; see `feedmill.loading.pace`. None: only with threads, because processes
            may be meant to keep the transform out of this process.

    Raises:
        ConfigError: an invalid number, or options that exclude each other.
    """

    count: int = 0
    processes: bool = False
    restarts: int = 3
    timeout: float | None = None
    adapt: bool | None = None
    start_timeout: float = START_TIMEOUT

    def __post_init__(self) -> None:
        seconds = (self.start_timeout, 1 if self.timeout is None else self.timeout)
        if self.count < 0 or self.restarts < 0 or min(seconds) <= 0:
            raise ConfigError(
                f"workers={self.count}, restarts={self.restarts}, timeout={self.timeout},"
                f" start_timeout={self.start_timeout} are invalid",
                fix="Give whole numbers of at least 0, and a timeout above 0.",
            )
        if self.processes and self.count == 0:
            raise ConfigError("processes=True requires workers, and the count is 0", fix="Give a count of at least 1.")
        if self.timeout is not None and not self.processes:
            raise ConfigError(
                "a timeout requires processes, because a thread that hangs cannot be ended",
                fix="Add processes=True, or omit the timeout.",
            )
        if self.timeout is not None and self.adapt:
            raise ConfigError(
                "a timeout cannot be combined with adapt=True, because the training loop cannot be ended if it hangs",
                fix="Omit one of them.",
            )

    @property
    def adapts(self) -> bool:
        """Return whether batches may be made in the loop."""
        return not self.processes if self.adapt is None else self.adapt


def chosen(workers: int | str | Workers, make: Make) -> Workers:
    """Return the `Workers` of a loader's argument `workers`.

    ``"auto"``: one per core of this process (the cores of the machine divided by its ranks), minus one for the training
    loop. Processes if the transform or collate function is user code that can be pickled; otherwise threads, because
    reading and decoding release the interpreter.

    Raises:
        ConfigError: the value is not a number, ``"auto"`` or a `Workers`.
    """
    if isinstance(workers, Workers):
        return workers
    if not isinstance(workers, str):
        return Workers(whole("workers", workers))
    if workers != "auto":
        raise ConfigError(f"workers={workers!r} is unknown", fix="Give a number, 'auto', or a feedmill.Workers.")
    local_ranks = 1
    with suppress(ValueError):
        local_ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    count = max(1, min(_MOST, available_cores() // local_ranks - 1))
    if not make.has_user_code:
        return Workers(count)
    try:
        pickle.dumps(make)
    except Exception:  # user objects may raise any error when pickled
        return Workers(count)
    return Workers(count, processes=True, adapt=True)


def make_ahead(
    make: Make,
    steps: Iterable[Step],
    workers: Workers,
    prefetch: int,
    pace: Pace | None = None,
    ready: Callable[[], int] | None = None,
) -> Generator[Made, None, None]:
    """Return a generator of the batches of steps, in order. Its threads or processes end with it.

    Args:
        make: makes a batch.
        steps: the steps, in order.
        workers: the options of the workers.
        prefetch: maximum number of batches per worker that are in progress or ready.
        pace: decides whether batches are made in the loop; None: always by the workers.
        ready: returns how many of the next steps can be taken without waiting; None: all.

    Raises:
        FeedmillError: the error of a batch, at its position; or workers died or hung too often.
    """
    in_flight = workers.count * prefetch
    if workers.count == 0:
        return _in_loop(make, steps, ready)
    ahead = partial(_in_processes if workers.processes else _in_threads, make, workers, in_flight)
    if pace is None or not workers.adapts:
        return cast("Generator[Made, None, None]", ahead(steps))
    return paced(make, steps, ahead, pace, ready)


def _in_loop(make: Make, steps: Iterable[Step], ready: Callable[[], int] | None) -> Generator[Made, None, None]:
    yield from Bundles(make, steps, ready)


def _in_threads(
    make: Make, workers: Workers, in_flight: int, steps: Iterable[Step | None]
) -> Generator[Made | None, None, None]:
    def made(step: Step | None) -> Made | None:
        return None if step is None else make(step)

    return ordered_map(made, steps, workers=workers.count, in_flight=in_flight, interrupt=current_stop().set)


def _in_processes(
    make: Make, workers: Workers, in_flight: int, steps: Iterable[Step | None]
) -> Generator[Made | None, None, None]:
    shelf, files = Shelf(), deque[int | None]()

    def tasks() -> Iterator[tuple[Step | None, str | None]]:
        for step in steps:
            files.append(None if step is None else shelf.take())
            yield step, address(files[-1])

    policy = Policy(
        make,
        in_flight,
        workers.restarts,
        workers.timeout,
        workers.start_timeout,
        always_processes=True,
        fork=False,
        check=check_stop,
    )
    try:
        parcels = run(_make_parcel, tasks(), workers=workers.count, preload=_PRELOAD, policy=policy)
        with closing(parcels):
            for parcel in parcels:
                file = files.popleft()
                yield None if parcel is None else shelf.unpack(parcel, file)
    finally:
        for file in files:
            shelf.give_back(file)
        shelf.close()


def _make_parcel(make: Make, task: tuple[Step | None, str | None]) -> Parcel | None:
    step, file = task
    if step is None:
        return None
    made = make(step)
    fix = "Return plain data and arrays from the transform and collate, or use threads."
    with portable_or("a batch cannot be sent from a worker process", fix):
        return pack(made, file)
