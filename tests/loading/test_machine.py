"""Several processes of one machine: each byte is fetched once, memory and disk stay within their limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.chunk_files import disk_bytes
from tests.helpers.range_server import RangeServer
from tests.loading.test_ahead import local
from tests.loading.test_faults_large import many, run, served

import feedmill as fm
from helpers import warm

MIB = 1 << 20
BUDGET = 64 * MIB
OVERHEAD = 160 * MIB
"""Bytes of a process beyond its start: libraries, threads, indices, batches. 60 MiB of it are taken on a disk, too."""
COPIES = 2.5
"""Bytes of memory for each byte of the budget: the HTTP library copies what is in flight."""
SLACK = 4 * MIB
"""What a file system may keep beside the pages: maps, and blocks of its own."""

PROGRAM = """
import json, sys
sys.path[:0] = sys.argv[1:2]
import feedmill as fm
from tests.loading.test_faults_large import run
from feedmill.formats.energon.prepared import open_prepared
from feedmill.planning.plan import Plan
from feedmill.storage.cache import settings as datacache
from feedmill.storage.remote.object_store import RemoteStore
datacache._MIN_SIZE = 0
store = RemoteStore("s3://bkt/data", endpoint=sys.argv[2], region="us-east-1", skip_signature=True)
plan = Plan.over(open_prepared(store, "train"), epochs=1, seed=3)
def peak():  # not ru_maxrss, which a child has from its parent
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) << 10
before = peak()
rank, world = int(sys.argv[3]), int(sys.argv[4])
found = run(fm.Loader(plan, 64, rank=rank, world_size=world, workers=rank % 3))
print(json.dumps({"samples": found.samples, "digest": found.digest, "memory": peak() - before}))
"""


def together(
    server: RangeServer, folder: Path, ranks: list[tuple[int, int]], size: int, budget: int = BUDGET
) -> tuple[list[Any], int]:
    """Load in processes, each of which is one of some ranks.

    Args:
        size: of their cache; 0 for none.
        budget: bytes that each reads ahead.

    Returns:
        What they found, and the most bytes that the cache took on the disk meanwhile.
    """
    environment = {
        **os.environ,
        "FEEDMILL_CACHE_SIZE": str(size),
        "FEEDMILL_CACHE_DIR": str(folder),
        "FEEDMILL_READ_AHEAD": str(budget),
    }
    words = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[2]), server.options["endpoint"]]
    processes = [
        warm.Popen([*words, str(rank), str(world)], env=environment, stdout=subprocess.PIPE) for rank, world in ranks
    ]
    most, over = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.005):
            most = max(most, disk_bytes(folder))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        found = [json.loads(process.communicate(timeout=500)[0]) for process in processes]
    finally:
        over.set()
        watcher.join()
        for process in processes:
            process.kill()
    return found, max(most, disk_bytes(folder))


def fetched_once(server: RangeServer) -> int:
    """Return how many bytes of shards were requested, having checked that none was requested twice."""
    asked = [(key, *span) for key, span in zip(server.keys, server.asked, strict=True)]
    rows = sorted((key, begin, end) for key, begin, end in asked if key.endswith(".tar"))
    assert sum(key.endswith(".offsets") and end - begin > 64 for key, begin, end in asked) <= 1
    for (key, _, end), (other, begin, _) in pairwise(rows):
        assert key != other or end <= begin, (key, begin, end)
    return sum(end - begin for _, begin, end in rows)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.tar"))


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return many(tmp_path_factory.mktemp("few") / "data", 4, 500)


@pytest.fixture(scope="module")
def lots(tmp_path_factory):
    return many(tmp_path_factory.mktemp("lots") / "data", 10, 10_000)


@pytest.fixture
def cases(request) -> Iterator[tuple[Path, int, int]]:
    """The folder, its samples, the number of processes."""
    name, samples, processes = request.param
    yield request.getfixturevalue(name), samples, processes


SIZES: list[Any] = [("few", 2000, 3), pytest.param(("lots", 100_000, 8), marks=pytest.mark.slow)]


@pytest.mark.parametrize("cases", SIZES, indirect=True, ids=["few", "lots"])
@pytest.mark.parametrize("same", [False, True], ids=["ranks", "same"])
def test_processes_of_a_machine_fetch_each_byte_once(cases, tmp_path, same):
    folder, samples, count = cases
    ranks = [(0, 1)] * count if same else [(rank, count) for rank in range(count)]
    for server in served(folder):
        found, _ = together(server, tmp_path / "cache", ranks, 1 << 30)
        fetched = fetched_once(server)
        memory = [each["memory"] >> 20 for each in found]
        print(f"{count} processes: {fetched:,} of {size_of(folder):,} bytes; memory {memory} MiB")
    assert 0.98 * size_of(folder) < fetched <= size_of(folder)
    assert sum(each["samples"] for each in found) == samples * (count if same else 1)
    if same:
        expected = run(fm.Loader(local(folder), 64)).digest
        assert {each["digest"] for each in found} == {expected}
    assert max(each["memory"] for each in found) < COPIES * BUDGET + OVERHEAD


@pytest.mark.parametrize("cases", SIZES, indirect=True, ids=["few", "lots"])
def test_processes_never_take_more_than_the_size_of_the_cache(cases, tmp_path):
    folder, samples, count = cases
    size = size_of(folder) // 2
    for server in served(folder):
        ranks = [(rank, count) for rank in range(count)]
        found, most = together(server, tmp_path / "cache", ranks, size, size // (2 * count))
    print(f"a cache of {size:,} bytes took at most {most:,}; memory {[each['memory'] >> 20 for each in found]} MiB")
    assert sum(each["samples"] for each in found) == samples
    assert size // 2 < most <= size + SLACK
    assert max(each["memory"] for each in found) < COPIES * BUDGET + OVERHEAD


@pytest.mark.slow
def test_processes_without_a_cache_stay_within_their_memory(lots, tmp_path):
    for server in served(lots):
        found, most = together(server, tmp_path / "cache", [(rank, 2) for rank in range(2)], 0)
    print(f"memory {[each['memory'] >> 20 for each in found]} MiB with a budget of {BUDGET >> 20} MiB")
    assert sum(each["samples"] for each in found) == 100_000 and not most
    assert max(each["memory"] for each in found) < COPIES * BUDGET + OVERHEAD
