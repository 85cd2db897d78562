"""``feedmill plan`` and ``feedmill trace`` over real files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.loading.loader import Loader
from feedmill.planning.recipes.recipe import Recipe
from helpers.tars import make_shards
from helpers.tokenizer_data import tokenizer_file, write_lines

RECIPE = """seed: 3
samples: 900
skip: [4]
blend:
- {path: lines.jsonl, weight: 0.7, max_repeats: 40}
- {path: tars, name: pages, weight: 0.3}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "lines.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(50)))
    make_shards(tmp_path / "tars", [8, 7])
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "endless.yaml").write_text(RECIPE.replace("samples: 900\n", "").replace(", max_repeats: 40", ""))
    return str(tmp_path / "recipe.yaml")


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def document(*arguments: object) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_plan_for_people(recipe: str, tmp_path: Path) -> None:
    done = run("plan", recipe)
    assert done.exit_code == 0, done.output
    for text in ("plan, 899 samples, seed 3", "skip 4", "├─ lines: 50 samples", "budget: 899 samples, about", "629"):
        assert text in done.output
    assert "max_repeats of lines: at most 630 drawn <= 40 x 50 = 2,000" in done.output
    assert "budget: endless" in run("plan", tmp_path / "endless.yaml").output


def test_plan_of_packed_rows_shows_shares_of_tokens_and_what_is_counted(tmp_path: Path) -> None:
    for name, text in (("long", "some words " * 40), ("short", "a word ")):
        source = write_lines(tmp_path / f"{name}.jsonl", [text] * 10)
        fm.tokenize(source, tmp_path / name, tokenizer=tokenizer_file("tok1k"), formats=["pbin"], progress=False)
    blend = "blend: [{path: long.pbin, weight: 3}, {path: short.pbin, weight: 1}]"
    (tmp_path / "r.yaml").write_text(f"unit: tokens\n{blend}\npack: {{seq_len: 8, buffer: 64}}\n")
    shown = run("plan", tmp_path / "r.yaml", "--samples", 4).output
    assert "up to 64 documents are packed together, across the ends of passes and stages" in shown
    data = document("plan", tmp_path / "r.yaml", "--samples", 4)
    assert data["packing"]["buffer"] == 64 > 2 * sum(row["drawn"] for row in data["sources"])
    for row, share in zip(data["sources"], (0.75, 0.25), strict=True):
        assert abs(row["token_share"] - share) < 0.05 and f"{row['token_share']:.4%}" in shown
    (tmp_path / "c.yaml").write_text(f"unit: tokens\n{blend}\npack: {{seq_len: 8, method: concat}}\n")
    assert "packed together" not in run("plan", tmp_path / "c.yaml", "--samples", 4).output
    (tmp_path / "d.yaml").write_text(f"{blend}\npack: {{seq_len: 400}}\n")
    shown = run("plan", tmp_path / "d.yaml", "--samples", 9).output
    assert "up to 13 documents are packed together, and no row holds two passes of a source" in shown
    assert "'buffer: N' in 'pack' packs N documents and mixes passes" in shown  # a pass fills two rows and a bit


def test_plan_for_programs(recipe: str, tmp_path: Path) -> None:
    data = document("plan", recipe, "--steps", 10, "--global-batch", 20, "--plot-to", tmp_path / "mix.png")
    assert data["budget"] == 200 and data["length"] == 899 and data["skipped"] == 1
    lines, pages = data["sources"]
    assert lines["drawn"] + pages["drawn"] == 200 and lines["epochs"] == 3
    assert lines["drawn_bytes"] == round(lines["drawn"] * (tmp_path / "lines.jsonl").stat().st_size / 50)
    assert data["bytes"] == lines["drawn_bytes"] + pages["drawn_bytes"]
    assert data["tokens"] is None
    assert data["max_repeats"] == [
        {"name": "lines", "max_repeats": 40, "samples": 50, "drawn_at_most": 141, "stage": None}
    ]
    assert (tmp_path / "mix.png").read_bytes().startswith(b"\x89PNG")
    assert document("plan", "--schema") == Recipe.json_schema()


def test_a_step_is_what_the_loader_gave(recipe: str, tmp_path: Path) -> None:
    plan = Recipe.load(recipe).plan()
    loader = Loader(plan, 4, rank=1, world_size=2, output="samples")
    batches = iter(loader)
    for number in range(6):
        keys = [sample.key for sample in next(batches)]
        data = document("trace", recipe, "--step", number, "--global-batch", 8, "--rank", 1, "--world", 2, "--show")
        assert [entry["key"] for entry in data["entries"]] == keys
        assert all(entry["parts"] for entry in data["entries"])
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    other = Loader(plan, 10, output="samples")
    other.load_state_dict(loader.state_dict())
    options = ("--global-batch", 10, "--from-state", tmp_path / "state.json", "--first-step", 6)
    data = document("trace", recipe, "--step", 6, *options)
    assert [entry["key"] for entry in data["entries"]] == [sample.key for sample in next(iter(other))]
    for entry in data["entries"]:
        same = {"source", "dataset", "file", "offset", "length", "key", "index", "epoch"} & set(entry)
        assert len(same) == 8
        found = document("trace", recipe, "--key", entry["key"], "--source", entry["source"], *options)["found"][0]
        assert {"position": entry["position"], "step": 6}.items() <= next(
            seen.items() for seen in found["seen"] if seen["position"] == entry["position"]
        )


