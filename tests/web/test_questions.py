"""Leaked questions: beside the documents that have them, with the match marked, and counted by benchmark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from helpers.web_server import Site, serving

QUESTION = "Why did the keeper of the lighthouse paint every second step of the stairs red?"
OTHER = "How many bridges cross the river between the old mill and the harbour?"
QUIET = {"workers": 1, "progress": False}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def leaks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("leaks")
    questions = [
        {"id": "q<1>", "question": QUESTION, "answer": "fear of the dark"},
        {"id": "q2", "question": OTHER, "answer": "seven"},
        {"id": "q3", "question": "Who is it?", "answer": "nobody"},
    ]
    write(root / "quiz.jsonl", questions)
    long = " ".join(f"before{n}" for n in range(300))
    texts = [f"{long} {QUESTION.upper()} Fear of the dark. {long}", "nothing here", OTHER, f"Quiz: {QUESTION}"]
    for folder, own in (("one", texts[:2]), ("two", texts[2:])):
        copies = [f"the same words {n} times in both folders of these documents" for n in (5, 5)]
        rows = [{"id": f"{folder}{n}", "text": text} for n, text in enumerate([*own, *copies])]
        write(root / f"documents/{folder}/a.jsonl", rows)
    fm.documents.decontaminate([str(root / "documents")], against=[str(root / "quiz.jsonl")], **QUIET)
    fm.dedupe([str(root / "documents")], near=True, **QUIET)
    return root


@pytest.fixture(scope="module")
def leaked(leaks: Path) -> Iterator[Site]:
    with serving(leaks / "documents") as site:
        yield site


def get(site: Site, query: str = "") -> Any:
    answer = site.get(f"/documents/duplicates.json?{query}")
    assert answer.status == 200, answer.text
    return answer.json


def test_questions_are_beside_their_documents(leaked: Site) -> None:
    data = get(leaked, "set=leaked")
    assert (data["kind"], data["clusters"], data["duplicates"]) == ("questions", 2, 3)
    shown = [(row["question"], row["text"], row["documents"]) for row in data["rows"]]
    assert shown == [("quiz:q<1>", QUESTION, 2), ("quiz:q2", OTHER, 1)]
    opened = get(leaked, "set=leaked&cluster=0")["opened"]
    one = opened["question"]
    assert (one["name"], one["text"], one["share"], one["answered"]) == ("quiz:q<1>", QUESTION, 1.0, True)
    assert [piece["kind"] for piece in one["pieces"]] == ["same", "hit", "same"]
    assert one["pieces"][1]["text"] == QUESTION.upper().rstrip("?") and one["before"] > 0 < one["after"]
    second = get(leaked, f"set=leaked&cluster=0&b={opened['next_b']}")["opened"]
    assert [piece["text"] for piece in second["question"]["pieces"]] == ["Quiz: ", QUESTION.rstrip("?"), "?"]
    assert not second["question"]["answered"] and second["next_b"] is None and second["previous_b"] is not None
    whole = get(leaked, "set=leaked&cluster=1")["opened"]["question"]
    assert whole["pieces"][0]["kind"] == "hit" and (whole["before"], whole["after"]) == (0, 0)
    page = leaked.get("/documents/duplicates?set=leaked&cluster=0")
    assert page.status == 200 and f'<mark class="hit">{QUESTION.upper().rstrip("?")}</mark>' in page.text
    assert "100 % of the question" in page.words and "q&lt;1&gt;" in page.text and "with an answer" in page.words


def test_the_report_of_the_run_is_there_by_benchmark_and_by_folder(leaked: Site) -> None:
    (one,) = get(leaked, "set=leaked")["report"]["benchmarks"]
    assert (one["benchmark"], one["questions"], one["leaked"], one["with_answer"], one["short"]) == ("quiz", 3, 2, 1, 1)
    assert "66.7" in leaked.get("/documents/duplicates?set=leaked").words
    folders = get(leaked, "set=dup_near")["report"]["folders"]
    assert {Path(row["folder"]).name: row["duplicates"] for row in folders} == {"one": 1, "two": 2}
    assert "Folder by folder" in leaked.get("/documents/duplicates?set=dup_near").words


def test_a_report_has_every_set_that_was_written(leaks: Path, tmp_path: Path) -> None:
    done = fm.report(leaks / "documents", tmp_path / "r.html")
    words = re.sub(r"<[^>]*>", " ", (tmp_path / "r.html").read_text())
    assert done.problems == [] and "Leaked questions" in words and "Benchmarks" in words
    assert OTHER in words and "Folder by folder" in words and "largest clusters" in words


def test_a_later_run_keeps_the_texts_of_earlier_ones_and_odd_attributes_are_shown(leaks: Path, tmp_path: Path) -> None:
    write(tmp_path / "quiz.jsonl", [{"id": "q1", "question": QUESTION}])
    write(tmp_path / "more.jsonl", [{"id": "q2", "question": OTHER}])
    write(tmp_path / "documents/a.jsonl", [{"id": "a", "text": QUESTION}])
    write(tmp_path / "documents/b.jsonl", [{"id": "b", "text": OTHER}])
    for file, against in (("a", "quiz"), ("b", "more")):
        documents = [str(tmp_path / f"documents/{file}.jsonl")]
        fm.documents.decontaminate(documents, against=[str(tmp_path / f"{against}.jsonl")], **QUIET)
    path = tmp_path / "attributes/leaked/b.jsonl"
    path.write_text(path.read_text().replace("[[0,", '[["x",'))
    with serving(tmp_path / "documents") as site:
        rows = {row["question"]: row["text"] for row in get(site, "set=leaked")["rows"]}
        assert rows == {"quiz:q1": QUESTION, "more:q2": OTHER}
        for cluster in range(2):
            assert site.get(f"/documents/duplicates?set=leaked&cluster={cluster}").status == 200
