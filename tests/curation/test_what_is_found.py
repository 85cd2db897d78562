"""The tables of docs/dedupe.md and docs/internals/neardedupe.md: which copies of a text each comparison finds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
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


def changed(text: str, every: int) -> str:
    words = text.split(" ")
    words[every // 2 :: every] = ["altered"] * len(words[every // 2 :: every])
    return " ".join(words)


def inside(text: str, part: str) -> str:
    """Put a part into the middle of a text, where no paragraph ends."""
    half = len(text) // 2
    return f"{text[:half]} {part} {text[half:]}"


Made = tuple[str, str | None]
"""A document, and which part of it is a copy; None: all of it."""
FORMS: dict[str, Callable[[str, tuple[str, ...], tuple[str, ...]], Made]] = {
    "the whole text, byte for byte": lambda whole, text, other: (whole, None),
    "with a footer of ten words": lambda whole, text, other: (f"{whole}\n{' '.join(other[0].split()[:10])}", whole),
    "paragraphs in another order": lambda whole, text, other: ("\n".join(text[::-1]), None),
    "wrapped at other lines": lambda whole, text, other: (whole.replace(". ", ".\n"), None),
    "in upper case": lambda whole, text, other: (whole.upper(), None),
    "without punctuation": lambda whole, text, other: (whole.replace(".", ""), None),
    "one word in 100 changed": lambda whole, text, other: (changed(whole, 100), None),
    "one word in 10 changed": lambda whole, text, other: (changed(whole, 10), None),
    "one paragraph of it in another text": lambda whole, text, other: (
        "\n".join([other[0], text[1], other[1], other[2]]),
        text[1],
    ),
    "one paragraph in the middle of another": lambda whole, text, other: (
        "\n".join([inside(other[0], text[1]), *other[1:]]),
        text[1],
    ),
    "70 letters of it in the middle of another": lambda whole, text, other: (
        "\n".join([inside(other[0], text[1][:70]), *other[1:]]),
        text[1][:70],
    ),
    "the second half of it": lambda whole, text, other: ("\n".join(text[2:]), None),
    "paraphrased": lambda whole, text, other: ("\n".join(other), None),
}


def pairs() -> Iterator[tuple[str, str, tuple[int, int]]]:
    """For each form a text of its own, so that one run compares all of them, the copy, and where it is copied."""
    for n, make in enumerate(FORMS.values()):
        text, other = paragraphs(2 * n), paragraphs(2 * n + 1)
        whole = "\n".join(text)
        copy, part = make(whole, text, other)
        start = 0 if part is None else copy.index(part)
        yield whole, copy, (start, len(copy) if part is None else start + len(part))


KINDS: dict[str, Callable[[str], Any]] = {
    "documents": lambda d: fm.dedupe(d, name="found", progress=False, workers=1),
    "paragraphs": lambda d: fm.dedupe(d, "paragraphs", name="found", progress=False, workers=1),
    "ngrams": lambda d: fm.dedupe(d, "ngrams", name="found", progress=False, workers=1),
    "substrings": lambda d: fm.dedupe(d, "substrings", name="found", progress=False, workers=1),
    "dedupe --near": lambda d: fm.dedupe(d, near=True, name="found", progress=False, workers=1),
}


def table(head: list[str], rows: list[list[str]]) -> str:
    return "".join("| " + " | ".join(row) + " |\n" for row in (head, ["---"] * len(head), *rows)).replace(
        "| --- ", "|---"
    )


def copies(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of the copies, which follow their texts."""
    return [row for rows in attributes(folder, name) for row in rows][1::2]


def found(folder: Path, run: Callable[[str], Any]) -> list[str]:
    """For each form whether at least half of what is copied is marked."""
    write_documents(folder, [text for whole, copy, _ in pairs() for text in (whole, copy)])
    run(f"{folder}/documents")
    marked = []
    for row, (_, _, (low, high)) in zip(copies(folder, "found"), pairs(), strict=True):
        spans = row["attributes"].get("found", [])
        covered = sum(max(0, min(high, end) - max(low, start)) for start, end, _ in spans)
        marked.append("yes" if 2 * covered >= high - low else "no")
    return marked


def test_the_table_of_dedupe(tmp_path: Path) -> None:
    columns = [found(tmp_path / f"by-{kind}", run) for kind, run in KINDS.items()]
    rows = [list(row) for row in zip(FORMS, *columns, strict=True)]
    wanted = table(["copy", *(f"`{kind}`" for kind in KINDS)], rows)
    assert wanted in (DOCS / "dedupe.md").read_text(), wanted


def test_the_table_of_neardedupe(tmp_path: Path) -> None:
    rules = characters()
    rows = []
    for name, (whole, copy, _) in zip(FORMS, pairs(), strict=True):
        first, own = (set(shingles(text, 5, rules)) for text in (whole, copy))
        rows.append([name, f"{len(first & own) / len(first | own):.2f}"])
    for threshold in (0.8, 0.5):
        folder = tmp_path / f"{threshold}"
        write_documents(folder, [text for whole, copy, _ in pairs() for text in (whole, copy)])
        fm.dedupe(f"{folder}/documents", near=True, threshold=threshold, progress=False, workers=1)
        for attribute, row in zip(copies(folder, "dup_near"), rows, strict=True):
            row.append("yes" if attribute["attributes"]["dup_near"] else "no")
            if "similarity" in attribute:
                assert attribute["similarity"] == pytest.approx(float(row[1]), abs=0.006)
    wanted = table(["copy", "similarity", "at 0.8", "at 0.5"], rows)
    assert wanted in (DOCS / "internals/neardedupe.md").read_text(), wanted
