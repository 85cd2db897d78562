"""``feedmill compat vla ...``: what it prints and writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from helpers import foreign_datasets
from helpers.vla_golden import ROOT


def run(*words: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, words)], prog_name="feedmill")
    assert done.exit_code == status, done.output
    return done.output


@pytest.fixture
def robotics(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "robotics", tmp_path / "robotics"))


def test_a_manifest_is_written_in_both_forms(robotics: Path) -> None:
    (robotics / "manifest.jsonl").unlink()
    assert "11 samples in 2 shards" in run("compat", "vla", "manifest", robotics, "--form", "code")
    first = json.loads((robotics / "manifest.jsonl").read_text().splitlines()[0])
    assert first == {"shard": "shard_000000", "num_sequences": 6}
    assert "a manifest with different content" in run("compat", "vla", "manifest", robotics, status=1)
    found = json.loads(run("compat", "vla", "manifest", robotics, "--overwrite", "--json"))
    assert (found["shards"], found["samples"], found["notes"]) == (2, 11, [])
    assert "invalid form 'both'" in run("compat", "vla", "manifest", robotics, "--form", "both", status=1)


def test_windows_of_lerobot_episodes(tmp_path: Path) -> None:
    pytest.importorskip("av")
    robot = foreign_datasets.lerobot_v3(tmp_path / "robot", [6, 4], "observation.images.top")
    shown = run(
        "compat",
        "vla",
        "windows",
        robot,
        "--output",
        tmp_path / "w",
        "--past",
        1,
        "--future",
        2,
        "--image",
        -1,
        "--image",
        0,
    )
    assert "10 samples of 2 episodes" in shown and "observation.images.top" in shown
    again = run("compat", "vla", "manifest", tmp_path / "w", "--form", "documented")
    assert again.endswith(": 10 samples in 1 shard\n")  # the same manifest
    assert "exist" in run("compat", "vla", "windows", robot, "--output", tmp_path / "w", "--past", 2, status=1)
    options = ("--overwrite", "--stride", 2, "--workers", 1, "--json")
    found = json.loads(run("compat", "vla", "windows", robot, "--output", tmp_path / "w", *options))
    assert (found["samples"], found["episodes"], found["shards"]) == (5, 2, 1)
    assert "feedmill compat vla windows" in run(
        "compat", "vla", "stats", robot, "--output", tmp_path / "s.json", status=1
    )


def test_statistics_are_written_and_merged(robotics: Path, tmp_path: Path) -> None:
    before = json.loads((robotics / "stats.json").read_text())
    shown = run("compat", "vla", "stats", robotics)
    assert "robot__actual__poses__left::panda__xyz" in shown
    found = json.loads((robotics / "stats.json").read_text())
    assert set(found) == set(before)
    one = "robot__actual__grippers__left::panda_hand"
    only = json.loads(
        run("compat", "vla", "stats", robotics, "--field", one, "--output", tmp_path / "s.json", "--json")
    )
    assert [row["field"] for row in only["fields"]] == [one]
    run(
        "compat",
        "vla",
        "merge-stats",
        robotics / "stats.json",
        ROOT / "robotics" / "stats.json",
        "--output",
        tmp_path / "m.json",
    )
    merged = json.loads((tmp_path / "m.json").read_text())
    assert merged[one]["count"] == [2 * count for count in before[one]["count"]]
    assert "is not in the statistics of all" in run(
        "compat",
        "vla",
        "merge-stats",
        robotics / "stats.json",
        tmp_path / "s.json",
        "--output",
        tmp_path / "n.json",
        status=1,
    )
    assert "no field 'x'" in run("compat", "vla", "stats", robotics, "--field", "x", status=1)
    (tmp_path / "bad.json").write_text("[1]")
    assert "not a valid stats.json" in run(
        "compat", "vla", "merge-stats", tmp_path / "bad.json", "--output", tmp_path / "n", status=1
    )


def test_a_plan_from_options_or_a_file(tmp_path: Path) -> None:
    manifests = json.dumps([str(ROOT / name / "manifest.jsonl") for name in ("text", "text_b")])
    words = [
        "--data.type", "text", "--data.dataset_manifest", manifests, "--data.dataset_weighting", "[0.7, 0.3]",
        "--data.dataset_modality", "[text, text]", "--data.allow_multiple_epochs", "true",
        "--total_train_samples", "96", "--hparams.global_batch_size", "8", "--num_checkpoints", "3",
    ]  # fmt: skip
    shown = run("compat", "vla", "plan", *words, "--data.shuffle_initial", "5")
    assert "not needed" in shown and "71.8750%" in shown
    (tmp_path / "run.yaml").write_text("data: {type: text, seq_len: 64}\n")
    found = json.loads(run("compat", "vla", "plan", tmp_path / "run.yaml", *words, "--json"))
    assert [window["samples"] for window in found["windows"]] == [[23, 9], [22, 10], [22, 10]]
    assert "note: " in run("compat", "vla", "plan", *words, "--data.dataset_weighting", "[1, 0]")
    assert "must have the same length" in run(
        "compat", "vla", "plan", *words, "--data.dataset_weighting", "[1]", status=1
    )


def test_a_manifest_that_lies_is_one_message(robotics: Path) -> None:
    text = (robotics / "manifest.jsonl").read_text().replace(": 6", ": 512")
    (robotics / "manifest.jsonl").write_text(text)
    for words in (("show",), ("compat", "vla", "stats"), ("check",)):
        shown = run(*words, robotics, status=1)
        assert "manifest.jsonl:1" in shown and "num_sequences is 512" in shown and "Traceback" not in shown


def test_a_plan_of_no_run_is_one_message() -> None:
    assert "error: no run was given" in run("compat", "vla", "plan", status=1)
    assert "Pass the file first" in run("compat", "vla", "plan", "--data.seed", 3, "run.yaml", status=1)


@pytest.mark.parametrize(
    "words",
    [
        ("--total_train_samples", "many"), ("--total_train_samples", "24.5"), ("--hparams.global_batch_size", "0"),
        ("--num_checkpoints", "0"), ("--num_epochs", "1.5"), ("--num_checkpoints", ".inf"),
    ],
)  # fmt: skip
def test_settings_that_are_no_counts_are_one_message(words: tuple[str, str]) -> None:
    assert f"{words[0][2:]} must be" in run("compat", "vla", "plan", *words, status=1)
