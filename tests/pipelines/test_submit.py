"""Submitted pipelines: the chain of job arrays runs to the same bytes, also after a killed task; states; cancelling."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import feedmill as fm
from feedmill.errors import ConfigError, DataError, NotFound, StorageError
from feedmill.jobs.engine import Limits
from feedmill.jobs.work import alone
from feedmill.storage import LocalStore
from helpers import warm
from helpers.kills import command
from helpers.pipeline import STEPS, make, without_manifests, write

# Programs in the place of Slurm's, which run nothing until `drain`: a line of `queue` is a task, in order of its id.
# Real tasks are bash processes with the variables and the dependencies (afterok, afterany) that Slurm gives them.
STAND_IN = """
import json, os, re, signal, subprocess, sys
from pathlib import Path
program, words = Path(sys.argv[0]).name, sys.argv[1:]
place = Path(sys.argv[0]).parent
file = place / "queue.json"
tasks = json.loads(file.read_text()) if file.exists() else []
if program == "scontrol":
    print("MaxArraySize            = 3")
elif program == "sbatch":
    if (place / "refuse").exists() and len({t["job"] for t in tasks}) > 1:
        sys.exit("sbatch: error: QOSMaxSubmitJobPerUserLimit")
    text = Path(words[-1]).read_text()
    given = dict(re.findall(r"^#SBATCH --([\\w-]+)=(.*)$", text, re.M))
    after = next((w.partition("=")[2] for w in words if w.startswith("--dependency")), "")
    job = str(1 + max([int(t["job"]) for t in tasks], default=0))
    numbers = [None]
    if "array" in given:
        numbers = []
        for each in given["array"].partition("%")[0].split(","):
            first, _, last = each.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    for index in numbers:
        tasks.append(dict(job=job, index=index, state="PENDING", after=after, text=text, name=given["job-name"],
                          folder=given["chdir"], script=words[-1]))
    if (place / "die").exists() and job == "2":
        file.write_text(json.dumps(tasks))
        os.kill(os.getppid(), signal.SIGKILL)
    print(job)
elif program == "squeue":
    for t in tasks:
        index, why = "N/A" if t["index"] is None else t["index"], t.get("why", "None")
        print(t["job"], index, t["state"], why, t["name"], t["script"], sep="|")
elif program == "scancel":
    for t in tasks:
        if t["job"] in words and t["state"] == "PENDING":
            t["state"] = "CANCELLED"
file.write_text(json.dumps(tasks))
"""


class Slurm:
    """The stand-ins in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("sbatch", "squeue", "scancel", "scontrol"):
            program = folder / name
            program.write_text(f"#!{sys.executable}\n{STAND_IN}")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def tasks(self) -> list[dict[str, Any]]:
        file = self.folder / "queue.json"
        return json.loads(file.read_text()) if file.exists() else []

    def waiting(self) -> list[str]:
        return [f"{t['name']}:{t['index'] or ''}" for t in self.tasks() if t["state"] == "PENDING"]

    def change(self, how: Callable[[dict[str, Any]], dict[str, str]]) -> None:
        (self.folder / "queue.json").write_text(json.dumps([task | how(task) for task in self.tasks()]))

    def drain(self, kill: str = "") -> list[str]:
        """Run all tasks whose dependencies allow it; `kill` is the name and index of one that dies at once."""
        tasks, ran = self.tasks(), []
        for task in tasks:
            if task["state"] != "PENDING":
                continue
            kinds = [each.partition(":") for each in task["after"].split(",") if each]
            needed = {number for kind, _, numbers in kinds if kind == "afterok" for number in numbers.split(":")}
            if any(other["state"] != "COMPLETED" for other in tasks if other["job"] in needed):
                task["state"] = "CANCELLED"  # --kill-on-invalid-dep
                continue
            name = f"{task['name']}:{task['index'] or ''}"
            if name == kill:
                task["state"] = "FAILED"
                continue
            more = {"SLURM_ARRAY_TASK_ID": str(task["index"])} if task["index"] else {}
            done = subprocess.run(
                ["bash", "-c", task["text"]], cwd=task["folder"], env=os.environ | more, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            task["state"] = "COMPLETED"
            ran.append(name)
        (self.folder / "queue.json").write_text(json.dumps(tasks))
        return ran


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.folder}{os.pathsep}{os.environ['PATH']}")
    work = tmp_path / "work"
    work.mkdir()
    make(work)
    monkeypatch.chdir(work)
    return made


