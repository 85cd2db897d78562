"""Leaked questions in natural text, in twelve forms: what share of them is found, and what is flagged without one.

The natural text is that of installed packages: documentation and source code, cut into documents. The questions are
made from templates, seeded: multiple choice, short answers and code, most in English, others in Chinese, Russian and
Thai. A form is how a question is written in a document; the document has natural text before and after it.
"""

from __future__ import annotations

import json
import random
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as installed

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import ROOT, Row, feedmill, run

QUESTIONS, DOCUMENTS = 200, 100_000
FEW = 5_000
"""Natural documents that are compared with a peer."""

_THINGS = (
    "enzyme", "glacier", "sonata", "parliament", "neutron", "tariff", "orchid", "treaty", "comet", "mortgage",
    "algorithm", "cathedral", "vaccine", "monsoon", "pendulum", "archipelago", "ledger", "turbine", "manuscript",
    "plankton", "senate", "alloy", "tornado", "ballad", "reactor", "dynasty", "mineral", "fungus", "satellite",
    "bridge", "reservoir", "harvest", "compass", "lantern", "furnace", "gallery", "meadow", "tunnel", "violin",
    "harbour",
)  # fmt: skip
_PLACES = (
    "Valdoria", "Kestrel", "Marrow", "Tessaly", "Orun", "Belgrave", "Quill", "Novaria", "Halden", "Pryce", "Calder",
    "Ostrava", "Lindholm", "Tamsin", "Verra", "Ashgate", "Corvane", "Dunmore", "Elsinor", "Fenwick", "Garrow", "Hollin",
    "Ister", "Jarrow", "Kilbride", "Larkham", "Mendel", "Norwick",
)  # fmt: skip
_DOES = ("absorb", "reflect", "regulate", "delay", "accelerate", "describe", "weaken", "measure", "replace", "dissolve")
_HOW = (
    "under high pressure", "after the second year", "in cold water", "during the night", "without any catalyst",
    "at sea level",
)  # fmt: skip
_ASK = (
    "Which of the following best explains why the {a} of {p} began to {d} the {b} {h}?",
    "A {a} in the town of {p} can {d} {n} kilograms of {b} every hour. How long does it take to {d} {m} kilograms {h}?",
    "In the history of {p}, what was the main reason that the {a} came to {d} every {b} {h}?",
    "If the {a} near {p} is {n} metres tall and its {b} is {m} metres away, what does the {a} {d} {h}?",
    "Who was the first person from {p} to show that a {a} may {d} the {b} {h}?",
    "What happens to the {b} of {p} when the {a} starts to {d} it {h} for more than {n} days?",
)
_OTHER = (
    "在{p}镇，{n}年建造的{a}为什么能够在寒冷的水中{d}{m}吨的货物，而附近的{b}却不能做到？",
    "Почему старый {a} в городе {p} за {n} лет перевёз больше грузов, чем новый {b}, построенный позже на {m} лет?",
    "เพราะเหตุใด{a}ในเมือง{p}จึงสามารถขนส่งสินค้าได้มากกว่า{b}ถึง{n}ตันในเวลาเพียง{m}วัน",
)
_CODE = (
    "def {f}(values: list[int], {g}: int) -> list[int]:\n"
    '    """Return every value of the {a} that is divisible by {g} and larger than the {b} of {p} by {n}, in the\n'
    '    order of their last occurrence.\n\n    >>> {f}([{n}, {m}, {n}], {g}=3)\n    [{m}]\n    """\n'
)


def questions(seed: int = 0) -> list[dict[str, Any]]:
    """Return `QUESTIONS` questions of three kinds, as rows of a benchmark."""
    rng = random.Random(seed)
    rows = []
    for number in range(QUESTIONS):
        a, b = rng.sample(_THINGS, 2)
        values = {
            "a": a, "b": b, "p": rng.choice(_PLACES), "d": rng.choice(_DOES), "h": rng.choice(_HOW),
            "n": rng.randrange(11, 990), "m": rng.randrange(11, 990), "f": f"{a}_{b}_{number}", "g": f"{b}_count",
        }  # fmt: skip
        row: dict[str, Any] = {"id": str(number), "kind": ("choice", "answer", "code")[number % 3]}
        if row["kind"] == "code":
            row |= {
                "question": _CODE.format(**values),
                "answer": f"return [v for v in values if v % {values['g']} == 0]",
            }
        else:
            texts = _OTHER if number % 5 == 0 else _ASK
            row |= {"question": rng.choice(texts).format(**values), "answer": f"the {b} of {values['p']}"}
        if row["kind"] == "choice":
            others = rng.sample(_THINGS, 6)
            choices = [
                row["answer"],
                *(f"the {c} that can {rng.choice(_DOES)} a {e}" for c, e in zip(others[:3], others[3:], strict=True)),
            ]
            rng.shuffle(choices)
            row["choices"] = choices
        rows.append(row)
    return rows


