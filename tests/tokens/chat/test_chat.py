"""`feedmill tokenize --chat`: forms of conversations, masks, pairs, errors, and that data run no code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.documents.batch import BadDocument
from feedmill.errors import ConfigError, DataError
from feedmill.tokens.chat.checks import UNTHINKING
from feedmill.tokens.chat.forms import conversation_of, form_of
from feedmill.tokens.chat.reader import Placing, find_template, special_tokens
from feedmill.tokens.chat.render import Template
from feedmill.tokens.tokenizer import load_tokenizer
from helpers.chat_families import no_child

__all__ = ["no_child"]
TOKENIZER = Path(__file__).parents[2] / "golden" / "nanosets" / "tok1k"
TEMPLATES = Path(__file__).parents[2] / "golden" / "chat" / "templates"
UNMARKED = (TEMPLATES / "chatml_unmarked.jinja").read_text()


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer whose template marks what is generated."""
    folder = tmp_path / "tok"
    shutil.copytree(TOKENIZER, folder)
    shutil.copyfile(TEMPLATES / "tools.jinja", folder / "chat_template.jinja")
    return folder


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


LISTS = (
    "{% for m in messages %}{{ m.role }}:"
    "{% for c in m.content | selectattr('type', 'equalto', 'image') %}(I){% endfor %}"
    "{% for c in m.content | selectattr('type', 'equalto', 'text') %}{{ c.text }}{% endfor %}|{% endfor %}"
)
BOTH = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}(I){% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}|{% endfor %}"
)
TEXTS = "{% for m in messages %}{{ m.content ~ '|' }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "marked", "listed"),
    [
        (LISTS, "user:(I)(I)What is  that?|assistant:that|", "user:(I)an <image> tag?|assistant:that|"),
        (BOTH, "(I)What is (I) that?|that|", "(I)an <image> tag?|that|"),
        (TEXTS, "<image>\nWhat is <image> that?|that|", None),
    ],
)
def test_marks_of_media_in_texts(template: str, marked: str, listed: str | None) -> None:
    """Texts with marks become lists where a template takes them; no template leaves out an answer that is a text."""
    compiled = Template(template)
    placing = Placing()

    def rendered(messages: list[dict[str, Any]]) -> str:
        placed = placing.placed(messages, lambda each: compiled.render(messages=each).text)
        return str(compiled.render(messages=placed).text)

    for _ in range(2):  # the second time, the way is known
        assert rendered([user("<image>\nWhat is <image> that?"), answer("that")]) == marked
    if listed is not None:
        content = [{"type": "image"}, {"type": "text", "text": "an <image> tag?"}]
        assert rendered([{"role": "user", "content": content}, answer("that")]) == listed


def texts(path: Path, learned: bool = False) -> list[str]:
    """The documents of a token file as text, or only what is in the loss."""
    decode = load_tokenizer(TOKENIZER).decode
    found = []
    for document in fm.open(path):
        ids = document["input_ids"]
        found.append(decode(ids[document["loss_mask"]] if learned else ids))
    return found


