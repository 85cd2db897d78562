"""The bounded folder of copies: what is evicted, what is never evicted, and what a kill leaves."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers.range_server import range_server

from feedmill.storage.cache import chunks
from feedmill.storage.cache import copies as cache
from feedmill.storage.cache import folder as feedmill_folder
from feedmill.storage.cache.chunks import SMALLEST, ChunkCache, disk_cache
from feedmill.storage.cache.copies import cached_copy, held_copy
from feedmill.storage.cache.folder import HeldFile, taken_by
from feedmill.storage.cache.settings import DataCache
from feedmill.storage.remote.object_store import RemoteStore
from helpers import warm

KB = 1000
NOTES = taken_by(400)
"""Bytes that a copy's note takes."""
COPY = taken_by(10 * KB) + NOTES
"""Bytes that a copy of 10 KB takes."""


@pytest.fixture
def server():
    with range_server() as running:
        yield running


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FEEDMILL_CACHE_SIZE", raising=False)
    yield tmp_path / "cache"
    for known in list(chunks._caches.values()):
        known.close()
    chunks._caches.clear()


def store_of(server) -> RemoteStore:
    return RemoteStore("s3://bkt/data", **server.options)


def put(server, name: str, size: int, seed: int = 0) -> bytes:
    data = np.random.default_rng([seed, size]).bytes(size)
    server.objects[f"data/{name}"] = data
    return data


def use(store, name: str, at: int) -> None:
    """Use a copy, and release it; `at` orders the uses."""
    with held_copy(store, name) as held:
        os.utime(cache._note_of(held.path), ns=(at, at))


def names(folder: Path) -> list[str]:
    return [one.url.rpartition("/")[2] for one in disk_cache(folder).list()]


