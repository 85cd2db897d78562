"""Questions of benchmarks in documents: in each form, with bad input, as parts, and on any number of processes."""

from __future__ import annotations

import gzip
import json
import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.curation import injection

import feedmill as fm
from feedmill.curation.decontaminate import benchmarks, job, matching
from feedmill.curation.decontaminate.matching import Matcher
from feedmill.curation.options import Decontaminate
from feedmill.documents.find import find_documents
from feedmill.errors import ConfigError, DataError, EmptyResult, NotFound
from feedmill.jobs.engine import StageUnfinished
from feedmill.jobs.parts import PartEngine

Rows = list[dict[str, Any]]
QUESTION = "Why did the old lighthouse keeper of Valdoria paint every second step of the spiral staircase red?"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: str, rows: Rows) -> None:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def documents(*texts: str, path: str = "documents/a.jsonl") -> None:
    write(path, [{"id": str(number), "text": text} for number, text in enumerate(texts)])


def found(path: str = "attributes/leaked/a.jsonl") -> Rows:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def run(against: str = "bench.jsonl", **options: Any) -> Any:
    return fm.documents.decontaminate(["documents"], against=[against], workers=1, progress=False, **options)


def filler(seed: int, count: int = 60) -> str:
    rng = random.Random(seed)
    return " ".join(f"word{rng.randrange(4000)}" for _ in range(count))


def test_every_form_is_found_and_nothing_else() -> None:
    rows, texts = injection.questions(), [filler(n) for n in range(300)]
    write("bench.jsonl", rows)
    leaks = list(injection.injected(rows[::4], texts))
    documents(*(text for _, _, text in leaks), *texts)
    report = run()
    hits = dict.fromkeys(injection.FORMS, 0)
    for row, (form, question, text) in zip(found(), leaks, strict=False):
        hits[form] += f"bench:{question}" in row.get("questions", ())
        for begin, end, share in row["attributes"]["leaked"]:
            assert 0 <= begin < end <= len(text) and 0.75 <= share <= 1
    assert all(count >= 0.97 * len(rows[::4]) for count in hits.values()), hits
    assert all("questions" not in row and row["attributes"]["leaked"] == [] for row in found()[len(leaks) :])
    assert report.flagged == sum("questions" in row for row in found()) and report.documents == len(leaks) + 300
    (one,) = report.benchmarks
    assert (one["questions"], one["documents"]) == (200, report.flagged) and one["leaked"] >= 50
    example = one["examples"][0]
    assert found()[example["line"] - 1]["questions"] and example["text"] in leaks[example["line"] - 1][2]


