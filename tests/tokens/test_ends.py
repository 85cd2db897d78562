"""EOS and BOS mean the same in Python, recipes and commands: auto, nothing, or a special token."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError
from feedmill.tokens.datatrove_tasks import deal_files, tokenize_dealt
from feedmill.tokens.tokenizer import declare_eos, ends_of, load_tokenizer

WORDS = ["<unk>", "hello", "none", "null", "false", "auto", "the", "~", "</s>", "<s>", "<sep>"]
HELLO, THE, EOS, BOS, SEP = (WORDS.index(word) for word in ("hello", "the", "</s>", "<s>", "<sep>"))
NOTHING = ("none", "None", "NONE", "null", "Null", "false", "False", "~")


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tokenizer whose words include those that mean no token."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    monkeypatch.chdir(tmp_path)
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["</s>", "<s>"])
    made.add_tokens([AddedToken("<sep>", normalized=False)])
    (tmp_path / "tok").mkdir()
    made.save("tok/tokenizer.json")
    config = {"eos_token": "</s>", "bos_token": "<s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "tok/tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "d.jsonl").write_text('{"text": "hello"}\n')
    return tmp_path / "tok"


def by_python(**ends: Any) -> list[int]:
    fm.tokenize("d.jsonl", "a", tokenizer="tok", overwrite=True, progress=False, workers=1, **ends)
    return fm.open("a.pbin")[0]["input_ids"].tolist()  # type: ignore[no-any-return]


def by_recipe(**ends: Any) -> list[int]:
    source = {"path": "d.jsonl", "tokenize": {"tokenizer": "tok", **ends}}
    plan = fm.Recipe.parse({"source": source, "epochs": 1, "pack": {"seq_len": 4}}).plan()
    row = plan.read([0])[0]
    return row["input_ids"][: row["tokens"]].tolist()  # type: ignore[no-any-return]


def by_command(**ends: Any) -> list[int]:
    words = [word for name, value in ends.items() for word in (f"--{name}", str(value))]
    done = CliRunner().invoke(app, ["tokenize", "d.jsonl", "-o", "b", "-t", "tok", "--overwrite", *words])
    if done.exit_code:
        raise ConfigError(done.output, kind="unknown-token")
    return fm.open("b.pbin")[0]["input_ids"].tolist()  # type: ignore[no-any-return]


DOORS = {"python": by_python, "recipe": by_recipe, "command": by_command}


@pytest.mark.parametrize("door", DOORS)
def test_the_same_words_mean_no_token_on_every_door(door: str, tokenizer: Path) -> None:
    typed: tuple[Any, ...] = () if door == "command" else (None, False)
    for value in (*NOTHING, *typed):
        assert DOORS[door](eos=value, bos=value) == [HELLO], value
    assert DOORS[door](eos="auto", bos="auto") == [BOS, HELLO, EOS]
    assert DOORS[door](eos="<sep>", bos="none") == [HELLO, SEP]  # added, but not special


@pytest.mark.parametrize("value", ["the", "hello"])
def test_an_ordinary_word_is_refused_on_every_door(value: str, tokenizer: Path) -> None:
    for name in ("eos", "bos"):
        for door in DOORS.values():
            with pytest.raises(ConfigError, match=f"the {name.upper()} '{value}' is an ordinary token") as error:
                door(**{name: value})
            assert error.value.kind == "unknown-token" and "Special tokens of the tokenizer: </s>, <s>." in str(
                error.value
            )
    declared = json.loads((tokenizer / "tokenizer_config.json").read_text()) | {"eos_token": "the"}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(declared))
    assert by_python(eos="the") == by_python() == [HELLO, THE]


def test_values_that_are_no_tokens(tokenizer: Path) -> None:
    with pytest.raises(ConfigError, match="eos is True: expected a token as text"):
        by_python(eos=True)
    with pytest.raises(ConfigError, match="eos is 3: expected a token as text"):
        by_python(eos=3)
    (tokenizer / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError, match=r"do not define a BOS token.*'--bos TOKEN' .*'none' stands for no token"):
        by_python(eos="</s>", bos="auto")


def test_configurations_of_other_programs_name_any_token_with_a_warning(
    tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_tokenizer(tokenizer)
    with caplog.at_level(logging.WARNING, "feedmill"):
        declare_eos(loaded, "</s>")
        assert not caplog.records
        declare_eos(loaded, "none")  # the word: their configurations have no such value
    assert "the EOS 'none' is an ordinary token" in caplog.text
    assert ends_of(loaded, None, "auto").eos_id == WORDS.index("none")
    with pytest.raises(ConfigError, match="no EOS 'other'"):
        declare_eos(loaded, "other")
    tasks, _ = deal_files("d.jsonl", 1, None)
    tokenize_dealt(tasks, "out", tokenizer="tok", eos="the", progress=False)
    assert fm.open("out/00000_unshuffled.ds")[0]["input_ids"].tolist() == [HELLO, THE]


def test_a_rule_of_the_loss_means_the_same_in_python_and_commands(tokenizer: Path) -> None:
    row = {"text": "hello the hello", "no_loss_ranges": [[10, 15]]}  # datatrove drops the rest of such a document
    Path("d.jsonl").write_text(json.dumps(row) + "\n")
    words = {"mask": [HELLO, THE, HELLO, EOS], "datatrove": [HELLO, THE], "none": [HELLO, THE, HELLO, EOS]}
    for rule, ids in words.items():
        for door in ("python", "command"):
            assert DOORS[door](loss=rule) == ids, (rule, door)
            mask = "loss_mask" in fm.open("a.pbin" if door == "python" else "b.pbin")[0]
            assert mask == (rule != "none")
    assert by_python(loss=True, loss_rule="datatrove") == words["datatrove"] and by_python(loss=None) == words["none"]
    for door in (by_python, by_command):
        with pytest.raises(ConfigError, match="unknown value 'other'"):
            door(loss="other")
