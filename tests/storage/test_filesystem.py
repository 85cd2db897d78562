"""File systems of fsspec as stores: the Hugging Face Hub, file systems that rename or cannot, and what goes wrong."""

from __future__ import annotations

import errno
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from ftplib import error_perm
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import register_implementation

import feedmill as fm
from feedmill.errors import ConfigError, DataError, FeedmillError, MissingExtra, NotFound, StorageError
from feedmill.storage import Store, open_store
from feedmill.storage.cache.copies import cached_copy
from feedmill.storage.remote.filesystem import CONNECTIONS, FilesystemStore
from feedmill.storage.remote.locks import ObjectLock
from feedmill.storage.remote.options import storage_options
from helpers import dataset_kinds, warm
from helpers.hub_server import HubServer, hub_server

FILES = {"a.txt": b"hello", "d/x.bin": bytes(range(256)) * 4096, "d/.h/z": b"1", "d/e/y": b""}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with hub_server(FILES) as server:
        yield server


def hub_store(hub: HubServer, url: str = "hf://datasets/org/set", **options: Any) -> FilesystemStore:
    return FilesystemStore(url, endpoint=hub.endpoint, **options)


def refused(ask: Any) -> FeedmillError:
    with pytest.raises(FeedmillError) as caught:
        ask()
    return caught.value


def test_a_dataset_of_the_hub_is_listed_and_read_by_ranges(hub: HubServer) -> None:
    store = hub_store(hub)
    assert [entry.path for entry in store.files()] == ["a.txt", "d/e/y", "d/x.bin"]
    assert [(entry.path, entry.size) for entry in store.files("d", suffixes=(".bin",))] == [("d/x.bin", 1 << 20)]
    assert store.stat("a.txt").size == 5 and store.read("a.txt") == b"hello" and store.read("a.txt", 3) == b"lo"
    assert store.read_ranges("d/x.bin", [0, 900_000], [10, 4]) == [bytes(range(10)), FILES["d/x.bin"][900_000:900_004]]
    asked = [(begin, end) for _, path, begin, end in hub.ranges if path == "d/x.bin"]
    assert sorted(asked) == [(0, 10), (900_000, 900_004)]  # what was asked for, and not some MiB more
    with pytest.raises(DataError, match="expected 9 bytes here, found 1"):
        store.read("a.txt", 4, 9)


def test_a_dataset_of_the_hub_that_is_open_keeps_its_commit(hub: HubServer) -> None:
    store, other = hub_store(hub), hub_store(hub)
    store.pin_files()
    hub.commit({"a.txt": b"other", "d/x.bin": b"new"})
    again = pickle.loads(pickle.dumps(store))
    for each in (store, again, again.below("")):
        assert each.read("a.txt", 0, 5) == b"hello"
    assert store.below("d").read("x.bin", 0, 2) == b"\0\1"
    assert [entry.size for entry in store.entries(list(FILES))] == [len(data) for data in FILES.values()]
    assert other.read("a.txt") == hub_store(hub).read("a.txt", 0, 5) == b"other"
    old = "hf://datasets/org/set@" + "a" * 40
    assert hub_store(hub, old).read("a.txt") == hub_store(hub, revision="a" * 40).read("a.txt") == b"hello"


def test_what_the_hub_refuses_is_said(hub: HubServer) -> None:
    assert refused(lambda: hub_store(hub).read("none")).file == "hf://datasets/org/set/none"
    missing = refused(lambda: hub_store(hub, "hf://datasets/org/none").read("a.txt"))
    assert isinstance(missing, NotFound) and "HF_TOKEN" in str(missing.fix)
    assert isinstance(refused(lambda: hub_store(hub, revision="none").read("a.txt")), NotFound)
    hub.token = "hf_right"
    assert "HF_TOKEN" in str(refused(lambda: hub_store(hub, token="hf_wrong").read("a.txt")).fix)
    store = hub_store(hub, token="hf_right")
    assert store.read("a.txt") == b"hello" and "hf_right" not in repr(store)


@pytest.mark.slow
def test_a_busy_hub_is_asked_again(hub: HubServer) -> None:
    hub.refuse = [503, 500, 429]
    assert hub_store(hub).read("d/x.bin", 5, 5) == FILES["d/x.bin"][5:10]
    assert not hub.refuse


