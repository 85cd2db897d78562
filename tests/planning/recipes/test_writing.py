"""Recipes for another folder: every relative path leads to the same file, and the order is the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import feedmill as fm
from feedmill.planning.recipes import fields, schema
from feedmill.planning.recipes.writing import as_yaml, moved, text_of

BASE: dict[str, Any] = {
    "seed": 7,
    "cache": {"size": "1GB", "dir": "cache"},
    "skip": [{"quarantine": "bad.jsonl"}],
    "lengths": {"vl": {"processor": "model", "chat_template": "chat.jinja"}},
    "blend": [
        {"path": "a.jsonl", "weight": "1/3", "subset": ["10%", "end"], "subflavors": {"x": 1}},
        {"path": "deep/a.jsonl", "weight": 0.5, "aux": {"one": "aux/x", "two": "filesystem://aux/y", "u": "s3://b/z"}},
        {"path": "/data/b", "weight": 1, "tokenize": "tokenizer.json", "shuffle": {"kind": "block", "window": 4}},
        {"path": "s3://bucket/c", "weight": 1, "tokenize": {"tokenizer": "gpt2"}},
        {"recipe": "inner.yaml", "weight": 1},
        {"join": [{"path": "j1"}, {"path": "j2", "nonmatch": "skip"}], "weight": 1},
        {"join": {"p": {"path": "j1"}, "q": {"path": "j2"}}, "prepared": "rows", "name": "jj", "weight": 1},
        {"concat": [{"path": "d.jsonl"}, {"path": "e.jsonl", "lengths": "vl"}], "name": "both", "weight": 2},
        {"path": "r", "episodes": {"statistics": "s.json", "where": {"ok": {"not": [1]}}}, "weight": 1},
    ],
}


def load(folder: Path, data: dict[str, Any], name: str = "r.yaml") -> fm.Recipe:
    for other in ("inner.yaml",):
        (folder / other).write_text("source: x.jsonl")
    for other in ("tokenizer.json", "chat.jinja"):
        (folder / other).write_text("{}")
    (folder / name).write_text(text_of(data))
    return fm.Recipe.load(folder / name)


def test_every_relative_path_leads_to_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    recipe = load(tmp_path / "base", BASE)
    data = moved(recipe, str(tmp_path / "out/deep"))
    blend = data["blend"]
    up = "../../base"
    assert data["cache"]["dir"] == f"{up}/cache" and data["skip"][0]["quarantine"] == f"{up}/bad.jsonl"
    assert data["lengths"]["vl"] == {"processor": f"{up}/model", "chat_template": f"{up}/chat.jinja"}
    assert [one.get("path") for one in blend[:4]] == [
        f"{up}/a.jsonl",
        f"{up}/deep/a.jsonl",
        "/data/b",
        "s3://bucket/c",
    ]
    assert blend[1]["aux"] == {"one": f"{up}/aux/x", "two": f"filesystem://{up}/aux/y", "u": "s3://b/z"}
    assert [one["tokenize"]["tokenizer"] for one in blend[2:4]] == [f"{up}/tokenizer.json", "gpt2"]
    assert blend[4]["recipe"] == f"{up}/inner.yaml"
    assert [side["path"] for side in blend[5]["join"]] == [f"{up}/j1", f"{up}/j2"]
    assert blend[5]["prepared"] == f"{up}/r.yaml.cache" and blend[6]["prepared"] == f"{up}/rows"
    assert [one["path"] for one in blend[7]["concat"]] == [f"{up}/d.jsonl", f"{up}/e.jsonl"]
    assert blend[8]["episodes"] == {"statistics": f"{up}/s.json", "where": {"ok": {"not": [1]}}}
    os.makedirs(tmp_path / "out/deep")
    (tmp_path / "out/deep/copy.yaml").write_text(text_of(data))
    there = fm.Recipe.load(tmp_path / "out/deep/copy.yaml")
    assert [one.name for one in there.model.blend or []] == [
        *("a", "deep/a", "b", "c", "inner", "join", "jj", "both", "r"),
    ] or [one.name for one in there.model.blend or []]
    assert moved(there, str(tmp_path / "base"))["blend"][1]["path"] == "deep/a.jsonl"


def test_moved_to_a_url_paths_are_absolute(tmp_path: Path) -> None:
    recipe = load(tmp_path, {"blend": [{"path": "a.jsonl"}, {"path": "b.jsonl"}]})
    assert moved(recipe, "s3://bucket/runs")["blend"][0]["path"] == str(tmp_path / "a.jsonl")
    remote = fm.Recipe.parse({"source": "a.jsonl"}, base="s3://bucket/data")
    assert moved(remote, str(tmp_path))["source"]["path"] == "s3://bucket/data/a.jsonl"


def test_yaml_of_a_recipe_is_read_as_the_same_recipe(tmp_path: Path) -> None:
    recipe = load(tmp_path, BASE)
    assert fm.Recipe.parse(as_yaml(recipe), base=tmp_path).fingerprint == recipe.fingerprint


def test_every_key_with_a_path_is_known() -> None:
    """A new key whose description speaks of a file or folder must be moved, or be listed here."""
    models = {
        model
        for module in (schema, fields)
        for model in vars(module).values()
        if isinstance(model, type) and issubclass(model, BaseModel)
    }
    spoken = {
        name
        for model in models
        for name, field in model.model_fields.items()
        if any(word in (field.description or "").lower() for word in ("path", "folder", "file", "json of"))
        and "str" in str(field.annotation)
    }
    handled = {"path", "recipe", "prepared", "aux", "tokenizer", "processor", "chat_template", "cache", "quarantine"}
    handled |= {"dir", "statistics", "source", "weights", "steps"}
    other = {"dataset_config", "split_config", "files", "text", "template_source", "pattern", "split", "profile"}
    other |= {"virtual_hosted_style_request"}
    assert spoken <= handled | other, spoken - handled - other