def test_spans_answers_and_names() -> None:
    write("sets/quiz/test.jsonl", [{"qid": "q7", "question": QUESTION, "answer": "fear of the dark"}])
    before, after = filler(1), filler(2)
    documents(
        f"{before} {QUESTION} The answer is: Fear of the DARK. {after}",
        f"{before}\n> {QUESTION.upper()}\n{after}",
        before,
    )
    report = run("sets")
    first, second, third = found()
    begin, end = len(before) + 1, len(before) + 1 + len(QUESTION) - 1  # without the question mark
    assert first == {
        "attributes": {"leaked": [[begin, end, 1.0]], "leaked_answered": [[begin, end, 1]]},
        "id": "0",
        "questions": ["quiz/test:q7"],
    }
    assert second["attributes"] == {"leaked": [[begin + 2, end + 2, 1.0]], "leaked_answered": []}
    assert third == {"attributes": {"leaked": [], "leaked_answered": []}, "id": "2"}
    (one,) = report.benchmarks
    assert (one["benchmark"], one["leaked"], one["with_answer"], one["documents"]) == ("quiz/test", 1, 1, 2)
    assert one["examples"] == [
        {"id": "q7", "question": QUESTION, "documents": 2, "file": "documents/a.jsonl", "line": 1, "share": 1.0,
         "text": QUESTION[:-1]}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "fields", "texts", "answers"),
    [
        ({"question": "Q", "choices": ["x", "y"], "answer": 1}, {}, ["x", "y"], ["y"]),
        ({"question": "Q", "choices": ["x", "y"], "answer": "B"}, {}, ["x", "y"], ["y"]),
        (
            {"question": "Q", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "1"},
            {},
            ["x", "y"],
            ["x"],
        ),
        ({"question": "Q", "options": {"a": "x", "b": "y"}, "answer": "b"}, {}, ["x", "y"], ["y"]),
        ({"ctx": "Q", "endings": ["x", "y"], "label": "0"}, {}, ["x", "y"], ["x"]),
        ({"question": "Q", "answer": "Steps.\n#### 42"}, {}, [], [" 42"]),
        ({"question": "Q", "answers": {"text": ["x", "x", "z"], "answer_start": [1]}}, {}, [], ["x", "z"]),
        ({"prompt": "Q", "canonical_solution": "x"}, {}, [], ["x"]),
        ({"data": {"q": ["Q"], "a": None}, "text": "no"}, {"question": ".data.q", "answer": ".data.a"}, [], []),
        ({"question": ["Q"], "answer": True}, {}, [], []),
        ({"goal": "Q", "sol1": "x", "sol2": "y", "label": 1}, {}, ["x", "y"], ["y"]),
        ({"sentence": "Q", "option1": "x", "option2": "y", "answer": "1"}, {}, ["x", "y"], ["x"]),
        ({"question": "Q", "opa": "x", "opb": "y", "cop": 0}, {}, ["x", "y"], ["x"]),
        ({"ctx": "Q", "ending0": "x", "ending1": "y", "label": 1}, {}, ["x", "y"], ["y"]),
        ({"query": "Q", "choices": ["x", "y"], "gold": [1]}, {}, ["x", "y"], ["y"]),
        ({"question": "Q", "choices": ["1", "2", "3"], "answer": "2"}, {}, ["1", "2", "3"], ["2"]),
        ({"question": "Q", "mc1_targets": {"choices": ["x", "y"], "labels": [0, 1]}}, {}, ["x", "y"], ["y"]),
        ({"passage": "P", "question": "Q", "answers_spans": {"spans": ["x"], "types": ["span"]}}, {}, [], ["x"]),
        ({"question": "Q", "answer": {"aliases": ["y"], "type": "Wiki", "value": "x"}}, {}, [], ["x", "y"]),
        ({"problem": "Q", "solution": "So \\boxed{1}, then \\boxed{\\frac{1}{2}}."}, {}, [], ["\\frac{1}{2}"]),
        ({"text": "Q", "code": "x", "test_list": ["t"]}, {}, [], ["x"]),
        ({"Question": "Q", "Correct Answer": "x", "Incorrect Answer 1": "y"}, {}, [], ["x"]),
    ],
)
def test_fields_of_benchmarks(row: Any, fields: Any, texts: Any, answers: Any) -> None:
    write("bench.jsonl", [row])
    (file,) = find_documents(["bench.jsonl"]).files
    ((line, question),) = benchmarks.read_questions(file, fields)
    assert (line, question.text, question.choices, question.answers) == (1, "Q", texts, answers)


