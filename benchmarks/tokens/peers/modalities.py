"""Measure Modalities: ``index FILE INDEX``, ``windows FILE SEQ_LEN``, ``rewrite shuffle|chunk|merge IN OUT RUNS``."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.lib.side import answer
from benchmarks.tokens.timing import Work, numbers, rewritten, singles


def index(path: str, index: str) -> dict[str, float]:
    """Return the seconds of the index generator."""
    from modalities.dataloader.create_index import IndexGenerator

    Path(index).unlink(missing_ok=True)
    begun = time.perf_counter()
    IndexGenerator(Path(path)).create_index(Path(index))
    return {"s": time.perf_counter() - begun}


def windows(path: str, seq_len: str) -> dict[str, float]:
    """Measure random windows, one at a time: it has no batches."""
    from modalities.dataloader.dataset_factory import DatasetFactory

    dataset = DatasetFactory.get_packed_mem_map_dataset_continuous(Path(path), int(seq_len), "input_ids", True)
    return singles(dataset, numbers(len(dataset)), int(seq_len) + 1)


def rewrite(what: str, source: str, target: str, runs: str) -> dict[str, float]:
    """Measure rewriting, see `rewritten`."""
    return rewritten(_rewriting, what, source, target, runs)


def _rewriting(what: str, source: Path, target: Path) -> Work:
    """Return the call of the functions of its commands."""
    from modalities.api import (
        FileExistencePolicy,
        create_shuffled_dataset_chunk,
        merge_packed_data_files,
        shuffle_tokenized_data,
    )

    output, policy = target / "x.pbin", FileExistencePolicy.OVERRIDE
    if what == "shuffle":
        return lambda: shuffle_tokenized_data(source, output, 100, policy, 1)
    if what == "chunk":
        return lambda: create_shuffled_dataset_chunk([source], output, 0, 1, policy, 1)
    return lambda: merge_packed_data_files([source, source], output)


if __name__ == "__main__":
    answer(globals())
