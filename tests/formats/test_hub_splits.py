"""Files of splits by their names: what datasets 4 gives for the same folders."""

from __future__ import annotations

from pathlib import Path

import pytest

import feedmill as fm
from feedmill.documents.find import find_documents
from feedmill.errors import ConfigError
from feedmill.formats.hub_splits import FolderSplits, by_split, declared_splits
from feedmill.storage.local import LocalStore


@pytest.mark.parametrize(
    ("paths", "splits"),
    [
        (["0.parquet", "1.parquet"], {"train": ["0.parquet", "1.parquet"]}),
        (["trainx.parquet", "xtest.parquet"], {"train": ["trainx.parquet", "xtest.parquet"]}),
        (
            ["data/random-00000-of-00002.parquet", "data/test-00000-of-00001-abc.parquet", "train.parquet"],
            {"random": ["data/random-00000-of-00002.parquet"], "test": ["data/test-00000-of-00001-abc.parquet"]},
        ),
        (
            ["0/training/train.parquet", "my_test_1/data.parquet", "test/validation/x.parquet", "testing.b/0.parquet"],
            {
                "train": ["0/training/train.parquet"],
                "validation": ["test/validation/x.parquet"],
                "test": ["test/validation/x.parquet", "my_test_1/data.parquet", "testing.b/0.parquet"],
            },
        ),
        (
            ["a-train.parquet", "deep/dev1.parquet", "eval.parquet", "left.parquet", "train 2.parquet", "val.parquet"],
            {
                "train": ["train 2.parquet", "a-train.parquet"],
                "validation": ["deep/dev1.parquet", "val.parquet"],
                "test": ["eval.parquet"],
            },
        ),
    ],
)
def test_the_files_of_each_split(paths: list[str], splits: dict[str, list[str]]) -> None:
    assert by_split(paths, str) == splits


FILES = [
    "data/test-00000-of-00001.jsonl",
    "data/train-00000-of-00001.jsonl",
    "dev.jsonl",
    "en/0.jsonl",
    "en/1.jsonl",
    "en/deep/2.jsonl",
    "fr/0.jsonl",
    "top.jsonl",
]
EN = ["en/0.jsonl", "en/1.jsonl"]


@pytest.mark.parametrize(
    ("configs", "splits", "choices"),
    [
        ("{config_name: a, data_files: 'en/*.jsonl'}", {"train": EN}, ()),
        ("{config_name: a, data_files: 'en/**'}", {"train": [*EN, "en/deep/2.jsonl"]}, ()),
        (
            "{config_name: a, data_files: ['**/0.jsonl', 'en/[01].jsonl']}",
            {"train": ["en/0.jsonl", "fr/0.jsonl", EN[1]]},
            (),
        ),
        ("{config_name: a, data_files: ['./en/[!0].jsonl', 'to?.jsonl']}", {"train": ["en/1.jsonl", "top.jsonl"]}, ()),
        ("{config_name: a, data_dir: ./en/, data_files: '**/*.jsonl'}", {"train": [*EN, "en/deep/2.jsonl"]}, ()),
        ("{config_name: a, data_dir: data}", {"train": [FILES[1]], "test": [FILES[0]]}, ()),
        (
            "{config_name: a, data_files: [{split: held, path: dev.jsonl}, {split: train, path: ['fr/*', 'en/0*']}]}",
            {"held": ["dev.jsonl"], "train": ["fr/0.jsonl", "en/0.jsonl"]},
            (),
        ),
        (
            "{config_name: fr, data_files: 'fr/*'}, {config_name: 1, default: true, data_files: 'en/*.jsonl'}",
            {"train": EN, "fr/train": ["fr/0.jsonl"]},
            (),
        ),
        (
            "{config_name: fr, data_files: 'fr/*'}, {config_name: default, data_files: 'no/*'}",
            {"fr/train": ["fr/0.jsonl"]},
            (),
        ),
        (
            "{config_name: fr, data_files: 'fr/*'}, {config_name: en, data_files: 'en/*.jsonl'}",
            {"fr/train": ["fr/0.jsonl"], "en/train": EN},
            ("fr", "en"),
        ),
    ],
)
def test_the_splits_that_a_card_of_the_hub_declares(
    tmp_path: Path, configs: str, splits: dict[str, list[str]], choices: tuple[str, ...]
) -> None:
    """As datasets 5.2.0 resolves them, but for a file that two patterns match: it reads that twice."""
    (tmp_path / "README.md").write_bytes(
        f"\ufeff---\r\nlicense: mit\r\nconfigs: [{configs}]\r\n---\r\n# A card\r\n".encode()
    )
    declared = declared_splits(LocalStore(tmp_path), FILES)
    assert declared == FolderSplits(splits, "the head of its README.md", choices)