X, XY = ["x"], ["x", "y"]
LABELS = {"text": ["x", "y"], "label": ["A", "B"]}
STEM = {"stem": "Q", "choices": [{"text": "x", "label": "A"}, {"text": "y", "label": "B"}]}
NUMBERED = {"stem": "Q", "choices": [{"text": "x", "label": "1"}, {"text": "y", "label": "2"}]}
PUBLIC: dict[str, tuple[dict[str, Any], str, list[str], list[str]]] = {
    "COPA": (
        {"premise": "Q", "choice1": "x", "choice2": "y", "question": "cause", "idx": 0, "label": 0}, "Q", XY, X
    ),
    "COPA, as published": (
        {"premise": "Q", "choice1": "x", "choice2": "y", "question": "effect", "label": 1, "idx": 3}, "Q", XY, ["y"]
    ),
    "MMLU": ({"question": "Q", "subject": "anatomy", "choices": XY, "answer": 0}, "Q", XY, X),
    "MMLU-Pro": (
        {"question_id": 70, "question": "Q", "options": XY, "answer": "A", "answer_index": 0, "cot_content": "",
         "category": "law", "src": "o"}, "Q", XY, X,
    ),
    "ARC": ({"id": "M_1", "question": "Q", "choices": LABELS, "answerKey": "A"}, "Q", XY, X),
    "ARC, as published": ({"id": "M_1", "question": STEM, "answerKey": "A"}, "Q", XY, X),
    "ARC, numbered": ({"id": "N_1", "question": NUMBERED, "answerKey": "1"}, "Q", XY, X),
    "HellaSwag": (
        {"ind": 4, "activity_label": "Roof", "ctx_a": "Q", "ctx_b": "", "ctx": "Q", "endings": XY, "source_id": "a~v",
         "split": "val", "split_type": "indomain", "label": "0"}, "Q", XY, X,
    ),
    "PIQA": ({"goal": "Q", "sol1": "x", "sol2": "y", "label": 0}, "Q", XY, X),
    "WinoGrande": ({"qID": "3F-1", "sentence": "Q", "option1": "x", "option2": "y", "answer": "1"}, "Q", XY, X),
    "GSM8K": ({"question": "Q", "answer": "He has <<2+3=5>>5.\n#### x"}, "Q", [], [" x"]),
    "BoolQ": ({"question": "Q", "answer": True, "passage": "P"}, "Q", [], []),
    "BoolQ, as published": ({"question": "Q", "title": "T", "answer": True, "passage": "P"}, "Q", [], []),
    "BoolQ in SuperGLUE": ({"question": "Q", "passage": "P", "idx": 0, "label": 1}, "Q", [], []),
    "OpenBookQA": ({"id": "7-980", "question_stem": "Q", "choices": LABELS, "answerKey": "A"}, "Q", XY, X),
    "OpenBookQA, as published": (
        {"id": "7", "question": STEM, "fact1": "F", "humanScore": "1", "answerKey": "A"}, "Q", XY, X
    ),
    "TruthfulQA": (
        {"type": "Adversarial", "category": "M", "question": "Q", "best_answer": "x", "correct_answers": ["x", "z"],
         "incorrect_answers": ["w"], "source": "s"}, "Q", [], X,
    ),
    "TruthfulQA, choices": (
        {"question": "Q", "mc1_targets": {"choices": XY, "labels": [1, 0]}, "mc2_targets": {"choices": XY,
         "labels": [1, 0]}}, "Q", XY, X,
    ),
    "HumanEval": (
        {"task_id": "HumanEval/0", "prompt": "Q", "canonical_solution": "x", "test": "t", "entry_point": "f"},
        "Q", [], X,
    ),
    "MBPP": (
        {"task_id": 1, "text": "Q", "code": "x", "test_list": ["t"], "test_setup_code": "", "challenge_test_list": []},
        "Q", [], X,
    ),
    "MBPP, sanitized": (
        {"source_file": "s", "task_id": 2, "prompt": "Q", "code": "x", "test_imports": [], "test_list": ["t"]},
        "Q", [], X,
    ),
    "SQuAD": (
        {"id": "5", "title": "T", "context": "C", "question": "Q", "answers": {"text": ["x", "x"],
         "answer_start": [1, 1]}}, "Q", [], X,
    ),
    "SQuAD 2, unanswerable": (
        {"id": "5", "title": "T", "context": "C", "question": "Q", "answers": {"text": [], "answer_start": []}},
        "Q", [], [],
    ),
    "TriviaQA": (
        {"question": "Q", "question_id": "tc_1", "question_source": "s", "entity_pages": {"title": ["T"]},
         "search_results": {"title": []}, "answer": {"aliases": ["x"], "normalized_aliases": ["x"],
         "matched_wiki_entity_name": "", "normalized_value": "x", "type": "T", "value": "x"}}, "Q", [], X,
    ),
    "CommonsenseQA": (
        {"id": "07", "question": "Q", "question_concept": "c", "choices": LABELS, "answerKey": "A"}, "Q", XY, X
    ),
    "CommonsenseQA, as published": (
        {"answerKey": "A", "id": "07", "question": {"question_concept": "c", **STEM}}, "Q", XY, X
    ),
    "SIQA": (
        {"context": "C", "question": "Q", "answerA": "x", "answerB": "y", "answerC": "z", "label": "1"}, "C\nQ",
        ["x", "y", "z"], X,
    ),
    "RACE": ({"example_id": "h1", "article": "A", "answer": "A", "question": "Q", "options": XY}, "Q", XY, X),
    "LAMBADA": ({"text": "Q"}, "Q", [], []),
    "LAMBADA, with its book": ({"text": "Q", "domain": "Novel"}, "Q", [], []),
    "BIG-bench": (
        {"idx": 0, "inputs": "Q", "targets": ["x"], "multiple_choice_targets": XY, "multiple_choice_scores": [1, 0]},
        "Q", XY, X,
    ),
    "BIG-Bench Hard": ({"input": "Q", "target": "x"}, "Q", [], X),
}  # fmt: skip
"""A row in the layout in which each benchmark is published: question, choices and answers."""


