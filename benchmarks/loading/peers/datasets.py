"""Measure Hugging Face datasets on local raw samples: ``make TARS FOLDER``, then ``columns|one FOLDER``."""

from __future__ import annotations

import itertools

from benchmarks.lib.rates import rate
from benchmarks.lib.side import answer
from benchmarks.loading.batches import BATCH, SECONDS, raw_samples, singles


def make(tars, folder):
    """Write one Arrow table."""
    import pyarrow
    from datasets import Dataset

    Dataset(pyarrow.Table.from_pylist(list(raw_samples(tars)))).save_to_disk(folder)
    return {}


def columns(folder):
    """Measure shuffled batches as lists of bytes by part, a new order each epoch."""
    from datasets import load_from_disk

    dataset = load_from_disk(folder)
    epochs = (dataset.shuffle(seed=epoch).iter(BATCH) for epoch in itertools.count())
    return rate((len(next(iter(batch.values()))) for batches in epochs for batch in batches), SECONDS)


def one(folder):
    """Measure single samples at random."""
    from datasets import load_from_disk

    dataset = load_from_disk(folder)
    return rate(singles(lambda number: dataset[number].values(), len(dataset)), SECONDS)


if __name__ == "__main__":
    answer(globals())
