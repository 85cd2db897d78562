"""The page cache against a dictionary of pages, killed processes, full disks, and damaged files."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.storage.cache import page_io
from feedmill.storage.cache.page_io import soonest_uses
from feedmill.storage.cache.page_map import FAR, HEADER, RECORD
from feedmill.storage.cache.pages import PAGE, PageCache, Pages
from helpers import warm

URL = "s3://bucket/shard.tar"
SIZE = 5 * PAGE + 1000


def content(size: int = SIZE, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


DATA = content()


def arrays(*ranges: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([r[0] for r in ranges], np.int64), np.array([r[1] for r in ranges], np.int64)


def put_all(pages: Pages, data: bytes) -> bool:
    return pages.put(0, data)


def room(pages: int) -> int:
    """A size in which this number of pages fits, besides the files of a few objects."""
    return (pages + 1) * PAGE - 1


@pytest.fixture(params=["memory", "folder"])
def cache(request: pytest.FixtureRequest, tmp_path: Path):
    cache = PageCache(None if request.param == "memory" else tmp_path / "cache", 1 << 30)
    yield cache
    cache.close()


def test_what_is_put_is_read_and_the_rest_is_missing(cache: PageCache) -> None:
    pages = cache.open(URL, "1", SIZE)
    assert pages.missing(10, SIZE) == [(0, SIZE)]
    assert pages.read(0, 10) is None
    assert pages.put(PAGE, DATA[PAGE : 3 * PAGE])
    assert pages.put(5 * PAGE, DATA[5 * PAGE :])
    assert pages.missing(0, SIZE) == [(0, PAGE), (3 * PAGE, 5 * PAGE)]
    assert pages.read(PAGE + 5, 3 * PAGE) == DATA[PAGE + 5 : 3 * PAGE]
    buffer = bytearray(2000)
    view = pages.read(SIZE - 999, SIZE, buffer)
    assert view == DATA[-999:] and buffer[:999] == DATA[-999:]
    assert pages.read(2 * PAGE, 3 * PAGE + 1) is None
    begins, ends = arrays((PAGE, 2 * PAGE), (0, 1), (7, 7), (SIZE - 1, SIZE), (PAGE, 4 * PAGE))
    assert pages.present(begins, ends).tolist() == [True, False, True, True, False]
    assert os.pread(pages.fd, 100, PAGE) == DATA[PAGE : PAGE + 100]
    [entry] = cache.list()
    assert entry[:4] == (URL, "1", 2 * PAGE + 1000, SIZE) and abs(entry.last_use - time.time()) < 60


def test_objects_and_versions_do_not_mix_and_the_empty_object_is_present(cache: PageCache) -> None:
    first, second = cache.open(URL, "1", SIZE), cache.open(URL, "2", SIZE)
    assert cache.open(URL, "1", SIZE) is first
    put_all(first, DATA)
    assert second.missing(0, 1) == [(0, PAGE)]
    empty = cache.open(URL, "3", 0)
    assert empty.missing(0, 0) == [] and empty.read(0, 0) == b"" and empty.put(0, b"")
    with pytest.raises(ValueError, match="whole pages"):
        first.put(0, b"short")
    with pytest.raises(ValueError, match="not a byte range"):
        first.read(0, SIZE + 1)


def test_claims_exclude_each_other_page_by_page(cache: PageCache) -> None:
    pages = cache.open(URL, "1", SIZE)
    pages.put(0, DATA[:PAGE])
    with pages.claim(PAGE, 2 * PAGE) as first:
        assert (first.mine, first.others) == ([(PAGE, 2 * PAGE)], [])
        with pages.claim(0, SIZE) as second:
            assert second.mine == [(2 * PAGE, SIZE)] and second.others == [(PAGE, 2 * PAGE)]
            assert not pages.wait(0, SIZE, timeout=0.02)
    with pages.claim(0, SIZE) as third:
        assert third.mine == [(PAGE, SIZE)]
    assert not pages.wait(0, SIZE)  # nobody fetches it: no reason to wait


def test_waiting_ends_when_another_thread_has_put_the_pages(cache: PageCache) -> None:
    pages = cache.open(URL, "1", SIZE)
    claim = pages.claim(0, SIZE)

    def fetch() -> None:
        time.sleep(0.05)
        put_all(pages, DATA)
        claim.release()

    thread = threading.Thread(target=fetch)
    thread.start()
    assert pages.wait(0, SIZE, timeout=20)
    thread.join()
    assert pages.read(0, SIZE) == DATA


def test_the_least_recently_used_pages_go_first_and_95_per_cent_stay(tmp_path: Path) -> None:
    cache = PageCache(tmp_path / "c", room(40))
    pages = cache.open(URL, "1", 100 * PAGE)
    for at in range(40):
        assert pages.put(at * PAGE, bytes([at]) * PAGE)
    assert cache.usage is not None and cache.usage.bytes == 40 * PAGE
    pages.read(0, PAGE)
    assert pages.put(50 * PAGE, bytes(PAGE))
    assert pages.missing(0, 41 * PAGE) == [(PAGE, 3 * PAGE), (40 * PAGE, 41 * PAGE)]
    assert cache.usage.bytes == 39 * PAGE
    assert os.fstat(pages.fd).st_blocks * 512 <= 40 * PAGE


def test_the_files_of_many_objects_count_too(tmp_path: Path) -> None:
    """Lists of pages, the rests of blocks, and folders: they were half a percent more than the size."""
    size, folder = 100 * PAGE, tmp_path / "c"
    cache, most = PageCache(folder, size), 0
    for number in range(60):
        pages = cache.open(f"{URL}{number}", "1", 4 * PAGE + 77)
        assert pages.put(0, bytes([number]) * (4 * PAGE + 77))
        files = [folder, *folder.rglob("*")]
        most = max(most, sum(path.lstat().st_blocks * 512 for path in files))
    assert 0.8 * size < most <= size
    again = PageCache(folder, size)
    again.reserve(0)
    assert again.usage is not None and cache.usage is not None and again.usage.taken == cache.usage.taken
    cache.close()
    again.close()


def test_a_cache_without_room_for_the_list_of_pages_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pages = PageCache(tmp_path / "c", 2 * PAGE).open(URL, "1", 1 << 40)
    assert not pages.put(0, bytes(PAGE)) and "no room for the list of its pages" in caplog.text


def plan_use(pages: Pages, page: int, use: int) -> None:
    pages.plan_uses(np.asarray([page]), np.asarray([use]))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9 * PAGE), st.integers(0, 3 * PAGE), st.integers(0, 99))),
    st.booleans(),
)
def test_the_soonest_use_of_a_page_is_the_least_of_its_ranges(
    ranges: list[tuple[int, int, int, int]], ordered: bool
) -> None:
    ranges = sorted(ranges) if ordered else ranges
    expected: dict[int, list[int]] = {}
    for number, begin, size, use in ranges:
        for page in range(begin // PAGE, -(-(begin + size) // PAGE)) if size else ():
            expected.setdefault((number << 44) // PAGE + page, []).append(use)
    number, begin, size, use = np.asarray(ranges, np.int64).reshape(-1, 4).T
    begins = (number << 44) + begin
    pages, soonest = soonest_uses(begins, begins + size, use)
    assert pages.tolist() == sorted(expected)
    assert soonest.tolist() == [min(expected[page]) for page in pages.tolist()]


def test_pages_of_no_running_plan_go_first_then_those_needed_last(tmp_path: Path) -> None:
    cache = PageCache(tmp_path / "c", room(10))
    pages = cache.open(URL, "1", 20 * PAGE)
    pages.put(0, bytes(10 * PAGE))
    for at in range(9):
        plan_use(pages, at, 100 - at)
    plan_use(pages, 5, FAR)
    pages.read(9 * PAGE, 10 * PAGE)  # used last, but in no plan
    gone = []
    for new in range(10, 15):
        before = pages.missing(0, 10 * PAGE)
        assert pages.put(new * PAGE, bytes(PAGE))
        plan_use(pages, new, 0)
        gone += [r for r in pages.missing(0, 10 * PAGE) if r not in before]
    absent = [p for p in range(10) if pages.missing(p * PAGE, (p + 1) * PAGE)]
    assert absent == [0, 1, 2, 5, 9]


def test_plans_of_killed_processes_do_not_count(tmp_path: Path) -> None:
    code = (
        "import sys, os\nfrom pathlib import Path\nfrom feedmill.storage.cache.pages import PageCache, PAGE\n"
        "pages = PageCache(Path(sys.argv[1]), 11 * PAGE - 1).open('s3://b/x', '1', 20 * PAGE)\n"
        "import numpy as np\n"
        "pages.put(0, bytes(4 * PAGE)); pages.plan_uses(np.arange(4), np.zeros(4, int)); os.kill(os.getpid(), 9)\n"
    )
    warm.run([sys.executable, "-c", code, str(tmp_path / "c")], check=False)
    cache = PageCache(tmp_path / "c", room(10))
    pages = cache.open("s3://b/x", "1", 20 * PAGE)
    assert pages.missing(0, 4 * PAGE) == []
    pages.put(4 * PAGE, bytes(6 * PAGE))
    for page in range(4, 10):
        plan_use(pages, page, 1000)
    pages.put(10 * PAGE, bytes(PAGE))
    assert pages.missing(0, 10 * PAGE) == [(0, PAGE)]


def test_an_object_is_opened_while_another_thread_evicts(tmp_path: Path) -> None:
    """Each had a lock that the other one waited for, forever, as soon as the cache was full."""
    cache = PageCache(tmp_path / "c", room(10))
    pages = cache.open(URL, "1", 20 * PAGE)
    pages.put(0, bytes(10 * PAGE))
    [item] = cache._objects()
    with cache._evicting, ThreadPoolExecutor(2) as pool:
        opening = pool.submit(cache.open, URL, "2", 10_000 * PAGE)  # pages are evicted for the list of its pages
        time.sleep(0.2)
        assert not opening.done()
        try:
            assert pool.submit(cache._existing, item).result(10) is pages
        finally:
            cache._evicting.release()
            opened = opening.result(30)
            cache._evicting.acquire()
    assert opened.header.version == "2"
    cache.close()


def test_pinned_pages_stay_and_a_cache_full_of_them_takes_no_more(cache: PageCache) -> None:
    cache.size = room(4)
    pages = cache.open(URL, "1", 10 * PAGE)
    pages.put(0, bytes(4 * PAGE))
    with pages.pinned(*arrays((0, 10), (PAGE, 4 * PAGE), (5, 5), (8 * PAGE, 9 * PAGE))) as there:
        assert there.tolist() == [True, True, True, False]
        assert not pages.put(8 * PAGE, bytes(PAGE)) and not cache.disabled
        assert pages.missing(0, 4 * PAGE) == []
        with pages.pinned(*arrays((0, PAGE))):
            pass
        assert cache.clear() == 0
    assert pages.put(8 * PAGE, bytes(PAGE))
    assert pages.missing(0, 4 * PAGE) == [(0, PAGE)]


def test_without_holes_whole_objects_are_emptied(cache: PageCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_io, "punch_hole", lambda *_: False)
    cache.size = room(4)
    old, new = cache.open(URL, "1", 3 * PAGE), cache.open(URL, "2", 3 * PAGE)
    old.put(0, bytes(3 * PAGE))
    assert new.put(0, bytes(2 * PAGE))
    assert old.missing(0, 3 * PAGE) == [(0, 3 * PAGE)]
    assert os.fstat(old.fd).st_blocks == 0 and os.fstat(old.fd).st_size == 3 * PAGE
    old.put(0, DATA[: 3 * PAGE])
    assert old.read(0, 3 * PAGE) == DATA[: 3 * PAGE]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_full_disk_disables_the_cache_with_one_warning(
    cache: PageCache, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pages = cache.open(URL, "1", SIZE)
    pages.put(0, DATA[:PAGE])

    def full(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", full)
    with caplog.at_level(logging.WARNING):
        assert not pages.put(PAGE, DATA[PAGE : 2 * PAGE])
        assert not pages.put(2 * PAGE, DATA[2 * PAGE : 3 * PAGE])
    assert cache.disabled and len(caplog.records) == 1
    assert pages.read(0, PAGE) == DATA[:PAGE]
    assert pages.missing(0, 3 * PAGE) == [(PAGE, 3 * PAGE)]
    monkeypatch.undo()
    assert not put_all(cache.open(URL, "2", SIZE), DATA)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_small_file_system_fills_up_without_harm(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("this machine does not mount")
    try:
        cache = PageCache(place / "c", 1 << 30)
        pages = cache.open(URL, "1", 40 * PAGE)
        results = [pages.put(at * PAGE, bytes([at]) * PAGE) for at in range(40)]
        assert results[0] and not results[-1] and cache.disabled
        for at in range(results.index(False)):
            assert pages.read(at * PAGE, (at + 1) * PAGE) == bytes([at]) * PAGE
        del pages
        cache.close()
        assert not PageCache(place / "other", 1 << 30).open(URL, "2", 10**12).put(0, bytes(PAGE))
    finally:
        subprocess.run(["umount", "-l", place], check=False)


def test_folders_that_cannot_be_made_or_vanish_are_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    blocked = PageCache(tmp_path / "file" / "c", 1 << 30)
    pages = blocked.open(URL, "1", SIZE)
    assert blocked.disabled and not put_all(pages, DATA) and pages.missing(0, 1) == [(0, PAGE)]
    assert blocked.list() == [] and blocked.clear() == 0
    cache = PageCache(tmp_path / "c", 1 << 30)
    pages = cache.open(URL, "1", SIZE)
    put_all(pages, DATA)
    subprocess.run(["rm", "-r", str(tmp_path / "c")], check=True)
    assert pages.read(0, SIZE) == DATA
    assert not put_all(cache.open(URL, "2", SIZE), DATA) and cache.disabled
    assert len(caplog.records) == 2


def test_damaged_maps_are_made_again(tmp_path: Path) -> None:
    for damage in (b"", b"x" * 100, None, bytes(HEADER + 6 * RECORD.itemsize)):
        cache = PageCache(tmp_path / "c", 1 << 30)
        put_all(cache.open(URL, "1", SIZE), DATA)
        cache.close()
        [path] = (tmp_path / "c").glob("*/*.map")
        if damage is None:
            old = bytearray(path.read_bytes())
            old[8] += 1  # the layout of another version
            damage = bytes(old)
        path.write_bytes(damage)
        cache = PageCache(tmp_path / "c", 1 << 30)
        pages = cache.open(URL, "1", SIZE)
        assert pages.missing(0, SIZE) == [(0, SIZE)]
        assert put_all(pages, DATA) and pages.read(0, SIZE) == DATA
        cache.close()


@pytest.mark.parametrize("clean", [True, False])
def test_after_an_unclean_end_corrupt_pages_are_missing(
    tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cache = PageCache(tmp_path / "c", 1 << 30)
    put_all(cache.open(URL, "1", SIZE), DATA)
    cache.close()
    [data], [map_] = (tmp_path / "c").glob("*/*.data"), (tmp_path / "c").glob("*/*.map")
    with data.open("r+b") as f:
        f.seek(PAGE + 5)
        f.write(b"wrong")
    with map_.open("r+b") as f:
        f.seek(104 if not clean else 64)  # the flag; the id of the boot
        f.write(bytes(4))
    cache = PageCache(tmp_path / "c", 1 << 30)
    pages = cache.open(URL, "1", SIZE)
    assert pages.read(0, PAGE) == DATA[:PAGE]
    assert pages.read(0, SIZE) is None
    assert pages.missing(0, SIZE) == [(PAGE, 2 * PAGE)] and cache.corrupt == 1 and len(caplog.records) == 1
    with pages.pinned(*arrays((0, PAGE), (PAGE, PAGE + 1))) as there:
        assert there.tolist() == [True, False]
    pages.put(PAGE, DATA[PAGE : 2 * PAGE])
    assert pages.read(0, SIZE) == DATA
    cache.close()


def test_nothing_is_followed_through_links_or_deleted_outside(tmp_path: Path) -> None:
    cache = PageCache(tmp_path / "c", 1 << 30)
    put_all(cache.open(URL, "1", SIZE), DATA)
    cache.close()
    [path] = (tmp_path / "c").glob("*/*.data")
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    other = tmp_path / "precious"
    other.write_bytes(DATA)
    path.unlink()
    path.symlink_to(other)
    cache = PageCache(tmp_path / "c", 1 << 30)
    assert not put_all(cache.open(URL, "1", SIZE), DATA[:SIZE])
    (path.parent / "notes.txt").write_text("mine")
    cache.clear()
    assert other.read_bytes() == DATA and (path.parent / "notes.txt").exists()
    cache.close()


def test_damaged_objects_that_nobody_uses_are_deleted_on_clearing(tmp_path: Path) -> None:
    cache = PageCache(tmp_path / "c", 1 << 30)
    put_all(cache.open("s3://a/x", "1", SIZE), DATA)
    cache.close()
    cache = PageCache(tmp_path / "c", 1 << 30)
    [path] = (tmp_path / "c").glob("*/*.map")
    path.write_bytes(b"")
    assert cache.list() == [] and path.exists()
    cache.clear()
    assert list((tmp_path / "c").glob("*/*")) == []
    cache.close()


def test_clearing_deletes_the_objects_of_a_prefix(tmp_path: Path) -> None:
    cache = PageCache(tmp_path / "c", 1 << 30)
    for url in ("s3://a/x", "s3://a/y", "s3://b/z"):
        put_all(cache.open(url, "1", SIZE), DATA)
    cache.close()
    cache = PageCache(tmp_path / "c", 1 << 30)
    assert cache.clear("s3://a/") == 2 * SIZE
    assert [entry.url for entry in cache.list()] == ["s3://b/z"]
    assert len(list((tmp_path / "c").glob("*/*"))) == 2
    assert cache.usage is not None and cache.usage.bytes == SIZE


STEPS = st.tuples(st.sampled_from("prcek"), st.integers(0, 1), st.integers(0, 5), st.integers(1, 6))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("prcek"), st.integers(0, 1), st.integers(0, 5), st.integers(1, 6)), max_size=40)
)
def test_it_behaves_as_a_dictionary_of_pages(steps: list[tuple[str, int, int, int]]) -> None:
    cache = PageCache(None, 8 * PAGE)
    datas = [DATA, content(seed=1)]
    objects = [cache.open(URL, str(v), SIZE) for v in range(2)]
    for step, which, first, count in steps:
        pages, data = objects[which], datas[which]
        begin, end = first * PAGE, min((first + count) * PAGE, SIZE)
        there = [not pages.missing(at, min(at + PAGE, end)) for at in range(begin, end, PAGE)]
        if step == "p":
            assert pages.put(begin, data[begin:end]) and not pages.missing(begin, end)
        elif step == "r":
            assert pages.read(begin, end) == (data[begin:end] if all(there) else None)
        elif step == "c":
            with pages.claim(begin, end) as claim:
                assert claim.mine == pages.missing(begin, end) and not claim.others
        elif step == "e":
            pages.evict(np.arange(first, -(-end // PAGE)))
            assert pages.missing(begin, end) == [(begin, end)]
        else:
            with pages.pinned(*arrays((begin, end))) as held:
                assert held.tolist() == [all(there)]
                pages.evict(np.arange(6))
                assert (pages.read(begin, end) is not None) == all(there)
        assert cache.usage is not None
        assert cache.usage.bytes == sum(entry.present for entry in cache.list()) <= 8 * PAGE
    cache.close()


def test_making_room_for_pages_keeps_those_of_the_same_range() -> None:
    for seed in range(20):
        order = np.random.default_rng(seed)
        cache = PageCache(None, 8 * PAGE)
        objects = [cache.open(URL, str(version), SIZE) for version in range(2)]
        for which, first, count in order.integers((0, 0, 1), (2, 6, 7), (40, 3)).tolist():
            begin, end = first * PAGE, min((first + count) * PAGE, SIZE)
            assert objects[which].put(begin, DATA[begin:end]) and not objects[which].missing(begin, end)
        cache.close()


def test_sweeping_frees_what_a_killed_process_wrote_and_keeps_pages_that_were_put_meanwhile(tmp_path: Path) -> None:
    """The pages to free were chosen from a copy of the map, and some had been put when it came to them."""
    cache = PageCache(tmp_path / "c", 64 * PAGE)
    pages = cache.open("s3://bucket/a", "1", 8 * PAGE)
    os.pwrite(pages.fd, bytes(PAGE), 5 * PAGE)  # as a process that was killed before it set the state
    put = pages.put(0, b"x" * PAGE)
    pages.sweep()
    assert put and pages.read(0, PAGE) == b"x" * PAGE and pages.missing(0, 8 * PAGE) == [(PAGE, 8 * PAGE)]
    assert os.fstat(pages.fd).st_blocks * 512 < 2 * PAGE
    cache.close()
