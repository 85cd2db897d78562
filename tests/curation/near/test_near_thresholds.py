"""Several thresholds in one run: each set is that of a run of its own, and documents are read once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.curation.dedupe.job import dedupe
from feedmill.curation.options import Neardedupe
from feedmill.documents.file import DocumentFile
from feedmill.documents.lines import read_blocks
from feedmill.errors import ConfigError
from feedmill.jobs.parts import PartEngine
from feedmill.storage import local
from helpers.durations import slow_but
from helpers.near_copies import make_texts, write_documents

THRESHOLDS = (0.8, 0.5, 1.0)
SETS = {0.8: "dup_near_0_8", 0.5: "dup_near_0_5", 1.0: "dup_near_1"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    texts = make_texts(150, 1)
    write_documents(tmp_path, {"a.jsonl": texts[:90], "b.jsonl": texts[90:]})
    return tmp_path


def run(**options: Any) -> Any:
    return fm.dedupe(["documents"], near=True, workers=1, progress=False, **{"threshold": THRESHOLDS, **options})


def outputs(root: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(root)): path.read_bytes() for path in sorted((root / "attributes").rglob("*.jsonl"))}
    assert not list(root.rglob("signatures-*")) and not list(root.rglob("*.feedmill-tmp"))
    return found


def alone(root: Path) -> dict[str, bytes]:
    """The sets of a run for each threshold."""
    bands, rows = Neardedupe((), threshold=THRESHOLDS).shape
    for threshold, name in SETS.items():
        options: dict[str, Any] = {"name": name, "threshold": threshold, "bands": bands, "rows": rows}
        dedupe([str(root / "documents")], near=True, **options, workers=1, progress=False)
    return outputs(root)


@pytest.fixture
def wanted(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> dict[str, bytes]:
    other = tmp_path_factory.mktemp("alone")
    (other / "documents").mkdir()
    for path in (folder / "documents").iterdir():
        (other / "documents" / path.name).write_bytes(path.read_bytes())
    return alone(other)


def test_each_set_is_that_of_its_own_run(
    folder: Path, wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()

    def spying(file: DocumentFile, **more: Any) -> Iterator[bytes]:
        read.append(file.path)
        return read_blocks(file, **more)

    monkeypatch.setattr("feedmill.curation.near.sketch.read_blocks", spying)
    report = run()
    assert read == ["documents/a.jsonl", "documents/b.jsonl"]
    assert outputs(folder) == wanted and len(wanted) == 6
    first, others = report, list(report.others)
    assert [one.name for one in [first, *others]] == list(SETS.values())
    assert others[0].duplicates > first.duplicates > others[1].duplicates > 0
    again = run()
    assert all(one.skipped for one in [again, *again.others]) and again.others[0].duplicates == others[0].duplicates
    assert json.loads(json.dumps(report.as_dict()))["others"][1]["name"] == "dup_near_1"


@pytest.mark.parametrize("share", slow_but([0.1, 0.35, 0.5, 0.65, 0.8, 0.95], 0.65))
def test_an_interrupted_run_is_finished(
    folder: Path, wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    publish: Callable[..., Any] = local.publish
    count = [0]

    def counting(*arguments: Any) -> Any:
        count[0] += 1
        if count[0] == most:
            raise KeyboardInterrupt
        return publish(*arguments)

    monkeypatch.setattr(local, "publish", counting)
    most = -1
    run(name="whole")
    most, count[0] = max(1, int(share * count[0])), 0
    with pytest.raises(KeyboardInterrupt):
        run()
    run()
    assert {name: data for name, data in outputs(folder).items() if "/whole_" not in name} == wanted


def test_the_command_takes_several(folder: Path) -> None:
    done = CliRunner().invoke(app, ["dedupe", "--near", "documents", "--threshold", "0.5,0.8", "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert "in attributes/dup_near_0_5" in done.stdout and "in attributes/dup_near_0_8" in done.stdout
    dry = run(dry_run=True)
    paths = {path.path for path in dry.dry_run.outputs}
    assert {Path(path).parent.name for path in paths if path.endswith(".jsonl")} >= {"dup_near_1"}
    one = CliRunner().invoke(app, ["dedupe", "--near", "documents", "--threshold", "0.8", "--workers", "1", "--json"])
    assert json.loads(one.stdout)["name"] == "dup_near" and json.loads(one.stdout)["others"] == []
    bad = CliRunner().invoke(app, ["dedupe", "--near", "documents", "--threshold", "0.8,much"])
    assert bad.exit_code == 1 and "is not a number" in bad.output


def test_what_cannot_be(folder: Path) -> None:
    with pytest.raises(ConfigError, match="given twice"):
        run(threshold=[0.8, 0.8])
    with pytest.raises(ConfigError, match="above 0 and up to 1"):
        run(threshold=[0.8, 1.5])
    with pytest.raises(ConfigError, match="has the decisions of one threshold"):
        run(signatures="signatures")
    with pytest.raises(ConfigError, match="one threshold at a time"), PartEngine(1, 2):
        run()
    assert not (folder / "attributes").exists() and not (folder / "signatures").exists()
