"""Staged files: whole or not there, swept when their writer is dead, and never written through links."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from feedmill.errors import FeedmillError, StorageError
from feedmill.storage import LocalStore
from feedmill.storage.staging import TEMPORARY_SUFFIX, WriteBehind, make_folder, staged, sweep_again, temporary_beside
from helpers import warm

WRITER = """
import sys
import threading
from feedmill.storage import LocalStore
from feedmill.storage.staging import WriteBehind
with LocalStore(sys.argv[1]).write("out/a.bin") as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


def staged_files(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(TEMPORARY_SUFFIX))


def test_what_a_killed_writer_left_goes_with_the_next_write_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    words = [sys.executable, "-c", WRITER, str(tmp_path)]
    with (
        warm.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed,
        warm.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as alive,
    ):
        for child in (killed, alive):
            assert child.stdout is not None and child.stdout.readline() == b"writing\n"
        assert len(staged_files(tmp_path / "out")) == 2
        killed.kill()
        killed.wait()
        sweep_again()
        store.write_bytes("out/b.bin", b"b")
        assert len(staged_files(tmp_path / "out")) == 1
        alive.communicate(b"")
        assert alive.returncode == 0 and store.read("out/a.bin") == b"half"
    assert staged_files(tmp_path / "out") == []


def test_a_folder_is_looked_through_once_and_again_for_each_job(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write_bytes("a", b"1")
    left = Path(temporary_beside(store.locate("a")))
    left.write_bytes(b"of a process that is dead")
    store.write_bytes("a", b"2")
    assert left.exists()
    with store.lock("lock", what="busy", file="it"):
        store.write_bytes("a", b"3")
    assert not left.exists()


def test_only_staged_files_are_swept(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / f".a.0123456789ab{TEMPORARY_SUFFIX}").symlink_to(victim)
    (folder / f"visible{TEMPORARY_SUFFIX}").write_bytes(b"")
    (folder / ".hidden").write_bytes(b"")
    os.mkfifo(folder / f".pipe.0123456789ab{TEMPORARY_SUFFIX}")
    LocalStore(folder).write_bytes("b", b"")
    assert len(os.listdir(folder)) == 5 and victim.read_bytes() == b"mine"


def test_a_staged_file_that_is_not_renamed_is_removed(tmp_path: Path) -> None:
    with staged(str(tmp_path / "a")) as temporary:
        assert staged_files(tmp_path) == [os.path.basename(temporary)]
    assert os.listdir(tmp_path) == []


WRITES = {
    "write": lambda store, path: store.write_bytes(path, b"x"),
    "note": lambda store, path: store.write_note(path, b"x"),
    "append": lambda store, path: store.append(path).close(),
    "lock": lambda store, path: store.lock(path, what="busy", file="it").close(),
    "folder": lambda store, path: store.make_folder(path),
    "delete": lambda store, path: store.delete(path),
    "remove": lambda store, path: store.remove_folder(path),
    "below": lambda store, path: store.below(path),
    "rename": lambda store, path: store.rename(store, "there", path),
    "rename from": lambda store, path: store.rename(store, path, "there"),
}


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("path", ["link/file", "link/deep/file"])
def test_nothing_is_written_or_removed_through_a_linked_folder(tmp_path: Path, how: str, path: str) -> None:
    victim = tmp_path / "victim"
    (victim / "deep").mkdir(parents=True)
    for name in ("file", "deep/file"):
        (victim / name).write_bytes(b"mine")
    store = LocalStore(tmp_path / "d")
    store.write_bytes("there", b"")
    (tmp_path / "d/link").symlink_to(victim)
    with pytest.raises(StorageError, match="link") as caught:
        WRITES[how](store, path)
    assert caught.value.kind == "not-a-file" and caught.value.file == str(tmp_path / "d/link") and caught.value.fix
    assert [(victim / name).read_bytes() for name in ("file", "deep/file")] == [b"mine", b"mine"]
    assert sorted(os.listdir(victim)) == ["deep", "file"] and os.listdir(victim / "deep") == ["file"]


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("hard", [False, True])
def test_a_link_in_the_place_of_a_file_is_refused_or_replaced(tmp_path: Path, how: str, hard: bool) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    victim.chmod(0o640)
    store = LocalStore(tmp_path / "d")
    store.write_bytes("there", b"")
    (os.link if hard else os.symlink)(victim, tmp_path / "d/link")
    try:
        WRITES[how](store, "link")
    except StorageError as error:
        assert error.fix
    assert victim.read_bytes() == b"mine" and (hard or victim.stat().st_mode & 0o777 == 0o640)


def test_a_pipe_in_the_place_of_a_file_of_ours_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        store.append("pipe")


def test_the_dataset_itself_and_what_lies_above_it_may_be_links(tmp_path: Path) -> None:
    (tmp_path / "real/d").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "d").symlink_to(tmp_path / "real/d")
    for root in ("link/d", "d"):
        LocalStore(tmp_path / root).write_bytes("deep/file", root.encode())
        assert (tmp_path / "real/d/deep/file").read_bytes() == root.encode()


