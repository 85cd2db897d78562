"""What only the local disk can do: links, killed writers, full disks, descriptors that stay open."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedmill.errors import NotFound, StorageError
from feedmill.storage import LocalStore, local
from feedmill.storage import local as module
from feedmill.storage.staging import sweep, sweep_again, temporary_beside
from helpers import warm


@pytest.fixture
def store(tmp_path) -> LocalStore:
    (tmp_path / "data").mkdir()
    return LocalStore(tmp_path / "data")


@pytest.fixture
def often_switching() -> Iterator[None]:
    """Threads take turns 500 times as often as they would."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def names(store: LocalStore, *args, **kwargs) -> list[str]:
    return [entry.path for entry in store.files(*args, **kwargs)]


def everything(store: LocalStore) -> list[str]:
    """All names on the disk, temporary files too."""
    return sorted(str(path.relative_to(store.root)) for path in Path(store.root).rglob("*"))


def test_linked_folders_are_followed_but_never_in_circles(store):
    root = Path(store.root)
    for name in ["a/1.txt", "b/2.txt"]:
        store.write_bytes(name, b"1")
    (root / "a" / "self").symlink_to(root / "a")
    (root / "a" / "up").symlink_to(root)
    (root / "a" / "to-b").symlink_to(root / "b")
    (root / "b" / "to-a").symlink_to(root / "a")
    assert names(store) == ["a/1.txt", "a/to-b/2.txt", "b/2.txt", "b/to-a/1.txt"]


def test_a_link_to_nothing_is_named(store):
    (Path(store.root) / "shard.tar").symlink_to("/no/such/shard.tar")
    with pytest.raises(NotFound, match="the target of this link does not exist") as caught:
        names(store)
    assert caught.value.file == f"{store.root}/shard.tar"
    assert names(store, suffixes=[".json"]) == []


def test_a_link_to_itself_is_an_error_not_a_crash(store):
    (Path(store.root) / "loop").symlink_to("loop")
    for ask in [store.read, store.stat, lambda path: names(store)]:
        with pytest.raises((StorageError, NotFound)):
            ask("loop")
    assert names(store, suffixes=[".tar"]) == []


def test_pipes_are_not_files(store):
    os.mkfifo(f"{store.root}/pipe")
    store.write_bytes("a", b"1")
    assert names(store) == ["a"]


def test_an_unreadable_file_is_an_error_with_a_fix(store, monkeypatch):
    store.write_bytes("a.tar", b"1")

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", args[0])

    monkeypatch.setattr(module.os, "open", refuse)  # root may read everything, so the refusal is made here
    with pytest.raises(StorageError, match="permission denied") as caught:
        store.read("a.tar", 0, 1)
    assert caught.value.kind == "eacces" and caught.value.fix and caught.value.file == f"{store.root}/a.tar"


def test_a_folder_is_not_read_as_a_file(store):
    store.write_bytes("a/b", b"1")
    for ask in [store.read, lambda path: store.read(path, 0, 1), store.delete]:
        with pytest.raises(StorageError, match="folder"):
            ask("a")


def test_the_cache_of_descriptors_stays_small(store):
    for i in range(local.MOST + 20):
        store.write_bytes(f"{i}", b"%d" % i)
    for i in range(local.MOST + 20):
        assert store.read(f"{i}", 0, 1) == str(i)[:1].encode()
    assert len(local._kept) <= local.MOST


