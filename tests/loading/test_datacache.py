"""Loaders that keep remote data in a cache on this machine's disk: the same batches, each byte fetched once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from tests.helpers.chunk_files import chunk_files, damage, disk_bytes
from tests.helpers.range_server import range_server
from tests.loading.test_ahead import content, data_requests, local, plan_of, shards

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.formats.energon.prepared import open_prepared
from feedmill.loading.ahead import Windows
from feedmill.planning.nodes import Leaf, Repeat
from feedmill.planning.nodes.shuffle import BlockShuffle
from feedmill.planning.plan import Plan
from feedmill.storage.cache import chunks
from feedmill.storage.cache import settings as datacache
from feedmill.storage.cache.chunks import SMALLEST, Claim
from feedmill.storage.cache.settings import DataCache
from feedmill.storage.fetching.fetch import fetcher
from feedmill.storage.remote.object_store import RemoteStore
from helpers import warm
from helpers.durations import slow_but


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("cached") / "data", [700, 900, 650])


@pytest.fixture
def server(folder):
    with range_server() as running:
        for path in folder.rglob("*"):
            if path.is_file():
                running.objects[f"data/{path.relative_to(folder)}"] = path.read_bytes()
        yield running


@pytest.fixture(autouse=True)
def small_caches(monkeypatch):
    monkeypatch.setattr(datacache, "_MIN_SIZE", SMALLEST)
    yield
    for cache in chunks._caches.values():
        cache.close()
    chunks._caches.clear()


def remote(server, cache: DataCache | None, **options):
    plan = plan_of(RemoteStore("s3://bkt/data", **server.options), **options)
    plan.cache = cache
    return plan


def asked_in(server, function):
    server.forget()
    result = function()
    return result, data_requests(server)


def total(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.tar"))


@pytest.mark.parametrize(
    ("unit", "shuffle", "workers"),
    slow_but(  # each pair of two of them
        product(["auto", "block", "shard"], ["block", "global", "none"], [0, 2]),
        *(
            ("auto", "block", 0),
            ("auto", "global", 2),
            ("auto", "none", 0),
            ("block", "block", 2),
            ("block", "none", 2),
        ),
        *(("block", "global", 0), ("shard", "block", 0), ("shard", "global", 2), ("shard", "none", 0)),
    ),
)
def test_each_byte_is_fetched_once_however_often_it_is_read(server, folder, tmp_path, workers, shuffle, unit):
    cache = DataCache(1 << 30, tmp_path / "cache", unit)
    options = {"batch_size": 48, "workers": workers}
    expected = content(fm.Loader(local(folder, shuffle=shuffle, epochs=2), **options))
    plan = remote(server, cache, shuffle=shuffle, epochs=2)
    found, requests = asked_in(server, lambda: content(fm.Loader(plan, **options)))
    assert found == expected
    fetched = sum(end - begin for begin, end in requests)
    assert 0.9 * total(folder) < fetched <= total(folder)
    metrics = fm.Loader(plan, 8).metrics.snapshot()
    assert metrics["fetch_bytes"] >= fetched and metrics["fetch_requests"] >= len(requests)
    # another loader, and another opening of the dataset
    found, requests = asked_in(server, lambda: content(fm.Loader(remote(server, cache, shuffle=shuffle, epochs=2), 48)))
    assert found == expected and not requests


def test_whole_shards_take_few_requests_with_the_global_shuffle(server, folder, tmp_path):
    plan = remote(server, DataCache(1 << 30, tmp_path / "cache", "shard"), shuffle="global")
    found, requests = asked_in(server, lambda: content(fm.Loader(plan, 64)))
    assert found == content(fm.Loader(local(folder, shuffle="global"), 64))
    assert len(requests) <= 20


def test_a_cache_that_is_too_small_evicts_and_the_batches_are_the_same(server, folder, tmp_path):
    cache = DataCache(24 * SMALLEST, tmp_path / "cache", "block")
    expected = content(fm.Loader(local(folder, epochs=2), 32))
    plan = remote(server, cache, epochs=2)
    found, requests = asked_in(server, lambda: content(fm.Loader(plan, 32, workers=2)))
    assert found == expected and len(requests) > 12
    assert 4 * SMALLEST < disk_bytes(tmp_path / "cache") <= 24 * SMALLEST


def test_a_small_cache_keeps_what_the_next_epoch_needs_first(server, tmp_path, monkeypatch):
    # blocks of several pages, so that what is fetched hardly depends on the order in which threads use the cache
    folder = shards(tmp_path / "data", [700, 900, 650], 6000)
    files = [path for path in folder.rglob("*") if path.is_file()]
    server.objects |= {f"large/{path.relative_to(folder)}": path.read_bytes() for path in files}
    monkeypatch.setattr("feedmill.loading.ahead.window_of", lambda _: 128)
    epochs = 6

    def fetched(planned: bool) -> float:
        with monkeypatch.context() as patch:
            if not planned:
                patch.setattr(Windows, "_later", lambda *_: None)
            dataset = open_prepared(RemoteStore("s3://bkt/large", **server.options), "train")
            order = Repeat(BlockShuffle(Leaf(0, len(dataset)), 5, 64, 2), epochs)
            plan = Plan(order, [dataset], ["data"], 3)
            plan.cache = DataCache(2 * total(folder) // 3, tmp_path / str(planned), "block")
            _, requests = asked_in(server, lambda: content(fm.Loader(plan, 32)))
            return sum(end - begin for begin, end in requests) / total(folder)

    recently_used, planned = fetched(False), fetched(True)
    # Two thirds of the data fit, so at best a third is fetched in each later epoch; threads of a busy machine are late.
    assert 1 + (epochs - 1) / 3 - 0.1 < planned < 0.9 * recently_used


def test_a_changed_byte_in_the_cache_is_fetched_again(server, folder, tmp_path, caplog):
    cache = DataCache(1 << 30, tmp_path / "cache")
    expected = content(fm.Loader(local(folder), 32))
    assert content(fm.Loader(remote(server, cache), 32)) == expected
    chunks._caches.popitem()[1].close()
    for path in chunk_files(tmp_path / "cache"):  # as if the machine had been started anew
        damage(path)
    found, requests = asked_in(server, lambda: content(fm.Loader(remote(server, cache), 32)))
    assert found == expected and 0 < len(requests) < 20
    assert "is fetched again" in caplog.text


def test_a_folder_that_cannot_be_written_to_is_done_without(server, folder, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = DataCache(1 << 30, tmp_path / "file" / "cache")
    found, requests = asked_in(server, lambda: content(fm.Loader(remote(server, cache), 32)))
    assert found == content(fm.Loader(local(folder), 32))
    assert "is disabled" in caplog.text
    assert sum(end - begin for begin, end in requests) <= 1.05 * total(folder)


def test_bytes_that_the_cache_does_not_take_are_fetched_once(server, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Claim, "put", lambda *_: None)
    cache = DataCache(1 << 30, tmp_path / "cache")
    found, requests = asked_in(server, lambda: content(fm.Loader(remote(server, cache), 32)))
    assert found == content(fm.Loader(local(folder), 32))
    assert sum(end - begin for begin, end in requests) <= 2 * total(folder)  # the first batch on its own, in pages


def test_a_disabled_cache_leaves_reading_ahead_within_its_memory(server, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FEEDMILL_READ_AHEAD", "300K")
    monkeypatch.setattr("feedmill.loading.ahead.window_of", lambda _: 128)
    cache = DataCache(1 << 30, tmp_path / "cache")
    opened = cache.use()
    assert opened is not None
    opened.cache.disable(OSError(28, "No space left on device"))
    monkeypatch.setattr(fetcher(), "_hedging", False)
    plan, most = remote(server, cache), 0

    def run():
        nonlocal most
        found = []
        for batch in fm.Loader(plan, 32):
            found.append([bytes(part) for part in batch["bin"]])
            most = max(most, plan.sources[0].store.held.size)
        return found

    found, requests = asked_in(server, run)
    assert found == content(fm.Loader(local(folder), 32))
    # Which ranges share a request, with what lies between them, depends on how far the reader is.
    assert sum(end - begin for begin, end in requests) <= 1.3 * total(folder)
    assert 0 < most <= 450_000


def test_a_loader_that_reads_nothing_ahead_says_that_it_does_not_use_its_cache(
    server, folder, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("FEEDMILL_READ_AHEAD", "0")
    cache = DataCache(1 << 30, tmp_path / "cache")
    assert content(fm.Loader(remote(server, cache), 32)) == content(fm.Loader(local(folder), 32))
    assert caplog.text.count("FEEDMILL_READ_AHEAD=0") == 1


def test_a_full_disk_is_done_without(server, folder, tmp_path, monkeypatch, caplog):
    real, written = os.pwrite, []

    def pwrite(fd, data, offset):
        if len(data) >= 1000 and len(written) > 5:
            raise OSError(28, "No space left on device")
        written.append(offset)
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    cache = DataCache(1 << 30, tmp_path / "cache")
    assert content(fm.Loader(remote(server, cache), 32, workers=2)) == content(fm.Loader(local(folder), 32))
    assert "No space left" in caplog.text and "is disabled" in caplog.text


def test_objects_that_were_replaced_between_runs_are_not_mixed_with_what_is_cached(server, folder, tmp_path):
    cache = DataCache(1 << 30, tmp_path / "cache")
    assert content(fm.Loader(remote(server, cache), 32)) == content(fm.Loader(local(folder), 32))
    other = shards(tmp_path / "data", [700, 900, 650], seed=2)
    for path in other.rglob("*"):
        if path.is_file():
            server.objects[f"data/{path.relative_to(other)}"] = path.read_bytes()
    found = content(fm.Loader(remote(server, cache), 32))
    assert found == content(fm.Loader(local(other), 32)) != content(fm.Loader(local(folder), 32))


PROGRAM = """
import sys
import feedmill as fm
from feedmill.formats.energon.prepared import open_prepared
from feedmill.planning.plan import Plan
from feedmill.storage.fetching.fetch import fetcher
from feedmill.storage.remote.object_store import RemoteStore
store = RemoteStore("s3://bkt/data", endpoint=sys.argv[1], region="us-east-1", skip_signature=True)
plan = Plan.over(open_prepared(store, "train"), epochs=1, seed=3)
rank, world = int(sys.argv[2]), int(sys.argv[3])
print(sum(len(batch["bin"]) for batch in fm.Loader(plan, 16, rank=rank, world_size=world)))
"""


def test_four_processes_of_a_machine_fetch_each_byte_once(server, folder, tmp_path):
    environment = {**os.environ, "FEEDMILL_CACHE_SIZE": "1GB", "FEEDMILL_CACHE_DIR": str(tmp_path)}

    def run() -> list[int]:
        arguments = [[sys.executable, "-c", PROGRAM, server.options["endpoint"], str(rank), "4"] for rank in range(4)]
        running = [warm.Popen(words, env=environment, stdout=subprocess.PIPE) for words in arguments]
        return [int(process.communicate(timeout=180)[0]) for process in running]

    counts, requests = asked_in(server, run)
    assert sum(counts) == 2250
    assert sum(end - begin for begin, end in requests) <= total(folder)
    counts, requests = asked_in(server, run)
    assert sum(counts) == 2250 and not requests


@pytest.fixture
def recipe(server, tmp_path, monkeypatch):
    for name, value in {
        "AWS_ENDPOINT_URL": server.options["endpoint"],
        "AWS_ALLOW_HTTP": "true",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_REGION": "us-east-1",
        "FEEDMILL_CACHE_DIR": str(tmp_path / "indices"),
    }.items():
        monkeypatch.setenv(name, value)
    return "source: s3://bkt/data\nepochs: 1\nseed: 3\n"


def test_worker_processes_share_what_the_main_process_reads_ahead(recipe, server, folder, tmp_path, caplog):
    expected = content(fm.Loader(fm.Recipe.parse(recipe).plan(), 32))
    workers = fm.Workers(2, processes=True)
    plan = fm.Recipe.parse(recipe + f"cache: {{dir: {tmp_path / 'kept'}, size: 1GB}}\n").plan()
    found, requests = asked_in(server, lambda: content(fm.Loader(plan, 32, workers=workers)))
    assert found == expected and "worker processes" not in caplog.text
    assert sum(end - begin for begin, end in requests) <= total(folder)
    assert content(fm.Loader(fm.Recipe.parse(recipe).plan(), 32, workers=workers)) == expected
    assert "worker processes do not read remote data ahead" in caplog.text


def test_a_recipe_names_the_cache(recipe, server, folder, tmp_path):
    (tmp_path / "plain.yaml").write_text(recipe)
    (tmp_path / "cached.yaml").write_text(recipe + "cache: {dir: kept, size: 1GB, unit: shard}\n")
    (tmp_path / "short.yaml").write_text(recipe + "cache: 1GB\n")
    plain, cached, short = (fm.Recipe.load(tmp_path / f"{name}.yaml") for name in ("plain", "cached", "short"))
    assert plain.fingerprint == cached.fingerprint
    plan = cached.plan()
    assert plan.cache == DataCache(10**9, tmp_path / "kept", "shard")
    assert short.plan().cache == DataCache(10**9, tmp_path / "indices", "auto")
    for size in (0, 10**9):
        assert fm.Recipe.parse(f"{recipe}cache: {size}\n").plan().cache == DataCache(size, short.plan().cache.dir)
    assert plain.plan().cache is None and plan.fingerprint == plain.plan().fingerprint
    expected = content(fm.Loader(plain.plan(), 32))
    assert content(fm.Loader(plan, 32)) == expected
    _, requests = asked_in(server, lambda: content(fm.Loader(cached.plan(), 32)))
    assert not requests and chunk_files(tmp_path / "kept")


@pytest.mark.parametrize("indexed_from", [0, 1 << 40])
def test_tars_without_an_index_are_scanned_through_the_cache(
    recipe, server, folder, tmp_path, monkeypatch, indexed_from
):
    monkeypatch.setattr("feedmill.formats.tar.index.INDEX_FROM", indexed_from)
    for key in [key for key in server.objects if not key.endswith(".tar")]:
        del server.objects[key]
    expected = content(fm.Loader(fm.Recipe.parse(recipe).plan(), 32))
    cached = fm.Recipe.parse(recipe + f"cache: {{dir: {tmp_path / 'kept'}, size: 1GB}}\n")
    found, requests = asked_in(server, lambda: content(fm.Loader(cached.plan(), 32)))
    assert found == expected
    assert sum(end - begin for begin, end in requests) == total(folder)


def test_tars_that_do_not_fit_into_the_cache_are_scanned_without_it(recipe, server, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("feedmill.formats.tar.index.INDEX_FROM", 0)
    monkeypatch.setattr("feedmill.storage.cache.mapped._SHARE", 1)
    for key in [key for key in server.objects if not key.endswith(".tar")]:
        del server.objects[key]
    size = sum(map(len, server.objects.values()))
    for share, kept in ((1.5, True), (1.05, False)):
        where = tmp_path / str(share)
        fm.Recipe.parse(recipe + f"cache: {{dir: {where}, size: {int(share * size)}}}\n").plan()
        assert bool(chunk_files(where)) == kept == ("do not fit into the cache" not in caplog.text)
        shutil.rmtree(tmp_path / "indices")


def test_lines_of_a_bucket_are_found_through_the_cache(recipe, server, tmp_path):
    text = b"".join(b'{"text": "%d"}\n' % number for number in range(20_000))
    server.objects["lines/a.jsonl"] = text
    recipe = recipe.replace("bkt/data", "bkt/lines/a.jsonl") + f"cache: {{dir: {tmp_path / 'kept'}, size: 1GB}}\n"
    server.forget()
    loader = fm.Loader(fm.Recipe.parse(recipe).plan(), 100, output="samples")
    assert sum(map(len, loader)) == 20_000
    asked = zip(server.keys, server.asked, strict=True)
    assert sum(min(end, len(text)) - begin for key, (begin, end) in asked if key.endswith("jsonl")) < 1.5 * len(text)


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        ("{size: 1, dir: x}", "too small"),
        ("{size: much}", "not a size"),
        ("{size: 1GB, unit: file}", "unit"),
        ("{size: 1GB, dir: s3://bkt/x}", "not on this machine"),
        ("{size: 1GB, folder: x}", "unknown key 'folder'; known keys: size, dir, unit"),
        ("[1GB]", "cache: expected a mapping, found"),
        ("true", "cache: expected a mapping, found True"),
    ],
)
def test_a_wrong_cache_is_an_error_with_its_line(server, folder, tmp_path, cache, said):
    (tmp_path / "recipe.yaml").write_text(f"source: {folder}\nseed: 3\ncache: {cache}\n")
    with pytest.raises(ConfigError, match=said) as caught:
        fm.Recipe.load(tmp_path / "recipe.yaml").plan()
    assert "recipe.yaml" in str(caught.value)
