"""Which file a descriptor is of: one that another process replaced, one that changed, and what is not a file at all."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.errors import DataError, StorageError
from feedmill.storage import LocalStore, local, open_store
from feedmill.storage.cache.copies import cached_copy
from feedmill.storage.local import publish
from feedmill.storage.staging import temporary_beside
from helpers import warm


def replaced(path: Path, data: bytes) -> None:
    """Another process puts a new file at the path, as far as this process can tell."""
    beside = path.with_suffix(".beside")
    beside.write_bytes(data)
    os.replace(beside, path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "x").write_bytes(b"old")
    return tmp_path / "x"


def test_a_store_made_after_a_file_was_replaced_reads_the_new_one_and_an_older_one_the_old(file: Path) -> None:
    before = LocalStore(file.parent)
    assert before.read("x", 0, 3) == b"old"
    replaced(file, b"new")
    after = LocalStore(file.parent)
    assert after.read("x", 0, 3) == after.read_ranges("x", [0], [3])[0] == b"new"
    assert before.read("x", 0, 3) == b"old"
    assert [os.pread(one.descriptors(["x"])[0].fd, 3, 0) for one in (before, after)] == [b"old", b"new"]


def test_stores_share_the_descriptor_of_a_file_that_stays(file: Path) -> None:
    stores = [LocalStore(file.parent) for _ in range(3)]
    assert len({store.descriptors(["x"])[0].fd for store in stores}) == 1


def close_all(_file: Path) -> None:
    for kept in list(local._kept):
        local._drop(kept)


@pytest.mark.parametrize("read", [lambda store: store.read("x", 0, 3), lambda store: store.local_copy("x").__enter__()])
@pytest.mark.parametrize("data", [b"new", b"other"])
def test_a_pinned_store_never_takes_another_file_for_the_one_that_it_read(
    file: Path, data: bytes, read: Callable[[LocalStore], object]
) -> None:
    store = LocalStore(file.parent)
    store.pin_files()
    assert store.stat("x").size == 3  # looking at it is enough
    assert store.read("x", 0, 3) == b"old"
    replaced(file, data)
    os.utime(file, ns=(1, 1))
    assert store.read("x", 0, 3) == b"old"  # as long as its descriptor is open
    close_all(file)
    with pytest.raises(DataError, match="changed while the dataset was open") as caught:
        read(store)
    assert caught.value.kind == "changed" and caught.value.file == str(file)
    assert LocalStore(file.parent).read("x", 0, 3) == data[:3]


def test_a_pinned_store_goes_along_with_a_file_that_grows_and_with_what_it_writes_itself(file: Path) -> None:
    store = LocalStore(file.parent)
    store.pin_files()
    assert store.read("x", 0, 3) == b"old"
    with file.open("ab") as f:
        f.write(b" and more")
    close_all(file)
    assert store.read("x", 0, 8) == b"old and "
    store.write_bytes("x", b"mine")
    assert store.read("x", 0, 4) == b"mine"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def device(path: Path) -> None:
    """A node like /dev/null's; of the test's own, never one of the machine's."""
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        path.read_bytes()
    except OSError:
        pytest.skip("this user cannot make device nodes here")


SPECIAL = pytest.mark.parametrize("make", [pipe, listening, device])


@SPECIAL
def test_what_is_no_regular_file_is_refused_at_once_when_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x")
    store = open_store(tmp_path)
    asks: list[Callable[[], object]] = [
        lambda: store.read("x"),
        lambda: store.read("x", 0, 1),
        lambda: store.read_into("x", 0, memoryview(bytearray(1))),
        lambda: store.local_copy("x").__enter__(),
        lambda: cached_copy(store, "x"),
    ]
    for ask in asks:
        with pytest.raises(StorageError, match="a regular file was expected") as caught:
            ask()
        assert caught.value.kind == "not-a-file" and caught.value.file == str(tmp_path / "x")


@SPECIAL
def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "x"
    make(path)
    (tmp_path / "link").symlink_to(path)
    kind = path.stat().st_mode
    store = open_store(tmp_path)

    def published() -> None:
        temporary = temporary_beside(str(path))
        Path(temporary).write_bytes(b"1")
        publish(temporary, str(path))

    asks: list[Callable[[], object]] = [
        lambda: store.write_bytes("x", b"1"),
        lambda: store.write_note("x", b"1"),
        lambda: store.write_bytes("link", b"1"),
        published,
    ]
    for ask in asks:
        with pytest.raises(StorageError, match="would be replaced"):
            ask()
    assert path.stat().st_mode == kind and (tmp_path / "link").is_symlink()


@SPECIAL
def test_no_verb_replaces_or_waits_for_what_is_no_regular_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    for name in ("nul", "n.jsonl", "in.jsonl"):
        make(tmp_path / name)
    verbs = [
        ["tokens", "index", f"{tmp_path}/a.jsonl", "--output", f"{tmp_path}/nul", "--overwrite"],
        ["convert", f"{tmp_path}/a.jsonl", f"{tmp_path}/n.jsonl", "--to", "jsonl", "--overwrite"],
        ["show", f"{tmp_path}/in.jsonl"],
        ["prepare", f"{tmp_path}/in.jsonl"],
    ]
    for verb in verbs:
        result = CliRunner().invoke(app, verb)
        assert result.exit_code == 1, (verb, result.output)
        assert "a regular file was expected" in " ".join(result.output.split())
    for name in ("nul", "n.jsonl", "in.jsonl"):
        assert not stat.S_ISREG((tmp_path / name).stat().st_mode)


def test_a_new_process_is_where_the_old_file_would_be_missed(file: Path) -> None:
    """The stand-in of `replaced` is right: a real other process does the same."""
    before = LocalStore(file.parent)
    before.read("x", 0, 3)
    code = "import os, sys; open(sys.argv[1] + 'b', 'wb').write(b'new'); os.replace(sys.argv[1] + 'b', sys.argv[1])"
    warm.run([sys.executable, "-c", code, str(file)], check=True)
    assert LocalStore(file.parent).read("x", 0, 3) == b"new" and before.read("x", 0, 3) == b"old"
