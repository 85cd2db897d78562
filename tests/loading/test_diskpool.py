"""The cache pool: lazy handles, limits that hold, nothing left behind after a crash, processes that do not meet."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError, NotFound, StorageError
from feedmill.formats.sample import Source
from feedmill.loading.cachepool import DirectLazy, FileStoreCachePool, HeldLazy, MockLazy, NoCachePool
from feedmill.samples.stores import FileStore, open_file_store
from helpers import warm


class Counting(FileStore[Any]):
    """Gives a name's own text, and counts; a name that begins with ``wait`` waits for the gate."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.gate = threading.Event()

    def raw(self, name: str) -> bytes:
        self.reads.append(name)
        if name.startswith("wait"):
            assert self.gate.wait(120)
        if name.startswith("bad"):
            raise NotFound("there is no such file", file=name)
        return name.encode() * (1000 if name.startswith("big") else 1)

    def value(self, name: str, data: bytes) -> Any:
        return data.decode()

    def source(self, name: str) -> Source:
        return Source("here", name, 0, 0, name, name, (name,))

    def get_path(self) -> str:
        return "here"

    def get_media_metadata(self, key: str) -> Any:
        raise NotImplementedError


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[FileStoreCachePool]:
    made = FileStoreCachePool(parent_cache_dir=tmp_path, num_workers=2, max_cache_size_gbytes=100e-9, max_cache_count=5)
    yield made
    made.close()


def eventually(check: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not check():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize("method", ["raw", "pickle"])
def test_files_are_fetched_once_and_gone_with_their_last_reader(tmp_path: Path, method: str) -> None:
    store = Counting()
    pool = FileStoreCachePool(parent_cache_dir=tmp_path, method=method)
    lazies = [pool.get_lazy(store, "a") for _ in range(3)]
    eventually(lambda: pool.held == (1, 1 if method == "raw" else len(pickle.dumps("a", 5))))
    sample: dict[str, Any] = {}
    assert [lazy.get(sample) for lazy in lazies[:2]] == ["a", "a"] and store.reads == ["a"] and pool.held[0] == 1
    assert [source.index for source in sample["__sources__"]] == ["a", "a"]
    assert lazies[0] == lazies[1] and len({*lazies, pool.get_lazy(store, "b")}) == 2
    del lazies[2]
    eventually(lambda: pool.held == (0, 0))
    assert lazies[0].get() == "a" and store.reads.count("a") == 2  # again, from the store
    pool.close()
    assert not list(tmp_path.glob("feedmill-pool-*")) and pool.get_lazy(store, "c").get() == "c"
    assert pool.get(store, "d") == "d"


def test_what_was_dropped_before_its_turn_leaves_no_books(pool: FileStoreCachePool) -> None:
    store = Counting()
    first = [pool.get_lazy(store, f"wait{i}") for i in range(2)]
    eventually(lambda: len(store.reads) == 2)
    others = [pool.get_lazy(store, f"x{i}") for i in range(3)]
    direct = others[0].get()  # its turn has not come: read directly
    assert direct == "x0" and store.reads[-1] == "x0"
    del others
    dropped = first.pop()
    del dropped  # while it is fetched
    store.gate.set()
    assert first[0].get() == "wait0"
    eventually(lambda: pool.held == (0, 0))
    assert "x1" not in store.reads


def test_limits_hold_and_nobody_waits_for_ever(pool: FileStoreCachePool) -> None:
    store = Counting()
    lazies = [pool.get_lazy(store, f"n{i:03}") for i in range(60)]
    big = pool.get_lazy(store, "big")
    for i, lazy in enumerate(lazies):
        assert lazy.get() == f"n{i:03}"
        count, size = pool.held
        assert count <= 5 and size <= 100
    assert big.get() == "big" * 1000
    eventually(lambda: pool.held == (0, 0))


def test_errors_come_to_who_asks(pool: FileStoreCachePool) -> None:
    lazy = pool.get_lazy(Counting(), "bad")
    time.sleep(0.02)
    with pytest.raises(NotFound, match="no such file"):
        lazy.get()


def test_values_that_are_put_away(pool: FileStoreCachePool) -> None:
    small, large = pool.to_cache({"x": [1]}, "small"), pool.to_cache("y" * 500, "large")
    assert isinstance(large, HeldLazy) and pool.held[0] == 1
    assert pickle.loads(pickle.dumps(pool.to_cache((1, 2), "t"))).get() == (1, 2)
    assert small.get() == {"x": [1]} == small.get() and large.get() == "y" * 500
    eventually(lambda: pool.held == (0, 0))


def test_a_disk_that_cannot_be_written_costs_speed_only(pool: FileStoreCachePool, monkeypatch: Any) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    store = Counting()
    lazy = pool.get_lazy(store, "a")
    time.sleep(0.02)
    assert lazy.get() == "a" and pool.held == (0, 0) and isinstance(pool.to_cache(1, "x"), HeldLazy)


def test_files_that_somebody_removed_are_read_directly(pool: FileStoreCachePool) -> None:
    lazy = pool.get_lazy(Counting(), "a")
    eventually(lambda: pool.held == (1, 1))
    (pool.folder / "1").unlink()
    assert lazy.get() == "a"


def test_bad_settings(tmp_path: Path) -> None:
    for settings_ in ({"num_workers": 0}, {"max_cache_size_gbytes": 0}, {"max_cache_count": 0}, {"method": "zip"}):
        with pytest.raises(ConfigError):
            FileStoreCachePool(**settings_)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="parent_cache_dir"):
        FileStoreCachePool(parent_cache_dir=tmp_path / "file").get_lazy(Counting(), "a")


