"""Several processes on one cache, some of them killed: each byte is fetched once, and none is wrong."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tests.helpers.chunk_files import disk_bytes
from tests.storage.test_chunks import put, read

from feedmill.storage.cache.chunks import SMALLEST, ChunkCache
from helpers import warm

URL = "s3://bucket/shard.tar"
SIZE = 60 * SMALLEST + 77
LARGE, SMALL = 512 * SMALLEST, 22 * (SMALLEST + 5000)
"""Sizes of a cache: one for everything, and one for a third of it."""


def content(size: int) -> bytes:
    return np.random.default_rng(0).bytes(size)


WORKER = """
import os, random, sys, time
from pathlib import Path
import numpy as np
from feedmill.storage.cache.chunks import ChunkCache
folder, log, seed, size, limit, kill = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:7])
data = np.random.default_rng(0).bytes(size)
cached = ChunkCache(folder, limit).open("s3://bucket/shard.tar", "1", size)
order = random.Random(seed)
fetched = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
deadline = time.monotonic() + 240
numbers = list(cached.numbers(0, size))
order.shuffle(numbers)
print("ready", flush=True)
sys.stdin.readline()
for count, number in enumerate(numbers):
    expected = data[number * cached.chunk : (number + 1) * cached.chunk]
    while (chunk := cached.open(number)) is None and time.monotonic() < deadline:
        claim = cached.claim(number)
        if claim is None:
            time.sleep(0.001)  # others are fetching it
            continue
        if kill and count >= kill:
            print("claimed", flush=True)
            sys.stdin.readline()
            os.kill(os.getpid(), 9)
        time.sleep(0.001)
        chunk = claim.put(memoryview(expected))  # None where what the others are writing leaves no room
        os.write(fetched, f"{number}\\n".encode())
        if chunk is not None:
            break
    chunk = chunk and chunk.reopened()
    assert chunk is None or os.pread(chunk.fd, chunk.size, 0) == expected, "wrong bytes"
print("done", flush=True)
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, *map(str, arguments)]
    return warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()


def test_four_processes_one_killed_fetch_each_byte_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    workers = [start(tmp_path / "c", log, seed, SIZE, LARGE, 3 if seed == 2 else 0) for seed in range(4)]
    killed = workers[2]
    assert killed.stdin is not None and killed.stdout is not None
    go([killed])
    assert killed.stdout.readline() == "claimed\n"  # before others have all
    go([worker for worker in workers if worker is not killed])
    killed.stdin.write("\n")
    killed.stdin.flush()
    codes = []
    for worker in workers:
        worker.communicate(timeout=300)
        codes.append(worker.returncode)
    assert codes == [0, 0, -signal.SIGKILL, 0]
    assert sorted(map(int, log.read_text().split())) == list(range(61))


def test_the_disk_never_holds_more_than_the_size_and_no_bytes_are_wrong(tmp_path: Path) -> None:
    workers = [start(tmp_path / "c", tmp_path / "log", seed, SIZE, SMALL, 0) for seed in range(3)]
    cache = ChunkCache(tmp_path / "c", SMALL)
    cached, data = cache.open(URL, "1", SIZE), content(SIZE)
    go(workers)

    def fill(seed: int) -> None:
        put(cached, random.Random(seed).choices(range(60), k=120), data)

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(fill, seed) for seed in range(4)]
        highest = 0
        while not all(thread.done() for thread in running) or any(worker.poll() is None for worker in workers):
            # The files are looked at one after the other, while others are written and evicted.
            highest = max(highest, disk_bytes(tmp_path / "c"))
        for thread in running:
            thread.result()
    assert SMALL // 2 < highest <= SMALL + 4 * SMALLEST
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert disk_bytes(tmp_path / "c") <= cache.used + (64 << 10) <= SMALL + 4096
    cache.close()


def test_killed_anywhere_it_leaves_a_usable_cache(tmp_path: Path) -> None:
    data = content(SIZE)
    for attempt in range(12):
        worker = start(tmp_path / "c", tmp_path / "log", attempt, SIZE, SMALL, 0)
        go([worker])
        time.sleep(random.Random(attempt).random() * 0.15)
        worker.kill()
        worker.communicate()
        cache = ChunkCache(tmp_path / "c", SMALL)
        cached = cache.open(URL, "1", SIZE)
        for number in cached.numbers(0, SIZE):
            assert read(cached, number) in (None, data[number * SMALLEST : (number + 1) * SMALLEST])
        assert put(cached, [attempt], data) == [True] or read(cached, attempt) is not None
        assert read(cached, attempt) == data[attempt * SMALLEST : (attempt + 1) * SMALLEST]
        cache.reserve(0)
        assert cache.corrupt == 0 and disk_bytes(tmp_path / "c") <= SMALL
        cache.close()


def test_a_forked_child_keeps_neither_the_claims_nor_the_chunks_of_its_parent(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom feedmill.storage.cache.chunks import ChunkCache\n"
        "cached = ChunkCache(Path(sys.argv[1]), int(sys.argv[3])).open(sys.argv[2], '1', 100_000)\n"
        "chunk = cached.claim(0).put(memoryview(bytes(1 << 16)))\n"
        "claim = cached.claim(1)\n"
        "child = os.fork()\n"
        "if not child: print(os.getpid(), flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "c"), URL, str(LARGE)]
    with warm.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            cache = ChunkCache(tmp_path / "c", LARGE)
            cached = cache.open(URL, "1", 100_000)
            assert cached.claim(1) is None and cache.clear() == 0
            parent.kill()
            parent.wait()
            assert cached.claim(1) is not None and cache.clear() == SMALLEST
        finally:
            os.kill(child, signal.SIGKILL)
