"""Lists and patterns of token files as one dataset, of every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tokens.dolma import write_dolma
from feedmill.formats.tokens.ds import write_ds
from feedmill.formats.tokens.megatron import write_megatron
from feedmill.formats.tokens.pbin import write_pbin

SUFFIXES = [".pbin", ".ds", ".bin", ".idx", ".npy"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files ``x/a`` (documents 1 2 3 and 4 5) and ``y/b`` (6 7 8 9) in every format."""
    for place, lengths, first in (("x/a", [3, 2], 1), ("y/b", [4], 6)):
        store = fm.open_store(tmp_path)
        (tmp_path / place).parent.mkdir()
        tokens = np.arange(first, first + sum(lengths))
        writers: list[Any] = [
            write_pbin(store, place + ".pbin", 2),
            write_ds(store, place + ".ds", 2, tokenizer_name=None),
            write_megatron(store, place, "<u2"),
            write_dolma(store, place + ".npy", np.dtype("<u2")),
        ]
        for opened in writers:
            with opened as out:
                out.add(tokens, np.array(lengths))
    return tmp_path


def documents(dataset: fm.Dataset) -> list[list[int]]:
    return [sample["input_ids"].tolist() for sample in dataset.read(range(len(dataset)))]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_list_is_read_in_its_order_and_a_pattern_in_that_of_paths(suffix: str, folder: Path) -> None:
    a, b = folder / f"x/a{suffix}", folder / f"y/b{suffix}"
    assert documents(fm.open([b, a])) == [[6, 7, 8, 9], [1, 2, 3], [4, 5]]
    assert documents(fm.open([a, a])) == [[1, 2, 3], [4, 5]] * 2
    for pattern in (f"{folder}/*/*{suffix}", [f"{folder}/*/*{suffix}"], f"{folder}/{{x/a,y/b}}{suffix}"):
        assert documents(fm.open(pattern)) == [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    windows = fm.open([b, a], seq_len=2, reuse_last_target=False, positions=True)
    assert [row["input_ids"].tolist() for row in windows.read([0, 1, 2, 3])] == [[6, 7], [8, 9], [1, 2], [3, 4]]
    assert windows.read([3])[0]["positions"].tolist() == [0, 0]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_recipes_take_patterns_and_lists_differ_in_their_fingerprint(suffix: str, folder: Path) -> None:
    plan = fm.Recipe.parse(f"source: '{folder}/*/*{suffix}'\nshuffle: none\nepochs: 1\n").plan()
    assert [row["input_ids"].tolist() for row in plan.read([0, 1, 2])] == [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    a, b = folder / f"x/a{suffix}", folder / f"y/b{suffix}"
    assert fm.open([a, b]).fingerprint() != fm.open([b, a]).fingerprint()


def test_what_does_not_belong_together_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be opened together: expected one of .*\.ds.*, found \.ds, \.pbin"):
        fm.open([folder / "x/a.ds", folder / "y/b.pbin"])
    with pytest.raises(NotFound):
        fm.open([folder / "x/a.ds", folder / "y/none.ds"])
    with pytest.raises(ConfigError, match="'files' is only for folders"):
        fm.open([folder / "x/a.ds", folder / "y/b.ds"], files="nanotron")