@pytest.mark.parametrize(
    ("card", "error"),
    [
        ("configs: [", "not YAML"),
        ("configs: all", "no list of mappings with config_name"),
        ("configs: [{data_files: '*'}]", "no list of mappings with config_name"),
        ("configs: [{config_name: a, data_files: {train: '*'}}]", "its configuration a are no patterns of splits"),
        ("configs: [{config_name: a, data_dir: 7}]", "its configuration a are no patterns of splits"),
        ("configs: [{config_name: a, data_files: [{split: x, path: [1]}]}]", "are no patterns of splits"),
        (
            "configs: [{config_name: a, default: true}, {config_name: default}]",
            "several default configurations, a, default",
        ),
    ],
)
def test_a_malformed_card_is_named(tmp_path: Path, card: str, error: str) -> None:
    (tmp_path / "README.md").write_text(f"---\n{card}\n---\n")
    with pytest.raises(ConfigError, match=error) as raised:
        declared_splits(LocalStore(tmp_path), FILES)
    assert str(tmp_path / "README.md") in str(raised.value)


@pytest.mark.parametrize(
    "card", ["", "# configs: none", "---\nconfigs:\n", "---\ntags: [configs]\n---\n", "---\n- configs\n---"]
)
def test_a_card_that_declares_nothing(tmp_path: Path, card: str) -> None:
    (tmp_path / "README.md").write_text(card)
    assert declared_splits(LocalStore(tmp_path), FILES) is None


@pytest.mark.parametrize(
    "pattern", ["**/" * 40 + "x", "*a" * 40 + "b", "**" * 40 + "/x", "[" * 40, "../*", "/etc/*", "*\U0001f600*"]
)
def test_patterns_that_fit_nothing_end(tmp_path: Path, pattern: str) -> None:
    """Patterns come with the data: the time must not grow with the number of ways to fit."""
    (tmp_path / "README.md").write_text(f"---\nconfigs: [{{config_name: a, data_files: '{pattern}'}}]\n---\n")
    declared = declared_splits(LocalStore(tmp_path), ["a/" * 40 + "a" * 200, *FILES])
    assert declared is not None and not declared.files


def test_a_card_that_fits_no_file_is_named(tmp_path: Path) -> None:
    """datasets raises an error; before, the names of files told splits without a word."""
    (tmp_path / "README.md").write_text("---\nconfigs: [{config_name: a, data_files: '{train,test}-*'}]\n---\n")
    for name in ("train-0.jsonl", "test-0.jsonl"):
        (tmp_path / name).write_text('{"text": "a"}\n')
    for split in (None, "train"):
        assert "the head of its README.md declares splits of files that are not here" in "".join(
            fm.open(tmp_path, split=split).notes
        )
    assert "README.md declares" in "".join(find_documents([str(tmp_path)]).notes)
    for name in ("train-0.jsonl", "test-0.jsonl"):
        (tmp_path / name).rename(tmp_path / name.replace("-", ""))
    assert "README.md declares" in "".join(fm.open(tmp_path).notes)
