"""Loaders over a store that misbehaves: the stream is that of a local folder, or the error names the object."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tarfile
import time
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from tests.helpers.range_server import range_server
from tests.loading.test_ahead import content, local, plan_of, remote, shards

import feedmill as fm
from feedmill.errors import DataError, FeedmillError, StorageError
from feedmill.storage.cache import chunks
from feedmill.storage.cache.settings import DataCache
from feedmill.storage.fetching import ranges
from feedmill.storage.fetching.fetch import counters, fetcher
from feedmill.storage.remote.object_store import RemoteStore
from helpers import warm
from helpers.durations import slow_but


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("faults") / "data", [700, 900, 650])


@pytest.fixture
def server(folder):
    with range_server() as running:
        for path in folder.rglob("*"):
            if path.is_file():
                running.objects[f"data/{path.relative_to(folder)}"] = path.read_bytes()
        yield running


@pytest.fixture(autouse=True)
def caches():
    yield
    for cache in chunks._caches.values():
        cache.close()
    chunks._caches.clear()


@pytest.fixture
def environment(server, tmp_path, monkeypatch):
    """Reach the server through the environment, as a program does."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ENDPOINT_URL": server.options["endpoint"],
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "FEEDMILL_CACHE_DIR": str(tmp_path / "indices"),
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("refusal", "kind", "words"),
    [
        ((403, "InvalidAccessKeyId"), "bad-credentials", "access key"),
        ((403, "SignatureDoesNotMatch"), "bad-credentials", "secret"),
        ((403, "RequestTimeTooSkewed"), "clock-skew", "clock"),
        ((400, "ExpiredToken"), "expired-token", "AWS_SESSION_TOKEN"),
        ((403, "AccessDenied"), "eacces", "Ask for access"),
    ],
)
def test_each_refusal_has_its_own_message(server, environment, refusal, kind, words):
    server.refusal = refusal
    began = time.monotonic()
    with pytest.raises(StorageError) as caught:
        fm.open("s3://bkt/data")
    assert caught.value.kind == kind and words in str(caught.value)
    assert caught.value.file is not None and caught.value.file.startswith("s3://bkt/data")
    assert time.monotonic() - began < 150  # what is refused for good is not tried for three minutes


def test_a_missing_bucket_is_named_when_a_dataset_is_opened(server, environment):
    with pytest.raises(StorageError) as caught:
        fm.open("s3://other/data")
    assert caught.value.kind == "no-bucket" and str(caught.value.file).startswith("s3://other/data")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("code", "kind"), [("403:RequestTimeTooSkewed", "clock-skew"), ("403:InvalidAccessKeyId", "bad-credentials")]
)
def test_a_refusal_in_the_middle_names_the_object(server, workers, code, kind):
    plan = remote(server, shuffle="none")
    server.fault = lambda number, begin, end: code if server.keys[number].endswith("shard_1.tar") else None
    found = []
    with pytest.raises(StorageError, match=r"s3://bkt/data/shard_1\.tar") as caught:
        found.extend(fm.Loader(plan, 50, workers=workers))
    assert caught.value.kind == kind and len(found) <= 14


class Provider:
    """Gives the token that the server has now, which lasts for a while as far as it knows."""

    def __init__(self, server) -> None:
        self.server, self.asked = server, 0

    def __call__(self):
        self.asked += 1
        expires = datetime.now(UTC) + timedelta(hours=1)
        return {"access_key_id": "k", "secret_access_key": "s", "token": self.server.token, "expires_at": expires}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache", [None, 40 << 20])
def test_a_token_that_expires_during_a_run_is_renewed_from_its_provider(server, folder, tmp_path, workers, cache):
    server.token = "first"
    provider = Provider(server)
    options = {**server.options, "skip_signature": False, "credential_provider": provider}
    plan = plan_of(RemoteStore("s3://bkt/data", **options))
    plan.cache = DataCache(cache, tmp_path / "cache") if cache else None
    loader, found = fm.Loader(plan, 16, workers=workers), []
    for batch in loader:
        found.append([bytes(part) for part in batch["bin"]])
        if len(found) == 10:
            server.token = "second"
    assert found == content(fm.Loader(local(folder), 16))
    assert 2 <= provider.asked < 40  # not once for each request that was denied


