"""Parallel map over threads: results in order, a bounded number in flight, no thread left running.

Only locks and queues that are written in C are used. Ctrl-C may interrupt those of `threading.Condition`, and what
stands on it (`Event`, `Semaphore`, the futures of the standard library), between taking a lock and the ``with`` block
that gives it back: then a thread waits for the lock for ever, and so does the end of the program.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextvars import copy_context
from itertools import count, islice, repeat
from queue import SimpleQueue
from types import FrameType
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

THREAD_NAME = "feedmill-worker"

_END = object()
_RUN = 64  # items
RECHECK_SECONDS = 1.0
"""How long a wait lasts at most before it begins again. A signal that arrives when the main thread is about to wait
does not wake it: its handler, which raises `KeyboardInterrupt`, say, runs only when Python code runs again."""


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    workers: int,
    in_flight: int,
    interrupt: Callable[[], object] | None = None,
) -> Generator[Result, None, None]:
    """Yield ``function(item)`` for each item, in order, computed ahead on `workers` threads.

    For work that releases the GIL (compiled loops, hashing, reading, decoding); use `feedmill.jobs.run` for all other
    work. At most `in_flight` results (at least 1) are begun and not yet yielded. An exception is raised in place of its
    result, after all results before it. However the iteration ends (exhausted, closed, collected, interrupted, failed),
    its threads end with it, after finishing their current calls. With 0 workers the caller's thread computes each
    result on demand. Calls have the context variables that the iterating thread has when they are begun.

    Args:
        interrupt: called before the wait for the threads, to end their current calls early.
    """
    if workers == 0:
        for item in items:  # not `map`, which a StopIteration of the function would end early
            yield function(item)
        return
    todo = iter(items)
    pending: deque[Call[Result]] = deque()
    pool = Threads(workers, THREAD_NAME)

    def begin(most: int) -> None:
        pending.extend(pool.begin(copy_context().run, function, item) for item in islice(todo, most))

    try:
        begin(min(max(in_flight, 1), sys.maxsize))
        while pending:
            result = pending.popleft().result()
            begin(1)
            yield result
            del result  # so that a batch is not kept alive while the next one is awaited
    finally:
        if interrupt is not None:
            interrupt()
        pool.end()


class Call(Generic[Result]):
    """A call of a function by a thread, and its result."""

    def __init__(self, function: Callable[..., Result], *arguments: Any) -> None:
        self._function, self._arguments = function, arguments
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._unfinished = threading.Lock()
        self._unfinished.acquire()

    def run(self) -> None:
        try:
            self._results.append(self._function(*self._arguments))
        except BaseException as error:
            self._error = error
        del self._function, self._arguments
        self._unfinished.release()

    def done(self) -> bool:
        """Return whether `result` would not wait."""
        return not self._unfinished.locked()

    def result(self) -> Result:
        """Wait for the result; return it, or raise its error."""
        while not self._unfinished.acquire(timeout=RECHECK_SECONDS):
            pass
        if self._error is None:
            return self._results.pop()
        try:
            raise self._error
        finally:
            self._error = None  # its traceback has this call


class Threads:
    """Threads that take calls from one queue. Each of the first `most` calls starts one.

    Args:
        name: how the names of the threads begin.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name, self._started, self._process = most, name, 0, os.getpid()
        self._todo: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self._threads: list[threading.Thread | None] = []
        self._idents: set[int] = set()
        self._ended = self._over = False

    def begin(self, function: Callable[..., Result], *arguments: Any) -> Call[Result]:
        """Let a thread call a function."""
        call = Call(function, *arguments)
        self._todo.put(call)
        if self._started < self._most:
            _unended[self] = None
            # `Thread.start` waits for an event of the new thread, so a thread that nobody interrupts calls it.
            _thread.start_new_thread(self._start, ())
            self._started += 1
        return call

    def _start(self) -> None:
        # A daemon: the interpreter waits for all others before it calls what ends these.
        thread = threading.Thread(target=self._run, name=f"{self._name}_{next(_numbers)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the limit of threads is reached
            self._threads.append(None)
            self._run()
        else:
            self._threads.append(thread)

    def _run(self) -> None:
        self._idents.add(_thread.get_ident())
        while not self._ended and (call := self._todo.get()) is not None and not self._ended:
            call.run()
            del call  # and its result, which may be a batch

    def end(self, *, finish: bool = False) -> None:
        """End the threads after their current calls, or after all that were begun, and wait for them.

        It may be called again, such as after Ctrl-C.
        """
        if self._over:  # at exit, before a generator that nothing closed is collected without its modules
            return
        self._ended = not finish
        if self._process == os.getpid():  # a fork has none of the threads
            for _ in range(self._started + 1):  # Ctrl-C may have come before the last one was counted
                self._todo.put(None)
            # The garbage collector may close a generator on any thread. One of its own cannot wait for itself.
            if _thread.get_ident() not in self._idents:
                while len(self._threads) < self._started:
                    time.sleep(0.0005)  # it has just been started
                for thread in self._threads:
                    if thread is not None:
                        thread.join()
        _unended.pop(self, None)
        self._over = True


_unended: dict[Threads, None] = {}
_numbers = count()


@atexit.register
def _end_all() -> None:
    for threads in list(_unended):
        threads.end()


def runs_of(items: Sequence[Item], workers: int) -> list[Sequence[Item]]:
    """Divide small items into runs, one for each call of `ordered_map`: to hand one over costs more than to do it.

    Args:
        workers: the number of threads, each of which gets several runs.
    """
    size = max(1, min(_RUN, len(items) // (4 * workers)))
    return [items[first : first + size] for first in range(0, len(items), size)]


def ahead(
    items: Iterable[Item], depth: int = 2, interrupt: Callable[[], object] | None = None
) -> Generator[Item, None, None]:
    """Yield the items, read ahead from their source on a separate thread, at most `depth` at once.

    For sources that release the GIL, such as a compressed file. An exception is raised after the items before it. The
    thread ends with the iteration, however that ends, and a generator as source is closed. `interrupt` is that of
    `ordered_map`.
    """
    source = iter(items)
    results = ordered_map(lambda _: next(source, _END), repeat(None), workers=1, in_flight=depth, interrupt=interrupt)
    try:
        for item in results:
            if item is _END:
                break
            yield item  # type: ignore[misc]
            del item  # as above
    finally:
        results.close()
        if hasattr(source, "close"):
            source.close()


def frame_of(thread: int) -> FrameType | None:
    """Return what a thread executes.

    In Python 3.11 a collection that begins inside `sys._current_frames` and frees a `threading.local` waits for a lock
    that this function itself holds, and with it the whole process for ever (python/cpython#106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        if collects:
            gc.enable()