def test_new_folders_are_synced_into_their_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync = [], os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}") if os.path.exists("/proc/self/fd") else None)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    make_folder(str(tmp_path / "a/b/c"))
    make_folder(str(tmp_path / "a/b"))
    assert synced in ([str(tmp_path / name) for name in ("", "a", "a/b")], [None] * 3)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EFBIG])
def test_an_error_of_writing_names_the_file_whoever_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(WriteBehind, "write", refuse)
    with pytest.raises(StorageError) as caught, LocalStore(tmp_path).write("a") as file:
        try:
            file.write(bytes(1 << 20))
        except OSError:
            pytest.fail("an error without the file")
    assert caught.value.file == str(tmp_path / "a") and os.listdir(tmp_path) == []


def test_folders_that_others_make_and_remove_meanwhile(tmp_path: Path) -> None:
    store, done = LocalStore(tmp_path), threading.Event()

    def tidy() -> None:
        while not done.wait(0.001):
            with contextlib.suppress(OSError):
                os.rmdir(tmp_path / "x" / "y")
            with contextlib.suppress(OSError):
                os.rmdir(tmp_path / "x")

    def work(number: int) -> int:
        for turn in range(100):
            with store.exclusive(f"x/y/{number}-{turn}", what="busy", file="it"):
                pass
        return number

    with ThreadPoolExecutor(5) as threads:
        tidying = threads.submit(tidy)
        try:
            assert list(threads.map(work, range(4))) == [0, 1, 2, 3]
        finally:
            done.set()
        tidying.result()
    with pytest.raises(FeedmillError):
        LocalStore("/proc").lock("no/such", what="busy", file="it")


def test_a_lock_is_waited_for_a_little(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    held = store.lock("lock", what="busy", file="it")
    threading.Timer(0.2, held.close).start()
    with store.exclusive("lock", what="busy", file="it"), pytest.raises(FeedmillError, match="busy"):
        store.lock("lock", what="busy", file="it", patience=0.1)


def test_files_written_together_are_each_opened_once_and_those_before_a_fault_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, opened, original = LocalStore(tmp_path), [], os.open

    def counted(path: str, *rest: int) -> int:
        opened.append(path)
        return original(path, *rest)

    (tmp_path / "x").mkdir()
    monkeypatch.setattr(os, "open", counted)
    store.write_together((f"x/{number}", b"%d" % number) for number in range(40))
    assert [path.endswith(TEMPORARY_SUFFIX) for path in opened] == [True] * 40 + [False]  # the folder is synced
    assert all((tmp_path / "x" / str(number)).read_bytes() == b"%d" % number for number in range(40))
    os.mkfifo(tmp_path / "x" / "pipe")
    with pytest.raises(StorageError, match="this is a pipe"):
        store.write_together([("x/first", b"1"), ("x/pipe", b"2"), ("x/last", b"3")])
    assert sorted(set(os.listdir(tmp_path / "x")) - {str(number) for number in range(40)}) == ["first", "pipe"]
