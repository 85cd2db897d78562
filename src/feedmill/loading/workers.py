"""Prefetch batches in threads or processes, or make them in the loop: the same batches in the same order.

`Workers` has the options that you pass to a `Loader`; `make_ahead` runs them. `Bundles` makes batches in the training
loop's thread, and `Pace` chooses between the two by measuring which is faster.

*Bundles.* Finding samples in indices, files and fetched ranges takes nearly the same time for 64 samples as for 256,
and for small samples it takes most of the time of a batch. So the reads of up to `MOST_TOGETHER` batches are one call
if it takes at most about `SECONDS_TOGETHER` without what other programs on the same cores add. Everything after reading
is done when the batch is requested: the transform, collating, errors. Batches that need none of it, such as windows of
tokens or undecoded parts, are made together as well, of columns up to `MOST_SMALL` of them. If the joint read fails,
each batch is read on its own, so that the error is raised at its sample. A batch never waits for another one's bytes:
steps are joined only if the iterator has them ready, and only while no batch waits for remote data.

*Pace*, with ``Workers(adapt=True)``, the default for threads. Handing a batch from a thread to the loop costs two
switches between threads, each of which waits for a core and for the interpreter. If making a batch takes less time than
that, or only runs Python code, the loop gets it sooner by making it. Which case applies depends on the data, the
machine, and the time that the loop itself takes, so it is measured:

- Workers begin. They keep making the batches while the loop spends little of its time waiting.
- If the loop spends most of its time waiting, it makes a few batches as a trial, and the faster of the two modes stays.
  The first trial waits until measurements agree: what is loaded, opened and requested first makes them differ.
- The other mode is tried again later, at intervals that grow while the result stays the same.
- Measurements in which batches waited for remote data say nothing about either mode, and are omitted.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from feedmill.errors import ConfigError, integer
from feedmill.jobs.main_program import START_TIMEOUT
from feedmill.jobs.resources import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.loading.batches import BatchMaker, MadeBatch, Read
from feedmill.loading.groups import GroupMaker
from feedmill.planning.dealing.grid import Step
from feedmill.storage.fetching.fetch import check_stop, current_stop

if TYPE_CHECKING:
    from feedmill.jobs.shared_memory import Parcel

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
            less time than handing them over; see `feedmill.loading.workers`. None: only with threads, because processes
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
        return Workers(integer("workers", workers))
    if workers != "auto":
        raise ConfigError(f"workers={workers!r} is unknown", fix="Give a number, 'auto', or a feedmill.Workers.")
    local_ranks = 1
    with suppress(ValueError):
        local_ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    count = max(1, min(_MOST, available_cores() // local_ranks - 1))
    if not make.has_user_code:
        return Workers(count)
    import pickle

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
) -> Generator[MadeBatch, None, None]:
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
        return cast("Generator[MadeBatch, None, None]", ahead(steps))
    return paced(make, steps, ahead, pace, ready)


def _in_loop(make: Make, steps: Iterable[Step], ready: Callable[[], int] | None) -> Generator[MadeBatch, None, None]:
    yield from Bundles(make, steps, ready)


def _in_threads(
    make: Make, workers: Workers, in_flight: int, steps: Iterable[Step | None]
) -> Generator[MadeBatch | None, None, None]:
    def made(step: Step | None) -> MadeBatch | None:
        return None if step is None else make(step)

    return ordered_map(made, steps, workers=workers.count, in_flight=in_flight, interrupt=current_stop().set)


def _in_processes(
    make: Make, workers: Workers, in_flight: int, steps: Iterable[Step | None]
) -> Generator[MadeBatch | None, None, None]:
    from feedmill.jobs.shared_memory import Shelf, address

    shelf, files = Shelf(), deque[int | None]()

    def tasks() -> Iterator[tuple[Step | None, str | None]]:
        for step in steps:
            files.append(None if step is None else shelf.take())
            yield step, address(files[-1])

    from feedmill.jobs.engine import Policy
    from feedmill.jobs.run import run

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
    from feedmill.jobs.main_program import portable_or

    with portable_or("a batch cannot be sent from a worker process", fix):
        from feedmill.jobs.shared_memory import pack

        return pack(made, file)


MOST_TOGETHER, SECONDS_TOGETHER = 4, 0.004
"""Maximum number of batches that are read at once, and seconds of `Work` that this may take."""
MOST_SMALL, BYTES_SMALL = 128, 1 << 22
"""Maximum number of small batches that are made at once, and bytes of their arrays: one of them keeps the memory of all
of them."""
PAUSE = 64
"""Batches that are read one by one after a joint read failed; four times as many after each further one."""
_LATE = 0.1
"""Share of reading that is waiting for remote data, from which on batches are read one by one."""


class Bundles(Iterator[MadeBatch]):
    """Iterator over the batches of steps, in order, each made when it is requested.

    Args:
        make: makes a batch.
        steps: the steps, in order.
        ready: returns how many of the next steps can be taken without waiting; None: all.
    """

    def __init__(
        self, make: BatchMaker | GroupMaker, steps: Iterable[Step], ready: Callable[[], int] | None = None
    ) -> None:
        self._make, self._steps, self._ready = make, iter(steps), ready
        self._together = getattr(self._steps, "together", None) if ready is None else None
        self._begun: deque[tuple[Step, Read | None]] = deque()
        self._error: BaseException | None = None
        self._size, self._pause = 1, 1  # reading the first batch includes opening its files
        self._patience = PAUSE

    @property
    def begun(self) -> bool:
        """Return whether steps were taken whose batches, or error, have not been returned."""
        return bool(self._begun) or self._error is not None

    def __next__(self) -> MadeBatch:
        """Return the next batch. Raises as the maker does, and what the iterator of steps raises, at its step."""
        if not self._begun and (made := self._begin()) is not None:
            self._adapt(made, 1 + len(made.rest))
            return made
        step, read = self._begun.popleft()
        try:
            made = self._make(step) if read is None else self._make(step, read)  # type: ignore[call-arg]
        except StopIteration as error:  # it would end the iteration without an error
            raise RuntimeError("making a batch raised StopIteration") from error
        self._adapt(made)
        return made

    def _begin(self) -> MadeBatch | None:
        """Take the next steps, and read them together; return their batches if these are made already."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        steps = self._taken()
        reads: Sequence[Read | None] | None = None
        if len(steps) > 1 and isinstance(self._make, BatchMaker):
            found = self._make.read_together(steps)
            if isinstance(found, MadeBatch):
                return found
            reads = found
            if reads is None:
                self._pause, self._patience = self._patience, 4 * self._patience
        self._begun.extend(zip(steps, reads or [None] * len(steps), strict=True))
        return None

    def _taken(self) -> Sequence[Step]:
        if self._size > 1 and self._together is not None and (planned := self._together(self._size)) is not None:
            return cast("Sequence[Step]", planned)
        steps = [next(self._steps)]
        if self._size > 1:
            more = self._size - 1 if self._ready is None else min(self._size - 1, self._ready())
            try:
                steps += islice(self._steps, more)
            except BaseException as error:
                self._error = error
        return steps

    def _adapt(self, made: MadeBatch, count: int = 1) -> None:
        """Choose how many batches are read next, by the work that `count` of them took."""
        if self._pause:
            self._pause -= 1
            self._size = 1
        elif not self._begun and isinstance(self._make, BatchMaker) and self._make.is_plain:
            read, late = made.seconds.get("read", 0.0), made.seconds.get("fetch", 0.0)
            if late > _LATE * read or not read:
                self._size = 1
                return
            most = MOST_TOGETHER
            if made.rest and isinstance(made.batch, dict):
                size = sum(map(_size, made.batch.values()))
                most = max(most, min(MOST_SMALL, BYTES_SMALL // max(size, 1)))
            self._size = max(1, min(most, int(SECONDS_TOGETHER * count / (made.work or read))))


def _size(values: Any) -> int:
    """Return the bytes of a column, or of the texts and bytes in it."""
    if hasattr(values, "nbytes"):
        return int(values.nbytes)
    return sum(len(value) for value in values if type(value) in (bytes, str))


WINDOW = 0.02
"""Minimum seconds of a measurement; `BATCHES` is the minimum number of batches."""
BATCHES = 4
TRIAL = 3
"""Measurements of a trial: the majority decides, because other programs may disturb one of them."""
RECENT = 7
"""Measurements of the current mode, whose median a trial is compared with."""
STARVED = 0.5
"""Share of its time waiting for batches from which on the loop counts as starved."""
LATE = 0.1
"""Share of the time of making batches that is waiting for remote data, from which on a measurement is omitted.

Several workers make batches at once, so their waiting may be most of the loop's time though it does not delay it."""
CLEAR = 1.25
"""Ratio of times from which on a trial is conclusive. Other programs on the same cores cause smaller differences."""
SOON, FIRST, MOST = 0.25, 2.0, 128.0
"""Seconds until the other mode is tried again; each trial multiplies them by four.

After the first trial, which other work of the start often disturbs; at most after an inconclusive trial; at most.
"""


class Pace:
    """Measures the batches of a loader, and decides whether workers or the loop make the next ones.

    Attributes:
        here: whether the loop makes the next batches.
    """

    def __init__(self) -> None:
        self.here = False
        self._recent: deque[float] = deque(maxlen=RECENT)  # seconds per batch in the current mode
        self._trial: list[float] | None = None  # times relative to the current mode
        self._patience = SOON
        self._decided: float | None = None
        self.begin()

    def __reduce__(self) -> tuple[type[Pace], tuple[()]]:
        return Pace, ()  # another process, or machine, measures for itself

    def begin(self) -> None:
        """Begin a new measurement. Its clock starts after the next batch, because workers must start before it."""
        self._since: float | None = None
        self._batches, self._waited, self._fetched, self._made = 0, 0.0, 0.0, 0.0

    def moves(self, waited: float, now: float, fetched: float = 0.0, made: float = 0.0) -> bool:
        """Record a batch, and return whether the mode changes for the next ones.

        Args:
            waited: seconds that the loop waited for the batch.
            now: time at which the loop requests the next batch.
            fetched: seconds that making the batch waited for remote data.
            made: seconds that making the batch took, in its thread.
        """
        if self._since is None:
            self._since = now
            return False
        self._batches += 1
        self._waited += waited
        self._fetched += fetched
        self._made += made
        taken = now - self._since
        if self._batches < BATCHES or taken < WINDOW:
            return False
        mean, starved = taken / self._batches, self._waited >= STARVED * taken
        late = self._fetched >= LATE * max(taken, self._made)
        self.begin()
        self._since = now
        if late:
            return False
        moves = self._measured(mean, starved, now) if self._trial is None else self._tried(mean, starved, now)
        if moves:
            self.here = not self.here
        return moves

    def _measured(self, mean: float, starved: bool, now: float) -> bool:
        """Record a measurement of the current mode; return whether to try the other one."""
        self._recent.append(mean)
        if len(self._recent) < TRIAL or not (self.here or starved):  # workers that keep up are never left
            return False
        if self._decided is None:
            last = list(self._recent)[-TRIAL:]
            if max(last) > CLEAR * min(last) and len(self._recent) < RECENT:
                return False
            self._recent = deque(last, RECENT)
        if self._decided is not None:
            # A loop that is not starved computes, so workers could make batches at the same time: try them soon.
            patience = FIRST if self.here and not starved else self._patience
            if now - self._decided < patience:
                return False
        self._trial = []
        return True

    def _tried(self, mean: float, starved: bool, now: float) -> bool:
        """Record a measurement of a trial; return whether to return to the previous mode."""
        assert self._trial is not None
        workers_suffice = not (self.here or starved)
        import statistics

        self._trial.append(0.0 if workers_suffice else mean / statistics.median(self._recent))
        better = sum(ratio < 1 for ratio in self._trial)
        if 2 * max(better, len(self._trial) - better) <= TRIAL:
            return False
        keep = 2 * better > TRIAL
        clear = not keep and statistics.median(self._trial) > CLEAR
        if self._decided is not None:
            self._patience = min(4 * self._patience, MOST if clear else FIRST)
        self._trial, self._decided = None, now
        if keep:
            self._recent.clear()
        return not keep


class Feed(Iterator[Step | None]):
    """Iterator over steps for workers. It yields None while it is paused, so that idle workers do not end."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps = iter(steps)
        self.paused = self.ended = False

    def __next__(self) -> Step | None:
        return None if self.paused and not self.ended else self.take()

    def take(self) -> Step:
        """Return the next step, also while paused. Raises StopIteration after the last one."""
        try:
            return next(self._steps)
        except StopIteration:
            self.ended = True
            raise


Ahead = Callable[[Iterable[Step | None]], Generator[MadeBatch | None, None, None]]
"""Prefetches the batches of steps, in order; yields None for a step that is None."""


def paced(
    make: BatchMaker | GroupMaker,
    steps: Iterable[Step],
    ahead: Ahead,
    pace: Pace,
    ready: Callable[[], int] | None = None,
) -> Generator[MadeBatch, None, None]:
    """Yield the batches of steps in order, made by the workers or by the loop as `pace` decides.

    Args:
        make: makes a batch in the loop.
        steps: the steps, in order.
        ahead: prefetches batches with workers, which end with the iteration.
        pace: measures the batches and decides.
        ready: as for `Bundles`.

    Raises:
        FeedmillError: the error of a batch, at its position.
    """
    feed = Feed(steps)
    begun: Generator[MadeBatch | None, None, None] | None = None
    with ExitStack() as stack:
        while not feed.ended:
            pace.begin()
            if pace.here:
                yield from _here(Bundles(make, iter(feed.take, None), ready), pace)
                continue
            feed.paused = False
            if begun is None:
                begun = stack.enter_context(closing(ahead(feed)))
            yield from _from_workers(begun, feed, pace)


def _here(batches: Bundles, pace: Pace) -> Generator[MadeBatch, None, None]:
    moves = False
    while batches.begun or not moves:
        requested_at = time.perf_counter()
        made = next(batches, None)
        if made is None:
            return
        waited, stages = (
            time.perf_counter() - requested_at,
            (made.seconds.get("fetch", 0.0), sum(made.seconds.values())),
        )
        yield made
        del made  # so that a batch is not kept alive while the next one is made
        moves = moves or pace.moves(waited, time.perf_counter(), *stages)


def _from_workers(begun: Iterator[MadeBatch | None], feed: Feed, pace: Pace) -> Generator[MadeBatch, None, None]:
    requested_at = time.perf_counter()
    for made in begun:
        if made is None:
            if feed.paused:  # all batches begun before the pause have been yielded
                return
            continue  # left over from the last pause
        waited, stages = (
            time.perf_counter() - requested_at,
            (made.seconds.get("fetch", 0.0), sum(made.seconds.values())),
        )
        yield made
        del made  # so that a batch is not kept alive during the wait
        requested_at = time.perf_counter()
        if not feed.paused and pace.moves(waited, requested_at, *stages):
            feed.paused = True
