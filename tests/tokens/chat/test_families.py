"""Masks of templates of many families, checked against an oracle that renders each conversation turn by turn.

The oracle has an environment of its own, and knows by hand what a family writes before and after an answer.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

import feedmill as fm
from feedmill.jobs.sandbox import Sandbox
from feedmill.tokens.chat.checks import HEADER, NO_STOP, UNTHINKING
from feedmill.tokens.tokenizer import load_tokenizer
from helpers.chat_families import FAMILIES, Family

Span = tuple[int, int]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"x": 1, "of": "ü"}}}


def user(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"What is {number}?"}


def answer(number: int, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": f"Ä {number}, I think: {{{{ {number} }}}} ok.", **more}


SYSTEM = {"role": "system", "content": "Be brief."}
RESULT = {"role": "tool", "content": "three 🙂"}
ROWS: dict[str, dict[str, Any]] = {
    "one": {"messages": [user(1), answer(2)]},
    "several": {"messages": [user(1), answer(2), user(3), answer(4), user(5), answer(6)]},
    "open": {"messages": [user(1), answer(2), user(3)]},
    "system": {"messages": [SYSTEM, user(1), answer(2), user(3), answer(4)]},
    "consecutive": {"messages": [user(1), answer(2), answer(3), user(4), answer(5)]},
    "tools": {
        "messages": [user(1), {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT, answer(2)],
        "tools": [TOOL],
    },
    "thinking": {
        "messages": [
            user(1),
            answer(2, content="<think>\nhm\n</think>\n\nFour 2.", reasoning_content="so"),
            user(3),
            answer(4, content="<think>\nwell\n</think>\n\nFive 4.", reasoning_content="or"),
        ]
    },
}


def chosen(family: Family) -> dict[str, dict[str, Any]]:
    """The conversations that a family's template takes."""
    known = ("system", "tools", "thinking", "consecutive")
    return {name: row for name, row in ROWS.items() if name not in known or name in family.has.split()}


class Oracle:
    """Renders one turn after the other."""

    def __init__(self, family: Family) -> None:
        self.family = family
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, **how)
        environment.globals["raise_exception"] = self._fail
        blocks = {"endgeneration": "endif", "generation": "if true"}
        text = re.sub(r"(end)?generation(?= %})", lambda found: blocks[found[0]], family.template)
        self._template = environment.from_string(text)

    @staticmethod
    def _fail(message: str) -> None:
        raise ValueError(message)

    def text(self, row: dict[str, Any], count: int | None = None) -> str:
        """The text of the first messages; arguments in the form that the template takes."""
        messages = row["messages"][:count]
        for arguments in (lambda one: one, json.dumps, lambda one: json.dumps(one, ensure_ascii=False)):
            made = json.loads(json.dumps(messages))
            for message in made:
                for call in message.get("tool_calls") or ():
                    call["function"]["arguments"] = arguments(call["function"]["arguments"])
            try:
                found = self._template.render(messages=made, tools=row.get("tools"), add_generation_prompt=False)
            except TypeError:
                continue
            if "{'" not in found and '\\"' not in found and "\\u" not in found:
                return str(found)
        raise AssertionError("no form of the arguments fits")

    def spans(self, row: dict[str, Any], last: bool = False) -> tuple[list[Span], bool]:
        """The characters in the loss, and whether the last answer has a stop token."""
        family, messages, text = self.family, row["messages"], self.text(row)
        found: list[Span] = []
        stopped = True
        numbers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        for number in numbers[-1:] if last else numbers:
            before = self.text(row, number)
            before = before if text.startswith(before) else _without(before, text, family)
            begin = len(before) + len(family.header)
            assert text.startswith(before + family.header), (before, text)
            final = number + 1 == len(messages)
            end = self._end(messages[number], text, begin, final)
            stopped &= end is not None
            found.append((begin, len(text) if end is None else end))
        return found, stopped

    def _end(self, message: dict[str, Any], text: str, begin: int, final: bool) -> int | None:
        family = self.family
        words = (message["content"] or "ü").split("</think>")[-1].strip()
        after = text.index(words, begin) + len(words)
        stops = family.stop if isinstance(family.stop, tuple) else (family.stop,)
        if final and family.last is not None:
            stops = (family.last,)
        ends = [at + len(stop) for stop in stops if (at := text.find(stop, after)) >= 0]
        return min(ends, default=None)


