"""Which file a name stands for, what is wrong with files of each kind, and what a tokenizer of each kind can do."""

from __future__ import annotations

import base64
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tokens.manifest import read_manifest
from feedmill.storage import open_store
from feedmill.tokens.kinds.ranks import NAMED, RankEngine, Ranks, merged, name_of
from feedmill.tokens.tokenizer import load_tokenizer
from helpers.tokenizer_data import pbin_documents, tokenizer_file, write_lines
from helpers.tokenizer_kinds import KINDS, MADE

BYTES = b"".join(base64.b64encode(bytes([i])) + f" {i}\n".encode() for i in range(256))

TEKKEN = json.dumps(
    {"vocab": [{"rank": 0, "token_bytes": "AA=="}]}
    | {"config": {"default_num_special_tokens": 20, "default_vocab_size": 21, "pattern": 5}}
).encode()


def ids_of(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    ids, lengths = tokenizer.encode(texts)
    return [piece.tolist() for piece in np.split(ids, np.cumsum(lengths)[:-1])]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads the caches of this machine."""
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache/tokenizers"


def in_hub(cache: Path, name: str, revision: str = "0123456789abcdef") -> Path:
    """The snapshot folder of a model in a cache."""
    model = cache / f"models--{name.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs/main").write_text(revision)
    (model / "snapshots" / revision).mkdir(parents=True)
    return model / "snapshots" / revision


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE"])
def test_a_name_is_looked_for_in_the_cache_of_the_hub(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "here"))
    hub = tmp_path / ("here/hub" if variable == "HF_HOME" else "here")
    folder = in_hub(hub, "org/some-model")
    shutil.copy(tokenizer_file("tok1k"), folder / "tokenizer.json")
    found = load_tokenizer("org/some-model")
    assert (found.name, found.path) == ("org/some-model", folder / "tokenizer.json")
    with pytest.raises(NotFound, match=r"as a file or folder, and in the Hugging Face cache as .*models--org--other"):
        load_tokenizer("org/other")
    in_hub(hub, "empty")
    with pytest.raises(NotFound, match=r"the folder has no tokenizer: expected tokenizer.json, "):
        load_tokenizer("empty")
    (folder.parents[1] / "refs/main").write_text("../../..")
    with pytest.raises(NotFound, match="no files of this revision"):
        load_tokenizer("org/some-model")


def test_a_name_that_is_neither_a_file_nor_a_model(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"does not exist on this machine. Give one of tokenizer.json, a SentencePiece"):
        load_tokenizer(tmp_path / "nothing/here.json")


@pytest.mark.parametrize(
    ("name", "content", "pattern", "said"),
    [
        ("my.tiktoken", BYTES, None, "does not say how texts are split: .* my.tiktoken with 256.*--tokenizer-pattern"),
        ("tokenizer.model", BYTES, None, "found tokenizer.model with 256 tokens"),
        ("my.tiktoken", BYTES, "(", "not a regular expression"),
        ("my.tiktoken", BYTES, "cl100k", "unknown encoding 'cl100k'.*Did you mean 'cl100k_base'"),
        ("my.tiktoken", BYTES, "none", "unknown encoding 'none'.*Use one of gpt2"),
        ("my.tiktoken", BYTES.split(b"\n", 1)[1], "a", "not every byte is a token"),
        ("my.tiktoken", BYTES + b"AAA= 3\n", "a", "ranks are not different"),
        ("my.tiktoken", BYTES + b"AA*A 300\n", "a", "line 257 is not a token in base64"),
        ("tekken.json", b'{"vocab": [{"rank": 0, "token_bytes": "AA=="}]}', None, "not a tokenizer: KeyError"),
        ("tekken.json", TEKKEN, None, "not a tokenizer: TypeError: the pattern or a special token is not text"),
        ("tokenizer.json", b'{"model": 3}', "gpt2", "a pattern was given, but this is not a tiktoken file"),
        ("t.model", b"\x0a\x02", None, "not a SentencePiece model"),
        ("spiece.model", b"x", None, "found spiece.model, whose ids the model's class"),
        ("readme.md", b"x", None, "the folder has no tokenizer"),
    ],
)
def test_a_message_for_files_that_are_wrong(
    name: str, content: bytes, pattern: str | None, said: str, tmp_path: Path
) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / name).write_bytes(content)
    with pytest.raises((ConfigError, NotFound), match=said) as error:
        load_tokenizer(folder, pattern=pattern)
    assert "\n" not in str(error.value)


def test_several_files_in_a_folder_are_refused(tmp_path: Path) -> None:
    for name in ("a.tiktoken", "b.tiktoken"):
        (tmp_path / name).write_bytes(BYTES)
    with pytest.raises(ConfigError, match=r"several tokenizers: a.tiktoken, b.tiktoken"):
        load_tokenizer(tmp_path)


def test_a_folder_of_another_class_is_refused_with_those_that_are_read(tmp_path: Path) -> None:
    folder = MADE["gpt2"](tmp_path)
    for settings, config, said in (
        ({"tokenizer_class": "DebertaTokenizer"}, {}, "found DebertaTokenizer"),
        ({"tokenizer_class": "BertTokenizer"}, {}, "found BertTokenizer"),
        ({}, {"model_type": "blenderbot"}, "found that of blenderbot"),
        ({"tokenizer_class": "WhisperTokenizer"}, {}, "found WhisperTokenizer"),
        ({}, {"model_type": "roberta"}, "found RobertaTokenizer"),
    ):
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError, match=f"GPT2Tokenizer, .*; {said}"):
            load_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "config.json").write_text("{}")
    assert load_tokenizer(folder).settings == ["class GPT2Tokenizer of transformers 4.57"]
    (folder / "merges.txt").write_text("a b c\n")
    with pytest.raises(ConfigError, match=r"merges.txt: line 1 is not two tokens"):
        load_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True, "bos_token": "<s>"}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(ConfigError, match="the vocabulary lacks '<s>', the bos_token of GPT2Tokenizer"):
        load_tokenizer(folder)


def test_a_model_of_t5_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes((KINDS / "unigram.model").read_bytes())
    for settings in ({"tokenizer_class": "T5TokenizerFast"}, {"tokenizer_class": "MT5Tokenizer"}, {}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "umt5"}))
        for given in (tmp_path, tmp_path / "spiece.model"):
            with pytest.raises(ConfigError, match=r"found spiece\.model, whose ids .* writes a tokenizer\.json"):
                load_tokenizer(given)


def test_a_conversion_is_kept_and_a_corrupt_one_is_made_again(cache: Path, tmp_path: Path) -> None:
    path = MADE["tekken"](tmp_path)
    wanted = ids_of(load_tokenizer(path), ["some words"])
    (file,) = (path for path in cache.iterdir() if b'"BPE"' in path.read_bytes())  # the others are verdicts
    content, time = file.read_bytes(), file.stat().st_mtime_ns
    assert ids_of(load_tokenizer(path), ["some words"]) == wanted and file.stat().st_mtime_ns == time
    file.write_bytes(content.replace(b'"BPE"', b'"bpe"'))
    assert ids_of(load_tokenizer(path), ["some words"]) == wanted and file.read_bytes() == content


def test_the_reference_is_used_and_named_where_an_engine_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feedmill.tokens import tokenizer

    path = MADE["tekken"](tmp_path)
    monkeypatch.setattr(tokenizer, "differences", lambda *args, **options: ["odd text"])
    found = load_tokenizer(path)
    assert found.backend == "ranks" and str(found.fallback).count("differ on 1 of the self-check's texts") == 2
    with pytest.raises(ConfigError, match=r"tokenizers and the rule of the file differ .*--tokenizer-backend ranks"):
        load_tokenizer(path, "hf")
    with pytest.raises(ConfigError, match=r"a tekken.json, which the backend 'sentencepiece' cannot read"):
        load_tokenizer(path, "sentencepiece")
    with pytest.raises(ConfigError, match="cannot read: it is not a BPE model"):
        load_tokenizer(KINDS / "unigram.model", "hf")


@pytest.mark.parametrize("name", ["tiktoken", "tekken", "sentencepiece bpe", "gpt2", "bert"])
def test_text_comes_back_and_tokens_cover_it(name: str, tmp_path: Path) -> None:
    found = load_tokenizer(MADE[name](tmp_path), pattern="gpt2" if name == "tiktoken" else None)
    for text in ("hello, it is 12 words", "dog, and it didn't look"):
        ids, places = found.offsets(text)
        assert ids.tolist() == found.encode([text]).ids.tolist()
        assert found.decode(ids, skip_special=True) == text or name == "bert"
        covered = {at for begin, end in places.tolist() for at in range(begin, end)}
        assert covered >= {at for at, character in enumerate(text) if character != " "}
        assert covered <= set(range(len(text)))
    with pytest.raises((UnicodeEncodeError, TypeError)):
        found.encode(["lone \ud800"])


def test_an_offset_of_ranks_is_of_characters() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {"é".encode(): 256, "日".encode()[:2]: 257}
    engine = RankEngine(Path("x"), Ranks(ranks, r"\w+|\W+", {"<e>": 300}))
    ids, places = engine.offsets("aé日<e>", False, False)
    assert ids.tolist() == [97, 256, 257, 0xA5, 300]
    assert places.tolist() == [[0, 1], [1, 2], [2, 3], [2, 3], [3, 6]]


def test_ranks_are_joined_as_by_the_plain_rule() -> None:
    rng = np.random.default_rng(3)
    ranks = {bytes([byte]): byte for byte in range(256)}
    for _ in range(60):
        parts = list(ranks)
        a, b = (parts[int(rng.integers(97, 100) if rng.random() < 0.5 else rng.integers(len(parts)))] for _ in "ab")
        ranks.setdefault(a + b, len(ranks))
    for _ in range(300):
        word = bytes(rng.integers(97, 100, int(rng.integers(1, 30))).tolist())
        parts = [word[at : at + 1] for at in range(len(word))]
        while True:
            neighbors = enumerate(pairwise(parts))
            pairs = [(ranks[x + y], at) for at, (x, y) in neighbors if x + y in ranks]
            if not pairs:
                break
            at = min(pairs)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        assert merged(word, ranks) == ([ranks[word]] if word in ranks else [ranks[part] for part in parts])


def test_named_encodings_are_recognized_by_name_and_number_of_tokens() -> None:
    for name, known in NAMED.items():
        assert name_of(name, b"", known.tokens) == name and name_of(name, b"", known.tokens + 1) is None
        assert min(known.special.values()) >= known.tokens - 24 and known.eos in known.special
    assert name_of("tokenizer.model", b"", 128_000) == "llama3" and name_of("tokenizer.model", b"", 7) is None
    assert NAMED["llama3"].special["<|eot_id|>"] == 128_009 and len(NAMED["llama3"].special) == 256
    assert NAMED["qwen"].special["<|extra_204|>"] == 151_850


def test_tokenize_and_decode_with_a_pattern(tmp_path: Path) -> None:
    path, pattern = MADE["tiktoken"](tmp_path), r"\p{N}|\s?\p{L}+|[^\p{N}\p{L}]+"
    texts = ["some words", "<|endoftext|> and 12345"]
    words = ["tokenize", write_lines(tmp_path / "a.jsonl", texts), "-o", tmp_path / "a", "-t", path, "--eos", "none"]
    refused = CliRunner().invoke(app, [*map(str, words)])
    assert refused.exit_code == 1 and "--tokenizer-pattern" in refused.output
    done = CliRunner().invoke(app, [*map(str, words), "--tokenizer-pattern", pattern, "--workers", "2"])
    assert done.exit_code == 0, done.output
    assert "pattern given" in done.output and "the tokenizer has no template" in done.output
    documents = pbin_documents(tmp_path / "a.pbin")
    assert documents == ids_of(load_tokenizer(path, pattern=pattern), texts) and documents[1][0] == 1100
    manifest = read_manifest(open_store(tmp_path), "a.pbin")
    assert manifest is not None and manifest.tokenizer is not None
    assert manifest.tokenizer.settings["applied"] == ["pattern given"]
    shown = CliRunner().invoke(app, ["tokens", "decode", str(tmp_path / "a.pbin")])
    assert shown.exit_code == 0 and "<|endoftext|> and 12345" in shown.output


def test_a_sentencepiece_model_under_mistrals_name_is_read(tmp_path: Path) -> None:
    wanted = load_tokenizer(KINDS / "bpe.model").encode(["some words"]).ids.tolist()
    for name in ("tokenizer.model.v3", "mistral_instruct.model.v7"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(KINDS / "bpe.model", folder / name)
        for given in (folder, folder / name):
            found = load_tokenizer(given)
            assert found.backend == "fastokens" and found.encode(["some words"]).ids.tolist() == wanted
            assert found.around is None and not found.template
