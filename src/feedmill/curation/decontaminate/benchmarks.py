"""Read questions of benchmarks, and index the n-grams of their words.

A question has pieces: its text, and each of its choices; and answers. The fields are recognized by the names that
benchmarks use (`NAMES`), or given by the user. An index is an array file, which all processes map::

    words      uint64[...]   the words of all pieces, concatenated
    ends       int64[p]      end of each piece
    owners     int32[p]      its question
    stems      uint8[p]      1 for the question's text, 0 for a choice
    answers    uint64[...]   the words of all answers, concatenated
    answer_ends int64[a], answer_owners int32[a]
    grams      uint64[g]     the n-grams of all pieces, sorted
    starts     int64[g + 1]  of each, its occurrences in:
    pieces     int32[m], places int32[m]   the piece, and the number of the first word
    bits       uint64        see `feedmill.kernels.text.questions.fill`
    benchmark  int32[q], lines int64[q]   of each question
    ids, texts uint8[...], id_ends, text_ends int64[q]   its id, and the beginning of its text
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.curation.options import Decontaminate
from feedmill.documents.file import DocumentFile
from feedmill.documents.lines import read_blocks
from feedmill.documents.rows import bad_row, load
from feedmill.documents.textpath import parse_path
from feedmill.errors import ConfigError, EmptyResult
from feedmill.formats.arrays import Arrays
from feedmill.formats.documents import rows_of
from feedmill.kernels.text import questions as kernels

NAMES: Mapping[str, tuple[str, ...]] = {
    "question": (
        "question", "query", "problem", "prompt", "question_stem", "stem", "goal", "ctx", "instruction", "input",
        "inputs", "question_content", "problem_statement", "sentence", "text",
    ),
    "choices": (
        "choices", "options", "endings", "answer_choices", "candidates", "mc1_targets", "multiple_choice_targets",
    ),
    "answer": (
        "answer", "answers", "canonical_solution", "solution", "best_answer", "correct_answer", "answers_spans",
        "target", "targets", "answerKey", "answer_key", "label", "gold", "cop", "output", "code",
    ),
    "id": (
        "id", "task_id", "question_id", "query_id", "example_id", "instance_id", "unique_id", "record_id", "qid", "ind",
        "idx",
    ),
}  # fmt: skip
"""Names of fields, the usual first. Case does not count, and a space is a ``_``."""
FORMS: tuple[tuple[frozenset[str], tuple[str, ...], str | None], ...] = (
    (frozenset(("premise", "choice1", "choice2")), ("premise",), None),  # COPA, whose question is "cause" or "effect"
    (frozenset(("context", "question", "answera", "answerb")), ("context", "question"), None),  # SIQA: of two sentences
    (frozenset(("question.stem",)), (".question.stem",), ".question.choices"),  # ARC, OpenBookQA, CommonsenseQA: nested
)
"""Rows with these fields: the fields of the question, and of the choices, where the names alone would mislead."""
SEPARATE = re.compile(r"(sol|option|choice|ending|answer|op)_?([0-9]|[a-z])")
"""Fields with a choice each: ``sol1`` and ``sol2``, ``option1``, ``answerA``, ``opa``, ``ending0``."""
NUMBERS = frozenset(("answerkey", "answer_key", "label", "gold", "cop"))
"""Fields of the answer with the number or label of a choice, which say nothing without choices."""
BOXED = "\\boxed{"
"""Where a solution has its answer."""
SHOWN = 300
"""Bytes of a question's text, and of where it was found, that are kept for reports."""
MOST_ANSWERS = 8
"""Answers of a question that are looked for."""

Words = npt.NDArray[np.uint64]


class Question(NamedTuple):
    """A question: its text, choices and answers."""

    id: str
    text: str
    choices: list[str]
    answers: list[str]


class Counted(NamedTuple):
    """A benchmark: its name, the number of its questions, of those without words, and of those with an earlier id."""

    name: str
    questions: int
    empty: int
    repeated: int = 0


def benchmark_names(files: Sequence[DocumentFile]) -> list[str]:
    """Return the names of the benchmarks in files: paths without endings, or with folders and endings if these differ.

    Only these tell ``mmlu/test.jsonl`` and ``arc/test.jsonl`` apart if both are given as files.
    """
    same: dict[str, list[int]] = {}
    for number, file in enumerate(files):
        folder, _, name = file.path.rpartition("/")
        plain = name.split(".")[0] or name
        same.setdefault(f"{folder}/{plain}" if folder else plain, []).append(number)
    names = [""] * len(files)
    for name, numbers in same.items():
        steps = [files[number].name.split("/") for number in numbers]
        shared = next((at for at, parts in enumerate(zip(*steps, strict=False)) if len(set(parts)) > 1), 0)
        for number, own in zip(numbers, steps, strict=True):
            names[number] = name if len(numbers) == 1 else "/".join(own[shared:])
    return names


