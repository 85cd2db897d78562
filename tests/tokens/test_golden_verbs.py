"""What Modalities and datatrove wrote, byte for byte from the verbs over token files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from feedmill.tokens.verbs.filter import filter
from feedmill.tokens.verbs.merge import merge
from feedmill.tokens.verbs.shuffle import shuffle, shuffle_chunk
from feedmill.tokens.verbs.split import split

GOLDEN = Path(__file__).parents[1] / "golden"
MODALITIES, NANOSETS = GOLDEN / "modalities", GOLDEN / "nanosets"
EXPECTED = json.loads((MODALITIES / "expected.json").read_text())
RUNS = json.loads((NANOSETS / "expected.json").read_text())["runs"]
PACKED = [str(MODALITIES / name) for name in EXPECTED["merged"]["sources"]]
TOKENIZED = [str(NANOSETS / f"nt_eos/0000{task}_unshuffled.ds") for task in (0, 1)]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def same_files(folder: Path, run: str) -> None:
    wanted = RUNS[run]["files"]
    found = {path.name for path in folder.iterdir() if "feedmill" not in path.name}
    assert found == set(wanted)
    for name, facts in wanted.items():
        assert digest(folder / name) == facts["sha256"], name


@pytest.fixture(scope="module")
def one_task(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All documents in the order in which a single task tokenizes the three files."""
    folder = tmp_path_factory.mktemp("one")
    plan = {"unshuffled": [[0, 69], [87, 107], [69, 87]]}
    split(TOKENIZED, f"{folder}/00000_{{part}}.ds", plan=plan)
    return f"{folder}/00000_unshuffled.ds"


@pytest.mark.parametrize("seed", EXPECTED["shuffle_tokenized"])
def test_shuffle_tokenized_data(seed: str, tmp_path: Path) -> None:
    shuffle([str(MODALITIES / "main_2b.pbin")], f"{tmp_path}/s.pbin", seed=int(seed), order="modalities")
    assert digest(tmp_path / "s.pbin") == EXPECTED["shuffle_tokenized"][seed]["sha256"]


@pytest.mark.parametrize("seed", EXPECTED["shuffle_jsonl"])
def test_shuffle_jsonl_data(seed: str, tmp_path: Path) -> None:
    shuffle([str(MODALITIES / "main.jsonl")], f"{tmp_path}/s.jsonl", seed=int(seed), order="modalities")
    assert digest(tmp_path / "s.jsonl") == EXPECTED["shuffle_jsonl"][seed]["sha256"]


def chunk_words(name: str) -> dict[str, Any]:
    words = dict(word.split("=") for word in name.split())
    return {
        "global_seed": int(words["global_seed"]),
        "chunks": int(words["num_chunks"]),
        "chunk": int(words["chunk_id"]),
    }


@pytest.mark.parametrize("name", [name for name in EXPECTED["chunks"] if "None" not in name])
def test_shuffled_chunks(name: str, tmp_path: Path) -> None:
    report = shuffle_chunk(PACKED, f"{tmp_path}/c.pbin", **chunk_words(name))
    assert digest(tmp_path / "c.pbin") == EXPECTED["chunks"][name]["sha256"]
    assert report.documents == EXPECTED["chunks"][name]["n_docs"]


@pytest.mark.parametrize("name", EXPECTED["jsonl_chunks"])
def test_shuffled_jsonl_chunks(name: str, tmp_path: Path) -> None:
    files = [str(MODALITIES / "main.jsonl"), str(MODALITIES / "nested.jsonl")]
    report = shuffle_chunk(files, f"{tmp_path}/c.jsonl", **chunk_words(name))
    assert digest(tmp_path / "c.jsonl") == EXPECTED["jsonl_chunks"][name]["sha256"]
    assert report.documents == EXPECTED["jsonl_chunks"][name]["n"]


