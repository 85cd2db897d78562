"""``storage:`` of a recipe: options of object stores, also in worker processes, and never secrets."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import ConfigError, MissingExtra
from feedmill.storage import open_store
from feedmill.storage.remote.object_store import RemoteStore
from feedmill.storage.remote.options import options_for, storage_options


@pytest.fixture
def dataset(s3_bucket: str) -> str:
    fm.write(f"{s3_bucket}/d", [{"__key__": f"k{i}", "txt": f"{i}"} for i in range(20)], progress=False)
    return f"{s3_bucket}/d"


@pytest.fixture
def elsewhere(dataset: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The endpoint of the server, which the environment does not name any more."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    return endpoint


def texts(loader: fm.Loader) -> list[object]:
    return [value for batch in loader for value in batch["txt"]]


@pytest.mark.parametrize("workers", [0, fm.Workers(2, processes=True)])
def test_options_reach_the_stores_of_a_recipe_and_no_others(dataset, elsewhere, workers, tmp_path):
    storage = {dataset: {"endpoint": elsewhere, "retry_timeout": 5}}
    recipe = fm.Recipe.parse({"source": dataset, "shuffle": "none", "epochs": 1, "storage": storage})
    plan = recipe.plan()
    assert texts(fm.Loader(plan, 5, workers=workers)) == [str(i) for i in range(20)]
    assert not options_for(dataset)
    assert recipe.fingerprint == fm.Recipe.parse({"source": dataset, "shuffle": "none", "epochs": 1}).fingerprint
    (tmp_path / "inner.yaml").write_text(
        f"source: {dataset}\nepochs: 1\nstorage: {{'{dataset}': {{endpoint: '{elsewhere}'}}}}\n"
    )
    nested = fm.Recipe.parse({"concat": [{"recipe": "inner.yaml"}], "epochs": 1}, base=tmp_path)
    assert len(nested.plan()) == 20


def test_options_of_a_repository_of_the_hub_hold_for_its_revisions() -> None:
    with storage_options({"hf://datasets/org/name": {"token": "x"}, "s3://b/name": {"region": "one"}}):
        assert options_for("hf://datasets/org/name@main/a.parquet") == {"token": "x"}
        assert options_for("hf://datasets/org/names/a.parquet") == {}
        assert options_for("s3://b/name@main") == {}


def test_the_longest_beginning_of_a_url_decides():
    with storage_options({"s3://b": {"region": "one"}, "s3://b/deep/": {"region": "two"}}):
        assert options_for("s3://b/x") == options_for("s3://b/") == {"region": "one"}
        assert options_for("s3://b/deep") == options_for("s3://b/deep/er") == {"region": "two"}
        assert options_for("s3://b/deeper") == {"region": "one"} and options_for("s3://bucket") == {}
        with storage_options({"s3://c": {"region": "three"}}):
            assert options_for("s3://c") == {"region": "three"} and options_for("s3://b") == {"region": "one"}
        store = open_store("s3://b/deep")
        assert isinstance(store, RemoteStore) and store.options == {"region": "two"}
    assert store.below("er").options == {"region": "two"} and options_for("s3://b") == {}


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        ({"s3://b": {"secret_access_key": "x"}}, "'secret_access_key' is a secret"),
        ({"s3://b": {"access_key_id": "x"}}, "'access_key_id' is a secret"),
        ({"s3://b": {"token": "x"}}, "'token' is a secret"),
        ({"s3://b": {"endpoint": "http://me:word@host"}}, "endpoint"),
        ({"s3://b": {"endpoint": "host:9000"}}, "endpoint"),
        ({"s3://b": {"regoin": "x"}}, "unknown key 'regoin' .did you mean 'region'"),
        ({"s3://b": {"timeout": 0}}, "timeout"),
        ({"b": {"region": "x"}}, "not the URL of a bucket"),
        ({"https://me:word@host/x": {}}, "not the URL of a bucket"),
        ({"sftp://host/x": {}}, "not the URL of a bucket"),
        ({"https://host": {"region": "x"}}, "https:// has no option 'region'"),
        ({"gs://b": {"region": "x"}}, "gs:// has no option 'region'"),
        ({"s3://b": {"revision": "main"}}, "s3:// has no option 'revision'"),
        (
            {"hf://datasets/a/b": {"region": "x"}},
            "hf:// has no option 'region', only endpoint, retry_timeout, revision",
        ),
        ({"hf://datasets/a/b": {"token": "x"}}, "'token' is a secret"),
        ({"msc://lab": {"endpoint": "http://host"}}, "msc:// has no option 'endpoint'"),
    ],
)
def test_what_is_refused(storage, words):
    with pytest.raises(ConfigError, match=words):
        fm.Recipe.parse({"source": "s3://b/d", "storage": storage})


PROGRAM = """
import datetime, json, pathlib, sys
log = pathlib.Path(sys.argv[1]); log.write_text(log.read_text() + "x" if log.exists() else "x")
soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
print(json.dumps({"Version": 1, "AccessKeyId": "test", "SecretAccessKey": "test", "Expiration": soon.isoformat()}))
"""


@pytest.fixture
def profile(dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile whose keys a program gives; the file that counts how often it ran."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = f"{sys.executable} {tmp_path}/program.py {tmp_path}/log"
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    config = f"[profile lab]\ncredential_process = {command}\nregion = us-east-1\nendpoint_url = {endpoint}\n"
    (tmp_path / "config").write_text(config)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    return tmp_path / "log"


def test_a_profile_whose_keys_a_program_gives(dataset, profile, monkeypatch):
    recipe = fm.Recipe.parse({"source": dataset, "epochs": 1, "storage": {dataset: {"profile": "lab"}}})
    assert len(texts(fm.Loader(recipe.plan(), 5))) == 20 and profile.exists()
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert len(fm.open(dataset)) == 20


def test_a_profile_that_is_absent_or_needs_boto3_is_named(dataset, profile, monkeypatch):
    with pytest.raises(ConfigError, match="no profile 'other'"):
        RemoteStore(dataset, profile="other")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtra, match="which needs boto3") as caught:
        RemoteStore(dataset, profile="lab")
    assert "feedmill[s3]" in str(caught.value)
