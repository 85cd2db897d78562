"""Measure MosaicML Streaming with whole shards and an empty cache folder: ``samples|images|windows URL WORKERS``.

``make TARS FOLDER`` and ``make-windows PBIN WIDTH FOLDER`` write its shards.
"""

from __future__ import annotations

import io
import tempfile
import time

from benchmarks.lib.side import answer
from benchmarks.loading.batches import use_pictures
from benchmarks.loading.peers.streaming import package
from benchmarks.object_store.measured import (
    BATCH,
    one_pass,
    parts_of,
    tar_samples,
    token_windows,
    use_samples,
    use_windows,
)

LIMIT, PREDOWNLOAD = 16 << 20, 512


def _pass(url, workers, use, value=None, collate=None):
    from torch.utils.data import DataLoader

    class Values(package().StreamingDataset):
        def __getitem__(self, at):
            sample = super().__getitem__(at)
            return value(sample) if value else sample

    workers = int(workers)
    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        dataset = Values(
            remote=url,
            local=cache,
            shuffle=True,
            batch_size=BATCH,
            predownload=PREDOWNLOAD,
            num_canonical_nodes=1,
        )
        ahead = 2 if workers else None
        loader = DataLoader(dataset, BATCH, num_workers=workers, collate_fn=collate, prefetch_factor=ahead)
        return one_pass(loader, use, began)


def samples(url, workers):
    """Measure the parts of samples as bytes, in lists."""
    return _pass(url, workers, use_samples, collate=list)


def images(url, workers):
    """Measure JPEGs decoded by Pillow."""
    import numpy as np
    from PIL import Image

    def decoded(sample):
        return np.asarray(Image.open(io.BytesIO(sample["jpg"])).convert("RGB"))

    return _pass(url, workers, use_pictures, decoded)


def windows(url, workers):
    """Measure windows of tokens as int64 tensors."""
    import numpy as np

    return _pass(url, workers, use_windows, lambda sample: sample["tokens"].astype(np.int64))


def make(tars, folder):
    """Write shards with every part as bytes."""
    out = None
    for sample in map(parts_of, tar_samples(tars)):
        out = out or package().MDSWriter(out=folder, columns=dict.fromkeys(sample, "bytes"), size_limit=LIMIT)
        out.write(sample)
    out.finish()
    return {}


def make_windows(pbin, width, folder):
    """Write shards of windows, as numpy arrays."""
    columns = {"tokens": f"ndarray:uint16:{width}"}
    with package().MDSWriter(out=folder, columns=columns, size_limit=LIMIT) as out:
        for window in token_windows(pbin, int(width)):
            out.write({"tokens": window})
    return {}


if __name__ == "__main__":
    answer(globals())