def on_disk(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.name != "used":
                found += taken_by(path.stat().st_size)
    return found


def test_the_least_recently_used_copies_are_evicted(server, folder):
    store, files = store_of(server), disk_cache(folder)
    files.size = 3 * COPY
    for number, name in enumerate("abcd"):
        put(server, name, 10 * KB, number)
    for at, name in enumerate("abca"):
        use(store, name, at + 1)
    use(store, "d", 9)
    assert names(folder) == ["a", "c", "d"]
    assert files.used == on_disk(folder) <= files.size


def test_an_old_version_goes_first_even_if_it_was_used_after_other_files(server, folder):
    store, files = store_of(server), disk_cache(folder)
    put(server, "old", 10 * KB, 1)
    use(store, "old", 5)
    put(server, "other", 10 * KB, 2)
    use(store, "other", 1)
    data = put(server, "old", 10 * KB, 3)
    use(store, "old", 6)
    assert names(folder) == ["old", "old", "other"]
    files.size = 3 * COPY
    put(server, "more", 10 * KB, 4)
    use(store, "more", 7)
    assert names(folder) == ["more", "old", "other"]
    server.forget()
    assert cached_copy(store, "old").read_bytes() == data and not server.asked


def test_what_a_process_uses_stays_and_more_is_allowed_with_one_warning(server, folder, caplog):
    store, files = store_of(server), disk_cache(folder)
    files.size = 5 * COPY // 2
    for number, name in enumerate("abcd"):
        put(server, name, 10 * KB, number)
    path = cached_copy(store, "a")
    held = held_copy(store, "b")
    use(store, "c", 1)
    use(store, "d", 2)
    assert names(folder) == ["a", "b"] and path.exists()
    assert caplog.text.count("what is in use takes") == 1
    held.close()
    use(store, "c", 3)
    assert names(folder) == ["a", "c"]
    assert files.used == on_disk(folder) <= files.size


def test_a_copy_larger_than_the_limit_is_used_and_goes_when_it_is_released(server, folder, caplog):
    store, files = store_of(server), disk_cache(folder)
    files.size = 5 * COPY // 2
    data = put(server, "large", 90 * KB)
    put(server, "small", KB)
    use(store, "small", 1)
    with held_copy(store, "large") as held:
        assert held.path.read_bytes() == data and names(folder) == ["large"]
        assert f"more than the limit of {files.size:,}" in caplog.text
    assert names(folder) == []


def test_an_open_file_stays_readable_after_its_release(server, folder):
    store, files = store_of(server), disk_cache(folder)
    files.size = 3 * COPY // 2
    data = put(server, "a", 10 * KB)
    with held_copy(store, "a") as held:
        mapped = np.memmap(held.path, np.uint8, "r")
    put(server, "b", 10 * KB, 1)
    use(store, "b", 1)
    assert names(folder) == ["b"] and mapped.tobytes() == data
    with held_copy(store, "a") as held:  # and is fetched again by its name
        assert held.path.read_bytes() == data


def test_a_collected_holder_releases_its_copy(server, folder):
    store, files = store_of(server), disk_cache(folder)
    put(server, "a", KB)
    held: HeldFile | None = held_copy(store, "a")
    assert files.clear() == 0
    del held
    assert files.clear() == KB and names(folder) == []


def test_other_processes_hold_their_copies_until_they_die(server, folder):
    put(server, "a", 10 * KB)
    code = (
        "import sys\nfrom feedmill.storage.cache.copies import cached_copy\n"
        "from feedmill.storage.remote.object_store import RemoteStore\n"
        f"cached_copy(RemoteStore('s3://bkt/data', **{server.options!r}), 'a')\n"
        "print('ready', flush=True)\nsys.stdin.readline()"
    )
    process = warm.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        files = disk_cache(folder)
        assert files.clear() == 0 and names(folder) == ["a"]
    finally:
        process.kill()
        process.communicate()
    assert files.clear() == 10 * KB and names(folder) == [] and files.used == 0


def test_a_forked_child_holds_nothing_for_its_parent(server, folder):
    store, files = store_of(server), disk_cache(folder)
    put(server, "a", KB)
    held = held_copy(store, "a")
    if (child := os.fork()) == 0:
        code = 1
        with contextlib.suppress(BaseException):
            held.close()
            code = 0 if files.clear() == 0 else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert files.clear() == 0
    held.close()
    assert files.clear() == KB


def test_rests_of_killed_processes_and_earlier_releases_go_first(server, folder):
    store, files = store_of(server), disk_cache(folder)
    put(server, "a", 10 * KB)
    use(store, "a", 1)
    word = "0" * 32
    (folder / f"{word}-b").write_bytes(bytes(10 * KB))  # published, and killed before the note
    (folder / f"{word}-c.hash").write_bytes(b"1 2 3")
    (folder / f"{word}-d.lock").write_bytes(b"")
    (folder / f"{word}-e").write_bytes(bytes(10 * KB))
    (folder / f"{word}-e.hash").write_bytes(b"10000 2 3")
    (folder / ".download.0123456789ab.feedmill-tmp").write_bytes(bytes(10 * KB))
    (folder / "work-1").mkdir()
    (folder / "mine.txt").write_bytes(b"not ours")
    assert names(folder) == ["a"]
    files.size = 6 * COPY // 5
    files.trim()
    assert sorted(p.name for p in folder.iterdir() if word in p.name or "download" in p.name) == []
    assert names(folder) == ["a"] and (folder / "mine.txt").exists() and (folder / "work-1").exists()


def test_derived_files_count_and_are_evicted_when_no_process_uses_them(folder):
    files = disk_cache(folder)
    for kind, name in [("costs", "a"), ("shards", "b"), ("packing", "c")]:
        (folder / kind).mkdir(parents=True)
        path = folder / kind / name
        if kind == "packing":
            path.mkdir()
            path = path / "00000000.pack"
        path.write_bytes(bytes(10 * KB))
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(bytes(10 * KB))
    (folder / "packing" / "link").symlink_to(outside)
    for at, name in enumerate(["costs/a", "shards/b", "packing/c"], 1):
        os.utime(folder / name, ns=(at, at))
    assert [(one.kind, one.present) for one in files.list()] == [("derived", 10 * KB)] * 3
    files.hold_derived("costs/a")
    os.utime(folder / "costs/a", ns=(1, 1))
    files.size = 5 * taken_by(10 * KB) // 2
    files.trim()
    assert [Path(one.url).name for one in files.list()] == ["a", "c"]
    files.size = taken_by(5 * KB)
    files.hold_derived("costs/a", written="costs/a")
    assert [Path(one.url).name for one in files.list()] == ["a"] and not (folder / "packing/c").exists()
    assert (outside / "x").exists() and (folder / "packing/link").is_symlink()


def test_a_replaced_lock_file_is_locked_again(server, folder):
    store, files = store_of(server), disk_cache(folder)
    put(server, "a", KB)
    held = held_copy(store, "a")
    (folder / "used").unlink()
    assert files.used == 0 and (folder / "used").exists()
    assert ChunkCache(folder).clear() == 0
    held.close()
    assert ChunkCache(folder).clear() == KB


def test_without_locks_nothing_is_evicted_but_by_clear(server, folder, monkeypatch, caplog):
    def none(self, byte, *, wait, shared=False):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(feedmill_folder.ByteLock, "take", none)
    store, files = store_of(server), disk_cache(folder)
    files.size = 3 * COPY // 2
    for number, name in enumerate("abc"):
        data = put(server, name, 10 * KB, number)
        with held_copy(store, name) as held:
            assert held.path.read_bytes() == data
    assert names(folder) == ["a", "b", "c"] and caplog.text.count("does not support locks") == 1
    assert files.clear() == 30 * KB and names(folder) == []


def test_the_bound_is_the_size_or_a_part_of_the_disk(folder, monkeypatch):
    status = os.statvfs(folder.parent)
    disk = status.f_blocks * status.f_frsize
    assert disk_cache(folder).size == min(20 * 10**9, disk // 10)
    monkeypatch.setenv("FEEDMILL_CACHE_SIZE", "1GB")
    assert disk_cache(folder).size == 10**9


def test_chunks_and_copies_together_stay_within_the_size(server, folder, monkeypatch):
    size = 600 * SMALLEST
    monkeypatch.setenv("FEEDMILL_CACHE_SIZE", str(size))
    store = store_of(server)
    use = DataCache.of().use()
    assert use is not None and use.cache is disk_cache(folder)
    cached, data = use.cache.open("s3://b/x", "1", 1000 * SMALLEST), memoryview(bytes(SMALLEST))

    def put(first: int, last: int) -> bool:
        claims = [cached.claim(number) for number in range(first, last)]
        return all(claim is not None and claim.put(data) is not None for claim in claims)

    def present() -> dict[str, int]:
        """Bytes by name; together they are within the size."""
        items = {one.url.rpartition("/")[2]: one.present for one in use.cache.list()}
        assert sum(items.values()) <= use.cache.used <= size
        return items

    assert put(0, 400)
    for number in range(6):
        server.objects[f"data/i{number}"] = bytes([number]) * (80 * SMALLEST)
        with held_copy(store, f"i{number}"):
            assert f"i{number}" in present()
    assert {name for name in present() if name != "x"} == {f"i{number}" for number in range(6)}  # chunks were older
    assert put(400, 800)
    assert present()["x"] >= 400 * SMALLEST and "i0" not in present()  # then the copies were
    with held_copy(store, "i5"):
        assert put(800, 1000) and put(0, 250) and set(present()) == {"x", "i5"}
    assert put(250, 500) and set(present()) == {"x"}


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["use", "hold", "close", "change"]), st.integers(0, 5), st.integers(1, 40)), max_size=20
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS, st.integers(20, 120))
def test_any_sequence_of_uses_stays_within_the_limit(server, folder, operations, limit):
    files = disk_cache(folder)
    files.clear()
    files.size = limit * KB
    held: dict[str, HeldFile] = {}
    contents = {f"f{number}": put(server, f"f{number}", (number * 7 + 1) * KB, number) for number in range(6)}
    with contextlib.ExitStack() as stack:
        for what, number, size in operations:
            name = f"f{number}"
            if what == "change":
                contents[name] = put(server, name, size * KB, size)
            elif what == "close":
                if name in held:
                    held.pop(name).close()
            else:
                with held_copy(store_of(server), name) as one:
                    assert one.path.read_bytes() == contents[name]
                    if what == "hold" and name not in held:
                        held[name] = stack.enter_context(held_copy(store_of(server), name))
            assert all(one.path.exists() for one in held.values())
            assert on_disk(folder) == files.used
            in_use = sum(taken_by(one.path.stat().st_size) + NOTES for one in held.values())
            assert on_disk(folder) <= max(files.size, in_use)
    assert on_disk(folder) <= files.size
