"""The processes of `feedmill.jobs.run`: chunks of items in a pool, whose workers may die, hang or be late.

It is a module of its own, because much of a small run is the import of what starts processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from multiprocessing import connection
from typing import Any

from feedmill.errors import FeedmillError
from feedmill.jobs.engine import Failed, Limits, Policy
from feedmill.jobs.events import Units, lateness, name_of
from feedmill.jobs.main_program import pickled
from feedmill.jobs.processes import Context, Outcome, Sent, Served, Shared, begin, work
from feedmill.jobs.progress import Progress, ReadCounts, Steps, still

logger = logging.getLogger("feedmill")

_AHEAD = 4  # chunks per worker that are in progress or waiting
_LOOK = 1.0  # seconds between checks whether the workers are alive
_STOPPED = 5  # looks in a row that find a stopped worker, before all start again
_KEPT = 64 << 20
"""Bytes of results that may wait for an unfinished one before them, beyond the chunks of `_AHEAD`."""


@dataclass(slots=True)
class _Piece:
    """A chunk of items for one worker, with its future.

    Attributes:
        first: number of its first item.
        outcome: what the worker has sent, once it has ended.
        retried: whether its worker was stopped, and all were started again.
        tries: attempts that have failed.
        begun: about when a worker began it, by the clock of the stragglers.
    """

    first: int
    items: list[Any]
    future: Future[Sent]
    outcome: Sent | None = None
    retried: bool = False
    tries: int = 0
    begun: float | None = None


@contextlib.contextmanager
def _drained(pool: ProcessPoolExecutor) -> Iterator[None]:
    """Read what the pool still sends to exited workers, for the duration of the block.

    Before Python 3.11.5 the thread that sends items waits for a reader, and the pool for that thread. The thread closes
    the pool's end of the pipe itself, so it is read through a descriptor of our own.
    """
    queue: Any = getattr(pool, "_call_queue", None)
    if getattr(queue, "_thread", None) is None:
        yield
        return
    try:
        end = os.dup(queue._reader.fileno())
    except OSError:  # the thread has ended and closed it
        yield
        return
    done = threading.Event()

    def drain() -> None:
        while not done.is_set():
            if connection.wait([end], 0.05) and not os.read(end, 1 << 16):
                return

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        os.close(end)


class Pool:
    """Chunks submitted to a pool, in order.

    A chunk that takes long is no barrier: once it has been waited for, those after it are handed out as others end, as
    long as what these returned is small.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        items: Iterator[Any],
        count: int,
        chunk: int,
        context: Callable[[], Context],
        policy: Policy,
        progress: Progress | None,
        stage: str | None,
        units_of: Callable[[], Units],
        limits: Limits,
    ) -> None:
        self._function, self._items, self._chunk = function, items, chunk
        self._count, self._policy, self._new_context = count, policy, context
        self._stage, self._units_of, self._steps, self._limits = stage, units_of, Steps(progress), limits
        self._ahead = count * _AHEAD if policy.in_flight is None else max(policy.in_flight, 1)
        self._shared = None if policy.shared is None else Shared(pickled(policy.shared))
        self._read_counts: ReadCounts | None = None
        if progress is not None and progress.unit == "B" and progress.is_shown:
            with contextlib.suppress(OSError):  # the disk is full: the bar moves by whole items
                self._read_counts = ReadCounts()
        self._waiting: deque[_Piece] = deque()
        self._unfinished: dict[Future[Sent], _Piece] = {}
        self._units: Units
        self._node = socket.gethostname()
        self._sent = self._kept = self._restarts = self._looks = 0
        self._alone: int | None = None
        """First item of the last chunk that runs without others, since one of some chunks has ended a worker."""

    def _start(self) -> None:
        self._context = self._new_context()
        environment = dict(os.environ) if isinstance(self._context, Served) else None
        self._pool = ProcessPoolExecutor(
            self._count,
            mp_context=self._context,
            initializer=begin,
            initargs=(
                self._shared,
                environment,
                self._context.main,
                None if self._read_counts is None else self._read_counts.path,
            ),
        )

    def results(self) -> Iterator[Any]:
        with self._units_of() as self._units, contextlib.ExitStack() as stack:
            if self._steps.progress is not None:
                stack.enter_context(self._steps.progress.showing(self._units))
                if self._read_counts is not None:
                    stack.callback(self._read_counts.close)
                    stack.enter_context(self._steps.progress.watching(self._read_counts.total))
            yield from self._results()

    def _results(self) -> Generator[Any, None, None]:
        finished = False
        try:
            with still():  # the first chunk starts the workers, and forking needs a process without threads
                self._start()
                self._hand_out(1)
            while True:
                self._hand_out(self._ahead)
                if not self._waiting:
                    break
                sent = self._next()
                piece = self._waiting.popleft()
                self._kept -= len(sent.data)
                outcome = sent.outcome()
                yield from outcome.results
                if outcome.error is not None:
                    outcome.error.add_note(f"while working on {name_of(piece.items[len(outcome.results)])}")
                    if self._limits.max_failed is None:
                        raise outcome.error
                    yield Failed(name_of(piece.items[0]), outcome.error)
                del outcome, sent
            finished = True
        finally:
            if not finished:
                self._stop()
            else:
                self._pool.shutdown()

    def _stop(self) -> None:
        """End the workers, even in the middle of a chunk."""
        if not hasattr(self, "_pool"):  # interrupted before the first start
            return
        self._context.stop()
        # A worker that was killed while sending a result leaves a partial result in the pipe. The pool waits for the
        # rest while any process holds the writing end, so this process closes its copy.
        with contextlib.suppress(AttributeError, OSError):
            getattr(getattr(self._pool, "_result_queue"), "_writer").close()  # noqa: B009 - unknown to the stubs
        with _drained(self._pool) if tuple(sys.version_info) < (3, 11, 5) else contextlib.nullcontext():
            self._pool.shutdown()

    def _hand_out(self, most: int, *, late: bool = False) -> None:
        """Keep up to `most` chunks in flight; with `late`, those that have ended do not count."""
        if self._alone is not None and self._waiting:
            return
        self._alone = None
        while len(self._unfinished if late and self._kept < _KEPT else self._waiting) < most and (
            items := list(islice(self._items, self._chunk))
        ):
            piece = _Piece(self._sent, items, self._submit(items))
            self._sent += len(items)
            self._waiting.append(piece)
            self._begin(piece)

    def _begin(self, piece: _Piece) -> None:
        self._unfinished[piece.future] = piece
        count = len(piece.items)
        numbers = range(piece.first, piece.first + count)
        names = list(map(name_of, piece.items[:4])) if self._units.name is not None else ()
        self._units.begin(piece.first, sum(map(self._steps.size_of, numbers)), count=count, names=names)

    def _next(self) -> Sent:
        """Return what the first chunk gave; restart workers that die or hang, up to `restarts` times."""
        while True:
            try:
                self._resume_alone()
                return self._wait(self._waiting[0])
            except BrokenProcessPool:
                if self._context.main is not None and (failure := self._context.main.failure()) is not None:
                    raise failure from None
                if self._limits:
                    self._blame()
                    continue
                error = _worker_died(self._waiting, self._count, self._context)
            except FutureTimeout:
                error = self._hung()
            if self._restarts >= self._policy.restarts:
                raise error
            self._restarts += 1
            logger.warning("%s (restarted, %d of %d)", error.what, self._restarts, self._policy.restarts)
            self._start_again()

    def _wait(self, head: _Piece) -> Sent:
        """Wait for a chunk. Raises `FutureTimeout`, and `BrokenProcessPool` if a worker has exited."""
        left = float("inf") if self._policy.timeout is None else self._policy.timeout
        gone, begin, looked = 0, time.monotonic(), time.monotonic()
        while True:
            self._collect()
            if head.outcome is not None:
                return head.outcome
            if head.future.done():
                head.future.result()
            if self._end_overdue():
                continue
            late = self._policy.in_flight is None and time.monotonic() - begin >= _LOOK
            if late:
                self._hand_out(self._ahead, late=True)
            wait(self._unfinished, min(_LOOK, left), FIRST_COMPLETED)
            if head.future.done():
                continue
            passed = time.monotonic() - looked
            if passed < min(_LOOK, left):
                continue
            if self._policy.check is not None:
                self._policy.check()
            looked, left = looked + passed, left - passed
            if left <= 0:
                raise FutureTimeout
            # The pool notices a death, except of a worker that was sending a result.
            gone += self._context.ended()
            if gone > 2:
                raise BrokenProcessPool("a worker exited") from None
            if self._policy.in_flight is None:
                self._name_late()

    def _collect(self) -> None:
        """Take what has ended, in any order. What broke the pool is raised when it is the turn of its chunk."""
        self._units.tick()
        for future in [future for future in self._unfinished if future.done()]:
            piece = self._unfinished.pop(future)
            if future.cancelled() or future.exception() is not None:
                self._units.retry(piece.first, "its worker process was lost")
                continue
            sent = future.result()
            if sent.why is not None and self._is_tried_again(piece, sent.outcome().error):
                piece.future = self._submit(piece.items)
                self._begin(piece)
                continue
            piece.outcome = sent
            self._kept += len(sent.data)
            self._units.outcome(piece.first, sent)
            for number, counted in enumerate(sent.counted, piece.first):
                self._steps.finish(number, counted)
        self._units.start_oldest(self._count, self._node)
        for piece in islice(self._unfinished.values(), self._count):  # workers take them in order
            piece.begun = self._units.now if piece.begun is None else piece.begun

    def _is_tried_again(self, piece: _Piece, error: Exception | None) -> bool:
        """Count a failed attempt of a chunk; return whether it runs again."""
        piece.tries += 1
        again = self._limits.again(error, piece.tries)
        if again:
            why = "it ended its worker" if error is None else error
            names = ", ".join(map(name_of, piece.items[:4]))
            logger.warning("%s: %s (tried again, %d of %d)", names, why, piece.tries, self._limits.attempts)
            self._units.retry(piece.first, str(why))
        return again

    def _fail(self, piece: _Piece, error: Exception) -> None:
        piece.outcome = Sent.of(Outcome([], error))
        self._kept += len(piece.outcome.data)
        self._unfinished.pop(piece.future, None)
        self._units.fail(piece.first, str(error))

    def _end_overdue(self) -> bool:
        """Start all workers again if a chunk exceeds its time limit, of which the pool does not know the worker."""
        limit = self._limits.timeout
        if limit is None:
            return False
        now, running = self._units.now, list(self._unfinished.values())
        overdue = [p for p in running if p.begun is not None and now - p.begun >= limit * len(p.items)]
        for piece in overdue:
            error = self._limits.overdue(list(map(name_of, piece.items)))
            if not self._is_tried_again(piece, error):
                self._fail(piece, error)
        if overdue:
            self._start_again()
        return bool(overdue)

    def _blame(self) -> None:
        """Find the chunk that has ended a worker: those that ran then run one by one, and it fails alone."""
        unfinished = [piece for piece in self._waiting if piece.outcome is None]
        if self._alone is None:
            self._alone = unfinished[: self._count][-1].first
            ran = len(unfinished[: self._count])
            again = "its unit runs again" if ran == 1 else f"the {ran} units that may have ended it run one by one"
            logger.warning("%s: a worker process ended; %s", self._stage, again)
        elif not self._is_tried_again(unfinished[0], None):
            self._fail(unfinished[0], _worker_died(unfinished, 1, self._context))
        self._start_again()

    def _resume_alone(self) -> None:
        """Submit the next of the chunks that run one by one; after the last of them, all others."""
        head = self._waiting[0]
        if self._alone is None or head.outcome is not None or head.future in self._unfinished:
            return
        if head.first > self._alone:
            self._alone = None
        for piece in [head] if self._alone is not None else self._waiting:
            if piece.outcome is None and piece.future not in self._unfinished:
                piece.future = self._submit(piece.items)
                self._begin(piece)

    def _name_late(self) -> None:
        """Warn of chunks that take far longer than others. If a worker is stopped, start all again, once for each."""
        running = {piece.first: piece for piece in islice(self._unfinished.values(), self._count)}
        late = {first: age for first, age in self._units.late() if first in running}
        stopped = self._context.stopped()
        self._looks = self._looks + 1 if stopped else 0
        if self._looks >= _STOPPED and self._stage is not None:  # it does not continue by itself
            late |= {
                first: self._units.now - (piece.begun or 0.0)
                for first, piece in running.items()
                if not piece.retried and first not in late
            }
            self._looks = 0
        again = False
        for first, age in late.items():
            piece, median = running[first], self._units.median_text(first)
            self._units.named(first)
            text = lateness(self._stage, list(map(name_of, piece.items)), age, median)
            if stopped:
                text += f": the worker process {stopped[0]} is stopped"
            if stopped and self._stage is not None and not piece.retried:  # units of stages may run twice
                again = piece.retried = True
                text += ", and all workers start again"
            logger.warning("%s", text)
        if again:
            self._start_again()

    def _hung(self) -> FeedmillError:
        return FeedmillError(
            f"a worker process exceeded the timeout of {self._policy.timeout:g} s on"
            f" {name_of(self._waiting[0].items[0])}",
            kind="worker-died",
            fix="Inspect that item, or raise the timeout.",
        )

    def _start_again(self) -> None:
        """Restart the workers for all unfinished chunks. Finished results are kept."""
        self._stop()
        self._start()
        unfinished = [piece for piece in self._waiting if piece.outcome is None]
        self._unfinished.clear()
        for number, piece in enumerate(unfinished):
            piece.begun = None
            if self._alone is not None and number:
                piece.future = piece.future if _has_result(piece.future) else Future()
                self._units.forget(piece.first)
                continue
            if not piece.future.done() or piece.future.cancelled() or piece.future.exception() is not None:
                piece.future = self._submit(piece.items)
            self._units.retry(piece.first, "all worker processes were started again")
            self._begin(piece)

    def _submit(self, items: list[Any]) -> Future[Sent]:
        try:
            return self._pool.submit(work, self._function, items)
        except (BrokenProcessPool, OSError) as error:  # raised after the results before this chunk
            # Before Python 3.12 the pool may close its queue while it starts another worker with it.
            if not getattr(self._pool, "_broken", True):
                raise
            if isinstance(error, OSError):
                error = BrokenProcessPool(str(error))
            future: Future[Sent] = Future()
            future.set_exception(error)
            return future


def _has_result(future: Future[Sent]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _worker_died(waiting: Iterable[_Piece], count: int, context: Context) -> FeedmillError:
    """Return the error for a dead worker. Work is taken in order, so its items are in the first unfinished chunks."""
    unfinished = [p.items for p in waiting if p.outcome is None]
    names = [name_of(item) for piece in unfinished[:count] for item in piece]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    death = context.death()
    cause = f"was killed ({death})" if death else "ended"
    memory = " The system kills processes when memory runs out: use fewer workers." if death == "SIGKILL" else ""
    one, fix = ("one of: ", "Run again with one worker to find the item.") if names[1:] else ("", "Inspect it.")
    return FeedmillError(
        f"a worker process {cause} while working on {one}{shown}",
        kind="worker-died",
        fix=f"{fix}{memory} Finished work is kept.",
    )
