"""What `feedmill plan` says of reading remote data is near what a loader does."""

from __future__ import annotations

import json

import pytest
from tests.helpers.durations import slow_but
from tests.helpers.range_server import range_server
from tests.loading.test_ahead import content, data_requests, local, remote, shards
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.planning.nodes import BlockShuffle, Leaf, Repeat
from feedmill.planning.remote_reads import remote_reads
from feedmill.storage.cache.settings import DataCache


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("reads") / "data", [900, 900, 900], size=4000)


@pytest.fixture
def server(folder):
    with range_server() as running:
        for path in folder.rglob("*"):
            if path.is_file():
                running.objects[f"data/{path.relative_to(folder)}"] = path.read_bytes()
        yield running


@pytest.mark.parametrize("shuffle", ["block", "none"])
def test_the_estimate_is_near_what_a_loader_requests(server, folder, shuffle):
    plan = remote(server, shuffle=shuffle)
    reads = remote_reads(plan, len(plan))
    assert reads is not None and reads["advice"] is None and reads["samples"] == 2700
    server.forget()
    content(fm.Loader(plan, 8))
    asked = data_requests(server)
    assert reads["requests"] - 2 <= len(asked) <= reads["requests"] + 8 + 2  # the first batch is requested alone
    assert abs(sum(end - begin for begin, end in asked) - reads["bytes"]) <= 0.05 * reads["bytes"]
    assert reads["seconds"] > 0


@pytest.mark.parametrize("budget", slow_but(["1M", "4M"], "4M"))
def test_windows_that_the_memory_does_not_hold_are_counted_in_parts(server, folder, monkeypatch, budget):
    plan = remote(server)
    whole = remote_reads(plan, len(plan))
    monkeypatch.setenv("FEEDMILL_READ_AHEAD", budget)
    reads = remote_reads(plan, len(plan))
    assert reads is not None and whole is not None and reads["requests"] > 3 * whole["requests"]
    server.forget()
    content(fm.Loader(plan, 8))
    assert 0.7 * reads["requests"] <= len(data_requests(server)) <= 1.3 * reads["requests"]


def test_scattered_small_samples_get_advice(server, tmp_path):
    plan = remote(server, shuffle="global")
    reads = remote_reads(plan, 300)
    assert reads is not None and "'shuffle: block'" in reads["advice"]
    plan.cache = DataCache(1 << 30, tmp_path)
    reads = remote_reads(plan, 300)
    assert reads is not None and "the cache fetches whole shards" in reads["advice"]
    endless = remote_reads(remote(server, epochs=None), None)
    assert endless is not None and endless["samples"] == 4096


@pytest.mark.parametrize(("block", "window"), [(300, 8), (50, 4)])
def test_blocks_of_any_size_are_requests(server, folder, block, window):
    dataset = remote(server).sources[0]
    order = Repeat(BlockShuffle(Leaf(0, len(dataset)), 5, block, window), 1)
    plan = fm.Plan(order, [dataset], ["data"], 3)
    server.forget()
    content(fm.Loader(plan, 8))
    blocks = -(-len(dataset) // block)
    assert len(data_requests(server)) <= blocks + 2 * 3 + 8 + 2  # blocks over the ends of shards, and the first batch
    reads = remote_reads(plan, len(plan))
    assert reads is not None and ("advice" in reads and "block: 512" in (reads["advice"] or "")) == (block == 50)


def test_local_plans_have_none(folder):
    assert remote_reads(local(folder), 100) is None


def test_the_verb_shows_it(server, tmp_path, monkeypatch):
    for name, value in {
        "AWS_ENDPOINT_URL": server.options["endpoint"],
        "AWS_ALLOW_HTTP": "true",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_REGION": "us-east-1",
        "FEEDMILL_CACHE_DIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "recipe.yaml").write_text("source: s3://bkt/data\nepochs: 1\nseed: 3\n")
    shown = CliRunner().invoke(app, ["plan", str(tmp_path / "recipe.yaml")]).output
    assert "remote reads: about" in shown and "for 2,700 samples" in shown
    found = json.loads(CliRunner().invoke(app, ["plan", str(tmp_path / "recipe.yaml"), "--json"]).output)
    assert found["remote"]["requests"] > 0 and found["remote"]["advice"] is None
