"""Whole files as arrays: remote ones go through the page cache, if there is one, and are not fetched again."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.range_server import RangeServer, range_server

from feedmill.errors import NotFound
from feedmill.storage.cache import chunks, settings
from feedmill.storage.cache import mapped as module
from feedmill.storage.cache.chunks import SMALLEST
from feedmill.storage.cache.mapped import mapped
from feedmill.storage.cache.settings import DataCache, using_cache
from feedmill.storage.local import LocalStore
from feedmill.storage.remote.object_store import RemoteStore

SIZE = 9 * SMALLEST + 77
DATA = np.random.default_rng(0).bytes(SIZE)


@pytest.fixture
def server():
    with range_server() as running:
        running.objects.update({"a.bin": DATA, "empty.bin": b""})
        yield running


@pytest.fixture
def cache(tmp_path: Path):
    yield DataCache(1 << 30, tmp_path / "cache")
    for opened in chunks._caches.values():
        opened.close()
    chunks._caches.clear()


def store(server: RangeServer) -> RemoteStore:
    return RemoteStore("s3://bkt", **server.options)


def fetched(server: RangeServer) -> int:
    """The bytes of the requests so far."""
    return sum(
        min(end, len(server.objects[key])) - begin for key, (begin, end) in zip(server.keys, server.asked, strict=True)
    )


def content(server: RangeServer, path: str = "a.bin") -> bytes:
    with mapped(store(server), path) as data:
        assert data.dtype == np.uint8
        return data.tobytes()


def test_a_local_file_is_mapped_and_an_empty_one_has_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(DATA)
    (tmp_path / "empty.bin").touch()
    with mapped(LocalStore(tmp_path), "a.bin") as data, mapped(LocalStore(tmp_path), "empty.bin") as empty:
        assert data.tobytes() == DATA and len(empty) == 0
    with pytest.raises(NotFound, match=r"gone\.bin"), mapped(LocalStore(tmp_path), "gone.bin"):
        pass


def test_without_a_cache_each_use_fetches_the_file_and_no_copy_stays(server: RangeServer, tmp_path: Path) -> None:
    with using_cache(DataCache(0, tmp_path / "cache")):
        assert content(server) == DATA == content(server)
        assert content(server, "empty.bin") == b""
    assert fetched(server) == 2 * SIZE and not (tmp_path / "cache").exists()


@pytest.mark.parametrize("at_once", [SMALLEST, 64 << 20])
def test_with_a_cache_its_bytes_are_fetched_once(
    server: RangeServer, cache: DataCache, monkeypatch, at_once: int
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    with using_cache(cache):
        assert content(server) == DATA
        assert fetched(server) == SIZE
        assert content(server) == DATA == content(server) and content(server, "empty.bin") == b""
        with pytest.raises(NotFound, match=r"gone\.bin"):
            content(server, "gone.bin")
    assert fetched(server) == SIZE
    server.objects["a.bin"] = DATA[::-1]
    with using_cache(cache):
        assert content(server) == DATA[::-1]


def test_several_threads_fetch_each_byte_once(server: RangeServer, cache: DataCache) -> None:
    found: list[bytes] = []

    def read() -> None:
        with using_cache(cache):
            found.append(content(server))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [DATA] * 4 and fetched(server) == SIZE


def test_pages_stay_while_the_array_is_in_use(server: RangeServer, cache: DataCache) -> None:
    use = cache.use()
    assert use is not None
    with using_cache(cache), mapped(store(server), "a.bin") as data:
        assert use.cache.clear() == 0 and data.tobytes() == DATA
    del data
    gc.collect()
    assert use.cache.clear() == SIZE


@pytest.mark.parametrize("trouble", ["too small", "disabled", "no folder", "full disk", "503"])
def test_a_cache_that_cannot_take_it_is_done_without(
    server: RangeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cache: DataCache,
    trouble: str,
) -> None:
    module._say_too_large.cache_clear()
    if trouble == "too small":
        cache = DataCache(512 * SMALLEST, tmp_path / "cache")
        monkeypatch.setattr(module, "_SHARE", 64)
    elif trouble == "no folder":
        (tmp_path / "cache").touch()
    elif trouble == "disabled":
        use = cache.use()
        assert use is not None
        use.cache.disable(OSError("it was full"))
    elif trouble == "full disk":

        def full(*_: object) -> int:
            raise OSError(28, os.strerror(28))

        monkeypatch.setattr("feedmill.storage.cache.chunks.os.pwrite", full)
    else:
        seen: Counter[int] = Counter()

        def fault(number: int, begin: int, end: int) -> str | None:
            seen[begin] += 1
            return "503" if seen[begin] == 1 else None

        server.fault = fault
    with using_cache(cache):
        assert content(server) == content(server) == DATA
    assert caplog.text.count("larger than an eighth of the cache") == (trouble == "too small")


def test_blocks_of_settings_are_nested_and_none_keeps_the_outer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer, inner = DataCache(1 << 30, tmp_path / "outer"), DataCache(0, tmp_path / "inner")
    monkeypatch.setenv("FEEDMILL_CACHE_SIZE", "2GB")
    assert settings.data_cache().size == 2 * 10**9
    with using_cache(outer):
        with using_cache(inner):
            assert settings.data_cache() == inner
            with using_cache(None):
                assert settings.data_cache() == inner
        assert settings.data_cache() == outer
    assert settings.data_cache().size == 2 * 10**9
