"""Inputs and targets that packed rows make while they read, against those made from the rows."""

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
from feedmill.formats.batches import INPUTS, TARGETS
from feedmill.formats.tokens.pbin import write_pbin

WIDTH = 8


def written(folder: Path, masked: Sequence[bool], seed: int = 0, size: int = 2, least: int = 0) -> list[Path]:
    """Write one file per mask: documents of `least` to 20 tokens."""
    random, paths = np.random.default_rng(seed), []
    for number, loss in enumerate(masked):
        lengths = random.integers(least, 21, 12)
        with write_pbin(fm.open_store(folder), f"{number}.pbin", size, loss=loss) as out:
            mask = random.random(int(lengths.sum())) < 0.5 if loss else None
            out.add(random.integers(1, 200, int(lengths.sum())), lengths, mask)
        paths.append(folder / f"{number}.pbin")
    return paths


def plan_of(paths: Sequence[Path], cache: Path, together: bool, packing: dict[str, Any]) -> Any:
    """Return rows of the files as one source, or of one source each."""
    source: dict[str, Any] = {"path": str(paths[0].with_name("*.pbin"))}
    if not together:
        source = {"blend": [{"name": path.stem, "path": str(path)} for path in paths], "samples": 40 * len(paths)}
    recipe = {**(source if "blend" in source else {"source": source, "epochs": 4}), "shuffle": "global", "seed": 3}
    return fm.tokens.PackedPlan(fm.Recipe.parse(recipe).plan(), fm.tokens.Packing(seq_len=WIDTH, **packing), cache)


@settings(deadline=None)
@given(
    masked=st.lists(st.booleans(), min_size=1, max_size=3),
    seed=st.integers(0, 99),
    together=st.booleans(),
    packing=st.sampled_from(
        [{}, {"long": "truncate"}, {"method": "concat"}, {"method": "concat", "last": "pad", "pad": 7}]
    ),
    crossing=st.sampled_from([None, True, False]),
)
def test_the_batch_of_columns_is_the_batch_of_rows(
    masked: list[bool], seed: int, together: bool, packing: dict[str, Any], crossing: bool | None, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("packed")
    paths = written(folder, masked, seed, 1 << seed % 3)
    plan = plan_of(paths, folder / "cache", together and len(set(masked)) == 1, packing)
    targets = fm.tokens.Targets(ignore_index=-7, across_documents=crossing)
    rows = np.random.default_rng(seed).integers(0, 12, 6)
    columns = plan.read_batch(rows, targets.want)
    assert TARGETS in columns
    assert targets.of_columns is not None
    batch, wanted = targets.of_columns(columns), targets(plan.read(rows))
    assert list(batch) == list(wanted)
    for name in wanted:
        assert batch[name].tolist() == wanted[name].tolist(), name
        assert batch[name].dtype == wanted[name].dtype, name
    assert columns[INPUTS].flags.c_contiguous and columns[TARGETS].flags.c_contiguous


@pytest.mark.parametrize("masked", [[True], [True, False]])
@pytest.mark.parametrize("world_size", [1, 2])
def test_batches_located_together_are_those_located_alone(
    masked: list[bool], world_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(written(tmp_path, masked), tmp_path / "cache", False, {})

    def batches() -> list[dict[str, Any]]:
        plan.collate = fm.tokens.Targets()
        ranks = range(world_size)
        loaders = [fm.Loader(plan, 2, rank=rank, world_size=world_size, remainder="drop") for rank in ranks]
        return [{k: v.tolist() for k, v in batch.items()} for loader in loaders for batch in loader]

    found = batches()
    assert len(found) > 3 and any(-100 in row for batch in found for row in batch["targets"])
    monkeypatch.setattr(fm.tokens.PackedPlan, "locate_batches", lambda *_: None)
    assert found == batches()


def test_a_slice_of_located_rows(tmp_path: Path) -> None:
    plan = plan_of(written(tmp_path, [True, True]), tmp_path / "cache", False, {})
    whole = plan.locate_batches(np.arange(len(plan)))
    for first in range(len(plan)):
        part, alone = whole[first : first + 2], plan.locate_spans(np.arange(first, min(first + 2, len(plan))))
        for one, other in ((part.spans, alone.spans), (part.located, alone.located)):
            for name in one.__slots__:
                assert getattr(one, name).tolist() == getattr(other, name).tolist()


@pytest.mark.parametrize("name", ["0.pbin", "0.pbin.feedmill.loss"])
def test_a_file_that_became_shorter_is_an_error(name: str, tmp_path: Path) -> None:
    plan = plan_of(written(tmp_path, [True]), tmp_path / "cache", True, {})
    assert TARGETS in plan.read_batch([0], fm.tokens.Targets().want)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(DataError, match="truncated"):
        plan.read_batch([0], fm.tokens.Targets().want)


def test_spans_outside_of_their_document_are_an_error(tmp_path: Path) -> None:
    plan = plan_of(written(tmp_path, [False], least=5), tmp_path / "cache", True, {})
    rows = plan.locate_spans(np.array([0, 1]))
    for start in (21, -1):
        kept = rows.spans.start[0]
        rows.spans.start[0] = start
        with pytest.raises(DataError, match="invalid span"):
            plan.read_batch([0, 1], fm.tokens.Targets().want, rows)
        rows.spans.start[0] = kept
    for document in (-1, 12, 1 << 40):
        kept = rows.located.index[0]
        rows.located.index[0] = document
        with pytest.raises(IndexError, match="document"):
            plan.read_batch([0, 1], fm.tokens.Targets().want, rows)
        rows.located.index[0] = kept
    assert TARGETS in plan.read_batch([0, 1], fm.tokens.Targets().want, rows)
