"""The cache of chunks against a dictionary of chunks, full disks, and damaged files; and reading through it."""

from __future__ import annotations

import errno
import gc
import logging
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.chunk_files import chunk_files, damage, disk_bytes
from tests.helpers.range_server import RangeServer, range_server

from feedmill.errors import DataError
from feedmill.formats.offsets import read_remote
from feedmill.storage.cache.chunks import FAR, SMALLEST, CachedObject, Chunk, ChunkCache
from feedmill.storage.cache.reading import CacheUse
from feedmill.storage.fetching.read_ahead import ReadAhead, Starving, soonest_uses
from feedmill.storage.remote.object_store import RemoteStore
from helpers import warm

URL = "s3://bucket/shard.tar"
SIZE = 5 * SMALLEST + 1000


def content(size: int = SIZE, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


DATA = content()


def room(chunks: int) -> int:
    """A size in which this number of chunks fits, besides the files of a few objects."""
    return (chunks + 2) * (SMALLEST + 5000) - 1


def put(cached: CachedObject, numbers: range | list[int], data: bytes) -> list[bool]:
    """Put chunks of the content of an object; return which of them were stored."""
    stored = []
    for number in numbers:
        claim = cached.claim(number)
        begin = number * cached.chunk
        stored.append(claim is not None and claim.put(memoryview(data)[begin : begin + cached.chunk]) is not None)
    return stored


def read(cached: CachedObject, number: int) -> bytes | None:
    """Return the bytes of a chunk, None if it is missing."""
    chunk = cached.open(number)
    return None if chunk is None or chunk.fd < 0 else os.pread(chunk.fd, chunk.size, 0)


def there(cached: CachedObject) -> list[int]:
    return [number for number in cached.numbers(0, cached.size) if os.path.exists(cached.path(number))]


@pytest.fixture
def cache(tmp_path: Path):
    cache = ChunkCache(tmp_path / "cache", 512 * SMALLEST)
    yield cache
    cache.close()


def test_what_is_put_is_read_and_the_rest_is_missing(cache: ChunkCache) -> None:
    cached = cache.open(URL, "1", SIZE)
    assert there(cached) == [] and read(cached, 0) is None and cached.numbers(0, SIZE) == range(6)
    assert put(cached, [1, 2, 5], DATA) == [True] * 3
    assert there(cached) == [1, 2, 5] and read(cached, 5) == DATA[5 * SMALLEST :]
    assert cached.present(SMALLEST, 3 * SMALLEST) and not cached.present(SMALLEST, 3 * SMALLEST + 1)
    assert cached.present(7, 7) and not cached.check_complete()
    [entry] = cache.list()
    assert entry[:4] == (URL, "1", 2 * SMALLEST + 1000, SIZE) and abs(entry.last_use - time.time()) < 60
    assert put(cached, [0, 3, 4], DATA) == [True] * 3 and cached.check_complete()
    with pytest.raises(ValueError, match="not a byte range"):
        cached.numbers(0, SIZE + 1)


def test_objects_and_versions_do_not_mix_and_the_empty_object_is_complete(cache: ChunkCache) -> None:
    first, second = cache.open(URL, "1", SIZE), cache.open(URL, "2", SIZE)
    assert cache.open(URL, "1", SIZE) is first
    put(first, range(6), DATA)
    assert there(second) == [] and cache.open(URL, "3", 0).check_complete()


def test_the_chunks_of_a_folder_keep_their_size_if_that_of_the_cache_changes(tmp_path: Path) -> None:
    small = ChunkCache(tmp_path / "c", 1 << 20)
    assert put(small.open(URL, "1", SIZE), range(6), DATA) == [True] * 6
    large = ChunkCache(tmp_path / "c", 1 << 40)
    assert (small.chunk, large.chunk) == (SMALLEST, SMALLEST) and read(large.open(URL, "1", SIZE), 5) == DATA[-1000:]
    assert ChunkCache(tmp_path / "d", 1 << 40).chunk == 1 << 20


def test_claims_exclude_each_other_and_end_with_the_chunk(cache: ChunkCache) -> None:
    cached = cache.open(URL, "1", SIZE)
    first = cached.claim(1)
    assert first is not None and cached.claim(1) is None
    hung = cached.claim(1, although_claimed=True)
    assert hung is not None and hung.put(memoryview(DATA)[SMALLEST : 2 * SMALLEST]) is not None
    assert cached.claim(1) is None and read(cached, 1) == DATA[SMALLEST : 2 * SMALLEST]
    assert first.put(memoryview(DATA)[SMALLEST : 2 * SMALLEST]) is not None  # the one that hung
    second = cached.claim(2)
    assert second is not None
    second.drop()
    assert put(cached, [2], DATA) == [True] and read(cached, 1) == DATA[SMALLEST : 2 * SMALLEST]


def test_the_least_recently_used_chunks_go_first_and_95_per_cent_stay(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path / "c", room(40))
    cached, data = cache.open(URL, "1", 100 * SMALLEST), bytes(100 * SMALLEST)
    assert all(put(cached, range(41), data))
    assert len(there(cached)) == 41 and read(cached, 0) is not None
    put(cached, range(50, 52), data)
    assert there(cached)[:2] == [0, 3] and 36 < len(there(cached)) <= 41
    assert disk_bytes(tmp_path / "c") <= cache.used + (32 << 10) <= room(40)


def test_the_files_of_many_objects_count_too(tmp_path: Path) -> None:
    size, folder = 100 * SMALLEST, tmp_path / "c"
    cache, most = ChunkCache(folder, size), 0
    for number in range(60):
        put(cache.open(f"{URL}{number}", "1", 4 * SMALLEST + 77), range(5), bytes(4 * SMALLEST + 77))
        most = max(most, disk_bytes(folder))
    assert 0.8 * size < most <= size
    used = cache.used
    (folder / "used").write_bytes(b"")  # counted again
    assert used - 10_000 < ChunkCache(folder, size).used <= used  # it may be too high, never too low
    cache.close()


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 9 * SMALLEST), st.integers(0, 3 * SMALLEST), st.integers(0, 99))
    ),
    st.booleans(),
)
def test_the_soonest_use_of_a_chunk_is_the_least_of_its_ranges(
    ranges: list[tuple[int, int, int, int]], ordered: bool
) -> None:
    ranges = sorted(ranges) if ordered else ranges
    expected: dict[int, list[int]] = {}
    for number, begin, size, use in ranges:
        for chunk in range(begin // SMALLEST, -(-(begin + size) // SMALLEST)) if size else ():
            expected.setdefault((number << 44) // SMALLEST + chunk, []).append(use)
    number, begin, size, use = np.asarray(ranges, np.int64).reshape(-1, 4).T
    begins = (number << 44) + begin
    numbers, soonest = soonest_uses(begins, begins + size, use, SMALLEST)
    assert numbers.tolist() == sorted(expected)
    assert soonest.tolist() == [min(expected[number]) for number in numbers.tolist()]


def plan_use(cached: CachedObject, number: int, use: int) -> None:
    cached.plan_uses(np.asarray([number]), np.asarray([use]))


def test_chunks_of_no_running_plan_go_first_then_those_needed_last(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path / "c", room(10))
    cached, data = cache.open(URL, "1", 30 * SMALLEST), bytes(30 * SMALLEST)
    assert all(put(cached, range(11), data))
    for number in range(10):
        plan_use(cached, number, 100 - number)
    plan_use(cached, 5, FAR)
    assert read(cached, 10) is not None  # used last, but in no plan
    for new in range(20, 25):
        plan_use(cached, new, 0)
        assert put(cached, [new], data) == [True]
    assert [number for number in range(11) if number not in there(cached)] == [0, 1, 2, 5, 10]
    assert put(cached, [11], data) == [True]  # of no plan either
    plan_use(cached, 12, 100)
    assert put(cached, [12], data) == [True] and 11 not in there(cached)
    plan_use(cached, 13, 101)
    assert put(cached, [13], data) == [False]  # needed after all others: it is not kept
    cached.plan_uses(np.asarray([12]), np.asarray([200]), until=99)
    plan_use(cached, 14, 150)
    cache._retry_at = 0.0  # evictions that free nothing are not repeated at once
    assert put(cached, [14], data) == [False]
    cached.plan_uses(np.asarray([12]), np.asarray([200]), until=100)
    cache._retry_at = 0.0
    assert put(cached, [14], data) == [True] and 12 not in there(cached)


def test_what_is_being_read_does_not_evict_each_other(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path / "c", room(4) - 2 * SMALLEST)
    cached, other = cache.open(URL, "1", 30 * SMALLEST), cache.open("s3://bkt/b", "1", SMALLEST)
    for number in range(4):
        plan_use(cached, number, 10 + number)
    stored = [put(cached, [number], bytes(30 * SMALLEST)) for number in range(4)]
    full = [number for number, kept in enumerate(stored) if kept == [True]]
    assert there(cached) == full and len(full) < 4  # the last is needed after the others

    def put_sooner(*, held: int) -> bool:
        cache._retry_at = 0.0
        plan_use(cached, 20, 5)
        claim = cached.claim(20, held=held)
        return claim is not None and claim.put(memoryview(bytes(SMALLEST)), held=held) is not None

    assert not put_sooner(held=13) and there(cached) == full
    cache.reserve(cache.capacity() - cache.used)
    cache._retry_at = math.inf
    assert other.claim(0, held=13) is None and not other.may_be_claimed() and there(cached) == full
    cache.trim()
    assert put_sooner(held=full[-1] + 9) and there(cached) == [*full[:-1], 20]


def test_plans_of_killed_processes_do_not_count(tmp_path: Path) -> None:
    code = (
        "import sys, os\nfrom pathlib import Path\nfrom feedmill.storage.cache.chunks import ChunkCache\n"
        "cached = ChunkCache(Path(sys.argv[1]), int(sys.argv[2])).open('s3://b/x', '1', 20 << 16)\n"
        "import numpy as np\n"
        "for n in range(4): cached.claim(n).put(memoryview(bytes(1 << 16)))\n"
        "cached.plan_uses(np.arange(4), np.zeros(4, int)); os.kill(os.getpid(), 9)\n"
    )
    warm.run([sys.executable, "-c", code, str(tmp_path / "c"), str(room(10))], check=False)
    cache = ChunkCache(tmp_path / "c", room(10))
    cached, data = cache.open("s3://b/x", "1", 20 * SMALLEST), bytes(20 * SMALLEST)
    assert there(cached) == [0, 1, 2, 3]
    assert all(put(cached, range(4, 11), data))
    for number in range(4, 11):
        plan_use(cached, number, 1000)
    put(cached, [11], data)
    assert set(range(4, 12)) <= set(there(cached)) and len(there(cached)) < 12


def test_open_chunks_stay_and_a_cache_full_of_them_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedmill.storage.cache.chunks._PINNED", 1)
    cache = ChunkCache(tmp_path / "c", room(4))
    cached, data = cache.open(URL, "1", 20 * SMALLEST), content(20 * SMALLEST)
    put(cached, range(5), data)
    held = [cached.open(number) for number in there(cached)]
    assert [chunk.fd >= 0 for chunk in held if chunk] == [True] * 5
    assert put(cached, [8], data) == [False] and not cache.disabled and cache.clear() == 0
    del held[1:]
    cache._retry_at = 0.0
    assert put(cached, [8], data) == [True] and read(cached, 0) == data[:SMALLEST]
    cache.clear()
    assert there(cached) == [0]


def test_more_chunks_than_a_process_may_keep_open_have_no_descriptor(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path / "c", room(8))
    cached, data = cache.open(URL, "1", 20 * SMALLEST), content(20 * SMALLEST)
    put(cached, range(8), data)
    cache.sharers = 4
    held = [cached.open(number) for number in range(8)]
    assert [chunk.fd >= 0 for chunk in held if chunk] == [True] * 2 + [False] * 6
    again = held[7] and held[7].reopened()
    assert isinstance(again, Chunk) and os.pread(again.fd, 9, 0) == data[7 * SMALLEST : 7 * SMALLEST + 9]
    again.close()
    assert cache.clear() == 6 * SMALLEST and held[7] and held[7].reopened() is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_full_disk_disables_the_cache_with_one_warning(
    cache: ChunkCache, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cached = cache.open(URL, "1", SIZE)
    put(cached, [0], DATA)

    def full(fd: int, data: bytes, offset: int) -> int:
        if len(data) > 1000:
            raise OSError(code, os.strerror(code))
        return real(fd, data, offset)

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", full)
    with caplog.at_level(logging.WARNING):
        assert put(cached, [1, 2], DATA) == [False, False]
    assert cache.disabled and len(caplog.records) == 1
    assert read(cached, 0) == DATA[:SMALLEST] and there(cached) == [0]
    monkeypatch.undo()
    assert put(cache.open(URL, "2", SIZE), [0], DATA) == [False]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_small_file_system_fills_up_without_harm(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("this machine does not mount")
    try:
        cache = ChunkCache(place / "c", 8 << 20)
        cached, data = cache.open(URL, "1", 40 * SMALLEST), content(40 * SMALLEST)
        results = put(cached, range(40), data)
        assert results[0] and not results[-1] and cache.disabled
        for number in range(results.index(False)):
            assert read(cached, number) == data[number * SMALLEST : (number + 1) * SMALLEST]
        cache.close()
        assert put(ChunkCache(place / "other", 8 << 20).open(URL, "2", 40 * SMALLEST), [0], data) == [False]
    finally:
        subprocess.run(["umount", "-l", place], check=False)


def test_folders_that_cannot_be_made_or_vanish_are_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    blocked = ChunkCache(tmp_path / "file" / "c", 1 << 30)
    cached = blocked.open(URL, "1", SIZE)
    assert blocked.disabled and put(cached, [0], DATA) == [False] and there(cached) == []
    assert blocked.list() == [] and blocked.clear() == 0
    cache = ChunkCache(tmp_path / "c", 8 << 20)
    cached = cache.open(URL, "1", SIZE)
    put(cached, range(6), DATA)
    held = cached.open(3)
    subprocess.run(["rm", "-r", str(tmp_path / "c")], check=True)
    assert held is not None and os.pread(held.fd, SMALLEST, 0) == DATA[3 * SMALLEST : 4 * SMALLEST]
    assert put(cache.open(URL, "2", SIZE), [0], DATA) == [False] and cache.disabled
    assert len(caplog.records) == 2


def test_what_a_read_only_folder_has_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert put(ChunkCache(tmp_path / "c", 1 << 20).open(URL, "1", SIZE), [0], DATA) == [True]
    plain = os.open

    def read_only(path: object, flags: int, *rest: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return plain(path, flags, *rest)

    monkeypatch.setattr(os, "open", read_only)
    cache = ChunkCache(tmp_path / "c", 1 << 40)
    cached = cache.open(URL, "1", SIZE)
    assert cache.disabled and read(cached, 0) == DATA[:SMALLEST] and put(cached, [1], DATA) == [False]
    assert [entry.present for entry in cache.list()] == [SMALLEST]


def test_a_file_system_without_locks_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("feedmill.storage.cache.chunks.fcntl.flock", none)
    cache = ChunkCache(tmp_path / "c", 8 << 20)
    assert put(cache.open(URL, "1", SIZE), [0], DATA) == [False] and "No locks available" in caplog.text


def test_corrupt_chunks_of_an_earlier_boot_are_missing_and_intact_ones_are_compared_once(
    cache: ChunkCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cached = cache.open(URL, "1", SIZE)
    put(cached, range(6), DATA)
    paths = sorted(chunk_files(tmp_path / "cache"))
    damage(paths[1])
    damage(paths[0])
    damage(paths[0], earlier_boot=False)  # back to what it was
    assert read(cached, 0) == DATA[:SMALLEST] and read(cached, 1) is None and there(cached) == [0, 2, 3, 4, 5]
    assert cache.corrupt == 1 and len(caplog.records) == 1
    damage(paths[0], earlier_boot=False)  # no machine was started since it was compared
    assert read(cached, 0) is not None
    assert put(cached, [1], DATA) == [True] and read(cached, 1) == DATA[SMALLEST : 2 * SMALLEST]


@pytest.mark.parametrize("length", [0, 100, SMALLEST, SMALLEST + 17])
def test_chunks_of_another_length_are_missing(cache: ChunkCache, tmp_path: Path, length: int) -> None:
    cached = cache.open(URL, "1", SIZE)
    put(cached, [0], DATA)
    [path] = chunk_files(tmp_path / "cache")
    os.truncate(path, length)
    assert read(cached, 0) is None and there(cached) == []
    assert put(cached, [0], DATA) == [True] and read(cached, 0) == DATA[:SMALLEST]


def test_nothing_is_followed_through_links_or_deleted_outside(cache: ChunkCache, tmp_path: Path) -> None:
    cached = cache.open(URL, "1", SIZE)
    put(cached, range(6), DATA)
    path = min(chunk_files(tmp_path / "cache"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert all(parent.stat().st_mode & 0o777 == 0o700 for parent in (path.parent, path.parent.parent))
    other = tmp_path / "precious"
    other.write_bytes(DATA[:SMALLEST] + bytes(16))
    path.unlink()
    path.symlink_to(other)
    assert read(cached, 0) is None
    folder = path.parent.with_name("0" * 32)
    folder.symlink_to(tmp_path)
    (path.parent / "notes.txt").write_text("mine")
    cache.clear()
    assert other.exists() and (path.parent / "notes.txt").exists() and folder.is_symlink()


def test_parts_of_dead_processes_are_deleted_and_objects_without_a_note_evicted(
    cache: ChunkCache, tmp_path: Path
) -> None:
    cached = cache.open(URL, "1", SIZE)
    put(cached, range(6), DATA)
    [folder] = {path.parent for path in chunk_files(tmp_path / "cache")}
    (folder / "7.part").write_bytes(bytes(SMALLEST))
    (folder / "8.12ab.part").write_bytes(bytes(SMALLEST))
    claim = cached.claim(9)
    (folder / "object").unlink()
    assert cache.list() == []
    cache.size = 4 * SMALLEST
    cache.reserve(0)
    assert not [path for path in folder.glob("*.part") if path.name != "9.part"] and claim is not None
    claim.drop()
    cache.reserve(10**9)
    cache.clear()
    assert not folder.exists()


def test_clearing_deletes_the_objects_of_a_prefix(cache: ChunkCache) -> None:
    for url in ("s3://a/x", "s3://a/y", "s3://b/z"):
        put(cache.open(url, "1", SIZE), range(6), DATA)
    assert cache.clear("s3://a/") == 2 * SIZE
    assert [entry.url for entry in cache.list()] == ["s3://b/z"]
    assert cache.clear() == SIZE and cache.used == 0


STEPS = st.tuples(st.sampled_from("prceh"), st.integers(0, 1), st.integers(0, 5))


@settings(max_examples=30, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_it_behaves_as_a_dictionary_of_chunks(tmp_path_factory: pytest.TempPathFactory, steps: list) -> None:
    folder = tmp_path_factory.mktemp("c")
    cache, datas = ChunkCache(folder / "c", room(8)), [DATA, content(seed=1)]
    objects = [cache.open(URL, str(version), SIZE) for version in range(2)]
    held: list[tuple[Chunk, bytes]] = []
    for step, which, number in steps:
        cached, data = objects[which], datas[which][number * SMALLEST : (number + 1) * SMALLEST]
        present = number in there(cached)
        if step == "p":
            put(cached, [number], datas[which])
        elif step == "r":
            assert read(cached, number) == (data if present else None)
        elif step == "c":
            assert (cached.claim(number) is None) == present
        elif step == "e":
            cache.clear()
            assert sum(len(there(each)) for each in objects) <= len(held)
        elif (chunk := cached.open(number)) is not None:
            held = [*held[-1:], (chunk, data)]
        assert all(os.pread(chunk.fd, chunk.size, 0) == expected for chunk, expected in held if chunk.fd >= 0)
        assert disk_bytes(folder / "c") <= room(8)
    held.clear()
    cache.close()


@pytest.fixture
def server():
    with range_server() as running:
        running.objects["a"] = DATA
        yield running


@pytest.mark.parametrize("open_at_once", [True, False])
def test_ranges_are_read_from_the_chunks_in_which_they_lie_and_one_beyond_the_end_is_an_error(
    server: RangeServer, cache: ChunkCache, monkeypatch: pytest.MonkeyPatch, open_at_once: bool
) -> None:
    if not open_at_once:
        monkeypatch.setattr("feedmill.storage.cache.chunks.file_limit", lambda: 0)
    store, paths = RemoteStore("s3://bkt", **server.options), ["a"]
    reader, none = ReadAhead(1 << 20, CacheUse(cache, "block")), np.zeros(1, np.int64)
    reader.want(store, paths, none, none + 5, none + SIZE, none, Starving())
    reader.finish()
    server.forget()
    ranges = [(7, 100), (SMALLEST - 10, 30), (SMALLEST + 20, 3 * SMALLEST), (50, 0), (SIZE - 9, 9)]
    offsets, lengths = np.asarray(ranges, np.int64).T
    buffer = np.zeros(lengths.sum(), np.uint8)
    files = np.zeros(len(offsets), np.int64)
    found = store.fetched(paths, files, offsets, lengths)
    assert found is not None and len(found.owners) == (1 if open_at_once else 8)
    read_remote(store, paths, files, offsets, lengths, buffer)
    assert buffer.tobytes() == b"".join(DATA[begin : begin + length] for begin, length in ranges)
    assert store.read_ranges("a", *(column.tolist() for column in (offsets, lengths))) == [
        DATA[begin : begin + length] for begin, length in ranges
    ]
    assert not server.asked
    with pytest.raises(DataError, match="truncated"):
        read_remote(store, paths, files[:1], none + SIZE - 10, none + 20, buffer[:20])
    reader.done(0)
    del found
    gc.collect()
    reader.want(store, paths, none, none + 5, none + SIZE, none + 1, Starving())
    cache.clear()  # evicted after they were requested: they are requested again, unless they are held
    read_remote(store, paths, files, offsets, lengths, buffer)
    assert buffer.tobytes() == b"".join(DATA[begin : begin + length] for begin, length in ranges)
    assert bool(server.asked[1:]) != open_at_once
    reader.close()


@pytest.mark.parametrize("open_at_once", [True, False])
def test_bytes_of_a_window_that_does_not_fit_are_fetched_once(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_at_once: bool
) -> None:
    if not open_at_once:
        monkeypatch.setattr("feedmill.storage.cache.chunks.file_limit", lambda: 0)
    server.objects.update({name: content(12 * SMALLEST) for name in "abc"})
    cache, starving = ChunkCache(tmp_path / "cache", room(16)), Starving()
    store, paths = RemoteStore("s3://bkt", **server.options), ["a", "b", "c"]
    reader, size = ReadAhead(64 << 20, CacheUse(cache, "block")), SMALLEST // 2
    file, part = (table.ravel() for table in np.mgrid[0:3, 0:24])
    starving.now = True
    for window in range(2):
        steps = 72 * window + (part * 29 + file * 7) % 72  # mixes the objects, as a shuffle does
        began = len(server.asked)
        reader.want(store, paths, file, part * size, part * size + size, steps, starving, None, (steps, steps + 72))
        reader.finish()
        buffer = np.zeros(len(file) * size, np.uint8)
        read_remote(store, paths, file, part * size, np.full(len(file), size), buffer)
        assert buffer.tobytes() == b"".join(server.objects[name] for name in paths)
        ranges = server.asked[began:]
        assert sum(end - begin for begin, end in ranges) <= (36 if window == 0 else 24) * SMALLEST
        assert len(ranges) <= 36 and cache.used <= cache.size
        for step in range(72 * window, 72 * window + 72):
            reader.done(step)
    reader.close()


def test_scattered_bytes_of_data_that_does_not_fit_are_fetched_without_their_chunks(
    server: RangeServer, tmp_path: Path
) -> None:
    data = content(200 * SMALLEST)
    server.objects["a"] = data
    cache = ChunkCache(tmp_path / "cache", 40 * SMALLEST)
    store, paths = RemoteStore("s3://bkt", **server.options), ["a"]
    use, step = CacheUse(cache), np.zeros(1, np.int64)
    use.scattered, reader = True, ReadAhead(4 << 20, use)
    reader.want(store, paths, step, step + 10, step + SMALLEST, step, Starving())
    reader.finish()
    assert cache.list()[0].present == SMALLEST  # most of the chunk is needed
    server.forget()
    offsets = np.arange(0, 200, 20) * SMALLEST + 99
    steps, lengths = np.zeros(10, np.int64), np.full(10, 500)
    reader.want(store, paths, steps, offsets, offsets + lengths, steps + 1, Starving())
    reader.finish()
    assert sorted(server.asked) == [(begin, begin + 500) for begin in offsets[1:].tolist()]
    found = store.read_ranges("a", offsets.tolist(), lengths.tolist())
    assert found == [data[begin : begin + 500] for begin in offsets.tolist()]
    assert len(server.asked) == 9 and cache.list()[0].present == SMALLEST
    reader.close()


def test_bytes_that_another_reader_is_fetching_are_not_requested_again_too_soon(
    server: RangeServer, tmp_path: Path
) -> None:
    readers, store, none = [], RemoteStore("s3://bkt", **server.options), np.zeros(1, np.int64)
    server.delay = 2.5  # longer than an own request may hang
    caches = [ChunkCache(tmp_path / "cache", 64 * SMALLEST) for _ in range(2)]
    for cache in caches:  # as in two processes
        readers.append(ReadAhead(1 << 20, CacheUse(cache, "shard")))
        readers[-1].want(store, ["a"], none, none, none + SIZE, none, Starving())
        until = time.monotonic() + 120
        while not server.asked and time.monotonic() < until:  # the second one would hedge a request of its own
            time.sleep(0.01)
    readers[1].finish()
    assert len(server.asked) == 1 and caches[1].list()[0].present == SIZE
    for reader, cache in zip(readers, caches, strict=True):
        reader.close()
        cache.close()
