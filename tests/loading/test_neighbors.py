"""The ranks of a machine know each other through their cache, and fetch the blocks of the shuffle together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
from tests.helpers.range_server import range_server
from tests.loading.test_ahead import content, local, plan_of, shards

import feedmill as fm
from feedmill.loading.ahead import Neighbors
from feedmill.loading.layout import Cursor
from feedmill.planning.dealing.grid import Grid
from feedmill.planning.nodes import Leaf
from feedmill.planning.nodes.shuffle import BlockShuffle
from feedmill.planning.plan import Plan
from feedmill.storage.cache import chunks
from feedmill.storage.cache import settings as datacache
from feedmill.storage.cache.chunks import SMALLEST, ChunkCache
from feedmill.storage.cache.folder import READERS
from feedmill.storage.cache.settings import DataCache
from feedmill.storage.fetching.fetch import fetcher
from feedmill.storage.remote.object_store import RemoteStore
from helpers import warm

PLAN = SimpleNamespace(sources=(), seed=3, length=100)


@pytest.fixture
def caches(tmp_path):
    """One cache, as three processes open it."""
    opened = [ChunkCache(tmp_path / "cache", 1 << 20) for _ in range(3)]
    yield opened
    for cache in opened:
        cache.close()


@pytest.fixture
def tables(caches):
    return [cache.readers for cache in caches]


def test_readers_of_a_run_see_each_other_until_they_leave(tables):
    first, second, third = tables
    joined = [table.join(7, rank) for table, rank in ((first, 4), (first, 0), (second, 4))]
    other = third.join(8, 1)
    assert all(table.ranks(7) == [0, 4] and table.ranks(8) == [1] for table in tables)
    joined[1].close()
    assert third.ranks(7) == [4]
    joined[0].close()
    assert third.ranks(7) == [4]
    joined[2].close()
    assert first.ranks(7) == []
    other.close()
    again = first.join(9, 0)
    assert second.ranks(9) == [0] and third.ranks(8) == []
    again.close()


def test_readers_of_killed_processes_are_gone_even_if_a_forked_child_lives(tables, tmp_path):
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom feedmill.storage.cache.chunks import ChunkCache\n"
        "cache = ChunkCache(Path(sys.argv[1]), 1 << 20); joined = cache.readers.join(7, 5)\n"
        "child = os.fork()\nif not child: print(os.getpid(), flush=True)  # it has given up what it inherited\n"
        "time.sleep(600)"
    )
    with warm.Popen([sys.executable, "-c", code, str(tmp_path / "cache")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            joined = tables[0].join(7, 1)
            assert tables[1].ranks(7) == [1, 5]
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert tables[1].ranks(7) == [1]
        finally:
            os.kill(child, signal.SIGKILL)
    joined.close()


def test_a_full_table_leaves_further_readers_alone(caches, tables):
    joined = [tables[0].join(1, rank) for rank in range(READERS)]
    assert all(joined)
    assert tables[1].join(1, 999) is None
    alone = Neighbors(caches[1], PLAN, 1, 2)
    assert [len(found) for found in alone.positions([Grid(0, 100, 4, 1, 2, "drop").step(0)])] == [0]
    alone.close()
    assert len(tables[2].ranks(1)) == READERS
    for reader in joined:
        reader.close()


@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("near", [[0, 3], [1, 2, 4], [0, 1, 2, 3, 4]])
def test_the_positions_are_those_of_the_ranks_on_this_machine(caches, near, remainder):
    grids = {rank: Grid(10, 103, 4, rank, 5, remainder) for rank in range(5)}
    readers = [Neighbors(caches[rank % 3], PLAN, rank, 5) for rank in near]
    other = Neighbors(caches[0], SimpleNamespace(sources=(), seed=4, length=100), 2, 5)  # another run
    rank = near[0]
    steps = [grids[rank].step(number) for number in range(4)]
    for number, found in enumerate(readers[0].positions(steps)):
        expected = [grids[each].step(number).slots for each in near[1:]]
        assert found.tolist() == np.concatenate(expected).tolist()
    last = grids[rank].step(4)
    (found,) = readers[0].positions([last])
    assert set(found.tolist()) <= set(range(90, 103))
    for reader in (*readers, other):
        reader.close()


def test_the_windows_of_packs_are_those_of_all_ranks_on_this_machine(caches):
    readers = [Neighbors(caches[rank], PLAN, rank, 3) for rank in range(3)]
    cursors = [Cursor(8, 100, rank, 3) for rank in range(3)]
    steps = [[cursor.step(first) for _, first, _ in islice(cursor.windows(), 4)] for cursor in cursors]
    for rank, reader in enumerate(readers):
        others = [np.concatenate([own[number].slots for own in steps if own is not steps[rank]]) for number in range(4)]
        assert [found.tolist() for found in reader.positions(steps[rank])] == [found.tolist() for found in others]
    for reader in readers:
        reader.close()


def test_where_costs_decide_all_ranks_must_be_here(caches):
    step = Grid(0, 100, 4, 1, 3, "drop").step(2)._replace(dealt=np.asarray([24, 30, 35, 29]))
    readers = [Neighbors(caches[rank], PLAN, rank, 3) for rank in (1, 2)]
    assert [len(found) for found in readers[0].positions([step])] == [0]
    readers.append(Neighbors(caches[0], PLAN, 0, 3))
    assert [found.tolist() for found in readers[0].positions([step])] == [[25, 26, 27, 28, 31, 32, 33, 34]]
    for reader in readers:
        reader.close()


def test_ranks_read_alone_once_the_cache_is_disabled(caches):
    readers = [Neighbors(caches[rank], PLAN, rank, 2) for rank in range(2)]
    steps = [Grid(0, 100, 4, 0, 2, "drop").step(number) for number in range(2)]
    assert [found.tolist() for found in readers[0].positions(steps)] == [[4, 5, 6, 7], [12, 13, 14, 15]]
    caches[0].disable(OSError(28, "No space left on device"))
    assert [len(found) for found in readers[0].positions(steps)] == [0, 0]
    for reader in readers:
        reader.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("near") / "data", [1500, 1400, 1600, 1500], 8000)


@pytest.fixture(scope="module")
def objects(folder):
    return {f"data/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def server(objects, monkeypatch):
    monkeypatch.setattr(datacache, "_MIN_SIZE", SMALLEST)
    with range_server() as running:
        running.objects.update(objects)
        yield running
    for cache in chunks._caches.values():
        cache.close()
    chunks._caches.clear()


@pytest.mark.parametrize("share", [pytest.param(2.0, marks=pytest.mark.slow), 0.5])
def test_ranks_fetch_each_byte_about_once_even_if_the_cache_is_smaller_than_the_data(
    server, folder, tmp_path, monkeypatch, share
):
    monkeypatch.setattr("feedmill.planning.remote_reads.WINDOW", 512)
    size = sum(len(data) for key, data in server.objects.items() if key.endswith(".tar"))
    monkeypatch.setenv("FEEDMILL_READ_AHEAD", str(size // 8))
    monkeypatch.setattr("feedmill.loading.ahead._AHEAD_STEPS", 8)
    cache = DataCache(int(share * size), tmp_path / "cache")
    expected = [content(fm.Loader(shuffled(local(folder)), 16, rank=rank, world_size=4)) for rank in range(4)]
    loaders = []
    for rank in range(4):
        plan = shuffled(plan_of(RemoteStore("s3://bkt/data", **server.options)))
        plan.cache = cache
        loaders.append(iter(fm.Loader(plan, 16, rank=rank, world_size=4)))
    # Known before they start: on a busy machine, the first of them would be far ahead of the last.
    pages = cache.use().cache
    here = [Neighbors(pages, shuffled(plan_of(RemoteStore("s3://bkt/data", **server.options))), n, 4) for n in range(4)]
    monkeypatch.setattr(fetcher(), "_hedging", False)
    server.forget()
    with ThreadPoolExecutor(4) as pool:
        batches = [list(pool.map(next, loaders)) for _ in expected[0]]
    assert [[[bytes(part) for part in step[rank]["bin"]] for step in batches] for rank in range(4)] == expected
    asked = [end - begin for (begin, end), key in zip(server.asked, server.keys, strict=True) if key.endswith(".tar")]
    assert 0.97 * size < sum(asked) < 1.15 * size
    assert len(asked) < 0.6 * size / SMALLEST  # not a page at a time
    for reader in here:
        reader.close()


@pytest.mark.parametrize(("ranks", "budget"), [pytest.param(4, 600_000, marks=pytest.mark.slow), (1, 200_000)])
def test_steps_above_half_of_the_budget_are_read_through_the_cache(
    server, folder, tmp_path, monkeypatch, ranks, budget, caplog
):
    monkeypatch.setattr("feedmill.loading.ahead._MOST_ON_DISK", budget)
    monkeypatch.setenv("FEEDMILL_READ_AHEAD", str(budget))
    monkeypatch.setattr(fetcher(), "_hedging", False)
    size = sum(len(data) for key, data in server.objects.items() if key.endswith(".tar"))
    cache = DataCache(2 * size, tmp_path / "cache")

    def run(rank):
        plan = shuffled(plan_of(RemoteStore("s3://bkt/data", **server.options)))
        plan.cache = cache
        return content(fm.Loader(plan, 16, rank=rank, world_size=ranks))

    server.forget()
    with ThreadPoolExecutor(ranks) as pool:
        found = list(pool.map(run, range(ranks)))
    local_plan = shuffled(local(folder))
    assert found == [content(fm.Loader(local_plan, 16, rank=rank, world_size=ranks)) for rank in range(ranks)]
    assert sum(end - begin for (begin, end), key in zip(server.asked, server.keys, strict=True) if ".tar" in key) < (
        1.2 * size
    )
    assert "'cache'" not in caplog.text  # which is there


@pytest.mark.parametrize("case", ["ranks", "a cache", "one rank", "scattered"])
def test_a_warning_advises_a_cache_to_ranks_that_request_samples_one_by_one(
    server, tmp_path, monkeypatch, caplog, case
):
    monkeypatch.setattr("feedmill.loading.ahead._MANY", 100)
    monkeypatch.setattr("feedmill.planning.remote_reads.WINDOW", 512)
    plan = plan_of(RemoteStore("s3://bkt/data", **server.options), shuffle="global")
    plan = plan if case == "scattered" else shuffled(plan)
    if case == "a cache":
        plan.cache = DataCache(1 << 30, tmp_path / "cache")
    loader = fm.Loader(plan, 16, rank=0, world_size=1 if case == "one rank" else 16)
    assert len(list(loader))
    said = [record.getMessage() for record in caplog.records if "dealt to 16 ranks" in record.getMessage()]
    assert len(said) == (case == "ranks")


def shuffled(plan):
    return Plan(BlockShuffle(Leaf(0, len(plan.sources[0])), 5, 64, 8), plan.sources, ["data"], 3)
