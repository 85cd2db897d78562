"""Energon's pool of processes whose results one object of this process collects."""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Generic, TypeVar

from feedmill.errors import ConfigError, FeedmillError

__all__ = ["AggregatorPool", "BaseAggregator"]

Item = TypeVar("Item")
Result = TypeVar("Result")
_inherited: tuple[Callable[[Any], Iterable[Any]], tuple[Any, ...]]
"""The function and the tasks, in the processes of a pool."""


class BaseAggregator(ABC, Generic[Item, Result]):
    """Base of the object that collects results."""

    def on_start(self, aggregator_pool: AggregatorPool) -> None:
        """Do something before the first result."""

    @abstractmethod
    def on_item(self, items: list[Item], aggregator_pool: AggregatorPool) -> None:
        """Take the next results.

        Args:
            items: up to ``batch_size`` results of one task.
            aggregator_pool: the pool.
        """

    def on_finish(self, aggregator_pool: AggregatorPool) -> None:
        """Do something after the last result."""

    def get_final_result_data(self) -> Result | None:
        """Return what `AggregatorPool.process` returns."""
        return None


class AggregatorPool:
    """A pool of forked processes. Each task yields results, which the aggregator takes in this process.

    Args:
        num_workers: number of processes.
        user_produce_data: function from a task to its results.
        aggregator: takes the results.
        batch_size: maximum number of results that the aggregator takes at once; a process sends those of a whole task.

    Raises:
        ConfigError: a number is not positive.
    """

    def __class_getitem__(cls, _types: Any) -> type[AggregatorPool]:
        return cls

    def __init__(
        self,
        num_workers: int,
        user_produce_data: Callable[[Any], Iterable[Any]],
        aggregator: BaseAggregator[Any, Any],
        *,
        batch_size: int = 1,
    ) -> None:
        if num_workers < 1 or batch_size < 1:
            raise ConfigError(
                f"num_workers={num_workers} and batch_size={batch_size} must be positive", fix="Use 1 or more."
            )
        self.num_workers, self.batch_size = num_workers, batch_size
        self.user_produce_data, self.aggregator = user_produce_data, aggregator
        self._tasks: list[Any] = []

    def submit_task(self, task: Any) -> None:
        """Add a task for `process`."""
        self._tasks.append(task)

    def process(self) -> Any:
        """Run all tasks. Return the aggregator's `get_final_result_data`.

        Raises:
            FeedmillError: a process was killed.
            Exception: whatever a task or the aggregator raises.
        """
        context = multiprocessing.get_context("fork")  # tasks and functions need not be pickled
        inherited = self.user_produce_data, tuple(self._tasks)
        self.aggregator.on_start(self)
        with ProcessPoolExecutor(self.num_workers, context, _inherit, inherited) as pool:
            running = [pool.submit(_results, number) for number in range(len(self._tasks))]
            self._tasks.clear()
            try:
                for done in as_completed(running):
                    results = done.result()
                    for first in range(0, len(results), self.batch_size):
                        self.aggregator.on_item(results[first : first + self.batch_size], self)
            except BrokenProcessPool as error:
                raise FeedmillError("a worker process was killed", kind="worker-died") from error
            finally:
                pool.shutdown(cancel_futures=True)
        self.aggregator.on_finish(self)
        return self.aggregator.get_final_result_data()


def _inherit(function: Callable[[Any], Iterable[Any]], tasks: tuple[Any, ...]) -> None:
    """Keep what a process inherits from the one that forked it."""
    global _inherited
    _inherited = function, tasks


def _results(number: int) -> list[Any]:
    """Return the results of one task."""
    function, tasks = _inherited
    return list(function(tasks[number]))
