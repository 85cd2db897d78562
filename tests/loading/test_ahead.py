"""A loader over a remote store reads ahead: the same batches as from a local folder, with far fewer requests."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.range_server import range_server
from tests.helpers.tars import tar_bytes

import feedmill as fm
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.energon.prepared import ShardGuard, open_prepared
from feedmill.loading.ahead import Walk
from feedmill.planning.nodes import Leaf, Repeat
from feedmill.planning.nodes.shuffle import BlockShuffle
from feedmill.planning.plan import Plan
from feedmill.storage.fetching.read_ahead import ReadAhead
from feedmill.storage.local import LocalStore
from feedmill.storage.remote.object_store import RemoteStore
from helpers.durations import slow_but


def shards(folder: Path, counts: list[int], size: int = 600, seed: int = 1) -> Path:
    rng = np.random.default_rng(seed)
    folder.mkdir()
    number = 0
    for shard, count in enumerate(counts):
        files = []
        for _ in range(count):
            files.append((f"{number:06}.bin", rng.integers(0, 256, int(rng.integers(1, 2 * size)), np.uint8).tobytes()))
            files.append((f"{number:06}.txt", f"text {number}".encode()))
            number += 1
        (folder / f"shard_{shard}.tar").write_bytes(tar_bytes(files))
    fm.prepare(str(folder), split_ratio="1,0,0", progress=False)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("ahead") / "data", [700, 900, 1, 650])


@pytest.fixture
def server(folder):
    with range_server() as running:
        for path in folder.rglob("*"):
            if path.is_file():
                running.objects[f"data/{path.relative_to(folder)}"] = path.read_bytes()
        yield running


def plan_of(store, **options):
    return Plan.over(open_prepared(store, "train"), **{"epochs": 1, "seed": 3, **options})


def remote(server, **options):
    return plan_of(RemoteStore("s3://bkt/data", **server.options), **options)


def local(folder, **options):
    return plan_of(LocalStore(folder), **options)


def keys(loader) -> list[list[str]]:
    return [[str(key) for key in batch["__key__"]] for batch in loader]


def content(loader) -> list[list[bytes]]:
    return [[bytes(part) for part in batch["bin"]] for batch in loader]


def data_requests(server) -> list[tuple[int, int]]:
    """The requests for samples: those that compare shards with the index have 32 KiB."""
    asked = zip(server.asked, server.keys, strict=True)
    return [(begin, end) for (begin, end), key in asked if key.endswith(".tar") and end - begin != 32 << 10]


@pytest.mark.parametrize(
    ("shuffle", "workers"),
    slow_but(product(["block", "global", "none"], [0, 3]), ("block", 3), ("global", 0), ("none", 0)),
)
def test_the_batches_are_those_of_a_local_folder(server, folder, workers, shuffle):
    options = {"batch_size": 48, "workers": workers}
    expected = content(fm.Loader(local(folder, shuffle=shuffle), **options))
    plan = remote(server, shuffle=shuffle)
    server.forget()
    assert content(fm.Loader(plan, **options)) == expected
    if shuffle != "global":
        # one for each block, and those of a first batch that was late
        assert len(data_requests(server)) < 48 + 30
    # The samples are small: bridging gaps of 32 KiB costs less than requests.
    total = sum(path.stat().st_size for path in folder.glob("*.tar"))
    assert sum(end - begin for begin, end in data_requests(server)) < 2.2 * total


def test_blocks_that_lie_across_windows_are_requested_once(server, folder, monkeypatch):
    # An epoch has 2,251 samples, and 512 positions are requested together: later windows end inside of blocks.
    monkeypatch.setattr("feedmill.planning.remote_reads.WINDOW", 512)
    monkeypatch.setenv("FEEDMILL_READ_AHEAD", "4000000")

    def loader(store):
        dataset = open_prepared(store, "train")
        order = Repeat(BlockShuffle(Leaf(0, len(dataset)), 5, 128, 4), 6)
        return fm.Loader(Plan(order, [dataset], ["data"], 3), 32)

    ahead = loader(RemoteStore("s3://bkt/data", **server.options))
    server.forget()
    assert content(ahead) == content(loader(LocalStore(folder)))
    # at most one for each of 18 blocks in each epoch, and those of a first batch that was late
    assert len(data_requests(server)) < 32 + 6 * 18


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_and_resumes_see_the_same_batches(server, folder, world):
    for rank in range(world):
        options = {"batch_size": 20, "rank": rank, "world_size": world}
        expected = content(fm.Loader(local(folder), **options))
        loader = fm.Loader(remote(server), **options)
        batches = iter(loader)
        first = [[bytes(part) for part in next(batches)["bin"]] for _ in range(5)]
        state = loader.state_dict()
        loader.close()
        again = fm.Loader(remote(server), **options)
        again.load_state_dict(state)
        assert first + content(again) == expected


def test_a_blend_of_two_remote_sources_is_read_ahead(server, folder):
    def blend(make):
        sources = [make(), make()]
        return Plan.over(sources, weights=[0.7, 0.3], seed=5)

    def first(plan):
        loader = fm.Loader(plan, 32, workers=2)
        batches = iter(loader)
        found = [[bytes(part) for part in next(batches)["bin"]] for _ in range(40)]
        loader.close()
        return found

    store = RemoteStore("s3://bkt/data", **server.options)
    expected = first(blend(lambda: open_prepared(LocalStore(folder), "train")))
    assert first(blend(lambda: open_prepared(store, "train"))) == expected


def test_failing_requests_change_nothing_but_the_time(server, folder):
    expected = content(fm.Loader(local(folder), 32))
    rng = np.random.default_rng(0)
    plan = remote(server)
    kinds = ["503", "reset", "cut", "range"]
    server.fault = lambda number, begin, end: str(rng.choice(kinds)) if rng.random() < 0.1 else None
    assert content(fm.Loader(plan, 32, workers=2)) == expected


def test_an_object_that_is_gone_is_an_error_at_its_batch(server, folder):
    plan = remote(server, shuffle="none")
    del server.objects["data/shard_1.tar"]
    loader, found = fm.Loader(plan, 50), []
    with pytest.raises(NotFound, match=r"shard_1\.tar"):
        for batch in loader:
            found.append(batch)
    assert len(found) == 14  # the 700 samples of the first shard


@pytest.mark.parametrize("budget", slow_but(["100K", "800K"], "100K"))
def test_a_small_budget_bounds_what_is_held(server, folder, monkeypatch, budget):
    monkeypatch.setenv("FEEDMILL_READ_AHEAD", budget)
    most = 0
    expected = content(fm.Loader(local(folder), 16))
    plan = remote(server)
    store = plan.sources[0].store
    found = []
    for batch in fm.Loader(plan, 16, workers=1, prefetch=1):
        found.append([bytes(part) for part in batch["bin"]])
        most = max(most, store.held.size)
    assert found == expected
    assert 0 < most <= int(budget[:-1]) * 1024 * 1.5


def test_the_default_budget_grows_for_windows_that_are_larger_than_half_of_it(server, folder, monkeypatch, caplog):
    usual = remote(server)
    expected = content(fm.Loader(usual, 16))
    few = len(data_requests(server))
    monkeypatch.setattr("feedmill.storage.fetching.read_ahead.BUDGET", 200_000)
    for memory, warned in ((1 << 40, False), (16 * 400_000, True)):
        monkeypatch.setattr("feedmill.storage.fetching.read_ahead.available_memory", lambda memory=memory: memory)
        server.forget()
        caplog.clear()
        assert content(fm.Loader(remote(server), 16)) == expected
        asked = len(data_requests(server))
        assert (asked > few + 16 + 2) is warned, (asked, few)  # the first batch is requested alone
        said = [record.getMessage() for record in caplog.records if "a window of the shuffle takes" in record.message]
        assert len(said) == warned and all("FEEDMILL_READ_AHEAD=11M" in line for line in said), said


def test_reading_ahead_can_be_turned_off_and_a_wrong_budget_is_an_error(server, folder, monkeypatch):
    monkeypatch.setenv("FEEDMILL_READ_AHEAD", "12000000")
    plan = remote(server)
    loader = fm.Loader(plan, 64)
    next(iter(loader))
    assert not plan.sources[0].store.held.size
    monkeypatch.setenv("FEEDMILL_READ_AHEAD", "much")
    with pytest.raises(ConfigError, match="much"):
        next(iter(fm.Loader(plan, 64)))


def test_closing_a_loader_ends_its_thread_and_frees_its_memory(server, monkeypatch):
    monkeypatch.setenv("FEEDMILL_READ_AHEAD", "100KB")  # so that it waits for room
    plan = remote(server)
    before = set(threading.enumerate())
    loader = fm.Loader(plan, 8)
    next(iter(loader))
    (walk,) = [thread for thread in set(threading.enumerate()) - before if thread.name == "feedmill-walk"]
    loader.close()
    walk.join(120)
    assert not walk.is_alive()
    assert not plan.sources[0].store.held.size


def test_the_first_batch_shares_the_requests_of_its_window_which_are_sent_at_once(server, monkeypatch):
    monkeypatch.setattr("feedmill.storage.fetching.read_ahead._SOON_SECONDS", 30.0)
    plan = remote(server)
    server.forget()
    server.expect(2)
    next(iter(fm.Loader(plan, 16)))
    assert server.peak > 1 and len(data_requests(server)) < 16  # one for each shard


@pytest.mark.parametrize("size", [600, 40_000], ids=["shared", "alone"])
def test_code_is_loaded_when_the_first_requests_were_sent(size, tmp_path, monkeypatch):
    made, done = shards(tmp_path / "data", [40, 40], size), list[str]()
    want = ReadAhead.want
    monkeypatch.setattr(ReadAhead, "want", lambda *args: (want(*args), done.append("requests"))[0])
    monkeypatch.setattr("feedmill.loading.ahead._load_code", lambda: done.append("code"))
    with range_server() as running:
        for path in made.rglob("*"):
            if path.is_file():
                running.objects[f"data/{path.relative_to(made)}"] = path.read_bytes()
        assert len(list(fm.Loader(remote(running), 16))) == 5
    assert done[0] == "requests" and done.count("code") == 1


@pytest.mark.parametrize("shuffle", ["block", "global"])
def test_a_first_batch_that_is_late_is_requested_again_on_its_own(server, folder, monkeypatch, shuffle):
    expected = content(fm.Loader(local(folder, shuffle=shuffle), 16))
    monkeypatch.setattr("feedmill.storage.fetching.read_ahead._SOON_SECONDS", 0.0)
    plan = remote(server, shuffle=shuffle)
    server.forget()
    server.delay = 0.5  # a busy machine does not look for the batch at once
    loader = fm.Loader(plan, 16)
    first = next(batches := iter(loader))
    server.delay = 0.0
    assert [[bytes(part) for part in first["bin"]], *content(batches)] == expected
    assert sum(end - begin < 3_000 for begin, end in data_requests(server)) >= 8


@pytest.fixture
def six(tmp_path, monkeypatch):
    """A server with six shards of 64 samples, each a window, that no run has compared with their index."""
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("feedmill.planning.remote_reads.WINDOW", 64)
    made = shards(tmp_path / "data", [64] * 6)
    with range_server() as running:
        for path in made.rglob("*"):
            if path.is_file():
                running.objects[f"data/{path.relative_to(made)}"] = path.read_bytes()
        yield running


def test_shards_are_compared_with_their_index_before_a_batch_waits_for_that(six, monkeypatch):
    gathered: list[tuple[str, str]] = []
    gather = ShardGuard.gather

    def noted(guard, paths, seconds):
        gathered.extend((path, threading.current_thread().name) for path in paths)
        return gather(guard, paths, seconds)

    monkeypatch.setattr(ShardGuard, "gather", noted)
    plan = remote(six, shuffle="none")
    table, reader = plan.sources[0].table, iter(fm.Loader(plan, 16))
    next(reader)  # one alone: small batches are read four at a time later, of which the last has the second shard
    until = time.monotonic() + 120
    while len(table._compared) < 6 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(table._compared) == 6
    assert len(list(reader)) == 23
    main = threading.current_thread().name
    assert {path for path, thread in gathered if thread == main} == {table.shards[0]}
    assert {path for path, thread in gathered if thread != main} == set(table.shards[1:])


@pytest.mark.parametrize("fetched", [True, False])
def test_a_shard_without_fetched_blocks_is_compared_beside_the_first_requests(six, monkeypatch, fetched):
    compared: list[tuple[str, bool]] = []
    knows = ShardGuard.knows

    def noted(guard, path):
        compared.append((path, threading.current_thread() is threading.main_thread()))
        return knows(guard, path)

    monkeypatch.setattr(ShardGuard, "knows", noted)
    if not fetched:
        monkeypatch.setattr(RemoteStore, "holds_any", lambda *_: False)
        monkeypatch.setattr(RemoteStore, "any_fetched", lambda *_: None)
    plan = remote(six, shuffle="none")
    six.delay = 0.5
    next(iter(fm.Loader(plan, 16)))
    assert next(by_reader for path, by_reader in compared if path == plan.sources[0].table.shards[0]) == fetched


def test_a_shard_that_is_not_the_indexed_one_is_an_error_at_its_batch(six):
    names = sorted(key for key in six.objects if key.endswith(".tar"))
    changed = bytearray(six.objects[names[4]])
    changed[:] = bytes(byte ^ 1 for byte in changed)
    six.objects[names[4]] = bytes(changed)
    reader = iter(fm.Loader(remote(six, shuffle="none"), 16))
    for _ in range(16):
        next(reader)
    with pytest.raises(DataError, match="not the shard that was indexed") as caught:
        next(reader)
    assert caught.value.file == f"s3://bkt/{names[4]}"


@pytest.mark.parametrize("workers", [0, 2])
def test_waiting_for_the_network_is_a_stage_of_its_own(server, workers):
    plan = remote(server)
    server.delay = 0.6
    loader = fm.Loader(plan, 64, workers=workers)
    assert len(list(loader)) == 36
    found = loader.metrics.snapshot()
    assert found["fetch_seconds"] > 0.25 and found["wait_fetch_seconds"] > 0.25
    assert found["wait_fetch_seconds"] <= found["wait_seconds"] + 1e-3


@pytest.mark.parametrize("fails", slow_but([False, True], False))
def test_an_endless_plan_whose_bytes_are_all_there_is_not_walked_to_its_end(server, folder, monkeypatch, fails):
    """Nothing more had to be requested, so no budget was waited for: the steps of hundreds of epochs were queued."""
    monkeypatch.setattr("feedmill.loading.ahead._AHEAD_STEPS", 8)
    shuffle = {"kind": "block", "block": 128, "window": 8}
    monkeypatch.setattr("feedmill.planning.remote_reads.WINDOW", 1024)
    longest = [0]
    hand_out = Walk._hand_out

    def noted(walk, steps):
        hand_out(walk, steps)
        longest[0] = max(longest[0], len(walk._ready))

    monkeypatch.setattr(Walk, "_hand_out", noted)
    plan = remote(server, shuffle=shuffle, epochs=None)
    if fails:
        monkeypatch.setattr(plan, "extents", lambda *_: 1 / 0, raising=False)
    server.forget()
    reader, expected = iter(fm.Loader(plan, 64)), iter(fm.Loader(local(folder, shuffle=shuffle, epochs=None), 64))
    next(reader), next(expected)
    window = 1024 // 64
    until = time.monotonic() + 120
    while longest[0] < 2 * window and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.3)  # enough for hundreds of epochs
    assert 2 * window <= longest[0] <= 4 * window
    for _ in range(6 * window):
        assert [bytes(part) for part in next(reader)["bin"]] == [bytes(part) for part in next(expected)["bin"]]
    assert longest[0] <= 4 * window
    if not fails:  # those of the first batch, as many as were not read ahead yet, and the blocks, once
        total = sum(path.stat().st_size for path in folder.glob("*.tar"))
        assert sum(end - begin for begin, end in data_requests(server)) < 1.5 * total
    reader.close()


def test_a_plan_whose_extents_fail_is_read_without_them(server, folder, monkeypatch, caplog):
    plan = remote(server)
    monkeypatch.setattr(plan, "extents", lambda *_: 1 / 0, raising=False)
    assert content(fm.Loader(plan, 32)) == content(fm.Loader(local(folder), 32))
    assert "not read ahead: ZeroDivisionError" in caplog.text


def test_a_bucket_that_may_not_be_listed_is_read(server, folder, monkeypatch):
    store = RemoteStore("s3://bkt/data", **server.options)
    monkeypatch.setattr(type(server), "lists", False, raising=False)
    found = store.entries([f"shard_{number}.tar" for number in (0, 1, 2, 3)] + ["none.tar", "shard_1.tar.idx"])
    assert [entry and entry.path for entry in found][:5] == [*(f"shard_{number}.tar" for number in range(4)), None]


PROGRAM = """
import sys
import feedmill as fm
from feedmill.formats.energon.prepared import open_prepared
from feedmill.formats.energon.prepared import ShardGuard
from feedmill.loading.ahead import Walk
from feedmill.planning.nodes import Leaf, Repeat
from feedmill.planning.nodes.shuffle import BlockShuffle
from feedmill.planning.plan import Plan
from feedmill.storage.remote.object_store import RemoteStore
store = RemoteStore("s3://bkt/data", endpoint=sys.argv[1], region="us-east-1", skip_signature=True)
loader = fm.Loader(Plan.over(open_prepared(store, "train"), seed=3), 8, workers=int(sys.argv[2]))
batches = iter(loader)
next(batches)
"""


@pytest.mark.parametrize(("cache", "workers"), slow_but(product(["0", "1GB"], [0, 2]), ("0", 2), ("1GB", 0)))
def test_a_program_that_ends_while_it_reads_ahead_ends_quietly(server, tmp_path, workers, cache):
    server.delay = 0.05
    environment = {**os.environ, "FEEDMILL_CACHE_SIZE": cache, "FEEDMILL_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-c", PROGRAM, server.options["endpoint"], str(workers)]
    done = subprocess.run(words, env=environment, capture_output=True, check=False, timeout=180)
    assert (done.returncode, done.stderr) == (0, b"")


def test_local_data_has_no_thread(folder):
    before = set(threading.enumerate())
    loader = fm.Loader(local(folder), 64)
    next(iter(loader))
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "feedmill-walk"]
    loader.close()
