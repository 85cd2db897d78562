"""Objects that lie in the page cache as a whole are read by descriptor, as long as nothing is evicted."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.range_server import RangeServer, range_server

from feedmill.errors import DataError
from feedmill.formats.ranges import read_remote
from feedmill.storage.base import OnDisk
from feedmill.storage.cache import whole
from feedmill.storage.cache.page_io import Pages
from feedmill.storage.cache.paged import Paging
from feedmill.storage.cache.pages import PAGE, PageCache
from feedmill.storage.cache.whole import WholeObjects
from feedmill.storage.fetching.read_ahead import ReadAhead
from feedmill.storage.remote.object_store import RemoteStore

SIZE = 4 * PAGE + 1000
DATA = np.random.default_rng(0).bytes(SIZE)
PATHS = ("a", "b", "c")


@pytest.fixture
def cache(tmp_path: Path):
    cache = PageCache(tmp_path / "cache", 64 * PAGE)
    yield cache
    cache.close()


def opened(cache: PageCache, key: str, data: bytes = DATA) -> Pages:
    pages = cache.open(f"s3://bkt/{key}", "1", SIZE)
    assert not data or pages.put(0, data)
    return pages


def found(objects: WholeObjects, *files: int) -> OnDisk | None:
    return objects.find(PATHS, str, np.asarray(files, np.int64))


def test_only_complete_objects_are_found_and_each_has_its_descriptor(cache: PageCache) -> None:
    objects, pages = WholeObjects(), [opened(cache, "a"), opened(cache, "b"), opened(cache, "c", DATA[: 2 * PAGE])]
    assert found(objects, 0) is None
    for key, each in zip("abc", pages, strict=True):
        objects.add(cache, key, each)
    there = found(objects, 0, 1, 0)
    assert there is not None and there.unchanged()
    assert there.descriptors.tolist() == [pages[0].fd, pages[1].fd, pages[0].fd]
    assert os.pread(int(there.descriptors[1]), 100, PAGE) == DATA[PAGE : PAGE + 100]
    assert found(objects, 0, 2) is None and found(objects) is None
    assert objects.of(cache, "a") is pages[0] and objects.of(cache, "c") is None
    assert pages[2].put(2 * PAGE, DATA[2 * PAGE :])
    objects.add(cache, "c", pages[2])
    there = found(objects, 0, 2)
    assert there is not None and there.descriptors.tolist() == [pages[0].fd, pages[2].fd]


def test_nothing_is_found_after_an_eviction_until_the_object_is_complete_again(cache: PageCache) -> None:
    objects, first, second = WholeObjects(), opened(cache, "a"), opened(cache, "b")
    objects.add(cache, "a", first)
    objects.add(cache, "b", second)
    before = found(objects, 0, 1)
    assert before is not None and second.evict(np.arange(1, 2)) == PAGE
    assert not before.unchanged() and found(objects, 0) is None
    objects.add(cache, "b", second)
    assert found(objects, 1) is None
    objects.add(cache, "a", first)
    assert found(objects, 0) is not None and found(objects, 0, 1) is None
    second.put(0, DATA)
    objects.add(cache, "b", second)
    assert found(objects, 0, 1) is not None


def test_objects_of_another_cache_replace_those_of_the_first(cache: PageCache, tmp_path: Path) -> None:
    objects, other = WholeObjects(), PageCache(tmp_path / "other", 64 * PAGE)
    objects.add(cache, "a", opened(cache, "a"))
    pages = opened(other, "b")
    objects.add(other, "b", pages)
    assert found(objects, 0) is None and objects.of(cache, "a") is None and objects.of(other, "b") is pages
    other.close()
    assert found(objects, 1) is None


def test_objects_stay_open_only_while_there_are_descriptors_for_them(
    cache: PageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "file_limit", lambda: 2 * 3 * 8)
    objects = WholeObjects()
    for key in PATHS:
        objects.add(cache, key, opened(cache, key))
    assert found(objects, 0, 1) is not None and found(objects, 2) is None


@pytest.fixture
def server():
    with range_server() as running:
        running.objects["a"] = DATA
        yield running


def test_reading_ahead_finds_them_and_a_range_beyond_the_end_is_an_error(server: RangeServer, cache: PageCache) -> None:
    store, paths = RemoteStore("s3://bkt", **server.options), ["a"]
    reader = ReadAhead(1 << 20, Paging(cache, "shard"))
    none, hungry = np.zeros(1, np.int64), threading.Event()
    hungry.set()
    for step in range(2):
        ends = none + SIZE
        reader.want(store, paths, none, none + 5, ends, none + step, hungry)
        reader.finish()
        reader.done(step)
    reader.close()
    gc.collect()
    server.asked.clear()
    buffer = np.zeros(300, np.uint8)
    offsets, lengths = np.asarray([7, 3 * PAGE], np.int64), np.asarray([100, 200], np.int64)
    read_remote(store, paths, none.repeat(2), offsets, lengths, buffer)
    assert buffer.tobytes() == DATA[7:107] + DATA[3 * PAGE : 3 * PAGE + 200] and not server.asked
    with pytest.raises(DataError, match="truncated"):
        read_remote(store, paths, none.repeat(2), offsets + np.asarray([0, 3 * PAGE]), lengths, buffer)


def test_bytes_that_another_reader_is_fetching_are_not_requested_again_too_soon(
    server: RangeServer, tmp_path: Path
) -> None:
    readers, store, none = [], RemoteStore("s3://bkt", **server.options), np.zeros(1, np.int64)
    server.delay = 2.5  # longer than an own request may hang
    caches = [PageCache(tmp_path / "cache", 64 * PAGE) for _ in range(2)]
    for cache in caches:  # as in two processes
        readers.append(ReadAhead(1 << 20, Paging(cache, "shard")))
        readers[-1].want(store, ["a"], none, none, none + SIZE, none, threading.Event())
        until = time.monotonic() + 120
        while not server.asked and time.monotonic() < until:  # the second one would hedge a request of its own
            time.sleep(0.01)
    readers[1].finish()
    assert len(server.asked) == 1 and caches[1].list()[0].present == SIZE
    for reader, cache in zip(readers, caches, strict=True):
        reader.close()
        cache.close()
