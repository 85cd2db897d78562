"""Chat templates, lots and masks against what Modalities made of the golden conversations."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError, DataError
from feedmill.storage import LocalStore
from feedmill.tokens.instruct import Chat, between, compile_template, prepare_chats, read_lines

EXPECTED = json.loads((Path(__file__).parents[1] / "golden/modalities/expected.json").read_text())
CONFIG = EXPECTED["instruction_tuning"]["config"]
SOURCE = (LocalStore(Path(__file__).parents[1] / "golden/modalities"), "chat.jsonl")


def chat(**changes: Any) -> Chat:
    roles = CONFIG["instruction_data_transformation"]["role_mapping"]
    fields = {"messages_key": CONFIG["settings"]["messages_key"], "roles": roles}
    fields |= {"template": CONFIG["jinja2_chat_template"], "data": CONFIG["chat_template_data"]}
    return Chat(**(fields | changes))


def test_the_files_of_the_original(tmp_path: Path) -> None:
    split = CONFIG["settings"]["split_config"]
    store = LocalStore(tmp_path)
    targets = {name: (store, f"{name}.jsonl") for name in split["splitting"]}
    counts = prepare_chats(SOURCE, targets, chat(), split["splitting"], split["seed"])
    for name, count in counts.items():
        facts = EXPECTED["instruction_tuning"]["files"][f"out/chat_HASH/chat_{name}.HASH.jsonl"]
        assert count == facts["n"]
        assert hashlib.sha256((tmp_path / f"{name}.jsonl").read_bytes()).hexdigest() == facts["sha256"]


BAD = {
    b"{": "not valid JSON",
    b"": "not valid JSON",
    b'{"x": "\xff"}': "not valid JSON",
    b"[]": "there is no 'conversations'",
    b'{"conversations": "x"}': "not a list of turns",
    b'{"conversations": [1]}': "not a list of turns",
    b'{"conversations": [{"from": "nobody", "value": ""}]}': "the role 'nobody' has no mapping",
    b'{"conversations": [{"from": "gpt"}]}': "chat template failed",
    b'{"conversations": [{"from": "gpt", "value": "\\ud800"}]}': "surrogate",
}


@pytest.mark.parametrize("line", BAD)
def test_lines_that_are_no_conversations(line: bytes, tmp_path: Path) -> None:
    good = b'{"conversations": [{"from": "gpt", "value": "x"}]}\n'
    (tmp_path / "in.jsonl").write_bytes(good + line + b"\n")
    store = LocalStore(tmp_path)
    with pytest.raises(DataError, match=BAD[line]) as error:
        prepare_chats((store, "in.jsonl"), {"a": (store, "a.jsonl")}, chat(), {"a": 1}, 0)
    assert error.value.record == "line 2"
    assert not (tmp_path / "a.jsonl").exists()


def test_templates_are_sandboxed() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        compile_template("a\n{% for %}")
    render = compile_template("{{ messages.__class__.__mro__ }}")
    with pytest.raises(Exception, match="unsafe"):
        render(messages=[])
    assert compile_template("{{ messages | tojson }}")(messages=["<é>"]) == '["<é>"]'


@pytest.mark.parametrize(
    "template,error,message",
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            DataError,
            "took longer than",
        ),
        ("{{ messages[0].value.center(9999999999) }}", DataError, "MemoryError"),
        ("{{ (9 ** (9 ** 9)) % 2 }}", ConfigError, "cannot be compiled: it took longer than"),
        ("{{ " + "9" * 5000 + " }}", ConfigError, "cannot be compiled"),
    ],
)
def test_templates_do_not_take_all_time_or_memory(
    template: str, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedmill.tokens.instruct.SECONDS", 0.5)
    monkeypatch.setattr("feedmill.tokens.instruct.MEMORY", 200 << 20)
    (tmp_path / "in.jsonl").write_bytes(b'{"conversations": [{"from": "gpt", "value": "x"}]}\n')
    store = LocalStore(tmp_path)
    with pytest.raises(error, match=message):
        prepare_chats((store, "in.jsonl"), {"a": (store, "a.jsonl")}, chat(template=template), {"a": 1}, 0)
    assert not (tmp_path / "a.jsonl").exists()


def test_templates_may_refuse(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    template = "{{ raise_exception('too few turns') }}"
    with pytest.raises(DataError, match="too few turns"):
        prepare_chats(SOURCE, {"a": (store, "a.jsonl")}, chat(template=template), {"a": 1}, 0)


def test_lines_across_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"ab\n\ncdefg\nh")
    monkeypatch.setattr("feedmill.tokens.instruct._READ", 2)
    assert list(read_lines(LocalStore(tmp_path), "a")) == [b"ab", b"", b"cdefg", b"h"]


@pytest.mark.parametrize("case", EXPECTED["loss_mask"], ids=lambda case: str(case["rows"])[:40])
def test_masks(case: dict[str, Any]) -> None:
    rows = case["rows"]
    tokens = np.asarray([token for row in rows for token in row], np.int64)
    lengths = np.asarray([len(row) for row in rows], np.int64)
    if case["targets"] == "ValueError":
        with pytest.raises(DataError):
            between(tokens, lengths, case["begin"], case["end"])
        return
    wanted = case["targets"]
    if rows == [[9, 1, 9, 9, 9, 9, 9, 9, 9, 9]]:
        # The original looks for the end marker in the whole batch, and learns nothing where no row has one.
        wanted = [[-100, 9, 9, 9, 9, 9, 9, 9, 9]]
    mask = between(tokens, lengths, case["begin"], case["end"])
    learned = [row[1:].tolist() for row in np.split(np.where(mask, tokens, -100), np.cumsum(lengths)[:-1])]
    assert learned == wanted


def test_markers_of_one_token_and_empty_documents() -> None:
    with pytest.raises(ConfigError):
        between(np.zeros(0, np.int64), np.zeros(0, np.int64), 1, 1)
    mask = between(np.asarray([1, 5, 2, 7, 1, 8]), np.asarray([0, 4, 0, 2, 0]), 1, 2)
    assert mask.tolist() == [False, True, False, False, False, True]
