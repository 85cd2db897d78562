"""Google's and Azure's stores, as S3 in `test_remote.py` and `test_object_locks.py`: a stand-in, and an emulator."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage import open_store
from feedmill.storage.remote import locks
from feedmill.storage.remote.locks import ObjectLock, lock_path
from feedmill.storage.remote.object_store import RemoteStore
from feedmill.storage.remote.options import storage_options
from helpers.gcs_server import gcs_server

QUICK = {"retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=2)}}


@pytest.fixture(params=["gcs_bucket", "azure_container"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    return str(request.getfixturevalue(request.param))


def refused(ask) -> FeedmillError:
    with pytest.raises(FeedmillError) as caught:
        ask()
    assert caught.value.fix
    return caught.value


def test_of_two_writers_one_wins(bucket: str) -> None:
    store = RemoteStore(bucket)
    assert store.put_new("lock", b"1") and not store.put_new("lock", b"2")
    seen = store.examine("lock")
    assert seen.data == b"1" and seen.modified is not None
    after = store.put_over("lock", b"3", seen)
    assert after is not None and store.put_over("lock", b"4", seen) is None and store.read("lock") == b"3"
    assert store.put_over("lock", b"5", after) is not None


def test_a_second_machine_is_refused(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"{bucket}/d")
    with ObjectLock(store), monkeypatch.context() as patch:
        patch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "other"))
        patch.setattr(locks, "_held", {})
        assert refused(lambda: ObjectLock(open_store(store.url))).kind == "busy"
    assert not store.exists(lock_path())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_is_prepared_and_loaded_as_from_a_disk(bucket: str, tmp_path: Path, workers: int) -> None:
    order = random.Random(0)
    samples = [{"__key__": f"k{i:04}", "bin": order.randbytes(2000), "txt": f"{i}"} for i in range(300)]
    for place in (str(tmp_path / "d"), f"{bucket}/d"):
        fm.write(place, samples, max_shard_samples=100, progress=False)
    found = []
    for place in (str(tmp_path / "d"), f"{bucket}/d"):
        plan = fm.Recipe.parse({"source": place, "epochs": 1, "seed": 3}).plan()
        loader = fm.Loader(plan, 16, workers=workers)
        found.append([(batch["txt"], [bytes(data) for data in batch["bin"]]) for batch in loader])
        loader.close()
    assert found[0] == found[1] and sum(len(texts) for texts, _ in found[0]) == 300


def test_what_is_missing_is_named(bucket: str) -> None:
    other = RemoteStore(bucket + "-missing")
    for ask in (lambda: list(other.files()), lambda: other.read("x"), lambda: other.write_bytes("x", b"1")):
        error = refused(ask)
        assert error.kind == "no-bucket" and str(error.file).startswith(other.url)
    store = RemoteStore(bucket)
    assert isinstance(refused(lambda: store.read("x")), NotFound)
    assert refused(lambda: store.read("x")).file == f"{bucket}/x"


def test_a_wrong_key_of_azure_is_an_error_that_names_it(azure_container: str) -> None:
    store = RemoteStore(azure_container, account_name="devstoreaccount1", account_key="AAAA", **QUICK)
    error = refused(lambda: store.read("x"))
    assert error.kind == "bad-credentials" and "key of the account" in str(error.fix)


@pytest.mark.parametrize(
    ("token", "sent", "kind", "words"),
    [("right", "wrong", "bad-credentials", "key file"), ("right", None, "no-credentials", "GOOGLE_APPLICATION_CREDEN")],
)
def test_a_wrong_token_of_google_is_an_error_that_names_it(
    token: str, sent: str | None, kind: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # without credentials of the user
    with gcs_server() as server:
        server.buckets["bkt"] = {}
        server.token = token
        options = {"bearer_token": sent} if sent else {}
        store = RemoteStore("gs://bkt", endpoint=server.endpoint, **options, **QUICK)
        error = refused(lambda: store.read("x"))
        assert error.kind == kind and words in str(error.fix) and "AWS" not in str(error)


@pytest.mark.parametrize(("answer", "kind"), [((403, "AccessDenied"), "eacces"), ((404, "NoSuchBucket"), "no-bucket")])
def test_a_refusal_of_google_has_its_message(answer: tuple[int, str], kind: str) -> None:
    with gcs_server() as server:
        server.buckets["bkt"] = {}
        server.answers = [answer] * 4
        store = RemoteStore("gs://bkt", endpoint=server.endpoint, bearer_token="t")
        assert refused(lambda: store.read("x")).kind == kind


def test_faults_that_pass_are_tried_again() -> None:
    with gcs_server() as server:
        server.buckets["bkt"] = {}
        store = RemoteStore("gs://bkt", endpoint=server.endpoint, bearer_token="t")
        store.write_bytes("a", b"12345")
        server.answers = [(503, "ServiceUnavailable"), (500, "InternalError"), (429, "SlowDown")]
        assert store.read("a", 1, 3) == b"234" and not server.answers


def test_options_of_a_recipe_name_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "t")
    with gcs_server() as server:
        server.buckets["bkt"] = {}
        with storage_options({"gs://bkt": {"endpoint": server.endpoint}}):
            open_store("gs://bkt/d").write_bytes("a", b"1")
        assert list(server.buckets["bkt"]) == ["d/a"]
        storage = {"gs://bkt": {"endpoint": server.endpoint}}
        fm.Recipe.parse({"source": "gs://bkt/d", "epochs": 1, "storage": storage})


def test_a_dead_server_is_named_with_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for url, name, key in (
        ("gs://bkt", "GOOGLE_BASE_URL", "GOOGLE_BEARER_TOKEN"),
        ("az://bkt", "AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_TOKEN"),
    ):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(key, "t")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "a")
        error = refused(lambda url=url: RemoteStore(url, **QUICK).read("x"))
        assert isinstance(error, StorageError) and error.kind == "no-connection" and name in str(error.fix)
