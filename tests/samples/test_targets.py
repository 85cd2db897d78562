"""Inputs and targets against what Modalities' collators gave."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.samples.targets import LossMask, with_targets

GOLDEN = Path(__file__).parents[1] / "golden" / "modalities"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def test_shifting_is_that_of_modalities() -> None:
    wanted = EXPECTED["collator"]
    dataset = fm.open(GOLDEN / "main_2b.pbin", seq_len=len(wanted["inputs"][0]))
    everything = dataset.gather(range(len(dataset)))[:, :-1].tolist()
    numbers = [everything.index(row) for row in wanted["inputs"]]
    batch = with_targets(dataset.read(numbers))
    assert batch["inputs"].tolist() == wanted["inputs"]
    assert batch["targets"].tolist() == wanted["targets"]


@pytest.mark.parametrize("case", EXPECTED["loss_mask"], ids=str)
def test_masking_is_that_of_modalities(case: dict) -> None:
    rows = [{"input_ids": np.array(row)} for row in case["rows"]]
    collate = partial(with_targets, mask=LossMask(case["begin"], case["end"]))
    if case["targets"] == "ValueError":
        with pytest.raises(DataError, match=r"row 0 of the batch: .* marker"):
            collate(rows)
    else:
        assert collate(rows)["targets"].tolist() == case["targets"]


@given(st.lists(st.lists(st.integers(0, 4), min_size=6, max_size=6), min_size=1, max_size=6))
def test_a_row_does_not_depend_on_its_neighbours(rows: list[list[int]]) -> None:
    mask = LossMask(1, 2, -7)
    alone = []
    for row in rows:
        try:
            alone.append(mask(np.array([row])).tolist()[0])
        except DataError:
            with pytest.raises(DataError):
                mask(np.array(rows))
            return
    assert mask(np.array(rows)).tolist() == alone
    for row, kept in zip(rows, alone, strict=True):
        assert kept == plain(row)


def plain(row: list[int]) -> list[int]:
    if 1 not in row or 2 not in row:
        return [-7] * len(row)
    inside, out = False, []
    for token in row:
        out.append(token if inside and token != 2 else -7)
        inside = token == 1 or (inside and token != 2)
    return out


def test_refused() -> None:
    with pytest.raises(ConfigError, match="both 3"):
        LossMask(3, 3)
    for lengths in ([3, 4], [1], []):
        with pytest.raises(DataError, match="of one length"):
            with_targets([{"input_ids": np.arange(n)} for n in lengths])


def test_names_and_types() -> None:
    tokens = np.array([1, 300, 2, 9], np.uint16)
    batch = with_targets([{"x": tokens}], key="x", inputs="a", targets="b", mask=LossMask(1, 2))
    assert (batch["a"].dtype, batch["b"].dtype) == (np.uint16, np.int64)
    assert batch["b"].tolist() == [[-100, -100, -100]]
