"""The memory of a task of a global step: the budget of the verb, divided by the tasks that run at once.

A global step holds some rows in memory at a time, and the others in sorted runs of its work folder. How many it holds
is a constant of the step, chosen so that a task takes up to `FULL` bytes. More is no faster, so a task takes no more,
whatever the budget is, and memory does not grow with the data. In less room, all of these constants shrink by the same
factor (`sized`). What a step writes does not depend on it.

Keep Python's collector of cycles away from many small objects, such as rows, or what describes files.

None of them is part of a cycle, but each full collection walks through all of them: a third of the time of an import,
and up to half of the time of decoding rows.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from feedmill.errors import ConfigError
from feedmill.jobs.resources import available_cores
from feedmill.storage.limits import machine_memory, parse_size

FULL = 256 << 20
"""Memory of a task in bytes beyond which more is no faster."""
LEAST = 32 << 20
"""Memory of a task in bytes below which blocks of the input do not fit."""
FIXED = 64 << 20
"""Memory of a process in bytes before it has work: the interpreter, libraries and tables."""
_SHARE = 4


def room_of(memory: int | str | None, workers: int | None, threads: int = 1) -> int:
    """Return the memory of one task in bytes: a power of two from `LEAST` to `FULL`, so that like machines agree.

    Args:
        memory: Budget of all processes in bytes, or a size such as ``"2GB"``. None: A quarter of the machine's, or of
            its container's, or the least if that is more.
        workers: Number of tasks at once; None for one per core.
        threads: Up to this number, tasks are threads of one process. More are processes, beside that which starts them.

    Raises:
        ConfigError: The budget is not a size, or too small.
    """
    count = available_cores() if workers is None else workers
    processes = 1 if count <= threads else count + 1
    least = processes * FIXED + count * LEAST
    given = parse_size(memory, "--memory")
    if given is not None and given < least:
        tasks = "1 worker" if count == 1 else f"{count} workers"
        raise ConfigError(
            f"--memory {memory} is too small for {tasks}: at least {-(-least // 10**6)}MB are needed",
            kind="bad-option",
            fix="Give more memory, or use fewer workers." if count > 1 else "Give more memory.",
        )
    if given is None:
        machine = machine_memory()
        given = FULL * count + processes * FIXED if machine is None else max(least, machine // _SHARE)
    share = max(LEAST, (given - processes * FIXED) // count)
    return min(FULL, 1 << (share.bit_length() - 1))


def sized(most: int, room: int) -> int:
    """Return what takes the share of `room` that `most` takes of `FULL`, at least 1."""
    return max(1, most * room // FULL)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pause the collection of cycles in a block that makes many objects and no cycles to speak of.

    What the block made counts as old afterwards: else the next allocation would walk through all of it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            with frozen():
                pass  # objects that are no longer frozen are of the oldest generation
            gc.enable()


_ours = _theirs = False
"""Whether a `frozen` block is running, and whether the program has frozen objects itself."""


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Exempt all objects made so far from collections in a block; cycles that the block makes are collected.

    Does nothing if the program has frozen objects itself: unfreezing would release those, too.
    """
    global _ours, _theirs
    if not (_ours or _theirs):
        _theirs = gc.get_freeze_count() > 0  # once, as it counts one by one: a tenth of a second for a million
    own = not (_ours or _theirs)
    if own:
        _ours = True
        gc.freeze()
    try:
        yield
    finally:
        if own:
            gc.unfreeze()
            _ours = False