def test_trace_for_people(recipe: str) -> None:
    done = run("trace", recipe, "--step", 0, "--global-batch", 10, "--show")
    assert done.exit_code == 0, done.output
    assert "step 0: positions [0, 10)" in done.output and "unskipped" in done.output
    assert "lines.jsonl at byte" in done.output and '{"n": ' in done.output
    done = run("trace", recipe, "--key", "s00003", "--global-batch", 10)
    assert "s00003 (sample 3 of pages): 18 times in 899 samples" in done.output
    data = document("trace", recipe, "--document", 3, "--source", "pages", "--samples", 100)
    assert data["found"][0]["key"] == "s00003" and data["samples"] == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan",), "the recipe is missing"),
        (("plan", "RECIPE", "--steps", 3), "--steps and --global-batch go together"),
        (("plan", "RECIPE", "--samples", 3, "--tokens", 5), "more than one budget"),
        (("plan", "RECIPE", "--tokens", 5), "has no lengths in tokens"),
        (("plan", "RECIPE", "--samples", 1000), "1,000 samples are requested, the plan has 899"),
        (("plan", "ENDLESS", "--plot-to", "x.png"), "an endless plan cannot be plotted"),
        (("trace", "RECIPE"), "expected one of --step, --key, --document, --source-document and --losses"),
        (
            ("trace", "RECIPE", "--step", 3, "--key", "s00003", "--global-batch", 3),
            "expected one of --step, --key, --document, --source-document and --losses",
        ),
        (("trace", "RECIPE", "--step", 3), "steps require --global-batch"),
        (("trace", "RECIPE", "--step", 300, "--global-batch", 3), "there is no step 300: with 3 samples a step"),
        (("trace", "RECIPE", "--step", 3, "--global-batch", 3, "--rank", 1), "rank 1 requires the number of ranks"),
        (("trace", "ENDLESS", "--step", 10**19, "--global-batch", 8), "has steps 0 to 1,152,921,504,606,846,974"),
        (
            ("trace", "RECIPE", "--step", 1, "--global-batch", 8, "--source", "pages"),
            "--source has no effect with --step",
        ),
        (("trace", "RECIPE", "--step", 1, "--global-batch", 8, "--samples", 10), "--samples has no effect with --step"),
        (("trace", "RECIPE", "--key", "3", "--rank", 0, "--world", 2), "--rank has no effect with --key"),
        (
            ("trace", "RECIPE", "--document", 3, "--source", "pages", "--world", 2),
            "--world has no effect with --document",
        ),
        (
            ("trace", "RECIPE", "--source-document", "a.jsonl:1", "--source", "pages"),
            "--source has no effect with --source-document",
        ),
        (
            ("trace", "RECIPE", "--key", "3", "--samples", 9, "--steps", 3, "--global-batch", 3),
            "--steps has no effect with --samples",
        ),
        (("trace", "RECIPE", "--key", "nobody"), "no source has a sample with this key (looked in lines, pages)"),
        (("trace", "RECIPE", "--document", 3), "--document requires --source"),
        (("trace", "RECIPE", "--document", 9999, "--source", "pages"), "there is no sample 9999 (the source has"),
        (("trace", "ENDLESS", "--key", "3"), "the plan is endless"),
        (("trace", "RECIPE", "--key", "3", "--from-state", "RECIPE"), "the state cannot be read"),
        (("trace", "RECIPE", "--key", "3", "--allow", "skip"), "--allow requires --from-state"),
        (("trace", "RECIPE", "--key", "3", "--from-state", "RECIPE", "--allow", "all"), "--allow all is unknown"),
    ],
)
def test_wrong_use_is_one_message(recipe: str, arguments: tuple, message: str) -> None:
    places = {"RECIPE": recipe, "ENDLESS": str(Path(recipe).with_name("endless.yaml"))}
    done = run(*(places.get(argument, argument) for argument in arguments))
    assert done.exit_code == 1 and message in done.stderr and "Traceback" not in done.output


