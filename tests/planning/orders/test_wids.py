"""The orders that wids' own samplers gave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.planning.orders import wids_order

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/vla/wids/expected.json").read_text())


@pytest.mark.parametrize("epoch", [0, 1])
def test_shard_by_shard(epoch: int) -> None:
    said = GOLDEN["sampler"]
    assert wids_order(GOLDEN["lengths"], seed=said["seed"], epoch=epoch).tolist() == said[f"epoch{epoch}"]


@pytest.mark.parametrize("epoch", [0, 1])
def test_in_chunks(epoch: int) -> None:
    said = GOLDEN["chunked"]
    found = wids_order(GOLDEN["lengths"], seed=said["seed"], epoch=epoch, chunk=said["chunksize"])
    assert found.tolist() == said[f"epoch{epoch}"]


@given(
    lengths=st.lists(st.integers(0, 20), max_size=8),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 3),
    first=st.booleans(),
)
def test_every_sample_once(lengths: list[int], seed: int, epoch: int, first: bool) -> None:
    for chunk in (None, 7):
        found = wids_order(lengths, seed=seed, epoch=epoch, chunk=chunk, shuffle_first=first)
        assert sorted(found.tolist()) == list(range(sum(lengths)))
    assert wids_order(lengths, shuffle=False, epoch=epoch).tolist() == list(range(sum(lengths)))


def test_chunks_of_nothing() -> None:
    with pytest.raises(ConfigError, match="chunks of 0"):
        wids_order([3], chunk=0)