def test_a_token_without_a_provider_is_an_error_that_says_so(server):
    server.token = "first"
    options = {**server.options, "skip_signature": False, "access_key_id": "k", "secret_access_key": "s"}
    plan = plan_of(RemoteStore("s3://bkt/data", token="first", **options), shuffle="none")
    server.token = "second"
    with pytest.raises(StorageError, match="token has expired") as caught:
        list(fm.Loader(plan, 16))
    assert caught.value.kind == "expired-token" and ".tar" in str(caught.value.file)


WAYS = [(cache, workers) for cache in (None, 40 << 20) for workers in (0, 2)]
FAULTS = ["503", "500:InternalError", "reset", "cut", "short", "range", "429:SlowDown"]
"""Each in one way, and each way with a fault or two, where slow tests do not run."""
CASES = [
    pytest.param(fault, *way, marks=[] if number % 4 == place else pytest.mark.slow)
    for number, fault in enumerate(FAULTS)
    for place, way in enumerate(WAYS)
]


@pytest.mark.parametrize(("fault", "cache", "workers"), CASES)
def test_every_tenth_request_fails_and_the_batches_are_the_same(
    server, folder, tmp_path, monkeypatch, fault, cache, workers
):
    monkeypatch.setattr(ranges, "LARGEST", 128 << 10)
    monkeypatch.setattr(ranges, "LONG", 64 << 10)
    plan = remote(server, shuffle="global")
    plan.cache = DataCache(cache, tmp_path / "cache", "block") if cache else None
    server.fault = lambda number, begin, end: fault if number % 10 == 5 else None
    assert content(fm.Loader(plan, 32, workers=workers)) == content(fm.Loader(local(folder, shuffle="global"), 32))
    assert server.faults[fault] > 0


@pytest.mark.parametrize("cache", [None, 40 << 20])
def test_a_storm_is_waited_for(server, folder, tmp_path, cache):
    plan = remote(server)
    plan.cache = DataCache(cache, tmp_path / "cache") if cache else None
    server.fault = lambda number, begin, end: "503" if server.faults["503"] < 16 else None
    before = counters()["fetch_throttled"]
    assert content(fm.Loader(plan, 32, workers=2)) == content(fm.Loader(local(folder), 32))
    assert server.faults["503"] > 10 and counters()["fetch_throttled"] - before > 10


HANGING = [(None, "stall"), (40 << 20, "drip")]


@pytest.mark.parametrize(("cache", "fault"), slow_but(product([None, 40 << 20], ["stall", "drip"]), *HANGING))
def test_requests_that_hang_or_drip_hold_nobody_up_for_long(server, folder, tmp_path, monkeypatch, fault, cache):
    monkeypatch.setattr(fetcher(), "_hedging", True)
    server.silence, server.rate = 600.0, 1 << 8
    before = fetcher().hedges
    plan = remote(server)
    plan.cache = DataCache(cache, tmp_path / "cache") if cache else None
    expected = content(fm.Loader(local(folder), 32))
    server.fault = lambda number, begin, end: fault if end - begin > 100_000 and not server.faults else None
    began = time.monotonic()
    assert content(fm.Loader(plan, 32)) == expected and server.faults[fault] == 1
    assert fetcher().hedges > before  # it was not the limit for silence that ended it
    assert time.monotonic() - began < 240  # not the minutes that the body would take


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache", [None, 40 << 20])
def test_an_object_replaced_in_the_middle_is_named_and_not_mixed(server, folder, tmp_path, monkeypatch, cache, workers):
    monkeypatch.setattr(ranges, "LARGEST", 256 << 10)
    monkeypatch.setattr(ranges, "LONG", 128 << 10)
    plan = remote(server, shuffle="none")
    plan.cache = DataCache(cache, tmp_path / "cache", "block") if cache else None
    expected = content(fm.Loader(local(folder, shuffle="none"), 50))
    other = (shards(tmp_path / "other", [700, 900, 650], seed=2) / "shard_1.tar").read_bytes()

    def replace(number: int, begin: int, end: int) -> None:
        if server.keys[number].endswith("shard_1.tar"):  # this request still gets the old bytes
            server.objects["data/shard_1.tar"] = other

    server.fault = replace
    found = []
    # If the first answer is one of the new object, it is not the one that was indexed.
    with pytest.raises(DataError, match=r"replaced|not the shard that was indexed") as caught:
        for batch in fm.Loader(plan, 50, workers=workers):
            found.append([bytes(part) for part in batch["bin"]])
    kinds = ("changed",) if cache else ("changed", "stale-index")
    assert caught.value.kind in kinds and caught.value.file == "s3://bkt/data/shard_1.tar"
    assert found == expected[: len(found)]


