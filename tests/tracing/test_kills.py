"""Killed at any moment, `filter` and `tokenize` finish with the lineage of an undisturbed run, and leave none wrong."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from feedmill.documents.lineage.chain import read_raw
from feedmill.documents.lineage.sidecar import read_lineage
from helpers.kills import finish, moments, run_until_killed
from helpers.lineage_data import TOKENIZER, make_raw

FILTER = ["filter", "filter.yaml", "--workers", "1"]
TOKENIZE = ["tokenize", "documents", "-o", "tokens/web", "--to", "pbin,ds,vla-text", "--seq-len", "31", "-t", TOKENIZER]
NUMBERED = ["tokenize", "documents", "-o", "numbered/web", "--max-file-size", "4kB", "-t", TOKENIZER]
VERBS = {"filter": FILTER, "tokenize": [*TOKENIZE, "--workers", "1"], "numbered": [*NUMBERED, "--workers", "1"]}


def rules(least: float) -> str:
    stream = {
        "name": "kept",
        "documents": ["documents/*"],
        "attributes": ["quality"],
        "filter": {"include": [f"$.attributes[?(@.good[0][2] >= {least})]"]},
        "output": {"path": "kept", "max_size_in_bytes": 1},
    }
    return yaml.safe_dump({"streams": [stream]})


def lineages(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.lineage"))}


def check_kept(folder: Path) -> None:
    """A file of the filter has its own lineage, or none."""
    for path in (folder / "kept").glob("*.gz") if (folder / "kept").is_dir() else ():
        lineage = read_lineage(str(path))
        rows = read_raw(str(path), [0])
        if lineage is not None:
            ((file, row),) = lineage.origins(0)
            raw = read_raw(lineage.inputs[file], [row])[row]
            assert raw.split(b'"text": ')[1].split(b'"')[1] in rows[0]


@pytest.mark.parametrize("verb", ["filter", pytest.param("tokenize", marks=pytest.mark.slow), "numbered"])
@moments(3, (0, 1, 2, 3, 4, 6, 8, 11))
def test_a_killed_run_finishes_with_the_same_lineage(
    tmp_path: Path, verb: str, moments: Sequence[int], least: int
) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "out"
    make_raw(folder, 60, files=2)
    (folder / "filter.yaml").write_text(rules(0.4))
    shutil.copytree(folder, whole)
    finish(VERBS[verb], whole)
    wanted = lineages(whole)
    assert len(wanted) >= 2
    killed = 0
    for moment in moments:
        if not run_until_killed(moment, VERBS[verb], folder):
            break
        killed += 1
        check_kept(folder)
    assert killed >= least
    finish(VERBS[verb], folder)
    assert lineages(folder) == wanted


def test_a_run_with_other_rules_that_is_killed_leaves_no_lineage_of_the_old_output(tmp_path: Path) -> None:
    make_raw(tmp_path, 60, files=2)
    (tmp_path / "filter.yaml").write_text(rules(0.4))
    finish(FILTER, tmp_path)
    for moment in range(6):
        (tmp_path / "filter.yaml").write_text(rules(0.5 + moment / 20))
        killed = run_until_killed(moment, FILTER, tmp_path)
        check_kept(tmp_path)
        assert killed or moment > 3
