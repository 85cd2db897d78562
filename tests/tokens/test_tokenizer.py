from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from feedmill.errors import ConfigError, MissingExtra, NotFound
from feedmill.tokens import engines, tokenizer
from feedmill.tokens.tokenizer import load_tokenizer
from feedmill.tokens.verbs.tokenize import tokenize
from helpers.tokenizer_data import EOS, loaded, pbin_documents, tokenizer_file, write_lines


def test_what_is_known_of_a_tokenizer() -> None:
    found = loaded("tok1k")
    assert (found.backend, found.fallback, found.vocab_size, found.base_vocab_size) == ("fastokens", None, 1084, 1084)
    assert found.declared_eos == EOS and found.token_to_id(EOS) == 0 and found.token_to_id("nothing") is None
    assert set(found.special_tokens()) >= {EOS, "<|im_start|>"}
    assert loaded("tok66k").size > 65_536
    facts = found.facts()
    assert facts.hash == found.hash and facts.backend == "fastokens" and "fastokens" in facts.versions
    assert loaded("tok1k", "hf").hash == found.hash and loaded("tok1k_bos").hash != found.hash


def test_a_small_file_is_tokenized_without_what_it_does_not_need(tmp_path: Path) -> None:
    """A third of a short command is imports: this is what came in unnoticed before."""
    write_lines(tmp_path / "a.jsonl", ["one", "two"])
    loaded("tok1k")  # keeps its verdict
    words = ["tokenize", tmp_path / "a.jsonl", "-o", tmp_path / "a", "-t", tokenizer_file("tok1k"), "--workers", "1"]
    code = (
        f"import sys; sys.argv = ['feedmill', *{[*map(str, words)]!r}]\n"
        "from feedmill.cli.app import main; main()\n"
        "heavy = {'multiprocessing', 'concurrent.futures.process', 'importlib.metadata', 'tarfile', 'secrets'}\n"
        "own = {name for name in sys.modules if name.startswith('feedmill.')}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "parts = ('jobs.pool', 'documents.columns', 'documents.expressions', 'tokens.chat', 'formats.arrowtypes')\n"
        "left = [name for name in own if name.startswith(tuple(f'feedmill.{part}' for part in parts))]\n"
        "assert not left and len(own) <= 160, (left, len(own))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_document_is_read_but_for_its_merges() -> None:
    for name in ("tok1k", "tok1k_bos"):
        data = tokenizer_file(name).read_bytes()
        whole, read = json.loads(data), engines._document(data)
        assert json.loads(orjson.dumps(read)) == whole
        assert isinstance(read["model"].pop("merges"), orjson.Fragment) and whole["model"].pop("merges")
        assert read == whole
    for broken in (b"[]", b"{", b'{"model": 1}', b'{"model": {"vocab": {}}}', b"\xff"):
        with pytest.raises(ConfigError, match=r"not a tokenizer.json") if broken[-2:] != b"}}" else nullcontext():
            engines.read_vocabulary(Path("tokenizer.json"), broken)


@pytest.mark.parametrize("package", ["fastokens", "tokenizers", "regex", "none-such"])
def test_the_version_of_a_package_is_that_of_its_metadata(package: str) -> None:
    try:
        wanted = metadata.version(package)
    except metadata.PackageNotFoundError:
        wanted = "unknown"
    assert tokenizer._version(package) == wanted


@pytest.mark.parametrize("backend", ["fastokens", "hf"])
def test_there_and_back(backend: str) -> None:
    model = loaded("tok1k", backend)
    texts = ["Hello, world", "ünïcode 日本 👍", "\n\t  spaces  ", EOS]
    ids, lengths = model.encode(texts)
    assert ids.dtype == np.uint32 and lengths.dtype == np.int64
    for text, part in zip(texts, np.split(ids, np.cumsum(lengths)[:-1]), strict=True):
        assert model.decode(part) == text
    assert model.decode(ids[-1:], skip_special=True) == ""
    assert [len(part) for part in model.encode([])] == [0, 0]


def test_settings_of_a_training_run_do_not_cut_documents(tmp_path: Path) -> None:
    document = json.loads(tokenizer_file("tok1k").read_text())
    document["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    document["padding"] = {
        "strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": EOS,
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    for backend in ("fastokens", "hf"):
        model = load_tokenizer(tmp_path, backend)  # type: ignore[arg-type]
        assert model.encode(["one two three four five six seven"]).lengths > 4
        assert model.encode(["a"]).lengths == 1


def test_the_reference_takes_over_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path))  # which has no verdict
    path = tokenizer_file("tok1k")
    monkeypatch.setattr(tokenizer, "differences", lambda engine, reference, **options: ["odd text"])
    found = load_tokenizer(path)
    assert found.backend == "hf" and "differ on 1" in str(found.fallback)
    with pytest.raises(ConfigError, match="differ"):
        load_tokenizer(path, "fastokens")
    monkeypatch.setitem(sys.modules, "fastokens._native", None)
    found = load_tokenizer(path)
    assert found.backend == "hf" and "not installed" in str(found.fallback)
    with pytest.raises(MissingExtra):
        load_tokenizer(path, "fastokens")