@pytest.mark.usefixtures("no_child")
def test_all_forms_give_the_same_tokens(tokenizer: Path, tmp_path: Path) -> None:
    rows = {
        "messages": {"messages": [user("2+2?"), answer("4")]},
        "sharegpt": {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
        "prompt": {"prompt": "2+2?", "completion": "4"},
        "preference": {"prompt": [user("2+2?")], "chosen": [answer("4")], "rejected": "5"},
    }
    for form, row in rows.items():
        assert form_of(row) == form
        source = lines(tmp_path / f"{form}.jsonl", [row] * 5)
        report = fm.tokenize(source, tmp_path / form, tokenizer=tokenizer, chat="auto")
        main = tmp_path / f"{form}_chosen.pbin" if form == "preference" else tmp_path / f"{form}.pbin"
        assert texts(main) == ["<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"] * 5
        assert texts(main, learned=True) == ["4<|im_end|>"] * 5
        assert report.documents == 5 and report.tokens_in_loss
    assert texts(tmp_path / "preference_rejected.pbin", learned=True) == ["5<|im_end|>"] * 5


@pytest.mark.usefixtures("no_child")
def test_tool_calls_and_tools_from_lines_and_parquet(tokenizer: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    turns = [
        user("Weather?"),
        {**answer(""), "tool_calls": [call]},
        {"role": "tool", "content": "18"},
        answer("It is 18."),
    ]
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    rows = [{"messages": turns, "tools": tools}, {"messages": [user("Hi"), answer("Hello")]}]
    lines(tmp_path / "a.jsonl", rows)
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        fm.tokenize(tmp_path / name, tmp_path / "out", tokenizer=tokenizer, chat="messages", overwrite=True)
        first, second = texts(tmp_path / "out.pbin")
        assert "# Tools" in first and '<call>{\n "name": "weather"' in first and "# Tools" not in second
        learned, _ = texts(tmp_path / "out.pbin", learned=True)
        assert learned.startswith("<call>") and learned.endswith("It is 18.<|im_end|>") and "18<" not in learned
    stored = [[{**turn, "tool_calls": json.dumps(turn.get("tool_calls"))} for turn in row["messages"]] for row in rows]
    table = pyarrow.table({"messages": stored, "tools": [row.get("tools") for row in rows]})
    feature = {name: {"_type": "Value"} for name in ("role", "content")} | {"tool_calls": {"_type": "Json"}}
    metadata = {"info": {"features": {"messages": {"_type": "List", "feature": feature}}}}
    table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    parquet.write_table(table, tmp_path / "json.parquet")  # as datasets 5 stores what has several types
    with pyarrow.ipc.new_stream(str(tmp_path / "json.arrow"), table.schema) as out:
        out.write_table(table)
    expected = (tmp_path / "out.pbin").read_bytes()
    for name in ("json.parquet", "json.arrow"):
        fm.tokenize(tmp_path / name, tmp_path / "out", tokenizer=tokenizer, chat="messages", overwrite=True)
        assert (tmp_path / "out.pbin").read_bytes() == expected
    shared = {"from": "function_call", "value": json.dumps({"name": "weather", "arguments": {}})}
    found = conversation_of({"conversations": [{"from": "human", "value": "x"}, shared]}, "sharegpt")
    assert found.messages[1]["tool_calls"][0]["function"]["name"] == "weather"


@pytest.mark.usefixtures("no_child")
def test_a_template_without_marks_learns_the_turns_of_the_assistant(tokenizer: Path, tmp_path: Path) -> None:
    (tokenizer / "chat_template.jinja").write_text(UNMARKED)
    rows = [{"messages": [user("a"), answer("one"), user("b"), answer("two")]}] * 3
    source = lines(tmp_path / "a.jsonl", rows)
    report = fm.tokenize(source, tmp_path / "a", tokenizer=tokenizer, chat="messages")
    assert any("has no {% generation %} blocks" in note for note in report.notes)
    assert texts(tmp_path / "a.pbin", learned=True) == ["one<|im_end|>two<|im_end|>"] * 3
    fm.tokenize(source, tmp_path / "b", tokenizer=tokenizer, chat="messages", chat_mask="last")
    assert texts(tmp_path / "b.pbin", learned=True) == ["two<|im_end|>"] * 3
    report = fm.tokenize(source, tmp_path / "c", tokenizer=tokenizer, chat="messages", chat_mask="none")
    assert "loss_mask" not in fm.open(tmp_path / "c.pbin")[0] and report.tokens_in_loss is None
    with pytest.raises(ConfigError, match=r"no {% generation %} blocks"):
        fm.tokenize(source, tmp_path / "d", tokenizer=tokenizer, chat="messages", chat_mask="generation")
    (tokenizer / "chat_template.jinja").write_text((TEMPLATES / "thinking.jinja").read_text())
    thinking = lines(
        tmp_path / "t.jsonl", [{"messages": [user("a"), answer("<think>x</think>\n1"), user("b"), answer("2")]}]
    )
    report = fm.tokenize(thinking, tmp_path / "u", tokenizer=tokenizer, chat="messages", chat_mask="turns")
    assert texts(tmp_path / "u.pbin", learned=True) == ["1<|end|>\n2<|end|>\n"]
    assert report.checks[UNTHINKING].count == 1
    fm.tokenize(thinking, tmp_path / "t", tokenizer=tokenizer, chat="messages", chat_mask="last")
    assert texts(tmp_path / "t.pbin", learned=True) == ["2<|end|>\n"]


OPENINGS = {
    "default system": (
        "{% if messages[0].role != 'system' %}system: An assistant gives one answer.\n{% endif %}" + UNMARKED,
        "{}<|im_end|>",
    ),
    "no header": (
        "<|endoftext|>{% for message in messages %}"
        "{{ '[' + message.content + ']' if message.role == 'user' else message.content + '</s>' }}{% endfor %}",
        "{}</s>",
    ),
    "added thinking": (  # in the loss, as in later answers
        UNMARKED.replace("+ message.content", "+ '<think></think>' + message.content"),
        "<think></think>{}<|im_end|>",
    ),
}


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize("name", OPENINGS)
def test_a_conversation_that_begins_with_the_assistant_learns_its_answers_alone(
    name: str, tokenizer: Path, tmp_path: Path
) -> None:
    template, form = OPENINGS[name]
    (tokenizer / "chat_template.jinja").write_text(template)
    turns = [{"from": "gpt", "value": "one"}, {"from": "human", "value": "b"}, {"from": "gpt", "value": "two"}]
    source = lines(tmp_path / "a.jsonl", [{"conversations": turns}, {"conversations": turns[:1]}])
    one, two = form.format("one"), form.format("two")
    for mask, learned in {"turns": [one + two, one], "last": [two, one]}.items():
        fm.tokenize(source, tmp_path / mask, tokenizer=tokenizer, chat="auto", chat_mask=mask)
        assert texts(tmp_path / f"{mask}.pbin", learned=True) == learned


def test_an_answer_whose_begin_is_unknown_is_an_error(tokenizer: Path, tmp_path: Path) -> None:
    """The template writes something else before an answer that is not the only one."""
    template = "{% if messages | length > 1 %}Long: {% endif %}" + UNMARKED
    (tokenizer / "chat_template.jinja").write_text(template)
    source = lines(tmp_path / "a.jsonl", [{"messages": [answer("one"), user("b")]}])
    with pytest.raises(DataError, match=r"line 1.*begins with an answer"):
        fm.tokenize(source, tmp_path / "a", tokenizer=tokenizer, chat="messages")


@pytest.mark.usefixtures("no_child")
def test_pairs_stay_together_and_only_the_answers_are_learned(tokenizer: Path, tmp_path: Path) -> None:
    before = [user("a"), answer("x"), user("b")]
    rows: list[Any] = [
        {"prompt": [user(f"q{n}")], "chosen": [answer(f"good {n}")], "rejected": [answer(f"bad {n}")]}
        for n in range(30)
    ]
    rows[7] = {"prompt": "q", "chosen": [{"content": "no role"}], "rejected": "bad"}  # invalid on one side only
    rows += [{"chosen": [*before, answer("yes")], "rejected": [*before, answer("no")]}]  # the prompt is in both
    rows += [{"chosen": [user("a"), answer("x")], "rejected": [user("a"), answer("x")]}]
    source = lines(tmp_path / "p.jsonl", rows)
    report = fm.tokenize(source, tmp_path / "p", tokenizer=tokenizer, chat="auto", on_error="skip")
    assert (report.documents, report.skipped) == (30, 2) and set(report.outputs) == {"pbin (chosen)", "pbin (rejected)"}
    good, bad = (texts(tmp_path / f"p_{side}.pbin", learned=True) for side in ("chosen", "rejected"))
    assert good == [*[f"good {n}<|im_end|>" for n in range(30) if n != 7], "yes<|im_end|>"]
    assert bad == [text.replace("good", "bad").replace("yes", "no") for text in good]
    with pytest.raises(DataError, match=r"line 8.*message 0 of 'chosen' has no role"):
        fm.tokenize(source, tmp_path / "q", tokenizer=tokenizer, chat="preference")


def test_every_format_any_workers_and_a_second_run_give_the_same_mask(tokenizer: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [
        {
            "messages": [
                m for _ in range(random.integers(1, 4)) for m in (user("q " * int(random.integers(9))), answer("ü a"))
            ]
        }
        for _ in range(200)
    ]
    source = lines(tmp_path / "a.jsonl", rows)
    formats = ["pbin", "ds", "megatron", "dolma"]
    how = {"tokenizer": tokenizer, "chat": "messages", "formats": formats}
    first = fm.tokenize(source, tmp_path / "one/a", workers=1, **how)
    fm.tokenize(source, tmp_path / "two/a", workers=2, unit_bytes=2000, **how)
    masks = {"a.pbin.feedmill.loss", "a.ds.loss", "a.bin.feedmill.loss", "a.npy.feedmill.loss"}
    found = {(tmp_path / folder / name).read_bytes() for folder in ("one", "two") for name in masks}
    assert len(found) == 1 and sum(found.pop()) == first.tokens_in_loss
    again = fm.tokenize(source, tmp_path / "one/a", workers=1, **how)
    assert again.complete and again.tokens_in_loss == first.tokens_in_loss
    batch = fm.tokens.with_targets(fm.open(tmp_path / "one/a.pbin").read([0]))
    kept = batch["targets"][batch["targets"] != -100]
    assert load_tokenizer(TOKENIZER).decode(kept).startswith("ü a<|im_end|>")


def test_data_run_no_code(tokenizer: Path, tmp_path: Path) -> None:
    """Text of messages is never a template, and a template cannot reach Python."""
    trick = "{{ 7 * 7 }} {% for x in range(9) %}x{% endfor %} {{ ''.__class__.__mro__ }}"
    source = lines(tmp_path / "a.jsonl", [{"messages": [user(trick), answer(trick)], "chat_template": "{{ 1 }}"}])
    fm.tokenize(source, tmp_path / "a", tokenizer=tokenizer, chat="messages")
    assert texts(tmp_path / "a.pbin")[0].count(trick) == 2
    for attack in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% for x in range(1000000) %}{{ x }}{% endfor %}",
        "{{ lipsum.__globals__['os'].system('true') }}",
    ):
        (tokenizer / "chat_template.jinja").write_text(attack)
        with pytest.raises(DataError, match="the chat template failed"):
            fm.tokenize(source, tmp_path / "b", tokenizer=tokenizer, chat="messages", chat_mask="turns")


def test_a_block_whose_position_is_unknown_is_an_error() -> None:
    block = "{% generation %}x{% endgeneration %}"
    for text in (f"{{% macro m() %}}{block}{{% endmacro %}}", f"{{% set m %}}{block}{{% endset %}}ab{{{{ m }}}}"):
        with pytest.raises(ConfigError, match=r"in line 1: where its text ends up is unknown"):
            Template(text)
    loop = "{% for x in rows recursive %}a" + block + "{{ loop(x) }}{% endfor %}"
    with pytest.raises(ValueError, match="not where the block was written"):
        Template(loop).render(rows=[[[]]])
    assert Template("a{% generation %}b{{ 1 }}{% endgeneration %}c").render().spans == ((1, 3),)


def test_errors_name_what_is_wrong(tokenizer: Path, tmp_path: Path) -> None:
    source = lines(tmp_path / "a.jsonl", [{"messages": [user("a"), answer("b")]}, {"text": "no conversation"}])
    with pytest.raises(DataError, match=r"line 2.*it is not a conversation"):
        fm.tokenize(source, tmp_path / "a", tokenizer=tokenizer, chat="auto")
    with pytest.raises(ConfigError, match="no conversation in the first rows"):
        fm.tokenize(lines(tmp_path / "t.jsonl", [{"text": "x"}]), tmp_path / "a", tokenizer=tokenizer, chat="auto")
    with pytest.raises(ConfigError, match="have no chat template"):
        fm.tokenize(source, tmp_path / "a", tokenizer=TOKENIZER, chat="auto")
    (tokenizer / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ConfigError, match="syntax error in line 1"):
        fm.tokenize(source, tmp_path / "a", tokenizer=tokenizer, chat="auto")
    for more, message in (
        ({"specials_as_text": True}, "--specials-as-text cannot be combined"),
        ({"loss": True}, "--loss cannot be combined"),
        ({"text": "x"}, "--text cannot be combined"),
        ({"chat_mask": "all"}, "unknown chat mask 'all'"),
    ):
        with pytest.raises(ConfigError, match=message):
            fm.tokenize(
                source,
                tmp_path / "a",
                tokenizer=tokenizer,
                chat="messages",
                chat_template=str(TEMPLATES / "plain.jinja"),
                **more,
            )
    for row, message in (
        ({"conversations": [{"from": "robot", "value": "x"}]}, "known 'from' ('robot'"),
        ({"conversations": [{"from": "function_call", "value": "{"}]}, "not JSON"),
        ({"messages": [user("x")], "tools": "{"}, "'tools' is a text that is not JSON"),
        ({"messages": [{"content": "x"}]}, "has no role"),
        ({"messages": []}, "no messages"),
    ):
        with pytest.raises(BadDocument) as error:
            conversation_of(row, form_of(row))
        assert message in str(error.value)


def test_templates_and_special_tokens_are_found_as_transformers_does(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    config.write_text(
        json.dumps({"chat_template": "one", "bos_token": {"content": "<s>"}, "additional_special_tokens": ["<a>"]})
    )
    assert find_template(tmp_path)[:2] == ("one", None)
    assert special_tokens(tmp_path) == {"bos_token": "<s>", "additional_special_tokens": ["<a>"]}
    named = [
        {"name": "default", "template": "one"},
        {"name": "tool_use", "template": "two"},
        {"name": "rag", "template": "3"},
    ]
    config.write_text(json.dumps({"chat_template": named, "tokenizer_class": "LlamaTokenizerFast"}))
    assert find_template(tmp_path)[:2] == ("one", "two") and find_template(tmp_path, "rag").text == "3"
    assert special_tokens(tmp_path)["bos_token"] == "<s>"
    (tmp_path / "chat_template.jinja").write_text("file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/more.jinja").write_text("more")
    assert find_template(tmp_path).text == "file" and find_template(tmp_path, "more").text == "more"
    with pytest.raises(ConfigError, match=r"no chat template 'other'.*|'default'"):
        find_template(tmp_path, "other")
    with pytest.raises(ConfigError, match="does not exist"):
        find_template(tmp_path, "missing.jinja")
