"""Parallel map over processes: results in order, bounded memory, no worker left running."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from feedmill.errors import ConfigError
from feedmill.jobs import inside
from feedmill.jobs.cores import available_cores
from feedmill.jobs.engine import Policy, Stage, Where, current, is_inside_unit
from feedmill.jobs.events import Units, name_of, units_of
from feedmill.jobs.progress import Progress, Steps

Item = TypeVar("Item")
Result = TypeVar("Result")


def run(
    function: Callable[..., Result],
    items: Iterable[Item],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    chunk: int = 1,
    preload: Sequence[str] = (),
    policy: Policy | None = None,
    where: Where | None = None,
) -> Generator[Result, None, None]:
    """Yield ``function(item)`` for each item, in the order of the items, for any number of workers.

    Work begins with the first `next` and runs a few items per worker ahead. Closing the iterator, or an error in it,
    ends all workers. An exception of `function` is raised unchanged, after the results before it; a function that
    tolerates invalid items returns their errors instead of raising.

    Args:
        function: a function at the top level of a module (it is sent to other processes by name).
        items: arguments; taken as needed, so a generator may be of any length.
        workers: processes; None for one per core. With one, with one item, and inside a daemon process (which may
            have no children) the function runs in this process, unless the policy says otherwise.
        progress: advanced by one, or by the next of its sizes, for each item that is finished, in any order.
        chunk: items sent to a worker at once, for items that take less than a millisecond or so.
        preload: modules that workers need, imported once for all of them.
        policy: the shared value, the number of chunks in flight, and the handling of workers that die or hang.
        where: for a stage that an engine may run on other machines; see `feedmill.jobs.engine`.

    Raises:
        ConfigError: the function or items cannot be sent to other processes, or are defined in a main program that
            workers cannot import.
        FeedmillError: of kind ``"worker-died"`` if a worker was killed or took too long, naming the items in flight.
    """
    if chunk < 1 or (workers is not None and workers < 0):
        raise ConfigError(f"{workers} workers with chunks of {chunk} are invalid", fix="Use at least 1.")
    policy = policy or Policy()
    here = partial(
        _run_here,
        function,
        workers=workers,
        chunk=chunk,
        preload=preload,
        policy=policy,
        stage=None if where is None else where.stage,
    )
    if where is not None and (engine := current()) is not None:
        return _closing(engine.run(Stage(where, function, items, here, policy.shared, chunk, Steps(progress))))
    return here(items, progress=progress)


def _run_here(
    function: Callable[..., Result],
    items: Iterable[Item],
    *,
    workers: int | None,
    chunk: int,
    preload: Sequence[str],
    policy: Policy,
    stage: str | None,
    numbers: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Generator[Result, None, None]:
    """Run items on processes of this machine.

    Args:
        numbers: number of each item in the stage, if these are not all.
    """
    count = available_cores() if workers is None else workers
    total = len(items) if isinstance(items, Sized) else None
    name = stage or (None if progress is None else progress.label)
    units = partial(units_of, name, total=total, numbers=numbers)
    source = iter(items)
    first = list(islice(source, chunk + 1))
    everything = chain(first, source)
    if not first or is_inside_unit() or not (policy.always_processes or (count > 1 and len(first) > 1)):
        call = function if policy.shared is None else partial(function, policy.shared)
        return _here(call, everything, progress, None if not first or name is None or is_inside_unit() else units)
    from feedmill.jobs.pickling import needs_main
    from feedmill.jobs.pool import Pool
    from feedmill.jobs.processes import new_context

    if len(first) <= chunk:  # one chunk would occupy only one worker
        chunk = 1
    main = needs_main(function, policy.shared, first[0])
    start = partial(new_context, main, preload, fork=policy.fork, start_timeout=policy.start_timeout)
    return _closing(Pool(function, everything, count, chunk, start, policy, progress, stage, units).results())


def run_largest_first(
    function: Callable[..., Result], items: Sequence[Item], sizes: Sequence[int], **options: Any
) -> list[Result]:
    """Return the results of `run` (with its options) in the order of the items. Items are processed by decreasing size,
    so that the run does not end with one process working on a large item.
    """
    order = sorted(range(len(items)), key=lambda i: -sizes[i])
    progress: Progress | None = options.get("progress")
    if progress is not None and progress.unit == "B":
        progress.of_sizes([sizes[i] for i in order])
    if (where := options.get("where")) is not None:
        options["where"] = replace(where, numbers=[where.numbers[i] for i in order] if where.numbers else order)
    found = dict(zip(order, run(function, [items[i] for i in order], **options), strict=True))
    return [found[i] for i in range(len(items))]


def _here(
    call: Callable[[Item], Result],
    items: Iterable[Item],
    progress: Progress | None,
    units_of: Callable[[], Units] | None,
) -> Generator[Result, None, None]:
    if progress is None and units_of is None:
        for item in items:
            yield call(item)
        return
    steps, node, process = Steps(progress), socket.gethostname(), os.getpid()
    with contextlib.ExitStack() as stack:
        units = None if units_of is None else stack.enter_context(units_of())
        if progress is not None:
            stack.enter_context(progress.watching(inside.since_now()))
            stack.enter_context(progress.showing(units))
        for number, item in enumerate(items):
            before = inside.count()
            if units is not None:
                units.tick()
                units.begin(number, steps.size_of(number), names=[name_of(item)])
                units.start(number, node, process)
            try:
                result = call(item)
            except Exception as error:
                if units is not None:
                    units.fail(number, str(error))
                raise
            if units is not None:
                units.tick()
                units.end(number)
            steps.finish(number, inside.count() - before)
            yield result


def _closing(results: Iterator[Result]) -> Generator[Result, None, None]:
    """Yield results; close their source also if this is closed before the first."""
    try:
        yield from results
    finally:
        if hasattr(results, "close"):
            results.close()
