from __future__ import annotations

import gzip
import io
import itertools
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.formats.tokens.vla_text import member_header, shard_name, write_vla_text
from feedmill.storage import open_store
from feedmill.tokens.verbs.tokenize import tokenize
from helpers.durations import examples
from helpers.tokenizer_data import EOS, pbin_documents, tokenizer_file, write_lines


def sequences(folder: Path) -> list[list[list[int]]]:
    """The sequences of each shard that the manifest names, read by Python's own modules."""
    found = []
    for line in (folder / "manifest.jsonl").read_text().splitlines():
        entry = json.loads(line)
        with tarfile.open(folder / f"{entry['shard']}.tar") as tar:
            members = [tar.extractfile(member).read() for member in tar.getmembers()]  # type: ignore[union-attr]
            assert all(member.name.endswith(".json.gz") and "." not in member.name[:-8] for member in tar.getmembers())
        found.append([json.loads(gzip.decompress(data)) for data in members])
        assert entry["num_sequences"] == len(found[-1])
    return found


def write(folder: Path, documents: list[list[int]], length: int, most: int, cuts: list[int]) -> int:
    with write_vla_text(open_store(folder.parent), folder.name, length, most) as writer:
        places = sorted({0, *cuts, len(documents)})
        for begin, end in itertools.pairwise(places):
            part = documents[begin:end]
            tokens = np.array([i for document in part for i in document], np.uint32)
            writer.add(tokens, np.array([len(document) for document in part], np.int64))
        return writer.left_over


@settings(deadline=None, max_examples=examples(40))  # each example syncs files to the disk
@given(
    st.lists(st.lists(st.integers(0, 70_000), max_size=9), max_size=12),
    st.integers(2, 6),
    st.integers(1, 4),
    st.lists(st.integers(0, 12), max_size=3),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], length: int, most: int, cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("vla") / "out"
    left = write(folder, documents, length, most, [cut for cut in cuts if cut < len(documents)])
    found = sequences(folder)
    flat = [i for document in documents for i in document]
    assert [i for shard in found for sequence in shard for i in sequence] == flat[: len(flat) - left]
    assert left == len(flat) % length
    assert all(len(sequence) == length for shard in found for sequence in shard)
    assert all(len(shard) == most for shard in found[:-1])


def test_headers_are_those_of_vla_foundry() -> None:
    """The owner, mode and time that the golden shards have; a plain tar for any reader."""
    with tarfile.open(fileobj=io.BytesIO(member_header("1.json.gz", 3) + bytes(512) + bytes(1024))) as tar:
        member = tar.getmembers()[0]
    assert (member.uname, member.gname, member.mode, member.mtime) == ("bigdata", "bigdata", 0o444, 0)
    assert (member.name, member.size) == ("1.json.gz", 3) and shard_name(3) == "shard-000003"


def test_a_run_that_fails_shows_no_manifest_and_a_new_one_none_of_it(tmp_path: Path) -> None:
    write(tmp_path / "x", [[1, 2, 3, 4]] * 9, 2, 3, [])
    with pytest.raises(ZeroDivisionError), write_vla_text(open_store(tmp_path), "x", 2, 3) as writer:
        writer.add(np.arange(9), np.array([9]))
        1 / 0  # noqa: B018
    assert not (tmp_path / "x/manifest.jsonl").exists()
    write(tmp_path / "x", [[1, 2, 3, 4]], 2, 3, [])
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["manifest.jsonl", "shard-000000.tar"]


def test_only_what_an_earlier_run_left_is_removed(tmp_path: Path) -> None:
    write(tmp_path / "out", [[1, 2]] * 5, 2, 1, [])
    others = [tmp_path / "out" / name for name in ("shard-000000.tar.old", "shard-mine.tar", "shard-old/000000.tar")]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    write(tmp_path / "out", [[1, 2]], 2, 1, [])
    assert sorted((tmp_path / "out").rglob("*.tar*")) == sorted([*others, tmp_path / "out/shard-000000.tar"])


@pytest.mark.parametrize(("length", "most"), [(1, 5), (5, 0)])
def test_refused(length: int, most: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError), write_vla_text(open_store(tmp_path), "x", length, most):
        pass


def test_tokenize(tmp_path: Path) -> None:
    """The same tokens as in another format of the same run, on any number of workers; the rest is told."""
    source = write_lines(tmp_path / "a.jsonl", [f"document {n} " * (n % 40) + "end" for n in range(300)])
    options: dict[str, Any] = {"tokenizer": tokenizer_file("tok1k"), "eos": EOS, "unit_bytes": 5_000}
    options |= {"formats": ["pbin", "vla-text"], "seq_len": 31, "shard_sequences": 50}
    report = tokenize([source], tmp_path / "out", workers=2, **options)
    flat = [i for document in pbin_documents(tmp_path / "out.pbin") for i in document]
    found = [i for shard in sequences(tmp_path / "out") for sequence in shard for i in sequence]
    assert found == flat[: len(flat) - report.left_over] and report.left_over == len(flat) % 32
    assert set(report.token_bytes) == {"pbin"}
    again = tokenize([source], tmp_path / "out", workers=1, **options)
    assert again.complete and again.left_over == report.left_over
    with pytest.raises(ConfigError, match="already exists"):
        tokenize([source], tmp_path / "out", workers=1, **{**options, "seq_len": 15})
    tokenize([source], tmp_path / "out", workers=1, overwrite=True, **{**options, "seq_len": 15})
    assert {len(s) for shard in sequences(tmp_path / "out") for s in shard} == {16}