def submit(**options: Any) -> Any:
    return fm.run("p.json", submit="slurm", progress=False, **options)


def test_the_chain_waits_for_what_it_needs(slurm: Slurm) -> None:
    """Arrays are split below MaxArraySize, which is 3 here; with a limit they take turns."""
    report = submit(parts=5, array_limit=1, partition="short", sbatch=["--nice"], steps=["lengths", "copies"])
    names = ["p-lengths-1", "p-lengths-2", "p-lengths-3", "p-lengths-finish"]
    tasks = slurm.tasks()
    assert list(dict.fromkeys(task["name"] for task in tasks))[:4] == names
    after = {task["name"]: task["after"] for task in tasks}
    assert [after[name] for name in names] == ["", "afterany:1", "afterany:2", "afterok:1:2:3"]
    assert after["p-copies-1-1"] == "afterok:4" and after["p-copies-2-1"] == "afterok:5:6:7"
    assert [task["index"] for task in tasks if int(task["job"]) <= 3] == [1, 2, 1, 2, 1]
    text = tasks[4]["text"]
    assert "--array=1%1\n" in text and "--partition=short\n" in text and "#SBATCH --nice\n" in text
    assert "part=$((SLURM_ARRAY_TASK_ID + 4))" in text and report.waiting == "lengths"
    assert report.submission.jobs == {"lengths": 6, "copies": 16}


def test_the_state_is_that_of_the_queue_and_cancel_leaves_nothing(slurm: Slurm) -> None:
    submit(parts=2)
    again = submit(parts=2)
    assert again.submission.states["lengths"] == {"PENDING": 3} and not again.submission.jobs
    assert "nothing was submitted" in again.submission.notes[0]
    assert submit(cancel=True).submission.jobs and not slurm.waiting()
    assert "nothing was cancelled" in submit(cancel=True).submission.notes[-1]


def test_a_refused_job_takes_those_before_it_back(slurm: Slurm) -> None:
    (slurm.folder / "refuse").touch()
    with pytest.raises(StorageError, match="QOSMaxSubmitJobPerUserLimit"):
        submit(parts=2)
    assert slurm.tasks() and not slurm.waiting()


def test_a_job_whose_submitter_died_before_it_knew_the_id_is_found(slurm: Slurm) -> None:
    """Before, it was neither shown nor cancelled, and everything was submitted a second time beside it."""
    (slurm.folder / "die").touch()
    assert warm.run(command("run", "p.json", "--submit", "slurm", "--parts", "2")).returncode == -signal.SIGKILL
    assert len(json.loads(Path("p.slurm/submitted.json").read_text())["jobs"]) == 2
    (slurm.folder / "die").unlink()
    assert slurm.waiting() == ["p-lengths:1", "p-lengths:2", "p-lengths-finish:"]
    again = submit(parts=2).submission
    assert again.states == {"lengths": {"PENDING": 3}} and not again.jobs
    assert submit(cancel=True).submission.jobs and not slurm.waiting()
    assert submit(parts=2).submission.jobs


def test_a_part_that_never_finishes_is_not_submitted_for_ever(slurm: Slurm) -> None:
    log = "p.slurm/logs/p-lengths-{}_2.log"
    for _ in range(3):
        assert submit(parts=2, steps=["lengths"]).submission.jobs
        slurm.drain(kill="p-lengths:2")
        last = max(int(task["job"]) for task in slurm.tasks() if task["index"] == 2)
        Path(log.format(last)).write_text("reading\nerror: the disk is full\n")
    before = len(slurm.tasks())
    with pytest.raises(DataError, match=r"3 times, and not finished: part 2: error: the disk is full\. .*--cancel"):
        submit(parts=2, steps=["lengths"])
    assert len(slurm.tasks()) == before
    assert "may be submitted again" in submit(cancel=True).submission.notes[0]
    assert submit(parts=2, steps=["lengths"]).submission.jobs
    slurm.drain()
    assert submit(parts=2, steps=["lengths"]).waiting is None


