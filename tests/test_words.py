"""The words of the project: phrases that no page, message, docstring or comment has."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INSTEAD = {
    r"data sets?": "dataset",
    r"so many": "N, or a number of",
    r"makes? no sense": "cannot be, must be, expected",
    r"mend(s|ed|ing)?": "fix, repair",
    r"lets? go of": "release",
    r"told": "report, log",
    r"(is|are|was|were) said": "report, log",
    r"go(es)? on": "resume, continue",
    r"anew": "again, from the beginning",
    r"holds? against": "override",
    r"goes before": "override",
    r"(is|are) to be": "must be",
    r"(can|may) be had": "are available",
    r"by and by": "in steps",
    r"where that is due": "if the interval has passed",
    r"learnt": "learned, contributes to the loss",
    r"is no more": "has exited",
    r"what is known of": "the facts about",
    r"of its own accord": "by itself",
    r"all is well": "no problems found",
}
WRONG = re.compile(r"\b(" + "|".join(INSTEAD).replace(" ", r"\s+(?:#\s*)?") + r")\b", re.IGNORECASE)
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
    if path.name != "CHANGELOG.md"  # its released sections are history
)
ROOMS = sorted(path.name for path in (ROOT / "src/feedmill").iterdir() if path.is_dir() and path.name != "__pycache__")


def wrong(path: Path, text: str) -> list[str]:
    """File, line and phrase of each that is wrong, and what to write instead."""
    found = []
    for match in WRONG.finditer(text):
        phrase = " ".join(match[0].replace("#", " ").split())
        instead = next(word for pattern, word in INSTEAD.items() if re.fullmatch(pattern, phrase, re.IGNORECASE))
        line = text.count("\n", 0, match.start()) + 1
        found.append(f"{path.relative_to(ROOT)}:{line}: {phrase!r}: write {instead}")
    return found


def prose_of(source: str) -> str:
    """Strings and comments of a module, in their places; all else is blank."""
    lines = source.split("\n")
    kept = [" " * len(line) for line in lines]
    wanted = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in wanted:
            (first, begin), (last, end) = token.start, token.end
            for row in range(first - 1, last):
                left, right = begin if row == first - 1 else 0, end if row == last - 1 else len(lines[row])
                kept[row] = kept[row][:left] + lines[row][left:right] + kept[row][right:]
    return "\n".join(kept)


def test_phrases_are_found_wherever_they_stand() -> None:
    source = 'told = 1\nx = "it is  said"  # goes\n# on\ny = """\nall is\n    well"""\n'
    found = wrong(ROOT / "x.py", prose_of(source))
    assert [line.split(": write")[0] for line in found] == [
        "x.py:2: 'is said'",
        "x.py:2: 'goes on'",
        "x.py:5: 'all is well'",
    ]
    assert wrong(ROOT / "x.md", "the data\nset is shown to be good") == ["x.md:1: 'data set': write dataset"]


def test_pages() -> None:
    assert len(PAGES) > 40
    found = [line for page in PAGES for line in wrong(page, page.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("room", ROOMS)
def test_messages_docstrings_and_comments(room: str) -> None:
    files = sorted((ROOT / "src/feedmill" / room).rglob("*.py"))
    assert files
    found = [line for file in files for line in wrong(file, prose_of(file.read_text(encoding="utf-8")))]
    assert not found, "\n".join(found)


def test_the_modules_beside_the_rooms() -> None:
    files = sorted((ROOT / "src/feedmill").glob("*.py"))
    found = [line for file in files for line in wrong(file, prose_of(file.read_text(encoding="utf-8")))]
    assert files and not found, "\n".join(found)
