"""The contract of engines: a verb writes the same bytes on this machine, in parts, and on a Ray cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.curation.stat import StatTask
from feedmill.documents.file import DocumentFile
from feedmill.errors import ConfigError, FeedmillError
from feedmill.jobs.engine import Engine, Limits, Stage, StageUnfinished, UnitsFailed, current
from feedmill.jobs.events import name_of
from feedmill.jobs.parts import PartEngine
from feedmill.jobs.run import run
from feedmill.pipelines import pipeline
from feedmill.storage import LocalStore
from helpers import warm
from helpers import worker_functions as working
from helpers.document_folders import texts, write_documents, write_lines
from helpers.durations import slow_but
from helpers.engine_verbs import (
    AT_ONCE,
    FAILING,
    SKIP,
    SOME,
    TOKENIZER,
    VERBS,
    copied,
    in_bucket,
    objects,
    outputs,
    run_with_failing,
    start,
    tagged,
    unfinished_work,
    upload,
)
from helpers.kills import command, finish

STAGES = {
    "dedupe": 3,
    "dedupe-documents": 3,
    "dedupe-substrings": 5,
    "dedupe-bloom": 3,
    "neardedupe": 3,
    "neardedupe-embeddings": 5,
    "decontaminate": 4,
    "tokenize-numbered": 2,
}


@pytest.mark.parametrize("verb", SOME)
def test_parts_in_any_order(
    verb: str, inputs: Path, alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part once, and one twice; as often as the verb has stages. The last part that is missing is made up for.

    All run in this process: tests below run processes. Messages have readable names of all units.
    """
    folder, numbers, names = copied(inputs, tmp_path), random.Random(verb), list[str]()
    monkeypatch.chdir(folder)
    part_run = PartEngine.run

    def noting(engine: PartEngine, stage: Stage) -> Iterator[Any]:
        items = list(stage.items)
        names.extend(map(name_of, items))
        return part_run(engine, replace(stage, items=items))

    monkeypatch.setattr(PartEngine, "run", noting)
    order = [1, 2, 3, numbers.randint(1, 3)]
    for _ in range(STAGES.get(verb, 1)):
        numbers.shuffle(order)
        for part in order:
            out = run_here([*VERBS[verb], "--engine", "part", "--part", f"{part}/3"])
            assert "--finish" in out  # a part never publishes, even if all units are finished
    assert outputs(folder) != alone(verb) or verb in (*AT_ONCE, *STAGES)
    run_here([*VERBS[verb], "--engine", "part", "--part", "/3", "--finish"])
    assert outputs(folder) == alone(verb)
    assert not unfinished_work(folder)
    assert are_readable(names)


def run_here(words: list[str]) -> str:
    """Run a command in this process; what it prints."""
    done = CliRunner().invoke(app, words, prog_name="feedmill")
    assert done.exit_code == 0 or (done.exit_code == 3 and "--finish" not in words), done.output
    return done.output


def test_the_exit_status_says_whether_all_parts_must_run_again(inputs: Path, tmp_path: Path) -> None:
    """3 as long as stages are left for them, 0 once only ``--finish`` is."""
    folder, statuses, texts = copied(inputs, tmp_path), [], []
    words = [*VERBS["tokenize-numbered"], "--engine", "part"]
    for part in (1, 2, 1, 2):
        done = warm.run(command(*words, "--part", f"{part}/2"), cwd=folder, capture_output=True, text=True)
        statuses.append(done.returncode)
        texts.append(done.stdout)
    assert statuses == [3, 0, 0, 0]  # the second one finds the first stage finished, and does the next
    assert "Run all parts again for the next stage; or --finish" in texts[0]
    assert all("Run the same command with --finish" in text for text in texts[1:])
    finish([*words, "--finish"], folder)


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_seven_parts_at_once_of_which_one_is_killed(verb: str, inputs: Path, alone: Any, tmp_path: Path) -> None:
    folder, numbers = copied(inputs, tmp_path), random.Random(verb)
    parts = [*range(1, 8), 4]
    for _ in range(3):
        numbers.shuffle(parts)
        running = [start([*VERBS[verb], "--engine", "part", "--part", f"{part}/7"], folder) for part in parts]
        time.sleep(numbers.uniform(0.3, 2))
        running[0].kill()
        for process in running:
            _, err = process.communicate(timeout=120)
            # Of two processes of one part that run at the same time, one ends.
            assert process.returncode in (0, 3, -signal.SIGKILL) or "already running" in err or "another" in err, err
    finish([*VERBS[verb], "--engine", "part", "--finish"], folder)
    assert outputs(folder) == alone(verb)
    assert not unfinished_work(folder)


