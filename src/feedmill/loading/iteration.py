"""One pass of a loader: what is made ahead is given out in order, and the loader knows how far that has come.

Everything behind a batch that was given out is not yet the loader's past: it is made again after a resume.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Generator, Iterator
from contextlib import closing
from inspect import GEN_RUNNING, getgeneratorstate
from typing import TYPE_CHECKING, Any, Self

from feedmill.errors import ConfigError
from feedmill.loading.collate import to_torch
from feedmill.loading.groups import Given, GroupMaker, batches_of
from feedmill.loading.workers import make_ahead
from feedmill.planning.dealing.dealer import dealer_of
from feedmill.planning.dealing.grid import Grid

if TYPE_CHECKING:
    from feedmill.loading.loader import Loader


class Iteration(Iterator[Any]):
    """One pass of a loader. Its threads or processes end when it is exhausted, closed, or no longer referred to."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        given = _steps(loader) if loader._cursor is None else _packs(loader)
        self._given = given if loader._transfer is None else loader._transfer.ahead(given)
        self._closed = self._forked = False
        _running.add(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise _ended()
        if self._forked:
            raise ConfigError(
                "this iteration began in the process that this one was forked from, and its threads have stayed there",
                kind="forked",
                fix="Iterate the loader in the process that uses it; here it would continue from its position.",
            )
        asked = time.perf_counter()
        try:
            given = next(self._given, None)
            if self._closed:  # by another thread, or a handler of signals, while the batch was waited for
                raise _ended()
            if given is not None:
                return self._taken(given, asked)
        except BaseException as error:
            self.close()
            if isinstance(error, StopIteration):  # of a handler: the loop would end as if nothing were left
                raise RuntimeError("the handler of failures raised StopIteration") from error
            raise
        self._loader._ended()
        raise StopIteration

    def _taken(self, given: Given, asked: float) -> Any:
        """The batch as the loop gets it; it is the loader's past only when nothing can fail any more."""
        loader = self._loader
        batch = to_torch(given.batch) if loader._output == "torch" else given.batch
        if loader._labeled is not None and given.labels is not None:
            loader._labeled.finish(given.labels, batch)
        for made in given.made:
            loader._count(made)
        loader.metrics.transferred(given.transfer)
        loader._consumed(given.after)
        if loader._labeled is not None:
            loader._labeled.keep(given.labels)
        loader._measured(asked)
        return batch

    def close(self) -> None:
        """End what is being made; where another thread waits for its batch, that thread does it then."""
        self._closed = True
        self._loader.metrics.pause()
        if self._forked:
            return
        try:
            self._given.close()
        except ValueError:
            if getgeneratorstate(self._given) != GEN_RUNNING:
                raise


def _ended() -> ConfigError:
    return ConfigError(
        "this iteration was ended by an error, close(), load_state_dict() or a newer iteration of its loader",
        fix="Iterate the loader again: it continues from its position.",
    )


_running: weakref.WeakSet[Iteration] = weakref.WeakSet()
_elsewhere: list[Any] = []


def _leave_to_parent() -> None:
    """In a process that was forked: threads did not come along, and their locks may be held by nobody.

    So the iterations that were running are neither gone on with nor ended here. They are the parent's.
    """
    for iteration in list(_running):
        iteration._forked = True
        _elsewhere.append(iteration._given)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def _steps(loader: Loader) -> Generator[Given, None, None]:
    """Batches of the grid."""
    steps = dealer_of(loader.plan, loader._grid, loader.dealing).batches(loader._position)
    with closing(make_ahead(loader._make, steps, loader.workers, loader.prefetch)) as ahead:
        for made in ahead:
            given = Given(made.batch, made.step.end, [made], labels=made.labels)
            made.batch = None
            del made  # or a batch would live on, unused, while the next one is waited for
            yield given
            del given


def _packs(loader: Loader) -> Generator[Given, None, None]:
    """Batches of packs, or of groups."""
    cursor, make, grid = loader._cursor, loader._make, loader._grid
    assert cursor is not None and isinstance(make, GroupMaker) and isinstance(grid, Grid)
    steps = (cursor.step(first) for _, first, _ in cursor.windows())
    together = make.batch if make.packs else None
    with closing(make_ahead(loader._make, steps, loader.workers, loader.prefetch)) as ahead:
        keep = grid.remainder != "drop"
        yield from batches_of(cursor.windows(), ahead, together, grid.batch_size, keep_last=keep)
