"""A Bloom filter in stages, as on engines: the bytes of the run that fills it in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.curation.dedupe import bloomed
from feedmill.curation.dedupe.job import find_duplicates
from feedmill.curation.options import DOCUMENTS, NGRAMS, PARAGRAPHS, Dedupe
from feedmill.errors import DataError, NotFound, StorageError
from feedmill.formats.bloom import read_bloom, read_bloom_head
from feedmill.jobs.engine import StageUnfinished
from feedmill.jobs.parts import PartEngine
from feedmill.storage import LocalStore
from feedmill.storage.locks import FileLock
from helpers.document_folders import texts, write_documents, write_lines
from helpers.kills import contents, kill_everywhere, moments

FILES = [texts(23), texts(17, seed=1), [], texts(5)]
KINDS: dict[str, dict[str, Any]] = {
    "documents": {"by": DOCUMENTS},
    "a third of the documents": {"by": DOCUMENTS, "keep_empty": True, "partitions": 3, "partition": 1},
    "paragraphs": {"by": PARAGRAPHS, "keep_empty": True},
    "half the ngrams": {"by": NGRAMS, "ngram": 3, "threshold": 0.4, "partitions": 2, "partition": 1},
    "ngrams": {"by": NGRAMS, "ngram": 3, "stride": 2, "threshold": 0.4},
}


def run(root: Path, kind: str, engine: bool, files: Any = FILES, **settings: Any) -> dict[str, Any]:
    if files:  # else those that are there
        write_documents(root, *files)
    bloom = {"bloom": f"{root}/seen.bin", "items": 1000, "false_positives": 1e-3, **settings}
    options = Dedupe([f"{root}/documents"], name="dup", workers=1, progress=False, **KINDS[kind], **bloom)
    find = lambda: find_duplicates(options)  # noqa: E731
    if not engine:
        return find().as_dict()
    with PartEngine(finish=True):
        return find().as_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bytes(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a new filter, into one that other documents have filled, again, and without filling it."""
    monkeypatch.setattr(bloomed, "FILLED_AT_ONCE", 100)
    monkeypatch.setattr("feedmill.curation.dedupe.segments.SEGMENT", 1)
    monkeypatch.setattr("feedmill.formats.documents.BLOCK", 100)
    whole, staged = tmp_path / "whole", tmp_path / "staged"
    steps = [FILES, [texts(30, seed=3), *FILES[1:]], FILES]
    for files, redo in zip(steps, (False, False, True), strict=True):
        wanted = run(whole, kind, False, files, defects=redo)
        assert wanted == run(staged, kind, True, files, defects=redo) and wanted["units"] and wanted["fill"]
        assert contents(staged) == contents(whole)
    before = (whole / "seen.bin").read_bytes()
    wanted = run(whole, kind, False, [texts(40)], read_only=True, items=0)
    assert wanted == run(staged, kind, True, [texts(40)], read_only=True, items=0)
    assert contents(staged) == contents(whole) and (staged / "seen.bin").read_bytes() == before
    assert run(staged, kind, True, (), read_only=True, items=0)["skipped"]
    left = [path.name for path in staged.rglob("*") if "feedmill-" in path.name]
    assert not left, "unfinished work is left"


def test_large_filters_have_wider_bits() -> None:
    seeds = np.zeros((1, 4), np.uint64)
    assert bloomed.Shape(seeds, 1 << 27).bits == np.uint32 and bloomed.Shape(seeds, (1 << 27) + 1).bits == np.uint64


def test_the_head_of_a_filter(tmp_path: Path) -> None:
    run(tmp_path, "documents", False)
    bloom, (seeds, words) = (
        read_bloom(LocalStore(tmp_path), "seen.bin"),
        read_bloom_head(LocalStore(tmp_path), "seen.bin"),
    )
    assert seeds.tolist() == bloom.seeds.tolist() and words == len(bloom.words)
    with open(tmp_path / "seen.bin", "ab") as f:
        f.write(b"x")
    with pytest.raises(DataError, match="corrupt"):
        read_bloom_head(LocalStore(tmp_path), "seen.bin")


def test_a_missing_filter_and_a_bad_row(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        run(tmp_path, "documents", True, read_only=True, items=0)
    write_lines(tmp_path / "documents/part-9.jsonl", [json.dumps({"id": "a", "text": "b"}), "{"])
    with pytest.raises(DataError, match=r"part-9\.jsonl.*line 2"):
        run(tmp_path, "documents", True)
    assert not list(tmp_path.glob("attributes/dup/*.jsonl*")) and not (tmp_path / "seen.bin").exists()


@pytest.mark.parametrize("changed", [False, True])
def test_begun_in_parts_and_finished_on_one_machine(tmp_path: Path, changed: bool) -> None:
    run(tmp_path / "whole", "paragraphs", False)
    write_documents(tmp_path / "parts", *FILES)
    for part in (1, 2, 1, 2):
        with pytest.raises(StageUnfinished), PartEngine(part, 2):
            run(tmp_path / "parts", "paragraphs", False, ())
    work = tmp_path / "parts/attributes/dup/.feedmill-work"
    assert list(work.glob("filter-*")) and not (tmp_path / "parts/seen.bin").exists()
    run(tmp_path / "parts", "paragraphs", False, FILES if changed else ())
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert not list(tmp_path.rglob("*feedmill-work")) and not list(tmp_path.rglob("*feedmill-lock"))


def test_a_part_does_not_read_a_filter_that_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.curation.dedupe.bloomed.PATIENCE", 0.0)
    what = "another process is writing this filter"
    with FileLock(tmp_path / "seen.bin.feedmill-lock"), pytest.raises(StorageError, match=what), PartEngine(1, 2):
        run(tmp_path, "documents", False)


def make(root: Path) -> None:
    write_documents(root, *FILES[:2])


@moments(5, least=9)
def test_killed_before_any_file_is_in_place(tmp_path: Path, moments: Sequence[int], least: int) -> None:
    words = ["dedupe", "documents", "--by", "paragraphs", "--bloom", "seen.bin", "--items", 1000, "--workers", 1]
    assert kill_everywhere([*words, "--engine", "part", "--finish"], make, tmp_path, moments) >= least
