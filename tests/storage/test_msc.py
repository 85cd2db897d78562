"""Profiles of the Multi-Storage Client: where their bytes lie, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.storage import LocalStore, open_store
from feedmill.storage.remote import msc
from feedmill.storage.remote.filesystem import FilesystemStore
from feedmill.storage.remote.msc import resolve
from feedmill.storage.remote.object_store import RemoteStore


@pytest.fixture(autouse=True)
def _no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MSC_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "xdg"))


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def configure(profiles: dict[str, Any] | None = None, **more: Any) -> None:
        path = tmp_path / "msc.json"
        path.write_text(json.dumps({"profiles": profiles or {}, **more}))
        monkeypatch.setenv("MSC_CONFIG", str(path))

    return configure


def profile(kind: str, credentials: Any = None, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"storage_provider": {"type": kind, "options": options}}
    return found if credentials is None else {**found, "credentials_provider": credentials}


S3_KEYS = {"type": "S3Credentials", "options": {"access_key": "${KEY}", "secret_key": "$SECRET"}}
AZURE = "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=a2V5PT0=;EndpointSuffix=core.windows.net"


@pytest.mark.parametrize(
    ("given", "url", "options"),
    [
        (profile("s3", base_path="bucket/pre"), "s3://bucket/pre/a/b", {}),
        (profile("s3", base_path=""), "s3://a/b", {}),
        (profile("s3", S3_KEYS, base_path="b"), "s3://b/a/b", {"access_key_id": "k", "secret_access_key": "s"}),
        (profile("s8k", base_path="b", endpoint_url="https://pdx"), "s3://b/a/b", {"endpoint": "https://pdx"}),
        (profile("gcs_s3", base_path="b", region_name="us"), "s3://b/a/b", {"region": "us"}),
        (profile("s3", base_path="b", profile_name="lab"), "s3://b/a/b", {"profile": "lab"}),
        (profile("s3", base_path="b", signature_version="UNSIGNED"), "s3://b/a/b", {"skip_signature": True}),
        (
            profile("s3", base_path="b", s3={"addressing_style": "virtual"}, connect_timeout=3, max_concurrency=9),
            "s3://b/a/b",
            {"virtual_hosted_style_request": True, "client_options": {"connect_timeout": "3s"}},
        ),
        (profile("gcs", base_path="b", project_id="p", skip_signature=True), "gs://b/a/b", {"skip_signature": True}),
        (
            profile("azure", {"type": "AzureCredentials", "options": {"connection": AZURE}}, base_path="box",
                    endpoint_url="https://acct.blob.core.windows.net"),
            "az://box/a/b",
            {"account_name": "acct", "account_key": "a2V5PT0=", "endpoint": "https://acct.blob.core.windows.net"},
        ),
        (
            profile("huggingface", {"type": "HuggingFaceCredentials", "options": {"access_token": "${KEY}"}},
                    repository_id="org/set", repo_type="dataset", repo_revision="v1", base_path="data"),
            "hf://datasets/org/set@v1/data/a/b",
            {"token": "k"},
        ),
        (profile("file", base_path="/data"), "/data/a/b", {}),
    ],
)  # fmt: skip
def test_a_profile_is_a_url_and_options(given, url, options, configured, tmp_path, monkeypatch):
    monkeypatch.setenv("KEY", "k")
    monkeypatch.setenv("SECRET", "s")
    configured({"lab": given, "other": profile("s3", base_path="${NOT_SET}")})
    assert resolve("msc://lab/a/b") == (url, options)
    (tmp_path / "aws").write_text("[profile lab]\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    store = open_store("msc://lab/a/b")
    kinds = {"h": FilesystemStore, "/": LocalStore}
    assert type(store) is kinds.get(url[0], RemoteStore)
    assert store.url == (url if url[0] == "/" else "msc://lab/a/b") and "secret" not in repr(store)


def test_service_accounts_and_files_of_keys(configured, tmp_path):
    info = {"client_email": "a@b", "private_key": "x"}
    google = "GoogleServiceAccountCredentialsProvider"
    keys = tmp_path / "keys.json"
    keys.write_text('{"Version": 1, "AccessKeyId": "k1", "SecretAccessKey": "s1", "SessionToken": "t1"}')
    by_file = {"type": "FileBasedCredentials", "options": {"credential_file_path": str(keys)}}
    configured(
        {
            "info": profile("gcs", {"type": google, "options": {"info": info}}, base_path="b"),
            "path": profile("gcs", {"type": google, "options": {"file": "/k.json"}}, base_path="b"),
            "keys": profile("s3", by_file, base_path="b"),
        }
    )
    assert json.loads(resolve("msc://info/x").options["service_account_key"]) == info
    assert resolve("msc://path/x").options == {"service_account": "/k.json"}
    store = RemoteStore("msc://keys/x")
    assert store.settings == {"access_key_id": "k1", "secret_access_key": "s1", "session_token": "t1"}
    assert b"s1" not in pickle.dumps(store)
    keys.write_text('{"Version": 1, "AccessKeyId": "k2", "SecretAccessKey": "s2"}')
    store.renew(store.connection)
    assert store.settings == {"access_key_id": "k2", "secret_access_key": "s2"}


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (profile("oci", base_path="b"), "unsupported", "the storage provider 'oci' is not supported"),
        (profile("ais", base_path="b"), "unsupported", "'ais'"),
        (profile("os.system", base_path="b"), "unsupported", r"'os\.system'"),
        (profile("s3", {"type": "my.module.Keys"}, base_path="b"), "unsupported", r"'my\.module\.Keys'"),
        ({"provider_bundle": {"type": "my.module.Bundle"}}, "unsupported", "'provider_bundle'"),
        ({**profile("s3", base_path="b"), "metadata_provider": {"type": "manifest"}}, "unsupported", "metadata"),
        (profile("s3", S3_KEYS, base_path="b"), "bad-profile", "the environment variable KEY is not set"),
        (profile("s3", {"type": "S3Credentials"}, base_path="b"), "bad-profile", "'access_key' is missing"),
        (profile("huggingface", repository_id="a/b", repo_type="x"), "bad-profile", "'repo_type' is 'x'"),
        ({"storage_provider": "s3"}, "bad-profile", "expected a mapping"),
        (None, "bad-profile", "there is no profile 'lab': the profiles are lab, other"),
    ],
)
def test_what_a_profile_cannot_have_is_named(given, kind, words, configured, monkeypatch, tmp_path):
    for name in ("KEY", "SECRET"):
        monkeypatch.delenv(name, raising=False)
    configured({"lab": given, "other": profile("s3", base_path="b")})
    with pytest.raises(ConfigError, match=words) as caught:
        open_store("msc://lab/a")
    assert caught.value.kind == kind and caught.value.file == str(tmp_path / "msc.json") and caught.value.fix


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profiles: [", "line 1"),
        ("profiles: [1]", "'profiles': expected a mapping"),
        ("- 1", "expected a mapping"),
        ("profiles: " + "[" * 2000, "cannot be read|nested"),
        ("profiles: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("profiles:\n  a: {secret_key: hunter2, [}\n", "line 2"),
    ],
)
def test_a_damaged_configuration_is_named(text, words, tmp_path, monkeypatch):
    path = tmp_path / "msc.yaml"
    path.write_text(text)
    monkeypatch.setenv("MSC_CONFIG", str(path))
    with pytest.raises(ConfigError, match=words) as caught:
        open_store("msc://lab/a")
    assert caught.value.file == str(path) and "hunter2" not in str(caught.value)


def test_without_a_configuration_the_error_says_where_to_write_one(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="MSC_CONFIG"):
        open_store("msc://lab/a")
    monkeypatch.setenv("MSC_CONFIG", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="cannot be read"):
        open_store("msc://lab/a")
    assert isinstance(open_store("msc://__filesystem__/data/x"), LocalStore)


def test_places_are_searched_in_the_order_of_the_client(tmp_path, monkeypatch):
    home = tmp_path / "home"
    places = [tmp_path / "xdg/msc/config.json", home / ".config/msc/config.yaml", home / ".msc_config.yaml"]
    for number, place in enumerate(places):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"profiles": {"lab": profile("s3", base_path=f"b{number}")}}))
        assert resolve("msc://lab/x").url == f"s3://b{number}/x"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    (tmp_path / "own/msc").mkdir(parents=True)
    (tmp_path / "own/msc/config.yaml").write_text(json.dumps({"profiles": {"lab": profile("s3", base_path="own")}}))
    assert resolve("msc://lab/x").url == "s3://own/x"


def test_included_files_add_profiles(configured, tmp_path):
    (tmp_path / "more.yaml").write_text(json.dumps({"profiles": {"more": profile("s3", base_path="m")}}))
    configured({"lab": profile("s3", base_path="b")}, include=["more.yaml"])
    assert resolve("msc://more/x").url == "s3://m/x" and resolve("msc://lab/x").url == "s3://b/x"
    (tmp_path / "more.yaml").write_text(json.dumps({"profiles": {"lab": profile("s3", base_path="other")}}))
    configured({"lab": profile("s3", base_path="b")}, include=["more.yaml"], cache={})
    with pytest.raises(ConfigError, match="'lab' differs"):
        resolve("msc://lab/x")


def test_urls_are_mapped_to_profiles(configured, caplog):
    options = {"endpoint_url": "https://near", "base_path": "copy"}
    mapping = {"s3://far/": "msc://near/", "s3://far/deep/": "msc://deep/"}
    deep = profile("s3", base_path="deeper")
    configured({"near": profile("s3", **options), "deep": deep}, path_mapping=mapping)
    msc._announced.clear()
    with caplog.at_level("INFO"):
        assert resolve("s3://far/a/b") == ("s3://copy/a/b", {"endpoint": "https://near"})
        assert resolve("s3://far/deep/a").url == "s3://deeper/a"
    assert caplog.text.count("URLs that begin with s3://far/") == 2
    assert resolve("s3://farther/a") == ("s3://farther/a", {}) and resolve("https://far/a").url == "https://far/a"
    store = open_store("s3://far/a")
    assert isinstance(store, RemoteStore) and store.url == "s3://far/a" and store.target == "s3://copy/a"


def test_a_metadataset_with_urls_of_profiles_is_read(s3_bucket, configured, tmp_path, monkeypatch):
    samples = [{"__key__": f"k{i}", "txt": f"{i}"} for i in range(20)]
    fm.write(f"{s3_bucket}/set", samples, progress=False)
    place = {"base_path": s3_bucket.removeprefix("s3://"), "endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    keys = {"type": "S3Credentials", "options": {"access_key": "test", "secret_key": "test"}}
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    configured({"lab": profile("s3", keys, **place)})
    (tmp_path / "mix.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    path: msc://lab/set\n"
    )
    recipe = fm.Recipe.load(tmp_path / "mix.yaml")
    plan = recipe.plan()
    assert len(plan.sources[0]) == 20 and plan.sources[0].store.url == "msc://lab/set"
    for workers in (0, fm.Workers(2, processes=True)):
        loader = fm.Loader(plan, 5, workers=workers)
        batch = next(iter(loader))
        assert len(batch["txt"]) == 5
    report = fm.write("msc://lab/written", samples, progress=False)
    assert report and [sample.raw("txt") for sample in fm.open("msc://lab/written").read_raw([3])] == [b"3"]
    found = [entry.path for entry in open_store("msc://lab").files()]
    assert not [path for path in found if "lock" in path]


def test_two_names_of_one_place_share_its_lock(s3_bucket, configured, tmp_path, monkeypatch):
    from feedmill.errors import StorageError
    from feedmill.storage.remote import locks
    from feedmill.storage.remote.locks import ObjectLock

    place = {"base_path": s3_bucket.removeprefix("s3://"), "endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    configured({"lab": profile("s3", **place)})
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    first = ObjectLock(open_store(f"{s3_bucket}/d"))
    with pytest.MonkeyPatch.context() as process, pytest.raises(StorageError) as caught:
        process.setattr(locks, "_held", {})  # as another process of this machine
        ObjectLock(open_store("msc://lab/d"))
    first.close()
    assert caught.value.kind == "busy"


def test_remotes_of_rclone_are_profiles(configured, tmp_path, monkeypatch):
    folder = tmp_path / "rclone"
    folder.mkdir()
    conf = folder / "rclone.conf"
    conf.write_text(
        "[lab]\ntype = s3\naccess_key_id = k\nsecret_access_key = s%1\nregion = us\nendpoint = http://h:1\n"
        "[here]\ntype = local\n[box]\ntype = dropbox\n"
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    options = {"access_key_id": "k", "secret_access_key": "s%1", "region": "us", "endpoint": "http://h:1"}
    assert resolve("msc://lab/b/c") == ("s3://b/c", options) == resolve("rclone://lab/b/c")
    assert resolve("msc://here/b/c") == ("/b/c", {})
    with pytest.raises(ConfigError, match="'dropbox' is not supported"):
        resolve("msc://box/b")
    with pytest.raises(ConfigError, match="there is no profile 'x': the profiles are box, here, lab") as caught:
        resolve("msc://x/b")
    assert caught.value.file == str(conf)
    with pytest.raises(ConfigError, match="has no bucket") as caught:
        resolve("msc://lab")
    assert caught.value.kind == "no-bucket"
    configured({"lab": profile("s3", base_path="own")})
    assert resolve("msc://lab/b") == ("s3://own/b", {}) and resolve("msc://here/b") == ("/b", {})
    conf.write_text("secret hunter2\n")
    with pytest.raises(ConfigError, match="encrypted or no INI file") as caught:
        resolve("msc://other/b")
    assert "hunter2" not in str(caught.value)
