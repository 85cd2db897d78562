"""A small tokenizer of every kind, 2,000 texts, and the ids that the original libraries give.

``python -m helpers.tokenizer_kinds FILE`` records the ids with tiktoken, mistral-common, transformers and sentencepiece
(as hashes of a hundred texts each), where these are installed: it keeps the other entries of the file.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import xxhash

from feedmill.tokens.kinds.ranks import CL100K, O200K, spelling

GOLDEN = Path(__file__).parents[1] / "golden"
KINDS = GOLDEN / "tokenizers"
BASE = GOLDEN / "nanosets/tok1k/tokenizer.json"
CHUNK = 100

_PROSE = (
    "The quick brown fox jumps over the lazy dog, and it didn't look back.",
    "Große Füße, schöne Grüße: der Weg ist das Ziel; ſtraße.",
    "L'été dernier, nous sommes allés à la plage où il faisait très chaud.",
    "Быстрая коричневая лиса перепрыгивает через ленивую собаку.",
    "Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.",
    "敏捷的棕色狐狸跳过懒狗。今天天气很好，我们去公园吧！",
    "いろはにほへと ちりぬるを。カタカナとひらがな、ｶﾅ半角。",
    "다람쥐 헌 쳇바퀴에 타고파. 안녕하세요 세계!",
    "الثعلب البني السريع يقفز فوق الكلب الكسول ١٢٣",
    "השועל החום המהיר קופץ מעל הכלב העצלן",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। १२३",
    "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ",
    "Tiếng Việt có dấu: một con cáo nâu nhanh nhẹn, e\u0302\u0301.",
    "İstanbul'da ılık bir gün, IĞDIR ışıkları.",
)
_CODE = (
    "def f(x: int = 0x1F) -> None:\n\treturn [i ** 2 for i in range(x) if i % 3 != 0]\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 1.5e-3f; }  // sum\r\n",
    '{"key": [1, 2.50, null, true], "s": "a\\"b\\n"}',
    "SELECT COUNT(*) FROM t WHERE x_1 >= 10 AND name LIKE '%ab''c%';",
    "<div class='x'>&nbsp;&#128512;</div><!-- c -->",
    "    if x:\n        y()\n\n\n    else:\n\t\tz()",
    "$ git commit -m 'fix: CamelCase HTTPServer2' && echo ${HOME}/bin\\n",
)
_SPACE = (
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\xa0",
    "\u3000",
    "\u2028",
    "\u200b",
    " \n \n",
    "\x0b\x0c",
    "\x1c\x85",
)
_EMOJI = ("👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "😀", "☺️", "𝒳𝓎", "𐍈", "𠜎")
_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<s>", "</s>", "<unk>", "<pad>", "<mask>",
    "[INST]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "<|tool|>", "<word>", "<0x0A>", "<|endoftext", "|>", "▁", "▁▁", "Ġ",
    "Ċ", "##ing", "[REFERENCE_DOC_1]",
)  # fmt: skip
_EDGE = (
    "\x00", "\x01\x1f", "\x7f\x80\x9f", "\ufeff", "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "\U000e0001", "\u0301",
    "\u200d", "\u202e", "\ufdd0", "ﬁ", "½", "²", "Ⅷ", "٣", "i̇", "ẛ̣", "\u1e9b\u0323", "ก็็็็", "z̷̛͍", "\u2060",
)  # fmt: skip
_POOLS = (_PROSE, _CODE, _SPACE, _EMOJI, _SPECIAL, _EDGE)


def texts(count: int = 2000) -> list[str]:
    """The same texts everywhere: each pool alone, then mixtures, long runs, numbers and random characters."""
    rng = random.Random(24)
    out = dict.fromkeys(["", *(text for pool in _POOLS for text in pool)])
    while len(out) < count:
        kind = rng.random()
        if kind < 0.7:
            parts = [rng.choice(rng.choice(_POOLS)) for _ in range(rng.randint(1, 8))]
            out[rng.choice(("", " ", "\n")).join(parts)] = None
        elif kind < 0.8:
            words = rng.choice(_PROSE).split()
            out[" ".join(rng.choice((str.upper, str.lower, str.title))(word) for word in words)] = None
        elif kind < 0.9:
            out[rng.choice(("a", " ", "\n", "0", "=", "é", "好", "👍", " the")) * rng.randint(1, 200)] = None
        else:
            ranges = ((0, 0x250), (0, 0xD800), (0xE000, 0x110000))
            codes = (rng.randrange(*rng.choice(ranges)) for _ in range(9))
            out["".join(map(chr, codes)) + str(rng.randrange(10**9))] = None
    return list(out)


def hashes(ids: Sequence[Sequence[int]]) -> list[str]:
    """Of the ids of each hundred texts."""
    return [
        xxhash.xxh3_64_hexdigest(json.dumps([list(map(int, one)) for one in ids[at : at + CHUNK]]).encode())
        for at in range(0, len(ids), CHUNK)
    ]


def _base() -> tuple[dict[str, Any], dict[bytes, int], list[tuple[str, str]]]:
    """The document of tok1k, its tokens as bytes by rank, and its merges."""
    document = json.loads(BASE.read_bytes())
    byte = {character: number for number, character in enumerate(spelling())}
    added = {token["content"] for token in document["added_tokens"]}
    names = sorted((i, name) for name, i in document["model"]["vocab"].items() if name not in added)
    merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in document["model"]["merges"]]
    tokens = [bytes(byte[c] for c in name) for _, name in names]
    tokens.sort(key=lambda token: token[0] if len(token) == 1 else 256)  # Mistral's are in this order
    return document, {token: rank for rank, token in enumerate(tokens)}, merges


def _tiktoken(folder: Path) -> Path:
    lines = (base64.b64encode(token) + f" {rank}\n".encode() for token, rank in _base()[1].items())
    (folder / "small.tiktoken").write_bytes(b"".join(lines))
    listed = {str(1100 + number): {"content": name, "special": True} for number, name in enumerate(_SPECIAL[:4])}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))
    return folder / "small.tiktoken"


def _tekken(folder: Path) -> Path:
    ranks = _base()[1]
    names = {rank: base64.b64encode(token).decode() for token, rank in ranks.items()}
    vocab = [{"rank": rank, "token_bytes": names[rank], "token_str": None} for rank in sorted(names)]
    config = {
        "pattern": O200K.replace("{1,3}", ""),
        "num_vocab_tokens": len(vocab),
        "default_vocab_size": len(vocab) - 50 + 30,
        "default_num_special_tokens": 30,
        "version": "v3",
    }
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab}))
    return folder / "tekken.json"


def _slow(folder: Path, settings: dict[str, Any] | None, extra: Sequence[str] = (), **files: Any) -> Path:
    document, _, merges = _base()
    vocab = dict(document["model"]["vocab"])
    vocab |= {name: number for number, name in enumerate(extra, max(vocab.values()) + 1)}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), "utf-8")
    for name, content in {"tokenizer_config": settings, **files}.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def _words(folder: Path, settings: dict[str, Any] | None, **files: Any) -> Path:
    characters = sorted(
        {c for text in (*_PROSE, *_CODE) for c in (text, text.lower()) for c in unicodedata.normalize("NFD", c)}
    )
    words = sorted({word for text in _PROSE[:4] for word in text.lower().split()})
    single = [c for c in characters if not c.isspace()]
    lines = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *single,
        *(f"##{c}" for c in single),
        "##ing",
        "##er",
        *words,
    ]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(lines)) + "\n", "utf-8")
    for name, content in {"tokenizer_config": settings, **files}.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def _json(folder: Path, settings: dict[str, Any], base: Path | None = None, **files: Any) -> Path:
    if base is None:
        shutil.copy(BASE, folder / "tokenizer.json")
    for name, content in {"tokenizer_config": settings, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def _bert_json(folder: Path) -> Path:
    """A tokenizer.json that keeps case, with settings that do not."""
    from feedmill.tokens.kinds import slow

    _words(folder, {"tokenizer_class": "BertTokenizer", "do_lower_case": False})
    document = slow.document(folder / "vocab.txt")
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text(
        json.dumps({k: v for k, v in document.items() if k not in ("class", "tokens")})
    )
    return _json(folder, {"tokenizer_class": "BertTokenizerFast", "strip_accents": False}, folder)


def _llama(folder: Path, settings: dict[str, Any]) -> Path:
    shutil.copy(KINDS / "bpe.model", folder / "tokenizer.model")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


_LLAMA = {
    str(number): {"content": name, "special": True, "normalized": False, "lstrip": number == 2}
    for number, name in enumerate(("<unk>", "<s>", "</s>"))
} | {"620": {"content": "<|im_start|>", "special": True}}
_ADDED = {
    "1084": {"content": "<|tool|>", "lstrip": True, "rstrip": True, "special": True, "normalized": False},
    "1085": {"content": "<word>", "single_word": True, "special": False, "normalized": True},
    "0": {"content": "<|endoftext|>", "lstrip": True, "special": True, "normalized": False},
}
_PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}
MADE: dict[str, Callable[[Path], Path]] = {
    "tiktoken": _tiktoken,
    "tekken": _tekken,
    "sentencepiece bpe": lambda folder: KINDS / "bpe.model",
    "sentencepiece unigram": lambda folder: KINDS / "unigram.model",
    "gpt2": lambda folder: _slow(folder, {"tokenizer_class": "GPT2Tokenizer"}),
    "gpt2 with settings": lambda folder: _slow(
        folder,
        {
            "tokenizer_class": "GPT2Tokenizer",
            "add_bos_token": True,
            "add_prefix_space": True,
            "bos_token": "<|im_start|>",
        },
        added_tokens={"<|tool|>": 1085, "<word>": 1084},
        special_tokens_map={
            "additional_special_tokens": ["<|tool|>"],
            "pad_token": {"content": "<pad>", "rstrip": True},
        },
    ),
    "gpt2 by model type": lambda folder: _slow(folder, None, config={"model_type": "gpt2"}),
    "bert": lambda folder: _words(folder, {"tokenizer_class": "BertTokenizer"}),
    "bert with case": lambda folder: _words(
        folder,
        {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": False,
            "tokenize_chinese_chars": False,
            "strip_accents": True,
        },
        added_tokens={"<|tool|>": 4000},
    ),
    "electra": lambda folder: _words(folder, {"tokenizer_class": "ElectraTokenizer"}),
    "llama": lambda folder: _llama(folder, {"tokenizer_class": "LlamaTokenizer"}),
    "llama, not legacy": lambda folder: _llama(
        folder, {"tokenizer_class": "LlamaTokenizerFast", "legacy": False, "added_tokens_decoder": _LLAMA}
    ),
    "json, added tokens": lambda folder: _json(folder, _PLAIN | {"added_tokens_decoder": _ADDED}),
    "json, roles": lambda folder: _json(
        folder, _PLAIN | {"additional_special_tokens": ["<|tool|>"], "unk_token": "<unk>"}
    ),
    "json, map": lambda folder: _json(
        folder, _PLAIN, special_tokens_map={"bos_token": {"content": "<s>", "lstrip": True}, "sep_token": "<word>"}
    ),
    "json, Llama": lambda folder: _json(folder, {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<|im_start|>"}),
    "json, prefix space": lambda folder: _json(folder, _PLAIN | {"add_prefix_space": True}),
    "json, Bert": _bert_json,
}
"""Name -> a function that makes the tokenizer in an empty folder and returns its path."""
PATTERN = {"tiktoken": CL100K}
SOURCE = {"llama": "class", "llama, not legacy": "class"}
"""Name -> template source, unless it is ``auto``. These have no template: it is in the texts."""
DIFFERENT = ("json, Llama", "json, prefix space")
"""Kinds that releases 4 and 5 of transformers read differently."""


def original(name: str, path: Path, given: list[str]) -> list[list[int]]:
    """The ids by the original library. Raises ImportError where it is not installed."""
    if name == "tiktoken":
        import tiktoken

        ranks = {base64.b64decode(a): int(b) for a, b in map(bytes.split, path.read_bytes().splitlines())}
        listed = json.loads((path.parent / "tokenizer_config.json").read_bytes())["added_tokens_decoder"]
        special = {token["content"]: int(number) for number, token in listed.items()}
        model = tiktoken.Encoding(name, pat_str=PATTERN[name], mergeable_ranks=ranks, special_tokens=special)
        return [model.encode(text, allowed_special="all") for text in given]
    if name == "tekken":
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        tekken = Tekkenizer.from_file(path)
        return [tekken.encode(text, bos=False, eos=False) for text in given]
    if name.startswith("sentencepiece"):
        from sentencepiece import SentencePieceProcessor

        return SentencePieceProcessor(model_file=str(path)).Encode(given)
    if not version("transformers").startswith("4."):
        raise ImportError(f"transformers {version('transformers')} is not 4.57")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(path))
    found: list[list[int]] = tokenizer(given, add_special_tokens=name not in SOURCE)["input_ids"]
    return found


def record(path: Path, folder: Path) -> None:
    """Record the ids of all kinds whose library is installed."""
    known = json.loads(path.read_text()) if path.exists() else {}
    for name, make in MADE.items():
        (folder / name).mkdir()
        try:
            known[name] = hashes(original(name, make(folder / name), texts()))
        except ImportError as error:
            print(f"{name}: {error}")
    packages = ("tiktoken", "mistral_common", "transformers", "tokenizers", "sentencepiece")
    known["versions"] = {package: version(package) for package in packages}
    path.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        record(Path(sys.argv[1]), Path(made))
