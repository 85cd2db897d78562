"""Token files know where their tokenizer is, from any working folder, after a move, and in outputs made of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError, NotFound
from feedmill.samples.preview import token_text
from feedmill.tokens.verbs.decode import decode
from feedmill.tokens.verbs.tokenize import tokenize
from helpers.tokenizer_data import loaded, tokenizer_file, write_lines

TEXTS = ["Hello, world", "the second document", "and a third"]
FORMATS = {"pbin": ".pbin", "ds": ".ds", "megatron": ".idx", "dolma": ".npy"}


def texts_of(path: Path) -> list[str]:
    return [each.text.removesuffix("<|endoftext|>") for each in decode(path)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tokenizer and documents, which is the working folder."""
    (tmp_path / "home/data").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(tokenizer_file("tok1k"), tmp_path / "home/tokenizer.json")
    write_lines(tmp_path / "home/a.jsonl", TEXTS)
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "home"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("given", ["tokenizer.json", ".", "absolute"])
def test_tokens_of_each_format_are_decoded_from_any_folder(
    format: str, given: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(home / "tokenizer.json") if given == "absolute" else given
    tokenize(["a.jsonl"], "data/a", tokenizer=name, formats=[format], workers=1, eos="<|endoftext|>")
    made = home / f"data/a{FORMATS[format]}"
    manifest = json.loads(Path(f"{made}.feedmill.json").read_text())["tokenizer"]
    assert manifest["name"] == name and manifest["path"] == ("../tokenizer.json" if given != "." else "..")
    for folder in (home, home / "data", home.parent / "elsewhere"):
        monkeypatch.chdir(folder)
        assert texts_of(made) == TEXTS
        dataset = fm.open(made)
        assert "Hello, world" in token_text(dataset, dataset[0])


def test_a_folder_that_was_moved_with_its_tokenizer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize(["a.jsonl"], "data/a", tokenizer=home / "tokenizer.json", workers=1, eos="<|endoftext|>")
    monkeypatch.chdir(home.parent)
    (home.parent / "home").rename(home.parent / "moved")
    assert texts_of(Path("moved/data/a.pbin")) == TEXTS
    Path("moved/tokenizer.json").rename("moved/data/tokenizer.json")  # beside the tokens
    assert texts_of(Path("moved/data/a.pbin")) == TEXTS
    Path("link").symlink_to("moved/data")
    assert texts_of(Path("link/a.pbin")) == TEXTS


def test_a_folder_behind_a_link(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.parent / "disk/deep/down").mkdir(parents=True)
    (home / "link").symlink_to(home.parent / "disk/deep/down")
    tokenize(["a.jsonl"], "link/a", tokenizer="tokenizer.json", workers=1, eos="<|endoftext|>")
    monkeypatch.chdir(home.parent / "elsewhere")
    assert texts_of(home / "link/a.pbin") == texts_of(home.parent / "disk/deep/down/a.pbin") == TEXTS


def test_outputs_made_of_token_files_know_it_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize(["a.jsonl"], "data/a", tokenizer="tokenizer.json", workers=1, eos="<|endoftext|>")
    (home / "out/deep").mkdir(parents=True)
    fm.tokens.merge(["data/a.pbin"], "out/deep/merged.pbin", progress=False)
    fm.tokens.shuffle(["data/a.pbin"], "out/shuffled.ds", progress=False)
    fm.convert("data/a.pbin", "out/converted", to="megatron", progress=False)
    monkeypatch.chdir(home.parent / "elsewhere")
    assert texts_of(home / "out/deep/merged.pbin") == TEXTS
    assert sorted(texts_of(home / "out/shuffled.ds")) == sorted(TEXTS)
    (converted,) = (home / "out/converted").glob("*.idx")
    assert texts_of(converted) == TEXTS


def test_outputs_keep_the_settings_that_load_it(home: Path) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": ["<|tool|>"]}
    (home / "tokenizer_config.json").write_text(json.dumps(settings))
    write_lines(home / "b.jsonl", ["a<|tool|>b"])
    tokenize(["b.jsonl"], "data/b", tokenizer=".", workers=1, eos="<|endoftext|>")
    fm.tokens.merge(["data/b.pbin"], "data/merged.pbin", progress=False)
    assert texts_of(home / "data/b.pbin") == texts_of(home / "data/merged.pbin") == ["a<|tool|>b"]


def test_the_message_says_where_it_was_looked_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize(["a.jsonl"], "data/a", tokenizer="tokenizer.json", workers=1, eos="<|endoftext|>")
    kept = (home / "tokenizer.json").rename(home.parent / "kept.json")
    places = rf"as {home}/tokenizer.json and as .*/data/tokenizer.json, and in the Hugging Face cache. .*--tokenizer of"
    with pytest.raises(NotFound, match=places):
        decode(home / "data/a.pbin")
    dataset = fm.open(home / "data/a.pbin")
    assert "'feedmill serve'" in token_text(dataset, dataset[0])
    words = ["tokens", "decode", str(home / "data/a.pbin"), "--tokenizer", str(kept)]
    assert "Hello, world" in CliRunner().invoke(app, words).output
    monkeypatch.chdir(home.parent / "elsewhere")
    (home.parent / "elsewhere/tokenizer.json").write_bytes(tokenizer_file("tok1k_bos").read_bytes())
    with pytest.raises(ConfigError, match=rf"another tokenizer: .* not {loaded('tok1k_bos').hash[:8]} \(tokenizer"):
        decode(home / "data/a.pbin")
    shutil.copy(kept, home / "data/tokenizer.json")  # another one of the same name does not hide it
    assert texts_of(home / "data/a.pbin") == TEXTS


def test_a_name_in_the_cache_stays_a_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = home.parent / "hf/hub/models--org--name"
    (model / "snapshots/0123456789").mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs/main").write_text("0123456789")
    (home / "tokenizer.json").rename(model / "snapshots/0123456789/tokenizer.json")
    tokenize(["a.jsonl"], "data/a", tokenizer="org/name", workers=1, eos="<|endoftext|>")
    manifest = json.loads((home / "data/a.pbin.feedmill.json").read_text())["tokenizer"]
    assert manifest["name"] == "org/name" and "path" not in manifest
    monkeypatch.chdir(home.parent / "elsewhere")
    assert texts_of(home / "data/a.pbin") == TEXTS
