"""Parallel map over processes: results in order, bounded memory, no worker left running."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from feedmill.errors import ConfigError, FeedmillError
from feedmill.jobs.engine import (
    Failed,
    Limits,
    Policy,
    Stage,
    UnitsFailed,
    Where,
    current,
    in_units,
    is_inside_unit,
    limits_of,
)
from feedmill.jobs.events import Units, name_of, units_of
from feedmill.jobs.policy import over_budget
from feedmill.jobs.progress import Progress, Steps, bytes_read, read_since_now
from feedmill.jobs.resources import available_cores, limited

logger = logging.getLogger("feedmill")

Item = TypeVar("Item")
Result = TypeVar("Result")

LARGE = 32 << 20
"""Stored size in bytes above which a file can be split."""


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
            have no children) the function runs in this process, unless the policy says otherwise. They are fewer if
            this machine has not enough for what each needs (`feedmill.jobs.resources`).
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
    policy, limits = policy or Policy(), limits_of(where)
    if limits.max_failed is not None:  # a failed unit takes no others with it
        chunk = 1
    here = partial(
        _run_here,
        function,
        workers=workers,
        chunk=chunk,
        preload=preload,
        policy=policy,
        where=where,
        limits=limits,
    )
    if where is not None and (engine := current()) is not None:
        results = engine.run(Stage(where, function, items, here, policy.shared, chunk, Steps(progress)))
        return _closing(tolerating(results, where, limits))
    return here(items, progress=progress)


def _run_here(
    function: Callable[..., Result],
    items: Iterable[Item],
    *,
    workers: int | None,
    chunk: int,
    preload: Sequence[str],
    policy: Policy,
    where: Where | None,
    limits: Limits,
    numbers: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Generator[Result, None, None]:
    """Run items on processes of this machine.

    Args:
        numbers: number of each item in the stage, if these are not all.
    """
    count = available_cores() if workers is None else workers
    count = count if is_inside_unit() else limited(count)
    total = len(items) if isinstance(items, Sized) else None
    stage = None if where is None else where.stage
    name = stage or (None if progress is None else progress.label)
    units = partial(units_of, name, total=total, numbers=numbers)
    source = iter(items)
    first = list(islice(source, chunk + 1))
    everything = chain(first, source)
    if not first or is_inside_unit() or not (policy.always_processes or limits or (count > 1 and len(first) > 1)):
        call = function if policy.shared is None else partial(function, policy.shared)
        told = None if not first or name is None or is_inside_unit() else units
        return _closing(tolerating(_here(call, everything, progress, told, limits), where, limits))
    from feedmill.jobs.main_program import needs_main
    from feedmill.jobs.pool import Pool
    from feedmill.jobs.processes import new_context

    if len(first) <= chunk:  # one chunk would occupy only one worker
        chunk = 1
    main = needs_main(function, policy.shared, first[0])
    start = partial(new_context, main, preload, fork=policy.fork, start_timeout=policy.start_timeout)
    pool = Pool(function, everything, max(1, count), chunk, start, policy, progress, stage, units, limits)
    return _closing(tolerating(pool.results(), where, limits))


def tolerating(results: Iterator[Any], where: Where | None, limits: Limits) -> Iterator[Any]:
    """Yield results until a unit has failed; then only record those of the other units.

    Raises:
        UnitsFailed: at the end, if units have failed within the budget.
        FeedmillError: of kind ``too-many-bad`` if more have failed.
    """
    failed, ended = list[Failed](), 0
    try:
        for result in results:
            ended += 1
            if not isinstance(result, Failed):
                if not failed:
                    yield result
                elif where is not None and where.record is not None:
                    where.record(result)
                continue
            if where is None or not where.lasting or where.place is None:
                logger.warning("--max-failed-units is without effect: units that only report keep nothing")
                raise result.error
            failed.append(result)
            logger.warning("%s: the unit %s has failed: %s", where.stage, result.name, result.error)
            if (over := over_budget(limits.max_failed, len(failed), ended)) is not None:
                raise FeedmillError(
                    f"{where.stage}: {over}; the last is {result.name}: {result.error}",
                    kind="too-many-bad",
                    fix="Correct them, and run the same command again: finished work is kept.",
                ) from result.error
    finally:
        if hasattr(results, "close"):
            results.close()
    if failed and where is not None:
        raise UnitsFailed(where.stage, failed, ended - len(failed))


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


def first_to_cut(sizes: Iterable[int], workers: int) -> int:
    """Return how many of the largest files to split over all workers.

    A file is split if it is larger than `LARGE` and than the share of one worker.

    Args:
        sizes: File sizes in bytes, in descending order.
    """
    sizes = list(sizes)
    return sum(workers > 1 and size > max(LARGE, sum(sizes) / workers) for size in sizes)


def run_cut(
    function: Callable[..., Result],
    items: Sequence[Item],
    sizes: Sequence[int],
    *,
    workers: int | None,
    others: Callable[..., list[Result]] = run_largest_first,
    **options: Any,
) -> list[Result]:
    """Return ``function(item)`` for each item, in the order of the items.

    An item that would keep one process busy alone comes first: this process calls ``function(item, workers=N)``, which
    splits the item over all workers. On an engine, and with limits of units, the item is the unit.

    Args:
        sizes: Stored size of each item in bytes.
        others: Runs the other items, with the arguments of `run_largest_first`.
        options: See `run`.
    """
    count = available_cores() if workers is None else workers
    order = sorted(range(len(items)), key=lambda i: -sizes[i])
    cut = order[: 0 if in_units() else first_to_cut((sizes[i] for i in order), count)]
    if not cut:
        return others(function, items, sizes, workers=workers, **options)
    if (progress := options.get("progress")) is not None:
        progress.of_sizes([sizes[i] for i in cut])
    here = {name: options[name] for name in ("progress", "policy") if name in options}
    split = run(partial(function, workers=count), [items[i] for i in cut], workers=1, **here)
    found = dict(zip(cut, split, strict=True))
    rest = [i for i in range(len(items)) if i not in found]
    made = others(function, [items[i] for i in rest], [sizes[i] for i in rest], workers=workers, **options)
    found.update(zip(rest, made, strict=True))
    return [found[i] for i in range(len(items))]


def _here(
    call: Callable[[Item], Result],
    items: Iterable[Item],
    progress: Progress | None,
    units_of: Callable[[], Units] | None,
    limits: Limits,
) -> Generator[Result | Failed, None, None]:
    if progress is None and units_of is None and not limits:
        for item in items:
            yield call(item)
        return
    steps, node, process = Steps(progress), socket.gethostname(), os.getpid()
    with contextlib.ExitStack() as stack:
        units = None if units_of is None else stack.enter_context(units_of())
        if progress is not None:
            stack.enter_context(progress.watching(read_since_now()))
            stack.enter_context(progress.showing(units))
        for number, item in enumerate(items):
            before = bytes_read()
            if units is not None:
                units.tick()
                units.begin(number, steps.size_of(number), names=[name_of(item)])
                units.start(number, node, process)
            tries = 1
            while True:
                try:
                    result: Result | Failed = call(item)
                except Exception as error:
                    result = Failed(name_of(item), error)
                if not (isinstance(result, Failed) and limits.again(result.error, tries)):
                    break
                logger.warning("%s: %s (tried again, %d of %d)", result.name, result.error, tries, limits.attempts)
                tries += 1
                if units is not None:
                    units.retry(number, str(result.error))
                    units.begin(number, steps.size_of(number), names=[name_of(item)])
                    units.start(number, node, process)
            if units is not None:
                units.tick()
            if isinstance(result, Failed):
                if units is not None:
                    units.fail(number, str(result.error))
                if limits.max_failed is None:
                    raise result.error
            else:
                if units is not None:
                    units.end(number)
                steps.finish(number, bytes_read() - before)
            yield result


def _closing(results: Iterator[Result]) -> Generator[Result, None, None]:
    """Yield results; close their source also if this is closed before the first."""
    try:
        yield from results
    finally:
        if hasattr(results, "close"):
            results.close()
