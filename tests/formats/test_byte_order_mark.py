"""A byte order mark at the beginning of JSON lines is skipped by all that read them, whatever the verb."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.documents.lineage.chain import read_raw
from feedmill.errors import DataError

MARK = b"\xef\xbb\xbf"
ROWS = [{"id": f"d{n}", "text": f"some words {n}", "n": n} for n in range(4)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    path = tmp_path / "documents/a.jsonl"
    path.parent.mkdir()
    path.write_bytes(MARK + LINES)
    (tmp_path / "documents/b.jsonl.gz").write_bytes(gzip.compress(MARK + LINES))
    return path


@pytest.mark.parametrize("prepared", [False, True])
def test_a_dataset_of_lines(marked: Path, prepared: bool) -> None:
    if prepared:
        fm.prepare(marked, split_ratio="1,1,0", progress=False)
    dataset = fm.open(marked, split=None)
    assert [sample["json"] for sample in dataset] == ROWS
    assert dataset.costs("n").tolist() == [0, 1, 2, 3]
    assert fm.info(marked).facts["samples"] == 4 and not fm.check(marked, read_samples=True, progress=False).findings


def test_documents(marked: Path, tmp_path: Path) -> None:
    assert fm.documents.stat([marked.parent], progress=False).stats.rows == 8
    assert fm.tag([marked.parent], ["char_length_v1"], name="q", workers=1, progress=False).rows == 8
    assert fm.dedupe([marked.parent], by="documents", workers=1, progress=False).documents == 4
    assert fm.import_data(marked, tmp_path / "out", workers=1, progress=False).samples == 4
    assert json.loads(read_raw(str(marked), [0])[0]) == ROWS[0]


def test_a_mark_elsewhere_is_an_error(marked: Path) -> None:
    marked.write_bytes(LINES + MARK + LINES)
    with pytest.raises(DataError, match="byte order mark"):
        fm.open(marked)