class Noting(Engine):
    """Runs stages here, and notes what messages call their units."""

    name = "noting"

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.stages = 0

    def run(self, stage: Stage) -> Iterator[Any]:
        items = list(stage.items)
        self.names += map(name_of, items)
        self.stages += stage.where.lasting and stage.where.place is not None
        yield from stage.local(items)


def are_readable(names: list[str]) -> bool:
    """As in "ended its worker 5 times: documents/part-3.jsonl.gz": a path, or what range of what it is."""
    return bool(names) and not [name for name in names if re.search(r"[A-Z]\w+\(|=|array|^\d*$|None", name)]


@pytest.mark.parametrize("verb", slow_but(VERBS, "tag", "merge"))
def test_an_engine_of_ones_own_knows_units_by_readable_names(
    verb: str, inputs: Path, alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copied(inputs, tmp_path))
    one = [] if verb == "filter-tokens" else ["--workers", "1"]  # it writes one file
    with Noting() as engine, contextlib.redirect_stdout(open(os.devnull, "w")):
        assert not app([*VERBS[verb], *one], prog_name="feedmill", standalone_mode=False)
    assert are_readable(engine.names) and engine.stages == STAGES.get(verb, 1)
    assert outputs(Path.cwd()) == alone(verb)


OPTIONS: dict[str, dict[str, Any]] = {
    "tokenize-numbered": {"max_file_size": "15kB"},
    "dedupe-substrings": {"by": "substrings"},
    "neardedupe": {"near": True},
    "neardedupe-embeddings": {"near": True, "by": "embeddings"},
}


def test_a_submitted_step_has_an_array_for_each_stage() -> None:
    """More arrays would wait in the queue for nothing, but large inputs add stages to near-duplicates."""
    for verb in VERBS:
        step = pipeline.VERBS.get("dedupe" if "dedupe" in verb else verb.partition("-")[0])
        if step is not None:
            stages = step.stages(OPTIONS.get(verb, {}))
            assert stages == STAGES.get(verb, 1) or (verb == "neardedupe" and stages > STAGES[verb]), verb


@pytest.mark.parametrize(
    ("how", "failing"),
    [
        (["--workers", "1"], {3: "kill", 7: "refuse"}),
        (["--workers", "2", "--attempts", "2"], {3: "exit", 4: "kill"}),
        (["--engine", "part", "--finish"], {0: "kill", 7: "refuse"}),
        pytest.param(["--unit-timeout", "5s", "--workers", "2"], {3: "kill", 7: "hang"}, marks=pytest.mark.slow),
    ],
)
def test_only_failed_units_of_a_verb_run_again(how: list[str], failing: dict[int, str], tmp_path: Path) -> None:
    """As a user meets them: a worker that memory kills or a native tagger ends, a mount that hangs, a refused input."""
    folders = [tmp_path / "calm", tmp_path / "failing"]
    for folder in folders:
        write_documents(folder, *(texts(4, seed=n) for n in range(9)))
    calm, folder = folders
    finish(FAILING, calm)
    words = [*FAILING, "--max-failed-units", "2", *how]
    run_with_failing(failing, words, folder)
    assert tagged(folder) >= {str(n) for n in range(9) if n not in failing}
    finish(words, folder)
    assert tagged(folder) == {str(n) for n in failing}
    assert outputs(folder) == {name: data for name, data in outputs(calm).items() if name != "tagged"}


