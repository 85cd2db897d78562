"""What only object stores and web servers can do: bad credentials, missing buckets, folder markers, forks."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import obstore
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError, NotFound, StorageError
from feedmill.storage import open_store
from feedmill.storage.remote.object_store import RemoteStore
from helpers.range_server import range_server

QUICK = {"retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=2)}}


def refused(ask) -> StorageError:
    with pytest.raises(StorageError) as caught:
        ask()
    assert caught.value.fix
    return caught.value


def test_a_missing_bucket_is_named(s3_bucket):
    store = RemoteStore(s3_bucket + "-missing")
    for ask in [lambda: list(store.files()), lambda: store.read("x"), lambda: store.write_bytes("x", b"1")]:
        error = refused(ask)
        assert error.kind == "no-bucket" and error.file is not None and error.file.startswith(store.url)


def test_a_dead_server_is_an_error_that_names_the_setting(s3_bucket):
    store = RemoteStore(s3_bucket, endpoint="http://127.0.0.1:9", **QUICK)
    error = refused(lambda: store.read("x"))
    assert error.kind == "no-connection" and "AWS_ENDPOINT_URL" in str(error)


def test_without_credentials_the_error_names_the_variables(s3_bucket, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    # the cloud machine's own credential service, which is asked next, is not there
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    error = refused(lambda: RemoteStore(s3_bucket, **QUICK).read("x"))
    assert error.kind == "no-credentials" and "AWS_ACCESS_KEY_ID" in str(error)


def test_keys_of_the_shared_credentials_file_are_used(s3_bucket, monkeypatch, tmp_path):
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"]:
        monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text("[lab]\naws_access_key_id = a\naws_secret_access_key = b%c\n")
    (tmp_path / "config").write_text(f"[profile lab]\nregion = us-east-1\nendpoint_url = {endpoint}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    store = RemoteStore(s3_bucket)
    store.write_bytes("a", b"1")
    assert store.read("a") == b"1"
    (tmp_path / "config").write_text("no section\n")
    with pytest.raises(ConfigError) as caught:
        RemoteStore(s3_bucket)
    assert caught.value.file == str(tmp_path / "config")


def test_an_unknown_option_is_named(s3_bucket):
    with pytest.raises(ConfigError, match="colour"):
        RemoteStore(s3_bucket, colour="red")


def test_options_travel_with_the_pickle_but_are_not_shown(s3_bucket):
    store = RemoteStore(s3_bucket, access_key_id="visible", secret_access_key="hidden")
    store.write_bytes("a", b"1")
    again = pickle.loads(pickle.dumps(store))
    assert again.read("a") == b"1" and again.options == store.options
    assert "hidden" not in repr(again)


def test_folder_markers_are_not_files(s3_bucket):
    client, bucket = boto3.client("s3"), s3_bucket.removeprefix("s3://")
    for key in ["data/a/", "data/a/b/", "data/a/b/x.tar", "data/a.tar"]:
        client.put_object(Bucket=bucket, Key=key, Body=b"" if key.endswith("/") else b"1")
    assert [entry.path for entry in RemoteStore(s3_bucket + "/data").files()] == ["a.tar", "a/b/x.tar"]


def test_a_prefix_is_taken_literally(s3_bucket):
    RemoteStore(s3_bucket).write_bytes("50%20 off?/x#1", b"1")
    assert RemoteStore(s3_bucket + "/50%20 off?").read("x#1") == b"1"


def test_a_key_that_cannot_be_a_path_is_an_error(s3_bucket):
    boto3.client("s3").put_object(Bucket=s3_bucket.removeprefix("s3://"), Key="a//b", Body=b"1")
    RemoteStore(s3_bucket).write_bytes("ok/c", b"1")
    error = refused(lambda: list(RemoteStore(s3_bucket).files()))
    assert error.kind == "bad-name" and "'a//b' has an empty part" in str(error)
    assert [entry.path for entry in RemoteStore(s3_bucket + "/ok").files()] == ["c"]


def test_a_full_temporary_folder_is_an_error_and_nothing_is_sent(s3_bucket, monkeypatch):
    store = RemoteStore(s3_bucket)
    store.write_bytes("a", b"old")

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    def build() -> None:
        with store.build("a") as file:
            file.write_bytes(b"new")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    error = refused(build)
    assert error.kind == "enospc" and "TMPDIR" in str(error)
    assert store.read("a") == b"old"


def test_a_forked_child_is_refused_instead_of_hanging(s3_bucket):
    store = RemoteStore(s3_bucket)
    store.write_bytes("a", b"1")
    child = os.fork()
    if child == 0:
        kind = ""
        try:
            store.read("a")
        except StorageError as error:
            kind = error.kind
        finally:
            os._exit(0 if kind == "wrong-process" else 1)
    for _ in range(2400):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child hung")
    assert os.waitstatus_to_exitcode(status) == 0
    assert store.read("a") == b"1"


class Handler(SimpleHTTPRequestHandler):
    """Python's own file server, which knows no ranges, with ranges."""

    def send_head(self):
        wanted = self.headers.get("Range", "")
        if not wanted or self.path.endswith("plain.txt"):
            return super().send_head()
        with open(self.translate_path(self.path), "rb") as f:
            data = f.read()
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        if int(first) >= len(data):
            self.send_error(416)
            return None
        end = min(int(last) + 1 if last else len(data), len(data))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - int(first)))
        self.send_header("Last-Modified", self.date_time_string(0))
        self.end_headers()
        self.wfile.write(data[int(first) : end])
        return None

    def log_message(self, *args):
        pass