def has_questions(file: DocumentFile) -> bool:
    """Return whether the first row of a file is a question of a benchmark by its fields, and no document."""
    with closing(read_blocks(file, shown=True)) as source:
        row = next((row for block in source for row in rows_of(block)[:1]), b"")
    try:
        content = load(row)
    except (ValueError, RecursionError):
        return False
    if not isinstance(content, dict) or "text" in content:
        return False
    if _form(content) is not None:
        return True
    if _recognized("question", content) is None:
        return False
    return any(_recognized(role, content) for role in ("choices", "answer"))


def read_questions(file: DocumentFile, fields: Mapping[str, str]) -> Iterator[tuple[int, Question]]:
    """Yield line and content of each question of a file.

    Raises:
        ConfigError: There is no field with questions.
        DataError: A row is invalid.
    """
    line, readers, content = 0, dict[tuple[str, ...], _Readers](), {}
    question: str | None = fields.get("question")
    before, given_fields = list[str](), fields
    missing = question is not None  # it was named; another row may have what the first one lacks
    for block in read_blocks(file, shown=True):
        for row in rows_of(block):
            line += 1
            try:
                content = load(row)
            except (ValueError, RecursionError) as error:
                raise bad_row(row, str(error), file.name, line) from None
            listed = content.get("examples") if isinstance(content, dict) and not fields else content
            if line == 1 and isinstance(listed, list):
                raise ConfigError(
                    "the file is one list of questions, and not one question a line",
                    file=file.name,
                    kind="bad-document",
                    fix=f"Write them as lines: jq -c '.{'' if listed is content else 'examples'}[]' FILE > FILE.jsonl",
                )
            if not isinstance(content, dict):
                raise bad_row(row, "the row is not a JSON object", file.name, line)
            if question is None and (form := _form(content)) is not None:
                (*before, question), choices_field = form
                fields = {**({} if choices_field is None else {"choices": choices_field}), **given_fields}
            question = question or _recognized("question", content)
            if question is None:
                raise ConfigError(
                    f"no field of the questions was recognized among: {', '.join(sorted(content))}",
                    file=file.name,
                    kind="missing-field",
                    fix="Name it, as with --fields question=FIELD,choices=FIELD,answer=FIELD.",
                )
            read = readers.get(names := tuple(content))  # a row may have fields that the first one does not have
            if read is None:
                read = readers[names] = _readers(content, {**fields, "question": question})
            values = {role: None if get is None else get(content) for role, get in read.fields.items()}
            choices, labels = _choices(values["choices"])
            if read.separate:
                choices, labels = _separate_choices(content, read.separate)
            given = values["id"]
            name = str(line) if given is None or isinstance(given, dict | list) else str(given)
            text = values["question"]
            missing = missing and text is None
            text = text if isinstance(text, str) else "" if text is None else "\n".join(_texts(text))
            text = "\n".join([*(one for name in before for one in _texts(content.get(name))), text])
            answer = values["answer"]
            if answer is None and isinstance(values["choices"], dict):
                answer = _correct(values["choices"])
            answers = [] if read.numbered and not choices else _answers(answer, choices, labels)
            yield line, Question(name, text, choices, answers)
    if line and missing:
        raise ConfigError(
            f"no row has the field {question!r}, which --fields names for the questions",
            file=file.name,
            kind="missing-field",
            fix=f"Name one that the rows have, such as those of the last one: {', '.join(sorted(content))}.",
        )


def _form(row: Mapping[str, Any]) -> tuple[tuple[str, ...], str | None] | None:
    """Return the fields of the question, as the row spells them, and of the choices, if it has one of `FORMS`."""
    plain = {_plain(name): name for name in row}
    inner = {f"{name}.{part}" for name, value in row.items() if isinstance(value, dict) for part in value}
    for needed, names, choices in FORMS:
        if needed <= plain.keys() | inner:
            return tuple(plain.get(name, name) for name in names), choices
    return None


class _Readers(NamedTuple):
    """Functions that read each part of a question, the fields that have a choice each, and whether the answer is the
    number of a choice.
    """

    fields: dict[str, Callable[[Any], Any] | None]
    separate: list[str]
    numbered: bool


def _readers(row: Mapping[str, Any], fields: Mapping[str, str]) -> _Readers:
    names = {role: fields.get(role) or _recognized(role, row) for role in NAMES}
    kinds: dict[str, list[str]] = {}
    for name in () if names["choices"] else row:
        if (match := SEPARATE.fullmatch(_plain(name))) and name != names["question"]:
            kinds.setdefault(match[1], []).append(name)
    separate = next((sorted(kind) for kind in kinds.values() if len(kind) > 1), [])
    getters: dict[str, Callable[[Any], Any] | None] = {}
    for role, field in names.items():
        getters[role] = None if field is None else itemgetter(field) if field in row else _getter(field)
    return _Readers(getters, separate, "answer" not in fields and _plain(names["answer"] or "") in NUMBERS)


