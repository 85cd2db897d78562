"""What merge and shuffle read of inputs in a bucket: ranges, or one copy for all files that they write."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.formats.tokens.base import TokenShard
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.storage import LocalStore, open_store
from feedmill.storage.cache.copies import copied_ranges
from feedmill.tokens import corpus as corpus_module
from feedmill.tokens.corpus import Corpus, Documents
from helpers.durations import examples
from helpers.engine_verbs import copies, download
from helpers.faces import face_of
from helpers.kills import finish

SIZE = 6 << 20
"""Bytes of the tokens of the input."""
PER_FILE = SIZE // 2 // 5
"""Tokens of an output file: there are six or so."""


@pytest.fixture
def served(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """The bytes that the server sent of each object."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    answer, sent = DomainDispatcherApplication.__call__, Counter[str]()

    def counting(self: Any, environ: dict[str, Any], start: Any) -> Any:
        def begin(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            if environ["REQUEST_METHOD"] == "GET":
                name = environ["PATH_INFO"].rpartition("/")[2]
                sent[name] += sum(int(value) for key, value in headers if key.lower() == "content-length")
            return start(status, headers, *more)

        return answer(self, environ, begin)

    monkeypatch.setattr(DomainDispatcherApplication, "__call__", counting)
    yield sent


@pytest.fixture
def inputs(s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A token file of `SIZE` in a bucket, and the same in `tmp_path`."""
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    numbers = np.random.default_rng(4)
    lengths = np.full(SIZE // 2 // 512, 512)
    with write_pbin(LocalStore(tmp_path / "in"), "a.pbin", 2) as writer:
        writer.add(numbers.integers(0, 1 << 16, int(lengths.sum()), np.uint16), lengths)
    open_store(f"{s3_bucket}/in").write_bytes("a.pbin", (tmp_path / "in/a.pbin").read_bytes())
    return f"{s3_bucket}/in"


@pytest.mark.parametrize(
    ("verb", "options", "most"),
    [
        ("merge", {}, 1.1),  # each file reads its range
        ("shuffle", {"seed": 3}, 1.1),  # documents from everywhere: one copy
        ("shuffle", {"seed": 3, "chunk": PER_FILE + 2}, 1.3),  # few long ranges
    ],
)
def test_inputs_are_sent_once(
    verb: str, options: dict[str, Any], most: float, inputs: str, served: Counter[str], tmp_path: Path
) -> None:
    """They were sent once for each file that is written."""
    call = face_of(verb)
    options = {**options, "max_tokens_per_file": PER_FILE, "workers": 1, "progress": False}
    report = call([str(tmp_path / "in")], str(tmp_path / "here/{part}.pbin"), **options)
    assert len(report.outputs) > 3 and not served
    call([inputs], f"{inputs}-{verb}/{{part}}.pbin", **options)
    assert SIZE <= served["a.pbin"] < most * SIZE
    there = download(f"{inputs}-{verb}", tmp_path / "there")
    for path in (tmp_path / "here").glob("*.pbin"):
        assert (there / path.name).read_bytes() == path.read_bytes()
    assert not copies(tmp_path / "cache")


def test_processes_share_the_copy(inputs: str, served: Counter[str], tmp_path: Path) -> None:
    words = ["tokens", "shuffle", inputs, f"{inputs}-out/{{part}}.pbin", "--seed", "3", "--workers", "2"]
    finish([*words, "--max-tokens-per-file", str(PER_FILE)], tmp_path)
    assert SIZE <= served["a.pbin"] < 1.1 * SIZE
    assert not copies(tmp_path / "cache")


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=1, max_size=3), st.randoms(), st.integers(0, 6))
def test_reads_have_every_document(lengths: list[list[int]], random: random.Random, gap: int) -> None:
    shards = []
    for counts in lengths:
        bounds = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        shard = TokenShard("a", np.dtype("u2"), 0, int(bounds[-1]), len(counts), partial(np.asarray, bounds))
        shards.append((SimpleNamespace(is_local=False), shard))
    firsts = np.concatenate(([0], np.cumsum([len(counts) for counts in lengths])))
    corpus: Any = Corpus(shards, "pbin", np.dtype("u2"), 2, None, [], "", firsts, True)  # type: ignore[arg-type]
    units = Documents(corpus)
    numbers = np.array(random.sample(range(len(units)), random.randint(0, len(units))), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "_GAP", 2 * gap)
        patch.setattr(corpus_module, "_AT_ONCE", 4)
        reads = corpus_module.reads_of(corpus, units, numbers)
    for shard, start, length in zip(*units.spans(numbers), strict=True):
        found = reads[int(shard)]
        assert any((found.begins <= start) & (start + length <= found.ends))
    wanted = sum(found.tokens for found in reads.values())
    assert wanted == int(units.lengths(numbers).sum())
    assert all((found.begins[1:] - found.ends[:-1] > gap).all() for found in reads.values())


def test_ranges_are_at_their_offsets(inputs: str, served: Counter[str], tmp_path: Path) -> None:
    wanted = (tmp_path / "in/a.pbin").read_bytes()
    begins, ends = np.array([3, 5 << 20]), np.array([100, len(wanted) + 9])
    with copied_ranges(open_store(inputs), "a.pbin", begins, ends) as path:
        found = path.read_bytes()
    assert len(found) == len(wanted) and found[3:100] == wanted[3:100] and found[5 << 20 :] == wanted[5 << 20 :]
    assert not any(found[100 : 5 << 20]) and served["a.pbin"] < 2 << 20
    assert not path.exists()
