"""Masks of templates of many families, checked against an oracle that renders each conversation turn by turn.

The oracle has an environment of its own, and knows by hand what a family writes before and after an answer.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

import feedmill as fm
from feedmill.documents.batch import BadDocument
from feedmill.tokens.chat.checks import HEADER, NO_STOP, UNTHINKING
from feedmill.tokens.chat.reader import ChatSpec, Conversations
from feedmill.tokens.chat.values import as_seen
from feedmill.tokens.tokenizer import load_tokenizer
from helpers.chat_families import FAMILIES, Family, no_child

__all__ = ["no_child"]

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


def turns(render: Callable[..., str], messages: Sequence[Any], text: str, stops: tuple[str, ...]) -> list[Span | None]:
    """The answers by rendering turn by turn; None where the text does not begin with that of the first messages."""
    found: list[Span | None] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, upto = render(messages[:number], True) if number else "\0", render(messages[: number + 1])
        asks = number and before != render(messages[:number])
        if not (asks and text.startswith(before) and text.startswith(upto)):
            found.append(None)
            continue
        begin, end = len(before), len(upto)
        bare = begin + len(text[begin:end].rstrip())
        if text.endswith(stops, begin, bare):
            end = bare
        elif number + 1 < len(messages) and messages[number + 1]["role"] != "assistant":
            end += max((len(stop) for stop in stops if text.startswith(stop, end)), default=0)
        found.append((begin, max(begin, end)))
    return found


WORDS = (
    "alpha",
    "Ä",
    "🙂",
    "{{ 7 }}",
    "a\n\nb",
    " lead",
    "trail \n",
    "<b>",
    "assistant",
    "\nassistant\n",
    "<|im_end|>",
)


def conversation(random: Random, has: str) -> list[dict[str, Any]]:
    """Random turns: empty texts, thinking in both forms, a system in the middle, several answers, an open end."""

    def words(empty: float = 0.1) -> str:
        return "" if random.random() < empty else " ".join(random.choices(WORDS, k=random.randint(1, 5)))

    found: list[dict[str, Any]] = []
    for turn in range(random.randint(1, 4)):
        if "system" in has and random.random() < (0.1 if turn else 0.4):
            found.append({"role": "system", "content": words()})
        found.append({"role": "user", "content": words()})
        if "tools" in has and random.random() < 0.3:
            call = {"function": {"name": "add", "arguments": {"x": words()}}}
            found += [
                {"role": "assistant", "content": words(0.5), "tool_calls": [call]},
                {**RESULT, "content": words()},
            ]
        for _ in range(1 + ("consecutive" in has and random.random() < 0.1)):
            thought = random.choice([{}, {}, {"reasoning_content": words()}])
            inline = f"<think>\n{words()}\n</think>\n\n" if random.random() < 0.2 else ""
            found.append({"role": "assistant", "content": inline + words(), **thought})
    return found + ([{"role": "user", "content": words()}] if random.random() < 0.1 else [])


def shipped() -> dict[str, tuple[str, str]]:
    """Templates of models as the package trl has them, if it is installed, and what our families have of features."""
    found = importlib.util.find_spec("trl")
    folder = Path(found.origin).parent / "chat_templates" if found is not None and found.origin else None
    paths = sorted(folder.glob("*.jinja")) if folder else []
    has = "system tools consecutive"
    return {path.stem: (path.read_text(), has) for path in paths if not path.stem.endswith("_training")}


@pytest.mark.parametrize("count", [8, pytest.param(2500, marks=pytest.mark.slow)])
def test_answers_are_those_of_turns_or_refused(count: int) -> None:
    """Random conversations over all templates, those of trl too in the slow loop."""
    templates = {name: (family.template, family.has) for name, family in FAMILIES.items()}
    if count > 100:
        templates |= shipped()
    refused, equal, proven = Counter[str](), 0, 0
    for name, (template, has) in templates.items():
        special = re.findall(r"<\|[^|<>]*\|>|</s>|<[^<>|]*_of_[^<>|]*>|<\|?turn\|?>|<eos>|<｜[^｜]*｜>", template)
        stops = tuple(sorted({*special, "<eos>"}))
        special_tokens = (("bos_token", "<s>"), ("eos_token", "<eos>"))
        reader = Conversations(ChatSpec("messages", template, None, special_tokens, "turns", "2026-01-31", stops=stops))
        random = Random(name)
        for _ in range(count):
            row: dict[str, Any] = {"messages": conversation(random, has)}
            if "tools" in has:
                row["tools"] = [TOOL]
            record = reader.record(row)
            if record.text is None:
                assert re.search("chat template failed|unknown where", record.reason)
                refused[name] += "chat template failed" not in record.reason
                continue

            def render(messages: Any, ask: bool = False, row: Any = row, reader: Any = reader) -> str:
                return str(reader._render(row.get("tools"), {}, messages, ask).text)

            seen = next(
                given
                for objects in (False, True)
                if _renders(render, given := as_seen(row["messages"], set(), objects=objects), record.text)
            )
            spans = record.fields[0]
            for span, wanted in zip(spans, turns(render, seen, record.text, stops), strict=True):
                assert wanted is None or tuple(span) == wanted, (name, row)
                equal, proven = equal + (wanted is not None), proven + (wanted is None)
    conversations = count * len(templates)
    assert equal > conversations and proven and sum(refused.values()) < conversations / 20, (equal, proven, refused)


def _renders(render: Callable[..., str], messages: Any, text: str) -> bool:
    try:
        return render(messages) == text
    except BadDocument:
        return False


def test_an_answer_that_cannot_be_proven_is_refused_with_both_renderings() -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content if loop.last else m.content | upper }}</s>{% endfor %}"
    )
    ask = "{% if add_generation_prompt %}[assistant]{% endif %}"
    reader = Conversations(ChatSpec("messages", template + ask, None, (), "turns", stops=("</s>",)))
    reason = reader.record({"messages": [user(1), answer(2, content="yes"), user(3)]}).reason
    assert "it is unknown where the answer is" in reason and "--chat-mask last" in reason
    assert "[user]What is 3?" in reason and "[assistant]YES</s>" in reason  # both renderings
    assert reader.record({"messages": [{"role": "user", "content": "1"}, answer(2, content="yes")]}).text


@pytest.mark.parametrize("name", ["chatml", "glm 4", "nemotron", "baichuan", "harmony"])
def test_a_stop_token_in_the_words_of_an_answer_is_not_its_end(name: str, tmp_path: Path) -> None:
    """Texts put in the places of other words: what the template writes around them is where it was."""
    family = FAMILIES[name]
    tokenizer(tmp_path / "tok", family)
    tokens = load_tokenizer(tmp_path / "tok", "hf", template_source="file")
    reader = Conversations(ChatSpec.of(tokens, "messages", None, "turns", {}, closed=False))
    stops = (family.stop,) if isinstance(family.stop, str) else family.stop
    for stop in stops:
        words = {"Q0Z": stop, "Q1Z": f"yes{stop}", "Q2Z": f"yes{stop}", "Q3Z": "yes", "Q4Z": family.header, "Q5Z": "no"}
        messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": word} for n, word in enumerate(words)]
        row = {"messages": messages}
        text = Oracle(family).text(row)
        spans = Oracle(family).spans(row)[0]
        wanted = [text[begin:end] for begin, end in spans]
        for place, word in words.items():
            wanted = [one.replace(place, word) for one in wanted]
        record = reader.record({"messages": [{**one, "content": words[one["content"]]} for one in messages]})
        assert record.text is not None, record.reason
        assert [record.text[slice(*span)] for span in record.fields[0]] == wanted


def test_there_are_thirty_families() -> None:
    assert len(FAMILIES) >= 30 and len({family.template for family in FAMILIES.values()}) == len(FAMILIES)
    features = {word for family in FAMILIES.values() for word in family.has.split()}
    assert features == {"system", "tools", "thinking", "consecutive"}
