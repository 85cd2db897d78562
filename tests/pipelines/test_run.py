"""Pipelines: what has changed runs, and nothing else; on every engine; after any kill."""

from __future__ import annotations

import functools
import gzip
import json
import os
import random
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.curation import registry
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound, StorageError
from feedmill.jobs.work import alone
from feedmill.pipelines.history import History
from feedmill.pipelines.pipeline import VERBS, Step, described, problems, types_of
from feedmill.samples.media import MediaFilter
from feedmill.storage import LocalStore
from helpers import warm
from helpers.document_folders import texts, write_documents
from helpers.engine_verbs import TOKENIZER
from helpers.kills import command, contents, finish
from helpers.pipeline import STEPS, STREAM, make, without_manifests, write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def changed(which: str, **changes: Any) -> list[dict[str, Any]]:
    return [{**step, **changes} if step.get("name") == which else step for step in STEPS]


def ran(**options: Any) -> list[str]:
    return [step.name for step in fm.run("p.json", progress=False, **options).steps if step.ran]


ALL = ["lengths", "copies", "kept", "tokens", "merge"]


def test_nothing_runs_twice(folder: Path) -> None:
    assert ran() == ALL
    assert ran() == []
    assert ran(overwrite=True) == ALL
    assert ran(steps=["tokens"], overwrite=True) == ["tokens"]
    shutil.copyfile("p.json", "q.json")  # another pipeline with another manifest: the verbs skip what is there
    assert len(fm.run("q.json", progress=False, steps=["lengths", "copies"]).steps) == 2


def test_a_changed_input_runs_what_depends_on_it(folder: Path) -> None:
    fm.run("p.json", progress=False)
    write_documents(folder, texts(30, seed=9))  # part-0
    assert ran() == ALL
    os.utime("documents/part-1.jsonl.gz")  # the same content
    assert ran() == [] and ran(hash=False) != []


def test_a_change_that_makes_no_difference_ends_there(folder: Path) -> None:
    fm.run("p.json", progress=False)
    name, rest = STREAM["filter"]["include"][0], STREAM["filter"]  # type: ignore[index]
    same = {**STREAM, "filter": {**rest, "include": [name.replace(">= 20", ">=  20")]}}  # type: ignore[dict-item]
    write(changed("kept", options={"inputs": {"streams": [same]}}), folder)
    assert ran() == ["kept"]


def test_numbered_files_are_outputs(folder: Path) -> None:
    steps = [{**STEPS[3], "inputs": ["documents"], "options": {"tokenizer": TOKENIZER, "on_error": "skip"}}]
    steps[0]["options"]["max_file_size"] = 3000
    steps.append({"verb": "merge", "inputs": ["tokens"], "outputs": ["all.pbin"]})
    write(steps, folder)
    assert ran() == ["tokens", "merge"] and ran() == []
    assert len(list(Path("tokens").glob("web_*.pbin"))) > 2
    os.remove("tokens/web_00001.pbin")
    assert ran() == ["tokens"]  # the merged file is the same
    steps[0]["options"]["max_file_size"] = 9000
    write(steps, folder)
    assert ran() == ["tokens", "merge"]
    assert len(fm.open("all.pbin")) == len(fm.open("tokens"))


def test_outputs_that_are_gone_or_edited_are_made_again(folder: Path) -> None:
    fm.run("p.json", progress=False)
    before = contents(folder, leave_out=("p.run",))
    os.remove("attributes/copies/part-2.jsonl.gz")
    Path("twice.pbin").write_bytes(b"edited")
    report = fm.run("p.json", progress=False)
    assert [step.name for step in report.steps if step.ran] == ["copies", "merge"]
    assert report.steps[1].reasons == ["the output attributes/copies/part-2.jsonl.gz is missing"]
    assert contents(folder, leave_out=("p.run",)) == before


