"""Damage that once ended in a traceback: each is one message of a verb, with status 1."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.formats.tokens.dolma import write_dolma
from feedmill.indexing.prepare import prepare
from feedmill.storage import LocalStore
from helpers import foreign_datasets as sourcedata
from helpers.tars import make_shards
from helpers.tokenizer_data import tokenizer_file, write_lines

DEEP = 900


def refused(*words: object) -> str:
    """The message of a verb that refuses its input, or of `check`, which lists it."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(done.exception, SystemExit) and done.exit_code == 1, done
    assert ("error: " in done.output or "found: " in done.output) and "defect" not in done.output, done.output
    return done.output


def prepared(root: Path) -> Path:
    make_shards(root, [3])
    prepare(str(root), split_ratio="1,0,0", progress=False)
    return root


@pytest.mark.parametrize("verb", ["show", "check"])
def test_features_that_are_no_object(verb: str, tmp_path: Path) -> None:
    sourcedata.write_arrow(tmp_path / "a-train.arrow", sourcedata.table(0, 3))
    (tmp_path / "dataset_info.json").write_text('{"features": "x"}')
    assert "'features' must be an object" in refused(verb, tmp_path)


@pytest.mark.parametrize("verb", ["show", "check"])
@pytest.mark.parametrize("name", ["", ".", "sub"])
def test_a_data_file_that_is_a_folder(verb: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    sourcedata.huggingface(tmp_path, [2])
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    refused(verb, tmp_path)


@pytest.mark.parametrize("name", ["split.yaml", "dataset.yaml"])
@pytest.mark.parametrize("verb", ["show", "check"])
def test_descriptions_nested_without_end(verb: str, name: str, tmp_path: Path) -> None:
    file = prepared(tmp_path) / ".nv-meta" / name
    for deep in ("split_parts: " + "[" * DEEP + "]" * DEEP, "field_map: " + "{a: " * DEEP + "}" * DEEP, "[" * 30_000):
        file.write_text(deep)
        done = CliRunner().invoke(app, [verb, str(tmp_path)])
        assert "nested more than 100 levels" in done.output and "defect" not in done.output


def test_splits_and_metadatasets_nested_without_end(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n' * 9)
    prepare(str(path), split_ratio="1,1,1", progress=False)
    (tmp_path / "x.jsonl.split.yaml").write_text("samples: 9\nlast_at: 72\nsplit_parts: " + "[" * DEEP + "]" * DEEP)
    assert "nested more than 100" in refused("show", path)
    (tmp_path / "m.yaml").write_text("splits:\n  train:\n    blend: " + "[" * DEEP + "]" * DEEP)
    assert "nested more than 100" in refused("plan", tmp_path / "m.yaml")


def test_a_schema_whose_names_are_no_text(tmp_path: Path) -> None:
    data = sourcedata.arrow(tmp_path, [3]).read_bytes()
    for at in [at for at in range(len(data)) if data[at : at + 4] == b"text"]:
        (tmp_path / "one.arrow").write_bytes(data[:at] + b"\xff" + data[at + 1 :])
        done = CliRunner().invoke(app, ["show", str(tmp_path / "one.arrow")])
        assert isinstance(done.exception, SystemExit | None) and "defect" not in done.output


def test_a_manifest_of_tokens_nested_without_end_is_none(tmp_path: Path) -> None:
    with write_dolma(LocalStore(tmp_path), "0.npy", "u2") as out:
        out.add(np.arange(6), np.array([3, 3]))
    (tmp_path / "0.npy.feedmill.json").write_text('{"a":' * 3000)
    assert CliRunner().invoke(app, ["show", str(tmp_path)]).exit_code == 0


def test_a_vocabulary_whose_ids_are_no_numbers(tmp_path: Path) -> None:
    tree = json.loads(tokenizer_file("tok1k").read_text())
    tree["model"]["vocab"][next(iter(tree["model"]["vocab"]))] = "x"
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    write_lines(tmp_path / "d.jsonl", ["a"])
    words = ("tokenize", tmp_path / "d.jsonl", "-o", tmp_path / "out", "-t", tmp_path / "tokenizer.json")
    assert "not a tokenizer.json" in refused(*words)


MIXES: dict[str, Callable[[dict], None]] = {
    "max_size_in_bytes": lambda stream: stream["output"].update(max_size_in_bytes=1 << 64),
    "a number has 5000 digits": lambda stream: stream["filter"].update(include=[f"$.attributes[0][{'9' * 5000}]"]),
    "nested more than 100": lambda stream: stream.update(name=json.loads("[" * 150 + "]" * 150)),
    "surrogate": lambda stream: stream.update(name="\ud800"),
}


@pytest.mark.parametrize("what", MIXES)
@pytest.mark.parametrize("form", ["mix.json", "mix.yaml", "dolma"])
def test_configurations_of_mixes(what: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "documents" / "x.jsonl", [{"id": "a", "text": "b"}])
    stream = {"name": "s", "documents": ["documents/*"], "output": {"path": "out"}, "filter": {"include": ["$.id"]}}
    MIXES[what](stream)
    tree = {"streams": [stream]}
    if form == "mix.yaml" and what == "surrogate":
        pytest.skip("YAML has no escapes for them that its reader takes")
    path = tmp_path / ("mix.yaml" if form == "mix.yaml" else "mix.json")
    path.write_text(yaml.dump(tree) if form == "mix.yaml" else json.dumps(tree))
    shown = refused("compat", "dolma", "-c", path, "mix") if form == "dolma" else refused("filter", path)
    assert what == "surrogate" or what in shown


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT 0, 'k' || x, x, 0, 0 FROM c"
COLUMNS = "tar_file_id, sample_key, sample_index, byte_offset, byte_size"
ODD = {
    "view": ["DROP TABLE samples", f"CREATE VIEW samples({COLUMNS}) AS {ENDLESS}"],
    "trigger": ["CREATE TRIGGER t AFTER INSERT ON samples BEGIN DELETE FROM samples; END"],
    "virtual table": ["CREATE VIRTUAL TABLE extra USING fts5(x)"],
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
def test_an_index_that_computes_is_refused(kind: str, tmp_path: Path) -> None:
    prepared(tmp_path)
    index = tmp_path / ".nv-meta" / "index.sqlite"
    connection = sqlite3.connect(index)
    try:
        for statement in ODD[kind]:
            connection.execute(statement)
        connection.commit()
    except sqlite3.OperationalError as error:
        pytest.skip(f"this SQLite cannot make it: {error}")
    finally:
        connection.close()
    shown = CliRunner().invoke(app, ["check", str(tmp_path)]).output
    assert f"is a {kind}, expected plain tables only" in shown
    from feedmill.samples.open import open as open_dataset

    with pytest.raises(Exception, match="expected plain tables only"):
        open_dataset(tmp_path).find("s00001")
    done = CliRunner().invoke(app, ["prepare", str(tmp_path), "--split-ratio", "1,0,0", "--overwrite"])
    assert done.exit_code == 0, done.output
    assert open_dataset(tmp_path).find("s00001") == 1
