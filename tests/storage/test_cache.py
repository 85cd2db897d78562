from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage import folders, open_store
from feedmill.storage.cache import copies as cache
from feedmill.storage.cache import folder as filecache
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.cache.copies import cached_copy
from feedmill.storage.folders import cache_folder
from feedmill.storage.remote.object_store import RemoteStore
from helpers import warm


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def copies(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "used" and path.suffix != ".hash")


def test_a_local_file_is_its_own_copy(folder, tmp_path):
    store = open_store(tmp_path)
    store.write_bytes("a.sqlite", b"1")
    assert cached_copy(store, "a.sqlite") == tmp_path / "a.sqlite"
    with pytest.raises(NotFound):
        cached_copy(store, "b.sqlite")
    assert not folder.exists()


def test_a_remote_file_is_fetched_once_per_version(folder, s3_bucket, monkeypatch):
    store = open_store(s3_bucket)
    store.write_bytes("x/a.sqlite", b"one")
    fetched = []
    plain = RemoteStore.download
    monkeypatch.setattr(RemoteStore, "download", lambda self, path, f: fetched.append(path) or plain(self, path, f))
    first = cached_copy(store, "x/a.sqlite")
    assert first.read_bytes() == b"one" and first == cached_copy(open_store(s3_bucket), "x/a.sqlite")
    assert len(fetched) == 1
    store.write_bytes("x/a.sqlite", b"two")
    second = cached_copy(store, "x/a.sqlite")
    assert second.read_bytes() == b"two" and first.read_bytes() == b"one" and len(fetched) == 2
    first.write_bytes(b"cut")
    second.write_bytes(b"")
    assert cached_copy(store, "x/a.sqlite").read_bytes() == b"two"  # a damaged copy is fetched again
    assert copies(folder) == sorted([first.name, second.name])


def test_two_stores_with_one_content_do_not_mix(folder, s3_bucket):
    for prefix in ["a", "b"]:
        open_store(f"{s3_bucket}/{prefix}").write_bytes("i.sqlite", b"same")
    paths = {cached_copy(open_store(f"{s3_bucket}/{prefix}"), "i.sqlite") for prefix in ["a", "b"]}
    assert len(paths) == 2


def test_processes_that_ask_at_once_all_get_the_whole_file(folder, s3_bucket):
    data = os.urandom(3 << 20)
    open_store(s3_bucket).write_bytes("a.sqlite", data)
    code = (
        "import sys, hashlib; from feedmill.storage import open_store;"
        "from feedmill.storage.cache.copies import cached_copy;"
        "print(hashlib.sha1(cached_copy(open_store(sys.argv[1]), 'a.sqlite').read_bytes()).hexdigest())"
    )
    children = [
        warm.Popen([sys.executable, "-c", code, s3_bucket], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    answers = {child.communicate(timeout=180)[0] for child in children}
    import hashlib

    assert answers == {hashlib.sha1(data).hexdigest() + "\n"}
    assert len(copies(folder)) == 1


def test_a_failed_download_leaves_nothing(folder, s3_bucket, monkeypatch):
    store = open_store(s3_bucket)
    store.write_bytes("a.sqlite", b"one")

    def half(self, path, f):
        f.write(b"o")
        raise StorageError("the line went dead", file=path)

    monkeypatch.setattr(RemoteStore, "download", half)
    with pytest.raises(StorageError, match="went dead"):
        cached_copy(store, "a.sqlite")
    assert copies(folder) == []


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The system's temporary folder; private copies in it are removed after the test."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(folders, "_private", {})
    cache._warn_once.cache_clear()
    return tmp_path / "tmp"


def test_an_unusable_cache_folder_is_done_without_with_one_warning(s3_bucket, tmp_path, temporary, monkeypatch, caplog):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "file" / "below"))
    store = open_store(s3_bucket)
    fetched = []
    plain = RemoteStore.download
    monkeypatch.setattr(RemoteStore, "download", lambda self, path, f: fetched.append(path) or plain(self, path, f))
    for name in ["a.sqlite", "b.sqlite", "a.sqlite"]:
        store.write_bytes(name, name.encode())
        copy = cached_copy(store, name)
        assert copy.read_bytes() == name.encode() and temporary in copy.parents
    assert fetched == ["a.sqlite", "b.sqlite"]
    assert len(caplog.records) == 1 and "Set FEEDMILL_CACHE_DIR" in caplog.text
    with pytest.raises(NotFound):
        cached_copy(store, "none.sqlite")
    monkeypatch.setattr(cache, "private_folder", lambda name: Path("/proc/none"))
    with pytest.raises(FeedmillError, match="FEEDMILL_CACHE_DIR or TMPDIR"):
        cached_copy(store, "a.sqlite")


