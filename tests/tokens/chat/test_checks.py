"""What is learned: weights of messages, stop tokens, the checks of every run, arguments, and ids that do not fit."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import DataError
from feedmill.formats.tokens.manifest import read_manifest
from feedmill.storage import open_store
from feedmill.tokens.chat.checks import CONVERTED, HEADER, NO_EFFECT, NO_STOP, NOTHING
from helpers.chat_families import no_child

__all__ = ["no_child"]
pytestmark = pytest.mark.usefixtures("no_child")
CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' -}}
{% for c in m.tool_calls or [] %}<call>{{ c.function.arguments | tojson }}</call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
MARKED = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration -%}
{% generation %}<|im_end|>{% endgeneration %}

{% else %}{{ m.content }}<|im_end|>
{% endif %}{% endfor %}"""
IM = ("<|im_start|>", "<|im_end|>")
GLM = (
    "<g><sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ROLES = ("<g>", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")


def user(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def answer(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(arguments: Any) -> dict[str, Any]:
    return answer(None, tool_calls=[{"type": "function", "function": {"name": "f", "arguments": arguments}}])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def folder(template: str, specials: tuple[str, ...] = IM, size: int = 300) -> Any:
    """A folder with a tokenizer of bytes, of `size` entries before the special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("filler{}".format, range(size - 256))]
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<eos>", *specials])
    Path("tok").mkdir(exist_ok=True)
    made.save("tok/tokenizer.json")
    config = {"eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast"}
    Path("tok/tokenizer_config.json").write_text(json.dumps(config))
    Path("tok/chat_template.jinja").write_text(template)
    return made


def learned(made: Any, rows: list[Any], **options: Any) -> tuple[list[str], Any]:
    """The documents with [ ] around what is in the loss, and the report."""
    Path("c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"chat": "auto", **options}
    report = fm.tokenize("c.jsonl", "c", tokenizer="tok", progress=False, overwrite=True, workers=1, **options)
    out = []
    for sample in fm.open("c.pbin"):
        ids, mask = sample["input_ids"], sample["loss_mask"]
        runs = np.split(ids, 1 + np.flatnonzero(np.diff(mask)))
        texts = [made.decode(run.tolist(), skip_special_tokens=False) for run in runs]
        out.append("".join(f"[{text}]" if bool(mask[0]) != number % 2 else text for number, text in enumerate(texts)))
    return out, report


def in_loss(shown: str) -> list[str]:
    return [part.split("]")[0] for part in shown.split("[")[1:]]


def test_media_of_rows_are_named() -> None:
    """Token files have no pictures: of all rows a warning, of some a note."""
    made, talk = folder(CHATML), {"messages": [user("<image>?"), answer("yes")]}
    for rows, every in (([talk | {"images": ["a.jpg"]}] * 2, True), ([talk, talk | {"image": "a.jpg"}], False)):
        _, report = learned(made, rows)
        said = [one for one in (report.warnings if every else report.notes) if "is not in the tokens" in one]
        assert len(said) == 1 and "feedmill import FOLDER TABLE OUT" in said[0]


WEIGHTS = [("weight", 0, 1), ("loss", 0, 1.0), ("loss_weight", 0.0, 1), ("loss_scale", 0, 1), ("train", False, True)]
WEIGHTS += [("training", False, True), ("trainable", False, True), ("masked", True, False)]


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["turns", "generation"])
def test_a_weight_of_zero_takes_a_message_out_of_the_loss(template: str) -> None:
    made = folder(template)
    names = {"user": "human", "assistant": "gpt"}
    rows, shared, alone = [], [], []
    for key, off, on in WEIGHTS:
        turns = [user("q"), answer("bad", **{key: off}), user("again"), answer("good", **{key: on})]
        turns += [user("x"), answer("y")]
        others = [{**turn, "from": names[turn["role"]], "value": turn["content"]} for turn in turns]
        for turn in others:
            del turn["role"], turn["content"]
        rows.append({"messages": turns})
        shared.append({"conversations": others})
        alone.append({"messages": turns[:2]})
    for each in (rows, shared):
        shown, report = learned(made, each)
        assert [in_loss(one) for one in shown] == [["good<|im_end|>", "y<|im_end|>"]] * len(WEIGHTS)
        assert report.checks == {}
    shown, report = learned(made, alone)
    assert [in_loss(one) for one in shown] == [[]] * len(WEIGHTS)
    assert list(report.checks) == [NOTHING] and report.checks[NOTHING].count == len(WEIGHTS)


@pytest.mark.parametrize(
    "more,message",
    [
        ({"weight": 0.5}, "'weight' is 0.5, but a loss mask has only 0 and 1"),
        ({"weight": "0"}, "'weight' is '0'"),
        ({"loss": 2.31}, "'loss' is 2.31"),
        ({"weight": 0, "train": True}, "'weight' and 'train' contradict each other"),
        ({"train_detail": [{"begin_offset": 0, "end_offset": 1, "train": False}]}, "'train_detail'.*unsupported"),
    ],
)
def test_weights_that_a_mask_cannot_have(more: dict[str, Any], message: str) -> None:
    made = folder(CHATML)
    rows = [{"messages": [user("q"), answer("a")]}, {"messages": [user("q"), answer("a", **more)]}]
    with pytest.raises(DataError, match=f"line 2.*message 1: {message}"):
        learned(made, rows)
    assert learned(made, rows, on_error="skip")[1].skipped == 1


def test_a_run_without_findings_says_what_it_checked() -> None:
    folder(CHATML)
    Path("c.jsonl").write_text(json.dumps({"messages": [user("q"), answer("a")]}))
    for more, checked in (((), ", and all have something to learn"), (("--chat-mask", "none"), "")):
        done = CliRunner().invoke(
            app, ["tokenize", "c.jsonl", "-o", "d", "-t", "tok", "--chat", "auto", "--overwrite", *more]
        )
        assert f"all answers end in a stop token, all keys have an effect{checked}\n" in done.output
    Path("c.jsonl").write_text(json.dumps({"messages": [user("q", name="x"), answer("a")]}))
    done = CliRunner().invoke(app, ["tokenize", "c.jsonl", "-o", "d", "-t", "tok", "--chat", "auto", "--overwrite"])
    assert "1 finding, see the notes" in done.output


def test_a_weight_without_effect_is_named() -> None:
    made = folder(CHATML)
    row = {"messages": [user("q", train=True, weight=1), answer("a")]}
    _, report = learned(made, [row])
    assert set(report.checks) == {NO_EFFECT + "'train' of user", NO_EFFECT + "'weight' of user"}
    Path("c.jsonl").write_text(json.dumps({"messages": [user("q"), answer("a", weight=0)]}))
    report = fm.tokenize("c.jsonl", "d", tokenizer="tok", chat="messages", chat_mask="none", progress=False)
    assert set(report.checks) == {NO_EFFECT + "'weight' of assistant"}


def test_a_block_of_an_unknown_message_cannot_be_weighed() -> None:
    made = folder(
        "{% for m in messages[:1] %}{{ m.content }}{% endfor %}{% generation %}{{ messages[1].content }}<|im_end|>"
        "{% endgeneration %}"
    )
    assert in_loss(learned(made, [{"messages": [user("q"), answer("a")]}])[0][0]) == ["a<|im_end|>"]
    with pytest.raises(DataError, match="unknown which generation block of the template is of message 1"):
        learned(made, [{"messages": [user("q"), answer("a", weight=0)]}])


def test_a_marker_of_the_next_role_ends_an_answer() -> None:
    made = folder(GLM, ROLES)
    rows = [{"messages": [user("hi"), answer("hello"), user("bye"), answer("see you")]}] * 3
    shown, report = learned(made, rows)
    assert [in_loss(one) for one in shown] == [["hello<|user|>", "see you"]] * 3
    assert report.checks[NO_STOP].count == 3 and report.checks[NO_STOP].where == "c.jsonl line 1"
    shown, report = learned(made, rows, eos="<|user|>")
    assert [in_loss(one) for one in shown] == [["hello<|user|>", "see you<|user|>"]] * 3 and report.checks == {}
    tools = [user("q"), answer("f()"), {"role": "observation", "content": "3"}, answer("so 3"), answer("ok")]
    shown, _ = learned(made, [{"messages": tools}], eos="<|user|>")
    assert in_loss(shown[0]) == ["f()<|observation|>", "so 3", "ok<|user|>"]  # nothing ends "so 3": the turn goes on


def test_an_eos_is_in_the_loss_only_after_an_answer() -> None:
    made = folder(CHATML)
    rows = [{"messages": [user("q"), answer("a")]}, {"messages": [user("q"), answer("a"), user("b")]}]
    shown, _ = learned(made, rows, eos="<eos>", bos="<eos>")
    assert [in_loss(one) for one in shown] == [["a<|im_end|>", "<eos>"], ["a<|im_end|>"]]


def test_a_header_that_answers_no_request_is_not_learned() -> None:
    """The template ignores add_generation_prompt."""
    ignoring = CHATML.partition("{% if add_generation_prompt")[0]
    made = folder(ignoring)
    turns = [user("q"), call({"x": 1}), {"role": "tool", "content": "2"}, answer("a"), user("b"), answer("c")]
    shown, _ = learned(made, [{"messages": turns}])
    assert in_loss(shown[0]) == ['<call>{"x": 1}</call><|im_end|>', "a<|im_end|>", "c<|im_end|>"]
    made = folder(
        "{% for m in messages %}{{ '(' + m.content + ')' if m.role == 'user' else m.content + '<eos>' }}{% endfor %}"
    )
    shown, _ = learned(made, [{"messages": [*turns[:1], answer("a")]}])
    assert shown == ["(q)[a<eos>]"]  # there is no header


def test_a_header_like_the_answer_is_not_learned() -> None:
    made = folder("{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}")
    turns = [user("a"), answer("a"), user("b"), answer("assistant"), user("c"), answer("assistant: x")]
    shown, _ = learned(made, [{"messages": turns}])
    assert in_loss(shown[0]) == [f"{text}<|im_end|>" for text in ("a", "assistant", "assistant: x")]


def test_a_header_that_is_unknown_is_named() -> None:
    made = folder("{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }}\n{{ m.content }}<|im_end|>{% endfor %}")
    shown, report = learned(made, [{"messages": [user("a", name="x"), answer("b", name="y")]}])
    assert in_loss(shown[0]) == ["<|im_start|>assistant y\nb<|im_end|>"] and list(report.checks) == [HEADER]


def test_a_conversation_that_is_closed_at_its_end() -> None:
    """Templates in the style of Phi 3 write one more token after the last message, unless they ask for an answer."""
    made = folder(
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% else %}<eos>{% endif %}",
        ("<|user|>", "<|assistant|>", "<|end|>"),
    )
    shown, report = learned(made, [{"messages": [user("a"), answer("b"), user("c"), answer("d")]}])
    assert in_loss(shown[0]) == ["b<|end|>", "d<|end|>\n<eos>"] and report.checks == {}


def test_the_beginning_of_a_thought_in_the_prompt_alone() -> None:
    """Templates in the style of DeepSeek R1 ask for a thought, and write answers without thoughts."""
    made = folder(
        "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}{% else %}<|assistant|>"
        "{{ m.content.split('</think>')[-1] }}<eos>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}",
        ("<|user|>", "<|assistant|>"),
    )
    shown, _ = learned(made, [{"messages": [user("a"), answer("<think>\nx</think>b"), user("c"), answer("d")]}])
    assert in_loss(shown[0]) == ["b<eos>", "d<eos>"]


def test_all_conversations_without_a_stop_token_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    made = folder("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", ())
    rows = [{"messages": [user("a"), answer("b")]}] * 4
    with caplog.at_level(logging.WARNING, "feedmill"):
        _, report = learned(made, rows)
    assert (
        "4 of 4 conversations: answers whose loss does not end in a stop token (first: c.jsonl line 1)" in caplog.text
    )
    assert report.checks[NO_STOP].count == 4 and any("stop token" in text for text in report.warnings)
    done = CliRunner().invoke(app, ["tokenize", "c.jsonl", "-o", "d", "-t", "tok", "--chat", "messages", "--json"])
    assert json.loads(done.stdout)["checks"][NO_STOP] == {"count": 4, "file": "c.jsonl", "line": 1}
    manifest = read_manifest(open_store("."), "d.pbin")
    assert manifest is not None and manifest.options["checks"][NO_STOP]["count"] == 4
    again = fm.tokenize("c.jsonl", "c", tokenizer="tok", chat="auto", progress=False)
    assert again.complete and again.checks == report.checks
    caplog.clear()
    made = folder(CHATML)
    with caplog.at_level(logging.WARNING, "feedmill"):
        _, report = learned(made, [*rows, {"messages": [user("a"), user("b")]}, {"messages": [user("c")]}])
    assert not caplog.records and report.checks == {NOTHING: report.checks[NOTHING]}
    assert (report.checks[NOTHING].count, report.checks[NOTHING].line) == (2, 5)


def test_keys_without_effect_are_named_and_counted() -> None:
    made = folder(CHATML)
    plain = {"messages": [user("a"), answer("b")]}
    rows: list[Any] = [
        plain,
        {"messages": [user("a", name="bob", id=3, empty=None), answer("b", reasoning_content="hm", refusal=None)]},
        {"messages": [user("a", name="eve"), answer("b")], "tools": [{"name": "f"}], "system": "Be brief."},
        {"messages": [user("a"), answer("", function_call={"name": "f", "arguments": "{}"})]},
    ]
    _, report = learned(made, rows)
    expected = {"'name' of user": (2, 2), "'id' of user": (1, 2), "'reasoning_content' of assistant": (1, 2)}
    expected |= {"'tools' of the row": (1, 3), "'system' of the row": (1, 3), "'function_call' of assistant": (1, 4)}
    assert {name: (one.count, one.line) for name, one in report.checks.items()} == {
        NO_EFFECT + name: value for name, value in expected.items()
    }
    (note,) = (note for note in report.notes if "have no effect" in note)
    assert "'name' of user (2 of 4 conversations, first: c.jsonl line 2)" in note and "and 1 more" in note
    for row in ({"prompt": "a", "completion": "b"}, {"prompt": "a", "chosen": "b", "rejected": "c"}, plain):
        Path("c.jsonl").write_text(json.dumps({**row, "weight": 0.5, "system": "Be brief."}))
        report = fm.tokenize("c.jsonl", "e", tokenizer="tok", chat="auto", progress=False, overwrite=True)
        assert set(report.checks) == {NO_EFFECT + "'weight' of the row", NO_EFFECT + "'system' of the row"}
    skipping = "{% for m in messages if m.role != 'tool' %}" + CHATML.partition("%}")[2]
    made = folder(skipping)
    turns = [user("a"), call({}), {"role": "tool", "content": "3"}, answer("b")]
    assert list(learned(made, [{"messages": turns}])[1].checks) == [NO_EFFECT + "'content' of tool"]
    shared = {"conversations": [{"from": "human", "value": "a", "score": 3}, {"from": "gpt", "value": "b"}]}
    assert list(learned(folder(CHATML), [shared])[1].checks) == [NO_EFFECT + "'score' of user"]
    dumping = "{% for m in messages %}{{ m | tojson }}<|im_end|>{% endfor %}"
    assert learned(folder(dumping), [{"messages": [user("a", name="x"), answer("b", k=1)]}])[1].checks == {}


FORMS = {
    "tojson": "{{ a | tojson }}",
    "inside": "{{ {'n': 'f', 'a': a} | tojson }}",
    "raw": "{{ a }}",
    "plus": "{{ '<' + a + '>' }}",
    "tilde": "{{ '<' ~ a ~ '>' }}",
    "either": "{% if a is string %}{{ a }}{% else %}{{ a | tojson }}{% endif %}",
    "items": "{% for k, v in a.items() %}{{ k }}={{ v | tojson }};{% endfor %}",
    "filter": "{% for k, v in a | items %}{{ k }}={{ v | tojson }};{% endfor %}",
    "keys": "{% for k in a %}{{ k }}={{ a[k] | tojson }};{% endfor %}",
}


@pytest.mark.parametrize("form", FORMS)
def test_arguments_are_json_once_in_either_form(form: str) -> None:
    body = FORMS[form]
    made = folder(
        "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "{% set a = c.function.arguments %}"
        f"{body}{{% endfor %}}<|im_end|>{{% endfor %}}"
    )
    value = {"x": 1, "y": {"ü": None}, "values": 2}
    text = json.dumps(value, ensure_ascii=False)
    rows = []
    for arguments in (value, text):
        calls = call(arguments)
        rows += [[user("q"), calls], [user("q"), calls | {"tool_calls": json.dumps(calls["tool_calls"])}]]
    shown, report = learned(made, [{"messages": turns} for turns in rows])
    assert set(report.checks) <= {CONVERTED}
    wrote = {"items": 'x=1;y={"ü": null};values=2;', "inside": f'{{"n": "f", "a": {text}}}'}
    wrote |= {"filter": wrote["items"], "keys": wrote["items"], "plus": f"<{text}>", "tilde": f"<{text}>"}
    assert shown == [f"q<|im_end|>[{wrote.get(form, text)}<|im_end|>]"] * 4
    assert learned(made, [{"messages": [user("q"), call("not JSON")]}], on_error="skip", allow_empty=True)


def test_tools_as_texts_are_read() -> None:
    made = folder("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" + CHATML)
    schema = {"type": "object", "properties": {}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    stored = {**tool, "function": {"name": "f", "parameters": json.dumps(schema)}}
    turns = [user("q"), answer("a")]
    forms = [[tool], json.dumps([tool]), [json.dumps(tool)], [stored]]
    shown, _ = learned(made, [{"messages": turns, "tools": tools} for tools in forms])
    assert len(set(shown)) == 1 and json.dumps(tool) in shown[0]
    with pytest.raises(DataError, match="'tools' has a text that is not the JSON of an object"):
        learned(made, [{"messages": turns, "tools": ["f"]}])


@pytest.mark.parametrize("format", ["pbin", "ds", "megatron", "dolma"])
def test_added_tokens_of_a_template_fit(format: str) -> None:
    made = folder(CHATML, size=256)
    rows = [{"messages": [user("q"), answer("a")]}]
    Path("c.jsonl").write_text(json.dumps(rows[0]))
    fm.tokenize("c.jsonl", "c", tokenizer="tok", chat="auto", formats=[format], progress=False)
    end = {"pbin": ".pbin", "ds": ".ds", "megatron": ".idx", "dolma": ".npy"}[format]
    ids = fm.open(f"c{end}")[0]["input_ids"]
    assert ids.max() > 255 and "<|im_start|>user" in made.decode(ids.tolist(), skip_special_tokens=False)


def test_ids_that_do_not_fit_name_the_token_size() -> None:
    made = folder(CHATML, size=300)
    rows = [{"messages": [user("q"), answer("a")]}]
    with pytest.raises(
        DataError, match=r"id 30[12] does not fit tokens of 1 byte \(at most 255\). Pass --token-size 2"
    ):
        learned(made, rows, token_size=1)
    Path("tok/chat_template.jinja").write_text(
        "{{ messages[0].content }}{% if messages | length > 1 %}<|im_end|>{% endif %}"
    )
    assert learned(made, [*rows, {"messages": [user("a")]}], token_size=1, on_error="skip")[1].skipped == 1


def test_special_tokens_in_plain_texts_name_the_token_size() -> None:
    """Modalities' rule leaves out added tokens."""
    folder(CHATML, size=256)
    Path("t.jsonl").write_text('{"text": "a <|im_end|>"}\n')
    with pytest.raises(DataError, match="Pass --token-size 2") as error:
        fm.tokenize("t.jsonl", "t", tokenizer="tok", eos="none", progress=False)
    assert error.value.kind == "bad-token-size" and "Fix the document" not in str(error.value)
    assert fm.tokenize("t.jsonl", "t", tokenizer="tok", eos="none", token_size=2, progress=False).documents == 1
