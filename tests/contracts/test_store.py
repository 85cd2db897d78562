"""What every store promises, run over the local disk, servers of buckets, and file systems of fsspec."""

from __future__ import annotations

import json
import os
import pickle
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError, DataError, NotFound, StorageError
from feedmill.storage import Store, open_store
from helpers.durations import examples


@pytest.fixture(params=["local", "s3", "gcs", "azure", "fsspec-memory", "fsspec-renaming", "msc"])
def store(request, tmp_path, monkeypatch) -> Store:
    if request.param == "local":
        (tmp_path / "data").mkdir()
        return open_store(tmp_path / "data")
    if request.param == "fsspec-memory":  # is asked by object, and cannot rename
        return open_store(f"memory://{tmp_path.name}-{uuid.uuid4().hex}/data")
    if request.param == "fsspec-renaming":
        return open_store(f"local://{tmp_path}/data")
    if request.param == "msc":
        bucket = request.getfixturevalue("s3_bucket").removeprefix("s3://")
        provider = {"type": "s3", "options": {"base_path": bucket, "endpoint_url": os.environ["AWS_ENDPOINT_URL"]}}
        (tmp_path / "msc.json").write_text(json.dumps({"profiles": {"lab": {"storage_provider": provider}}}))
        monkeypatch.setenv("MSC_CONFIG", str(tmp_path / "msc.json"))
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        return open_store("msc://lab/data")
    fixture = {"s3": "s3_bucket", "gcs": "gcs_bucket", "azure": "azure_container"}[request.param]
    return open_store(request.getfixturevalue(fixture) + "/data")


def names(store: Store, *args, **kwargs) -> list[str]:
    return [entry.path for entry in store.files(*args, **kwargs)]


def test_written_bytes_come_back_whole_and_in_part(store):
    store.write_bytes("a/b.bin", bytes(range(256)))
    assert store.read("a/b.bin") == bytes(range(256))
    assert store.read("a/b.bin", 250) == bytes(range(250, 256))
    assert store.read("a/b.bin", 256) == b"" == store.read("a/b.bin", 1000)
    assert store.read("a/b.bin", 10, 5) == bytes(range(10, 15))
    assert store.read("a/b.bin", 10, 0) == b""


def test_a_name_is_taken_once(store):
    """Of all that write it at once, one succeeds; the others change nothing, and leave nothing behind."""
    if store.url.startswith(("memory://", "local://")):
        with pytest.raises(StorageError) as error:
            store.put_new("log/0", b"x")
        assert error.value.kind == "unsupported"
        return
    with ThreadPoolExecutor(4) as threads:
        written = [*threads.map(lambda number: store.put_new("log/0", b"%d" % number), range(8))]
    assert written.count(True) == 1
    assert store.read("log/0") == b"%d" % written.index(True)
    assert not store.put_new("log/0", b"later")
    assert store.put_new("log/1", b"next")
    assert names(store) == ["log/0", "log/1"]
    if store.is_local:
        assert len(os.listdir(store.locate("log"))) == 2


def test_an_empty_file_is_a_file(store):
    store.write_bytes("empty", b"")
    assert store.read("empty") == b""
    assert store.stat("empty").size == 0
    assert store.exists("empty")
    assert names(store) == ["empty"]


def test_files_are_sorted_by_path_and_chosen_by_suffix(store):
    for name in ["b.tar", "a/2.tar", "a/1.tar", "a-b.tar", "a/notes.txt", "Z.tar", "ü.tar", "sp ace#%20?.tar"]:
        store.write_bytes(name, name.encode())
    everything = names(store)
    assert everything == sorted(everything) and len(everything) == 8
    assert names(store, suffixes=[".tar"]) == [name for name in everything if name.endswith(".tar")]
    assert names(store, "a") == names(store, "a/") == ["a/1.tar", "a/2.tar", "a/notes.txt"]
    assert all(store.read(name) == name.encode() for name in everything)
    assert [entry.size for entry in store.files("a", suffixes=(".txt",))] == [len("a/notes.txt")]


def test_folders_and_times(store):
    store.write_bytes("a/.b/c.bin", b"12")
    assert store.is_folder() and store.is_folder("a") and store.is_folder("a/.b/") and not store.is_folder("b")
    assert not store.is_folder("a/.b/c.bin") and names(store) == [] and names(store, hidden=True) == ["a/.b/c.bin"]
    assert 1.6e9 < store.modified("a/.b/c.bin") < time.time() + 300
    with pytest.raises(NotFound):
        store.modified("none")