def test_pools_without_a_cache(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    store = open_file_store(f"filesystem://{tmp_path}")
    pool = NoCachePool()
    lazy = pool.get_lazy(store, "a.txt")
    assert isinstance(lazy, DirectLazy) and lazy.get() == b"x" and pool.to_cache(3, "n").get() == 3
    assert pickle.loads(pickle.dumps(lazy)).get() == b"x" and MockLazy("n", str.upper).get() == "N"
    other = pickle.loads(pickle.dumps(FileStoreCachePool(parent_cache_dir=tmp_path / "p", max_cache_count=3)))
    handle = other.get_lazy(store, "a.txt")
    assert pickle.loads(pickle.dumps(handle)).get() == b"x" == handle.get()
    other.close()


CRASH = """
    import sys, time
    from feedmill.loading.cachepool import FileStoreCachePool
    from feedmill.samples.stores import open_file_store
    pool = FileStoreCachePool(parent_cache_dir=sys.argv[1])
    store = open_file_store("filesystem://" + sys.argv[2])
    kept = [pool.get_lazy(store, f"{i}.txt") for i in range(20)]
    while len(list(pool.folder.iterdir())) < 20:  # room is counted before a file is there
        time.sleep(0.001)
    print(pool.folder, flush=True)
    time.sleep(600)
"""


def test_a_killed_process_leaves_nothing_for_the_next(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for i in range(20):
        (tmp_path / f"data/{i}.txt").write_text(str(i))
    command = [sys.executable, "-c", textwrap.dedent(CRASH), str(tmp_path / "pool"), str(tmp_path / "data")]
    running = [warm.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        folders = [Path(each.stdout.readline().strip()) for each in running if each.stdout]
        assert len(set(folders)) == 2 and all(len(list(folder.iterdir())) == 20 for folder in folders)
        running[0].send_signal(signal.SIGKILL)
        running[0].wait(120)
        pool = FileStoreCachePool(parent_cache_dir=tmp_path / "pool")
        own = pool.folder
        assert not folders[0].exists() and folders[1].exists() and own not in folders
        pool.close()
        assert not own.exists() and folders[1].exists()
    finally:
        for each in running:
            each.kill()
            each.wait()


def test_a_fork_has_a_folder_of_its_own(pool: FileStoreCachePool) -> None:
    store = Counting()
    lazy, put = pool.get_lazy(store, "a"), pool.to_cache("v", "v")
    eventually(lambda: pool.held[0] == 2)
    before = pool.folder
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # no assertion here: its outcome goes through the pipe
        try:
            ok = lazy.get() == "a" and put.get() == "v" and pool.get_lazy(store, "b").get() == "b"
            ok = ok and pool.folder != before
            pool.close()
            os.write(writer, b"1" if ok else b"0")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"1" and before.exists() and lazy.get() == "a" and put.get() == "v"
    os.close(reader)
    os.close(writer)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["lazy", "get", "drop", "put"])), max_size=40))
def test_any_use_gives_the_right_values_and_ends_empty(steps: list[tuple[int, str]]) -> None:
    pool = FileStoreCachePool(num_workers=2, max_cache_count=2, max_cache_size_gbytes=30e-9)
    store, handles = Counting(), []  # type: tuple[Counting, list[tuple[str, Any]]]
    try:
        for number, kind in steps:
            if kind == "lazy":
                handles.append((f"f{number}", pool.get_lazy(store, f"f{number}")))
            elif kind == "put":
                handles.append((f"v{number}", pool.to_cache(f"v{number}", "v")))
            elif handles:
                name, lazy = handles.pop(number % len(handles))
                if kind == "get":
                    assert lazy.get() == name
                del lazy
        for name, lazy in handles:
            assert lazy.get() == name
        del handles
        eventually(lambda: pool.held == (0, 0))
    finally:
        pool.close()


def test_a_file_that_was_read_while_it_waited_for_space_lets_others_go_first(tmp_path: Path) -> None:
    store = Counting()
    pool = FileStoreCachePool(parent_cache_dir=tmp_path, num_workers=1, max_cache_count=1)
    first, waiting, again = (pool.get_lazy(store, name) for name in ("a", "b", "b"))
    other = pool.get_lazy(store, "c")
    assert first.entry.result(120) and first.cache_path is not None and first.cache_path.is_file()
    eventually(lambda: waiting.entry.held is not None)
    assert not waiting.entry.done() and waiting.get() == "b" and waiting.entry is again.entry
    with pytest.raises(TimeoutError, match="was not fetched"):
        again.entry.result(0.05)
    assert first.get() == "a" and first.cache_path is None
    assert other.entry.result(120) and not again.entry.done()
    assert other.get() == "c" and again.entry.result(120) and again.get() == "b"
    eventually(lambda: pool.held == (0, 0))
    pool.close()