def _wrapped(text: str, width: int, mark: str = "") -> str:
    words = text.split(" ")
    return "\n".join(mark + " ".join(words[at : at + width]) for at in range(0, len(words), width))


def _fullwidth(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


def _changed(text: str, rng: random.Random) -> str:
    """One word in ten replaced; in scripts without spaces, one letter in ten."""
    joined = " " not in text
    words = list(text) if joined else text.split(" ")
    for at in rng.sample(range(len(words)), max(1, len(words) // 10)):
        words[at] = rng.choice("零一二三") if joined else rng.choice(_THINGS)
    return ("" if joined else " ").join(words)


def _options(row: dict[str, Any], rng: random.Random, order: bool) -> str:
    choices = list(row.get("choices", ()))
    if order:
        rng.shuffle(choices)
    return "".join(f"\n({'abcd'[n]}) {choice}" for n, choice in enumerate(choices))


FORMS: dict[str, Callable[[dict[str, Any], random.Random], str]] = {
    "verbatim": lambda row, rng: row["question"] + _options(row, rng, False),
    "without choices": lambda row, _: row["question"],
    "choices in another order": lambda row, rng: row["question"] + _options(row, rng, True),
    "wrapped at 8 words": lambda row, _: _wrapped(row["question"], 8),
    "wrapped with list markers": lambda row, _: _wrapped(row["question"], 8, "* "),
    "upper case": lambda row, _: row["question"].upper(),
    "other punctuation": lambda row, _: row["question"].replace(",", " -").replace("?", " ...").replace(" ", ", "),
    "other white space": lambda row, _: row["question"].replace(" ", "\u00a0\t "),
    "other encoding": lambda row, _: unicodedata.normalize("NFD", _fullwidth(row["question"])),
    "HTML": lambda row, _: (
        "<p><b>" + row["question"].replace(" ", "</b> <i class='q'>", 1).replace(" of ", "&nbsp;of&nbsp;") + "</i></p>"
    ),
    "Markdown": lambda row, _: "> **Q:** " + row["question"].replace("the ", "the *", 1) + "*",
    "one word in ten changed": lambda row, rng: _changed(row["question"], rng),
}


def natural(folders: list[Path], documents: int, size: int = 3000) -> Iterator[str]:
    """Yield documents of natural text from the files of folders, in the order of their paths."""
    count = 0
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix not in {".py", ".md", ".rst", ".txt", ".html", ".pyi"} or not path.is_file():
                continue
            text = path.read_text("utf-8", "replace")
            for at in range(0, len(text), size):
                if len(text) - at > size // 10 or at == 0:
                    yield text[at : at + size]
                    count += 1
                    if count == documents:
                        return


def injected(rows: list[dict[str, Any]], texts: list[str], seed: int = 1) -> Iterator[tuple[str, str, str]]:
    """Yield form, id of the question and document for each form and question: amid a paragraph of natural text."""
    rng = random.Random(seed)
    for form, write in FORMS.items():
        for row in rows:
            text = rng.choice(texts)
            at = text.find(" ", len(text) // 2)
            yield form, row["id"], f"{text[:at]} {write(row, rng)} {text[at:]}"


def leaks(repeat: int) -> Iterator[Row]:
    """Measure recall by form, what is flagged in natural text, and processor time beside ``dedupe --by ngrams``."""
    path = corpus.folder() / "leaks"
    shutil.rmtree(path, ignore_errors=True)
    rows, texts = questions(), list(natural([Path(installed.__file__).parents[1], Path("/usr/share")], DOCUMENTS))
    found = list(injected(rows, texts[:2000]))
    _write(path / "bench.jsonl", rows)
    _write(path / "asked/documents/a.jsonl", [{"id": row["id"], "text": row["question"]} for row in rows])
    _write(path / "natural/documents/a.jsonl", [{"id": str(n), "text": text} for n, text in enumerate(texts)])
    _write(path / "leaked/documents/a.jsonl", [{"id": str(n), "text": text} for n, (_, _, text) in enumerate(found)])
    used: dict[str, list[float]] = {"ours": [], "ngrams": []}
    for number in range(repeat):
        name = ("--workers", 1, "--name", f"set-{number}", "--json")
        ours = feedmill(
            "documents", "decontaminate", path / "natural/documents", "--against", path / "bench.jsonl", *name
        )
        others = ("--by", "ngrams", "--against", path / "asked/documents", *name[:3], f"ngrams-{number}", "--json")
        used["ours"].append(run(ours, folder=ROOT)["cpu_s"])
        used["ngrams"].append(run(feedmill("dedupe", path / "natural/documents", *others), folder=ROOT)["cpu_s"])
    run(
        feedmill("documents", "decontaminate", path / "leaked/documents", "--against", path / "bench.jsonl", *name),
        folder=ROOT,
    )
    what = f"{len(texts):,} natural documents, processor time; beside dedupe --by ngrams --against"
    yield Row("leaks", what, "s", used["ours"], used["ngrams"], wanted=2)
    theirs = _by_datatrove(path, repeat, texts, len(found))
    if theirs:
        what = f"{FEW:,} natural documents, processor time; beside datatrove's n-gram decontamination"
        yield Row("leaks", what, "s", theirs["ours"], theirs["used"], wanted=10)
        yield Row("leaks", f"of {FEW:,} natural documents, flagged by datatrove", "", [sum(theirs["natural"])])
    wrong = sum(bool(one) for one in _questions(path / f"natural/attributes/set-{repeat - 1}/a.jsonl"))
    yield Row("leaks", "natural documents that are flagged", "", [wrong], bound=len(found) / 1000)
    right = dict.fromkeys(FORMS, 0)
    marked = _questions(path / f"leaked/attributes/set-{repeat - 1}/a.jsonl")
    for (form, question, _), names in zip(found, marked, strict=True):
        right[form] += f"bench:{question}" in names
    flagged = dict.fromkeys(FORMS, 0)
    for (form, _, _), one in zip(found, theirs.get("leaked", ()), strict=False):
        flagged[form] += one
    for form, count in right.items():
        note = f"datatrove: {100 - 100 * flagged[form] / len(rows):.1f} %" if theirs else ""
        yield Row("leaks", f"not found: {form}", "%", [100 - 100 * count / len(rows)], bound=3, note=note)


def _by_datatrove(path: Path, repeat: int, texts: list[str], leaked: int) -> dict[str, list[Any]]:
    """Return processor times, ``ours`` and ``used``, and what the peer flags; nothing without the peer.

    It flags documents, not questions.
    """
    python = peers.python("datatrove")
    if python is None:
        return {}
    _write(path / "few/documents/a.jsonl", [{"id": str(n), "text": text} for n, text in enumerate(texts[:FEW])])
    out: dict[str, list[Any]] = {"ours": [], "used": []}
    for number in range(repeat):
        name = ("--workers", 1, "--name", f"set-{number}", "--json")
        ours = feedmill("documents", "decontaminate", path / "few/documents", "--against", path / "bench.jsonl", *name)
        out["ours"].append(run(ours, folder=ROOT)["cpu_s"])
        out["used"].append(_peer(python, path, "few", FEW))
    _peer(python, path, "leaked", leaked)
    for kind, of in (("natural", "few"), ("leaked", "leaked")):
        out[kind] = json.loads((path / f"{of}.json").read_text())
    return out


def _peer(python: str, path: Path, kind: str, count: int) -> float:
    given = (path / "bench.jsonl", path / f"{kind}/documents/a.jsonl", count, path / f"{kind}.json")
    return run([python, "-m", "benchmarks.curation.peers.decontamination", *map(str, given)], folder=ROOT)["cpu_s"]


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _questions(path: Path) -> list[list[str]]:
    return [json.loads(line).get("questions", []) for line in path.read_text().splitlines()]


PARTS: dict[str, Callable[[int], Iterable[Row]]] = {"leaks": leaks}