def changed(server, folder, offset: int) -> None:
    """Change one byte of a shard whose ETag stays."""
    data = bytearray((folder / "shard_1.tar").read_bytes())
    server.tags["data/shard_1.tar"] = hashlib.md5(data).hexdigest()
    data[offset] ^= 1
    server.objects["data/shard_1.tar"] = bytes(data)


def test_wrong_bytes_in_a_header_of_a_tar_name_the_shard(server, folder):
    with tarfile.open(folder / "shard_1.tar") as archive:
        offset = archive.getmembers()[500].offset
    changed(server, folder, offset)
    with pytest.raises(DataError, match=r"shard_1\.tar"):
        content(fm.Loader(remote(server, shuffle="none"), 50))


PROGRAM = """
import sys, time
import feedmill as fm
from feedmill.formats.energon.prepared import open_prepared
from feedmill.planning.plan import Plan
from feedmill.storage.remote.object_store import RemoteStore
store = RemoteStore("s3://bkt/data", endpoint=sys.argv[1], region="us-east-1", skip_signature=True)
plan = Plan.over(open_prepared(store, "train"), epochs=1, seed=3)
for number, batch in enumerate(fm.Loader(plan, 16)):
    print(*[part.hex() for part in batch["bin"]], flush=True)
    if sys.argv[2] == "stop" and number == 3:
        time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_four_processes_on_one_cache_of_which_one_is_killed_or_stopped(server, folder, tmp_path, how):
    server.fault = lambda number, begin, end: "late" if end - begin > 100_000 else None
    environment = {**os.environ, "FEEDMILL_CACHE_SIZE": "1GB", "FEEDMILL_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-c", PROGRAM, server.options["endpoint"]]
    victim = warm.Popen([*words, "stop"], env=environment, stdout=subprocess.PIPE)
    try:
        assert victim.stdout is not None and victim.stdout.readline()
        os.kill(victim.pid, how)  # while it reads ahead
        began = time.monotonic()
        others = [warm.Popen([*words, "run"], env=environment, stdout=subprocess.PIPE) for _ in range(3)]
        expected = content(fm.Loader(local(folder), 16))
        for process in others:
            output = process.communicate(timeout=300)[0].decode()
            found = [[bytes.fromhex(word) for word in line.split(" ")] for line in output.splitlines()]
            assert process.returncode == 0 and found == expected
        assert time.monotonic() - began < 240  # nobody waits for the other one, which sleeps for ten minutes
    finally:
        victim.kill()
        victim.communicate()


def test_every_error_has_a_fix():
    from feedmill.storage.remote.errors import translate

    for text in ["RequestTimeTooSkewed", "ExpiredToken", "NoSuchBucket", "403 Forbidden", "kind: Connect", "odd"]:
        error = translate(OSError(text), "s3://bkt/a")
        assert isinstance(error, FeedmillError) and error.fix and error.file == "s3://bkt/a"
