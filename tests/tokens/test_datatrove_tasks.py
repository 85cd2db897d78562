"""Inputs dealt to tasks: files, and rows of datasets in columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tokens.ds import open_ds, write_ds
from feedmill.storage import LocalStore
from feedmill.tokens.datatrove_tasks import deal_files, deal_rows, tokenize_dealt
from feedmill.tokens.tokenizer import load_tokenizer
from helpers.nanoset_golden import NANOSETS, copy_into, expected, sha256

pyarrow = pytest.importorskip("pyarrow")


def texts(count: int) -> list[str]:
    return [f"text number {n}" + " and more" * (n % 4) for n in range(count)]


def saved(root: Path, rows: list[list[Any]], chunk: int = 3) -> str:
    """A dataset as Hugging Face `datasets` saves it: several Arrow streams and a list of them."""
    import pyarrow.ipc

    root.mkdir(parents=True)
    names = []
    for number, part in enumerate(rows):
        names.append(f"data-{number:05d}-of-{len(rows):05d}.arrow")
        table = pyarrow.table({"id": pyarrow.array(range(len(part))), "text": pyarrow.array(part, pyarrow.string())})
        with pyarrow.ipc.new_stream(str(root / names[-1]), table.schema) as out:
            out.write_table(table, max_chunksize=chunk)
    (root / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (root / "dataset_info.json").write_text("{}")
    return str(root)


def parquet(root: Path, rows: list[list[Any]]) -> str:
    import pyarrow.parquet

    root.mkdir(parents=True)
    for number, part in enumerate(rows):
        table = pyarrow.table({"text": pyarrow.array(part, pyarrow.string())})
        pyarrow.parquet.write_table(table, root / f"{number}.parquet", row_group_size=4)
    return str(root)


@pytest.mark.parametrize("make", [saved, parquet])
@pytest.mark.parametrize("tasks", [1, 3, 8, 40])
def test_rows_are_dealt_as_datatrove_deals_them(make: Any, tasks: int, tmp_path: Path) -> None:
    rows = texts(27)
    dataset = make(tmp_path / "data", [rows[:10], rows[10:11], rows[11:]])
    tokenizer = load_tokenizer(NANOSETS / "tok1k")
    report = tokenize_dealt(
        deal_rows(dataset, "train", tasks), tmp_path / "out", tokenizer=NANOSETS / "tok1k", eos=None, workers=1
    )
    assert report.documents == 27
    for task in range(tasks):
        written = open_ds(LocalStore(tmp_path / "out"), f"{task:05d}_unshuffled.ds", "u")
        found = [tokenizer.decode(sample["input_ids"]) for sample in written]
        assert found == rows[task::tasks]


def test_a_split_of_several(tmp_path: Path) -> None:
    saved(tmp_path / "data" / "train", [texts(4)])
    saved(tmp_path / "data" / "test", [texts(3)])
    (tmp_path / "data" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert [len(files) for files in deal_rows(str(tmp_path / "data"), "test", 2)] == [1, 1]
    with pytest.raises(NotFound):
        deal_rows(str(tmp_path / "data"), "valid", 2)


def test_a_split_of_files_named_for_it(tmp_path: Path) -> None:
    """`load_dataset(folder, split=...)` reads those alone: test data must not be trained on."""
    for name, count in (("train-1", 4), ("train-0", 3), ("x_val", 2), ("test", 5)):
        (file,) = Path(parquet(tmp_path / name, [texts(count)])).iterdir()
        file.rename(tmp_path / f"{name}.parquet")
        file.parent.rmdir()

    def names(split: str) -> list[str]:
        return [file.path for file in deal_rows(str(tmp_path), split, 1)[0]]

    assert names("train") == ["train-0.parquet", "train-1.parquet"]
    assert (names("validation"), names("test")) == (["x_val.parquet"], ["test.parquet"])
    with pytest.raises(NotFound, match=r"no split 'val'.*train, validation, test"):
        deal_rows(str(tmp_path), "val", 1)


def test_rows_without_text_are_counted(tmp_path: Path) -> None:
    dataset = saved(tmp_path / "data", [["a b", None, "", "c d"]])
    report = tokenize_dealt(
        deal_rows(dataset, "train", 2), tmp_path / "out", tokenizer=NANOSETS / "tok1k", eos=None, workers=1
    )
    assert (report.documents, report.skipped) == (2, 2)


def test_every_nth_file_of_the_sorted_list(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl.gz", "deep/c.json", "README.md", "deep/er/d.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n")

    def dealt(tasks: int, pattern: str | None = None) -> list[list[str]]:
        return [[file.url[len(str(tmp_path)) + 1 :] for file in files] for files in deal(tasks, pattern)[0]]

    def deal(tasks: int, pattern: str | None = None) -> Any:
        return deal_files(str(tmp_path), tasks, pattern)

    assert dealt(2) == [["a.jsonl.gz", "deep/c.json"], ["b.jsonl", "deep/er/d.jsonl"]]
    assert dealt(5)[4] == []
    assert deal(2)[1] == ["README.md"]
    assert dealt(1, "*.jsonl") == [["b.jsonl"]]
    assert dealt(1, "**/*.jsonl") == [["b.jsonl", "deep/er/d.jsonl"]]
    assert dealt(1, ".jsonl") == [["b.jsonl"]]
    assert dealt(1, "deep/*") == [["deep/c.json"]]
    with pytest.raises(NotFound, match="matches 'x'"):
        dealt(1, "x")


@pytest.mark.parametrize(("run", "index", "metadata"), [("no_index", False, True), ("no_metadata", True, False)])
def test_golden_runs_without_the_files_beside(run: str, index: bool, metadata: bool, tmp_path: Path) -> None:
    about = expected()["runs"][run]
    tasks, _ = deal_files(str(NANOSETS / about["src"]), about["tasks"])
    eos = about["options"]["eos_token"]
    tokenize_dealt(tasks, tmp_path / "a", tokenizer=NANOSETS / "tok1k", eos=eos, workers=1)
    whole = open_ds(LocalStore(tmp_path / "a"), "", "a")
    with write_ds(
        LocalStore(tmp_path / "b"), "00000_unshuffled.ds", 2, tokenizer_name=about["tokenizer"], index=index,
        metadata=metadata,
    ) as writer:  # fmt: skip
        copy_into(whole, writer)
    found = {path.name: sha256(path) for path in (tmp_path / "b").iterdir()}
    assert found == {name: facts["sha256"] for name, facts in about["files"].items()}
    assert int(np.max(whole.lengths)) > 0


def test_files_of_more_tasks_are_not_left_beside_those_of_fewer(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{name}.jsonl").write_text('{"text": "some words"}\n')
    options: Any = {"tokenizer": NANOSETS / "tok1k", "eos": None, "workers": 1}
    out = tmp_path / "out"
    tokenize_dealt(deal_files(str(tmp_path / "in"), 3)[0], out, **options)
    fewer = deal_files(str(tmp_path / "in"), 2)[0]
    with pytest.raises(ConfigError, match=r"files of more tasks \(00002_unshuffled"):
        tokenize_dealt(fewer, out, **options)
    assert tokenize_dealt(fewer, out, overwrite=True, **options).documents == 4
    assert {path.name[:5] for path in out.iterdir()} == {"00000", "00001"}
    assert len(open_ds(LocalStore(out), "", "u")) == 4
