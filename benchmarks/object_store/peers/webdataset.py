"""Measure webdataset over ``pipe:curl``: shuffled shards, a buffer of 1,000: ``samples|images URL WORKERS TAR...``.

``robotics URL WORKERS FOLDER TAR...`` makes the batches of ``vla/``, with the statistics of a local folder. URL is the
HTTP address of the folder.
"""

from __future__ import annotations

import time

from benchmarks.lib.side import answer
from benchmarks.loading.batches import use_pictures
from benchmarks.loading.peers.webdataset import as_they_are, stacked_jpg
from benchmarks.object_store.measured import BATCH, one_pass, use_samples

BUFFER = 1000


def _piped(url, tars):
    return [f"pipe:curl -s -f {url}/{tar}" for tar in tars]


def _pass(url, workers, tars, decode, collation, use):
    import webdataset as wds

    began = time.perf_counter()
    stream = wds.WebDataset(
        _piped(url, tars), shardshuffle=len(tars), nodesplitter=wds.split_by_node, empty_check=False
    ).shuffle(BUFFER)
    if decode:
        stream = stream.decode(decode)
    loader = wds.WebLoader(stream.batched(BATCH, collation_fn=collation), batch_size=None, num_workers=int(workers))
    return one_pass(loader, use, began)


def samples(url, workers, *tars):
    """Measure the parts of samples as bytes, in lists."""
    return _pass(url, workers, tars, None, as_they_are, use_samples)


def images(url, workers, *tars):
    """Measure JPEGs as uint8 arrays, stacked."""
    return _pass(url, workers, tars, "rgb8", stacked_jpg, use_pictures)


def robotics(url, workers, folder, *tars):
    """Measure robotics batches of 32, as in ``vla/``, shuffled."""
    import webdataset as wds

    from benchmarks.vla.batches import check_robotics
    from benchmarks.vla.peers.webdataset import Robotics

    def use(batch):
        if len(batch["text"]) == 32:  # the last batch of a pass may be smaller
            check_robotics(batch)
        return len(batch["text"])

    began, work = time.perf_counter(), Robotics(folder)
    stream = wds.WebDataset(
        _piped(url, tars), shardshuffle=len(tars), nodesplitter=wds.split_by_node, empty_check=False
    ).shuffle(BUFFER // 10)
    stream = stream.decode("rgb8").map(work.sample).batched(32, collation_fn=work.batch)
    return one_pass(wds.WebLoader(stream, batch_size=None, num_workers=int(workers)), use, began)


if __name__ == "__main__":
    answer(globals())
