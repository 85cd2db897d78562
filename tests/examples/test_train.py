"""examples/train.py, as a user would run it: some steps, then more, in one go and in two."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
PROGRAM = Path(__file__).parents[2] / "examples" / "train.py"


def run(*arguments: object) -> str:
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_here(*arguments: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(PROGRAM), *map(str, arguments)])
        runpy.run_path(str(PROGRAM), run_name="__main__")


def test_two_runs_end_where_one_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({"text": f"document {n} " * (1 + n % 7)}) for n in range(50)]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines) + "\n")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("seed: 1\nsource: {path: docs.jsonl, shuffle: global}\n")
    whole, halves = tmp_path / "whole.pt", tmp_path / "halves.pt"
    run_here(recipe, "--steps", 40, "--checkpoint", whole)
    one = capsys.readouterr().out
    run_here(recipe, "--steps", 20, "--checkpoint", halves, "--workers", 0)  # the run that resumes is another process
    two = run(recipe, "--steps", 40, "--checkpoint", halves, "--workers", 1)
    assert "resumed at step 20, sample 320" in two
    assert one.splitlines()[-1] == two.splitlines()[-1]
    ours, theirs = (torch.load(path, weights_only=True) for path in (whole, halves))
    assert torch.equal(ours["model"]["weight"], theirs["model"]["weight"])
    assert json.loads(ours["data"])["position"] == json.loads(theirs["data"])["position"] == 640