def test_fewer_outputs_leave_no_old_ones(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    fm.run("p.json", progress=False)
    count = len(list(Path("kept").iterdir()))
    output = {"path": "kept", "max_size_in_bytes": 10**9}
    write(changed("kept", options={"inputs": {"streams": [{**STREAM, "output": output}]}}), folder)
    assert ran() == ["kept", "tokens"]  # the same tokens: the merge is up to date
    assert count > 1 and len(list(Path("kept").iterdir())) == 1 and "deleted" in caplog.text


def test_the_plan_says_why_and_runs_nothing(folder: Path) -> None:
    def reasons() -> list[list[str]]:
        return [step.reasons for step in fm.run("p.json", dry_run=True).steps]

    assert reasons()[0] == ["it has not run yet"] and reasons()[2] == ["it reads what the step 'lengths' writes"]
    assert not (folder / "attributes").exists()
    fm.run("p.json", progress=False)
    write(changed("tokens", options={"tokenizer": TOKENIZER, "eos": None}), folder)
    assert reasons() == [[], [], [], ["the option 'eos' has changed"], ["it reads what the step 'tokens' writes"]]


def test_the_manifest_follows_files_from_the_first_step_to_the_last(folder: Path) -> None:
    report = fm.run("p.json", progress=False)
    steps = {step["name"]: step for step in json.loads(Path(report.manifest).read_text())["steps"]}
    read = steps["tokens"]["inputs"]
    assert read.pop(TOKENIZER) and steps["kept"]["outputs"] == read
    assert steps["tokens"]["inputs"]["kept/web-0000.jsonl.gz"]["xxh3"]
    assert steps["tokens"]["options"] == {"tokenizer": TOKENIZER} and steps["tokens"]["feedmill"] == fm.__version__
    assert steps["tokens"]["report"]["documents"] == steps["kept"]["report"]["streams"][0]["kept"]


def test_files_of_others_are_not_replaced(folder: Path) -> None:
    Path("twice.pbin").write_bytes(b"mine")
    with pytest.raises(FeedmillError):
        fm.run("p.json", progress=False)
    assert Path("twice.pbin").read_bytes() == b"mine"
    os.remove("twice.pbin")
    assert ran() == ["merge"]


def test_after_an_error_a_file_that_appears_is_of_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(fm.tokens.merge)
    def merge(*_: Any, **__: Any) -> None:
        raise FeedmillError("no")

    monkeypatch.setattr("feedmill.tokens.verbs.merge.merge", merge)
    with pytest.raises(FeedmillError, match="no"):
        fm.run("p.json", progress=False)
    monkeypatch.undo()
    os.chdir(folder)
    test_files_of_others_are_not_replaced(folder)


def test_ended_between_the_output_and_its_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed step has published is its own."""
    original = History.record

    def record(history: History, step: Any, facts: Any) -> None:
        if step.name == "merge":
            raise KeyboardInterrupt
        original(history, step, facts)

    monkeypatch.setattr(History, "record", record)
    with pytest.raises(KeyboardInterrupt):
        fm.run("p.json", progress=False)
    monkeypatch.undo()
    os.chdir(folder)
    assert Path("twice.pbin").exists()
    assert ran() == ["merge"] and ran() == []


def test_an_index_beside_its_file_is_replaced_unless_it_is_of_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("x.jsonl").write_text('{"text": "a"}\n')
    Path("p.json").write_text(json.dumps({"steps": [{"verb": "index", "inputs": ["x.jsonl"], "outputs": ["x.idx"]}]}))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(History, "record", killed)
        fm.run("p.json", progress=False)
    assert Path("x.idx").exists()
    assert ran() == ["index"] and ran() == []
    Path("x.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    before = Path("x.idx").read_bytes()
    assert ran() == ["index"] and Path("x.idx").read_bytes() != before
    Path("p.run.json").unlink()
    with pytest.raises(FeedmillError, match="already exists"):  # nothing says that it is the pipeline's
        fm.run("p.json", progress=False)


def test_one_run_at_a_time(folder: Path) -> None:
    with alone(LocalStore(str(folder)), "p.run.json"), ThreadPoolExecutor() as pool:
        with pytest.raises(StorageError, match="another process is writing here"):
            pool.submit(fm.run, "p.json", progress=False).result()
        assert pool.submit(fm.run, "p.json", dry_run=True).result().steps[0].reasons


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"verb": "tagg"}, ConfigError, "unknown verb 'tagg' .did you mean 'tag'"),
        ({"input": "x"}, ConfigError, "unknown key 'input'"),
        ({"options": {"taggrs": []}}, ConfigError, "no option 'taggrs' .did you mean 'taggers'"),
        ({"options": {"progress": True}}, ConfigError, "no option 'progress'"),
        ({"options": {"dry_run": True}}, ConfigError, "no option 'dry_run'"),
        ({"options": [1]}, ConfigError, "'options' is not a mapping"),
        ({"inputs": []}, ConfigError, "'inputs' is missing"),
        ({"outputs": None}, ConfigError, "'outputs' is missing"),
        ({"inputs": ["nowhere"]}, NotFound, "reads 'nowhere', which has no files"),
        ({"name": "copies"}, ConfigError, "two steps are called 'copies'"),
        ({"outputs": ["elsewhere"]}, DataError, "no files at elsewhere"),
    ],
)
def test_bad_steps(change: dict[str, Any], error: type[FeedmillError], message: str, folder: Path) -> None:
    write(changed("lengths", **change), folder)
    with pytest.raises(error, match=message) as caught:
        fm.run("p.json", progress=False)
    assert str(caught.value.file).startswith("p.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "steps: 3", "steps: []", "steps: [1]", "a: 1\nsteps: []", "\x00", "]"]
)
def test_bad_files(text: str, folder: Path) -> None:
    (folder / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        fm.run("bad.yaml")
    assert str(caught.value.file).startswith("bad.yaml")


def test_a_corrupt_manifest_is_named(folder: Path) -> None:
    Path("p.run.json").write_text("{")
    with pytest.raises(DataError, match="manifest of the pipeline is corrupt"):
        fm.run("p.json")
    with pytest.raises(ConfigError, match=r"no step 'lengts' .did you mean 'lengths'"):
        fm.run("p.json", steps=["lengts"])


def test_as_parts(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each step in parts, one after another."""
    alone = tmp_path_factory.mktemp("alone")
    make(alone)
    finish(["run", "p.json"], alone)
    for step in (*[each.get("name", each["verb"]) for each in STEPS[1:]], None):
        for part in (2, 1):
            finish(["run", "p.json", "--engine", "part", "--part", f"{part}/2"], folder)
        words = command("run", "p.json", "--engine", "part", "--finish")
        done = warm.run(words, cwd=folder, capture_output=True, text=True)
        assert done.returncode == (0 if step is None else 3), done.stderr
        assert (f"next: all parts of the step {step!r}, then --finish again" in done.stdout) == (step is not None)
    out = finish(["run", "p.json", "--engine", "part", "--finish", "--json"], folder)
    assert json.loads(out)["waiting"] is None
    assert without_manifests(folder) == without_manifests(alone)


@pytest.mark.parametrize("number", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_at_any_time(number: int, tmp_path: Path) -> None:
    calm = tmp_path / "calm"
    make(calm)
    begun = time.monotonic()
    finish(["run", "p.json"], calm)
    seconds, numbers = time.monotonic() - begun, random.Random(number)
    for n in range(number):
        folder = tmp_path / f"killed{n}"
        make(folder)
        for _ in range(2):
            child = warm.Popen(command("run", "p.json"), cwd=folder, stdout=-3, stderr=-3, start_new_session=True)
            time.sleep(numbers.uniform(0.2, seconds))
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        finish(["run", "p.json"], folder)
        assert without_manifests(folder) == without_manifests(calm)
        assert "ran in" not in finish(["run", "p.json"], folder)


@pytest.mark.parametrize(
    ("verb", "options", "expected"),
    [
        ("tag", {"name": "l"}, r"the option 'taggers' of the step 's' is missing, and the verb requires it: a list of"),
        (
            "tag",
            {"taggers": ["a_v1"], "name": 3},
            r"the option 'name' of the step 's' is 3: expected a text, or nothing",
        ),
        ("tag", {"taggers": "a_v1"}, r"'taggers' of the step 's' is 'a_v1': expected a list of texts"),
        ("tag", {"taggers": [1]}, r"'taggers' of the step 's' is \[1\]: expected a list of texts"),
        ("tag", {"taggers": ["a_v1"], "workers": True}, r"'workers' of the step 's' is True: expected a whole number"),
        ("tag", {"taggers": ["a_v1"], "exact": "yes"}, r"'exact' of the step 's' is 'yes': expected true or false"),
        ("tag", {"taggers": ["a_v1"], "on_error": "skp"}, r"'on_error' .* is 'skp': expected one of 'raise', 'skip'"),
        ("tag", {"taggers": ["a_v1"], "nam": "l"}, r"the verb 'tag' has no option 'nam'.*did you mean 'name'"),
        ("tokenize", {"tokenizer": ["t"]}, r"'tokenizer' of the step 's' is \['t'\]: expected a text"),
        ("split", {"ratio": {"a": "half"}}, r"'ratio' of the step 's' is .*: expected a mapping"),
        ("filter", {"inputs": 3}, r"'inputs' of the step 's' is 3: expected a list of texts, or a text, or a mapping"),
        ("filter", {"predicate": "print"}, r"'predicate' of the step 's' is 'print'"),
        ("prepare-media", {}, r"'media' of the step 's' is missing.*a mapping with the keys strategy, patterns"),
        ("prepare-media", {"media": {"strategy": "X"}}, r"'media' of the step 's' is .*: expected a mapping with the"),
    ],
)
def test_options_are_checked_against_the_signature_of_the_verb(
    verb: str, options: Any, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write([{"name": "s", "verb": verb, "inputs": ["in"], "outputs": ["out"], "options": options}], tmp_path)
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match=expected) as caught:
            fm.run("p.json", dry_run=dry_run)
        assert caught.value.kind == "bad-config" and str(caught.value.file).startswith("p.json")


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_every_verb_can_be_described(verb: str) -> None:
    """A type that no value has would be an option that no pipeline can give."""
    function = Step(verb, verb, ("a",), ("b",), {}, "p.json").function
    none = {name for name, hint in types_of(function).items() if described(hint) in ("", "nothing")}
    assert none <= {"predicate", "on_preview"}  # functions


def test_a_mapping_becomes_the_dataclass_of_a_parameter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    media = {"strategy": "GLOB", "patterns": ["*.jpg"]}
    step = Step("m", "prepare-media", ("data",), ("data",), {"media": media}, "p.json")
    assert step.arguments() == {"url": "data", "media": MediaFilter("GLOB", ("*.jpg",))}
    assert not problems(step.function, step.options, ["url"])


def step_of(verb: str, outputs: str, **options: Any) -> dict[str, Any]:
    return {"verb": verb, "inputs": ["documents"], "outputs": [outputs], "options": options}


WITHOUT_LISTING = {
    "a tokenizer": (
        step_of("tokenize", "t/web", tokenizer="tok.json", eos="<|endoftext|>", on_error="skip"),
        "tok.json",
    ),
    "a preset's attributes": (
        step_of("filter", "kept", inputs=["documents"], output="kept", preset=["duplicates"]),
        "attributes/dup_documents/part-0.jsonl.gz",
    ),
    "streams": (
        {**step_of("filter", "kept"), "inputs": ["filter.json"]},
        "documents/part-1.jsonl.gz",
    ),
    "what others are compared with": (
        step_of("dedupe", "attributes/dup_documents", against=["other/*"]),
        "other/documents/part-0.jsonl.gz",
    ),
    "a module of taggers": (
        step_of("tag", "attributes/own", taggers=["own"], tagger_modules=["own.py"], name="own"),
        "own.py",
    ),
}


@pytest.mark.parametrize("of", WITHOUT_LISTING)
def test_what_a_step_reads_is_an_input_without_being_listed(
    folder: Path, of: str, request: pytest.FixtureRequest
) -> None:
    """Before, the step was up to date, and what it had written was of another tokenizer, or other attributes."""
    step, read = WITHOUT_LISTING[of]
    shutil.copyfile(TOKENIZER, "tok.json")
    shutil.copytree("documents", "other/documents")
    Path("filter.json").write_text(json.dumps({"streams": [{**STREAM, "attributes": [], "filter": {}}]}))
    Path("own.py").write_text(
        "from feedmill.curation.registry import register\n"
        "from feedmill.curation.taggers.lengths import char_length\n"
        "own = register('own')(lambda batch: char_length(batch))\n"
    )
    request.addfinalizer(functools.partial(registry.remove, "own"))
    write([step], folder)
    assert ran() == [step["verb"]] and ran() == []
    data = Path(read).read_bytes()
    Path(read).write_bytes(gzip.compress(gzip.decompress(data), mtime=1) if read.endswith(".gz") else data + b"\n")
    report = fm.run("p.json", dry_run=True, progress=False)
    assert [reason for one in report.steps for reason in one.reasons] == [f"the input {read} has changed"]