def _without(before: str, text: str, family: Family) -> str:
    """The text of the first messages without what closes a conversation that ends there."""
    stop = family.stop if isinstance(family.stop, str) else ""
    bare = [before.removesuffix(closing) for closing in (family.last or "", "<|endoftext|>")]
    return max((one for one in [*bare, *(one + stop for one in bare)] if text.startswith(one)), key=len)


def tokenizer(folder: Path, family: Family) -> Any:
    """Write a folder with a tokenizer of bytes and the family's special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(family.specials))
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    starts = [token for token in family.specials if token in ("<s>", "<bos>", "<BOS_TOKEN>", "<|begin_of_text|>")]
    config = {"eos_token": family.specials[0], "bos_token": starts[0] if starts else None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "chat_template.jinja").write_text(family.template)
    return made


def documents(path: Path) -> list[tuple[str, list[str]]]:
    """The text of each document, and its ranges in the loss as text."""
    decode = load_tokenizer(path.parent / "tok", template_source="file").decode
    found = []
    for sample in fm.open(path):
        ids, mask = sample["input_ids"], sample["loss_mask"]
        runs = np.split(np.arange(len(ids)), 1 + np.flatnonzero(np.diff(mask)))
        found.append((decode(ids), [decode(ids[run]) for run in runs if mask[run[0]]]))
    return found


def joined(text: str, spans: list[Span]) -> list[str]:
    """The texts of ranges; those that touch are one."""
    out: list[Span] = []
    for begin, end in spans:
        if out and out[-1][1] == begin:
            out[-1] = (out[-1][0], end)
        else:
            out.append((begin, end))
    return [text[begin:end] for begin, end in out if begin < end]


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render in this process: starting a child for each of hundreds of jobs would take most of the time."""

    def here(sandbox: Any, items: Any) -> Any:
        return map(sandbox._function, items)

    monkeypatch.setattr(Sandbox, "map", here)


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize("name", FAMILIES)
def test_the_loss_of_a_family_is_that_of_rendering_turn_by_turn(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    oracle = Oracle(family)
    tokenizer(tmp_path / "tok", family)
    rows = chosen(family)
    closed = {key: row for key, row in rows.items() if key != "open"}
    for rule, taken in (("auto", rows), ("last", closed)):
        source = tmp_path / f"{rule}.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in taken.values()))
        how: dict[str, Any] = {"tokenizer": tmp_path / "tok", "chat": "messages", "workers": 1, "progress": False}
        report = fm.tokenize(source, tmp_path / rule, chat_mask=rule, **how)
        found = documents(tmp_path / f"{rule}.pbin")
        stops = 0
        for (key, row), (text, learned) in zip(taken.items(), found, strict=True):
            wanted = oracle.text(row)
            spans, stopped = oracle.spans(row, rule == "last")
            assert text == wanted, (name, key)
            assert learned == joined(wanted, spans), (name, key)
            stops += not stopped
        assert HEADER not in report.checks
        assert (report.checks[NO_STOP].count if NO_STOP in report.checks else 0) == stops
        if rule == "auto" and "generation" in family.template:
            fm.tokenize(source, tmp_path / "turns", chat_mask="turns", **how)
            assert documents(tmp_path / "turns.pbin") == found
        dropped = report.checks[UNTHINKING].count if UNTHINKING in report.checks else 0
        assert dropped == (rule == "auto" and "thinking" in taken and name in ("qwen 3", "deepseek r1"))


def test_there_are_thirty_families() -> None:
    assert len(FAMILIES) >= 30 and len({family.template for family in FAMILIES.values()}) == len(FAMILIES)
    features = {word for family in FAMILIES.values() for word in family.has.split()}
    assert features == {"system", "tools", "thinking", "consecutive"}