def test_every_third_document(tmp_path: Path) -> None:
    source = str(MODALITIES / "main_2b.pbin")
    filter([source], f"{tmp_path}/a.pbin", keep=range(0, 69, 3))
    filter([source], f"{tmp_path}/b.pbin", predicate=lambda number, tokens: number % 3 == 0)
    wanted = EXPECTED["filtered_every_third"]["sha256"]
    assert digest(tmp_path / "a.pbin") == digest(tmp_path / "b.pbin") == wanted


def test_merging_gives_the_data_of_the_original_and_the_index_that_it_should_have(tmp_path: Path) -> None:
    merge(PACKED, f"{tmp_path}/m.pbin")
    ours, theirs = (tmp_path / "m.pbin").read_bytes(), (MODALITIES / "merged_2b.pbin").read_bytes()
    behind = 12 + EXPECTED["merged"]["data_len"]
    assert ours[:behind] == theirs[:behind]
    assert ours != theirs  # its starts are 12 and 24 bytes too low
    report = merge([str(MODALITIES / "merged_2b.pbin")], f"{tmp_path}/repaired.pbin")
    assert (tmp_path / "repaired.pbin").read_bytes() == ours
    assert "index were wrong" in report.notes[0]


@pytest.mark.parametrize("version", ["v0", "v1", "v2"])
def test_old_versions_become_new_ones(version: str, tmp_path: Path) -> None:
    facts = json.loads((MODALITIES / "legacy.json").read_text())[f"legacy_{version}.pbin"]
    merge([str(MODALITIES / f"legacy_{version}.pbin")], f"{tmp_path}/new.pbin")
    data = (tmp_path / "new.pbin").read_bytes()
    assert int.from_bytes(data[:8], "little") == facts["data_len"]
    assert int.from_bytes(data[12 : 12 + facts["token_size"]], "little") == facts["first_tokens"][0]


def test_datatrove_shuffles_documents(tmp_path: Path, one_task: str) -> None:
    for task, source in enumerate(TOKENIZED):
        output = f"{tmp_path}/doc/my_0000{task}_00000_doc_shuffled.ds"
        shuffle([source], output, seed=11, order="datatrove")
    same_files(tmp_path / "doc", "doc_shuffled")
    output = f"{tmp_path}/split/00000_{{part}}_doc_shuffled.ds"
    report = shuffle([one_task], output, seed=12, order="datatrove", max_tokens_per_file=4000)
    same_files(tmp_path / "split", "doc_shuffled_split")
    assert report.documents == 107


def test_datatrove_shuffles_chunks(tmp_path: Path, one_task: str) -> None:
    output = f"{tmp_path}/chunk/00000_00000_chunk_shuffled.ds"
    report = shuffle([one_task], output, seed=13, order="datatrove", chunk=33)
    same_files(tmp_path / "chunk", "chunk_shuffled")
    assert report.left_out == {"tokens in tails shorter than a chunk": 8}
    output = f"{tmp_path}/both/00000_00000_chunk_shuffled.ds"
    shuffle([one_task], output, seed=14, order="datatrove", chunk=65, documents_too=True)
    same_files(tmp_path / "both", "doc_chunk_shuffled")


MERGERS = {
    "merged_noshuf": (TOKENIZED, {"order": "stored"}),
    "merged_shuf": (TOKENIZED, {"seed": 16, "max_tokens_per_file": 9000}),
    "merged_max": (TOKENIZED, {"seed": 17, "max_tokens": 3000}),
    "merged_chunk": (TOKENIZED, {"seed": 18, "chunk": 65}),
    "merged_loss": ([str(NANOSETS / "loss")], {"seed": 19}),
    "merged_4b": ([str(NANOSETS / "four_byte")], {"seed": 20}),
}


@pytest.mark.parametrize("run", MERGERS)
def test_datatrove_merges(run: str, tmp_path: Path) -> None:
    sources, options = MERGERS[run]
    merge(sources, f"{tmp_path}/{{part:3}}_ds.ds", **{"order": "datatrove", **options})
    same_files(tmp_path, run)