def _plain(name: str) -> str:
    return name.lower().replace(" ", "_")


def _recognized(role: str, row: Mapping[str, Any]) -> str | None:
    """Return the field of a row that has this part of a question by one of the usual names."""
    plain = {_plain(name): name for name in reversed(list(row))}
    return next((plain[_plain(name)] for name in NAMES[role] if _plain(name) in plain), None)


def _separate_choices(row: Mapping[str, Any], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the texts of fields with a choice each, and their labels: the ends of the names, or 1, 2, ..."""
    texts = [text if isinstance(text := row[name], str) else "" for name in names]
    ends = [name[-1] for name in names]
    return texts, ends if ends[0].isdigit() else [str(number) for number in range(1, len(names) + 1)]


def _correct(choices: Mapping[str, Any]) -> list[str]:
    """Return the choices that have the label 1 beside them, and not 0."""
    texts, labels = choices.get("choices"), choices.get("labels")
    if not isinstance(texts, list) or not isinstance(labels, list) or not set(map(repr, labels)) <= {"0", "1"}:
        return []
    return [text for text, label in zip(texts, labels, strict=False) if label and isinstance(text, str)]


def _getter(name: str) -> Callable[[Any], Any]:
    """Return a function that reads a field or path of a row, None where it is missing."""
    steps = parse_path(name)
    if steps is None:
        raise ConfigError(f"{name!r} is not a field or path", kind="bad-option", fix="Use a form such as .a.b[0].")

    def get(value: Any) -> Any:
        for step in steps:
            if isinstance(value, dict) and isinstance(step, str):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
                value = value[step]
            else:
                return None
        return value

    return get


def _texts(value: Any) -> list[str]:
    """Return the texts in a value: itself, those of a list, or those under ``text``, or in order, of a mapping."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        if "aliases" in value:
            return [*_texts(value.get("value")), *_texts(value["aliases"])]
        inner = next((value[name] for name in ("text", "content", "choices", "spans") if name in value), None)
        return _texts(list(value.values()) if inner is None else inner)
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return []


def _choices(value: Any) -> tuple[list[str], list[str]]:
    """Return the texts of choices and their labels, A, B, ... by default."""
    texts = _texts(value)
    labels = [chr(ord("A") + number) for number in range(min(26, len(texts)))]
    if isinstance(value, list) and all(isinstance(one, dict) and "label" in one for one in value):
        labels = [str(one["label"]) for one in value] if len(texts) == len(value) else labels
    if isinstance(value, dict):
        given = value.get("label", value.get("labels"))
        if isinstance(given, list) and len(given) == len(texts):
            labels = [str(one) for one in given]
        elif "text" not in value and all(isinstance(one, str) for one in value.values()):
            labels = list(value)
    return texts, labels


def _answers(value: Any, choices: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return the texts of the answer. The label or number of a choice stands for its text."""
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, int):
        return [choices[value]] if 0 <= value < len(choices) else [] if choices else [str(value)]
    if isinstance(value, float):
        return [str(value)]
    if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
        return [text for one in value for text in _answers(one, choices, labels)][:MOST_ANSWERS]
    found = []
    for text in _texts(value):
        plain = text.strip()
        if choices and plain in labels and labels.index(plain) < len(choices):
            text = choices[labels.index(plain)]
        elif choices and plain not in choices and plain.isdecimal() and int(plain) < len(choices):
            text = choices[int(plain)]
        found.append(_final(text))
    return [text for text in dict.fromkeys(found) if text.strip()][:MOST_ANSWERS]


def _final(text: str) -> str:
    """Return the answer at the end of a solution, after ``####`` or in the last box; or the text if it has none."""
    _, mark, end = text.rpartition("####")
    if mark:
        return end
    _, mark, end = text.rpartition(BOXED)
    depth = 1
    for at, letter in enumerate(end if mark else ""):
        depth += (letter == "{") - (letter == "}")
        if not depth:
            return end[:at]
    return text


def words_of(text: str) -> Words:
    """Return the hashes of the words of a text, uint64[n]."""
    raw = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
    hashes, places = np.empty(len(raw) + 1, np.uint64), np.empty((2, len(raw) + 1), np.int32)
    count = kernels.words(raw, 0, len(raw), *kernels.folded(), hashes, places[0], places[1], 0) if len(raw) else 0
    return hashes[:count].copy()


class Index(NamedTuple):
    """An index of questions, and what is counted by benchmark."""

    arrays: Arrays
    benchmarks: list[Counted]


def index_questions(files: Sequence[DocumentFile], options: Decontaminate) -> Index:
    """Read all questions and index them.

    Raises:
        ConfigError, DataError: See `read_questions`; or a file has no questions.
    """
    counted = list[Counted]()
    words, sizes, owners, stems = array("Q"), array("q"), array("i"), array("B")
    answers, answer_sizes, answer_owners = array("Q"), array("q"), array("i")
    benchmark, lines = array("i"), array("q")
    ids, id_sizes, texts, text_sizes = bytearray(), array("q"), bytearray(), array("q")
    names = benchmark_names(files)
    for number, file in enumerate(files):
        first, empty, repeated, known = len(benchmark), 0, 0, set[int]()
        for line, question in read_questions(file, options.fields or {}):
            own = len(benchmark)
            benchmark.append(number)
            lines.append(line)
            name, text = question.id.encode("utf-8", "replace"), shown(question.text.encode("utf-8", "replace"))
            if (digest := xxhash.xxh3_64_intdigest(name)) in known:
                name += b" (line %d)" % line
                repeated += 1
            known.add(digest)
            ids += name
            id_sizes.append(len(name))
            texts += text
            text_sizes.append(len(text))
            longest = 0
            for stem, part in ((1, question.text), *((0, choice) for choice in question.choices)):
                piece = words_of(part)
                longest = max(longest, len(piece))
                words.frombytes(piece.tobytes())
                sizes.append(len(piece))
                owners.append(own)
                stems.append(stem)
            empty += longest == 0
            for answer in question.answers:
                piece = words_of(answer)
                letter = answer.strip().strip("()[].")
                if len(piece) and not (len(letter) == 1 and letter.isascii() and letter.isalpha()):  # "a" is everywhere
                    answers.frombytes(piece.tobytes())
                    answer_sizes.append(len(piece))
                    answer_owners.append(own)
        if len(benchmark) == first:
            raise EmptyResult("the benchmark has no questions", file=file.name, fix="Remove the file, or fill it.")
        counted.append(Counted(names[number], len(benchmark) - first, empty, repeated))
    arrays: Arrays = {
        "words": np.asarray(words), "ends": np.cumsum(sizes, dtype=np.int64), "owners": np.asarray(owners),
        "stems": np.asarray(stems), "answers": np.asarray(answers),
        "answer_ends": np.cumsum(answer_sizes, dtype=np.int64), "answer_owners": np.asarray(answer_owners),
        "benchmark": np.asarray(benchmark), "lines": np.asarray(lines), "ids": np.frombuffer(ids, np.uint8),
        "id_ends": np.cumsum(id_sizes, dtype=np.int64), "texts": np.frombuffer(texts, np.uint8),
        "text_ends": np.cumsum(text_sizes, dtype=np.int64),
    }  # fmt: skip
    return Index(arrays | _grams(arrays["words"], np.asarray(sizes), options.ngram), counted)


def _grams(words: Words, sizes: npt.NDArray[np.int64], width: int) -> Arrays:
    """Return the n-grams of all pieces, where each occurs, and the bits of their filter."""
    every, inside = np.empty(len(words) + 1, np.uint64), np.ones(len(words) + 1, np.bool_)
    kernels.grams(words, len(words), width, every)  # across the ends of pieces too, which are left out here
    ends, inside[-1] = np.cumsum(sizes), False
    for last in range(1, width):
        inside[(ends - last)[sizes >= last]] = False
    values = every[inside]
    del every, inside
    counts = np.maximum(0, sizes - width + 1)
    pieces = np.repeat(np.arange(len(sizes), dtype=np.int32), counts)
    places = np.arange(len(pieces), dtype=np.int32)
    places -= np.repeat((np.cumsum(counts) - counts).astype(np.int32), counts)
    order = np.argsort(values, kind="stable")
    values, pieces, places = values[order], pieces[order], places[order]
    del order
    new = np.ones(len(values) + 1, np.bool_)
    new[1:-1] = values[1:] != values[:-1]
    starts, grams = np.flatnonzero(new), values[new[:-1]]
    del values
    bits = np.zeros(kernels.room_for(len(grams)), np.uint64)
    kernels.fill(bits, grams)
    return {"grams": grams, "starts": starts, "pieces": pieces, "places": places, "bits": bits}


def shown(text: bytes) -> bytes:
    """Return the beginning of a text, up to `SHOWN` bytes of whole characters."""
    return text if len(text) <= SHOWN else text[:SHOWN].decode("utf-8", "ignore").encode()


def piece_of(raw: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], number: int) -> bytes:
    """Return one of concatenated strings."""
    return raw[int(ends[number - 1]) if number else 0 : int(ends[number])].tobytes()


def question_name(arrays: Arrays, question: int, names: Sequence[str]) -> str:
    """Return the name of a question: the benchmark and its id."""
    own = piece_of(arrays["ids"], arrays["id_ends"], question).decode()
    return f"{names[int(arrays['benchmark'][question])]}:{own}"
