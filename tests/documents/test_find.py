from __future__ import annotations

import csv
import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

import feedmill as fm
from feedmill.documents.file import DocumentFile
from feedmill.documents.find import DocumentFiles, find_documents, skipped_warnings
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tokens.manifest import read_manifest
from feedmill.indexing.prepare import prepare
from feedmill.jobs.work import Work
from feedmill.storage import LocalStore, open_store
from feedmill.tokens.verbs.tokenize import tokenize
from helpers.tokenizer_data import EOS, loaded, pbin_documents, tokenizer_file, write_lines


def find_inputs(inputs: list[Path | str], kind: str | None = None) -> DocumentFiles:
    return find_documents(inputs, kind=kind, unnamed=None)


def find_files(inputs: list[Path | str]) -> list[DocumentFile]:
    return find_inputs(inputs).files


def _rows(path: Path) -> list[list[str]]:
    with gzip.open(path, "rt") as file:
        return list(csv.reader(file))


def test_manifests_of_tokens_in_the_folder_of_the_inputs_are_no_documents(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["one", "two"])
    for again in (False, True):
        tokenize([tmp_path], tmp_path / "o", tokenizer=loaded(), eos=EOS, workers=1, overwrite=again)
        assert (tmp_path / "o.pbin.feedmill.json").exists() and len(pbin_documents(tmp_path / "o.pbin")) == 2
    assert [file.path for file in find_files([tmp_path / "*.json*"])] == ["a.jsonl"]


@pytest.mark.parametrize("out", [".", "out", "packed.d"])
def test_a_manifest_of_shards_in_the_folder_of_the_inputs_is_no_document(tmp_path: Path, out: str) -> None:
    write_lines(tmp_path / "a.jsonl", ["one two three four five", "six seven"])
    write_lines(tmp_path / "b" / "manifest.jsonl", ["a document all the same"])
    inputs = [file.path for file in find_files([tmp_path])]
    options = {"tokenizer": loaded(), "eos": EOS, "formats": ["vla-text"], "seq_len": 3, "workers": 1}
    place = {"vla-text": f"{tmp_path}/{out}".removesuffix("/.")}
    done = [tokenize([tmp_path], place, **options, overwrite=again).complete for again in (False, False, True)]
    assert done == [False, True, False]
    assert (tmp_path / out / "manifest.jsonl").exists()
    assert [file.path for file in find_files([tmp_path])] == inputs == ["a.jsonl", "b/manifest.jsonl"]
    assert [file.path for file in find_files([tmp_path / "*.json*"])] == ["a.jsonl"]


def test_a_text_file_has_the_fields_that_lines_have(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words")
    out = tokenize([tmp_path / "a.txt"], tmp_path / "o", tokenizer=loaded(), eos=EOS, workers=1, formats=["dolma"])
    rows = _rows(tmp_path / "o.csv.gz")
    assert [row[2:] for row in rows] == [[f"{tmp_path}/a.txt-1", f"{tmp_path}/a.txt", "1"]]
    masked = tokenize(
        [tmp_path / "a.txt"], tmp_path / "o", tokenizer=loaded(), eos=EOS, workers=1, formats=["ds"], loss=True
    )
    assert masked.tokens == out.tokens
    assert np.fromfile(tmp_path / "o.ds.loss", np.bool_).all()


@pytest.mark.parametrize(("value", "name"), [('"\\ud800"', None), ("1" + 30 * "0", "1" + 30 * "0"), ('"x"', "x")])
def test_an_id_that_no_file_can_hold_is_none(tmp_path: Path, value: str, name: str | None) -> None:
    source = write_lines(tmp_path / "a.jsonl", [f'{{"text": "some words", "id": {value}}}'.encode()])
    tokenize([source], tmp_path / "o", tokenizer=loaded(), eos=EOS, workers=1, formats=["dolma"])
    ((_, _, found, _, _),) = _rows(tmp_path / "o.csv.gz")
    assert found == (name or f"{source}-1")


@pytest.mark.parametrize(("names", "formats"), [(["text", "text"], ["pbin"]), (["text", "id", "id"], ["dolma"])])
def test_two_columns_of_one_name_are_one_message(tmp_path: Path, names: list[str], formats: list[str]) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table([pa.array(["a"])] * len(names), names=names), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=f"the file has 2 columns named '{names[-1]}'"):
        tokenize([tmp_path / "a.parquet"], tmp_path / "o", tokenizer=loaded(), eos=EOS, workers=1, formats=formats)