def test_without_the_reference_there_is_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert load_tokenizer(tokenizer_file("tok1k")).backend == "fastokens"
    with pytest.raises(MissingExtra, match="tokenizers"):
        load_tokenizer(tokenizer_file("tok1k"), "hf")


def test_what_is_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not looked up"):
        load_tokenizer("gpt2")
    with pytest.raises(NotFound, match="the folder has no tokenizer"):
        load_tokenizer(tmp_path)
    for content in (b"{}", b"no", b"[]", b'{"model": {"vocab": 3}}', b'{"model": {"vocab": {"a": 0}, "type": "BPE"}}'):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(ConfigError, match=r"this is not a tokenizer"):
            load_tokenizer(tmp_path)
    wrong: Any = "quick"
    with pytest.raises(ConfigError, match="unknown tokenizer backend"):
        load_tokenizer(tmp_path, wrong)


def test_an_end_that_nobody_names(tmp_path: Path) -> None:
    shutil.copy(tokenizer_file("tok1k"), tmp_path / "tokenizer.json")
    source = write_lines(tmp_path / "a.jsonl", ["x"])
    with pytest.raises(ConfigError, match="'--eos TOKEN'"):
        tokenize([source], tmp_path / "a", tokenizer=tmp_path, workers=1)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    report = tokenize([source], tmp_path / "a", tokenizer=tmp_path, workers=1)
    assert report.eos == "<|im_end|>"


def test_sentencepiece(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    words = write_lines(tmp_path / "w.jsonl", [f"some words to learn from number {i}, and more" for i in range(200)])
    sentencepiece.SentencePieceTrainer.train(
        input=str(words), model_prefix=str(tmp_path / "m"), vocab_size=60, model_type="bpe", minloglevel=2
    )
    found = load_tokenizer(tmp_path / "m.model")
    assert (found.backend, found.vocab_size, found.declared_eos) == ("sentencepiece", 60, "</s>")
    assert found.decode(found.encode(["some words"]).ids) == "some words"
    source = write_lines(tmp_path / "a.jsonl", ["some words", "and more"])
    for workers in (1, 2):
        tokenize([source], tmp_path / f"a{workers}", tokenizer=tmp_path / "m.model", workers=workers, unit_bytes=10)
        documents = pbin_documents(tmp_path / f"a{workers}.pbin")
        assert [found.decode(ids) for ids in documents] == ["some words", "and more"]
        assert all(ids[-1] == found.require("</s>") for ids in documents)
    with pytest.raises(ConfigError, match="SentencePiece model"):
        load_tokenizer(tmp_path / "m.model", "hf")
    with pytest.raises(ConfigError, match=r"a tokenizer\.json"):
        load_tokenizer(tokenizer_file("tok1k"), "sentencepiece")
    (tmp_path / "bad.model").write_bytes(b"no")
    with pytest.raises(ConfigError, match="not a SentencePiece model"):
        load_tokenizer(tmp_path / "bad.model")
