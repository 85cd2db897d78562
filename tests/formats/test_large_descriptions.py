"""Files that describe data or models are read as a whole only up to a limit: they come with data of others."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.curation.models.files import ModelFiles
from feedmill.errors import DataError
from feedmill.formats.hub_splits import declared_splits
from feedmill.formats.objects import read_object
from feedmill.formats.vla.manifest import read_rows
from feedmill.planning.recipes.read import load_document
from feedmill.samples.token_rules.processor import read_rules
from feedmill.storage.local import LocalStore
from feedmill.tokens.kinds.model import read_model
from feedmill.tokens.preload import load_native
from feedmill.tokens.template import read_settings

CASES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a card": ("README.md", lambda folder: declared_splits(LocalStore(folder), ["a.jsonl"])),
    "its settings": (".huggingface.yaml", lambda folder: declared_splits(LocalStore(folder), ["a.jsonl"])),
    "an object": ("index.json", lambda folder: read_object(LocalStore(folder), "index.json", kind="bad-index", fix="")),
    "LeRobot": ("meta/info.json", fm.open),
    "Energon": (".nv-meta/.info.yaml", fm.open),
    "a tokenizer": ("tokenizer_config.json", lambda folder: read_settings(folder / "tokenizer_config.json")),
    "a model": ("config.json", lambda folder: ModelFiles("x", "static", str(folder), "x").read_json("config.json")),
    "the file of a tokenizer": ("tokenizer.json", lambda folder: read_model(folder / "tokenizer.json", "file")),
    "the same, read ahead": ("tokenizer.json", lambda folder: load_native(str(folder / "tokenizer.json"))),
    "shards of VLA Foundry": ("manifest.jsonl", lambda folder: read_rows(LocalStore(folder), "manifest.jsonl")),
    "a recipe of Energon": ("a.yaml", lambda folder: load_document(str(folder / "a.yaml"))),
    "a processor": ("preprocessor_config.json", lambda folder: read_rules(str(folder))),
}


@pytest.mark.parametrize("of", CASES)
def test_a_description_without_end_is_an_error_and_not_in_memory(tmp_path: Path, of: str) -> None:
    name, read = CASES[of]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"---\nconfigs:\n")
    os.truncate(tmp_path / name, 1 << 40)  # without blocks on the disk
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"1,099,511,627,776 bytes, where a description of at most") as caught:
            read(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.kind == "too-large" and str(caught.value.file).endswith(name)


def test_of_a_long_card_only_the_head_counts(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nconfigs:\n- {config_name: a, data_files: '*.jsonl'}\n---\n# Pictures\n")
    os.truncate(tmp_path / "README.md", 1 << 40)
    splits = declared_splits(LocalStore(tmp_path), ["a.jsonl"])
    assert splits is not None and splits.files == {"train": ["a.jsonl"]}
