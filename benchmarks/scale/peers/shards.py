"""Measure datasets of 10^5 shards, and print the numbers as JSON. SIZE is a fraction of that.

opened SIZE             open a prepared folder of 1 PB, plan it, and load the first batches of rank 4,095 of 4,096
remote SIZE DELAY       the same from a store that answers after DELAY seconds, with requests and bytes
listed SIZE DELAY       list the folder, on the disk and from that store
prepared SIZE           prepare 10^5 tars of one sample each; again; and check them
rows COUNT              write ``index.sqlite`` and the index of names for COUNT samples of two parts
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.lib.side import answer
from benchmarks.scale import data
from benchmarks.scale.clock import Clock, now_mb, peak_mb
from benchmarks.scale.store import FakeStore, fake_store
from feedmill import Loader, Plan
from feedmill import open as open_dataset

BATCH, RANKS, BATCHES = 8, 4096, 50


def opened(size: str) -> dict[str, float]:
    """Measure a folder on the disk."""
    folder = str(data.prepared(float(size)))
    numbers = Clock(start_mb=peak_mb())
    _load(numbers, folder)
    with numbers.step("describe"):
        assert open_dataset(folder).describe()["bytes"]
    meta = Path(folder, ".nv-meta")
    numbers["meta_bytes"] = sum(file.stat().st_size for file in meta.iterdir())
    numbers["peak_mb"] = peak_mb()
    return numbers


def remote(size: str, delay: str) -> dict[str, float]:
    """Measure the folder in a store, with an empty cache."""
    folder = data.prepared(float(size))
    numbers = Clock(start_mb=peak_mb())
    with fake_store(folder, float(delay)) as store, _client(store):
        _load(numbers, "s3://bkt", store)
        _count(numbers, "describe", store)
        with numbers.step("describe"):
            assert open_dataset("s3://bkt").describe()["bytes"]
        _count(numbers, "describe", store)
    numbers["peak_mb"] = peak_mb()
    return numbers


def _load(numbers: Clock, folder: str, store: FakeStore | None = None) -> None:
    with numbers.step("open"):
        dataset = open_dataset(folder, split="train", raw=True, decode=None)
    _count(numbers, "open", store)
    numbers["opened_mb"] = now_mb()
    with numbers.step("plan"):
        plan = Plan.over(dataset)
    with numbers.step("fingerprint"):
        assert plan.fingerprint
    positions = np.random.default_rng(0).integers(0, len(dataset), 65_536)
    with numbers.step("locate"):
        plan.locate(positions)
    loader = Loader(plan, BATCH, rank=RANKS - 1, world_size=RANKS, output="samples", start=RANKS * BATCH)
    batches = iter(loader)
    with numbers.step("first_batch"):
        batch = next(batches)
        assert all(len(sample.raw("bin")) == data.BYTES for sample in batch)
    _count(numbers, "first_batch", store)
    with numbers.step("later_batches"):
        for _, batch in zip(range(BATCHES), batches, strict=False):
            assert sum(len(sample.raw("bin")) for sample in batch)
    _count(numbers, "later_batches", store)
    numbers["shards_open"] = len(dataset.table._offsets)
    numbers["loaded_mb"] = now_mb()
    loader.close()


def _count(numbers: Clock, name: str, store: FakeStore | None) -> None:
    """Move the counts of a store so far to the numbers."""
    if store is not None:
        for kind in ("list", "head", "get", "bytes"):
            numbers[f"{name}_{kind}"] = store.counts.pop(kind, 0)


@contextmanager
def _client(store: FakeStore) -> Iterator[None]:
    """Let this process find the store, with an empty cache folder."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update(store.environment, FEEDMILL_CACHE_DIR=cache)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def listed(size: str, delay: str) -> dict[str, float]:
    """Measure lists of all files; there are two for each shard."""
    from feedmill.storage import open_store

    folder = data.prepared(float(size))
    numbers = Clock(start_mb=peak_mb())
    with numbers.step("local"):
        numbers["files"] = len(list(open_store(folder).files()))
    with fake_store(folder, float(delay)) as store, _client(store):
        with numbers.step("remote"):
            assert len(list(open_store("s3://bkt").files())) == numbers["files"]
        numbers["requests"] = store.counts["list"]
    numbers["peak_mb"] = peak_mb()
    return numbers


def prepared(size: str) -> dict[str, float]:
    """Measure the work for each shard: the samples are few and small."""
    from feedmill import check, prepare

    folder = str(data.small_tars(float(size)))
    numbers = Clock(start_mb=peak_mb())
    for name in ("prepare", "again"):
        with numbers.step(name):
            report = prepare(folder, progress=False)
    assert report.reused == report.shards
    with numbers.step("check"):
        check(folder, progress=False)
    numbers["peak_mb"] = peak_mb()
    return numbers


def rows(count: str) -> dict[str, float]:
    """Measure the part of `prepare` that one process does for all samples."""
    from feedmill.formats.energon.index import IndexRows, write_index
    from feedmill.formats.energon.members import write_members

    samples = int(float(count))
    number, sample = np.divmod(np.arange(samples, dtype=np.int64), 10_000)
    keys = [f"{n:012d}" for n in range(samples)]
    twice = np.repeat(number, 2), np.repeat(sample, 2)
    offsets = np.arange(2 * samples, dtype=np.int64) % 20_000 * 5120 + 512
    table = IndexRows(
        number, sample, sample * 10_240, np.full(samples, 10_240), keys,
        *twice, offsets, np.full(2 * samples, 4096), ["jpg", "json"] * samples,
    )  # fmt: skip
    numbers = Clock(rows_mb=now_mb())
    folder = Path(tempfile.mkdtemp(dir=data.corpus.folder()))
    try:
        for name, write in (("sqlite", write_index), ("members", write_members)):
            path = folder / name
            with numbers.step(name):
                write(path, table, *(["0" * 36] if name == "members" else []))
            numbers[f"{name}_bytes"] = path.stat().st_size
    finally:
        shutil.rmtree(folder)
    numbers["peak_mb"] = peak_mb()
    return numbers


if __name__ == "__main__":
    answer(globals())
