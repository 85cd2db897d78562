"""``feedmill cache``: what it lists, fetches and deletes, and what it refuses."""

from __future__ import annotations

import json

import pytest
from tests.helpers.range_server import range_server
from tests.loading.test_ahead import content, data_requests, shards
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.storage.cache import chunks
from feedmill.storage.cache import settings as datacache


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe of remote data, and its server."""
    folder = shards(tmp_path / "data", [300, 400])
    with range_server() as server:
        for path in folder.rglob("*"):
            if path.is_file():
                server.objects[f"data/{path.relative_to(folder)}"] = path.read_bytes()
        settings = {
            "AWS_ENDPOINT_URL": server.options["endpoint"],
            "AWS_ALLOW_HTTP": "true",
            "AWS_SKIP_SIGNATURE": "true",
            "AWS_REGION": "us-east-1",
            "FEEDMILL_CACHE_DIR": str(tmp_path / "cache"),
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "recipe.yaml").write_text("source: s3://bkt/data\nepochs: 1\nseed: 3\n")
        yield tmp_path / "recipe.yaml", server
        for cache in chunks._caches.values():
            cache.close()
        chunks._caches.clear()
        for files in chunks._caches.values():
            files.close()


OFFSETS = "data/.nv-meta/feedmill.offsets"
INDICES = ["data/.nv-meta/feedmill.members", "data/.nv-meta/index.sqlite"]


def run(*words, ok=True):
    done = CliRunner().invoke(app, ["cache", *map(str, words)])
    assert (done.exit_code == 0) == ok, done.output
    return done.output


def test_a_warmed_cache_serves_a_run_without_requests_for_data(recipe, monkeypatch):
    path, server = recipe
    report = json.loads(run("warm", path, "--size", "1GB", "--json"))
    sizes = {key: len(data) for key, data in server.objects.items() if key.endswith(".tar")}
    sizes |= {key: len(server.objects[key]) for key in [*INDICES, OFFSETS]}
    assert report["fetched"] == sum(sizes.values())
    found = {one["url"]: one["size"] for one in report["objects"] if one["kind"] != "derived"}
    assert found == {f"s3://bkt/{key}": n for key, n in sizes.items()}
    assert {one["url"] for one in report["objects"] if one["kind"] == "index"} == {f"s3://bkt/{key}" for key in INDICES}
    monkeypatch.setenv("FEEDMILL_CACHE_SIZE", "1GB")
    server.forget()
    assert sum(map(len, content(fm.Loader(fm.Recipe.load(path).plan(), 32)))) == 700
    assert not data_requests(server)
    assert fm.open("s3://bkt/data").find("000301") == 301 and not set(INDICES) & set(server.keys)
    assert {end - begin for key, (begin, end) in zip(server.keys, server.asked, strict=True) if key == OFFSETS} == {64}
    again = fm.cache("warm", [path], size="1GB")
    assert again.fetched == 0 and again.present == report["present"]


def test_listing_and_clearing_by_the_beginning_of_urls(recipe):
    path, _ = recipe
    run("warm", path, "--size", "1GB")
    assert "shard_0.tar" in run("list") and "100%" in run("list")
    listed = json.loads(run("list", "s3://bkt/data/shard_1", "--json"))
    assert [one["url"] for one in listed["objects"]] == ["s3://bkt/data/shard_1.tar"]
    cleared = json.loads(run("clear", "s3://bkt/data/shard_1", "--json"))
    assert cleared["freed"] == listed["present"] and cleared["objects"] == []
    left = [one.url for one in fm.cache("list").of_kind("data")]
    assert left == [f"s3://bkt/{OFFSETS}", "s3://bkt/data/shard_0.tar"]
    assert [one.url.removeprefix("s3://bkt/") for one in fm.cache("list").of_kind("index")] == INDICES
    index = fm.cache("list", ["s3://bkt/data/.nv-meta/index"])
    assert index.present > 0 and fm.cache("clear", ["s3://bkt/data/.nv-meta/index"]).freed == index.present
    assert [one.url.removeprefix("s3://bkt/") for one in fm.cache("list").of_kind("index")] == INDICES[:1]
    assert " index " in run("list") and " derived " in run("list")
    run("clear")
    assert not fm.cache("list").objects


def test_indices_that_are_in_use_are_not_cleared(recipe):
    dataset = fm.open("s3://bkt/data")
    assert dataset.find("000007") == 7
    for targets in [(), ["s3://bkt/"]]:
        assert [one.url for one in fm.cache("clear", targets).objects] == ["s3://bkt/data/.nv-meta/index.sqlite"]
    assert dataset.find("000008") == 8


def test_only_the_first_samples_are_fetched(recipe):
    path, _ = recipe
    part = fm.cache("warm", [path], size="40MB", samples=5)  # so small a cache has small chunks
    whole = fm.cache("warm", [path], size="40MB")
    data = sum(one.present for kind in ("data", "index") for one in whole.of_kind(kind))
    assert 0 < part.fetched < part.fetched + whole.fetched == data


def test_what_cannot_be_warmed_is_an_error(recipe, tmp_path, monkeypatch, caplog):
    path, server = recipe
    assert "--size" in run("warm", path, ok=False)
    assert "No such" in run("warm", tmp_path / "none.yaml", "--size", "1GB", ok=False).replace("no such", "No such")
    assert "no recipe" in run("warm", "--size", "1GB", ok=False)
    assert "unknown" in run("heat", ok=False)
    assert "too small" in run("warm", path, "--size", "1MB", ok=False)
    (tmp_path / "local.yaml").write_text(f"source: {tmp_path / 'data'}\nepochs: 1\n")
    assert "no remote data" in run("warm", tmp_path / "local.yaml", "--size", "1GB", ok=False)
    (tmp_path / "endless.yaml").write_text("source: s3://bkt/data\nseed: 3\n")
    assert "--samples" in run("warm", tmp_path / "endless.yaml", "--size", "1GB", ok=False)
    assert "fetches nothing" in run("warm", path, "--size", "1GB", "--samples", "0", ok=False)
    monkeypatch.setattr(datacache, "_MIN_SIZE", 1)
    assert "take about" not in caplog.text
    assert "larger than the cache" in " ".join(run("warm", path, "--size", "500KB", ok=False).split())
    assert "700 samples take about" in caplog.text  # before anything is fetched
    plan = fm.Recipe.load(path).plan()
    del server.objects["data/shard_1.tar"]
    with pytest.raises(fm.FeedmillError, match="shard_1"):
        fm.cache("warm", [plan], size="1GB")


def test_an_empty_cache_is_listed_and_cleared(recipe):
    assert json.loads(run("list", "--json"))["objects"] == []
    assert json.loads(run("clear", "--json"))["freed"] == 0


def test_sources_that_exceed_the_memory_of_reading_ahead_are_warmed(recipe, tmp_path, monkeypatch):
    _, server = recipe
    server.objects |= {key.replace("data/", "more/", 1): data for key, data in server.objects.items()}
    sources = "{path: s3://bkt/data}, {path: s3://bkt/more}"
    (tmp_path / "two.yaml").write_text(f"concat: [{sources}]\nepochs: 1\nshuffle: block\n")
    monkeypatch.setattr("feedmill.loading.caching.BUDGET", 1000)
    run("warm", tmp_path / "two.yaml", "--size", "1GB")
    tars = {f"s3://bkt/{key}": len(data) for key, data in server.objects.items() if key.endswith(".tar")}
    found = {one.url: one.present for one in fm.cache("list").of_kind("data") if one.url.endswith(".tar")}
    assert found == tars and len(tars) == 4


def test_samples_that_made_room_for_those_of_other_recipes_are_an_error(recipe, tmp_path, monkeypatch):
    _, server = recipe
    folder = shards(tmp_path / "large", [300], 3000)
    server.objects.clear()
    for path in folder.rglob("*"):
        if path.is_file():
            for prefix in ("one", "two"):
                server.objects[f"{prefix}/{path.relative_to(folder)}"] = path.read_bytes()
    for prefix in ("one", "two"):
        (tmp_path / f"{prefix}.yaml").write_text(f"source: s3://bkt/{prefix}\nepochs: 1\nshuffle: none\n")
    size = 4 * len(server.objects["one/shard_0.tar"]) // 3
    monkeypatch.setattr(datacache, "_MIN_SIZE", 1)
    both = [str(tmp_path / f"{prefix}.yaml") for prefix in ("one", "two")]
    for path in both:
        assert fm.cache("warm", [path], size=size).fetched  # the cache keeps what was used last
    with pytest.raises(fm.FeedmillError, match="made room"):
        fm.cache("warm", both, size=size)