@pytest.mark.parametrize("name", PUBLIC)
def test_public_benchmarks_are_recognized(name: str) -> None:
    row, text, choices, answers = PUBLIC[name]
    write("bench.jsonl", [row])
    (file,) = find_documents(["bench.jsonl"]).files
    ((_, question),) = benchmarks.read_questions(file, {})
    assert (question.text, question.choices, question.answers) == (text, choices, answers)


def test_fields_that_the_first_row_lacks_are_read() -> None:
    write("bench.jsonl", [{"question": "Q"}, {"question": "R", "choices": ["x", "y"], "answer": 1}])
    (file,) = find_documents(["bench.jsonl"]).files
    first, second = (question for _, question in benchmarks.read_questions(file, {}))
    assert (first.choices, second.choices, second.answers) == ([], ["x", "y"], ["y"])


def test_short_choices_are_looked_for_beside_the_question() -> None:
    question, choices = "What is the capital of Valdoria?", ["Kestrel", "Upper Marrow", "Orun", "Quill"]
    write("bench.jsonl", [{"question": question, "choices": choices, "answer": 1}])
    documents(
        f"{filler(1)} {question} A. Quill B. Orun C. upper marrow D. Kestrel {filler(2)}",
        f"{filler(3)} {question} {filler(4)}",
        f"{filler(5)} {' '.join(choices)} {filler(6)}",
    )
    report = run()
    assert [row["attributes"]["leaked"][:1] and row["attributes"]["leaked"][0][2] for row in found()] == [1.0, [], []]
    assert found()[0]["attributes"]["leaked_answered"] and report.warnings == []


def test_a_question_that_follows_itself_is_marked_each_time() -> None:
    question = "Who painted seven red staircases"
    write("bench.jsonl", [{"question": question}, {"question": QUESTION}])
    texts = [f"{question}? \U0001f600 {question}! {question}", f"{QUESTION} {QUESTION}\n{QUESTION}"]
    documents(*texts)
    run()
    for text, row, asked in zip(texts, found(), (question, QUESTION[:-1]), strict=True):
        assert [text[begin:end] for begin, end, _ in row["attributes"]["leaked"]] == [asked] * 3


def test_what_cannot_be_found_is_counted() -> None:
    same = "Which of the following is true according to the long passage above?"
    rows = [
        *({"question": same, "choices": [f"it is {n}"]} for n in range(70)),  # more than can be told apart
        {"question": "0 0 1 " * 70},
        {"question": "What is it?", "choices": ["a very big red balloon", "no", "yes", "a small blue one"]},
        {"question": "Is it?", "choices": ["a very big red balloon that flies so high", "no"]},
        {"question": QUESTION},
    ]
    write("bench.jsonl", rows)
    documents(*(" ".join([row["question"], *row.get("choices", ())]) for row in rows))
    report = run()
    (one,) = report.benchmarks
    assert [one[kind] for kind in ("questions", "empty", "short", "common")] == [74, 0, 1, 71]
    assert one["leaked"] == 2 and [bool(row.get("questions")) for row in found()[-2:]] == [True, True]
    assert report.warnings[0].startswith("cannot be found: 72 questions")


