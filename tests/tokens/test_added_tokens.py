"""Added tokens with flags, that overlap or touch: no id differs from those of `tokenizers` in silence."""

from __future__ import annotations

import collections
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError
from feedmill.tokens.engines import HuggingFace
from feedmill.tokens.tokenizer import load_tokenizer
from helpers.durations import slow_but
from helpers.tokenizer_data import tokenizer_file

tokenizers = pytest.importorskip("tokenizers")

PARTS = (
    "a", "b", "c", "ab", "bc", "cab", "dog", "<s>", "</s>", "x<s>y", "<s>x", " ", "  ", "   ", "\n", "\t", "é", "É",
    "<|a|>", "|><|", "A", "AB", "1", "12", "é<", "▁", "Ġ", "’", "\u00a0", "ﬁ", "a b", " a", "a ", "日", "日本",
)  # fmt: skip
LETTERS = (*"abcdogxys<>/|1237ABÉé▁", *"日本\n\t ’ﬁ\u00a0i")
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))


def level(regex: bool, prefix: bool = False) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def some(chance: float, rng: random.Random) -> bool:
    return rng.random() < chance


def merges_of(rng: random.Random, vocab: dict[str, int], letters: str, count: int) -> list[list[str]]:
    found: list[list[str]] = []
    for _ in range(rng.randint(0, count)):
        one, two = rng.choice([*letters, *("".join(pair) for pair in found)]), rng.choice(letters)
        if one + two not in vocab:
            vocab[one + two] = len(vocab)
            found.append([one, two])
    return found


def byte_level(rng: random.Random) -> dict[str, Any]:
    vocab = {c: number for number, c in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    digits = {"type": "Digits", "individual_digits": True}
    words = [level(True, some(0.3, rng)), level(False)]
    words += [{"type": "Sequence", "pretokenizers": [first, level(False)]} for first in (split, digits)]
    return {
        "model": {"type": "BPE", "merges": merges_of(rng, vocab, "abcdogxyĠ<>|s", 8), "vocab": vocab}
        | {"ignore_merges": some(0.3, rng)},
        "pre_tokenizer": rng.choice(words),
        "normalizer": rng.choice([None] * 6 + [{"type": kind} for kind in ("NFC", "NFKC", "Lowercase")] + [SPACE]),
    }


def pieces(rng: random.Random) -> dict[str, Any]:
    """BPE of the kind of Llama 2."""
    vocab = {"<unk>": 0}
    if some(0.7, rng):
        vocab |= {f"<0x{number:02X}>": number + 1 for number in range(256)}
    vocab |= {c: len(vocab) + number for number, c in enumerate(LETTERS)}
    merges = merges_of(rng, vocab, "abcdogx▁s<", 10)
    scheme = {"type": "Metaspace", "replacement": "▁", "split": some(0.5, rng)}
    scheme["prepend_scheme"] = rng.choice(["first", "always", "never"])
    before = rng.choice([None, scheme])
    model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": "<0x00>" in vocab}
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, SPACE]}
    return {
        "model": model | {"vocab": vocab, "merges": merges},
        "pre_tokenizer": before,
        "normalizer": None if before else prepend,
    }


def word_piece(rng: random.Random) -> dict[str, Any]:
    vocab = {name: number for number, name in enumerate(["[UNK]", *LETTERS, *(f"##{c}" for c in LETTERS)])}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": vocab}
    normal = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    return {
        "model": model | {"max_input_chars_per_word": 100},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "normalizer": normal | {"lowercase": some(0.5, rng)},
    }