def test_a_finished_command_leaves_the_work_of_a_running_one_alone(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", ["one"])
    tokenize([source], tmp_path / "o", tokenizer=loaded(), eos=EOS, workers=1)
    other = Work(LocalStore(tmp_path), "o")
    other.begin({"job": "another job, with --overwrite"})
    piece = tmp_path / ".o.feedmill-work" / "000000.piece"
    piece.write_text(json.dumps("half done"))
    assert tokenize([source], tmp_path / "o", tokenizer=loaded(), eos=EOS, workers=1).complete
    assert piece.exists()
    other.close()
    assert tokenize([source], tmp_path / "o", tokenizer=loaded(), eos=EOS, workers=1).complete
    assert piece.exists()  # of use to that job
    (tmp_path / ".o.feedmill-work/job.json").unlink()
    assert tokenize([source], tmp_path / "o", tokenizer=loaded(), eos=EOS, workers=1).complete
    assert not piece.exists()


def test_an_end_that_does_not_fit_is_one_message(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", ["one"])
    tokenizer = json.loads(tokenizer_file("tok1k").read_text())
    tokenizer["model"]["vocab"]["<|far|>"] = 70_000
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 70_000, "content": "<|far|>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match=r"id 70000 of '<\|far\|>' does not fit tokens of 2 bytes \(at most 65535\)"):
        tokenize([source], tmp_path / "o", tokenizer=tmp_path, eos="<|far|>", workers=1, formats=["ds"])


def test_a_name_that_is_no_utf8_is_one_message(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/a.jsonl", ["good"])
    name = os.fsencode(tmp_path / "in/b") + b"\xff.jsonl"
    with open(name, "wb") as f:
        f.write(b'{"text": "odd name"}\n')
    for source in (tmp_path / "in", os.fsdecode(name)):
        with pytest.raises(ConfigError, match="not valid UTF-8"):
            find_files([source])


def folder_with(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if ".jsonl" in name:
            write_lines(folder / name, ["one"])
        else:
            (folder / name).write_text("some words")
    return folder


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("b.txt", r"1 lines file \('a.jsonl'\), 1 text file \('b.txt'\)"),
        ("b.csv", r"1 unreadable file \('b.csv'\)"),
        ("notes.md", r"1 unreadable file \('notes.md'\)"),
        ("x/b.txt.gz", r"1 unreadable file \('x/b.txt.gz'\)"),
        ("b.jsonl.zip", r"1 unreadable file \('b.jsonl.zip'\)"),
        ("B.PDF", r"1 unreadable file \('B.PDF'\)"),
    ],
)
def test_documents_of_another_kind_are_an_error_until_the_user_chooses(other: str, said: str, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "in", "a.jsonl", other)
    with pytest.raises(ConfigError, match=f"documents of several kinds: .*{said}.*--kind lines") as error:
        find_inputs([folder])
    assert error.value.kind == "mixed-formats"
    found = find_inputs([folder], "lines")
    assert [file.path for file in found.files] == ["a.jsonl"] and found.skipped == [str(folder / other)]


def test_unreadable_documents_beside_text_files_are_an_error_too(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "in", "a.txt", "b.txt.gz")
    with pytest.raises(ConfigError, match=r"1 unreadable file .*--kind text"):
        find_inputs([folder])
    with pytest.raises(NotFound, match=r"no documents of the kind 'parquet' .*1 text file"):
        find_inputs([folder], "parquet")
    with pytest.raises(ConfigError, match="unknown kind of documents 'csv'"):
        find_inputs([folder], "csv")


def test_files_that_are_no_documents_are_named_and_counted(tmp_path: Path) -> None:
    names = ["README.md", "LICENSE.txt", "_SUCCESS", ".gitattributes", "run.py", "sub/.part.crc"]
    folder = folder_with(tmp_path / "in", "a.jsonl", *names)
    report = tokenize([folder], tmp_path / "o", tokenizer=loaded(), eos=EOS, workers=1)
    assert report.documents == 1 and report.skipped_files == len(names)
    assert sorted(report.skipped_files_examples) == sorted(str(folder / name) for name in names)
    assert report.as_dict()["skipped_files"] == len(names)
    manifest = read_manifest(open_store(tmp_path), "o.pbin")
    assert manifest is not None and manifest.options["skipped_files"]["count"] == len(names)


def test_indices_beside_documents_are_no_documents(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "documents/a.jsonl", ["one", "two"])
    fm.tokens.index(source, progress=False)
    prepare(str(source), split_ratio="1,0,0", progress=False)
    beside = {path.name for path in source.parent.iterdir()}
    assert {"a.idx", "a.jsonl.idx"} < beside
    for found in (find_documents([tmp_path]), find_documents([f"{tmp_path}/documents/*"])):
        assert ([file.path.rpartition("/")[2] for file in found.files], found.skipped) == (["a.jsonl"], [])


def test_a_readme_among_texts_is_a_text(tmp_path: Path) -> None:
    assert len(find_files([folder_with(tmp_path, "a.txt", "readme.txt")])) == 2


def test_what_was_written_into_the_folder_of_the_inputs_is_not_counted(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "a.jsonl")
    for formats in (["pbin", "ds", "megatron", "dolma"], ["pbin"]):
        report = tokenize(
            [folder], tmp_path / "o", tokenizer=loaded(), eos=EOS, workers=1, formats=formats, overwrite=True
        )
        assert report.skipped_files_examples == []


def test_attributes_beside_dolmas_documents_are_counted(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "documents/a.jsonl.gz", "attributes/x/a.jsonl.gz")
    found = find_inputs([folder])
    assert [file.path for file in found.files] == ["documents/a.jsonl.gz"]
    assert found.skipped == [str(folder / "attributes/x/a.jsonl.gz")]


def test_a_folder_with_splits_is_named(tmp_path: Path) -> None:
    """All of its files are read: a test, or a second configuration, may be among them."""
    for name in ("train-0.jsonl", "test-0.jsonl"):
        (tmp_path / name).write_text("{}\n")
    note = f"{tmp_path}: it has splits by the names of its files (train 1, test 1), and all files are read"
    assert skipped_warnings(find_documents([tmp_path])) == [note]
    assert skipped_warnings(find_documents([tmp_path / "train-0.jsonl", tmp_path / "test-0.jsonl"])) == []
    assert skipped_warnings(find_documents([f"{tmp_path}/*.jsonl"])) == []
    (tmp_path / "README.md").write_text(
        "---\nconfigs: [{config_name: a, data_files: [{split: b, path: test*}]}]\n---\n"
    )
    card = f"{tmp_path}: it has splits by the head of its README.md (b 1), and all files are read"
    assert skipped_warnings(find_documents([tmp_path]))[0] == card
    (tmp_path / "README.md").write_text("---\nconfigs: [\n---\n")
    found = find_documents([tmp_path])
    assert len(found.files) == 2 and "not YAML" in skipped_warnings(found)[0]
