"""A mixture of cells in packed rows with a ramp: one stream in every layout, also after kills and when cells change."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError
from feedmill.formats.cells import OUTSIDE
from feedmill.loading.batches import now
from feedmill.loading.loader import Loader
from feedmill.loading.metrics import Telemetry
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.cells import BY, labels_of, put_in_cells, tokens_in_cells, values_of

CELLS, ROWS = 6, 400
LABELS = labels_of(CELLS)
FIRST, SECOND = (3, 2, 1, 1, 0, "0.5"), (1, 1, 2, 2, 3, "1/7")


def stages(*parts: tuple[int | None, tuple[Any, ...], str | None]) -> list[dict[str, Any]]:
    return [
        {
            "weights": dict(zip(LABELS, weights, strict=True)),
            **({} if samples is None else {"samples": samples}),
            **({} if ramp is None else {"ramp": ramp}),
        }
        for samples, weights, ramp in parts
    ]


def planned(folder: Path, base: Any, *parts: tuple[int | None, tuple[Any, ...], str | None], pack: bool = True) -> Plan:
    recipe: dict[str, Any] = {
        "seed": 5,
        "blend": {"cells": {"of": "tok", "by": list(BY)}},
        "stages": stages(*parts),
        "shuffle": {"kind": "block", "block": 8, "window": 4},
    }
    if pack:
        recipe["pack"] = {"seq_len": 96, "buffer": 64, "rows": ROWS}
    return Recipe.parse(recipe, base=str(folder)).plan(lambda *_, **__: base)


def seen(row: Any) -> dict[str, Any]:
    return {"position": now.position, "tokens": row["input_ids"].tolist()}


def leg(
    plan: Plan, layout: tuple[int, int, int], state: Any, steps: int, allow: dict[str, bool]
) -> tuple[dict[int, list[int]], Any]:
    """What all ranks saw in some steps, by position, and the state after them."""
    ranks, workers, batch = layout
    found: dict[int, list[int]] = {}
    how: dict[str, Any] = {"workers": workers, "transform": seen, "collate": list, "remainder": "drop"}
    loaders = [Loader(plan, batch, rank=rank, world_size=ranks, **how) for rank in range(ranks)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)), **allow)
        batches = iter(loader)
        for _ in range(steps):
            rows = next(batches, None)
            if rows is None:
                break
            found |= {row["position"]: row["tokens"] for row in rows}
        state_after = loader.state_dict()
        loader.close()
    return found, state_after


def killed(folder: Path, times: int, seed: int) -> int:
    """Stop a run this many times, compare all rows, and return how many these were."""
    base, _ = tokens_in_cells(folder, 900, CELLS, seed=2)
    parts = (500, FIRST, None), (1200, SECOND, "cosine"), (None, SECOND, None)
    plan = planned(folder, base, *parts)
    expected = [row["input_ids"].tolist() for row in plan.read(range(ROWS))]
    draw, kills, rows = random.Random(seed), 0, 0
    while kills < times:
        state, at = None, 0
        while at < ROWS - 60 and kills < times:
            layout = draw.choice([1, 2, 3]), draw.choice([0, 0, 2]), draw.choice([1, 3, 4])
            # A new process would open and plan everything again.
            found, state = leg(planned(folder, base, *parts), layout, state, draw.randint(1, 4), {})
            assert sorted(found) == list(range(at, at + len(found)))
            assert all(tokens == expected[position] for position, tokens in found.items())
            at, kills, rows = at + len(found), kills + 1, rows + len(found)
    return rows


def test_every_layout_and_resume_gives_the_same_rows(tmp_path: Path) -> None:
    assert killed(tmp_path, 5, 1) >= 5


@pytest.mark.slow
def test_fifty_kills(tmp_path: Path) -> None:
    assert killed(tmp_path, 50, 2) >= 50


def state_at(plan: Plan, position: int) -> Any:
    return json.loads(json.dumps(Loader(plan, 1, start=position).state_dict()))


def test_weights_changed_in_mid_run_are_proven_as_for_sources(tmp_path: Path) -> None:
    base, _ = tokens_in_cells(tmp_path, 900, CELLS, seed=2)
    old = planned(tmp_path, base, (None, FIRST, None), pack=False)
    new = planned(tmp_path, base, (300, FIRST, None), (None, SECOND, None), pack=False)
    state = state_at(old, 300)
    loader = Loader(new, 1)
    loader.load_state_dict(state, allow_change=True)
    assert loader.position == 300
    with pytest.raises(ConfigError, match=r"position 300 was .* of tok\[.* and is"):
        Loader(new, 1).load_state_dict(state_at(old, 310), allow_change=True)


def test_redrawn_cells(tmp_path: Path) -> None:
    base, codes = tokens_in_cells(tmp_path, 900, CELLS, seed=2)
    weights = (3, 2, 1, 1, 0, 0)
    parts = (300, weights, None), (None, SECOND, None)
    state = state_at(planned(tmp_path, base, *parts, pack=False), 250)
    moved = codes.copy()
    moved[np.flatnonzero(codes == 4)[:9]] = 5  # cells that were not drawn yet
    put_in_cells(tmp_path, base, moved, values_of(CELLS))
    changed = planned(tmp_path, base, *parts, pack=False)
    with pytest.raises(ConfigError, match=r"data of tok\[quality=1,topic=t1\]") as caught:
        Loader(changed, 1).load_state_dict(state)
    assert all(label not in str(caught.value) for label in LABELS[:4])
    loader = Loader(changed, 1)
    loader.load_state_dict(state, allow_change=True)
    assert loader.position == 250
    moved[np.flatnonzero(codes == 0)[:9]] = OUTSIDE  # a cell that was drawn
    put_in_cells(tmp_path, base, moved, values_of(CELLS))
    with pytest.raises(ConfigError, match=r"data of tok\[quality=0,topic=t0\]"):
        Loader(planned(tmp_path, base, *parts, pack=False), 1).load_state_dict(state, allow_change=True)


def test_losses_by_cell_and_by_column(tmp_path: Path) -> None:
    base, _ = tokens_in_cells(tmp_path, 900, CELLS, seed=2)
    plan = planned(tmp_path, base, (None, FIRST, None))
    loader = Loader(plan, 16, labels=True)
    batch = next(iter(loader))
    labels = loader.labels
    loader.close()
    assert labels is not None
    losses = np.random.default_rng(0).random(np.asarray(batch["input_ids"]).shape)
    sources = labels.of_tokens(losses.shape[1])
    by_cell, by_topic, whole = labels.mean(losses), labels.mean(losses, by="topic"), labels.mean(losses, by="dataset")
    for number, name in enumerate(plan.names):
        assert (name in by_cell) == bool((sources == number).any())
        if name in by_cell:
            assert by_cell[name] == pytest.approx(losses[sources == number].mean())
    topics = np.array([name.rpartition("=")[2].removesuffix("]") for name in plan.names])
    for topic in ("t0", "t1"):
        mine = np.isin(sources, np.flatnonzero(topics == topic))
        assert by_topic[topic] == pytest.approx(losses[mine].mean())
    assert whole == {"tok": pytest.approx(losses[sources >= 0].mean())}
    with pytest.raises(ConfigError, match="a cell with the column 'colour'"):
        labels.mean(losses, by="colour")


def test_metrics_have_the_accounts_of_each_cell_on_all_ranks_and_after_a_resume(tmp_path: Path) -> None:
    base, _ = tokens_in_cells(tmp_path, 900, CELLS)
    plan = planned(tmp_path, base, (200, FIRST, None), (300, SECOND, "linear"), (None, SECOND, None), pack=False)
    where = Telemetry(every=1e-6, log=False, jsonl=tmp_path / "{rank}.jsonl", prometheus=tmp_path / "{rank}.prom")
    first = Loader(plan, 7, rank=0, world_size=2, telemetry=where)
    assert [cell["drawn"] for cell in first.metrics.sources()] == [0] * CELLS
    batches = iter(first)
    for _ in range(20):
        next(batches)
    then = Loader(plan, 13, rank=1, world_size=3, telemetry=where)
    then.load_state_dict(first.state_dict())
    assert then.metrics.sources() == first.metrics.sources()
    next(iter(then))
    position = then.position
    assert position == 20 * 14 + 39
    drawn = np.bincount(plan.locate(np.arange(position)).source, minlength=CELLS).tolist()
    found = then.metrics.sources()
    assert [cell["drawn"] for cell in found] == drawn and [cell["name"] for cell in found] == list(plan.names)
    report = [source.as_dict() for source in plan.report(position).sources]
    assert found == [{name: value for name, value in source.items() if value is not None} for source in report]
    lines = [json.loads(line) for line in (tmp_path / "0.jsonl").read_text().splitlines()]
    assert lines[0]["position"] == 14 and lines[0]["sources"] == [
        {name: value for name, value in source.as_dict().items() if value is not None}
        for source in plan.report(14).sources
    ]
    assert "sources" not in json.loads((tmp_path / "1.jsonl").read_text().splitlines()[0])
    text = first.metrics.prometheus([{**found[0], "name": 'a"b\\c'}])
    assert f'feedmill_source_drawn{{rank="0",source="a\\"b\\\\c"}} {drawn[0]}\n' in text
    assert "# TYPE feedmill_source_token_share gauge\n" in text