def unigram(rng: random.Random) -> dict[str, Any]:
    names = dict.fromkeys(["<unk>", *LETTERS, "▁a", "ab", "bc", "do", "▁▁"])
    words = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    vocab = [[name, -rng.random() * 5 - 1] for name in names]
    return {"model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}, "pre_tokenizer": words, "normalizer": None}


def drawn(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A random tokenizer.json with one to four added tokens."""
    make = rng.choice([byte_level] * 6 + [pieces] * 2 + [word_piece, unigram])
    document = make(rng)
    vocab = document["model"]["vocab"]
    known = vocab if isinstance(vocab, dict) else {name: number for number, (name, _) in enumerate(vocab)}
    names = {"<unk>": None} if make is pieces else {}
    for _ in range(rng.randint(1, 4)):
        names["".join(rng.choice(PARTS) for _ in range(1 if some(0.6, rng) else rng.randint(1, 3)))] = None
    added, following = [], len(known)
    for name in names:
        flags = {flag: some(0.25, rng) for flag in ("single_word", "lstrip", "rstrip")}
        flags |= {flag: some(0.5, rng) for flag in ("normalized", "special")}
        added.append({"id": known.get(name, following), "content": name, **flags})
        following += name not in known
    post = None
    if some(0.4, rng):
        name, number = added[0]["content"], added[0]["id"]
        single = [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        post = {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        }
        post["special_tokens"] = {name: {"id": name, "ids": [number], "tokens": [name]}}
    whole = {"version": "1.0", "truncation": None, "padding": None, "decoder": None, "post_processor": post}
    return make.__name__, whole | document | {"added_tokens": sorted(added, key=lambda token: token["id"])}


def texts(rng: random.Random, document: dict[str, Any]) -> list[str]:
    """Forty texts of its added tokens, parts of them, letters and blanks."""
    names = [token["content"] for token in document["added_tokens"]]
    pool = [*names * 4, *PARTS, *(name.upper() for name in names), *"abcdogxy   \n\t’é日", "  "]
    return ["".join(rng.choice(pool) for _ in range(rng.randint(1, 7))) for _ in range(40)]


def ids_of(encoded: Any) -> list[list[int]]:
    return [piece.tolist() for piece in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])]


@pytest.mark.parametrize("count", slow_but([40, 250], 40))
def test_no_id_of_random_tokenizers_differs_in_silence(count: int, tmp_path: Path) -> None:
    used: collections.Counter[tuple[str, str]] = collections.Counter()
    for seed in range(count):
        rng = random.Random(seed)
        kind, document = drawn(rng)
        path = tmp_path / f"{seed}/tokenizer.json"
        path.parent.mkdir()
        path.write_text(json.dumps(document))
        found = load_tokenizer(path)
        used[kind, found.backend] += 1
        assert (found.backend == "hf") == (found.fallback is not None)
        if found.backend == "hf":
            continue
        reference = HuggingFace(path)
        given = texts(rng, document)
        for found.template in (True, False):
            for found.ordinary in (True, False):
                template = found.template and found.around is not None
                wanted = reference.encode(given, template, found.ordinary)
                assert ids_of(found.encode(given)) == ids_of(wanted), (seed, document["added_tokens"])
    assert used["byte_level", "fastokens"] > count // 3 - 4, used  # the check does not only exclude the fast engine
    assert used["byte_level", "hf"] and used["pieces", "fastokens"], used


def special(*names: str, **flags: bool) -> list[dict[str, Any]]:
    given = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags
    return [{"content": name, **given} for name in names]


REAL = {
    "Llama 3": special(
        "<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>", *(f"<|reserved_special_token_{n}|>" for n in range(248))
    ),
    "Qwen 2.5": special("<|im_start|>", "<|im_end|>", "<|vision_pad|>")
    + special("<tool_call>", "</tool_call>", "<|fim_prefix|>", special=False),
    "GPT-NeoX": special("<|endoftext|>", "<|padding|>")
    + special(*(" " * n for n in range(2, 25)), special=False, normalized=True),
    "RoBERTa": special("<s>", "</s>", "<pad>") + special("<mask>", lstrip=True),
    "Phi 3": special("<s>", "<|placeholder1|>") + special("</s>", "<|assistant|>", "<|user|>", rstrip=True),
    "DeepSeek": special("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
    + special("<｜User｜>", "<｜Assistant｜>", special=False)
    + special(*(f"<｜place▁holder▁no▁{n}｜>" for n in range(800)), normalized=True),
    "Gemma 3": special("<pad>", "<bos>", "<start_of_turn>")
    + special(*("\n" * n for n in range(2, 31)), *("▁" * n for n in range(2, 31)), special=False)
    + special("<table>", "</table>", *(f"<unused{n}>" for n in range(6000)), special=False),
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_added_tokens_like_those_of_published_models_keep_the_fast_engine(name: str, tmp_path: Path) -> None:
    document = json.loads(tokenizer_file("tok1k").read_bytes())
    known = {token["content"] for token in document["added_tokens"]}
    new = [token for token in REAL[name] if token["content"] not in known]
    base = len(document["model"]["vocab"])
    document["added_tokens"] += [{"id": base + number, **token} for number, token in enumerate(new)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    found = load_tokenizer(tmp_path)
    assert (found.backend, found.fallback) == ("fastokens", None)


CASES = {
    "ab": (special("ab", normalized=True, special=False) + special("bc", special=False), "abc"),
    "rstrip": (special("<q>", rstrip=True) + special("  ", normalized=True, special=False), "<q>   a"),
    "single": (special("cab") + special("dog", normalized=True, single_word=True), "cabdog"),
    "inside": (special("x<q>y", normalized=True) + special("<q>"), "x<q>y"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_reference_encodes_added_tokens_on_which_the_engines_differ(name: str, tmp_path: Path) -> None:
    added, text = CASES[name]
    document = json.loads(tokenizer_file("tok1k").read_bytes())
    document["added_tokens"] += [{"id": 1084 + number, **token} for number, token in enumerate(added)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    found = load_tokenizer(tmp_path)
    assert found.backend == "hf" and ("differ on" in str(found.fallback) or "fails where" in str(found.fallback))
    assert ids_of(found.encode([text])) == ids_of(HuggingFace(tmp_path / "tokenizer.json").encode([text], True, False))
    with pytest.raises(ConfigError, match="--tokenizer-backend hf"):
        load_tokenizer(tmp_path, "fastokens")


def test_a_verdict_is_kept_so_that_the_reference_is_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feedmill.tokens import tokenizer

    path = tokenizer_file("tok1k")
    assert load_tokenizer(path).backend == "fastokens"
    asked: list[object] = []
    monkeypatch.setattr(tokenizer, "differences", lambda *args, **options: asked.append(args) or [])
    assert load_tokenizer(path).backend == "fastokens" and not asked
    monkeypatch.setattr(tokenizer, "CHECK", "other texts")
    assert load_tokenizer(path).backend == "fastokens" and len(asked) == 1