def test_dot_folders_are_listed_only_when_named(store):
    store.write_bytes(".nv-meta/index.uuid", b"1")
    store.write_bytes("a/.hidden/x", b"1")
    store.write_bytes("a/.dotfile", b"1")
    assert names(store) == ["a/.dotfile"]
    assert names(store, ".nv-meta") == [".nv-meta/index.uuid"]


def test_dot_files_are_no_data(store):
    """Before, what a killed program had left beside the files of a dataset was read as a part of it."""
    for name in ("0.parquet", ".tmp-0.parquet", "a/._0.parquet", "a/1.parquet", ".settings.yaml"):
        store.write_bytes(name, b"1")
    assert names(store, suffixes=[".parquet"]) == ["0.parquet", "a/1.parquet"]
    assert names(store, suffixes=[".parquet"], hidden=True) == [
        ".tmp-0.parquet",
        "0.parquet",
        "a/._0.parquet",
        "a/1.parquet",
    ]
    assert names(store, suffixes=[".settings.yaml"]) == [".settings.yaml"] and len(names(store)) == 5


def test_a_missing_folder_is_said_to_be_missing(store):
    store.write_bytes("a/b.txt", b"1")
    for missing in ["nowhere", "a/b.txt", "a/b"]:
        with pytest.raises(NotFound):
            names(store, missing)
    with pytest.raises(NotFound, match="no such folder"):
        names(open_store(store.url + "-missing"))


def test_a_missing_file_is_said_to_be_missing(store):
    for ask in [store.stat, store.read, lambda p: store.read(p, 1, 2), lambda p: store.read_ranges(p, [], [])]:
        with pytest.raises(NotFound) as caught:
            ask("no/such.file")
        assert caught.value.file == f"{store.url}/no/such.file" and caught.value.fix
    with pytest.raises(NotFound), store.local_copy("no/such.file"):
        pass
    assert not store.exists("no/such.file")


def test_the_version_changes_with_the_content(store):
    store.write_bytes("a.txt", b"one")
    first = store.stat("a.txt")
    assert first == store.stat("a.txt") == next(store.files())
    store.write_bytes("a.txt", b"four")
    assert store.stat("a.txt").version != first.version


def test_a_rewritten_file_is_read_anew(store):
    other = open_store(store.url)
    store.write_bytes("a.bin", b"old old")
    assert store.read("a.bin", 0, 3) == other.read("a.bin", 0, 3) == b"old"
    other.write_bytes("a.bin", b"new")
    assert store.read("a.bin", 0, 3) == b"new"
    store.delete("a.bin")
    with pytest.raises(NotFound):
        other.read("a.bin", 0, 3)


@pytest.mark.parametrize(
    ("offset", "length", "found"), [(3, 5, 2), (5, 1, 0), (20, 4, 0), (0, 1 << 40, 5), (2, 1 << 61, 3)]
)
def test_a_range_behind_the_end_is_an_error_that_says_how_much_was_there(store, offset, length, found):
    store.write_bytes("five", b"01234")
    for ask in [
        lambda: store.read("five", offset, length),
        lambda: store.read_ranges("five", [0, offset], [1, length]),
    ]:
        with pytest.raises(DataError, match=f"expected {length} bytes here, found {found}") as caught:
            ask()
        assert caught.value.kind == "truncated" and caught.value.offset == offset
        assert caught.value.file == f"{store.url}/five"


@pytest.mark.parametrize(("offset", "length"), [(-1, 2), (2, -1), (-5, -5)])
def test_a_negative_range_is_an_error(store, offset, length):
    store.write_bytes("five", b"01234")
    with pytest.raises(DataError) as caught:
        store.read("five", offset, length)
    assert caught.value.kind == "bad-data"


@given(ranges=st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)).map(sorted), max_size=12))
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ranges_equal_slices(store, ranges):
    data = bytes(i * 37 % 251 for i in range(1000))
    if not store.exists("data.bin"):
        store.write_bytes("data.bin", data)
    offsets, lengths = [a for a, _ in ranges], [b - a for a, b in ranges]
    assert store.read_ranges("data.bin", offsets, lengths) == [data[a:b] for a, b in ranges]


