"""Choose whether workers prefetch batches or the training loop makes them, by measuring which is faster.

A `Loader` uses this module with `Workers(adapt=True)`, the default for threads. Handing a batch from a thread to the
loop costs two switches between threads, each of which waits for a core and for the interpreter. If making a batch takes
less time than that, or only runs Python code, the loop gets it sooner by making it. Which case applies depends on the
data, the machine, and the time that the loop itself takes, so it is measured:

- Workers begin. They keep making the batches while the loop spends little of its time waiting.
- If the loop spends most of its time waiting, it makes a few batches as a trial, and the faster of the two modes stays.
  The first trial waits until measurements agree: what is loaded, opened and requested first makes them differ.
- The other mode is tried again later, at intervals that grow while the result stays the same.
- Measurements in which batches waited for remote data say nothing about either mode, and are omitted.

Both modes make the steps in the same order, so the stream does not depend on the choice.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing

from feedmill.loading.batches import BatchMaker, Made
from feedmill.loading.bundles import Bundles
from feedmill.loading.groups import GroupMaker
from feedmill.planning.dealing.grid import Step

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


Ahead = Callable[[Iterable[Step | None]], Generator[Made | None, None, None]]
"""Prefetches the batches of steps, in order; yields None for a step that is None."""


def paced(
    make: BatchMaker | GroupMaker,
    steps: Iterable[Step],
    ahead: Ahead,
    pace: Pace,
    ready: Callable[[], int] | None = None,
) -> Generator[Made, None, None]:
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
    begun: Generator[Made | None, None, None] | None = None
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


def _here(batches: Bundles, pace: Pace) -> Generator[Made, None, None]:
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


def _from_workers(begun: Iterator[Made | None], feed: Feed, pace: Pace) -> Generator[Made, None, None]:
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
