"""A share of all requests fails in each way: the stream is that of a local folder, and no batch is late for long."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.helpers.range_server import RangeServer, range_server
from tests.helpers.tars import tar_bytes
from tests.loading.test_ahead import local, plan_of

import feedmill as fm
from feedmill.storage.cache import chunks
from feedmill.storage.cache.settings import DataCache
from feedmill.storage.fetching import lanes, ranges, read_ahead
from feedmill.storage.fetching.fetch import counters, fetcher
from feedmill.storage.remote.object_store import RemoteStore
from helpers.durations import slow_but

KINDS = ["503", "reset", "cut", "drip", "stall", "range"]
MORE = [*KINDS, "500:InternalError", "429:SlowDown", "short", "slow", "late"]
"""What is tried with many samples."""
LIMIT = 10.0
"""Seconds of silence after which a request is made again, if it was not before."""
PATIENCE = 120
"""Seconds that a busy machine may add."""


def many(folder: Path, shards: int, samples: int) -> Path:
    """Write prepared shards of samples of 1 to 2 KB."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for shard in range(shards):
        sizes = rng.integers(1000, 2000, samples).tolist()
        files = [(f"{shard:03}{n:06}.bin", rng.bytes(size)) for n, size in enumerate(sizes)]
        (folder / f"shard_{shard:03}.tar").write_bytes(tar_bytes(files))
    fm.prepare(str(folder), split_ratio="1,0,0", progress=False)
    return folder


class Run(NamedTuple):
    """A pass of a loader.

    Attributes:
        digest: of the keys and bytes of all samples, in order.
        samples: number of samples.
        longest: seconds between two batches at most; the first batch counts from the beginning.
    """

    digest: str
    samples: int
    longest: float


def run(loader) -> Run:
    digest, samples, longest, last = hashlib.sha256(), 0, 0.0, time.monotonic()
    for batch in loader:
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        for key, part in zip(batch["__key__"], batch["bin"], strict=True):
            digest.update(f"{key} {len(part)} ".encode())
            digest.update(part)
        samples += len(batch["__key__"])
    return Run(digest.hexdigest(), samples, longest)


def served(folder: Path) -> Iterator[RangeServer]:
    with range_server() as server:
        server.silence = 60.0
        for path in folder.rglob("*"):
            if path.is_file():
                server.objects[f"data/{path.relative_to(folder)}"] = path.read_bytes()
        yield server


def fail(server: RangeServer, kinds: list[str], share: float, seed: int = 0) -> None:
    """Let a share of the requests for shards fail in each way: one of each 1 / share requests."""
    rng = random.Random(seed)
    deck: list[str | None] = []

    def fault(number: int, begin: int, end: int) -> str | None:
        if not server.keys[number].endswith(".tar"):
            return None
        with server.lock:
            if not deck:
                deck.extend([*kinds, *[None] * (round(1 / share) - len(kinds))])
                rng.shuffle(deck)
            return deck.pop()

    server.faults.clear()
    server.fault = fault


@pytest.fixture(autouse=True)
def caches(monkeypatch):
    monkeypatch.setattr(fetcher(), "_hedging", True)  # as in other tests it does not; see `conftest.py`
    yield
    for cache in chunks._caches.values():
        cache.close()
    chunks._caches.clear()


def small_requests(monkeypatch, target: int) -> None:
    """Make more requests for the same bytes, so that some of them fail."""
    monkeypatch.setattr(ranges, "LONG", target)
    monkeypatch.setattr(read_ahead, "TARGET", target)
    monkeypatch.setattr(ranges, "LARGEST", 2 * target)


def failing_run(server, tmp_path, kinds, share, workers, cache, **options) -> Run:
    server.fault = lambda number, begin, end: None
    plan = plan_of(RemoteStore("s3://bkt/data", **server.options, **options))
    plan.cache = DataCache(1 << 30, tmp_path / "cache", "block") if cache else None
    fail(server, kinds, share)
    before = counters()
    found = run(fm.Loader(plan, 64, workers=workers))
    made = {name: value - before[name] for name, value in counters().items()}
    print(f"{'+'.join(kinds)}, {workers} workers, cache {cache}: {found.longest:.2f} s, {dict(server.faults)}, {made}")
    assert all(server.faults[kind] for kind in kinds)
    assert made["fetch_hedges"] <= 4 + 0.05 * counters()["fetch_requests"]
    return found


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return many(tmp_path_factory.mktemp("few") / "data", 4, 500)


@pytest.mark.parametrize(("workers", "cache"), slow_but(product([0, 2], [False, True]), (2, True)))
def test_two_thousand_samples_of_which_requests_fail_in_each_way(few, tmp_path, monkeypatch, workers, cache):
    small_requests(monkeypatch, 16 << 10)
    monkeypatch.setattr(lanes, "_OVERDUE", 0.2)
    expected = run(fm.Loader(local(few), 64))
    for server in served(few):
        share = 0.1 if cache else 0.02  # of pages, which are few
        found = failing_run(server, tmp_path, KINDS, share, workers, cache, client_options={"read_timeout": "1s"})
    assert found[:2] == expected[:2] == (expected.digest, 2000)
    assert found.longest < LIMIT + PATIENCE


@pytest.fixture(scope="module")
def lots(tmp_path_factory):
    return many(tmp_path_factory.mktemp("lots") / "data", 10, 10_000)


@pytest.fixture(scope="module")
def expected(lots):
    return run(fm.Loader(local(lots), 64))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("kinds", [*([kind] for kind in MORE), MORE], ids=[*MORE, "all"])
def test_a_hundred_thousand_samples_of_which_requests_fail(
    lots, expected, tmp_path, monkeypatch, kinds, workers, cache
):
    small_requests(monkeypatch, 256 << 10)
    for server in served(lots):
        found = failing_run(server, tmp_path, kinds, 0.02, workers, cache)
    assert found[:2] == expected[:2] == (expected.digest, 100_000)
    assert found.longest < LIMIT + PATIENCE