def test_a_loader_reads_ahead_from_the_hub(tmp_path: Path, hub: HubServer) -> None:
    samples = [{"__key__": f"k{i:04d}", "txt": f"{i}", "bin": os.urandom(20_000)} for i in range(400)]
    fm.write(str(tmp_path / "set"), samples, max_shard_samples=100, progress=False)
    files = {str(p.relative_to(tmp_path / "set")): p.read_bytes() for p in (tmp_path / "set").rglob("*") if p.is_file()}
    hub.commit(files)
    url = "hf://datasets/org/set"
    recipe = {"source": url, "epochs": 1, "seed": 3, "storage": {"hf://datasets": {"endpoint": hub.endpoint}}}
    found = [text for batch in fm.Loader(fm.Recipe.parse(recipe).plan(), 20) for text in batch["txt"]]
    local = fm.Recipe.parse({"source": str(tmp_path / "set"), "epochs": 1, "seed": 3}).plan()
    assert found == [text for batch in fm.Loader(local, 20) for text in batch["txt"]]
    tars = [(begin, end) for _, path, begin, end in hub.ranges if path.endswith(".tar")]
    assert len(tars) < 100, "the first batch, and then runs of samples"
    assert sum(end - begin for begin, end in tars) < 1.3 * sum(len(d) for p, d in files.items() if p.endswith(".tar"))


def test_an_index_is_copied_once(hub: HubServer) -> None:
    store = hub_store(hub)
    copy = cached_copy(store, "d/x.bin")
    assert copy.read_bytes() == FILES["d/x.bin"] and cached_copy(store, "d/x.bin") == copy


def test_nothing_half_written_is_left_where_files_are_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"local://{tmp_path}/data")
    store.write_bytes("a/b", b"old")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalFileSystem, "mv", full)
    refused(lambda: store.write_bytes("a/b", b"new"))
    refused(lambda: store.write_bytes("a/c", b"new"))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["b"] and store.read("a/b") == b"old"


KILLED = """
import os, sys
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import register_implementation
from feedmill.storage import open_store

class Careful(LocalFileSystem):
    protocol = "careful"
    left = int(sys.argv[2])

    def mv(self, path1, path2, **kwargs):
        if not Careful.left:
            os._exit(9)
        Careful.left -= 1
        if self.exists(path2):
            raise FileExistsError(path2)
        super().mv(path1, path2, **kwargs)

register_implementation("careful", Careful)
open_store(sys.argv[1]).write_bytes("a/b", b"new")
"""


