"""Tokenizers of other kinds are refused with what they are; those that are read under another name are read."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest

from feedmill.errors import ConfigError, NotFound
from feedmill.tokens.tokenizer import load_tokenizer

TIKTOKEN = b"".join(base64.b64encode(bytes([i])) + f" {i}\n".encode() for i in range(256))
TEKKEN = json.dumps({"config": {}, "vocab": [{"rank": 0, "token_bytes": "AA==", "token_str": "a"}]}).encode()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("qwen.tiktoken", TIKTOKEN, "tiktoken file .*TikTokenConverter"),
        ("tokenizer.model", TIKTOKEN, "tiktoken file"),
        ("tekken.json", TEKKEN, "Mistral's tekken.json.*convert_tekken_tokenizer"),
    ],
)
def test_files_of_other_programs_are_named_with_the_way_to_convert_them(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    for given in (tmp_path / name, tmp_path):
        with pytest.raises(ConfigError, match=f"{name}: .*found .*{said}") as error:
            load_tokenizer(given)
        assert error.value.kind == "other-tokenizer-kind"


@pytest.mark.parametrize("names", [("vocab.json", "merges.txt"), ("vocab.txt",), ("spiece.model",)])
def test_folders_without_a_tokenizer_json_say_what_they_hold(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match=rf"expected.*{names[0]}.*save_pretrained\(NEW\)"):
        load_tokenizer(tmp_path)


def test_a_folder_with_nothing_of_the_kind_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"the folder has no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_sentencepiece_model_under_mistrals_name_is_read(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text").write_text("some words and some more words\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "t"), vocab_size=15, minloglevel=2
    )
    folder = tmp_path / "v3"
    folder.mkdir()
    shutil.copy(tmp_path / "t.model", folder / "tokenizer.model.v3")
    wanted = load_tokenizer(tmp_path / "t.model").encode(["some words"]).ids.tolist()
    for given in (folder, folder / "tokenizer.model.v3"):
        found = load_tokenizer(given)
        assert found.backend == "sentencepiece" and found.encode(["some words"]).ids.tolist() == wanted
        assert found.around is None and not found.template
