"""Windows of tokens become a batch without a sample being made: the same batch, and no way around what is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import DataError
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.loading.collate import collate
from feedmill.storage import LocalStore
from helpers.durations import examples


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("tokens"), np.random.default_rng(0)
    for name, documents in (("a", 90), ("b", 40)):
        lengths = rng.integers(1, 60, documents)
        with write_pbin(LocalStore(root), f"{name}.pbin", 2) as writer:
            writer.add(rng.integers(0, 60_000, int(lengths.sum()), dtype=np.uint16), lengths)
    return root


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


@settings(deadline=None, max_examples=examples(40))
@given(
    shuffle=st.sampled_from(["none", "global", "block"]),
    files=st.sampled_from([["a"], ["a", "b"]]),
    options=st.sampled_from([{}, {"positions": True}, {"positions": True, "eos": 5}]),
    drawn=st.lists(st.integers(0, 500), min_size=1, max_size=40),
)
def test_columns_are_what_collating_gives(
    folder: Path, shuffle: str, files: list[str], options: dict[str, Any], drawn: list[int]
) -> None:
    dataset = fm.open([str(folder / f"{name}.pbin") for name in files], seq_len=16, **options)
    plan = fm.Plan.over(dataset, shuffle=shuffle)
    found, wanted = plan.read_batch(drawn, "columns"), collate(plan.read(drawn))
    assert found is not None and list(found) == list(wanted)
    assert all(same(found[name], wanted[name]) for name in wanted)


@settings(deadline=None, max_examples=examples(20))
@given(weights=st.sampled_from([[1, 1], [1, 3], [5, 1]]), drawn=st.lists(st.integers(0, 500), max_size=40))
def test_columns_of_a_blend(folder: Path, weights: list[int], drawn: list[int]) -> None:
    sources = [fm.open(str(folder / f"{name}.pbin"), seq_len=16, positions=True) for name in "ab"]
    plan = fm.Plan.over(sources, weights=weights, shuffle="global")
    found = plan.read_batch(drawn, "columns")
    wanted = collate(plan.read(drawn)) if drawn else {}
    assert found is not None
    assert all(same(found[name], wanted[name]) for name in wanted)


def test_where_there_is_no_shorter_way(folder: Path, tmp_path: Path) -> None:
    path = str(folder / "a.pbin")
    one, other = fm.open(path, seq_len=16), fm.open(str(folder / "b.pbin"), seq_len=8)
    blend = fm.Plan.over([one, other], weights=[1, 1])
    assert (
        blend.read_batch([0, 1], "columns") is None and blend.read_batch([0], "columns") is not None
    )  # rows of two lengths
    blend = fm.Plan.over([one, fm.open(path, seq_len=16, boundaries=True)], weights=[1, 1])
    assert blend.read_batch([0, 1], "columns") is None
    assert fm.Plan.over(fm.open(path, seq_len=16, boundaries=True)).read_batch([0], "columns") is None
    shorter = fm.tokens.Packing(64, method="concat", last="keep")
    packed = fm.tokens.PackedPlan(fm.Plan.over(fm.open(path), epochs=1), shorter, tmp_path)
    assert packed.read_batch([0], "columns") is None


def test_loaders_agree(folder: Path) -> None:
    plan = fm.Plan.over(fm.open(str(folder / "a.pbin"), seq_len=16), shuffle="global", epochs=1)
    short = list(fm.Loader(plan, 8))
    long = list(fm.Loader(plan, 8, collate=collate))
    masked = list(fm.Loader(plan, 8, remainder="pad"))
    assert len(short) == len(long) == len(masked) and "__mask__" in masked[0]
    assert all(same(one[name], other[name]) for one, other in zip(short, long, strict=True) for name in other)


def test_a_file_that_was_cut_short_is_told_with_its_sample(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.pbin"
    path.write_bytes((folder / "a.pbin").read_bytes())
    plan = fm.Plan.over(fm.open(str(path), seq_len=16))
    loader = fm.Loader(plan, 8)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"truncated.*position 0"):
        next(iter(loader))


def test_arrays_are_as_dlpack_and_jax_want_them(folder: Path) -> None:
    dataset = fm.open(str(folder / "a.pbin"), seq_len=2)
    batch = next(iter(fm.Loader(fm.Plan.over(dataset), 5000)))["input_ids"]
    stacked = collate([{"x": np.full((64, 64), i, np.float32)} for i in range(20)])["x"]
    for array in (batch, stacked):
        assert array.flags.c_contiguous and array.flags.aligned and array.flags.writeable
        assert array.__array_interface__["data"][0] % 64 == 0
        assert np.shares_memory(np.from_dlpack(array), array)


def test_jax_takes_them_without_a_copy() -> None:
    jax = pytest.importorskip("jax")
    batch = collate([{"x": np.full((64, 64), i, np.float32)} for i in range(20)])["x"]
    taken = jax.device_put(batch)
    assert taken.unsafe_buffer_pointer() == batch.__array_interface__["data"][0] and float(taken.sum()) == batch.sum()
