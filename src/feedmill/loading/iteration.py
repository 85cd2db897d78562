"""One pass of a loader: what is made ahead is given out in order, and the loader is told how far that has come.

Everything behind a batch that was given out is not yet the loader's past: it is made again after a resume.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING, Any, Self

from feedmill.errors import ConfigError
from feedmill.loading.collate import to_torch
from feedmill.loading.groups import Given, batches_of
from feedmill.loading.workers import make_ahead

if TYPE_CHECKING:
    from feedmill.loading.loader import Loader


class Iteration(Iterator[Any]):
    """One pass of a loader. Its threads or processes end when it is exhausted, closed, or no longer referred to."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        given = _steps(loader) if loader._cursor is None else _packs(loader)
        self._given = given if loader._transfer is None else loader._transfer.ahead(given)
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise ConfigError(
                "this iteration was ended by an error, close(), load_state_dict() or a newer iteration of its loader",
                fix="Iterate the loader again: it goes on from its position.",
            )
        loader, asked = self._loader, time.perf_counter()
        try:
            given = next(self._given)
            for made in given.made:
                loader._count(made)
            loader.metrics.transferred(given.transfer)
        except StopIteration:
            loader._ended()
            raise
        except BaseException:
            self.close()
            raise
        loader._consumed(given.after)
        batch = to_torch(given.batch) if loader._output == "torch" else given.batch
        loader._measured(asked)
        return batch

    def close(self) -> None:
        """End what is being made."""
        self._closed = True
        self._loader.metrics.pause()
        self._given.close()


def _steps(loader: Loader) -> Generator[Given, None, None]:
    """Batches of the grid."""
    grid = loader._grid
    first = grid.number_at(loader._position)
    numbers = count(first) if grid.steps is None else range(first, grid.steps)
    with closing(make_ahead(loader._make, map(grid.step, numbers), loader.workers, loader.prefetch)) as ahead:
        for made in ahead:
            given = Given(made.batch, made.step.end, [made])
            made.batch = None
            del made  # or a batch would live on, unused, while the next one is waited for
            yield given
            del given


def _packs(loader: Loader) -> Generator[Given, None, None]:
    """Batches of packs, or of groups."""
    cursor, encoder, grid = loader._cursor, loader._encoder, loader._grid
    assert cursor is not None and encoder is not None
    steps = (cursor.step(first) for _, first, _ in cursor.windows())
    together = encoder.together if encoder.packs else None
    with closing(make_ahead(loader._make, steps, loader.workers, loader.prefetch)) as ahead:
        keep = grid.remainder != "drop"
        yield from batches_of(cursor.windows(), ahead, together, grid.batch_size, keep_last=keep)
