"""Inputs and targets that windows make while they read, against those made from the windows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import DataError
from feedmill.formats.batches import INPUTS, TARGETS, Shifted
from feedmill.formats.tokens.pbin import write_pbin

WIDTH = 5


def written(folder: Path, masked: Sequence[bool], seed: int = 0, size: int = 2) -> fm.tokens.TokenDataset:
    """Write one file per mask, and return them as one dataset."""
    random = np.random.default_rng(seed)
    for number, loss in enumerate(masked):
        lengths = random.integers(0, 9, 7)
        lengths[0] = 3 * WIDTH
        with write_pbin(fm.open_store(folder), f"{number}.pbin", size, loss=loss) as out:
            mask = random.random(int(lengths.sum())) < 0.5 if loss else None
            out.add(random.integers(1, 200, int(lengths.sum())), lengths, mask)
    found = fm.open([folder / f"{number}.pbin" for number in range(len(masked))])
    assert isinstance(found, fm.tokens.TokenDataset)
    return found


@settings(deadline=None)
@given(
    masked=st.lists(st.booleans(), min_size=1, max_size=3),
    seed=st.integers(0, 99),
    stride=st.integers(1, WIDTH + 1),
    positions=st.booleans(),
    across=st.booleans(),
    crossing=st.sampled_from([None, True]),
)
def test_the_batch_of_columns_is_the_batch_of_rows(
    masked: list[bool], seed: int, stride: int, positions: bool, across: bool, crossing: bool | None, tmp_path_factory
) -> None:
    tokens = written(tmp_path_factory.mktemp("shifted"), masked, seed, 1 + seed % 2 * 3)
    windows = fm.tokens.WindowDataset(tokens, width=WIDTH, stride=stride, positions=positions, across=across)
    targets = fm.tokens.Targets(ignore_index=-7, across_documents=crossing)
    numbers = np.random.default_rng(seed).integers(0, len(windows), 6)
    columns = windows.read_batch(numbers, targets.want)
    assert targets.of_columns is not None
    batch, wanted = targets.of_columns(columns), targets(windows.read(numbers))
    assert list(batch) == list(wanted)
    for name in wanted:
        assert batch[name].tolist() == wanted[name].tolist(), name
    inside = all(len(windows._pieces(*map(int, place))) == 1 for place in zip(*windows.begins(numbers), strict=True))
    assert (TARGETS in columns) is inside
    if inside:
        assert columns[INPUTS].flags.c_contiguous and columns[TARGETS].flags.c_contiguous


def batches(sources: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    recipe = {"blend": sources, "shuffle": "none", "samples": 24, "seed": 3, "targets": {}}
    loader = fm.Loader(fm.Recipe.parse(recipe).plan(), 8, rank=0, world_size=1, **options)
    return list(loader)


@pytest.mark.parametrize("second", [True, False])
def test_blends_of_sources_with_masks_and_without(second: bool, tmp_path: Path) -> None:
    written(tmp_path, [True, second])
    windows = {"seq_len": WIDTH - 1}
    sources = [{"name": f"s{n}", "path": str(tmp_path / f"{n}.pbin"), "windows": windows} for n in range(2)]
    rows = lambda samples: fm.tokens.Targets()(samples)  # noqa: E731 - without its attributes, so that rows are read
    found, wanted = batches(sources), batches(sources, collate=rows)
    assert len(found) == 3
    ignored = 0
    for batch, by_rows in zip(found, wanted, strict=True):
        assert batch["inputs"].tolist() == by_rows["inputs"].tolist()
        assert batch["targets"].tolist() == by_rows["targets"].tolist()
        ignored += int((batch["targets"] == -100).sum())
    assert 0 < ignored < 24 * (WIDTH - 1)


def test_plain_columns_where_the_wish_cannot_be_met(tmp_path: Path) -> None:
    tokens = written(tmp_path, [True])
    wish = Shifted("input_ids", -100, borders=True)
    for options in ({"dtype": None}, {"tail": "pad", "pad": 0}, {"positions": True, "eos": 3}):
        columns = fm.tokens.WindowDataset(tokens, width=WIDTH, **options).read_batch([0, 1], wish)
        assert TARGETS not in columns and columns["loss_mask"].shape == (2, WIDTH)
    assert "loss_mask" in fm.tokens.WindowDataset(tokens, width=WIDTH).read_batch(
        [0], Shifted("other", -100, borders=True)
    )
    for targets in (fm.tokens.Targets(document_ids=True), fm.tokens.Targets(max_seqlen=True)):
        assert targets.want == "columns"


@pytest.mark.parametrize("name", ["0.pbin", "0.pbin.feedmill.loss"])
def test_a_file_that_became_shorter_is_an_error(name: str, tmp_path: Path) -> None:
    windows = fm.tokens.WindowDataset(written(tmp_path, [True]), width=WIDTH)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(DataError, match="truncated"):
        windows.read_batch([0], fm.tokens.Targets().want)
