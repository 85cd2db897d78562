"""What a dataset's description says of the order overrides a recipe's shuffle, but not that of a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.indexing.prepare import prepare
from helpers.tars import make_shards

COUNT = 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = make_shards(tmp_path / "d", [6, 6], parts=("txt",))
    prepare(path, split_ratio="1,0,0")
    return path


def order(folder: Path, said: str, **recipe: Any) -> list[int]:
    """Return the numbers of the samples of one pass."""
    text = f"__module__: megatron.energon\n__class__: CrudeWebdataset\n{said}\n"
    (folder / ".nv-meta" / "dataset.yaml").write_text(text)
    plan = fm.Recipe.parse({"source": {"path": str(folder)}, "epochs": 1, **recipe}).plan()
    return plan.locate(range(COUNT)).index.tolist()


def test_stored_order(folder: Path) -> None:
    stored, never = list(range(COUNT)), "shuffle_over_epochs: null"
    assert order(folder, "") != stored == order(folder, never) == order(folder, never, shuffle="global")
    own = {"source": {"path": str(folder), "shuffle": "global"}}
    assert order(folder, never, **own) == order(folder, "", **own) != stored
    dataset = fm.open(folder)
    assert fm.Plan.over(dataset, epochs=1).locate(range(COUNT)).index.tolist() != stored
    order(folder, never)
    dataset = fm.open(folder)
    assert fm.Plan.over(dataset, epochs=1).locate(range(COUNT)).index.tolist() == stored
    assert fm.Plan.over(dataset, epochs=1, shuffle="global").locate(range(COUNT)).index.tolist() != stored
    assert fm.Plan.over([dataset, dataset], weights=[1, 1]).locate(range(6)).index.tolist() == [0, 0, 1, 1, 2, 2]


def test_draws_with_replacement_are_a_permutation_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert order(folder, "shuffle_over_epochs: -1") == order(folder, "shuffle_over_epochs: 2") == order(folder, "")
    assert caplog.text.count("'shuffle_over_epochs: -1' has no effect") == 1


def test_pieces_of_shards(folder: Path) -> None:
    shards = {"kind": "shards", "parallel": 1}
    pieces = order(folder, "max_samples_per_sequence: 3", shuffle=shards)
    assert pieces == order(folder, "", shuffle={**shards, "sequence": 3})
    starts = pieces[::3]
    assert sorted(starts) == [0, 3, 6, 9]
    assert pieces == [start + number for start in starts for number in range(3)]
    assert order(folder, "parallel_shard_iters: 2", shuffle=shards) == order(
        folder, "", shuffle={"kind": "shards", "parallel": 2}
    )
    assert order(folder, "max_samples_per_sequence: 3", shuffle="block") == order(folder, "", shuffle="block")
    described = fm.Recipe.parse({"source": "x", "shuffle": {**shards, "sequence": 3}})
    assert "shuffle shards x 1 in sequences of 3" in str(described)
