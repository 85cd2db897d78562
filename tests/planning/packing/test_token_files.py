"""Packing over real token files: the rows hold the documents' tokens, and windows are those of the whole text."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.formats.tokens.ds import open_ds
from feedmill.formats.tokens.megatron import write_megatron
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.planning.recipes.recipe import Recipe
from feedmill.storage import LocalStore
from helpers.nanoset_golden import NANOSETS, copy_into


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same documents as ``.ds``, ``.pbin`` and Megatron-LM's files."""
    folder = tmp_path_factory.mktemp("packed")
    shutil.copytree(NANOSETS / "nt_eos", folder / "ds")
    source, store = open_ds(LocalStore(folder / "ds"), "", "ds"), LocalStore(folder)
    with write_pbin(store, "x.pbin", 2) as pbin:
        copy_into(source, pbin)
    with write_megatron(store, "y", "u2") as megatron:
        copy_into(source, megatron)
    return folder


def plan(root: Path, path: str, **pack: Any) -> Any:
    return Recipe.parse({"seed": 3, "source": path, "shuffle": "none", "epochs": 1, "pack": pack}, base=root).plan()


@pytest.mark.parametrize("path", ["ds", "x.pbin", "y.bin"])
def test_windows_over_the_whole_text(root: Path, path: str) -> None:
    whole = np.concatenate([np.fromfile(file, "<u2") for file in sorted((root / "ds").glob("*.ds"))])
    rows = plan(root, path, seq_len=100, method="concat", overlap=True)
    assert len(rows) == (len(whole) - 1) // 100
    for number, row in enumerate(rows.read(range(len(rows)))):
        assert row["input_ids"].tolist() == whole[number * 100 : number * 100 + 101].tolist()


@pytest.mark.parametrize("path", ["ds", "x.pbin", "y.bin"])
def test_whole_documents_in_rows(root: Path, path: str) -> None:
    rows = plan(root, path, seq_len=20_000)
    wanted = sorted(sample["input_ids"].tolist() for sample in open_ds(LocalStore(root / "ds"), "", "ds"))
    found = []
    for row in rows.read(range(len(rows))):
        bounds = row["cu_seqlens"]
        pieces = [row["input_ids"][a:b].tolist() for a, b in pairwise(bounds)]
        found += pieces[:-1] if row["tokens"] < 20_000 else pieces
    assert sorted(found) == wanted
