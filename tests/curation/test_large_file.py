"""One large file is the work of all processes in `dedupe` and `neardedupe`, and the bytes stay those of one."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedmill.curation.dedupe import segments
from feedmill.curation.dedupe.job import dedupe
from feedmill.curation.near import parallel, sketch
from feedmill.curation.options import By
from feedmill.errors import DataError
from helpers import warm
from helpers.document_datasets import document, write_documents

WORDS = [f"w{n}" for n in range(300)]
SMALL = (
    "import feedmill.jobs.run; from feedmill.curation.dedupe import segments; from feedmill.curation.near import sketch"
)
SMALL += "; feedmill.jobs.run.LARGE, segments.SEGMENT, sketch.SEGMENT = 1000, 50_000, 50_000\n"
MAIN = "from feedmill.cli.app import main; main()"


def rows(count: int = 3000) -> list[dict[str, Any]]:
    dice = random.Random(4)
    texts = ["\n".join(" ".join(dice.choices(WORDS, k=12)) for _ in range(dice.randint(1, 6))) for _ in range(400)]
    return [
        document(k, f"{dice.choice(texts)}\n{dice.choice(texts)}" if k % 3 else texts[k % 400]) for k in range(count)
    ]


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    write_documents(folder / "documents/large.jsonl.gz", rows)
    write_documents(folder / "documents/small.jsonl", rows[:3])


def attributes(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted((folder / "attributes").glob("*/*.json*"))}


def exact(folder: Path, workers: int, unit: By) -> None:
    dedupe([f"{folder}/documents"], unit, name="d", keep_empty=True, workers=workers, progress=False)


def near(folder: Path, workers: int) -> None:
    dedupe([f"{folder}/documents"], near=True, name="n", threshold=0.7, workers=workers, progress=False)


VERBS: dict[str, Callable[[Path, int], None]] = {
    "documents": lambda folder, workers: exact(folder, workers, "documents"),
    "paragraphs": lambda folder, workers: exact(folder, workers, "paragraphs"),
    "near": near,
}


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Let files of some kilobytes be large ones of many segments. Return what is split, and over how many workers."""
    seen: list[tuple[str, int]] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            seen.append((name, options.get("workers", arguments[-1])))
            return function(*arguments, **options)

        return call

    monkeypatch.setattr("feedmill.jobs.run.LARGE", 1000)
    monkeypatch.setattr(segments, "SEGMENT", 50_000)
    monkeypatch.setattr(sketch, "SEGMENT", 50_000)
    monkeypatch.setattr(segments, "run", noted("dedupe", segments.run))
    monkeypatch.setattr(sketch, "spread_blocks", noted("near", parallel.spread_blocks))
    return seen


@pytest.mark.parametrize("verb", VERBS)
def test_any_number_of_workers_writes_the_same_bytes(verb: str, tmp_path: Path, split: list[tuple[str, int]]) -> None:
    found = []
    for workers in (1, 3):
        write(tmp_path / str(workers), rows())
        VERBS[verb](tmp_path / str(workers), workers)
        found.append(attributes(tmp_path / str(workers)))
        assert workers in {number for _, number in split}, "the large file was read by one worker"
    assert found[0] == found[1] and len(found[0]) == 2
    texts = {name: gzip.decompress(data) if name.endswith(".gz") else data for name, data in found[0].items()}
    assert any(b"[[" in data for data in texts.values()), f"nothing was marked: {sorted(texts)}"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("workers", [1, 3])
def test_an_invalid_row_is_named_with_its_line(
    verb: str, workers: int, tmp_path: Path, split: list[tuple[str, int]]
) -> None:
    wrong = rows()
    del wrong[2500]["text"]
    write(tmp_path, wrong)
    with pytest.raises(DataError) as caught:
        VERBS[verb](tmp_path, workers)
    assert "large.jsonl.gz" in str(caught.value) and "line 2501" in str(caught.value)
    assert not attributes(tmp_path) and split


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("words", [("dedupe", "--by", "paragraphs"), ("dedupe", "--near")], ids=lambda words: words[0])
def test_killed_at_any_moment(words: tuple[str, ...], times: int, tmp_path: Path) -> None:
    """``kill -9`` while several processes share the file, and the same command again."""

    def command(prefix: str, workers: int) -> list[str]:
        verb, *more = words
        return [sys.executable, "-c", prefix + MAIN, verb, "documents", *more, "--name", "d", "--workers", str(workers)]

    whole, killed, dice = tmp_path / "whole", 0, random.Random(3)
    for folder in (whole, tmp_path / "timed", tmp_path / "killed"):
        write(folder, rows())
    warm.run(command("", 1), cwd=whole, check=True, capture_output=True)
    begin = time.monotonic()
    warm.run(command(SMALL, 2), cwd=tmp_path / "timed", check=True, capture_output=True)
    took = time.monotonic() - begin
    wanted = attributes(whole)
    assert attributes(tmp_path / "timed") == wanted and len(wanted) == 2
    for _ in range(12):
        with warm.Popen(command(SMALL, 5), cwd=tmp_path / "killed", stdout=subprocess.DEVNULL) as child:
            time.sleep(took * dice.uniform(0.3, 1))
            killed += child.poll() is None
            child.send_signal(signal.SIGKILL)
        warm.run(command(SMALL, 2), cwd=tmp_path / "killed", check=True, capture_output=True)
        assert attributes(tmp_path / "killed") == wanted
        assert not [name for _, _, names in os.walk(tmp_path / "killed") for name in names if "feedmill-tmp" in name]
        subprocess.run(["rm", "-r", "attributes", ".feedmill"], cwd=tmp_path / "killed", check=True)
        if killed == times:
            break
    assert killed == times, "too few runs were still going when they were to be killed"