@pytest.mark.parametrize("call", ["statvfs", "write", "publish"])
def test_a_full_disk_is_done_without_with_one_warning(folder, s3_bucket, temporary, monkeypatch, caplog, call):
    store = open_store(s3_bucket)
    store.write_bytes("kept.sqlite", b"kept")
    kept = cached_copy(store, "kept.sqlite")
    here = str(folder)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if call == "statvfs":
        plain = filecache._free_bytes
        monkeypatch.setattr(filecache, "_free_bytes", lambda path: 2 if str(path) == here else plain(path))
    elif call == "write":
        plain_open = open
        monkeypatch.setattr(
            cache,
            "open",
            lambda name, mode: _Full() if str(name).startswith(here) else plain_open(name, mode),
            raising=False,
        )
    else:
        publish = cache.publish
        monkeypatch.setattr(cache, "publish", lambda old, new: full() if new.startswith(here) else publish(old, new))
    for name in ["a.sqlite", "b.sqlite", "a.sqlite"]:
        store.write_bytes(name, name.encode())
        copy = cached_copy(store, name)
        assert copy.read_bytes() == name.encode() and temporary in copy.parents
    assert cached_copy(store, "kept.sqlite") == kept and copies(folder) == [kept.name]
    assert len(caplog.records) == 1 and "the disk is full" in caplog.text


class _Full(io.BytesIO):
    def write(self, data) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_small_file_system_fills_up_and_copies_go_to_the_temporary_folder(
    s3_bucket, tmp_path, temporary, monkeypatch, caplog
):
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("this machine does not mount")
    try:
        monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(place / "cache"))
        disk_cache(place / "cache").size = 1 << 30
        store = open_store(s3_bucket)
        data = {f"{n}.sqlite": os.urandom(300_000) for n in range(6)}
        found = []
        for name, content in data.items():
            store.write_bytes(name, content)
            found.append(cached_copy(store, name))
            assert found[-1].read_bytes() == content
        assert [place in copy.parents for copy in found] == [True] * 3 + [False] * 3
        assert "the disk is full" in caplog.text and len(caplog.records) == 1
        assert [path.read_bytes() for path in found] == list(data.values())
        disk_cache(place / "cache").close()
        cached_copy(store, "3.sqlite")  # nothing is in use any more: room is made
        assert len(list((place / "cache").glob("*.sqlite"))) == 3
        disk_cache(place / "cache").close()
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        assert place in cached_copy(store, "3.sqlite").parents  # present copies are read
        assert place not in cached_copy(store, "0.sqlite").parents
    finally:
        disk_cache(place / "cache").close()
        subprocess.run(["umount", "-l", place], check=False)


