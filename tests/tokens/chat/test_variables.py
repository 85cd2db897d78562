"""Variables of chat templates: of a job and of single rows, as transformers and trl pass them."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.tokens.chat.reader import ChatSpec, Conversations
from feedmill.tokens.chat.values import parse_variables
from feedmill.tokens.tokenizer import load_tokenizer

TOKENIZER = Path(__file__).parents[2] / "golden" / "nanosets" / "tok1k"

THINKING = """{%- if enable_thinking is defined and not enable_thinking %}{{ '/no_think ' }}{% endif -%}
{{ effort | default('high') }}:{{ budget | default(0) + 1 }}:{{ documents is none }}:{{ bos_token }}
{%- for m in messages %} {{ m.role }} {% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"""
ROW = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tok"
    shutil.copytree(TOKENIZER, folder)
    (folder / "chat_template.jinja").write_text(THINKING)
    return folder


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(path: Path) -> list[str]:
    decode = load_tokenizer(TOKENIZER).decode
    return [decode(document["input_ids"]) for document in fm.open(path)]


def spec(variables: dict[str, Any], template: str = THINKING) -> ChatSpec:
    known = tuple((name, json.dumps(value)) for name, value in variables.items())
    return ChatSpec("messages", template, None, (("bos_token", "<s>"),), "generation", variables=known)


def rendered(variables: dict[str, Any], own: Any = None) -> str | None:
    return Conversations(spec(variables)).record({**ROW, "chat_template_kwargs": own}).text


CASES: list[dict[str, Any]] = [
    {},
    {"enable_thinking": False},
    {"enable_thinking": True, "effort": "low"},
    {"budget": 3, "documents": [{"title": "t", "text": "x"}]},
    {"bos_token": "<other>"},
]


@pytest.mark.parametrize("variables", CASES, ids=str)
def test_variables_are_those_of_transformers(variables: dict[str, Any]) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER / "tokenizer.json"), bos_token="<s>")
    wanted = theirs.apply_chat_template(ROW["messages"], chat_template=THINKING, tokenize=False, **variables)
    assert rendered(variables) == wanted


def test_a_row_comes_before_the_job() -> None:
    job = {"enable_thinking": False, "effort": "low"}
    assert rendered({}) == "high:1:True:<s> user 2+2? assistant 4"
    assert rendered(job) == "/no_think low:1:True:<s> user 2+2? assistant 4"
    for own in ({"effort": "none"}, '{"effort": "none"}'):
        assert rendered(job, own) == "/no_think none:1:True:<s> user 2+2? assistant 4"
    assert rendered({}, {"python_tools": ["f"]}) == rendered({}, "") == rendered({})
    for own in ([1], "{", {"messages": []}):
        assert "chat_template_kwargs" in Conversations(spec({})).record({**ROW, "chat_template_kwargs": own}).reason


def test_a_job_sets_variables_and_is_another_job_with_others(tokenizer: Path, tmp_path: Path) -> None:
    source = lines(tmp_path / "x.jsonl", [ROW, {**ROW, "chat_template_kwargs": {"effort": "none"}}])
    out = {"tokenizer": tokenizer, "chat": "messages", "progress": False}
    fm.tokenize(source, tmp_path / "x", chat_template_args={"enable_thinking": False}, **out)
    assert texts(tmp_path / "x.pbin") == [
        "/no_think high:1:True:<|endoftext|> user 2+2? assistant 4",
        "/no_think none:1:True:<|endoftext|> user 2+2? assistant 4",
    ]
    with pytest.raises(ConfigError):  # the output is that of other variables
        fm.tokenize(source, tmp_path / "x", chat_template_args={"enable_thinking": True}, **out)
    again = fm.tokenize(source, tmp_path / "x", chat_template_args={"enable_thinking": False}, **out)
    assert again.complete


def test_refused(tokenizer: Path, tmp_path: Path) -> None:
    source = lines(tmp_path / "x.jsonl", [ROW])
    out: dict[str, Any] = {"tokenizer": tokenizer, "progress": False}
    for variables, what in (
        ({"enable_thnking": False}, "does not read the variable 'enable_thnking'"),
        ({"messages": []}, "cannot be set"),
        ({"effort": float("nan")}, "not JSON"),
        ({"effort": {1}}, "not JSON"),
    ):
        with pytest.raises(ConfigError, match=what):
            fm.tokenize(source, tmp_path / "y", chat="auto", chat_template_args=variables, **out)
    with pytest.raises(ConfigError, match="without chat"):
        fm.tokenize(source, tmp_path / "y", chat_template_args={"effort": "low"}, **out)
    broken = lines(tmp_path / "z.jsonl", [{**ROW, "chat_template_kwargs": [1]}])
    with pytest.raises(DataError, match="chat_template_kwargs"):
        fm.tokenize(broken, tmp_path / "y", chat="messages", **out)


def test_words_of_the_command_line() -> None:
    assert parse_variables(["a=false", "b=x=y", 'c="2"', "d=", "e=[1]"]) == {
        "a": False, "b": "x=y", "c": "2", "d": "", "e": [1],
    }  # fmt: skip
    for words in (["a"], ["=1"], ["a b=1"], ["a=1", "a=2"]):
        with pytest.raises(ConfigError, match="chat-template-args"):
            parse_variables(words)