def test_a_leak_that_is_as_frequent_as_a_phrase_is_reported() -> None:
    other = QUESTION.replace("red", "blue with a very small brush of horse hair")
    write("bench.jsonl", [{"id": "often", "question": QUESTION}, {"id": "half", "question": other}])
    documents(*(f"{filler(n)} {QUESTION}" for n in range(60)))
    report = run()
    (one,) = report.benchmarks
    assert (report.flagged, one["common"], one["unmarked"]) == (0, 1, 1)
    assert one["unmarked_examples"] == [{"id": "often", "question": QUESTION, "documents": 60}]
    assert report.warnings[1].startswith("1 question is not marked in up to 60 documents, as the phrases are common")
    again = run(name="again", common=1)
    assert again.flagged == 60 and again.benchmarks[0]["unmarked"] == 0


def test_half_of_a_long_question_is_compared_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    question, calls = filler(1, 1000), list[int]()
    write("bench.jsonl", [{"question": question}])
    arrays, _ = benchmarks.index_questions(find_documents(["bench.jsonl"]).files, Decontaminate((), against=()))
    compare = matching.kernels.in_order
    monkeypatch.setattr(matching.kernels, "in_order", lambda *of: calls.append(1) or compare(*of))
    half, other = " ".join(question.split()[:600]), filler(2, 2000)
    assert Matcher(arrays, 5, 0.75).find([f"{half} {other}".encode()])[0] == []
    assert 0 < len(calls) < 10


def test_benchmarks_of_one_name_are_told_apart() -> None:
    for folder in ("mmlu", "arc"):
        write(f"sets/{folder}/test.jsonl", [{"id": "q", "question": QUESTION}])
    write("other.jsonl", [{"id": "q", "question": QUESTION}])
    documents(QUESTION)
    against = [os.path.abspath(f"sets/{folder}/test.jsonl") for folder in ("mmlu", "arc")]
    report = fm.documents.decontaminate(["documents"], against=[*against, "other.jsonl"], workers=1, progress=False)
    names = ["mmlu/test.jsonl", "arc/test.jsonl", "other"]
    assert [one["benchmark"] for one in report.benchmarks] == names
    assert [one["documents"] for one in report.benchmarks] == [1, 1, 1]
    assert found()[0]["questions"] == [f"{name}:q" for name in names]


def test_many_questions_fit_in_memory() -> None:
    """The index is built from arrays, not from objects, so it takes little more than its own size."""
    rng, words = random.Random(0), [f"w{number}" for number in range(5000)]
    rows = [
        {
            "id": number,
            "question": " ".join(rng.choices(words, k=25)),
            "choices": [" ".join(rng.choices(words, k=3))] * 4,
        }
        for number in range(5_000)
    ]
    write("bench.jsonl", rows)
    files = find_documents(["bench.jsonl"]).files
    benchmarks.index_questions(files, Decontaminate((), against=()))  # what is loaded once
    tracemalloc.start()
    arrays, _ = benchmarks.index_questions(files, Decontaminate((), against=()))
    peak, size = tracemalloc.get_traced_memory()[1], sum(array.nbytes for array in arrays.values())
    tracemalloc.stop()
    assert peak < 2 * size and size / len(rows) < 1100


def test_choices_count_where_the_question_says_little() -> None:
    choices = [
        "the keeper of the northern lighthouse",
        "seven grey horses in a field",
        "a staircase of polished copper",
    ]
    write("bench.jsonl", [{"id": "q", "question": "Which one is not true here?", "choices": choices}])
    documents(
        filler(1) + " Which one is not true here? " + filler(2),
        filler(3) + " Which one is not true here? " + ", or ".join(reversed(choices)) + " " + filler(4),
        f"{filler(5)} {choices[0]} {filler(6)}",
    )
    run()
    assert ["questions" in row for row in found()] == [False, True, False]


