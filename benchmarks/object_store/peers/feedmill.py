"""Run one measurement of Feedmill's loader, or of a lower bound without it (``bare``), and print it as JSON.

samples URL WORKERS SHUFFLE [EPOCHS]   parts as bytes in batches of 64; with two epochs, the second is timed
epochs URL PATH WORKERS EPOCHS         later epochs of a bucket and of local files, which take turns in one process
images URL WORKERS                     photographs decoded
windows URL WORKERS                    windows of 2,049 tokens as int64 tensors
robotics URL WORKERS COUNT             robotics batches of 32, of this number of samples
bare URL IN-FLIGHT                     obstore alone: all tars and token files, in ranges of 4 MiB
rank URL RANK WORLD                    one of several processes: samples, and the growth of its memory

A path instead of a URL is read from the local disk.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.lib.rates import memory_mb
from benchmarks.lib.side import answer
from benchmarks.loading.batches import use_pictures
from benchmarks.object_store.measured import BATCH, one_pass, use_windows

REQUEST, SEQ_LEN = 4 << 20, 2048


def _use(batch: list[Any]) -> int:
    assert sum(len(sample.raw("bin")) for sample in batch) == 15_000 * len(batch)
    return len(batch)


def samples(url: str, workers: str, shuffle: str, epochs: str = "1") -> dict[str, float]:
    """Measure the parts of samples as bytes."""
    import feedmill as fm

    Loader, Plan, open_dataset = fm.Loader, fm.Plan, fm.open  # not counted: imports
    began = time.perf_counter()
    dataset = open_dataset(url, raw=True, decode=None)
    plan = Plan.over(dataset, shuffle=shuffle, epochs=int(epochs))
    loader = Loader(plan, BATCH, rank=0, world_size=1, workers=int(workers), output="samples")
    return one_pass(loader, _use, began, skip=len(dataset) * (int(epochs) - 1))


def epochs(url: str, path: str, workers: str, count: str) -> dict[str, float]:
    """Measure epochs from the cache on disk beside those of the same files on the local disk, after one of each.

    Both take turns in one process, so that other programs and the processor's clock disturb both alike.
    """
    import feedmill as fm

    def batches(where: str) -> tuple[Iterator[list[Any]], int]:
        dataset = fm.open(where, raw=True, decode=None)
        plan = fm.Plan.over(dataset, shuffle="block", epochs=int(count) + 1)
        loader = fm.Loader(plan, BATCH, rank=0, world_size=1, workers=int(workers), output="samples")
        return iter(loader), len(dataset) // BATCH

    taken: dict[str, list[float]] = {url: [], path: []}
    sides = {where: batches(where) for where in taken}
    for _ in range(int(count) + 1):
        for where, (left, of_epoch) in sides.items():
            began = time.perf_counter()
            for batch in itertools.islice(left, of_epoch):
                _use(batch)
            taken[where].append(time.perf_counter() - began)
    rates = {where: BATCH * sides[where][1] * int(count) / sum(taken[where][1:]) for where in taken}
    return {"rate": rates[url], "local": rates[path]}


def images(url: str, workers: str) -> dict[str, float]:
    """Measure pictures in one array per batch."""
    import feedmill as fm

    Loader, Plan, open_dataset = fm.Loader, fm.Plan, fm.open
    began = time.perf_counter()
    plan = Plan.over(open_dataset(url, raw=True), shuffle="block", epochs=1)
    loader = Loader(plan, BATCH, rank=0, world_size=1, workers=int(workers))
    return one_pass((batch["jpg"] for batch in loader), use_pictures, began)


def windows(url: str, workers: str) -> dict[str, float]:
    """Measure windows as tensors."""
    import torch  # noqa: F401

    import feedmill as fm

    Loader, Plan, open_dataset = fm.Loader, fm.Plan, fm.open
    began = time.perf_counter()
    plan = Plan.over(open_dataset(url, seq_len=SEQ_LEN), shuffle="block", epochs=1)
    loader = Loader(plan, BATCH, rank=0, world_size=1, workers=int(workers), output="torch")
    return one_pass((batch["input_ids"] for batch in loader), use_windows, began)


def robotics(url: str, workers: str, count: str) -> dict[str, float]:
    """Measure shuffled robotics batches of one pass."""
    import feedmill.compat.vla  # noqa: F401
    from benchmarks.vla.batches import check_robotics
    from benchmarks.vla.peers.feedmill import robotics_run

    def use(batch: Any) -> int:
        check_robotics(batch)
        return 32

    began = time.perf_counter()
    run = robotics_run(url, workers, shuffle=True)
    return one_pass(itertools.islice(run.loader(), int(count) // 32), use, began)


def bare(url: str, in_flight: str) -> dict[str, float]:
    """Measure reading all tars and token files with obstore alone on one asyncio thread."""
    import obstore
    from obstore.store import S3Store

    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    store = S3Store(bucket, client_options={"allow_http": True}, virtual_hosted_style_request=False)
    files = [(one["path"], one["size"]) for page in obstore.list(store, prefix) for one in page]
    spans = [
        (path, begin, min(size, begin + REQUEST))
        for path, size in files
        if path.endswith((".tar", ".pbin"))
        for begin in range(0, size, REQUEST)
    ]
    size = 0

    async def lane(left: Iterator[tuple[str, int, int]]) -> None:
        nonlocal size
        for path, begin, end in left:
            body = await obstore.get_range_async(store, path, start=begin, end=end)
            size += len(body)  # a sum with `await` in it would lose what other tasks add meanwhile

    async def lanes() -> None:
        left = iter(spans)
        await asyncio.gather(*[lane(left) for _ in range(int(in_flight))])

    began = time.perf_counter()
    asyncio.run(lanes())
    return {"s": time.perf_counter() - began, "bytes": size}


def rank(url: str, number: str, world: str) -> dict[str, float]:
    """Measure one epoch of one rank; the memory is read at each batch."""
    import feedmill as fm

    Loader, Plan, open_dataset = fm.Loader, fm.Plan, fm.open
    before = peak = memory_mb()
    samples, began = 0, time.perf_counter()
    plan = Plan.over(open_dataset(url, raw=True, decode=None), shuffle="block", epochs=1)
    for batch in Loader(plan, BATCH, rank=int(number), world_size=int(world), output="samples"):
        samples += _use(batch)
        peak = max(peak, memory_mb())
    taken = time.perf_counter() - began
    return {"samples": samples, "memory": peak - before, "rate": samples / taken}


if __name__ == "__main__":
    answer(globals())
