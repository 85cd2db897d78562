"""Losses by source and cell from logs: exact means, estimates with honest errors, and what cannot be told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.planning import ledger
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.tracing.losses import _blocks, _estimated
from helpers.cells import BY, labels_of, tokens_in_cells
from helpers.mixture_data import recipe_file

CELLS = 6
TRUE = np.array([1.0, 2.0, 3.0, 2.5, 4.0, 0.5])


def plan_of(folder: Path, **keys: Any) -> Plan:
    base, _ = tokens_in_cells(folder, 900, CELLS)
    weights = dict(zip(labels_of(CELLS), (3, 2, 1, 1, 2, 1), strict=True))
    recipe = {"seed": 5, "blend": {"cells": {"of": "tok", "by": list(BY)}, "weights": weights}, **keys}
    return Recipe.parse(recipe, base=str(folder)).plan(lambda *_, **__: base)


def logged(plan: Plan, steps: range, ranks: int, global_batch: int, noise: float) -> list[dict[str, Any]]:
    """What the ranks of a run log whose sources have losses that fall alike."""
    draw = np.random.default_rng(1)
    lines = []
    for step in steps:
        for rank, part in enumerate(ledger.ranks_of(plan, step, global_batch, ranks)):
            loss = TRUE[plan.locate(part).source].mean() + 3 / (1 + step / 10)
            lines.append({"step": step, "rank": rank, "loss": loss + draw.normal(0, noise)})
    return lines


def test_losses_of_ranks_are_told_apart_although_they_fall(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    log = tmp_path / "losses.jsonl"
    log.write_text("\n".join(map(json.dumps, logged(plan, range(40), 4, 32, 0.01))) + "\n")
    found = fm.trace(plan, losses=log, global_batch=32, world=4).as_dict()
    assert not found["exact"] and found["lines"] == 160 and found["unit"] == "samples"
    falls = np.repeat(3 / (1 + np.arange(40) / 10), 32)
    sources = plan.locate(np.arange(40 * 32)).source
    for number, row in enumerate(found["sources"]):
        wanted = TRUE[number] + falls[sources == number].mean()
        assert row["name"] == plan.names[number] and row["amount"] == (sources == number).sum()
        assert 0 < row["error"] < 0.05 and abs(row["loss"] - wanted) < 4 * row["error"]
    by = fm.trace(plan, losses=log, global_batch=32, world=4, by="topic").as_dict()
    assert [row["name"] for row in by["sources"]] == ["t0", "t1"]


def test_losses_of_samples_are_exact_means(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    losses = np.random.default_rng(2).normal(2, 1, 500)
    log = tmp_path / "losses.csv"
    lines = [f"{at},{loss!r}\n" for at, loss in enumerate(losses.tolist())]
    log.write_text("".join(["position,loss\n", *(f"{at},99\n" for at in (3, 499, 3)), *lines]))  # tried before
    found = fm.trace(plan, losses=log).as_dict()
    assert found["left_out"] == {"earlier lines for the same position": 3} and found["lines"] == 500
    sources = plan.locate(np.arange(500)).source
    wanted = [losses[sources == number].mean() for number in range(CELLS)]
    assert found["exact"] and [row["loss"] for row in found["sources"]] == pytest.approx(wanted)
    by = fm.trace(plan, losses=log, by="quality").as_dict()["sources"]
    assert by[0] == {
        "name": "0",
        "amount": int(np.isin(sources, [0, 3]).sum()),
        "loss": pytest.approx(losses[np.isin(sources, [0, 3])].mean()),
        "error": None,
    }


def test_rows_of_packed_documents_count_their_tokens(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, pack={"seq_len": 96, "buffer": 64})
    found = plan.locate_spans(np.arange(400))
    row = np.repeat(np.arange(400), np.diff(found.spans.row_offsets))
    tokens = np.zeros((400, CELLS))
    np.add.at(tokens, (row, found.located.source), found.spans.length)
    losses = (tokens @ TRUE) / tokens.sum(axis=1)
    log = tmp_path / "losses.csv"
    log.write_text("position,loss\n" + "".join(f"{at},{loss!r}\n" for at, loss in enumerate(losses.tolist())))
    told = fm.trace(plan, losses=log).as_dict()
    assert told["unit"] == "tokens" and [row["loss"] for row in told["sources"]] == pytest.approx(TRUE.tolist())
    assert [row["amount"] for row in told["sources"]] == tokens.sum(axis=0).tolist()


def test_estimates_of_single_sources_are_their_means_whatever_the_blocks() -> None:
    draw = np.random.default_rng(3)
    owner, losses = draw.integers(0, 3, 60), draw.normal(2, 1, 60)
    amounts = np.eye(3)[owner] * draw.integers(1, 9, 60)[:, None]
    for times in (np.arange(60), np.arange(60) // 12):
        means, _, together = _estimated(amounts, losses, _blocks(times), "log")
        assert means == pytest.approx([np.average(losses, weights=amounts[:, n] + 0) for n in range(3)])
        assert not together


def test_errors_hold_in_95_of_100_trials() -> None:
    """Over 300 logs of noise that is not equal: the share of true means within 1.96 errors."""
    inside = 0
    for trial in range(300):
        draw = np.random.default_rng(trial)
        amounts = draw.multinomial(16, [0.5, 0.3, 0.15, 0.05], 200).astype(float)
        true = np.array([1.0, 2.0, 3.0, 4.0])
        noise = draw.normal(0, 0.05, 200) * (1 + amounts[:, 1] / 4)
        losses = amounts @ true / 16 + np.repeat(np.linspace(1, 0, 25), 8) + noise
        fall = np.repeat(np.linspace(1, 0, 25), 8)
        wanted = true + (amounts * fall[:, None]).sum(axis=0) / amounts.sum(axis=0)
        means, errors, _ = _estimated(amounts, losses, _blocks(np.arange(200)), "log")
        inside += int((np.abs(np.array(means) - wanted) < 1.96 * np.array(errors)).sum())
    assert 0.92 < inside / 1200 < 0.98


def test_what_cannot_be_told_apart_is_named(tmp_path: Path) -> None:
    draw = np.random.default_rng(4)
    amounts = draw.integers(1, 9, (80, 3)).astype(float)
    amounts = np.column_stack([amounts, 2 * amounts[:, 2]])
    losses = amounts @ [1, 2, 3, 6] / amounts.sum(axis=1)
    means, errors, (group,) = _estimated(amounts, losses, _blocks(np.arange(80)), "log")
    assert means == [pytest.approx(1), pytest.approx(2), None, None] and errors[2] is None
    assert group["names"] == [2, 3] and group["loss"] == pytest.approx(5)
    plan = fm.Recipe.load(recipe_file(tmp_path, unit="samples")).plan()  # every batch of 92 is alike
    log = tmp_path / "losses.csv"
    log.write_text("step,loss\n" + "".join(f"{step},2.5\n" for step in range(10)) + "9,2.5\n10,nan\n")
    done = CliRunner().invoke(
        app, ["trace", str(tmp_path / "recipe.yaml"), "--losses", str(log), "--global-batch", str(4 * len(plan.names))]
    )
    assert done.exit_code == 0 and "cannot be separated" in done.output and "together 2.5000" in done.output
    assert "left out: 1 earlier lines for the same batch" in done.output
    assert "left out: 1 losses that are not finite" in done.output


def test_what_is_no_log(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    log = tmp_path / "losses.csv"
    for text, words in (
        ("iteration,loss\n1,2\n", "no column 'step'"),
        ("step,loss\n1.5,2\n", "line 2 has the step '1.5'"),
        ("step,loss\n1,x\n", "the loss 'x'"),
        ("step,loss\n1,1_5\n", "the loss '1_5'"),
        ('{"step": 1, "loss": NaN}\n', "no line with a finite loss"),
        ("step,loss\n1,nan\n", "no line with a finite loss"),
        ("step,loss\n1\n", "row 2 has 1 cells"),
        ('{"step": 1, "loss": 2}\n[]\n', "line 2 is no JSON object"),
        (
            '{"step": 1, "loss": 2}\n{"step": 1, "rank": 0, "loss": 2}\n',
            "line 2 has step and rank, the first line step",
        ),
        ("step,loss,loss\n1,2,3\n", "two columns are called 'loss'"),
        ("step,loss\n1,2\n1,nan\n", "no line with a finite loss"),
    ):
        log.write_text(text)
        with pytest.raises(fm.DataError, match=words):
            fm.trace(plan, losses=log, global_batch=8)
    log.write_text("step,rank,loss\n0,0,2\n0,3,2\n")
    with pytest.raises(fm.ConfigError, match="rank 3 of 2 ranks"):
        fm.trace(plan, losses=log, global_batch=8, world=2)
    log.write_text("step,loss\n0,2\n")
    with pytest.raises(fm.ConfigError, match="1 line cannot tell 5 sources apart"):
        fm.trace(plan, losses=log, global_batch=8)
    with pytest.raises(fm.ConfigError, match="--rank has no effect with --losses"):
        fm.trace(plan, losses=log, global_batch=8, rank=0)
    log.write_text("position,loss\n0,2\n")
    with pytest.raises(fm.ConfigError, match="the log has positions: the size of batches"):
        fm.trace(plan, losses=log, global_batch=8)


def test_steps_by_budget_before_the_first_are_refused_in_an_endless_plan(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, batch={"tokens": 400})
    assert plan.length is None
    with pytest.raises(fm.NotFound, match="no step 2: the run begins with step 5"):
        next(ledger.ranks_of_steps(plan, [2], None, 2, first_step=5))
