"""Rows of merged, shuffled, split and filtered token files and lines lead back to the raw lines, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.documents.find import find_documents
from feedmill.documents.lineage.chain import Lineages, read_raw
from feedmill.tokens.dolma_output import GroupedOptions, Ring, tokenize_grouped
from feedmill.tracing.document import Documents
from helpers.lineage_data import TOKENIZER
from helpers.tokenizer_data import EOS, loaded

COUNT = 90


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rewritten")
    for name in "ab":
        lines = [json.dumps({"id": f"{name}{n}", "text": f"{name} {n} " * (n % 9 + 1) + "end"}) for n in range(COUNT)]
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
        fm.tokenize([folder / f"{name}.jsonl"], folder / name, tokenizer=TOKENIZER, progress=False)
    return folder


def check_tokens(path: Path) -> None:
    """Every document has the tokens of its raw line."""
    lineages, dataset, tokenizer = Lineages(), fm.open(path), loaded()
    for row, sample in enumerate(dataset.read(range(len(dataset)))):
        (raw,) = lineages.follow(str(path), row).raw
        assert raw.path.endswith(".jsonl")
        text = json.loads(read_raw(raw.path, [raw.row])[raw.row])["text"]
        assert sample["input_ids"].tolist()[:-1] == tokenizer.encode([text])[0].tolist()


def test_merged_shuffled_and_filtered_files(root: Path) -> None:
    inputs = [str(root / "a.pbin"), str(root / "b.pbin")]
    fm.tokens.merge(inputs, root / "merged.ds", progress=False)
    fm.tokens.shuffle([str(root / "merged.ds")], root / "shuffled.pbin", seed=3, progress=False)
    fm.filter([str(root / "shuffled.pbin")], root / "long.pbin", min_length=9, progress=False)
    for name in ("merged.ds", "shuffled.pbin", "long.pbin"):
        check_tokens(root / name)
    chain = Lineages().follow(str(root / "long.pbin"), 0).chain
    assert [one.verb for one in chain] == ["filter", "shuffle", "merge", "tokenize", ""]


def test_numbered_and_split_files_say_which_of_them_has_a_document(root: Path) -> None:
    fm.tokens.shuffle([str(root / "a.pbin")], root / "n.pbin", seed=1, max_file_size="1kB", progress=False)
    fm.tokens.split(
        [str(root / "a.pbin")],
        str(root / "part_{part}.pbin"),
        ratio={"train": 8, "val": 1, "test": 1},
        seed=1,
        progress=False,
    )
    for pattern in ("n_*.pbin", "part_*.pbin"):
        paths = sorted(root.glob(pattern))
        assert len(paths) > 2
        for path in paths:
            check_tokens(path)
        (found,) = Documents([str(path) for path in paths]).find(["a7"])["a7"]
        made = [one for one in found.artefacts if one.verb in ("shuffle", "split")]
        assert len(made) == 1 and len(made[0].rows) == 1  # and not that the other files dropped it


def test_a_document_that_a_limit_dropped_is_named(root: Path) -> None:
    fm.filter([str(root / "b.pbin")], root / "few.pbin", max_length=12, progress=False)
    (found,) = Documents([str(root / "few.pbin")]).find(["b8"])["b8"]
    assert [one.dropped for one in found.artefacts] == [None, "not written by filter"]


def test_lines(root: Path) -> None:
    (root / "lines").mkdir()
    fm.tokens.shuffle([str(root / "a.jsonl"), str(root / "b.jsonl")], root / "lines/s.jsonl", seed=2, progress=False)
    assert [path.name for path in (root / "lines").iterdir()] == ["s.jsonl"]  # nothing else among the documents
    lineages = Lineages()
    rows = read_raw(str(root / "lines/s.jsonl"), range(2 * COUNT))
    for row, line in rows.items():
        (raw,) = lineages.follow(str(root / "lines/s.jsonl"), row).raw
        assert read_raw(raw.path, [raw.row])[raw.row] == line


def test_chunks_lead_to_the_documents_that_they_are_parts_of(root: Path) -> None:
    fm.tokens.shuffle([str(root / "a.pbin"), str(root / "b.pbin")], root / "c.pbin", chunk=20, seed=4, progress=False)
    lineages, dataset, tokenizer = Lineages(), fm.open(root / "c.pbin"), loaded()
    for row, sample in enumerate(dataset.read(range(len(dataset)))):
        (raw,) = lineages.follow(str(root / "c.pbin"), row).raw
        ids = tokenizer.encode([json.loads(read_raw(raw.path, [raw.row])[raw.row])["text"]])[0].tolist()
        part = sample["input_ids"].tolist()
        assert any(([*ids, part[-1]])[n : n + len(part)] == part for n in range(len(ids) + 1))


def test_folders_of_mixed_files(root: Path, tmp_path: Path) -> None:
    """As `feedmill compat dolma tokens` writes them."""
    files = find_documents([root / "a.jsonl", root / "b.jsonl"]).files
    eos = loaded().require(EOS, "EOS")
    options = GroupedOptions(eos=eos, limit=400, ring=Ring(files=2, batch=7), progress=False)
    report = tokenize_grouped(files, str(tmp_path / "mixed"), TOKENIZER, options)
    assert len(report.parts) > 3
    for part in report.parts:
        check_tokens(tmp_path / "mixed" / f"{part}.npy")
