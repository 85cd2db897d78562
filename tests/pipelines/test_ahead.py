"""Steps that run ahead: as those that run one after another, in bytes, records and errors, after any kill."""

from __future__ import annotations

import json
import os
import re
import time
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import ConfigError, FeedmillError
from feedmill.jobs.engine import Limits
from feedmill.jobs.events import Events
from feedmill.pipelines.ahead import Ahead, added, counted
from feedmill.pipelines.history import History
from feedmill.pipelines.pipeline import read_pipeline
from helpers.kills import contents, finish, kill_at_random, moments, run_until_killed
from helpers.web_archives import archive, pages


def make(folder: Path, *, overlap: bool, **more: Any) -> None:
    for number, count in enumerate((160, 20, 8, 8)):
        archive(folder / "raw" / f"{number}.warc.gz", pages(count, site=f"s{number}"))
    tag = {"verb": "tag", "inputs": ["web/documents"]}
    steps = [
        {"verb": "extract", "inputs": ["raw"], "outputs": ["web"], "options": {"workers": 1}},
        {
            **tag,
            "name": "lengths",
            "outputs": ["web/attributes/lengths"],
            "options": {"taggers": ["char_length_v1"], "name": "lengths", "workers": 1},
        },
        {
            **tag,
            "name": "rules",
            "outputs": ["web/attributes/rules"],
            "options": {"taggers": ["gopher_v2"], "name": "rules", "workers": 1, **more},
        },
    ]
    (folder / "p.json").write_text(json.dumps({"steps": steps, "overlap": overlap}))


def written(folder: Path) -> dict[str, bytes]:
    """All files, with the manifest as text without times, which are those of this folder's files."""
    found = contents(folder, leave_out=("p.json", "raw"))
    text = re.sub(rb'"(version|seconds)": ("[^"]*"|[0-9.e+-]+)', b'"\\1": 0', found["p.run.json"])
    return {**found, "p.run.json": text}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the steps write one after another."""
    folder = tmp_path_factory.mktemp("calm")
    make(folder, overlap=False)
    finish(["run", "p.json"], folder)
    return written(folder)


def test_bytes_and_manifest_are_those_of_step_after_step(calm: dict[str, bytes], tmp_path: Path) -> None:
    make(tmp_path, overlap=True)
    finish(["run", "p.json"], tmp_path)
    assert written(tmp_path) == calm
    os.remove(tmp_path / "raw/3.warc.gz")
    archive(tmp_path / "raw/3.warc.gz", pages(9, site="s3"))
    assert finish(["run", "p.json"], tmp_path).count("ran in") == 3
    assert finish(["run", "p.json"], tmp_path).count("up to date") == 3
    assert json.loads((tmp_path / "p.run.json").read_bytes())["began"] == {}


def without_reports(folder: Path) -> dict[str, bytes]:
    """All files but the manifest, whose reports say what was found again."""
    return {name: data for name, data in written(folder).items() if name != "p.run.json"}


@moments(7, range(0, 40, 2), least=10)
def test_killed_before_any_file(moments: tuple[int, ...], least: int, calm: dict[str, bytes], tmp_path: Path) -> None:
    """What runs ahead ends with the run, and another one finishes all."""
    killed = 0
    for moment in moments:
        folder = tmp_path / str(moment)
        make(folder, overlap=True)
        killed += run_until_killed(moment, ["run", "p.json"], folder)
        finish(["run", "p.json"], folder)
        assert without_reports(folder) == {name: data for name, data in calm.items() if name != "p.run.json"}
        assert "ran in" not in finish(["run", "p.json"], folder)
    assert killed >= least


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """And what ran ahead at a kill does not disturb the run that begins at once."""
    assert kill_at_random(["run", "p.json"], partial(make, overlap=True), tmp_path, 20, without_reports) > 1


def test_an_error_is_that_of_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ran ahead until then is the step's own, and another run goes on."""
    make(tmp_path, overlap=True, tagger_modules=["own.py"], taggers=["own_v1"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FeedmillError, match=r"own\.py"):
        fm.run("p.json", progress=False)
    assert json.loads(Path("p.run.json").read_bytes())["began"] == {}
    make(tmp_path, overlap=True)
    assert [step.ran for step in fm.run("p.json", progress=False).steps] == [False, False, True]


def test_what_runs_ahead_is_in_the_events_and_is_named_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, overlap=True)
    monkeypatch.chdir(tmp_path)
    fm.run("p.json", steps=["extract"], progress=False)
    pipeline = read_pipeline("p.json")
    with (
        pytest.raises(FeedmillError, match="the disk is full"),
        Events("events/e.jsonl") as events,
        Limits(attempts=2),
        Ahead(pipeline, pipeline.steps, History(pipeline)) as ahead,
    ):
        for step in pipeline.steps[1:]:
            ahead._begin(step)
            assert connection.wait([ahead._running[step.name].stdout.fileno()])  # a pass has begun
        assert ahead.settle(pipeline.steps[1])["reused"] == -4
        while not list(Path("web/attributes/rules").glob("*.gz")):
            time.sleep(0.01)
        raise FeedmillError("the disk is full")
    begun = [row for row in map(json.loads, Path("events/e.jsonl").read_text().splitlines()) if "verb" in row]
    assert {row["verb"] for row in begun} == {"lengths (tag)", "rules (tag)"}
    assert events.run not in {row["run"] for row in begun}
    assert re.search(r"the step 'rules' ran ahead: [1-4] files at web/attributes/rules are complete each", caplog.text)


