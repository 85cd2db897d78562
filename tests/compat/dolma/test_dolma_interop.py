"""Dolma itself beside Feedmill: it writes the same attributes, and mixes those that Feedmill wrote.

Needs ``FEEDMILL_DOLMA_PYTHON``, a Python that has Dolma 1.2.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from feedmill.curation.tag import tag
from helpers.awkward_texts import PIECES
from helpers.document_datasets import SENTENCE, contents, document, read_json, write_documents

PYTHON = os.environ.get("FEEDMILL_DOLMA_PYTHON")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not PYTHON, reason="FEEDMILL_DOLMA_PYTHON names no Python that has Dolma"),
]
TAGGERS = (
    *("c4_v1", "c4_v2", "gopher_v1", "gopher_v2", "char_length_with_paragraphs_v1", "uniseg_length_paragraphs_v1"),
    *("whitespace_tokenizer_with_paragraphs_v1", "pii_regex_v2", "pii_regex_with_counts_fast_v2", "repetitions_v1"),
)


def dolma(folder: Path, *arguments: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    program = str(Path(str(PYTHON)).with_name("dolma"))
    done = subprocess.run([program, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    pieces = [SENTENCE, *PIECES]
    texts = ["".join(pieces[(k * j) % len(pieces)] for j in range(1, 3 + k % 37)) for k in range(200)]
    for name in ("a", "b"):
        rows = [document(k, text) for k, text in enumerate(texts[:: 1 if name == "a" else -1])]
        write_documents(tmp_path / f"data/documents/{name}/x.jsonl.gz", rows)
    return tmp_path


def test_the_same_attributes(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(corpus)
    dolma(corpus, "tag", "--documents", "data/documents/*/*", "--experiment", "e", "--taggers", *TAGGERS)
    theirs = contents(corpus / "data/attributes/e")
    for path in (corpus / "data/attributes/e").rglob("*.gz"):
        path.unlink()
    tag(["data/documents/*/*"], TAGGERS, name="e", exact=True, progress=False)
    assert contents(corpus / "data/attributes/e") == theirs


def test_dolma_mixes_by_our_attributes(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(corpus)
    tag(["data/documents/*/*"], ["gopher_v2"], name="e", progress=False)
    stream = {
        "name": "kept",
        "documents": ["data/documents/*/*"],
        "attributes": ["e"],
        "output": {"path": "mixed", "max_size_in_bytes": 10**9},
        "filter": {"include": ["$.attributes[?(@.e__gopher_v2__word_count[0][2] >= 10.0)]"], "exclude": []},
    }
    (corpus / "mix.json").write_text(json.dumps({"streams": [stream], "processes": 1}))
    dolma(corpus, "-c", "mix.json", "mix")
    rows = [row for path in (corpus / "mixed").rglob("*.gz") for row in read_json(path)]
    whole = [row for path in sorted((corpus / "data/documents").rglob("*.gz")) for row in read_json(path)]
    assert [row["id"] for row in rows] == [row["id"] for row in whole if len(row["text"].split()) >= 10]
    assert 0 < len(rows) < len(whole)