def test_ranges_far_apart_and_large(store):
    data = bytes(range(256)) * (40 << 12)  # 40 MiB: more than one request grows to
    store.write_bytes("large.bin", data)
    size = len(data)
    offsets, lengths = [size - 10, 0, 5 << 20, 0, 7], [10, 30 << 20, 20 << 20, 1, 0]
    found = store.read_ranges("large.bin", offsets, lengths)
    assert found == [data[o : o + n] for o, n in zip(offsets, lengths, strict=True)]
    assert store.read("large.bin") == data


def test_ranges_of_several_files_are_those_of_each(store):
    data = {name: bytes((n + i) % 251 for i in range(5000)) for n, name in enumerate(["a", "b/c", "empty"])}
    data["empty"] = b""
    for name, content in data.items():
        store.write_bytes(name, content)
    asked = [("a", [0, 4000, 10], [5, 1000, 0]), ("b/c", [100], [4900]), ("empty", [], []), ("a", [4999], [1])]
    found = store.read_many(asked)
    assert found == [[data[name][o : o + n] for o, n in zip(*rest, strict=True)] for name, *rest in asked]
    assert store.read_many([]) == []
    for bad, error in ((("b/c", [4000], [2000]), DataError), (("none", [0], [1]), NotFound)):
        with pytest.raises(error) as caught:
            store.read_many([("a", [0], [1]), bad])
        assert caught.value.file == store.locate(bad[0])


def test_nothing_appears_when_the_block_raises(store):
    store.write_bytes("kept.txt", b"old")
    for path in ["kept.txt", "new.txt"]:
        with pytest.raises(ZeroDivisionError), store.write(path) as f:
            f.write(b"half")
            f.flush()
            assert 1 / 0
    assert store.read("kept.txt") == b"old"
    assert names(store) == ["kept.txt"]


def test_a_file_being_written_is_not_listed(store):
    store.write_bytes("a", b"1")
    with store.write("b") as f:
        f.write(b"half")
        f.flush()
        assert names(store) == ["a"] and not store.exists("b")
    assert names(store) == ["a", "b"]


def test_the_callers_own_failure_keeps_its_name(store, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"mine\.txt"), store.write("x"):
        (tmp_path / "mine.txt").read_bytes()
    with pytest.raises(TimeoutError, match="mine too"), store.write("x"):
        raise TimeoutError("mine too")
    assert not store.exists("x")


def test_delete_is_quiet_about_what_is_absent(store):
    store.write_bytes("a.txt", b"1")
    store.delete("a.txt")
    store.delete("a.txt")
    store.delete("no/such/file")
    assert not store.exists("a.txt")


def test_local_copy_is_a_path_with_the_bytes(store):
    store.write_bytes("a/b.sqlite", b"bytes")
    with store.local_copy("a/b.sqlite") as path:
        assert path.read_bytes() == b"bytes" and path.name == "b.sqlite"
    assert path.exists() == store.is_local
    assert store.is_local or not path.parent.exists()


@pytest.mark.parametrize(
    ("path", "kind"),
    [*((path, "unsafe-name") for path in ("../x", "a/../../x", "/etc/passwd", "a/..")), ("x\0y", "bad-url")],
)
def test_paths_that_leave_the_store_are_refused(store, path, kind):
    asks = [store.stat, store.read, store.delete, lambda p: store.read(p, 0, 1), lambda p: store.write_bytes(p, b"1")]
    for ask in [*asks, lambda p: names(store, p)]:
        with pytest.raises(ConfigError) as caught:
            ask(path)
        assert caught.value.kind == kind and "\0" not in str(caught.value)


@pytest.mark.parametrize("path", ["", "."])
def test_the_store_itself_is_not_a_file(store, path):
    store.write_bytes("a", b"1")
    for ask in [store.read, lambda p: store.read(p, 0, 1), lambda p: store.write_bytes(p, b"1"), store.delete]:
        with pytest.raises(StorageError):
            ask(path)
    assert names(store) == ["a"]


def test_a_store_pickles(store):
    store.write_bytes("a", b"1")
    again = pickle.loads(pickle.dumps(store))
    assert again.url == store.url and again.read("a") == b"1"
    assert again.is_local == store.is_local


def test_a_store_says_where_its_files_are(store):
    assert store.locate("a/b") == f"{store.url}/a/b"
    assert store.locate("") == store.url
    assert store.url in repr(store)
