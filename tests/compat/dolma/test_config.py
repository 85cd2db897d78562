"""Dolma's configurations: files, options over them, interpolation, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feedmill.compat.dolma.config import FLAG, NUMBER, REQUIRED, TEXT, TEXTS, TREE, WHOLE, Key, configure, shown
from feedmill.errors import ConfigError

SCHEMA = {
    "documents": Key(TEXTS, []),
    "name": Key(TEXT, None),
    "processes": Key(WHOLE, 1),
    "rate": Key(NUMBER, 0.5),
    "debug": Key(FLAG, False),
    "work.dir.input": Key(TEXT, None),
    "streams": Key(TREE, []),
}


def read(tmp_path: Path, text: str, *arguments: str) -> dict[str, Any]:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return configure(arguments, str(path), SCHEMA)


def test_options_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    values = read(tmp_path, "documents: [a, b]\nprocesses: 3\n", "--processes", "4", "--work.dir.input", "x")
    assert values == {
        "documents": ["a", "b"],
        "name": None,
        "processes": 4,
        "rate": 0.5,
        "debug": False,
        "work.dir.input": "x",
        "streams": [],
    }
    assert configure([], None, SCHEMA)["processes"] == 1


def test_json_is_yaml(tmp_path: Path) -> None:
    assert read(tmp_path, '{"documents": ["a"], "work": {"dir": {"input": "x"}}}')["work.dir.input"] == "x"


def test_lists_and_flags_as_options() -> None:
    values = configure(["--documents", "a", "b", "--debug", "--name=n"], None, SCHEMA)
    assert (values["documents"], values["debug"], values["name"]) == (["a", "b"], True, "n")
    assert configure(["--no-debug", "--documents"], None, SCHEMA)["documents"] == []


def test_values_are_converted(tmp_path: Path) -> None:
    values = read(tmp_path, "processes: '6_000'\nrate: '1e-6'\nname: 7\ndebug: 'yes'\ndocuments: one\n")
    assert (values["processes"], values["rate"], values["name"], values["debug"]) == (6000, 1e-6, "7", True)
    assert values["documents"] == ["one"]


def test_interpolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "somewhere")
    (tmp_path / "x1").touch()
    (tmp_path / "x2").touch()
    text = f"""
name: ${{oc.env:PLACE}}/${{processes}}
processes: 2
documents: ["${{name}}", "${{d.glob:{tmp_path}/x*}}", "${{d.cache:{tmp_path}/x1}}", "${{oc.env:NOT_THERE,other}}"]
streams: [{{name: "${{name}}-s"}}]
"""
    values = read(tmp_path, text)
    assert values["documents"] == [
        "somewhere/2",
        f"{tmp_path}/x1",
        f"{tmp_path}/x2",
        f"{tmp_path}/x1",
        "other",
    ]
    assert values["streams"] == [{"name": "somewhere/2-s"}]
    assert read(tmp_path, "processes: ${d.processes:1000}")["processes"] == 1


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("document: [a]", "Did you mean 'documents'"),
        ("work: {dir: {output: x}}", "work.dir.output"),
        ("work: 3", "work"),
        ("- a\n- b", "config.yaml"),
        ("processes: many", "expected a whole number"),
        ("processes: 1.5", "expected a whole number"),
        ("processes: null", "expected a whole number"),
        ("rate: null", "expected a number"),
        ("debug: null", "true or false"),
        ("documents: null", "expected a list"),
        ("debug: perhaps", "true or false"),
        ("name: [a]", "expected a text"),
        ("a: [b", "config.yaml:"),
        ("name: ${nothing}", "unknown key"),
        ("name: ${name}", "circular"),
        ("name: ${oc.env:SURELY_NOT_SET_ANYWHERE}", "environment"),
        ("name: ${d.glob:/nowhere/*}", "no files"),
        ("name: ${d.cache:https://example.org/x}", "not downloaded"),
        ("name: ${what:x}", "unknown interpolation"),
        ("name: '${open'", "brace"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["--nam", "x"], "--nam"), (["x"], "x"), (["--name"], "--name"), (["--processes", "x"], "--processes")],
)
def test_options_that_make_no_sense(arguments: list[str], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        configure(arguments, None, SCHEMA)


def test_a_required_value_is_asked_for() -> None:
    schema = {"file": Key(TEXT, REQUIRED)}
    with pytest.raises(ConfigError, match="'file' is missing"):
        configure([], None, schema)


def test_nothing_is_a_value_where_it_is_the_default_and_of_texts(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("file: null\nname: null\nid: null")
    schema = {"file": Key(TEXT, REQUIRED), "name": Key(TEXTS, None), "id": Key(TEXT, "id")}
    with pytest.raises(ConfigError, match="expected a text"):
        configure([], str(tmp_path / "c.yaml"), schema)
    assert configure(["--file", "x"], str(tmp_path / "c.yaml"), schema) == {"file": "x", "name": None, "id": None}


def test_the_configuration_is_shown_as_a_sorted_tree() -> None:
    assert shown({"b.y": 1, "b.x": None, "a": ["é"]}) == "a:\n- é\nb:\n  x: null\n  y: 1\n"


def test_a_json_file_is_read_and_shown_as_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"name": "é", "rate": 1e-3, "work": {"dir": {"input": null}}, "streams": [{"on": "2020-01-01"}]}')
    values = configure([], str(path), SCHEMA)
    assert (values["name"], values["rate"], values["streams"]) == ("é", 0.001, [{"on": "2020-01-01"}])
    text = shown(values, str(path))
    assert json.loads(text)["work"] == {"dir": {"input": None}} and list(json.loads(text)) == sorted(json.loads(text))
    assert shown({"processes": 2**70}, str(path)) == f"processes: {2**70}\n"


@pytest.mark.parametrize("text", ["name: x\nprocesses: 3  # YAML by another name\n", '{"name": "x", "processes": 3,}'])
def test_yaml_in_a_json_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    values = configure([], str(path), SCHEMA)
    assert (values["name"], values["processes"]) == ("x", 3)


def test_a_broken_json_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n"name": "x",\n"processes": [3}\n')
    with pytest.raises(ConfigError, match="neither YAML nor JSON") as caught:
        configure([], str(path), SCHEMA)
    assert f"{path}:3" in str(caught.value)