def test_private_copies_end_with_their_process_and_those_of_killed_ones_with_the_next(s3_bucket, tmp_path):
    open_store(s3_bucket).write_bytes("a.sqlite", b"one")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "file").write_bytes(b"")
    variables = {"FEEDMILL_CACHE_DIR": str(tmp_path / "file" / "below"), "TMPDIR": str(tmp_path / "tmp")}
    code = (
        "import os, sys; from feedmill.storage import open_store\n"
        "from feedmill.storage.cache.copies import cached_copy\n"
        "print(cached_copy(open_store(sys.argv[1]), 'a.sqlite').read_bytes())\n"
        "if sys.argv[2] == 'kill': os.kill(os.getpid(), 9)"
    )
    for how, count in [("kill", 1), ("kill", 1), ("end", 0)]:
        command = [sys.executable, "-c", code, s3_bucket, how]
        done = warm.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
        assert done.stdout in ("b'one'\n", "") and done.returncode == (-9 if how == "kill" else 0)
        assert len(list((tmp_path / "tmp").rglob("*-a.sqlite"))) == count


@pytest.mark.parametrize("home", ["none", "read-only", "taken"])
def test_where_no_home_can_be_written_to(home, monkeypatch, tmp_path, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEEDMILL_CACHE_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("feedmill.storage.folders._can_be_written", lambda _: False)
    if home == "none":
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)
        assert str(cache_folder()) == "/nonexistent/.cache/feedmill"  # the folder is not that user's either
    else:
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        below = tmp_path / f"feedmill-{os.getuid()}"
        if home == "taken":
            below.symlink_to("/etc")
            assert cache_folder() == tmp_path / "home/.cache/feedmill"
        else:
            assert cache_folder() == cache_folder() == below / "cache"
            assert below.stat().st_mode & 0o777 == 0o700
            assert caplog.text.count("Set FEEDMILL_CACHE_DIR") == 1
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", "here")
    assert str(cache_folder()) == "here"


@pytest.mark.parametrize("large", [False, True])
def test_a_copy_that_was_damaged_at_its_size_is_fetched_again(folder, s3_bucket, monkeypatch, caplog, large):
    if large:
        monkeypatch.setattr(cache, "_HASHED", 0)
    store = open_store(s3_bucket)
    store.write_bytes("a.sqlite", b"one")
    copy = cached_copy(store, "a.sqlite")
    copy.write_bytes(b"two")
    os.utime(copy, ns=(1, 1))
    assert cached_copy(store, "a.sqlite").read_bytes() == b"one"
    assert "is corrupt and is fetched again" in caplog.text
    copy.with_name(copy.name + ".hash").write_bytes(b"what?")
    assert cached_copy(store, "a.sqlite").read_bytes() == b"one"


def test_a_large_copy_is_hashed_only_where_it_changed(folder, s3_bucket, monkeypatch):
    monkeypatch.setattr(cache, "_HASHED", 0)
    store = open_store(s3_bucket)
    store.write_bytes("a.sqlite", b"one")
    copy = cached_copy(store, "a.sqlite")
    hashed = []
    plain = cache.hash_file
    monkeypatch.setattr(cache, "hash_file", lambda path: hashed.append(path) or plain(path))
    assert cached_copy(store, "a.sqlite") == copy and not hashed
    os.utime(copy, ns=(1, 1))  # as when the cache was copied
    assert [cached_copy(store, "a.sqlite") for _ in range(3)] == [copy] * 3 and len(hashed) == 1


def test_what_a_killed_download_left_is_swept_by_the_next(folder, s3_bucket):
    store = open_store(s3_bucket)
    store.write_bytes("a.sqlite", b"one")
    code = (
        "import os, sys; from feedmill.storage import open_store\n"
        "from feedmill.storage.cache.copies import cached_copy\n"
        "from feedmill.storage.remote.object_store import RemoteStore\n"
        "RemoteStore.download = lambda self, path, f: os._exit(9)\n"
        "cached_copy(open_store(sys.argv[1]), 'a.sqlite')"
    )
    assert warm.run([sys.executable, "-c", code, s3_bucket], check=False).returncode == 9
    assert any(path.name.endswith(".feedmill-tmp") for path in folder.iterdir())
    cached_copy(store, "a.sqlite")
    assert not any(path.name.endswith(".feedmill-tmp") for path in folder.iterdir())