def test_a_failed_task_is_shown_with_the_end_of_its_log(slurm: Slurm) -> None:
    submit(parts=2, steps=["lengths"])
    slurm.change(lambda task: {"state": "FAILED"} if task["index"] == 2 else {"state": "CANCELLED", "why": "Priority"})
    Path("p.slurm/logs/p-lengths-1_2.log").write_text("reading\nerror: the disk is full. Free some space.\n\n")
    assert submit(dry_run=True).submission.ended == [
        "lengths: part 2 is FAILED (None): error: the disk is full. Free some space.",
        "tasks that were cancelled before they began: 2",
    ]


@pytest.mark.slow
def test_only_what_a_killed_task_left_is_submitted_again(slurm: Slurm, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    make(alone)
    write(STEPS[:4], alone)
    write(STEPS[:4], Path())
    submit(parts=2)
    slurm.drain(kill="p-copies-2:2")
    report = submit(parts=2)
    assert slurm.waiting()[:2] == ["p-copies:2", "p-copies-finish:"]
    assert report.waiting == "copies" and "copies: part 2 is FAILED (None)" in report.submission.ended
    slurm.drain()
    done = submit(parts=2)
    assert done.waiting is None and not done.submission.jobs
    shutil.rmtree("p.slurm")
    subprocess.run([sys.executable, "-m", "feedmill", "run", "p.json"], cwd=alone, check=True, capture_output=True)
    assert without_manifests(Path()) == without_manifests(alone)


def test_invalid_inputs_that_are_skipped_do_not_end_the_chain(slurm: Slurm) -> None:
    """Nor is the step submitted again for them, as long as they are as they were: the command names them."""
    first, second = ({**STEPS[0], "name": name, "outputs": [f"attributes/{name}"]} for name in ("first", "second"))
    first["options"] = {"taggers": ["char_length_v1"], "name": "first", "on_error": "skip"}
    write([first, {**second, "options": {"taggers": ["char_length_v1"], "name": "second"}}], Path())
    Path("documents/bad.jsonl").write_text("no row\n")
    submit(parts=1)
    finish = next(task for task in slurm.tasks() if task["index"] is None)
    subprocess.run(["bash", "-c", finish["text"]], check=True, capture_output=True)
    submit(cancel=True)
    assert [step.reasons for step in fm.run("p.json", submit="slurm", dry_run=True).steps] == [
        [],
        ["it has not run yet"],
    ]
    write([first], Path())
    done = warm.run(command("run", "p.json", "--submit", "slurm"), capture_output=True, text=True)
    assert done.returncode == 4 and "bad.jsonl" in done.stderr and not slurm.waiting()


def test_scripts_are_only_printed(slurm: Slurm) -> None:
    before = sorted(Path().rglob("*"))
    report = submit(print_scripts=True, parts=2)
    assert report.submission.scripts["01-p-lengths.sbatch"].startswith("#!/bin/bash\n#SBATCH --job-name=p-lengths\n")
    assert "# waits for: p-lengths\n" in report.submission.scripts["02-p-lengths-finish.sbatch"]
    assert sorted(Path().rglob("*")) == before and not slurm.tasks()


def test_percent_signs_of_folders_are_none_of_slurms_patterns(slurm: Slurm) -> None:
    Path("50%j").mkdir()
    shutil.copy("p.json", "50%j/p.json")
    report: Any = fm.run("50%j/p.json", submit="slurm", print_scripts=True, parts=2, progress=False)
    text = report.submission.scripts["01-p-lengths.sbatch"]
    assert re.search(r"^#SBATCH '?--output=\S*/50%%j/p.slurm/logs/%x-%A_%a.log'?$", text, re.MULTILINE), text


def test_a_second_submitter_is_refused_while_the_first_submits(slurm: Slurm) -> None:
    submit(parts=2)
    submit(cancel=True)
    with alone(LocalStore(Path("p.slurm")), "submitted.json"):
        done = warm.run(command("run", "p.json", "--submit", "slurm"), capture_output=True, text=True)
        assert done.returncode == 1 and "another process is writing here" in done.stderr
        assert warm.run(command("run", "p.json", "--submit", "slurm", "--dry-run")).returncode == 3
    assert not slurm.waiting() and sorted(os.listdir("p.slurm"))[-2:] == ["logs", "submitted.json"]


def with_resources(**resources: Any) -> None:
    described = yaml.safe_load(Path("p.json").read_text())
    described["steps"][0]["resources"] = resources
    Path("p.json").write_text(json.dumps(described))


def test_what_units_need_is_what_jobs_ask_for(slurm: Slurm) -> None:
    with_resources(cpus=2, memory="1GiB", gpus=0.5)
    scripts = submit(print_scripts=True, parts=2, mem="2G").submission.scripts
    lines = scripts["01-p-lengths.sbatch"].splitlines()
    wanted = ("--cpus-per-task=2", "--mem=2G", "--gpus-per-task=1", "--ntasks=1")
    assert all(f"#SBATCH {option}" in lines for option in wanted), lines
    assert "#SBATCH --mem=1024M" in submit(print_scripts=True, parts=2).submission.scripts["01-p-lengths.sbatch"]
    fm.run("p.json", submit="kubernetes", image="i", volume="shared:/shared", progress=False)
    groups = yaml.safe_load(Path("p.rayjob.yaml").read_text())["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    asked = [group["template"]["spec"]["containers"][0]["resources"]["limits"] for group in groups]
    assert ["nvidia.com/gpu" in amounts for amounts in asked] == [False, True]
    with Limits(attempts=2), pytest.raises(ConfigError, match="do not get limits of units"):
        submit(print_scripts=True)
    with_resources(labels={"pool": "cpu"})
    with pytest.raises(ConfigError, match="needs custom resources or labels of Ray's nodes"):
        submit(print_scripts=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 2}, "--parts is an option of --submit slurm"),
        ({"print_scripts": True}, "--print is an option of --submit slurm or kubernetes"),
        ({"submit": "kubernetes", "qos": "x"}, "--qos is an option of --submit slurm"),
        ({"submit": "slurm", "apply": True}, "--apply is an option of --submit kubernetes"),
        ({"submit": "slurm", "overwrite": True}, "--overwrite cannot be submitted"),
        ({"submit": "slrm"}, r"cannot be submitted to 'slrm' \(did you mean 'slurm'\?\)"),
        ({"submit": "kubernetes"}, "needs --image and --volume"),
        ({"submit": "kubernetes", "image": "i", "volume": "shared"}, "--volume 'shared' is not CLAIM:/PATH"),
    ],
)
def test_options_that_do_not_fit_are_refused(slurm: Slurm, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fm.run("p.json", progress=False, **options)


def test_without_slurm_its_program_is_named(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotFound, match="there is no program"):
        submit()


def test_a_job_of_kuberay_is_written(slurm: Slurm) -> None:
    options = {"image": "registry.example.org/feedmill:0.1.0", "volume": "shared:/shared", "max_nodes": 64}
    report = fm.run("p.json", submit="kubernetes", progress=False, **options)  # type: ignore[arg-type]
    job = yaml.safe_load(Path("p.rayjob.yaml").read_text())
    example = yaml.safe_load((Path(__file__).parents[2] / "examples/cluster/rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == (example["apiVersion"], example["kind"])
    made, shown = job["spec"], example["spec"]
    assert made.keys() == shown.keys() and made["rayClusterSpec"].keys() <= shown["rayClusterSpec"].keys()
    assert made["rayClusterSpec"]["workerGroupSpecs"][0].keys() == shown["rayClusterSpec"]["workerGroupSpecs"][0].keys()
    assert "feedmill run" in made["entrypoint"] and "kubectl apply -f" in str(report.submission)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("sinfo") is None, reason="needs a running Slurm")
def test_on_real_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if subprocess.run(["sinfo", "--noheader"], capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("Slurm is installed, but does not run")
    make(tmp_path)
    write(STEPS[:2], tmp_path)
    monkeypatch.chdir(tmp_path)
    submit(parts=3)
    submit(cancel=True)
    assert submit(dry_run=True).waiting == "lengths"
    submit(parts=3)
    while submit(dry_run=True).submission.states and (state := submit(dry_run=True)).waiting is not None:
        assert not state.submission.ended, state.submission.ended
        time.sleep(1)
    assert submit().waiting is None
