"""``preprocess_data --split-sentences``: the original's bytes, from the text files of punkt_tab, never from a pickle.

The golden files are what ``tools/preprocess_data.py`` of Megatron-LM wrote with the same parameters, which were trained
for this test.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError, DataError, MissingExtra, NotFound
from feedmill.formats.tokens.megatron import read_header, write_megatron
from feedmill.tokens import sentences
from feedmill.tokens.sentences import FILES, find_sentences, split_sentences

GOLDEN = Path(__file__).parents[2] / "golden"
FOLDER = GOLDEN / "megatron" / "sentences"
RUNS: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())["runs"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the golden runs were made."""
    for name in ("tok1k", "tok1k_bos"):
        shutil.copytree(GOLDEN / "nanosets" / name, tmp_path / name)
    shutil.copytree(FOLDER / "english", tmp_path / "nltk" / "tokenizers" / "punkt_tab" / "english")
    shutil.copy(FOLDER / "in.jsonl", tmp_path / "s.jsonl")
    monkeypatch.setenv("NLTK_DATA", str(tmp_path / "nltk"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def preprocess(*arguments: Any) -> Result:
    words = ["--input", "s.jsonl", "--tokenizer-type", "HuggingFaceTokenizer", *map(str, arguments)]
    return CliRunner().invoke(app, ["compat", "megatron", "preprocess_data", *words])


@pytest.mark.parametrize("name", RUNS)
def test_the_bytes_are_those_of_the_original(name: str, folder: Path) -> None:
    pytest.importorskip("nltk")
    result = preprocess("--output-prefix", "out", "--split-sentences", "--workers", 2, *RUNS[name]["arguments"])
    assert result.exit_code == 0, result.output
    found = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in RUNS[name]["files"]}
    assert found == RUNS[name]["files"]


def test_the_sequences_are_sentences_and_the_report_says_so(folder: Path) -> None:
    pytest.importorskip("nltk")
    words = ("--output-prefix", "out", "--split-sentences", "--tokenizer-model", "tok1k", "--append-eod")
    report = json.loads(preprocess(*words, "--json").stdout)
    documents = fm.open("out_text_sentence.bin")
    assert report["keys"]["text"]["documents"] == len(documents) == 27
    facts = documents.describe()
    assert facts["sequences"] > len(documents) and report["keys"]["text"]["tokens_in_loss"] is None
    assert not list(folder.glob("*.loss"))
    manifest = json.loads((folder / "out_text_sentence.idx.feedmill.json").read_text())
    assert (
        manifest["options"]["sentences"]["keep_newlines"] is False
        and "nltk" in manifest["options"]["sentences"]["punkt"]
    )
    assert "nothing was done" in preprocess(*words).output
    assert "the output already exists" in preprocess(*words, "--keep-newlines").output


def test_partitions_keep_the_sentences_of_each_document(folder: Path) -> None:
    pytest.importorskip("nltk")
    words = ("--split-sentences", "--tokenizer-model", "tok1k")
    for name, more in (("plain", ()), ("dealt", ("--partitions", 4))):
        assert preprocess("--output-prefix", name, *words, *more).exit_code == 0
    plain, dealt = (sequences_of(folder / f"{name}_text_sentence") for name in ("plain", "dealt"))
    assert dealt == [plain[row] for part in range(4) for row in range(part, len(plain), 4)]
    assert max(map(len, plain)) > 3 and min(map(len, plain)) == 0


def sequences_of(prefix: Path) -> list[list[int]]:
    """Return the tokens of each sequence of each document."""
    index = read_header(fm.open_store(prefix.parent), f"{prefix.name}.idx")
    data = prefix.with_name(f"{prefix.name}.idx").read_bytes()
    lengths = np.frombuffer(data, "<i4", index.sequences, index.lengths_at)
    firsts = np.frombuffer(data, "<i8", index.documents + 1, index.documents_at)
    return [lengths[low:high].tolist() for low, high in pairwise(firsts.tolist())]


def test_arguments_about_sentences_without_them_are_named() -> None:
    result = preprocess("--output-prefix", "out", "--tokenizer-model", "tok1k", "--lang", "german", "--keep-newlines")
    assert result.exit_code == 0
    assert "--lang has no effect" in result.output and "--keep-newlines has no effect" in result.output


@pytest.mark.parametrize("given", ["nltk/tokenizers/punkt_tab/english", "nltk/tokenizers/punkt_tab", "nltk", None])
def test_the_parameters_are_found(given: str | None, folder: Path) -> None:
    pytest.importorskip("nltk")
    found = find_sentences("english", given)
    assert Path(found.folder) == folder / "nltk/tokenizers/punkt_tab/english"
    pieces, counts = split_sentences(["Dr. Smith came. He left.", "", "One"], found)
    assert pieces == ["Dr. Smith came.", "He left.", "One"] and counts.tolist() == [2, 0, 1]


def test_missing_parameters_and_pickles_are_errors(folder: Path) -> None:
    with pytest.raises(NotFound, match="punkt_tab for 'german'"):
        find_sentences("german")
    old = folder / "nltk" / "tokenizers" / "punkt" / "german.pickle"
    old.parent.mkdir()
    old.write_bytes(pickle.dumps(print))
    with pytest.raises(ConfigError, match="a pickle of the older punkt"):
        find_sentences("german")
    with pytest.raises(ConfigError, match="is not a language"):
        find_sentences("../english")
    result = preprocess("--output-prefix", "out", "--split-sentences", "--lang", "german", "--tokenizer-model", "tok1k")
    assert result.exit_code == 1 and "a pickle of the older punkt" in result.output and not list(folder.glob("out*"))


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("ortho_context.tab", b"word\tmany\n", "'many' is not a number"),
        ("ortho_context.tab", b"word\n", "1 columns, expected 2"),
        ("collocations.tab", b"a\tb\tc\n", "3 columns, expected 2"),
        ("abbrev_types.txt", b"dr\n\xff\n", "not UTF-8 at byte 3"),
    ],
)
def test_invalid_parameters_are_errors(name: str, data: bytes, words: str, folder: Path) -> None:
    (folder / "nltk/tokenizers/punkt_tab/english" / name).write_bytes(data)
    with pytest.raises(DataError, match=words):
        find_sentences("english")


def test_a_huge_file_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "_LARGEST", 1000)
    with pytest.raises(DataError, match="more than"):
        find_sentences("english")


def test_parameters_that_change_are_an_error(folder: Path) -> None:
    pytest.importorskip("nltk")
    found = find_sentences("english")
    (folder / "nltk/tokenizers/punkt_tab/english" / FILES[0]).write_text("other\n")
    sentences._splitter.cache_clear()
    with pytest.raises(ConfigError, match="changed while they were in use"):
        split_sentences(["A text."], found)


def test_without_nltk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "nltk", None)
    monkeypatch.setitem(__import__("sys").modules, "nltk.tokenize", None)
    with pytest.raises(MissingExtra, match="needs NLTK"):
        find_sentences("english")


def test_the_writer_refuses_marks_that_are_no_sentences(tmp_path: Path) -> None:
    tokens, lengths = np.arange(5), np.array([2, 0, 3])
    for marks in (None, np.array([True, False]), np.array([True, False, False, True, False])):
        with pytest.raises(ValueError), write_megatron(fm.open_store(tmp_path), "x", "<u2", sentences=True) as out:
            out.add(tokens, lengths, marks)
    with write_megatron(fm.open_store(tmp_path), "x", "<u2", sentences=True) as out:
        out.add(tokens, lengths, np.array([True, False, True, False, True]))
    assert sequences_of(tmp_path / "x") == [[2], [], [2, 1]]