def test_an_invalid_document_fails_only_its_unit_within_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("calm", "bad"):
        write_documents(tmp_path / name, *([f"text {n} of this file"] * 9 for n in range(4)), suffix=".jsonl")
    monkeypatch.chdir(tmp_path / "bad")
    bad = Path("documents/part-1.jsonl")
    text = bad.read_text()
    bad.write_text("[" + text[1:])

    def tokenize(folder: Path) -> int:
        monkeypatch.chdir(folder)
        options: dict[str, Any] = {"tokenizer": TOKENIZER, "workers": 1, "progress": False, "unit_bytes": 600}
        return fm.tokenize(["documents"], "tokens", formats=["pbin"], **options).reused

    assert tokenize(tmp_path / "calm") == 0
    with Limits(max_failed=1), pytest.raises(UnitsFailed, match="1 of 4 units") as caught:
        tokenize(tmp_path / "bad")
    assert "it is not valid JSON" in str(caught.value.failed[0].error)
    bad.write_text(text)
    assert tokenize(tmp_path / "bad") == 3
    assert outputs(tmp_path / "bad") == outputs(tmp_path / "calm")


def test_an_error_has_the_name_of_a_unit() -> None:
    files = [DocumentFile("web", f"documents/{n}.jsonl", "jsonl", 1, "1") for n in range(2)]
    units = [(n, StatTask(file, None, "raise")) for n, file in enumerate(files)]
    with pytest.raises(FeedmillError, match=r"ended while working on one of: \S*web/documents/0.jsonl, \S*1.jsonl"):
        list(run(working.exit_at_once, units, workers=2))


