"""Each mapped setting of datatrove's datasets has an effect, and patterns give the files that datatrove reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.compat.datatrove.settings import FILE, FOLDER
from feedmill.compat.datatrove.utils.dataset import DatatroveFileDataset, DatatroveFolderDataset
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.settings import Fate
from feedmill.formats.tokens.ds import write_ds
from feedmill.storage import LocalStore
from feedmill.tokens.datatrove_tasks import deal_files
from helpers.nanoset_golden import NANOSETS

PATTERNS: dict[str, Any] = json.loads((NANOSETS / "patterns.json").read_text())


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the recording: each has one sample of its number."""
    folder = tmp_path_factory.mktemp("tree")
    for number, name in enumerate(PATTERNS["files"]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(number.to_bytes(2, "little") * 2)
    return folder


@pytest.mark.parametrize(("pattern", "recursive", "expected"), PATTERNS["cases"])
def test_a_pattern_gives_the_files_that_datatrove_reads(
    tree: Path, pattern: str, recursive: bool, expected: list[int] | str
) -> None:
    if isinstance(expected, str):
        with pytest.raises((ConfigError, FileNotFoundError)):
            DatatroveFolderDataset(tree, 1, filename_pattern=pattern, recursive=recursive)
        return
    data = DatatroveFolderDataset(tree, 1, filename_pattern=pattern, recursive=recursive)
    assert [int(data[number]["input_ids"][0]) for number in range(len(data))] == expected


@pytest.mark.parametrize(("pattern", "expected"), [(case[0], case[2]) for case in PATTERNS["cases"] if case[1]])
def test_preprocess_data_lists_the_same_files(tmp_path: Path, pattern: str, expected: list[int] | str) -> None:
    names = [name.replace(".ds", ".jsonl") for name in PATTERNS["files"] if not name.startswith(".hidden/")]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"text": "a"}\n')
    wanted = [PATTERNS["files"][n].replace(".ds", ".jsonl") for n in expected] if isinstance(expected, list) else []
    wanted = [name for name in wanted if name in names]
    given = pattern.replace(".ds", ".jsonl").replace(".d[s", ".jsonl[")
    if not wanted:
        with pytest.raises((ConfigError, NotFound)):
            deal_files(str(tmp_path), 1, given)
        return
    (files,), _ = deal_files(str(tmp_path), 1, given)
    assert [file.path for file in files] == sorted(wanted)


def test_a_pattern_that_matches_other_files_is_an_error(tmp_path: Path) -> None:
    with write_ds(LocalStore(tmp_path), "a.ds", 2, tokenizer_name="t") as writer:
        writer.add(np.arange(300), np.array([100, 200]))
    with pytest.raises(
        ConfigError, match=r"the pattern '\*' matches a.ds.index, which is no .ds file. Let it end in .ds"
    ):
        DatatroveFolderDataset(tmp_path, 4, filename_pattern="*")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of documents of 3 and 5 tokens, and one below."""
    folder = tmp_path_factory.mktemp("folder")
    for number, name in enumerate(("a.ds", "b.ds", "c.ds", "d.ds", "sub/e.ds")):
        with write_ds(LocalStore(folder), name, 2, tokenizer_name="t") as writer:
            writer.add(np.arange(40) % 8 + 8 * number, np.array([3, 5] * 5))
    return folder


def values(data: Any) -> list[Any]:
    return [{name: value.tolist() for name, value in data[i].items()} for i in range(len(data))]


def changed(before: dict[str, Any], after: dict[str, Any], folder: Path, kind: Any) -> tuple[Any, Any]:
    at = {"data_folder": folder} if kind is DatatroveFolderDataset else {"file_path": folder / "a.ds"}
    both = []
    for given in (before, after):
        paths = {name: folder / given[name] for name in at if name in given}
        both.append(values(kind(**{"seq_len": 4, **at, **given, **paths})))
    return both[0], both[1]


EFFECTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "seq_len": ({"seq_len": 4}, {"seq_len": 7}),
    "return_positions": ({}, {"return_positions": True}),
    "positions_from_eos_token_id": (
        {"return_positions": True},
        {"return_positions": True, "positions_from_eos_token_id": 6},
    ),
}
OF_FILES = {**EFFECTS, "file_path": ({}, {"file_path": "b.ds"})}
OF_FOLDERS = {
    **EFFECTS,
    "data_folder": ({}, {"data_folder": "sub"}),
    "filename_pattern": ({}, {"filename_pattern": "b.ds"}),
    "recursive": ({"filename_pattern": "**/*.ds"}, {"filename_pattern": "**/*.ds", "recursive": False}),
    "shuffle": ({}, {"shuffle": True}),
    "seed": ({"shuffle": True}, {"shuffle": True, "seed": 1}),
}
WRONG = {"token_size": 4, "fsize": 78}


@pytest.mark.parametrize("name", OF_FILES)
def test_a_setting_of_files_has_an_effect(name: str, folder: Path) -> None:
    before, after = changed(*OF_FILES[name], folder, DatatroveFileDataset)
    assert before != after


@pytest.mark.parametrize("name", OF_FOLDERS)
def test_a_setting_of_folders_has_an_effect(name: str, folder: Path) -> None:
    before, after = changed(*OF_FOLDERS[name], folder, DatatroveFolderDataset)
    assert before != after


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_size_is_an_error(name: str, folder: Path) -> None:
    assert DatatroveFileDataset(folder / "a.ds", 4, token_size=2, fsize=80)
    with pytest.raises(ConfigError, match=name):
        DatatroveFileDataset(folder / "a.ds", 4, **{name: WRONG[name]})
    if name == "token_size":
        with pytest.raises((ConfigError, DataError), match=name):
            DatatroveFolderDataset(folder, 4, token_size=4)


def test_every_setting_has_its_test() -> None:
    assert {*OF_FILES, *WRONG} == set(FILE.names(Fate.MAPPED))
    assert {*OF_FOLDERS, "token_size"} == set(FOLDER.names(Fate.MAPPED))