def test_readers_in_threads_never_see_a_stale_or_mixed_file(store, often_switching):
    store.write_bytes("x", b"0" * 4000)
    wrong: list[bytes] = []

    def read(stop: threading.Event) -> None:
        while not stop.is_set():
            data = store.read("x", 0, 4000)
            if len(set(data)) != 1:
                wrong.append(data)

    stop = threading.Event()
    threads = [threading.Thread(target=read, args=(stop,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(60):
        store.write_bytes("x", b"%d" % (i % 10) * 4000)
        assert store.read("x", 0, 1) == b"%d" % (i % 10)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_mode_of_a_new_file_is_what_open_gives(store):
    store.write_bytes("a", b"1")
    Path(store.root, "b").write_bytes(b"1")
    assert os.stat(f"{store.root}/a").st_mode == os.stat(f"{store.root}/b").st_mode


WRITER = """
import sys
from feedmill.storage import LocalStore
store = LocalStore(sys.argv[1])
print("ready", flush=True)
for i in range(10**6):
    with store.write("out/file.bin") as f:
        for _ in range(20):
            f.write(bytes([i % 256]) * 50_000)
"""


def test_a_killed_writer_leaves_no_half_file(store):
    store.write_bytes("out/file.bin", bytes(1_000_000))
    chance = random.Random(7)
    for _ in range(6):
        child = warm.Popen([sys.executable, "-c", WRITER, store.root], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0, 0.05))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        data = LocalStore(store.root).read("out/file.bin")
        assert len(data) == 1_000_000 and len(set(data)) == 1
        assert names(store) == ["out/file.bin"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_keeps_the_old_file(store, monkeypatch, call):
    store.write_bytes("a.txt", b"old")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, call, full)
        with pytest.raises(StorageError, match="disk is full") as caught:
            store.write_bytes("a.txt", b"new")
    assert caught.value.kind == "enospc" and caught.value.fix
    assert store.read("a.txt") == b"old" and everything(store) == ["a.txt"]


FULL = """
import os, sys
from feedmill.errors import StorageError
from feedmill.storage import LocalStore
store = LocalStore(sys.argv[1])
store.write_bytes("a.bin", b"old")
try:
    store.write_bytes("a.bin", bytes(10_000_000))
except StorageError as error:
    print(error.kind, store.read("a.bin").decode(), *os.listdir(sys.argv[1]))
"""


def test_a_really_full_disk_keeps_the_old_file(tmp_path):
    """On a file system of 64 KiB, mounted in a name space of its own, so that it is gone with the process."""
    script = tmp_path / "full.py"
    script.write_text(FULL)
    command = f"mount -t tmpfs -o size=64k none {tmp_path} && exec {sys.executable} /dev/stdin {tmp_path}"
    try:
        with script.open() as source:
            done = subprocess.run(
                ["unshare", "-rm", "sh", "-c", command], stdin=source, capture_output=True, text=True, timeout=180
            )
    except FileNotFoundError:
        pytest.skip("this machine has no unshare")
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip("file systems cannot be mounted here")
    assert done.stdout.split() == ["enospc", "old", "a.bin"], done.stderr


def test_a_read_only_folder_is_an_error_with_a_fix(store, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system", args[0])

    monkeypatch.setattr(module.os, "mkdir", refuse)
    with pytest.raises(StorageError, match="read-only") as caught:
        store.write_bytes("a/b.txt", b"1")
    assert caught.value.kind == "erofs"


def test_a_file_where_a_folder_should_be_is_an_error_with_a_fix(store):
    store.write_bytes("a", b"1")
    for path in ["a/b.txt", "a/b/c/d.txt"]:
        with pytest.raises((StorageError, NotFound)) as caught:
            store.write_bytes(path, b"1")
        assert caught.value.file == f"{store.root}/{path}" and caught.value.fix
    assert store.read("a") == b"1"


def test_notes_appear_whole_and_wait_for_no_disk(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("synced")

    store.make_folder("a")
    monkeypatch.setattr(os, "fsync", refuse)
    for text in (b"one", b"two"):
        store.write_note("a/b.json", text)
        assert store.read("a/b.json") == text
    with pytest.raises(StorageError):
        store.write_note("a", b"a folder")
    with pytest.raises(StorageError):
        store.write_note("a/b.json/c", b"a file in the way")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(StorageError):
        store.write_note("a/b.json", b"three")
    assert store.read("a/b.json") == b"two" and os.listdir(f"{store.root}/a") == ["b.json"]


def test_long_names_in_any_script_can_be_written(store):
    for name in ("日" * 84, "é" * 127, "x" * 255, "日" * 67 + ".txt"):
        with store.write(name) as file:
            file.write(b"content")
        left = temporary_beside(store.locate(name))
        Path(left).write_bytes(b"")
        sweep_again()
        sweep(store.root)
        assert store.read(name) == b"content" and not Path(left).exists()
