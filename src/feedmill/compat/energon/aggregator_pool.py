"""Energon's pool of processes whose results one object of this process collects."""

from __future__ import annotations

import multiprocessing
import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from feedmill.errors import ConfigError, FeedmillError

__all__ = ["AggregatorPool", "BaseAggregator"]

Item = TypeVar("Item")
Result = TypeVar("Result")
_PATIENCE = 1.0
"""Seconds without a result after which the pool looks whether its processes are alive."""


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
        batch_size: maximum number of results to send at once.

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
        following, results = context.Value("q", 0), context.Queue()
        workers = [context.Process(target=self._work, args=(following, results)) for _ in range(self.num_workers)]
        for worker in workers:
            worker.start()
        try:
            self.aggregator.on_start(self)
            for batch in _results(results, workers):
                self.aggregator.on_item(batch, self)
            self.aggregator.on_finish(self)
        except BaseException:
            for worker in workers:
                worker.terminate()
            raise
        finally:
            for worker in workers:
                worker.join()
            self._tasks.clear()
        return self.aggregator.get_final_result_data()

    def _work(self, following: Any, results: Any) -> None:
        try:
            while True:
                with following.get_lock():
                    number = following.value
                    following.value += 1
                if number >= len(self._tasks):
                    break
                batch: list[Any] = []
                for item in self.user_produce_data(self._tasks[number]):
                    batch.append(item)
                    if len(batch) == self.batch_size:
                        results.put(batch)
                        batch = []
                if batch:
                    results.put(batch)
            results.put(None)
        except Exception as error:
            results.put(error)


def _results(results: Any, workers: list[Any]) -> Iterator[list[Any]]:
    """Yield batches until each worker has sent None."""
    running = len(workers)
    while running:
        try:
            batch = results.get(timeout=_PATIENCE)
        except queue.Empty:
            codes = [worker.exitcode for worker in workers if worker.exitcode]
            if codes:
                raise FeedmillError(
                    f"a worker process ended with the exit code {codes[0]}", kind="worker-died"
                ) from None
            continue
        if isinstance(batch, Exception):
            raise batch
        if batch is None:
            running -= 1
        else:
            yield batch
