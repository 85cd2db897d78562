"""Several processes on one page cache, some of them killed: each byte is fetched once, and none is wrong."""

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
import pytest

from feedmill.storage.cache import page_locks as pagelocks
from feedmill.storage.cache.pages import PAGE, PageCache
from helpers import warm

URL = "s3://bucket/shard.tar"


def content(size: int) -> bytes:
    return np.random.default_rng(0).bytes(size)


WORKER = """
import os, random, sys, time
from pathlib import Path
import numpy as np
from feedmill.storage.cache.pages import PAGE, PageCache
folder, log, seed, size, limit, kill = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:7])
data = np.random.default_rng(0).bytes(size)
cache = PageCache(folder, limit)
pages = cache.open("s3://bucket/shard.tar", "1", size)
order = random.Random(seed)
fetched = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
deadline = time.monotonic() + 60
ranges = [(a, min(a + 3 * PAGE, size)) for a in range(0, size, 2 * PAGE)]
order.shuffle(ranges)
print("ready", flush=True)
sys.stdin.readline()
for count, (begin, end) in enumerate(ranges):
    while (got := pages.read(begin, end)) is None and time.monotonic() < deadline:
        with pages.claim(begin, end) as claim:
            for a, b in claim.mine:
                if kill and count == kill:
                    os.kill(os.getpid(), 9)
                time.sleep(0.001)
                pages.put(a, data[a:b])  # False where what the others are writing leaves no room
                os.write(fetched, f"{a} {b}\\n".encode())
        pages.wait(begin, end, 10)
    assert got == data[begin:end], "wrong bytes"
cache.close()
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
    size = 60 * PAGE + 77
    log = tmp_path / "log"
    workers = [start(tmp_path / "c", log, seed, size, 1 << 30, 3 if seed == 2 else 0) for seed in range(4)]
    go(workers)
    codes = []
    for worker in workers:
        worker.communicate(timeout=100)
        codes.append(worker.returncode)
    assert codes == [0, 0, -signal.SIGKILL, 0]
    fetched = sorted(tuple(map(int, line.split())) for line in log.read_text().splitlines())
    assert [a for a, _ in fetched] == [0, *(b for _, b in fetched[:-1])] and fetched[-1][1] == size


def test_processes_that_evict_at_once_never_read_wrong_bytes(tmp_path: Path) -> None:
    size = 60 * PAGE + 77
    workers = [start(tmp_path / "c", tmp_path / "log", seed, size, 20 * PAGE, 0) for seed in range(3)]
    go(workers)
    for worker in workers:
        worker.communicate(timeout=100)
        assert worker.returncode == 0
    cache = PageCache(tmp_path / "c", 1 << 30)
    assert cache.usage is not None and cache.usage.bytes == cache.list()[0].present <= 20 * PAGE
    cache.close()


def test_the_disk_never_holds_more_than_the_size(tmp_path: Path) -> None:
    size = 60 * PAGE + 77
    workers = [start(tmp_path / "c", tmp_path / "log", seed, size, 20 * PAGE, 0) for seed in range(2)]
    cache = PageCache(tmp_path / "c", 20 * PAGE)
    pages, data = cache.open(URL, "1", size), content(size)
    go(workers)

    def put(seed: int) -> None:
        for page in random.Random(seed).choices(range(60), k=120):
            pages.put(page * PAGE, data[page * PAGE : page * PAGE + PAGE])

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(put, seed) for seed in range(4)]
        highest = 0
        while not all(thread.done() for thread in running) or any(worker.poll() is None for worker in workers):
            highest = max(highest, os.fstat(pages.fd).st_blocks * 512)
        for thread in running:
            thread.result()
    assert 10 * PAGE < highest <= 21 * PAGE  # a file system may keep a few blocks of its own
    assert [worker.wait() for worker in workers] == [0, 0]
    cache.close()


def test_killed_anywhere_it_leaves_a_usable_cache(tmp_path: Path) -> None:
    size = 60 * PAGE + 77
    data = content(size)
    for attempt in range(12):
        worker = start(tmp_path / "c", tmp_path / "log", attempt, size, 20 * PAGE, 0)
        go([worker])
        time.sleep(random.Random(attempt).random() * 0.15)
        worker.kill()
        worker.communicate()
        cache = PageCache(tmp_path / "c", 20 * PAGE)
        pages = cache.open(URL, "1", size)
        for begin in range(0, size, PAGE):
            got = pages.read(begin, min(begin + PAGE, size))
            assert got is None or got == data[begin : begin + PAGE]
        begin = attempt * PAGE
        with pages.claim(begin, begin + PAGE) as claim:
            assert not claim.others
            assert pages.put(begin, data[begin : begin + PAGE])
        assert pages.read(begin, begin + PAGE) == data[begin : begin + PAGE]
        assert cache.corrupt == 0
        cache.close()


def test_what_a_killed_process_wrote_unsaid_is_freed(tmp_path: Path) -> None:
    cache = PageCache(tmp_path / "c", 8 * PAGE)
    pages = cache.open(URL, "1", 100 * PAGE)
    os.pwrite(pages.fd, bytes(40 * PAGE), 50 * PAGE)  # as put does before it sets the state
    pages.put(0, bytes(8 * PAGE))
    assert pages.put(8 * PAGE, bytes(PAGE))
    assert os.fstat(pages.fd).st_blocks * 512 <= 9 * PAGE


def test_a_forked_child_does_not_keep_its_parents_claims(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom feedmill.storage.cache.pages import PageCache\n"
        "claim = PageCache(Path(sys.argv[1]), 1 << 30).open(sys.argv[2], '1', 1000).claim(0, 1000)\n"
        "child = os.fork()\n"
        "if child: print(child, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "c"), URL]
    with warm.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.3)
        try:
            pages = PageCache(tmp_path / "c", 1 << 30).open(URL, "1", 1000)
            with pages.claim(0, 1000) as claim:
                assert claim.others
            parent.kill()
            parent.wait()
            with pages.claim(0, 1000) as claim:
                assert claim.mine
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_c_library_without_fallocate_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagelocks, "_fallocate", lambda: None)
    assert not pagelocks.punch_hole(0, 0, 1)
