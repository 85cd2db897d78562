"""Measure LitData with whole chunks and an empty cache folder: ``samples|images|windows URL WORKERS``.

``make TARS FOLDER`` and ``make-windows PBIN WIDTH FOLDER`` write its chunks.
"""

from __future__ import annotations

import functools
import io
import os
import tempfile
import time

from benchmarks.lib.side import answer
from benchmarks.loading.batches import use_pictures
from benchmarks.object_store.measured import (
    BATCH,
    one_pass,
    parts_of,
    tar_samples,
    token_windows,
    use_samples,
    use_windows,
)

WIDTH, WINDOWS = 2049, 4096
"""Tokens per window, and windows per chunk of 16 MB."""


def _pass(url, workers, use, value=None, collate=None, **options):
    import litdata.streaming.downloader as downloader
    from litdata import StreamingDataLoader, StreamingDataset

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it rejects plain http, and has no option to allow it

    class Values(StreamingDataset):
        def __getitem__(self, at):
            sample = super().__getitem__(at)
            return value(sample) if value else sample

    storage = {
        "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
        "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "region_name": os.environ["AWS_REGION"],
    }
    workers = int(workers)
    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        dataset = Values(url, cache_dir=cache, shuffle=True, storage_options=storage, **options)
        ahead = {"prefetch_factor": 2} if workers else {}
        collation = {"collate_fn": collate} if collate else {}
        loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, **ahead, **collation)
        return one_pass(loader, use, began)


def _as_bytes(batch):
    """Return the sample with bytes: its workers cannot send views, and would then hang."""
    return [
        {name: bytes(value) if isinstance(value, memoryview) else value for name, value in one.items()} for one in batch
    ]


def samples(url, workers):
    """Measure the parts of samples as bytes, in lists."""
    return _pass(url, workers, use_samples, collate=_as_bytes)


def images(url, workers):
    """Measure JPEGs decoded by Pillow."""
    import numpy as np
    from PIL import Image

    def decoded(sample):
        return np.asarray(Image.open(io.BytesIO(sample["jpg"])).convert("RGB"))

    return _pass(url, workers, use_pictures, decoded)


def windows(url, workers):
    """Measure windows of tokens as int64 tensors, with its `TokensLoader`."""
    from litdata.streaming import TokensLoader

    return _pass(url, workers, use_windows, lambda window: window.long(), item_loader=TokensLoader(WIDTH))


def _windows(pbin, width, _):
    import torch

    for window in token_windows(pbin, width):
        yield torch.from_numpy(window.copy())


def make(tars, folder):
    """Write chunks with every part as bytes, with its `optimize`."""
    from litdata import optimize

    optimize(fn=functools.partial(_all, tars), inputs=[0], output_dir=folder, chunk_bytes="16MB", num_workers=1)
    return {}


def _all(tars, _):
    yield from map(parts_of, tar_samples(tars))


def make_windows(pbin, width, folder):
    """Write chunks of tokens."""
    from litdata import optimize
    from litdata.streaming import TokensLoader

    optimize(
        fn=functools.partial(_windows, pbin, int(width)),
        inputs=[0],
        output_dir=folder,
        chunk_size=WINDOWS * int(width),
        num_workers=1,
        item_loader=TokensLoader(),
    )
    return {}


if __name__ == "__main__":
    answer(globals())
