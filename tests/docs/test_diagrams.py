"""The diagrams are drawn from their texts, and show what the pages compute."""

from __future__ import annotations

import runpy
import xml.etree.ElementTree as tree
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NAMES = runpy.run_path(str(DOCS / "diagrams/draw.py"))
DRAWN: dict[Path, str] = NAMES["diagrams"]()


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_the_picture_is_current(path: Path) -> None:
    assert path.read_text() == DRAWN[path], "run: python docs/diagrams/draw.py"


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_all_of_it_lies_inside_the_picture(path: Path) -> None:
    """Texts too, by the mean width of a letter."""
    svg = tree.fromstring(DRAWN[path])
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    space = "{http://www.w3.org/2000/svg}"
    for box in svg.iter(f"{space}rect"):
        left, top = float(box.get("x", 0)), float(box.get("y", 0))
        assert 0 <= left <= left + float(box.attrib["width"]) <= width
        assert 0 <= top <= top + float(box.attrib["height"]) <= height
    texts = list(svg.iter(f"{space}text"))
    assert len(texts) > 5
    for text in texts:
        x, half = float(text.attrib["x"]), 3.3 * len(text.text or "")
        left = x if text.attrib["text-anchor"] == "start" else x - half
        assert left >= 0 and left + 2 * half <= width and 0 < float(text.attrib["y"]) < height, text.text


def test_every_diagram_is_on_a_page_with_a_description() -> None:
    pages = "\n".join(path.read_text() for path in DOCS.rglob("*.md"))
    assert all(f"](../images/{path.name})" in pages for path in DRAWN) and "![](" not in pages


@pytest.mark.parametrize(
    ("name", "row", "page", "shown"),
    [
        ("blend", "cells s", "concepts/blend.md", "ccqccqcccq"),
        ("shuffle", "cells g", "concepts/shuffle.md", "[ 7 0 9 6 8 10 4 1 11 2 5 3]"),
        ("shuffle", "cells b", "concepts/shuffle.md", "[11 10 8 9 2 1 0 3 7 5 4 6]"),
        ("shuffle", "cells w", "concepts/shuffle.md", "[ 2 8 11 0 10 9 3 1 6 5 4 7]"),
    ],
)
def test_a_diagram_shows_what_its_page_prints(name: str, row: str, page: str, shown: str) -> None:
    line = next(line for line in (DOCS / f"diagrams/{name}.txt").read_text().splitlines() if line.startswith(row))
    cells = line.split('"')[1]
    assert "".join(shown.strip("[]").split()) == "".join(cells.split())
    assert "".join(shown.split()) in "".join((DOCS / page).read_text().split())


def test_a_wrong_line_is_named() -> None:
    with pytest.raises(ValueError, match="line 2: 'boks a 1 2'"):
        NAMES["Drawing"]("size 10 10\nboks a 1 2")
    with pytest.raises(ValueError, match=r"line 1: 'arrow a\.r b\.l'"):
        NAMES["Drawing"]("arrow a.r b.l")