@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_what_a_killed_writer_left_is_removed_by_the_next_job(
    renamed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the old file had another name when its writer was killed: it gets its name again."""
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "data/a"
    store = FilesystemStore(f"careful://{tmp_path}/data")
    store.write_bytes("a/b", b"old")
    assert warm.run([sys.executable, "-c", KILLED, store.url, str(renamed)]).returncode == 9
    assert store.exists("a/b") == (renamed < 2) and len(list(folder.iterdir())) == 2
    assert [entry.path for entry in store.files()] == ["a/b"] * (renamed < 2)
    other = FilesystemStore(f"careful://{tmp_path}/elsewhere")
    with ObjectLock(other):
        assert store.read("a/b") == b"old" and [path.name for path in folder.iterdir()] == ["b"]
    assert not list((tmp_path / "cache/uploads").iterdir())


def test_what_a_lost_machine_left_in_a_work_folder_is_removed_with_it(tmp_path: Path) -> None:
    store = FilesystemStore(f"careful://{tmp_path}/work")
    store.write_bytes("a/b", b"1")
    (tmp_path / "work/a/.c.0123456789ab.feedmill-tmp").write_bytes(b"half")
    store.abort_uploads()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["b"]


class Careful(LocalFileSystem):
    """Does not rename onto a file, as HDFS does not."""

    protocol = "careful"

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        if self.exists(path2):
            raise FileExistsError(path2)
        super().mv(path1, path2, **kwargs)


class OneAtATime(MemoryFileSystem):
    """Has a connection that two threads must not use at once, as FTP has."""

    protocol = "oneatatime"
    made = 0
    gate = threading.Lock()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.busy = threading.Lock()
        with OneAtATime.gate:
            OneAtATime.made += 1

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        assert self.busy.acquire(blocking=False), "two threads at once"
        time.sleep(0.002)
        try:
            return bytes(super().cat_file(path, start, end))
        finally:
            self.busy.release()


class Crowded(LocalFileSystem):
    """Others create each folder just before it does, and that is an error, as with FTP."""

    protocol = "crowded"

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        for folder in (*reversed(Path(path).parents), Path(path)):
            if not folder.exists():
                folder.mkdir()
                raise error_perm(f"550 {folder}: File exists.")


class Broken(MemoryFileSystem):
    """Fails as it is told to."""

    protocol = "broken"
    error: Exception | None = None
    short = 0

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        if self.error is not None:
            raise self.error
        data = bytes(super().cat_file(path, start, end))
        if Broken.short:
            Broken.short -= 1
            return data[:-1]
        return data

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode != "rb" and isinstance(self.error, NotImplementedError):
            raise self.error
        return super()._open(path, mode, **kwargs)


@pytest.fixture(autouse=True)
def _implementations(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Careful, Crowded, OneAtATime, Broken):
        register_implementation(kind.protocol, kind, clobber=True)
    monkeypatch.setattr(Broken, "error", None)


def test_a_file_is_replaced_where_renaming_replaces_nothing(tmp_path: Path) -> None:
    store = FilesystemStore(f"careful://{tmp_path}/data")
    store.write_bytes("a", b"old")
    store.write_bytes("a", b"new")
    assert store.read("a") == b"new" and [path.name for path in Path(tmp_path, "data").iterdir()] == ["a"]


def test_a_folder_may_be_created_by_others_at_the_same_time(tmp_path: Path) -> None:
    FilesystemStore(f"crowded://{tmp_path}/data").write_bytes("a/b/c/d", b"new")
    assert (tmp_path / "data/a/b/c/d").read_bytes() == b"new"
    (tmp_path / "data/file").write_bytes(b"")
    with pytest.raises(NotFound):
        FilesystemStore(f"crowded://{tmp_path}/data").write_bytes("file/a", b"new")


def test_connections_are_not_shared_by_threads_and_are_few() -> None:
    store = FilesystemStore("oneatatime://folder")
    for number in range(60):
        store.write_bytes(f"{number}", bytes([number]) * 300_000)
    asks = [(f"{number}", [0, 200_000], [1, 3]) for number in range(60)]
    assert store.read_many(asks) == [[bytes([number]), bytes([number]) * 3] for number in range(60)]
    # In flight of either size at most, and those that write and list.
    assert 1 < OneAtATime.made <= 2 * CONNECTIONS + 1


def test_a_short_answer_is_asked_for_again_and_a_short_file_is_an_error() -> None:
    store = FilesystemStore("broken://folder")
    store.write_bytes("five", b"01234")
    Broken.short = 2
    assert store.read("five", 1, 3) == b"123" and not Broken.short
    with pytest.raises(DataError, match="expected 9 bytes here, found 4"):
        store.read("five", 1, 9)


class _Response:
    def __init__(self, status: int) -> None:
        self.status_code = status


class _StatusError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.response = _Response(status)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError("no"), "eacces"),
        (_StatusError(403), "eacces"),
        (_StatusError(401), "bad-credentials"),
        (_StatusError(404), "not-found"),
        (FileNotFoundError("x"), "not-found"),
        (IsADirectoryError("x"), "eisdir"),
        (NotImplementedError("x"), "unsupported"),
        (ValueError("odd"), "storage"),
        (ImportError("No module named 'x'"), "missing-extra"),
        (error_perm("550 No such file or directory."), "not-found"),
        (error_perm("550 Failed to open file."), "not-found"),
        (error_perm("550 Permission denied."), "eacces"),
        (error_perm("550 Not enough privileges."), "eacces"),
        (error_perm("550 /my/permission/exists: No such file or directory"), "not-found"),
        (error_perm("550 /my/permission/exists: cannot be opened"), "not-found"),
        (error_perm("550 This file does not exist, permission"), "not-found"),
        (error_perm("550 Access is denied."), "eacces"),
        (error_perm("550 File exists."), "storage"),
        (error_perm("552 Quota exceeded."), "storage"),
    ],
)
def test_errors_say_what_and_where(error: Exception, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FilesystemStore("broken://folder")
    store.write_bytes("a", b"1")
    monkeypatch.setattr(Broken, "error", error)
    found = refused(lambda: store.read("a", 0, 1))
    assert (found.kind, found.file) == (kind, "broken://folder/a") and found.fix


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), TimeoutError("late"), _StatusError(503)])
def test_what_may_pass_is_tried_again_and_named_in_the_end(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    store = FilesystemStore("broken://folder", retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=1)})
    store.write_bytes("a", b"1")
    count = []

    def fails(self: Any, *args: Any, **kwargs: Any) -> bytes:
        count.append(1)
        raise error

    monkeypatch.setattr(Broken, "cat_file", fails)
    assert refused(lambda: store.read("a", 0, 1)).file == "broken://folder/a" and len(count) == 3


def test_a_file_system_that_cannot_write_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "error", NotImplementedError("read only"))
    assert refused(lambda: FilesystemStore("broken://folder").write_bytes("a", b"1")).kind == "unsupported"


def test_two_writers_are_warned_that_nothing_keeps_them_apart(caplog: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path))
    store = open_store(f"memory://{tmp_path.name}-claims")
    with ObjectLock(store), pytest.raises(StorageError, match="conditional writes") as caught:
        assert store.exists(".feedmill/lock")
        store.put_new("x", b"1")  # type: ignore[attr-defined]
    assert caught.value.kind == "unsupported" and "two writers may overlap" in caplog.text
    assert not store.exists(".feedmill/lock")


@pytest.mark.parametrize("kind", ["prepared", "vla", "mds", "parquet", "pbin", "ds"])
def test_datasets_are_read_as_from_a_disk(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "data"
    root.mkdir()
    dataset_kinds.make(root, kind)
    store: Store = open_store(f"memory://{tmp_path.name}-{kind}")
    for path in root.rglob("*"):
        if path.is_file():
            store.write_bytes(str(path.relative_to(root)), path.read_bytes())
    ours, theirs = fm.open(str(root)), fm.open(store.url)
    assert theirs.fingerprint() == ours.fingerprint() and len(theirs) == len(ours)
    everything = list(range(len(ours)))
    keys = [[(s.key, sorted(s)) for s in each.read_raw(everything)] for each in (ours, theirs)]
    assert keys[0] == keys[1]


def test_verbs_write_to_a_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    url = f"local://{tmp_path}/out"
    samples = [{"__key__": f"k{i}", "txt": f"{i}"} for i in range(50)]
    for place in (url, str(tmp_path / "ours")):
        fm.write(place, samples, max_shard_samples=20, progress=False)
    assert [sample.raw("txt") for sample in fm.open(url).read_raw([0, 49])] == [b"0", b"49"]
    ours = {p.name: p.read_bytes() for p in (tmp_path / "ours").rglob("*.tar")}
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").rglob("*.tar")} == ours and len(ours) == 3
    hidden = [path for path in (tmp_path / "out").rglob(".*/**/*") if path.is_file()]
    assert {path.parent.name for path in hidden} == {".nv-meta"}


FORKED = """
import os
from feedmill.errors import StorageError
from feedmill.storage import open_store
store = open_store("memory://x")
store.write_bytes("a", b"1")
assert store.read("a", 0, 1) == b"1"
if os.fork() == 0:
    try:
        store.read("a", 0, 1)
    except StorageError as error:
        os._exit(7 if error.kind == "wrong-process" else 1)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_forked_child_is_told_that_it_would_hang() -> None:
    done = warm.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=180)
    assert done.stdout == "7\n", done.stderr


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("nonsense://a/b", "bad-url"),
        ("simplecache::memory://x", "bad-url"),
        ("simplecache://x", "bad-url"),
        ("zip://a.zip", "bad-url"),
        ("reference://x", "bad-url"),
        ("memory://a::memory://b", "bad-url"),
        ("sftp://me:hunter2@host/x", "bad-url"),
    ],
)
def test_schemes_that_are_no_stores_are_refused(url: str, kind: str) -> None:
    found = refused(lambda: open_store(url))
    assert isinstance(found, ConfigError) and found.kind == kind and "hunter2" not in str(found)
    assert "hunter2" in url or ("hf" in str(found.fix) and "s3://" in str(found.fix))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingExtra, match=r"paramiko"):
        open_store("sftp://host/x")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "hf", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install huggingface_hub"):
        open_store("hf://datasets/org/set")
    monkeypatch.setitem(sys.modules, "fsspec.registry", None)
    with pytest.raises(MissingExtra, match=r"pip install 'feedmill\[fsspec\]'"):
        open_store("hf://datasets/org/set")


def test_options_of_a_recipe_reach_the_hub(hub: HubServer) -> None:
    hub.commit({"a.txt": b"other"})
    given = {"hf://datasets/org": {"endpoint": hub.endpoint, "revision": "a" * 40}}
    with storage_options(given):
        assert open_store("hf://datasets/org/set").read("a.txt") == b"hello"
    with pytest.raises(ConfigError, match="not supported for hf"):
        FilesystemStore("hf://datasets/org/set", client_options={"timeout": "1s"})


@pytest.mark.parametrize("url", ["hf://datasets", "hf://datasets/only-one-name"])
def test_a_url_of_the_hub_without_a_repository_is_an_error_that_shows_the_form(url: str) -> None:
    with pytest.raises(StorageError, match="hf://datasets/ORG/NAME") as caught:
        fm.open(url)
    assert caught.value.kind == "bad-url"