def test_a_short_question_must_be_there_word_for_word() -> None:
    write(
        "bench.jsonl",
        [{"question": "Who painted the red staircase in Valdoria?"}, {"question": "Who is it?"}, {"question": ""}],
    )
    asked = ["Who painted the red staircase in Valdoria", "WHO PAINTED\nthe red *staircase* in Valdoria"]
    others = ["Who painted the blue staircase in Valdoria", "Who painted the red staircase near Valdoria", "Who is it?"]
    documents(*(f"{filler(n)} {text} {filler(n + 50)}" for n, text in enumerate([*asked, *others])))
    report = run()
    assert ["questions" in row for row in found()] == [True, True, False, False, False]
    (one,) = report.benchmarks
    assert (one["questions"], one["empty"], one["short"], one["common"]) == (3, 1, 1, 0)
    assert report.warnings == [
        "cannot be found: 2 questions without text, with too few words, or of common phrases only"
    ]


def test_an_answer_of_one_letter_is_no_evidence() -> None:
    write(
        "bench.jsonl",
        [{"question": QUESTION, "choices": ["a", "b"], "answer": "A"}, {"question": QUESTION, "answer": "(A)"}],
    )
    documents(f"This is a text. {QUESTION} A dog.")
    (one,) = run().benchmarks
    assert (one["leaked"], one["with_answer"]) == (2, 0)


def test_ids_that_repeat_are_told_apart_by_their_lines() -> None:
    other = "How many bridges cross the river between the old mill and the harbour?"
    write("bench.jsonl", [{"id": 1, "question": QUESTION}, {"id": "1", "question": other}, {"id": 2, "question": "x"}])
    documents(f"{QUESTION} {other}")
    assert run().warnings[0].startswith("1 question has the id of one before in the same benchmark")
    assert found()[0]["questions"] == ["bench:1", "bench:1 (line 2)"]


def test_a_benchmark_among_the_documents_is_named() -> None:
    documents(QUESTION, path="documents/quiz.jsonl")
    documents("nothing")
    report = run("documents/quiz.jsonl")
    (warning,) = report.warnings
    assert warning.startswith("1 file is among the benchmarks and the documents") and "documents/quiz.jsonl" in warning


@pytest.mark.parametrize(
    ("content", "of"), [([{"question": QUESTION}], "."), ({"examples": [{"input": "Q"}]}, ".examples")]
)
def test_a_list_of_questions_is_no_file_of_lines(content: Any, of: str) -> None:
    Path("bench.json").write_text(json.dumps(content))
    documents(QUESTION)
    with pytest.raises(ConfigError, match="one list of questions") as caught:
        run("bench.json")
    assert f"jq -c '{of}[]'" in str(caught.value)


def test_scattered_words_are_no_question() -> None:
    write("bench.jsonl", [{"question": QUESTION}])
    words, rng = QUESTION.split(), random.Random(3)
    scattered = " ".join(word + " " + filler(n, 4) for n, word in enumerate(words))
    mixed = words[:]
    rng.shuffle(mixed)
    documents(scattered, " ".join(mixed), " ".join(words[:7]) + " " + filler(9), QUESTION)
    run()
    assert ["questions" in row for row in found()] == [False, False, False, True]


def test_common_phrases_are_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    phrase = "this text may be copied and changed under the terms of the licence that comes with it"
    write("bench.jsonl", [{"question": phrase}, {"question": QUESTION}])
    documents(*(f"{filler(n)} {phrase}" for n in range(60)), f"{filler(99)} {QUESTION}")
    report = run()
    assert report.flagged == 1 and report.benchmarks[0]["common"] == 1
    monkeypatch.setattr(job, "LEAST_COMMON", 60)
    assert run(name="again", common=0.99).flagged == 61


def test_scripts_without_spaces() -> None:
    texts = ["为什么瓦尔多利亚的灯塔看守人要把螺旋楼梯的每一级都漆成红色？", "ทำไมผู้ดูแลประภาคารจึงทาบันไดวนเป็นสีแดง"]
    write("bench.jsonl", [{"question": text} for text in texts])
    documents(f"前面{texts[0]}后面", f"ข้อความ {texts[1]} ต่อ", "瓦尔多利亚的楼梯", "ประภาคาร")
    assert run().flagged == 2
    assert [row.get("questions") for row in found()] == [["bench:1"], ["bench:2"], None, None]


