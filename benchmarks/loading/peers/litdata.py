"""Measure LitData, with pictures decoded by Pillow: ``make TARS FOLDER``, then ``jpeg FOLDER WORKERS``.

Raw samples: ``make-raw TARS FOLDER``, then ``samples FOLDER``.
"""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.lib.rates import endless, rate
from benchmarks.lib.side import answer
from benchmarks.loading.batches import BATCH, SECONDS, jpegs, raw_samples, together, use_pictures


def jpeg(folder, workers):
    """Measure shuffled samples in its loader. Its type for JPEGs is not used: it needs a matching torchvision."""
    from litdata import StreamingDataLoader, StreamingDataset
    from PIL import Image

    class Pictures(StreamingDataset):
        def __getitem__(self, at):
            return np.asarray(Image.open(io.BytesIO(super().__getitem__(at)["jpg"])).convert("RGB"))

    loader = StreamingDataLoader(Pictures(folder, shuffle=True), batch_size=BATCH, num_workers=int(workers))
    return rate(map(use_pictures, endless(loader)), SECONDS)


def _picture(path):
    return {"jpg": Path(path).read_bytes()}


def make(tars, folder):
    """Write chunks of 64 MB from files with its `optimize`."""
    from litdata import optimize

    with tempfile.TemporaryDirectory() as files:
        paths = []
        for name, data in jpegs(tars):
            paths.append(os.path.join(files, name))
            Path(paths[-1]).write_bytes(data)
        optimize(fn=_picture, inputs=paths, output_dir=folder, chunk_bytes="64MB", num_workers=1)
    return {}


def make_raw(tars, folder):
    """Write chunks of 8 MB: it shuffles within a chunk, which it holds in memory."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(folder, chunk_bytes=8 << 20)
    for number, sample in enumerate(raw_samples(tars)):
        writer[number] = sample
    writer.done()
    writer.merge()
    return {}


def samples(folder):
    """Measure shuffled raw samples, without workers."""
    from litdata import StreamingDataset

    return rate(together(endless(StreamingDataset(folder, shuffle=True, seed=1))), SECONDS)


if __name__ == "__main__":
    answer(globals())
