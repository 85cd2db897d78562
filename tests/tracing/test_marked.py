"""From leaked questions to the steps that see them: a skip list removes these, also from a run that is under way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.tracing.forget import ForgetReport, forget
from helpers.lineage_data import TOKENIZER

QUESTIONS = {
    "q1": "Why did the keeper of the lighthouse paint every second step of the stairs red?",
    "q2": "How many bridges cross the river between the old mill and the harbour?",
    "q3": "Which painter hid a small grey cat in each of the portraits of the royal family?",
}
LEAKS = {("a", 3): ["q1"], ("a", 13): ["q1", "q2"], ("b", 6): ["q2"]}
"""Questions in the documents: file and number."""
QUIET = {"workers": 1, "progress": False}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents with leaks in three files, of which two were filtered, tokenized and packed."""
    folder = tmp_path_factory.mktemp("marked")
    write(folder / "quiz.jsonl", [{"id": name, "question": text} for name, text in QUESTIONS.items()])
    for name in ("a", "b", "unused"):
        rows = []
        for number in range(20):
            leaks = LEAKS.get((name, number), ["q1"] if (name, number) == ("unused", 9) else [])
            plain = f"document {number} of {name} " + " ".join(f"{name}{(number * 7 + k) % 97}" for k in range(20))
            text = " ".join([plain, *(QUESTIONS[leak] for leak in leaks), plain])
            rows.append({"id": f"{name}{number}", "text": text, "good": number % 4 != 1})
        write(folder / f"web/documents/{name}.jsonl", rows)
    fm.documents.decontaminate([str(folder / "web/documents")], against=[str(folder / "quiz.jsonl")], **QUIET)
    stream = {
        "name": "kept",
        "documents": [str(folder / "web/documents/[ab].jsonl")],
        "filter": {"include": ["$[?(@.good == true)]"]},
        "output": {"path": str(folder / "kept")},
    }
    fm.filter({"streams": [stream]}, **QUIET)
    fm.tokenize([str(folder / "kept")], str(folder / "ids/web"), tokenizer=TOKENIZER, **QUIET)
    recipe = {"seed": 3, "epochs": 2, "concat": [{"path": "ids/web.pbin"}], "shuffle": "global"}
    (folder / "run.yaml").write_text(yaml.safe_dump({**recipe, "pack": {"seq_len": 48}}))
    (folder / "plain.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def marked(root: Path, *paths: str, **options: Any) -> ForgetReport:
    return forget(str(root / "web/attributes/leaked"), [root / path for path in paths], **options)


def ids_at(recipe: Path, step: int) -> set[str]:
    """The raw documents that a step sees, by `trace`."""
    entries = fm.trace(recipe, step=step, global_batch=4, origins=True, show=True).facts["entries"]
    return {json.loads(origin["text"])["id"] for entry in entries for origin in entry["origins"]}


@pytest.mark.parametrize("name", ["run", "plain"])
def test_a_skip_list_removes_leaked_questions_from_a_run_under_way(root: Path, tmp_path: Path, name: str) -> None:
    recipe = root / f"{name}.yaml"
    report = marked(root, recipe.name, global_batch=4, report=tmp_path / "gone")
    leaked = {f"{file}{number}": names for (file, number), names in LEAKS.items() if number % 4 != 1}
    assert {one.id: one.questions for one in report.documents} == {
        f"{file}{number}": [f"quiz:{name}" for name in names] for (file, number), names in LEAKS.items()
    }
    assert report.unused == {str(root / "web/documents/unused.jsonl"): 1}
    seen = {question: one["seen"][str(recipe)] for question, one in report.questions.items()}
    assert set(seen) == {"quiz:q1", "quiz:q2"} and len(report.questions["quiz:q1"]["documents"]) == 2
    # the steps of each question are exactly those that `trace` shows with one of its documents
    steps = len(fm.Recipe.load(recipe).plan()) // 4
    having = {step: ids_at(recipe, step) for step in range(steps)}
    for question, one in seen.items():
        documents = {id for id, names in leaked.items() if question.removeprefix("quiz:") in names}
        assert [step for step in one["steps"] if step < steps] == [n for n in having if documents & having[n]]
        assert one["times"] >= 2
    # a run that stops after some steps goes on without them, at the same place
    plan = fm.Recipe.load(recipe).plan()
    loader = fm.Loader(plan, batch_size=4, workers=0)
    run = iter(loader)
    for _ in range(5):
        next(run)
    state = loader.state_dict()
    skip = [{"quarantine": str(tmp_path / "gone" / f"skip-{name}.jsonl"), "since": 20}]
    skipping = root / f"{name}-skipping.yaml"
    skipping.write_text(yaml.safe_dump({**yaml.safe_load(recipe.read_text()), "skip": skip}))
    for step in range(len(fm.Recipe.load(skipping).plan()) // 4):
        assert ids_at(skipping, step) == having[step] if step < 5 else not leaked.keys() & ids_at(skipping, step)
    after = marked(root, skipping.name, global_batch=4)
    for question, one in after.questions.items():
        assert one["seen"][str(skipping)]["steps"] == [step for step in seen[question]["steps"] if step < 5]
    resumed = fm.Loader(fm.Recipe.load(skipping).plan(), batch_size=4, workers=0)
    resumed.load_state_dict(state, allow_skip=True)
    rows = [tokens for batch in resumed for tokens in batch["input_ids"]]
    expected = fm.Loader(fm.Recipe.load(skipping).plan(), batch_size=4, workers=0, start=20)
    same = [tokens for batch in expected for tokens in batch["input_ids"]]
    assert len(rows) == len(same) > 0 and all(map(np.array_equal, rows, same))


def test_the_command_shows_questions_with_their_steps(root: Path) -> None:
    given = ["documents", "forget", str(root / "web/attributes/leaked"), str(root / "run.yaml"), "--global-batch", "4"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    at = lines.index("quiz:q1: in 2 documents")
    assert lines[at + 1].strip() == f"{root}/web/documents/a.jsonl:4" and "seen" in lines[at + 3]
    assert ", in steps " in lines[at + 3] and "1 marked document, from which nothing of this was made" in done.stdout
    data = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)
    steps = data["questions"]["quiz:q1"]["seen"][str(root / "run.yaml")]["steps"]
    assert steps and all(f"{step:,}" in lines[at + 3] for step in steps[:10])


def test_a_file_of_attributes_and_ids_together(root: Path) -> None:
    report = forget([str(root / "web/attributes/leaked/a.jsonl"), "b7"], root / "kept")
    found = {one.id: (one.questions, [made.dropped for made in one.document.artefacts]) for one in report.documents}
    assert found == {
        "a3": (["quiz:q1"], [None]),
        "a13": (["quiz:q1", "quiz:q2"], ["not written by filter"]),
        "b7": ([], [None]),
    }


def test_ids_that_look_like_paths_are_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ids = ["https://example.org/attributes/a", "attributes/b", "a.jsonl/attributes/c"]
    write(tmp_path / "a.jsonl", [{"id": id, "text": "b"} for id in ids])
    assert [one.id for one in forget(ids, tmp_path / "a.jsonl").documents] == ids


def test_other_sets_mark_documents_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": str(n), "text": text} for n, text in enumerate(["one two", "three", "one two", "", "three"])]
    write(tmp_path / "documents/a.jsonl", rows)
    fm.dedupe([str(tmp_path / "documents")], **QUIET)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attributes/dup_documents/.hidden").write_text("not attributes")
    report = forget("attributes/dup_documents", "documents")
    assert [one.id for one in report.documents] == ["2", "4"] and not report.questions
    text = CliRunner().invoke(app, ["documents", "forget", "attributes/dup_documents/", "documents"]).stdout
    assert f"{tmp_path}/documents/a.jsonl:3: " in text and "line 3" in text and "2 rows" not in text


def test_bad_sets_are_one_clear_error(root: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing that was given was made from these marked documents"):
        forget(str(root / "web/attributes/leaked/unused.jsonl"), root / "run.yaml")
    with pytest.raises(NotFound, match="no raw file has a document with this id"):
        forget("web/attributes/none", root / "kept")
    write(tmp_path / "documents/a.jsonl", [{"id": "a", "text": "b"}])
    rows: list[Any] = [{"id": "a", "attributes": {"good": [[0, 1, 1.0]]}}]
    write(tmp_path / "attributes/quality/a.jsonl", rows)
    with pytest.raises(ConfigError, match="have no 'quality', so they mark no documents"):
        forget(str(tmp_path / "attributes/quality"), tmp_path / "documents")
    write(tmp_path / "attributes/quality/a.jsonl", [{"id": "a", "attributes": {"quality": [7]}}])
    with pytest.raises(DataError, match="line 1"):
        forget(str(tmp_path / "attributes/quality"), tmp_path / "documents")
    write(tmp_path / "attributes/quality/a.jsonl", [{"id": "a", "attributes": {"quality": []}}])
    assert forget(str(tmp_path / "attributes/quality"), tmp_path / "documents").documents == []
    (tmp_path / "documents/a.jsonl").unlink()
    with pytest.raises(NotFound, match="the documents of these attributes are missing"):
        forget(str(tmp_path / "attributes/quality"), root / "kept")


def test_stale_attributes_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "documents/a.jsonl", [{"id": "a", "text": "b"}, {"id": "c", "text": "b"}])
    fm.dedupe([str(tmp_path / "documents")], **QUIET)
    write(tmp_path / "documents/a.jsonl", [{"id": "a", "text": "changed"}, {"id": "c", "text": "b"}])
    with pytest.raises(DataError) as caught:
        forget(str(tmp_path / "attributes/dup_documents"), tmp_path / "documents")
    assert caught.value.kind == "stale-attributes"