def test_any_number_of_processes_and_parts_give_the_same(folder: Path) -> None:
    rows = injection.questions()[::5]
    write("bench.jsonl", rows)
    leaks = [text for _, _, text in injection.injected(rows, [filler(n) for n in range(50)])]
    for number in range(3):
        documents(*leaks[number::3], path=f"documents/{number}.jsonl")
    one = run()
    outputs = {path.name: path.read_bytes() for path in Path("attributes/leaked").iterdir()}
    os.rename("attributes", "first")
    os.rename(".feedmill", "records")
    several = fm.documents.decontaminate(["documents"], against=["bench.jsonl"], workers=2, progress=False)
    assert several.as_dict() == one.as_dict()
    assert {path.name: path.read_bytes() for path in Path("attributes/leaked").iterdir()} == outputs
    os.rename("attributes", "second")
    os.rename(".feedmill", "more-records")
    stages = set()
    for part in (1, 2) * 6:
        with pytest.raises(StageUnfinished) as caught, PartEngine(part, 2):
            run()
        stages.add(caught.value.stage)
    assert stages == {"indexing", "scanning", "counting", "writing"}
    with PartEngine(finish=True):
        run()
    assert {path.name: path.read_bytes() for path in Path("attributes/leaked").iterdir()} == outputs
    assert run().skipped


def test_a_benchmark_and_a_dump_are_added_without_the_others() -> None:
    """A set for the new benchmark has what a run with all has; new files in an old set leave its other files."""
    rows, texts = injection.questions(), [filler(n) for n in range(40)]
    leaks = [text for _, _, text in injection.injected(rows[::10], texts)]
    write("old.jsonl", rows[:100])
    write("new.jsonl", rows[100:])
    documents(*leaks[::2], path="documents/a.jsonl")
    run("old.jsonl")
    before = found()
    run("new.jsonl", name="more")
    added = found("attributes/more/a.jsonl")
    fm.documents.decontaminate(["documents"], against=["old.jsonl", "new.jsonl"], name="all", workers=1, progress=False)
    both = [one.get("questions", []) + other.get("questions", []) for one, other in zip(before, added, strict=True)]
    assert [sorted(row.get("questions", ())) for row in found("attributes/all/a.jsonl")] == [sorted(q) for q in both]
    assert sum(map(len, both)) > 50
    grown = {"against": ["old.jsonl", "new.jsonl"], "workers": 1, "progress": False}
    for more in ({"dry_run": True}, {}):
        (*_, warning) = fm.documents.decontaminate(["documents"], **grown, **more).warnings
        assert "1 of 2 benchmarks are those of an earlier run" in warning and "(new)" in warning and "--name" in warning
    assert not any(
        "earlier run" in one for one in fm.documents.decontaminate(["documents"], **grown).warnings
    )  # nothing to do
    assert not any("earlier run" in one for one in run("old.jsonl").warnings)
    documents(*leaks[1::2], path="documents/b.jsonl")
    report = fm.documents.decontaminate(["documents/b.jsonl"], against=["old.jsonl"], workers=1, progress=False)
    assert report.documents == len(leaks[1::2]) and found() == before and found("attributes/leaked/b.jsonl")


def test_cutting_leaked_spans_by_filter() -> None:
    write("bench.jsonl", [{"question": QUESTION}])
    documents(f"Before. {QUESTION} After.", "Nothing.", path="web/documents/a.jsonl")
    fm.documents.decontaminate(["web/documents"], against=["bench.jsonl"], workers=1, progress=False)
    mix = {
        "streams": [
            {"name": "web", "documents": ["web/documents/*"], "attributes": ["leaked"],
             "output": {"path": "kept", "max_size_in_bytes": 10**6},
             "filter": {"exclude": ["$.attributes.leaked[0]"]}},
        ]
    }  # fmt: skip
    Path("mix.json").write_text(json.dumps(mix))
    fm.filter("mix.json", workers=1, progress=False)
    (kept,) = Path("kept").iterdir()
    assert [json.loads(line)["text"] for line in gzip.decompress(kept.read_bytes()).splitlines()] == ["Nothing."]


