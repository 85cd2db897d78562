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

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.curation.decontaminate.options import DecontaminateOptions
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
        "sentence", "text",
    ),
    "choices": ("choices", "options", "endings", "answer_choices", "candidates", "mc1_targets"),
    "answer": (
        "answer", "answers", "canonical_solution", "solution", "best_answer", "correct_answer", "target", "answerKey",
        "answer_key", "label", "gold", "output",
    ),
    "id": ("id", "task_id", "question_id", "qid", "ind", "idx"),
}  # fmt: skip
"""Names of fields, the usual first."""
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
    """A benchmark: its name, questions, and those that cannot be looked for, as they have no text or too few words."""

    name: str
    questions: int
    empty: int
    short: int


def benchmark_name(file: DocumentFile) -> str:
    """Return the name of the benchmark in a file: its path without endings."""
    folder, _, name = file.path.rpartition("/")
    plain = name.split(".")[0] or name
    return f"{folder}/{plain}" if folder else plain


def read_questions(file: DocumentFile, fields: Mapping[str, str]) -> Iterator[tuple[int, Question]]:
    """Yield line and content of each question of a file.

    Raises:
        ConfigError: There is no field with questions.
        DataError: A row is invalid.
    """
    line, readers = 0, dict[str, Callable[[Any], Any] | None]()
    for block in read_blocks(file, shown=True):
        for row in rows_of(block):
            line += 1
            try:
                content = load(row)
            except (ValueError, RecursionError) as error:
                raise bad_row(row, str(error), file.name, line) from None
            if not isinstance(content, dict):
                raise bad_row(row, "the row is not a JSON object", file.name, line)
            if not readers:
                readers = _readers(content, fields, file)
            values = {role: None if read is None else read(content) for role, read in readers.items()}
            choices, labels = _choices(values["choices"])
            given = values["id"]
            name = str(line) if given is None or isinstance(given, dict | list) else str(given)
            text = values["question"]
            text = text if isinstance(text, str) else "" if text is None else "\n".join(_texts(text))
            yield line, Question(name, text, choices, _answers(values["answer"], choices, labels))


def _readers(
    row: Mapping[str, Any], fields: Mapping[str, str], file: DocumentFile
) -> dict[str, Callable[[Any], Any] | None]:
    found: dict[str, Callable[[Any], Any] | None] = {}
    for role, names in NAMES.items():
        name = fields.get(role) or next((name for name in names if name in row), None)
        if role == "question" and name is None:
            raise ConfigError(
                f"no field of the questions was recognized among: {', '.join(sorted(row))}",
                file=file.name,
                kind="missing-field",
                fix="Name it, as with --fields question=FIELD,choices=FIELD,answer=FIELD.",
            )
        found[role] = None if name is None else _getter(name)
    return found


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
    """Return the texts in a value: itself, those of a list, or those under ``text`` or in order of a mapping."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        inner = value.get("text", value.get("content", value.get("choices")))
        return _texts(list(value.values()) if inner is None else inner)
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return []


def _choices(value: Any) -> tuple[list[str], list[str]]:
    """Return the texts of choices and their labels, A, B, ... by default."""
    texts = _texts(value)
    labels = [chr(ord("A") + number) for number in range(min(26, len(texts)))]
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
    found = []
    for text in _texts(value):
        if choices and text.strip() in labels and labels.index(text.strip()) < len(choices):
            text = choices[labels.index(text.strip())]
        elif choices and text.strip().isdigit() and int(text) < len(choices):
            text = choices[int(text)]
        found.append(text.rpartition("####")[2] if "####" in text else text)
    return [text for text in dict.fromkeys(found) if text.strip()][:MOST_ANSWERS]


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


def index_questions(files: Sequence[DocumentFile], options: DecontaminateOptions) -> Index:
    """Read all questions and index them.

    Raises:
        ConfigError, DataError: See `read_questions`; or a file has no questions.
    """
    words, sizes, owners, stems = list[Words](), list[int](), list[int](), list[int]()
    answers, answer_sizes, answer_owners = list[Words](), list[int](), list[int]()
    benchmark, lines, ids, texts, counted = list[int](), list[int](), list[bytes](), list[bytes](), list[Counted]()
    for number, file in enumerate(files):
        first, empty, short = len(benchmark), 0, 0
        for line, question in read_questions(file, options.fields):
            own = len(benchmark)
            benchmark.append(number)
            lines.append(line)
            ids.append(question.id.encode("utf-8", "replace"))
            texts.append(shown(question.text.encode("utf-8", "replace")))
            longest = 0
            for stem, text in ((1, question.text), *((0, choice) for choice in question.choices)):
                piece = words_of(text)
                longest = max(longest, len(piece))
                words.append(piece)
                sizes.append(len(piece))
                owners.append(own)
                stems.append(stem)
            empty += longest == 0
            short += 0 < longest < options.ngram
            for text in question.answers:
                piece = words_of(text)
                if len(piece):
                    answers.append(piece)
                    answer_sizes.append(len(piece))
                    answer_owners.append(own)
        if len(benchmark) == first:
            raise EmptyResult("the benchmark has no questions", file=file.name, fix="Remove the file, or fill it.")
        counted.append(Counted(benchmark_name(file), len(benchmark) - first, empty, short))
    none = np.empty(0, np.uint64)
    all_words = np.concatenate([none, *words])
    ends = np.cumsum(sizes, dtype=np.int64)
    arrays: Arrays = {
        "words": all_words, "ends": ends, "owners": np.array(owners, np.int32), "stems": np.array(stems, np.uint8),
        "answers": np.concatenate([none, *answers]), "answer_ends": np.cumsum(answer_sizes, dtype=np.int64),
        "answer_owners": np.array(answer_owners, np.int32), "benchmark": np.array(benchmark, np.int32),
        "lines": np.array(lines, np.int64), "ids": np.frombuffer(b"".join(ids), np.uint8),
        "id_ends": np.cumsum([len(one) for one in ids], dtype=np.int64),
        "texts": np.frombuffer(b"".join(texts), np.uint8),
        "text_ends": np.cumsum([len(one) for one in texts], dtype=np.int64),
    }  # fmt: skip
    return Index(arrays | _grams(all_words, ends, options.ngram), counted)


def _grams(words: Words, ends: npt.NDArray[np.int64], width: int) -> Arrays:
    """Return the n-grams of all pieces, where each occurs, and the bits of their filter."""
    values = np.empty(len(words) + 1, np.uint64)
    count = kernels.grams(words, len(words), width, values)  # across the ends of pieces too, which are left out below
    at = np.arange(count)
    piece = np.searchsorted(ends, at, side="right")
    inside = at + width <= ends[np.minimum(piece, len(ends) - 1)] if len(ends) else np.zeros(0, np.bool_)
    at, piece, values = at[inside], piece[inside], values[:count][inside]
    order = np.argsort(values, kind="stable")
    grams, starts = np.unique(values[order], return_index=True)
    bits = np.zeros(kernels.room_for(len(grams)), np.uint64)
    kernels.fill(bits, grams)
    begins = np.concatenate([[0], ends])[piece]
    return {
        "grams": grams,
        "starts": np.append(starts, len(values)).astype(np.int64),
        "pieces": piece[order].astype(np.int32),
        "places": (at - begins)[order].astype(np.int32),
        "bits": bits,
    }


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