def test_finish_without_parts_does_everything_and_says_so(inputs: Path, alone: Any, tmp_path: Path) -> None:
    folder = copied(inputs, tmp_path)
    done = warm.run(command(*VERBS["tag"], "--engine", "part", "--finish"), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and "no part had finished" in done.stderr
    assert outputs(folder) == alone("tag")


def test_a_part_that_is_missing_is_named(inputs: Path, tmp_path: Path) -> None:
    folder = copied(inputs, tmp_path)
    for part in (1, 3):
        out = finish([*VERBS["tag"], "--json", "--engine", "part", "--part", f"{part}/3"], folder)
    assert json.loads(out) == {
        "part": {"stage": "tagging", "part": 3, "parts": 3, "units": 2, "finished": 2, "last": True}
    }
    done = warm.run(
        command(*VERBS["tag"], "--engine", "part", "--part", "3/3", "--finish"),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "1 of 3 parts had not finished (2)" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "spark"], "unknown engine 'spark'"),
        (["--part", "1/2"], "--part is an option of --engine part"),
        (["--engine", "part", "--max-tasks", "3"], "--max-tasks is an option of --engine ray"),
        (["--engine", "part", "--part", "0/2"], "parts are numbered from 1"),
        (["--engine", "part", "--part", "3/2"], "parts are numbered from 1"),
        (["--engine", "part", "--part", "x/2"], "is not a part"),
        (["--engine", "part", "--part", "3"], "is not a part"),
        (["--engine", "part"], "number of parts is unknown"),
        (["--engine", "part", "--part", "/5"], "number of this part is unknown"),
        (["--engine", "ray", "--workers", "2"], "Use --max-tasks"),
    ],
)
def test_options_that_do_not_fit(options: list[str], message: str, inputs: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PMI", "JOB_"))}
    done = warm.run(
        command(*VERBS["tag"], *options), cwd=copied(inputs, tmp_path), capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("engine: ray\naddress: 127.0.0.1:1\n", [], "no Ray cluster at '127.0.0.1:1'"),
        ("engine: ray\naddress: 127.0.0.1:1\n", ["--address", "127.0.0.1:2"], "no Ray cluster at '127.0.0.1:2'"),
        ("engine: part\npart: 0/3\n", [], "parts are numbered from 1"),
        ("engine: part\nadress: x\n", [], "cluster.yaml:2: unknown setting 'adress' (did you mean 'address'?)"),
        ("engine: ray\nmax_tasks: many\n", [], "cluster.yaml:2: 'max_tasks' is 'many'"),
        ("[]", [], "expected settings of an engine"),
        ("engine: spark", [], "unknown engine 'spark'"),
        ("events: s3://bucket/e.jsonl", [], "events cannot be appended to 's3://bucket/e.jsonl'"),
        ("engine: part\nmetrics: m.prom", ["--part", "1/2"], "all parts of the job array would write m.prom"),
    ],
)
def test_a_file_of_settings(text: str, options: list[str], message: str, inputs: Path, tmp_path: Path) -> None:
    if "ray" in text and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    folder = copied(inputs, tmp_path)
    (folder / "cluster.yaml").write_text(text)
    words = [*VERBS["tag"], "--engine", "cluster.yaml", *options]
    done = warm.run(command(*words), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "environment", "wanted"),
    [
        ("3/64", {}, (3, 64)),
        ("", {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_COUNT": "4"}, (3, 4)),
        ("/8", {"JOB_COMPLETION_INDEX": "7"}, (8, 8)),
        ("", {"PMI_RANK": "0", "PMI_SIZE": "2"}, (1, 2)),
        ("", {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (2, 2)),
        ("2/9", {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_COUNT": "4"}, (2, 9)),
    ],
)
def test_the_number_of_a_part(text: str, environment: dict[str, str], wanted: tuple[int, int]) -> None:
    engine = PartEngine.parse(text, environment=environment)
    assert (engine.part, engine.parts) == wanted


def test_a_batch_script_is_no_task() -> None:
    with pytest.raises(ConfigError, match="number of this part is unknown"):
        PartEngine.parse("/4", environment={"SLURM_PROCID": "0", "SLURM_NTASKS": "4"})


def test_the_task_that_finishes_is_no_part() -> None:
    """It may be of an array of one task, or have the variables of the part that submitted it."""
    array = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "1"}
    assert PartEngine.parse("", finish=True, environment=array).parts is None
    assert PartEngine.parse("/7", finish=True, environment=array).parts == 7


@pytest.mark.parametrize("words", [["documents", "stat", "documents", "--json"], ["check", "tars", "--json"]])
def test_reports_as_parts(words: list[str], inputs: Path, tmp_path: Path) -> None:
    """Parts in any order leave results, one of them twice, one never; nothing is left after the report."""
    folder = copied(inputs, tmp_path)

    def reported(text: str) -> dict[str, Any]:
        return {name: value for name, value in json.loads(text).items() if name != "seconds"}

    alone = reported(finish(words, folder))
    engine = ["--engine", "part", "--work", "shared", "--part"]
    for part in ("3/3", "1/3", "3/3"):
        assert json.loads(finish([*words, *engine, part], folder))["part"]["part"] == int(part[0])
    assert list((folder / "shared").iterdir())
    assert reported(finish([*words, *engine, "/3", "--finish"], folder)) == alone
    assert not any((folder / "shared").rglob("*"))
    refused = warm.run(command(*words, "--engine", "part", "--part", "1/2"), cwd=folder, capture_output=True)
    assert refused.returncode == 1 and b"Add --work" in refused.stdout + refused.stderr


def test_what_parts_counted_is_not_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("documents").mkdir()
    for number in range(3):
        lines = [json.dumps({"id": str(n), "text": f"word {n} " * (n + 1)}) for n in range(10 + number)]
        write_lines(Path(f"documents/{number}.jsonl"), lines)
    alone = fm.documents.stat("documents", progress=False).as_dict(bins=5)
    for part in (1, 2):
        with PartEngine(part, 2, work="shared"), pytest.raises(StageUnfinished):
            fm.documents.stat("documents", progress=False)
    monkeypatch.setattr("feedmill.curation.stat.stat_file", None)
    with PartEngine(finish=True, work="shared"):
        found = fm.documents.stat("documents", progress=False).as_dict(bins=5)
    assert {**found, "seconds": 0} == {**alone, "seconds": 0}


def test_one_engine_at_a_time() -> None:
    with PartEngine(1, 2), pytest.raises(ConfigError, match="one engine"), PartEngine(1, 2):
        pass
    assert current() is None


def test_a_part_reports_what_it_cannot_read(inputs: Path, tmp_path: Path) -> None:
    """Some texts are empty, and then a row is no document."""
    folder = copied(inputs, tmp_path)
    words = [word for word in VERBS["tokenize"] if word not in SKIP]
    done = warm.run(command(*words, "--engine", "part", "--part", "1/2"), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and "part-0.jsonl.gz 'row 19': the text is empty" in done.stderr
    write_lines(folder / "documents/part-1.jsonl.gz", ["[]"])
    words = [*VERBS["tag"], "--on-error", "skip", "--engine", "part"]
    said = ""
    for part in (1, 2):
        done = warm.run(command(*words, "--part", f"{part}/2"), cwd=folder, capture_output=True, text=True)
        said += done.stderr
    assert "skipped: " in said and "part-1.jsonl.gz" in said


def test_the_same_part_does_not_run_twice_at_once(inputs: Path, tmp_path: Path) -> None:
    folder = copied(inputs, tmp_path)
    words = [*VERBS["tokenize"], "--engine", "part", "--part"]
    finish([*words, "1/2"], folder)
    place = LocalStore(folder).below(".tokens.feedmill-work")
    with place.lock("lock-1", what="", file=""):
        done = warm.run(command(*words, "1/2"), cwd=folder, capture_output=True, text=True)
        assert done.returncode == 1 and "already running" in done.stderr
        finish([*words, "2/2"], folder)


BUCKET = ("tokenize", "tokenize-numbered", "convert", "reshard", "prepare", "dedupe", "tag", "merge", "index")


@pytest.mark.parametrize("verb", [v if v == "tokenize" else pytest.param(v, marks=pytest.mark.slow) for v in BUCKET])
def test_parts_of_an_output_in_a_bucket(
    verb: str, inputs: Path, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unfinished work is in a folder that the machines share."""
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("alone", "parts"):
        upload(inputs, f"{s3_bucket}/{name}")
    finish(in_bucket(VERBS[verb], f"{s3_bucket}/alone"), tmp_path)
    words = in_bucket(VERBS[verb], f"{s3_bucket}/parts")
    words += ["--work", str(tmp_path / "shared"), "--engine", "part"]
    for _ in range(STAGES.get(verb, 1)):
        for part in (2, 1):
            monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / f"cache{part}"))  # as on another machine
            finish([*words, "--part", f"{part}/2"], tmp_path)
    finish([*words, "--finish"], tmp_path)
    assert objects(f"{s3_bucket}/parts") == objects(f"{s3_bucket}/alone")
    assert not any((tmp_path / "shared").rglob("*"))


@pytest.mark.parametrize("verb", ["tokenize", "merge-one", "shuffle"])
def test_one_large_file_is_a_warning_on_an_engine(
    verb: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only one machine writes it, and nobody wants the default of an engine to decide the bytes."""
    monkeypatch.setattr("feedmill.tokens.outputs.LARGE_FILE", 100)
    words = VERBS[verb][: VERBS[verb].index("--max-file-size")] if "--max-file-size" in VERBS[verb] else VERBS[verb]
    found = []
    for number, engine in enumerate([contextlib.nullcontext(), PartEngine(finish=True), PartEngine(finish=True)]):
        monkeypatch.chdir(copied(inputs, tmp_path / str(number)))
        more = ["--max-file-size", "1MB"] if number == 2 else []
        caplog.clear()
        with engine, contextlib.redirect_stdout(open(os.devnull, "w")):
            assert not app([*words, "--workers", "1", *more], prog_name="feedmill", standalone_mode=False)
        found.append("this is one file of about" in caplog.text and "--max-file-size 1GB" in caplog.text)
    assert found == [False, True, False]