def test_bad_input() -> None:
    documents(filler(1))
    write("none.jsonl", [{"words": 1, "more": "x"}])
    with pytest.raises(ConfigError, match=r"no field of the questions was recognized among: more, words.*--fields"):
        run("none.jsonl")
    Path("empty.jsonl").write_text("")
    with pytest.raises(EmptyResult, match="the benchmark has no questions"):
        run("empty.jsonl")
    with pytest.raises(NotFound):
        run("nowhere.jsonl")
    Path("bad.jsonl").write_text('{"question": "a"}\n[1]\n')
    with pytest.raises(DataError, match=r"bad\.jsonl.*2"):
        run("bad.jsonl")
    write("bench.jsonl", [{"question": QUESTION}])
    for options in ({"threshold": 0.5}, {"ngram": 2}, {"common": 0}, {"name": "a/b"}, {"fields": {"title": "x"}}):
        with pytest.raises(ConfigError):
            run(**options)
    with pytest.raises(ConfigError, match="not a field or path"):
        run(fields={"question": ".a | .b"})
    write("other.jsonl", [{"question": QUESTION}, {"question": QUESTION, "title": "x"}])
    run("other.jsonl", fields={"question": "title"})
    with pytest.raises(ConfigError, match=r"other\.jsonl: no row has the field 'titel'.*last one: question, title"):
        run("other.jsonl", fields={"question": "titel"})
    documents(path="documents/a.jsonl")
    with pytest.raises(EmptyResult):
        run()
    Path("documents/a.jsonl").write_text('{"id": "1"}\n')
    with pytest.raises(DataError):
        run()


def test_hostile_benchmarks() -> None:
    """Questions that repeat, ids that repeat, answers of one letter, a text of a megabyte on one line."""
    long = filler(7, 30_000)
    rows = [{"id": "x", "question": QUESTION, "answer": "a"}] * 100 + [{"id": "y", "question": long, "answer": None}]
    write("bench.jsonl", rows)
    documents(f"{filler(1)} {QUESTION}", long + " " + filler(3), f"a {filler(2)}")
    report = run()
    assert [len(row.get("questions", ())) for row in found()] == [0, 1, 0]
    assert [report.benchmarks[0][kind] for kind in ("leaked", "common")] == [1, 100]


def test_the_matcher_compares_with_what_a_plain_search_finds() -> None:
    """Random texts of few words: a match has the question's words in order, and every verbatim question is found."""
    rng = random.Random(5)
    words = [f"w{n}" for n in range(30)]
    questions = [" ".join(rng.choices(words, k=rng.randint(5, 25))) for _ in range(40)]
    write("bench.jsonl", [{"question": text} for text in questions])
    arrays, _ = benchmarks.index_questions(find_documents(["bench.jsonl"]).files, Decontaminate((), against=()))
    texts = []
    for _ in range(200):
        parts = [" ".join(rng.choices(words, k=rng.randint(0, 30)))]
        if rng.random() < 0.5:
            parts.append(rng.choice(questions))
        texts.append(" ".join([*parts, " ".join(rng.choices(words, k=rng.randint(0, 30)))]))
    matches, _ = Matcher(arrays, 5, 0.75).find([text.encode() for text in texts])
    got = {(match.text, int(arrays["owners"][match.piece])) for match in matches}
    for number, text in enumerate(texts):
        for question, asked in enumerate(questions):
            if f" {asked} " in f" {text} ":
                assert (number, question) in got
    for match in matches:
        own = questions[int(arrays["owners"][match.piece])].split()
        rest = iter(texts[match.text].encode()[match.begin : match.end].decode().split())
        assert match.share >= 0.75 and (match.share < 1 or all(word in rest for word in own))
    assert len(matches) > 80 and np.diff(arrays["starts"]).min() > 0
