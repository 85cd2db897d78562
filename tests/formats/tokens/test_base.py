"""What all token formats share: spans, files without documents, missing indices, manifests."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import DataError, NotFound
from feedmill.formats.base import TokenReader
from feedmill.formats.tokens.base import COUNTED, TokenDataset, TokenShard
from feedmill.formats.tokens.manifest import Skipped, TokenManifest, read_manifest, tokenizer_words, write_manifest
from feedmill.formats.tokens.pbin import open_pbin
from feedmill.storage import LocalStore
from helpers import warm
from helpers.durations import examples

DOCS = st.lists(st.lists(st.integers(0, 255), max_size=6), max_size=6)


def make(folder: Path, files: list[list[list[int]]], *, dtype: str = "<u2", known: bool = True) -> TokenDataset:
    shards = []
    for number, docs in enumerate(files):
        flat = np.array([t for doc in docs for t in doc], dtype)
        (folder / f"{number}.ds").write_bytes(b"head" + flat.tobytes())
        bounds = np.concatenate(([0], np.cumsum([len(doc) for doc in docs], dtype=np.int64)))
        documents = len(docs) if known else COUNTED
        shards.append(
            TokenShard(f"{number}.ds", np.dtype(dtype), 4, len(flat), documents, lambda bounds=bounds: bounds)
        )
    return TokenDataset(LocalStore(folder), shards, name=str(folder), format="test")


@settings(max_examples=examples(100), deadline=None)
@given(
    files=st.lists(DOCS, min_size=1, max_size=4),
    dtype=st.sampled_from(["u1", "<u2", ">u4"]),
    known=st.booleans(),
    data=st.data(),
)
def test_documents_and_spans(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[list[int]]], dtype: str, known: bool, data: st.DataObject
) -> None:
    docs = [doc for file in files for doc in file]
    dataset = make(tmp_path_factory.mktemp("x"), files, dtype=dtype, known=known)
    assert isinstance(dataset, TokenReader)
    assert (len(dataset), dataset.tokens) == (len(docs), sum(map(len, docs)))
    assert dataset.lengths.tolist() == [len(doc) for doc in docs]
    assert [sample["input_ids"].tolist() for sample in dataset] == docs
    if not docs:
        return
    order = data.draw(st.lists(st.integers(0, len(docs) - 1), max_size=10))
    starts = [data.draw(st.integers(0, len(docs[i]))) for i in order]
    lengths = [data.draw(st.integers(0, len(docs[i]) - s)) for i, s in zip(order, starts, strict=True)]
    found = dataset.read_tokens(*(np.array(row, np.int64) for row in (order, starts, lengths)))
    assert [f.tolist() for f in found] == [docs[i][s : s + n] for i, s, n in zip(order, starts, lengths, strict=True)]


@pytest.mark.parametrize(("start", "length"), [(0, 4), (3, 1), (-1, 1), (1, -1), (2, 2)])
def test_spans_outside_of_a_document_are_refused(start: int, length: int, tmp_path: Path) -> None:
    dataset = make(tmp_path, [[[1, 2, 3], [4, 5, 6, 7]]])
    with pytest.raises(DataError, match=r"'0'.* outside the document's 3 tokens"):
        dataset.read_tokens(np.array([1, 0]), np.array([0, start]), np.array([4, length]))


def test_a_missing_index_of_documents(tmp_path: Path) -> None:
    (tmp_path / "x.ds").write_bytes(bytes(20))
    shard = TokenShard("x.ds", np.dtype("<u2"), 0, 10, None, lambda: np.zeros(0, np.int64))
    dataset = TokenDataset(LocalStore(tmp_path), [shard], name="x.ds", format="ds")
    for use in (len, lambda d: d.lengths, lambda d: d.read([0]), lambda d: d.find("0")):
        with pytest.raises(NotFound, match=r"x\.ds: the index of documents is missing"):
            use(dataset)
    facts = dataset.describe()
    assert (facts["samples"], facts["indexed"], facts["tokens"]) == (None, False, 10)


def test_counting_waits_until_it_is_asked_for(tmp_path: Path) -> None:
    loaded = []

    def load() -> np.ndarray:
        loaded.append(1)
        return np.array([0, 2, 5])

    (tmp_path / "x").write_bytes(bytes(10))
    shard = TokenShard("x", np.dtype("<u2"), 0, 5, COUNTED, load)
    dataset = TokenDataset(LocalStore(tmp_path), [shard], name="x", format="x")
    assert (dataset.tokens, dataset.fingerprint(), loaded)[2] == []
    assert (len(dataset), len(dataset), dataset.lengths.tolist(), loaded) == (2, 2, [2, 3], [1])


def test_manifests(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    manifest = TokenManifest("pbin", 3, 40, skipped=1, skipped_examples=[Skipped("a.jsonl", 4, "empty text")])
    write_manifest(store, "x.pbin", manifest)
    assert read_manifest(store, "x.pbin") == manifest
    assert read_manifest(store, "y.pbin") is None
    assert tokenizer_words(store, ["x.pbin", "y.pbin"]) == {}
    for other in ('{"format": "pbin", "documents": 1, "tokens": 1, "version": 99}', "[", "{}"):
        (tmp_path / "x.pbin.feedmill.json").write_text(other)
        assert read_manifest(store, "x.pbin") is None


WRITER = """
import sys, numpy as np
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.storage import LocalStore
with write_pbin(LocalStore(sys.argv[1]), "x.pbin", 2) as out:
    for n in range(4000):
        if n % 500 == 0:
            print(n, flush=True)
        out.add(np.full(500, n), np.full(100, 5))
"""


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    def whole(path: Path) -> int:
        dataset = open_pbin(LocalStore(path), "x.pbin", "x")
        assert sum(len(s["input_ids"]) for s in dataset.read(range(len(dataset) - 3, len(dataset)))) == 15
        return len(dataset)

    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    warm.run(command, check=True, capture_output=True)
    old = (tmp_path / "x.pbin").read_bytes()
    assert whole(tmp_path) == 400_000
    killed = 0
    for moment in range(1, 9):
        with warm.Popen(command, stdout=subprocess.PIPE) as child:
            for _ in range(moment):
                child.stdout.readline()
            child.send_signal(signal.SIGKILL)
            killed += child.wait() == -signal.SIGKILL
        assert (tmp_path / "x.pbin").read_bytes() == old
        assert whole(tmp_path) == 400_000
    assert killed >= 1
    warm.run(command, check=True, capture_output=True)
    assert (tmp_path / "x.pbin").read_bytes() == old