def test_a_state_of_another_plan_is_refused(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps(Loader(Recipe.load(recipe).plan(), 4).state_dict()))
    (tmp_path / "other.yaml").write_text(RECIPE.replace("0.3", "0.2"))
    options = ("--step", 1, "--global-batch", 4, "--from-state", tmp_path / "state.json")
    done = run("trace", tmp_path / "other.yaml", *options)
    assert done.exit_code == 1 and "state.json: the plan is not the one" in done.stderr and "weight" in done.stderr


def test_the_state_of_a_run_whose_recipe_changed_then(recipe: str, tmp_path: Path) -> None:
    plan = Recipe.load(recipe).plan()
    (tmp_path / "state.json").write_text(json.dumps(Loader(plan, 4, start=8).state_dict()))
    (tmp_path / "other.yaml").write_text(RECIPE.replace("skip: [4]", "skip: [4, 40]"))
    options = ("--step", 3, "--first-step", 2, "--global-batch", 4, "--from-state", tmp_path / "state.json")
    assert "skip was 4, is now 4, 40" in run("trace", tmp_path / "other.yaml", *options).stderr
    done = run("trace", tmp_path / "other.yaml", *options, "--allow", "change", "--json")
    assert done.exit_code == 0 and (json.loads(done.stdout)["first"], json.loads(done.stdout)["stop"]) == (12, 16)


def test_batches_by_budget(recipe: str, tmp_path: Path) -> None:
    path = tmp_path / "budget.yaml"
    path.write_text(RECIPE.replace("blend:", "batch: {bytes: 4000, max_samples: 9}\nblend:"))
    said = run("plan", path, "--world", 3).output
    assert "3 ranks x 4,000 bytes, at most 9 samples, by budget" in said and "of their budget" in said
    ranks = document("plan", path, "--world", 3)["ranks"]
    assert ranks["batch_size"] is None and ranks["budget"]["fill"] <= 1 and ranks["budget"]["samples"] <= 27
    assert document("plan", path, "--world", 3, "--batch-size", 4)["ranks"]["batch_size"] == 4
    plan = Recipe.load(path).plan()
    loaders = [Loader(plan, rank=rank, world_size=3, output="samples") for rank in range(3)]
    for step, batches in zip(range(5), zip(*loaders, strict=True), strict=False):
        entries = document("trace", path, "--step", step, "--world", 3)["entries"]
        for rank, batch in enumerate(batches):
            mine = [entry["key"] for entry in entries if entry["rank"] == rank]
            assert sorted(mine) == sorted(sample.key for sample in batch)
            alone = document("trace", path, "--step", step, "--world", 3, "--rank", rank)["entries"]
            assert [entry["key"] for entry in alone] == [sample.key for sample in batch]
        key, position = entries[0]["key"], entries[0]["position"]
        seen = document("trace", path, "--key", key, "--world", 3)["found"]
        assert [row["step"] for each in seen for row in each["seen"] if row["position"] == position] == [step]
    assert "steps by budget require --world" in run("trace", path, "--step", 3).output
    assert "--steps requires --global-batch" in run("trace", path, "--key", "0", "--steps", 3, "--world", 3).output
    assert "--world and --batch-size go together" in run("plan", recipe, "--world", 3).output


def test_rollouts_are_appended_checked_and_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit, step and group by the verbs that other datasets have."""
    monkeypatch.chdir(tmp_path)
    rows = [{"group": f"q{n // 2}", "reward": n % 2, "prompt": "p", "completion": str(n)} for n in range(8)]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("rl.yaml").write_text("rollouts: {path: rl, groups: 2, run: try}")
    dry = run("edit", "append", "rl", "a.jsonl", "--policy", 0, "--dry-run")
    assert "rl/commits/00000000.parquet" in dry.output and not Path("rl").exists()
    assert "has no 'version'" in run("edit", "append", "rl", "a.jsonl").output
    done = run("edit", "append", "rl", "a.jsonl", "--policy", 0, "--group-size", 2)
    assert done.exit_code == 0 and re.search(r"samples +8\n", done.output)
    assert "1 of an interrupted run" in run("edit", "append", "rl", "a.jsonl", "--policy", 0).output
    assert "--split has no effect" in run("edit", "append", "rl", "a.jsonl", "--split", "x").output
    assert "4 groups of 2 answers in 1 commit, versions 0 to 0" in run("show", "rl", "-n", 0).output
    assert len([*fm.loading.RolloutLoader("rl.yaml", steps=2)]) == 2
    shown = run("trace", "rl.yaml", "--step", 1).output
    assert "step 1 of run 'try', policy 1: 2 groups of 1 commit" in shown and "left out: 2 drawn before" in shown
    assert [row["group"] for row in json.loads(run("trace", "rl.yaml", "--step", 1, "--json").output)["groups"]] == [
        "q2",
        "q3",
    ]
    assert re.search(r"q3 .* 1 *\n", run("trace", "rl.yaml", "--key", "q3").output)
    assert "run 'try': 2 steps were drawn" in run("check", "rl").output
