"""The tutorials: tests/test_docs.py runs each page as it stands, which is small; here they run with more text.

tests/test_release.py follows them with the wheel, in empty folders: the three projects of a newcomer (texts to a
language model, images with captions, shards in a bucket) from their pages alone, with programs of at most ten lines.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers.pages import Session, blocks

TUTORIALS = Path(__file__).parents[2] / "docs/tutorials"
PAGES = sorted(TUTORIALS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_program_is_longer_than_ten_lines(page: Path) -> None:
    programs = [block for block in blocks(page.read_text()) if block.language == "python"]
    assert len(programs) >= 3
    lengths = {block.line: sum(bool(line.strip()) for line in block.text.splitlines()) for block in programs}
    assert max(lengths.values()) <= 10, lengths


@pytest.mark.slow
def test_a_gpt_learns_from_the_whole_standard_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page with all modules and more steps; it does not know the number of documents beforehand."""
    text = (TUTORIALS / "text_to_gpt.md").read_text()
    for old, new in (
        ('.glob("*.py"))[:40]', '.glob("*.py"))'),
        ("STEPS = 30", "STEPS = 60"),
        ("30 steps, the loss fell: True\n```", "60 steps, the loss fell: True\n```"),
        ("60 steps, at row 360", "120 steps, at row 720"),
    ):
        assert old in text
        text = text.replace(old, new)
    for old in ("documents   41", "documents         40", "recognized  41 files", "40 of 41", "1 document of 41"):
        assert old in text
        text = text.replace(old, old.replace("40", "...").replace("41", "..."))
    session = session_of(text, tmp_path, monkeypatch)
    losses = session.names["losses"]
    assert len(losses) == 120
    first, end, resumed = (sum(part) / 20 for part in (losses[:20], losses[40:60], losses[60:80]))
    assert end < first - 0.5  # it has learned,
    assert abs(resumed - end) < 0.5  # and the resumed run knows what it had learned


def session_of(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    (folder / "work").mkdir()
    (folder / "page.md").write_text(text)
    monkeypatch.chdir(folder / "work")
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(folder / "cache"))
    session = Session(folder / "page.md")
    session.run()
    shutil.rmtree(folder / "work")
    return session
