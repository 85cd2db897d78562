"""wids indices: one that `widsindex` made, ones that we write, and ones that are invalid."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.tar.wids import write_wids
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore
from helpers.tars import make_shards

GOLDEN = Path(__file__).parents[1] / "golden" / "vla"
SHARDS = [f"shards/shard_{n:03d}.tar" for n in range(3)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_shards(tmp_path, [3, 2, 4])
    write_wids(LocalStore(tmp_path), SHARDS, "index.json", name="made")
    return tmp_path


def test_the_index_that_widsindex_made() -> None:
    expected = json.loads((GOLDEN / "wids/expected.json").read_text())
    dataset = open_dataset(GOLDEN / "wids/index.json", decode=None)
    assert len(dataset) == expected["len"] and dataset.describe()["name"] == "golden-text"
    for said in expected["samples"]:
        sample = dataset[said["index"]]
        assert sample.key == said["key"]
        assert {f".{part}": hashlib.sha256(sample.raw(part)).hexdigest() for part in sample} == said["fields"]
        assert sample.source.where.endswith(said["shard"])
        assert sample.source.index == said["index"]


def test_what_is_written_is_what_widsindex_writes(tmp_path: Path) -> None:
    index = json.loads((GOLDEN / "wids/index.json").read_text())
    for shard in GOLDEN.glob("text/*.tar"):
        (tmp_path / "text").mkdir(exist_ok=True)
        (tmp_path / "text" / shard.name).write_bytes(shard.read_bytes())
    shards = [record["url"] for record in index["shardlist"]]
    assert write_wids(LocalStore(tmp_path), shards, "index.json", name="golden-text") == 38
    written = json.loads((tmp_path / "index.json").read_text())
    assert {**index, "base": None} == {**written, "base": None}


def test_nested_lists_and_bases(root: Path) -> None:
    index = json.loads((root / "index.json").read_text())
    records = [{**record, "url": record["url"].removeprefix("shards/")} for record in index["shardlist"]]
    nested = {
        "__kind__": index["__kind__"], "wids_version": 1,
        "datasets": [{"shardlist": records[2:], "base": "shards"}, {"source_url": "index.json"}],
    }  # fmt: skip
    (root / "nested.json").write_text(json.dumps(nested))
    with pytest.raises(ConfigError) as error:
        open_dataset(root / "nested.json")  # the last shard would come twice
    assert error.value.kind == "listed-twice"
    nested["datasets"] = [{"shardlist": records[2:], "base": "shards"}, {"shardlist": records[:1], "base": "shards"}]
    (root / "nested.json").write_text(json.dumps(nested))
    assert [s["json"]["n"] for s in open_dataset(root / "nested.json")] == [5, 6, 7, 8, 0, 1, 2]
    nested["datasets"] = [{"source_url": "index.json"}]
    (root / "nested.json").write_text(json.dumps(nested))
    assert [s["json"]["n"] for s in open_dataset(root / "nested.json")] == list(range(9))


@pytest.mark.parametrize(
    ("change", "kind", "word"),
    [
        (lambda c: c["shardlist"][1].update(nsamples=7), "wrong-count", "'nsamples', but the shard has 2"),
        (lambda c: c["shardlist"][1].update(filesize=7), "wrong-count", "'filesize'"),
        (lambda c: c["shardlist"][1].update(url="../x.tar"), "unsafe-name", "leads out"),
        (lambda c: c["shardlist"][1].update(url="/x.tar"), "unsafe-name", "leads out"),
        (lambda c: c["shardlist"][1].update(url="pipe:touch x"), "unsafe-name", "must not run programs"),
        (lambda c: c["shardlist"][1].update(url="x.tar.gz"), "bad-index", "not a .tar"),
        (lambda c: c["shardlist"][1].update(url="shards/gone.tar"), "not-found", "gone.tar"),
        (lambda c: c["shardlist"][1].pop("url"), "bad-index", "url"),
        (lambda c: c.update(shardlist=[]), "bad-index", "lists no shards"),
        (lambda c: c.update(wids_version=2), "unknown-format", "version 1"),
    ],
)
def test_indices_that_make_no_sense(root: Path, change: Callable[[Any], Any], kind: str, word: str) -> None:
    content = json.loads((root / "index.json").read_text())
    change(content)
    (root / "index.json").write_text(json.dumps(content))
    with pytest.raises(FeedmillError, match=word) as error:
        open_dataset(root / "index.json")
    assert error.value.kind == kind and error.value.fix


def test_check_walks_the_shards(root: Path) -> None:
    url = str(root / "index.json")
    assert "no problems found (9 samples in 3 shards" in CliRunner().invoke(app, ["check", url]).output
    path = root / SHARDS[2]
    path.write_bytes(path.read_bytes()[:1000])
    found = CliRunner().invoke(app, ["check", url])
    assert found.exit_code == 1 and "shard_002.tar" in found.output


def test_writing_refuses_what_cannot_be_indexed(root: Path) -> None:
    with pytest.raises(ConfigError, match="in the top folder of its shards"):
        write_wids(LocalStore(root), SHARDS, "other/index.json")
    (root / SHARDS[0]).write_bytes(b"x" * 600)
    with pytest.raises(DataError, match=r"shard_000.tar"):
        write_wids(LocalStore(root), SHARDS, "new.json")
    assert not (root / "new.json").exists()
