"""The tables of the pages dedupe.md and neardedupe.md: which copies of a text each kind of comparison finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.kernels.hashing.shingles import characters
from helpers.document_folders import attributes, write_documents
from oracles.shingles import shingles

DOCS = Path(__file__).parents[2] / "docs"
WORDS = (
    "the of and harbour keeper winter lantern that old with river bridge under stone for every morning boat found "
    "letter from garden were taken before rain could reach market by evening"
)


@cache
def paragraphs(seed: int, count: int = 4) -> tuple[str, ...]:
    """Paragraphs of five sentences, all of them different."""
    numbers = random.Random(seed)

    def sentence() -> str:
        return " ".join(numbers.choices(WORDS.split(), k=12)).capitalize() + ". "

    return tuple("".join(sentence() for _ in range(5)).strip() for _ in range(count))


TEXT, OTHER = paragraphs(0), paragraphs(1)


def changed(text: str, every: int) -> str:
    words = text.split(" ")
    words[every // 2 :: every] = ["altered"] * len(words[every // 2 :: every])
    return " ".join(words)


def inside(text: str, part: str) -> str:
    """Put a part into the middle of a text, where no paragraph ends."""
    half = len(text) // 2
    return f"{text[:half]} {part} {text[half:]}"


WHOLE = "\n".join(TEXT)
FORMS: dict[str, tuple[str, tuple[int, int]]] = {}


def form(name: str, text: str, copied: str | None = None) -> None:
    """Add a form: the document, and which part of it is a copy; None: all of it."""
    start = 0 if copied is None else text.index(copied)
    FORMS[name] = text, (start, len(text) if copied is None else start + len(copied))


form("the whole text, byte for byte", WHOLE)
form("with a footer of ten words", f"{WHOLE}\n{' '.join(OTHER[0].split()[:10])}", WHOLE)
form("paragraphs in another order", "\n".join(TEXT[::-1]))
form("wrapped at other lines", WHOLE.replace(". ", ".\n"))
form("in upper case", WHOLE.upper())
form("without punctuation", WHOLE.replace(".", ""))
form("one word in 100 changed", changed(WHOLE, 100))
form("one word in 10 changed", changed(WHOLE, 10))
form("one paragraph of it in another text", "\n".join([OTHER[0], TEXT[1], OTHER[1], OTHER[2]]), TEXT[1])
form("one paragraph in the middle of another", "\n".join([inside(OTHER[0], TEXT[1]), *OTHER[1:]]), TEXT[1])
form("70 letters of it in the middle of another", "\n".join([inside(OTHER[0], TEXT[1][:70]), *OTHER[1:]]), TEXT[1][:70])
form("the second half of it", "\n".join(TEXT[2:]))
form("paraphrased", "\n".join(paragraphs(2)))
KINDS: dict[str, Callable[[str], Any]] = {
    "documents": lambda d: fm.dedupe(d, name="found", progress=False, workers=1),
    "paragraphs": lambda d: fm.dedupe(d, "paragraphs", name="found", progress=False, workers=1),
    "ngrams": lambda d: fm.dedupe(d, "ngrams", name="found", progress=False, workers=1),
    "substrings": lambda d: fm.dedupe(d, "substrings", name="found", progress=False, workers=1),
    "neardedupe": lambda d: fm.neardedupe(d, name="found", progress=False, workers=1),
}


def table(head: list[str], rows: list[list[str]]) -> str:
    return "".join("| " + " | ".join(row) + " |\n" for row in (head, ["---"] * len(head), *rows)).replace(
        "| --- ", "|---"
    )


def found(folder: Path, text: str, copied: tuple[int, int], run: Callable[[str], Any]) -> str:
    write_documents(folder, [WHOLE, text])
    run(f"{folder}/documents")
    low, high = copied
    spans = attributes(folder, "found")[0][1]["attributes"].get("found", [])
    covered = sum(max(0, min(high, end) - max(low, start)) for start, end, _ in spans)
    return "yes" if 2 * covered >= high - low else "no"


def test_the_table_of_dedupe(tmp_path: Path) -> None:
    rows = [
        [name, *(found(tmp_path / f"{n}/by-{kind}", text, copied, run) for kind, run in KINDS.items())]
        for n, (name, (text, copied)) in enumerate(FORMS.items())
    ]
    wanted = table(["copy", *(f"`{kind}`" for kind in KINDS)], rows)
    assert wanted in (DOCS / "dedupe.md").read_text()


def test_the_table_of_neardedupe(tmp_path: Path) -> None:
    rows, rules = [], characters()
    first = set(shingles(WHOLE, 5, rules))
    for n, (name, (text, _)) in enumerate(FORMS.items()):
        own = set(shingles(text, 5, rules))
        similarity = len(first & own) / len(first | own)
        marks = []
        for threshold in (0.8, 0.5):
            folder = tmp_path / f"{n}/{threshold}"
            write_documents(folder, [WHOLE, text])
            fm.neardedupe(f"{folder}/documents", threshold=threshold, progress=False, workers=1)
            row = attributes(folder, "dup_near")[0][1]
            marks.append("yes" if row["attributes"]["dup_near"] else "no")
            if "similarity" in row:
                assert row["similarity"] == pytest.approx(similarity)
        rows.append([name, f"{similarity:.2f}", *marks])
    wanted = table(["copy", "similarity", "at 0.8", "at 0.5"], rows)
    assert wanted in (DOCS / "neardedupe.md").read_text()