@pytest.fixture
def web(tmp_path) -> Iterator[str]:
    (tmp_path / "a b.txt").write_bytes(b"0123456789")
    (tmp_path / "plain.txt").write_bytes(b"0123456789")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, args=(0.005,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_web_server_is_read_by_name(web):
    store = open_store(web)
    assert store.read("a b.txt") == b"0123456789"
    assert store.read("a b.txt", 8) == b"89" and store.read("a b.txt", 10) == b""
    assert store.read_ranges("a b.txt", [7, 0], [2, 3]) == [b"78", b"012"]
    assert store.stat("a b.txt").size == 10 and store.stat("a b.txt").version
    assert not store.exists("c.txt")
    with store.local_copy("a b.txt") as path:
        assert path.read_bytes() == b"0123456789"
    with pytest.raises(DataError, match="found 1"):
        store.read("a b.txt", 9, 5)
    with pytest.raises(NotFound):
        store.read("c.txt")


def test_what_a_web_server_cannot_do_is_said(web):
    store = RemoteStore(web, **QUICK)
    for ask in [lambda: list(store.files()), lambda: store.write_bytes("x", b"1"), lambda: store.delete("a b.txt")]:
        assert refused(ask).kind == "unsupported"
    assert refused(lambda: store.read("plain.txt", 1, 2)).kind == "unsupported"


def test_a_user_without_a_home_can_use_object_stores(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: (_ for _ in ()).throw(KeyError("no such user")))
    assert open_store("s3://bucket/x").url == "s3://bucket/x"


class Troubled(Handler):
    """Gives the next answers with an error, or says nothing, or lets the rest of the bytes drip."""

    errors = 0
    silent = threading.Event()
    tries = 0

    def do_GET(self) -> None:
        type(self).tries += 1
        if type(self).errors > 0:
            type(self).errors -= 1
            self.send_error(503)
        elif type(self).silent.is_set():
            while type(self).silent.is_set():
                time.sleep(0.01)
        else:
            super().do_GET()


@pytest.fixture
def troubled(tmp_path) -> Iterator[str]:
    (tmp_path / "a.txt").write_bytes(b"0123456789")
    Troubled.errors = Troubled.tries = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Troubled, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, args=(0.005,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Troubled.silent.clear()
    server.shutdown()
    thread.join()
    server.server_close()


SOON = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2}
"""So that many tries take no time: what ends them is their number or the whole time, as without it."""


def test_a_server_that_has_answered_is_waited_for_however_many_tries_it_takes(troubled):
    store = RemoteStore(troubled, retry_config={"backoff": SOON})
    assert store.read("a.txt", 0, 4) == b"0123"
    Troubled.errors = 60
    assert store.read("a.txt", 0, 4) == b"0123" and Troubled.errors == 0
    other = RemoteStore(troubled, retry_config={"backoff": SOON})  # it is the server that is known
    Troubled.errors = 60
    assert other.read_ranges("a.txt", [4], [2]) == [b"45"]


def test_a_server_that_never_answered_is_given_up_soon(troubled):
    Troubled.errors = 60
    with pytest.raises(StorageError):
        RemoteStore(troubled, retry_config={"backoff": SOON}).read("a.txt", 0, 4)
    assert Troubled.tries == 11


def test_the_time_ends_the_tries(troubled):
    """How many there are depends on the machine; that their number does not end them is shown above."""
    store = RemoteStore(troubled, retry_config={"backoff": SOON, "retry_timeout": timedelta(milliseconds=200)})
    assert store.read("a.txt", 0, 4) == b"0123"
    Troubled.errors = 1 << 40
    with pytest.raises(StorageError):
        store.read("a.txt", 0, 4)


def test_the_times_are_those_of_the_docs():
    from feedmill.storage.remote import options

    page = " ".join((Path(__file__).parents[2] / "docs/internals/storage.md").read_text().split())
    assert options._PATIENCE["retry_timeout"] == timedelta(minutes=3) and "for three minutes" in page
    assert options._CLIENT == {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "6h"}
    assert "gives no byte for a minute" in page and "six hours" in page
    ranges = {"connect_timeout": "5s", "read_timeout": "10s", "timeout": "10m", "http1_only": True}
    assert ranges == options._READING
    assert "connecting | 5 s | 10 s" in page and "arrives | 10 s |" in page and "request | 10 min |" in page
    assert options.BRISK == 15 and "a quarter of that | 15 s |" in page
    assert options._HASTE["max_retries"] == 10 and "tried ten times" in page


def test_a_silent_server_is_given_up(troubled):
    quick = {"retry_config": {"max_retries": 1, "backoff": SOON}, "client_options": {"read_timeout": "100ms"}}
    store = RemoteStore(troubled, **quick)
    Troubled.silent.set()
    assert refused(lambda: store.read("a.txt", 0, 4)).kind == "timeout"
    assert Troubled.tries == 2


def test_small_files_are_read_at_once_before_they_are_looked_at():
    with range_server() as server:
        server.objects = {"d/a": b"some bytes", "d/b": b"", "d/large": bytes(300_000)}
        store = RemoteStore("s3://bkt/d", **server.options)
        server.expect(3)
        store.preload(["a", "b", "large", *(f"absent-{number}" for number in range(12))])
        assert server.peak >= 3
        requests = len(server.asked)
        assert store.exists("a") and store.stat("a").size == 10 and store.read("a") == b"some bytes"
        assert store.stat("a") == RemoteStore("s3://bkt/d", **server.options).stat("a")
        assert not any(store.exists(f"absent-{number}") for number in range(12)) and store.stat("large").size == 300_000
        with pytest.raises(NotFound, match="no such file"):
            store.read("absent-1")
        assert len(server.asked) == requests
        assert store.read("b") == b"" and store.read("large") == bytes(300_000) and store.read("a", 5) == b"bytes"
        server.objects["d/a"] = b"other"
        assert store.read("a") == b"some bytes"
        store.preload(())
        assert store.read("a") == b"other"


def test_what_could_not_be_read_before_is_requested_when_it_is_looked_at():
    with range_server() as server:
        server.objects = {"a": b"some bytes"}
        server.fault = lambda number, begin, end: "503" if not number else None
        store = RemoteStore("s3://bkt", **server.options)
        store.preload(["a"])
        assert len(server.asked) == 1 and store.read("a") == b"some bytes" and len(server.asked) == 2


def test_a_recipe_that_opens_a_dataset_twice_for_its_split_requests_its_files_once(tmp_path, monkeypatch):
    samples = [{"__key__": f"k{i}", "txt": f"{i}"} for i in range(40)]
    fm.write(str(tmp_path / "d"), samples, max_shard_samples=10, progress=False)
    fm.prepare(str(tmp_path / "d"), split_ratio=[3, 1, 0], progress=False)
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    with range_server() as server:
        for path in tmp_path.rglob("d/**/*"):
            if path.is_file():
                server.objects[str(path.relative_to(tmp_path))] = path.read_bytes()
        recipe = {"source": "s3://bkt/d", "epochs": 1, "storage": {"s3://bkt": server.options}}
        plan = fm.Recipe.parse(recipe).plan()
        assert plan.sources[0].split == "train" and len(server.asked) == len(set(server.keys)) >= 4
        server.objects["d/.nv-meta/.info.json"] = b"{}"
        assert RemoteStore("s3://bkt/d", **server.options).read(".nv-meta/.info.json") == b"{}"


def test_what_is_written_is_not_answered_from_before(s3_bucket):
    store = open_store(s3_bucket)
    store.preload(["a"])
    store.write_bytes("a", b"new")
    assert store.read("a") == b"new" and store.exists("a")
    store.preload(["a"])
    store.delete("a")
    assert not store.exists("a")


def test_a_prepared_dataset_is_opened_in_few_round_trips(tmp_path, monkeypatch):
    fm.write(str(tmp_path / "d"), [{"__key__": f"k{i}", "txt": f"{i}"} for i in range(20)], progress=False)
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    with range_server() as server:
        server.objects = {
            str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("d/**/*") if path.is_file()
        }
        for name, value in server.options.items():
            monkeypatch.setenv(f"AWS_{name.upper()}", str(value).lower())
        server.expect(5)
        rounds = []
        with monkeypatch.context() as patch:
            patch.setattr(obstore, "head", lambda *_: rounds.append("a request of its own"))
            dataset = fm.open("s3://bkt/d")
        assert not rounds and server.peak >= len(server.asked) == 5
        assert [sample["txt"] for sample in dataset.read(range(20))] == [str(i) for i in range(20)]
