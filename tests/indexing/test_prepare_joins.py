"""Preparing metadatasets: Energon's files, and Feedmill's own where Energon's would be ambiguous."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.errors import ConfigError
from feedmill.indexing.prepare import prepare
from helpers.digests import GOLDEN, expected

META = GOLDEN / "metadatasets"
NEGATIVE = GOLDEN / "negative" / "joins"


def copy(source: Path, tmp_path: Path) -> Path:
    root = Path(shutil.copytree(source, tmp_path / "data"))
    for cache in root.glob("*.cache"):
        shutil.rmtree(cache)
    return root


@pytest.mark.parametrize("name", ["join.yaml", "join_none.yaml"])
def test_energon_finds_its_files(name: str, tmp_path: Path) -> None:
    root = copy(META, tmp_path)
    report = prepare(str(root / name), progress=False)
    golden = [path for path in expected("metadatasets")["disk"]["join_index"] if path.startswith(f"{name}.cache/")]
    for path in golden:
        assert (root / path).read_bytes() == (META / path).read_bytes()
    assert len(report.joins) == len(golden) and report.warnings == []
    assert report.samples == sum(report.joins.values()) == (9 if name == "join.yaml" else 5)
    assert len(list((root / f"{name}.cache").rglob("*.bin"))) == 2 * len(golden)


def test_ambiguous_names_are_not_written(tmp_path: Path) -> None:
    root = copy(NEGATIVE, tmp_path)
    report = prepare(str(root / "two_splits.yaml"), progress=False)
    assert [label.split()[0] for label in report.joins] == ["train", "val"] and list(report.joins.values()) == [3, 5]
    assert len(report.warnings) == 1 and "two_splits.yaml:10: Energon would read" in report.warnings[0]
    assert [path.name for path in (root / "two_splits.yaml.cache").iterdir()] == ["feedmill"]
    assert len(list((root / "two_splits.yaml.cache/feedmill").iterdir())) == 2
    report = prepare(str(root / "excludes.yaml"), progress=False)
    assert list(report.joins.values()) == [1] and "hash seed" in report.warnings[0]


def test_a_join_without_rows_is_refused(tmp_path: Path) -> None:
    root = copy(NEGATIVE, tmp_path)
    with pytest.raises(ConfigError, match=r"other_part.yaml:5: the join has no rows"):
        prepare(str(root / "other_part.yaml"), progress=False)
    assert not (root / "other_part.yaml.cache").exists()


def test_recipes_of_our_own_are_prepared_too(tmp_path: Path) -> None:
    root = copy(META, tmp_path)
    (root / "mix.yaml").write_text("source:\n  join: {l: joinL, r: {path: joinR, nonmatch: skip}}\n")
    (root / "outer.yaml").write_text("source: {recipe: mix.yaml}\n")
    assert list(prepare(str(root / "outer.yaml"), progress=False).joins) == [f"{root}/mix.yaml:2"]
    assert len(list((root / "mix.yaml.cache").rglob("*.bin"))) == 2


@pytest.mark.parametrize(
    "verb", [["prepare"], ["compat", "energon", "prepare"], ["compat", "energon", "prepare", "--non-interactive"]]
)
def test_the_command_line(verb: list[str], tmp_path: Path) -> None:
    root = copy(META, tmp_path)
    result = CliRunner().invoke(app, [*verb, str(root / "join.yaml")])
    assert result.exit_code == 0 and "4 in train" in result.output and "5 in val" in result.output
    result = CliRunner().invoke(app, [*verb, str(root / "blend.yaml")])
    assert result.exit_code == 0 and "nothing to prepare" in result.output


def test_preparing_tars_imports_nothing_of_plans() -> None:
    code = "import sys, feedmill as fm; fm.prepare; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "feedmill.indexing.prepare_tars" in found
    assert not [name for name in found if name.startswith("feedmill.planning")]
