"""One function over many items, on all cores: results in order, memory flat, nothing left running."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import reprlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, TypeVar

from feedmill.errors import ConfigError, FeedmillError
from feedmill.jobs.cores import available_cores
from feedmill.jobs.processes import Context, Outcome, begin, work
from feedmill.jobs.progress import Progress

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 4  # chunks per worker that are under way or waiting to be taken


def run(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    chunk: int = 1,
    preload: Sequence[str] = (),
) -> Iterator[Result]:
    """Yield ``function(item)`` for each item, in the order of the items, whatever the number of workers.

    Work begins with the first result that is asked for and goes a few items per worker ahead. Closing the
    iterator, or an error in it, ends all workers. An exception of `function` comes through as it is, after the
    results before it; a function that should survive bad items returns what it found wrong instead of raising.

    Args:
        function: a function at the top level of a module (it is sent to other processes by name).
        items: what to work on; taken as needed, so a generator of any length will do.
        workers: processes; None for one per core. With one, with one item, and inside a daemon process (which may
            have no children) the function runs in this process.
        progress: advanced by one for each result.
        chunk: items sent to a worker at once, for items that take less than a millisecond or so.
        preload: modules that workers need, imported once for all of them.

    Raises:
        ConfigError: for a function or items that other processes cannot be given.
        FeedmillError: of kind ``"worker-died"`` where a worker was killed, naming the items in flight.
    """
    if chunk < 1 or (workers is not None and workers < 0):
        raise ConfigError(f"there is no work with {workers} workers and chunks of {chunk}", fix="Use 1 or more.")
    count = available_cores() if workers is None else workers
    source = iter(items)
    first = list(islice(source, chunk + 1))
    everything = chain(first, source)
    if count <= 1 or len(first) <= 1 or multiprocessing.current_process().daemon:
        results: Iterator[Result] = map(function, everything)
    else:
        if len(first) <= chunk:  # one chunk would keep one worker busy only
            chunk = 1
        context = Context(_can_hide_main(function, first[0]), preload)
        results = _in_processes(function, everything, count, chunk, context)
    return _counted(results, progress)


def _counted(results: Iterator[Result], progress: Progress | None) -> Iterator[Result]:
    try:
        for result in results:
            if progress is not None:
                progress.advance()
            yield result
    finally:
        if hasattr(results, "close"):
            results.close()


def _in_processes(
    function: Callable[[Item], Result], items: Iterator[Item], count: int, chunk: int, context: Context
) -> Iterator[Result]:
    waiting: deque[tuple[Future[Outcome], list[Item]]] = deque()
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=begin)
    finished = False
    try:
        while True:
            while len(waiting) < count * _AHEAD and (piece := list(islice(items, chunk))):
                waiting.append((_submit(pool, function, piece), piece))
            if not waiting:
                break
            outcome = waiting[0][0].result()
            _, piece = waiting.popleft()
            yield from outcome.results
            if outcome.error is not None:
                outcome.error.add_note(f"while working on {_name(piece[len(outcome.results)])}")
                raise outcome.error
        finished = True
    except BrokenProcessPool:
        raise _worker_died(waiting, count, context) from None
    finally:
        if not finished:
            context.stop()
        pool.shutdown()


def _submit(pool: ProcessPoolExecutor, function: Callable[[Item], Any], piece: list[Item]) -> Future[Outcome]:
    try:
        return pool.submit(work, function, piece)
    except BrokenProcessPool as error:  # comes up when this piece's turn does, after the results that are there
        future: Future[Outcome] = Future()
        future.set_exception(error)
        return future


def _worker_died(waiting: Iterable[tuple[Future[Outcome], list[Any]]], count: int, context: Context) -> FeedmillError:
    """Work is taken in order, so what the workers held is among the first pieces that are not done."""
    unfinished = [piece for future, piece in waiting if not future.done() or future.exception() is not None]
    names = [_name(item) for piece in unfinished[:count] for item in piece]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    death = context.death()
    cause = f"was killed ({death})" if death else "ended"
    memory = " The system kills processes when memory runs out: use fewer workers." if death == "SIGKILL" else ""
    return FeedmillError(
        f"a worker process {cause} while working on one of: {shown}",
        kind="worker-died",
        fix=f"Run again with one worker to see which item it is.{memory} Finished work is kept.",
    )


def _name(item: Any) -> str:
    if isinstance(item, str | os.PathLike):
        return str(item)[:200]
    short = reprlib.Repr()
    short.maxstring = short.maxother = 120
    return short.repr(item)


def _can_hide_main(function: Callable[..., Any], item: Any) -> bool:
    """Whether workers can do without the main program: nothing that they are sent is defined in it."""
    pickler = _Pickler(io.BytesIO())
    try:
        pickler.dump((function, item))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the work cannot be sent to other processes ({error})",
            fix="Use a function at the top level of a module, or one worker.",
        ) from None
    if not pickler.needs_main:
        return True
    if not os.path.isfile(getattr(sys.modules["__main__"], "__file__", None) or ""):
        raise ConfigError(
            "the function is defined in a program that has no file, where other processes cannot find it",
            fix="Put the function into a module, or use one worker.",
        )
    return False


class _Pickler(pickle.Pickler):
    """Notices what is defined in the main program."""

    needs_main = False

    def persistent_id(self, item: Any) -> None:
        if getattr(item, "__module__", None) == "__main__":
            self.needs_main = True
