"""Modalities' configuration files: scalars, references, resolvers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from feedmill.compat.modalities.config import load_config
from feedmill.errors import ConfigError
from feedmill.jobs.resources import available_cores


def load(text: str, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "c.yaml").write_text(text)
    return load_config(f"{tmp_path}/c.yaml")


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("HOME_OF_DATA", "/data")
    text = r"""
a: {b: 5, c: "${.b}", d: [x, "${a.b}"], list: "${a.d}"}
e: ${a.d[1]}
f: "${g}-${a.b}/x"
g: ${cuda_env:HOME_OF_DATA}
h: ${node_env:num_cpus}
i: ${cuda_env:RANK}
j: ${modalities_env:config_folder_path}/y
k: \${a.b}
l: ${a.${m}}
m: b
n: ${a}
o: ["${..m}"]
"""
    found = load(text, tmp_path)
    assert found["a"] == {"b": 5, "c": 5, "d": ["x", 5], "list": ["x", 5]}
    assert (found["e"], found["f"], found["g"]) == (5, "/data-5/x", "/data")
    assert (found["h"], found["i"], found["j"]) == (available_cores(), 3, f"{tmp_path}/y")
    assert (found["k"], found["l"], found["n"]["b"], found["o"]) == ("${a.b}", 5, 5, ["b"])


def test_scalars(tmp_path: Path) -> None:
    text = "{a: 1e3, b: 2024-01-02, c: yes, d: 0x10, e: .5, f: 1.5e-3, g: null, h: '1', i: 12e, j: -3}"
    assert load(text, tmp_path) == {
        "a": 1000.0,
        "b": "2024-01-02",
        "c": True,
        "d": 16,
        "e": 0.5,
        "f": 0.0015,
        "g": None,
        "h": "1",
        "i": "12e",
        "j": -3,
    }


BAD = {
    "a: ${b}": "'b' does not exist",
    "a: ${a}": "refers to itself",
    "a: ${b}\nb: x${a}": "refers to itself",
    "a: ${oc.env:HOME}": "unknown resolver",
    "a: ${oc.create:x}": "unknown resolver",
    "a: ${node_env:other}": "unknown resolver",
    "a: ${modalities_env:secret}": "unknown resolver",
    "a: ${cuda_env:WORLD_SIZE}": "WORLD_SIZE is not set",
    "a: ${b": "not closed",
    "a: 1\na: 2": "duplicate key",
    "- 1": "not a mapping",
    "a: [": "not valid YAML",
    "a: !!python/object/apply:os.system [ls]": "not valid YAML",
    "? [1, 2]\n: 3": "not valid YAML",
}


@pytest.mark.parametrize("text", BAD)
def test_what_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ConfigError) as error:
        load(text, tmp_path)
    assert BAD[text] in str(error.value)
    assert f"{tmp_path}/c.yaml" in str(error.value)


def test_text_that_is_put_in_is_not_looked_up_again(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: '\\${a}'\nb: 'p ${a}'\nc: 'q ${b}'\n")
    assert load_config(str(tmp_path / "c.yaml")) == {"a": "${a}", "b": "p ${a}", "c": "q p ${a}"}


def test_a_file_that_holds_itself_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: &x [*x]\n")
    with pytest.raises(ConfigError, match="contains itself"):
        load_config(str(tmp_path / "c.yaml"))


def test_what_unfolds_without_end_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    with pytest.raises(ConfigError, match="expand"):
        load("\n".join(lines), tmp_path)
    doubling = [f"a{n}: x${{a{n + 1}}}${{a{n + 1}}}" for n in range(40)]
    with pytest.raises(ConfigError, match="more than 10,000 lookups"):
        load("\n".join([*doubling, "a40: x"]), tmp_path)


def test_the_folder_of_a_url_is_one(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: ${modalities_env:config_folder_path}/x\n")
    assert load_config(f"file://{tmp_path}/c.yaml") == {"a": f"{tmp_path}/x"}
