from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from feedmill.errors import NotFound, StorageError
from feedmill.storage import cache, open_store
from feedmill.storage.cache import cached_copy
from feedmill.storage.folders import cache_folder
from feedmill.storage.remote import RemoteStore


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def copies(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix not in (".lock", ".hash"))


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
        "import sys, hashlib; from feedmill.storage import open_store; from feedmill.storage.cache import cached_copy;"
        "print(hashlib.sha1(cached_copy(open_store(sys.argv[1]), 'a.sqlite').read_bytes()).hexdigest())"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, s3_bucket], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    answers = {child.communicate(timeout=30)[0] for child in children}
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


def test_an_unusable_cache_folder_names_its_setting(s3_bucket, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "file" / "below"))
    store = open_store(s3_bucket)
    store.write_bytes("a.sqlite", b"one")
    with pytest.raises((StorageError, NotFound), match="FEEDMILL_CACHE_DIR"):
        cached_copy(store, "a.sqlite")


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
    assert "is damaged, it is fetched again" in caplog.text
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
        "import os, sys; from feedmill.storage import open_store; from feedmill.storage.cache import cached_copy\n"
        "from feedmill.storage.remote import RemoteStore\n"
        "RemoteStore.download = lambda self, path, f: os._exit(9)\n"
        "cached_copy(open_store(sys.argv[1]), 'a.sqlite')"
    )
    assert subprocess.run([sys.executable, "-c", code, s3_bucket], check=False).returncode == 9
    assert any(path.name.endswith(".feedmill-tmp") for path in folder.iterdir())
    cached_copy(store, "a.sqlite")
    assert not any(path.name.endswith(".feedmill-tmp") for path in folder.iterdir())
