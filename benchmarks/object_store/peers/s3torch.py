"""Measure s3torchconnector over tars with webdataset's parser, buffer of 1,000: ``samples|images URL WORKERS``."""

from __future__ import annotations

import os
import time

from benchmarks.lib.side import answer
from benchmarks.loading.batches import use_pictures
from benchmarks.loading.peers.webdataset import as_they_are, stacked_jpg
from benchmarks.object_store.measured import BATCH, one_pass, use_samples

BUFFER = 1000


def _pass(url, workers, decode, collation, use):
    import torch
    from s3torchconnector import S3ClientConfig, S3IterableDataset
    from webdataset.autodecode import Decoder, imagehandler
    from webdataset.filters import batched, shuffle
    from webdataset.tariterators import group_by_keys, tar_file_expander

    objects = S3IterableDataset.from_prefix(
        f"{url}/shard-",
        region=os.environ["AWS_REGION"],
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        enable_sharding=True,
        s3client_config=S3ClientConfig(force_path_style=True),
    )

    class Samples(torch.utils.data.IterableDataset):
        def __iter__(self):
            files = ({"url": one.key, "stream": one} for one in objects if one.key.endswith(".tar"))
            stream = shuffle(BUFFER)(group_by_keys(tar_file_expander(files)))
            if decode:
                stream = map(Decoder([imagehandler(decode)]), stream)
            return iter(batched(BATCH, collation_fn=collation)(stream))

    began = time.perf_counter()
    loader = torch.utils.data.DataLoader(Samples(), batch_size=None, num_workers=int(workers))
    return one_pass(loader, use, began)


def samples(url, workers):
    """Measure the parts of samples as bytes, in lists."""
    return _pass(url, workers, None, as_they_are, use_samples)


def images(url, workers):
    """Measure JPEGs as uint8 arrays, stacked."""
    return _pass(url, workers, "rgb8", stacked_jpg, use_pictures)


if __name__ == "__main__":
    answer(globals())
