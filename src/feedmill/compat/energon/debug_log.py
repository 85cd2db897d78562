"""Energon's debug logs: the keys of the batches that a loader yielded, as JSON lines.

`WorkerConfig` has their path and level, and ``energon analyze-debug`` reads them. Feedmill's ledger (`feedmill trace`)
has the same facts for any run without a log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from feedmill.compat.energon.sample_utils import default_get_batch_keys
from feedmill.compat.energon.worker import WorkerConfig

__all__ = ["DebugLog"]

YIELD, BATCH, LOOP = "SavableDataLoader.yield", "yield_batch", "SavableDataLoader.iter"
BATCHES, SOURCES = 1, 2
"""Levels from which batches are logged, and the locations of their samples, too."""


class DebugLog:
    """Log of a loader. The file of worker 0 has its batches; those of the other workers have their shares of them.

    As workers of Feedmill have no fixed shares, batch ``i`` counts as that of worker ``i % num_workers``.

    Args:
        config: rank, workers, path and level of the log.
        number: number of the loader in this process.
        mode: ``train`` or ``val``.
    """

    def __init__(self, config: WorkerConfig, number: int, mode: str) -> None:
        self._config, self._number, self._mode = config, number, mode
        self._files: dict[int, TextIO] = {}
        self._loops = self._batches = 0

    def batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the batches of a loop, each of which is logged before it."""
        return batches if self._config.worker_log_level < BATCHES else self._logged(batches)

    def _logged(self, batches: Iterable[Any]) -> Iterator[Any]:
        config = self._config
        loop, self._loops = self._loops, self._loops + 1
        head = {"r": config.rank, "w": None, "id": self._number, "iter_id": loop}
        self._write(0, {"t": LOOP, **head, "m": self._mode})
        for index, batch in enumerate(batches):
            step, self._batches = self._batches, self._batches + 1
            keys = default_get_batch_keys(batch)
            entry = {"t": YIELD, **head, "m": self._mode, "idx": index, "iter_idx": index, "global_idx": step}
            self._write(0, {**entry, "keys": keys})
            if config.num_workers:
                worker = index % config.num_workers
                self._write(1 + worker, {**self._share(worker, index, batch), "keys": keys})
            yield batch

    def _share(self, worker: int, index: int, batch: Any) -> dict[str, Any]:
        """Return the entry of a batch in the log of a worker."""
        config = self._config
        number = config.rank * config.num_workers + worker
        entry: dict[str, Any] = {"t": BATCH, "r": config.rank, "w": number, "m": self._mode, "idx": index}
        if config.worker_log_level >= SOURCES:
            entry["sources"] = [
                {"dataset": source.dataset, "file": source.file, "offset": source.offset, "index": source.index}
                for source in _sources(batch)
            ]
        return entry

    def _write(self, worker: int, entry: dict[str, Any]) -> None:
        """Write a line: to the file of a worker (0 for this process), or to the standard output without a path."""
        config, line = self._config, json.dumps(entry)
        if config.worker_debug_path is None:
            print(line, flush=True)  # noqa: T201 - as Energon does
            return
        file = self._files.get(worker)
        if file is None:
            number = config.rank * (config.num_workers + 1) + worker
            path = Path(config.worker_debug_path.format(worker_id=number, pid=os.getpid()))
            path.parent.mkdir(parents=True, exist_ok=True)
            file = self._files[worker] = path.open("w", encoding="utf-8")
        print(line, file=file, flush=True)


def _sources(batch: Any) -> list[Any]:
    """Return the locations of the samples of a batch, as far as it has them."""
    given = batch.get("__sources__") if isinstance(batch, dict) else getattr(batch, "__sources__", None)
    return [
        source
        for entry in given or ()
        for source in (entry if isinstance(entry, list | tuple) else [entry])
        if hasattr(source, "dataset")
    ]
