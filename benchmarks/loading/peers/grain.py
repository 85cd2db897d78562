"""Measure Grain with ArrayRecord on local raw samples: ``make TARS FOLDER``, then ``samples FOLDER``."""

from __future__ import annotations

import pickle
from pathlib import Path

from benchmarks.lib.rates import rate
from benchmarks.lib.side import answer
from benchmarks.loading.batches import SECONDS, raw_samples, together


def make(tars, folder):
    """Write one ArrayRecord with a pickled dict for each sample."""
    from array_record.python.array_record_module import ArrayRecordWriter

    Path(folder).mkdir(parents=True)
    writer = ArrayRecordWriter(f"{folder}/all.array_record", "group_size:1")
    for sample in raw_samples(tars):
        writer.write(pickle.dumps(sample))
    writer.close()
    return {}


def samples(folder):
    """Measure shuffled samples without threads."""
    import grain

    source = grain.sources.ArrayRecordDataSource(f"{folder}/all.array_record")
    found = grain.MapDataset.source(source).seed(1).shuffle().repeat().map(pickle.loads)
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return rate(together(iter(found.to_iter_dataset(options))), SECONDS)


if __name__ == "__main__":
    answer(globals())
