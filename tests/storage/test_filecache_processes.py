"""Several processes on one cache folder, some of them killed: what they read is right, and the limit holds."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import time

import pytest
from tests.helpers.chunk_files import disk_bytes
from tests.storage.test_filecache import KB, NOTES, folder, on_disk, put, server, store_of

from feedmill.storage.cache import chunks
from feedmill.storage.cache.chunks import SMALLEST, disk_cache
from feedmill.storage.cache.copies import held_copy
from feedmill.storage.cache.settings import DataCache
from helpers import warm

__all__ = ["folder", "server"]

WORKER = """
import random, sys, hashlib
from pathlib import Path
from feedmill.storage.cache.copies import held_copy
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.folders import cache_folder
from feedmill.storage.remote.object_store import RemoteStore
store = RemoteStore("s3://bkt/data", endpoint=sys.argv[1], region="us-east-1", skip_signature=True)
disk_cache(cache_folder()).size = int(sys.argv[2])
order = random.Random(int(sys.argv[3]))
print("ready", flush=True)
for _ in range(int(sys.argv[4])):
    name = f"f{order.randrange(8)}"
    with held_copy(store, name) as held:
        data = held.path.read_bytes()
    print(name, hashlib.md5(data).hexdigest(), flush=True)
"""


def start(server, limit: int, seed: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, server.options["endpoint"], str(limit), str(seed), str(count)]
    return warm.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_processes_killed_while_they_fetch_and_evict_leave_a_usable_cache(server, folder, rounds):
    contents = {f"f{n}": put(server, f"f{n}", (n + 1) * 60 * KB, n) for n in range(8)}
    expected = {name: hashlib.md5(data).hexdigest() for name, data in contents.items()}
    limit, order = 900 * KB, random.Random(rounds)
    largest = max(map(len, contents.values()))
    for round_ in range(rounds):
        workers = [start(server, limit, 4 * round_ + n, 10**6 if n < 2 else 30) for n in range(4)]
        for worker in workers:
            assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
        end = time.monotonic() + order.uniform(0.3, 1.5)
        while time.monotonic() < end:  # each may use one file more than the limit at a time
            assert on_disk(folder) <= limit + 4 * (largest + NOTES)
            time.sleep(0.01)
        for worker in workers[:2]:
            worker.kill()
        for worker in workers:
            lines = worker.communicate(timeout=180)[0].splitlines()
            assert all(expected[line.split()[0]] == line.split()[1] for line in lines if len(line) > 34)
        assert [worker.returncode for worker in workers[2:]] == [0, 0]
    store, files = store_of(server), disk_cache(folder)
    files.size = limit
    for name, data in contents.items():
        with held_copy(store, name) as held:
            assert held.path.read_bytes() == data
    files.trim()
    assert files.used == on_disk(folder) <= limit
    assert not list(folder.glob(".*.feedmill-tmp"))


MIXED = """
import os, random, sys
from feedmill.storage.cache.copies import held_copy
from feedmill.storage.cache.settings import DataCache
from feedmill.storage.cache.chunks import SMALLEST
from feedmill.storage.remote.object_store import RemoteStore
store = RemoteStore("s3://bkt/data", endpoint=sys.argv[1], region="us-east-1", skip_signature=True)
use = DataCache.of().use()
cached = use.cache.open("s3://b/x", "1", 8000 * SMALLEST)
order = random.Random(int(sys.argv[2]))
print("ready", flush=True)
for _ in range(int(sys.argv[3])):
    if order.random() < 0.2:
        number = order.randrange(8)
        with held_copy(store, f"f{number}") as held:
            data = held.path.read_bytes()
        assert data == bytes([number]) * ((number + 1) * 16 * SMALLEST), "wrong bytes"
    else:
        first = 4 * order.randrange(2000)
        for at in range(first, first + 4):
            claim = cached.claim(at)
            chunk = claim.put(memoryview(bytes([at % 256]) * SMALLEST)) if claim else cached.open(at)
            chunk = chunk and chunk.reopened()
            assert chunk is None or os.pread(chunk.fd, SMALLEST, 0) == bytes([at % 256]) * SMALLEST, "wrong chunk"
"""


def test_chunks_and_copies_of_four_processes_of_which_one_is_killed_stay_within_the_size(server, folder, monkeypatch):
    size = 640 * SMALLEST
    monkeypatch.setenv("FEEDMILL_CACHE_SIZE", str(size))
    for number in range(8):
        server.objects[f"data/f{number}"] = bytes([number]) * ((number + 1) * 16 * SMALLEST)
    commands = [
        [sys.executable, "-c", MIXED, server.options["endpoint"], str(seed), "100000" if seed == 0 else "60"]
        for seed in range(4)
    ]
    workers = [warm.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    most, end = 0, time.monotonic() + 1
    while any(worker.poll() is None for worker in workers[1:]):
        most = max(most, disk_bytes(folder))
        if time.monotonic() > end:
            workers[0].kill()
        time.sleep(0.01)
    workers[0].kill()
    for worker in workers:
        worker.communicate(timeout=180)
    assert [worker.returncode for worker in workers[1:]] == [0, 0, 0]
    # The files are looked at one after the other, while chunks and copies take each other's room.
    assert size // 2 < most < 1.2 * size
    use = DataCache.of().use()
    assert use is not None
    use.cache.trim()
    assert size // 2 < sum(one.present for one in use.cache.list()) <= use.cache.used <= size
    use.cache.close()
    chunks._caches.clear()