def test_files_of_others_are_refused_at_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, overlap=True)
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "web/attributes/lengths/0.jsonl.gz"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    with pytest.raises(ConfigError, match="the step 'lengths' would replace a file that this pipeline has not written"):
        fm.run("p.json", progress=False)
    assert mine.read_bytes() == b"mine"


def test_changed_inputs_give_the_same_manifest(tmp_path: Path) -> None:
    """Also what the steps before have at the places of later ones.

    What was reused is only bounded: a pass that ended because `extract` had just removed an input of it has no count.
    """
    both, reused = [], []
    for overlap in (False, True):
        folder = tmp_path / str(overlap)
        make(folder, overlap=overlap)
        finish(["run", "p.json"], folder)
        os.remove(folder / "raw/3.warc.gz")
        archive(folder / "raw/4.warc.gz", pages(30, site="s4"))
        finish(["run", "p.json"], folder)
        both.append(json.loads(written(folder)["p.run.json"]))
        reused.append([step["report"].pop("reused") for step in both[-1]["steps"]])
        assert finish(["run", "p.json"], folder).count("up to date") == 3
    assert both[0] == both[1]
    assert reused[0] == [3, 3, 3] and reused[1][0] == 3 and {*reused[1]} <= {3, 4}


def test_a_step_that_writes_where_earlier_ones_do_runs_at_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path, overlap=True)
    described = json.loads(Path("p.json").read_text())
    for step in described["steps"][1:]:
        step["outputs"] = ["web/attributes"]
    Path("p.json").write_text(json.dumps(described))
    steps = fm.run("p.json", progress=False).steps
    assert [step.outputs for step in steps] == [4, 4, 4] and all(step.ran for step in steps)
    assert "the step 'rules' does not run ahead: its outputs may hold those of the step 'lengths'" in caplog.text


def test_a_pipeline_that_is_edited_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that run ahead are those of the run, which read the pipeline when it began."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path, overlap=True)

    def edit(report: Any) -> None:
        if report.name == "extract":
            make(tmp_path, overlap=True, name="other")

    steps = fm.run("p.json", progress=False, on_step=edit).steps
    assert steps[2].outputs == 4 and not Path("web/attributes/other").exists()


def test_counts_of_passes_add_up() -> None:
    first = {"files": 3, "reused": 1, "models": {"m": {"texts": 2}}}
    then = {"files": 5, "reused": 3, "failed": [{"what": "corrupt"}], "models": {"n": {"texts": 1}}}
    total = added(counted(first), counted(then))
    last = {"files": 4, "reused": 4, "models": {}, "rows": 7}
    assert added(last, total) == {"files": 4, "reused": 1, "models": {"m": {"texts": 2}, "n": {"texts": 1}}, "rows": 7}


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"cpu": 1}, "unknown resource 'cpu'.*did you mean 'cpus'"),
        ({"cpus": 1.5}, "1.5 of cpus is invalid. Use a whole number"),
        ({"gpus": "one"}, "'one' of gpus is no number"),
        ({"memory": "much"}, "'much' is not a size"),
        ({"custom": {"GPU": 1}}, "'GPU' is not the name of a custom resource. Use gpus"),
        ({"labels": {"kind": True}}, "True is not the value of a label 'kind'"),
        ([1], "resources are not a mapping"),
    ],
)
def test_wrong_resources_are_named(
    resources: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    step = {"verb": "tag", "inputs": "x", "outputs": "y", "options": {"taggers": ["char_length_v1"]}}
    Path("p.json").write_text(json.dumps({"steps": [{**step, "resources": resources}]}))
    with pytest.raises(ConfigError, match=message) as found:
        fm.run("p.json")
    assert "p.json:" in str(found.value)


def test_processes_of_this_machine_are_as_few_as_have_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, overlap=False)
    monkeypatch.chdir(tmp_path)
    described = json.loads(Path("p.json").read_text())
    described["steps"][0]["resources"] = {"cpus": 1000}
    Path("p.json").write_text(json.dumps(described))
    with pytest.raises(ConfigError, match=r"a unit needs 1,000 cores, and this machine has \d+"):
        fm.run("p.json", progress=False)


def test_what_only_ray_considers_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, overlap=False)
    monkeypatch.chdir(tmp_path)
    described = json.loads(Path("p.json").read_text())
    described["steps"][0]["resources"] = {"cpus": 1, "gpus": 1, "labels": {"pool": "gpu"}}
    Path("p.json").write_text(json.dumps(described))
    fm.run("p.json", progress=False)
    assert [line.partition(" needs ")[2] for line in caplog.messages if "only Ray" in line] == [
        "gpus, which only Ray considers",
        "labels, which only Ray considers",
    ]
