"""The notebooks are those of their pages, and their cells run."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

from helpers.pages import Block, Session

NOTEBOOKS = Path(__file__).parents[2] / "docs/notebooks"
MADE = runpy.run_path(str(NOTEBOOKS / "make.py"))["notebooks"]()


def test_the_notebooks_are_current() -> None:
    assert sorted(MADE) == sorted(NOTEBOOKS.glob("*.ipynb")) and len(MADE) == 3
    stale = [path.name for path, text in MADE.items() if path.read_text() != text]
    assert not stale, "run: python docs/notebooks/make.py"


def run(path: Path) -> tuple[int, str]:
    """Run the cells as IPython does: commands, files, Python. Return their number and what they print."""
    session, count, printed = Session(path), 0, ""
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"]) + "\n"
        if cell["cell_type"] != "code":
            continue
        count += 1
        if source.startswith("!"):
            for command in re.sub(r"\\\n", " ", source).strip().split("\n"):
                printed += session.command(shlex.split(command[1:]), command[1:], "")
                assert session.status == 0, command
        elif source.startswith("%%writefile "):
            head, _, body = source.partition("\n")
            Path(head.split()[1]).write_text(body)
        else:
            session.python(Block("python", "", source, 0))
            printed += session.printed
    return count, printed


WHOLE = [
    pytest.param(path, marks=[] if path.stem == "order" else [pytest.mark.slow], id=path.stem) for path in sorted(MADE)
]


@pytest.mark.parametrize("path", WHOLE)
def test_the_cells_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    if path.stem != "order":
        pytest.importorskip("torch")
    count, printed = run(path)
    assert count >= 3
    expected = {
        "order": "True True",
        "text_to_gpt": "60 steps, at row 360",
        "images_and_captions": "36 32 True",
    }
    assert expected[path.stem] in printed
