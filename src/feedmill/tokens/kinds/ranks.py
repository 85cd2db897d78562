"""Byte-level BPE by ranks: tiktoken files (``.tiktoken``, Llama 3's ``tokenizer.model``) and Mistral's ``tekken.json``.

A text is split into words by a pattern. Within a word, of all neighboring tokens whose concatenation is a token, those
with the lowest rank are joined first, the leftmost of several.

    .tiktoken     one line per token: its bytes in base64, a space, its rank; a rank is an id
    tekken.json   ``vocab`` has the same, in order; an id is the rank plus the number of special tokens. Special tokens
                  in a text are plain text, and no template is applied

`RankEngine` does this in Python and is the reference. `document` gives the equivalent ``tokenizer.json`` for faster
engines, in which every way to join two tokens is a merge.

Patterns by which named encodings of tiktoken split texts, and their special tokens.

A ``.tiktoken`` file has only tokens and their ranks. The pattern that splits a text into words, and the special tokens,
are in the code of the program that uses the file. Patterns are written without possessive quantifiers, which not all
engines know; they match the same.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from feedmill.errors import ConfigError, suggestion
from feedmill.formats.tokens.base import Int64s
from feedmill.tokens.engines import Encoded, TokenizerEngine, Uint32s, Vocabulary

_CACHED = 1 << 18
_TEKKEN = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
]  # fmt: skip
"""Special tokens of files that list none (versions 3 and 7)."""


class Ranks(NamedTuple):
    """A vocabulary of ranks.

    Attributes:
        ranks: token -> rank.
        pattern: regular expression of the words.
        special: special tokens with their ids.
        bos, eos, unknown: some of them.
        first: id of the token with rank 0.
        plain: whether special tokens in a text are plain text.
        nfc: whether texts are normalized to NFC first.
        source: where the pattern is from, for reports; None if it is in the file.
    """

    ranks: dict[bytes, int]
    pattern: str
    special: dict[str, int]
    bos: str | None = None
    eos: str | None = None
    unknown: str | None = None
    first: int = 0
    plain: bool = False
    nfc: bool = False
    source: str | None = None


_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def read_tiktoken(path: Path, data: bytes, pattern: str | None, special: dict[str, int]) -> Ranks:
    """Return the vocabulary of a tiktoken file.

    Args:
        path, data: the file and its content.
        pattern: name of an encoding, or a regular expression; None to recognize the file.
        special: special tokens in the settings next to the file, which count if no encoding is named.

    Raises:
        ConfigError: the file is corrupt, or its pattern is unknown.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise _corrupt(path, f"line {number} is not a token in base64 and its rank") from None
    _check(path, ranks)
    name = pattern if pattern in NAMED else None
    source = "given"
    if pattern is None:
        name = name_of(path.name.removesuffix(".tiktoken"), data, len(ranks))
        source = "recognized"
        if name is None:
            raise ConfigError(
                "a tiktoken file does not say how texts are split: expected one whose name and number of tokens are"
                f" those of {', '.join(NAMED)}, found {path.name} with {len(ranks):,} tokens",
                file=str(path),
                kind="unsupported-tokenizer",
                fix="Pass the name of its encoding, or the regular expression of its program, with --tokenizer-pattern"
                " (in Python pattern=...).",
            )
    if name is None:
        assert pattern is not None
        if _WORD.fullmatch(pattern):
            raise ConfigError(
                f"unknown encoding {pattern!r}: a word is not a pattern that splits texts",
                file=str(path),
                kind="unsupported-tokenizer",
                fix=suggestion(pattern, NAMED, f"Use one of {', '.join(NAMED)}, or a regular expression."),
            )
        return Ranks(ranks, pattern, special, source="given")
    known = NAMED[name]
    special = {token: number for token, number in known.special.items() if number >= len(ranks)}
    return Ranks(ranks, known.pattern, special, known.bos, known.eos, nfc=known.nfc, source=f"{name}, {source}")


def read_tekken(path: Path, data: bytes) -> Ranks:
    """Return the vocabulary of a ``tekken.json``. Raises ConfigError."""
    try:
        document = orjson.loads(data)
        config = document["config"]
        reserved = int(config["default_num_special_tokens"])
        size = int(config["default_vocab_size"]) - reserved
        ranks = {base64.b64decode(entry["token_bytes"]): int(entry["rank"]) for entry in document["vocab"][:size]}
        listed = document.get("special_tokens")
        names = _TEKKEN if listed is None else [entry["token_str"] for entry in listed]
        pattern = config["pattern"]
        if not all(isinstance(text, str) for text in (pattern, *names)):
            raise TypeError("the pattern or a special token is not text")
    except (orjson.JSONDecodeError, binascii.Error, KeyError, TypeError, ValueError) as error:
        raise _corrupt(path, f"{type(error).__name__}: {error}") from None
    _check(path, ranks)
    if len(ranks) != size or len(names) > reserved:
        raise _corrupt(path, f"expected {size:,} tokens and up to {reserved:,} special ones, found {len(ranks):,}")
    special = {name: number for number, name in enumerate(names)}
    special |= {f"<SPECIAL_{number}>": number for number in range(len(names), reserved)}
    bos, eos, unknown = (name if name in special else None for name in ("<s>", "</s>", "<unk>"))
    return Ranks(ranks, pattern, special, bos, eos, unknown, reserved, plain=True)


def _check(path: Path, ranks: dict[bytes, int]) -> None:
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise _corrupt(path, "not every byte is a token")
    if len(set(ranks.values())) != len(ranks) or not 0 <= min(ranks.values()) <= max(ranks.values()) < 1 << 31:
        raise _corrupt(path, "ranks are not different numbers from 0 to 2^31 - 1")


def _corrupt(path: Path, what: str) -> ConfigError:
    return ConfigError(f"this is not a tokenizer: {what}", file=str(path), kind="bad-tokenizer")


def spelling() -> list[str]:
    """Return the characters that stand for the 256 bytes in a ``tokenizer.json``: printable ones for themselves."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in shown)
    out = {byte: chr(byte) for byte in shown} | {byte: chr(256 + number) for number, byte in enumerate(others)}
    return [out[byte] for byte in range(256)]


def spelled(ranks: dict[bytes, int]) -> dict[bytes, str]:
    """Return each token as it is written in a ``tokenizer.json``."""
    table = dict(enumerate(spelling()))
    return {token: token.decode("latin-1").translate(table) for token in ranks}


def vocabulary(model: Ranks) -> Vocabulary:
    """Return the vocabulary; tokens are written as in a ``tokenizer.json``."""
    names = spelled(model.ranks)
    ids = {names[token]: rank + model.first for token, rank in model.ranks.items()}
    found = Vocabulary(ids | model.special, len(ids), dict(model.special))
    found.bos, found.eos = model.bos, model.eos
    found.unknown = None if model.unknown is None else model.special[model.unknown]
    return found


def document(model: Ranks) -> bytes:
    """Return an equivalent ``tokenizer.json``."""
    ranks, names = model.ranks, spelled(model.ranks)
    merges: list[tuple[str, str]] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        halves = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = sorted((ranks[a], ranks[b], a, b) for a, b in halves if a in ranks and b in ranks)
        merges += ((names[a], names[b]) for _, _, a, b in pairs)
    # `tokenizers` numbers added tokens itself, except for those that the model has.
    vocabulary = {names[token]: rank + model.first for token, rank in ranks.items()}
    if not model.plain:
        vocabulary |= model.special
    unused = set(range(max(vocabulary.values()))).difference(vocabulary.values())  # fastokens wants every id once
    vocabulary |= {f"\0{number}": number for number in unused}  # no byte is written as this character
    added = [
        {"id": number, "content": token, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token, number in ({} if model.plain else model.special).items()
    ]
    split = {"type": "Split", "pattern": {"Regex": model.pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    bpe: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    bpe |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True}
    return orjson.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": {"type": "NFC"} if model.nfc else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": bpe | {"vocab": vocabulary, "merges": merges},
        }
    )


class RankEngine(TokenizerEngine):
    """The reference engine of `Ranks`, in Python: about 1 MB of text per second."""

    def __init__(self, path: Path, model: Ranks) -> None:
        import regex

        try:
            self._words = regex.compile(model.pattern)
        except regex.error as error:
            raise ConfigError(f"the pattern is not a regular expression: {error}", file=str(path)) from None
        names = sorted(model.special, key=len, reverse=True)
        self._special = regex.compile("|".join(map(regex.escape, names))) if names else None
        self._model = model
        self._tokens = {rank + model.first: token for token, rank in model.ranks.items()}
        self._names = {number: token.encode() for token, number in model.special.items()}
        self._cached: dict[str, list[int]] = {}

    def encode(self, texts: list[str], template: bool, ordinary: bool) -> Encoded:  # noqa: ARG002
        return Encoded.of([list(self._ids(text, ordinary)) for text in texts])

    def decode(self, ids: list[int], skip_special: bool) -> str:
        names = {} if skip_special else self._names
        return b"".join(self._tokens.get(i) or names.get(i, b"") for i in ids).decode("utf-8", "replace")

    def offsets(self, text: str, template: bool, ordinary: bool) -> tuple[Uint32s, Int64s]:
        """Return the ids of a text, and the characters that each token covers, in whole or in part."""
        own, before, after = composed(text) if self._model.nfc else (text, None, None)
        ids = self.encode([own], template, ordinary).ids
        ends = np.cumsum([len(self._tokens.get(i) or self._names[i]) for i in ids.tolist()], dtype=np.int64)
        starts = np.cumsum([len(character.encode()) for character in own], dtype=np.int64)
        begins = np.concatenate((np.zeros(min(len(ends), 1), np.int64), ends[:-1]))
        first = np.searchsorted(starts, begins, side="right")
        last = np.searchsorted(starts, ends - 1, side="right")
        if before is None or after is None:
            return ids, np.stack((first, last + 1), axis=1).astype(np.int64)
        return ids, np.stack((before[first], after[last]), axis=1)

    def _ids(self, text: str, ordinary: bool) -> Iterator[int]:
        if self._model.nfc:
            text = unicodedata.normalize("NFC", text)
        text.encode()  # raises UnicodeEncodeError for lone surrogates, as the other engines do
        if ordinary or self._model.plain or self._special is None:
            yield from self._plain(text)
            return
        at = 0
        for match in self._special.finditer(text):
            yield from self._plain(text[at : match.start()])
            yield self._model.special[match[0]]
            at = match.end()
        yield from self._plain(text[at:])

    def _plain(self, text: str) -> Iterator[int]:
        for match in self._words.finditer(text):
            word = match[0]
            ids = self._cached.get(word)
            if ids is None:
                ids = [rank + self._model.first for rank in merged(word.encode(), self._model.ranks)]
                if len(self._cached) >= _CACHED:
                    self._cached.clear()
                self._cached[word] = ids
            yield from ids


def composed(text: str) -> tuple[str, Int64s | None, Int64s | None]:
    """Return a text in NFC, and for each of its characters the first and last plus one of those it was made of.

    These are None if the text is in NFC. Where several characters are composed together, each stands for all of them.

    >>> composed("e\\u0301a")
    ('éa', array([0, 2]), array([2, 3]))
    """
    if unicodedata.is_normalized("NFC", text):
        return text, None, None
    runs = [0]
    for at, character in enumerate(text):
        # A mark may be composed with what is before it, and so may a vowel or a final consonant of Hangul.
        if at and unicodedata.category(character)[0] != "M" and not "\u1160" <= character <= "\u11ff":
            runs.append(at)
    ends = [*runs[1:], len(text)]
    parts = [unicodedata.normalize("NFC", text[low:high]) for low, high in zip(runs, ends, strict=True)]
    sizes = [len(part) for part in parts]
    return "".join(parts), np.repeat(np.array(runs, np.int64), sizes), np.repeat(np.array(ends, np.int64), sizes)


def merged(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    """Return the ranks of the tokens of a word, in O(n log n).

    >>> merged(b"abab", {b"a": 0, b"b": 1, b"ab": 2})
    [2, 2]
    """
    if word in ranks:
        return [ranks[word]]
    size = len(word)
    ends = [*range(1, size + 1), size]  # of the token that begins at each byte; tokens joined to another begin nowhere
    before = [*range(-1, size)]
    # Rank, begin, end of the first token, end of both: an entry counts while both tokens are as they were.
    heap = [(ranks[pair], at, at + 1, at + 2) for at in range(size - 1) if (pair := word[at : at + 2]) in ranks]
    heapq.heapify(heap)
    alive = bytearray(b"\x01") * size
    while heap:
        _, begin, middle, end = heapq.heappop(heap)
        if not (alive[begin] and ends[begin] == middle and ends[middle] == end):
            continue
        alive[middle], ends[begin], before[end] = 0, end, begin
        for first, second in ((before[begin], begin), (begin, end)):
            if first >= 0 and second < size:
                rank = ranks.get(word[first : ends[second]])
                if rank is not None:
                    heapq.heappush(heap, (rank, first, second, ends[second]))
    begins = [at for at in range(size) if alive[at]]
    return [ranks[word[a:b]] for a, b in pairwise([*begins, size])]


_END = r"|\s+(?!\S)|\s+"
_LINES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + _END
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+" + _END
CL100K = _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _LINES
QWEN = _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _LINES
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+" + _END
)


class Named(NamedTuple):
    """A named encoding.

    Attributes:
        pattern: regular expression of the words.
        special: special tokens with their ids.
        eos, bos: those for the end and the beginning of a document.
        tokens: number of tokens without special ones.
        nfc: whether texts are normalized to NFC first.
    """

    pattern: str
    special: dict[str, int]
    eos: str
    tokens: int
    bos: str | None = None
    nfc: bool = False


def _numbered(first: int, names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names, first)}


def _llama3() -> dict[str, int]:
    names = ["begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1"]
    names += ["finetune_right_pad_id", "step_id", "start_header_id", "end_header_id", "eom_id", "eot_id", "python_tag"]
    names += [f"reserved_special_token_{number}" for number in range(2, 247)]
    return _numbered(128_000, (f"<|{name}|>" for name in names))


def _harmony() -> dict[str, int]:
    known = {200_002: "return", 200_003: "constrain", 200_005: "channel", 200_006: "start", 200_007: "end"}
    known |= {200_008: "message", 200_012: "call", 199_998: "startoftext", 199_999: "endoftext", 200_018: "endofprompt"}
    names = (f"<|{known.get(number, f'reserved_{number}')}|>" for number in range(199_998, 201_088))
    return _numbered(199_998, names) | {"<|reserved_200018|>": 200_018}


_GPT2_END = {"<|endoftext|>": 50_256}
_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
NAMED = {
    "gpt2": Named(GPT2, _GPT2_END, "<|endoftext|>", 50_256),
    "r50k_base": Named(GPT2, _GPT2_END, "<|endoftext|>", 50_256),
    "p50k_base": Named(GPT2, _GPT2_END, "<|endoftext|>", 50_280),
    "p50k_edit": Named(GPT2, _GPT2_END | _numbered(50_281, _FIM), "<|endoftext|>", 50_280),
    "cl100k_base": Named(
        CL100K,
        {"<|endoftext|>": 100_257, **_numbered(100_258, _FIM), "<|endofprompt|>": 100_276},
        "<|endoftext|>",
        100_256,
    ),
    "o200k_base": Named(O200K, {"<|endoftext|>": 199_999, "<|endofprompt|>": 200_018}, "<|endoftext|>", 199_998),
    "o200k_harmony": Named(O200K, _harmony(), "<|endoftext|>", 199_998),
    "llama3": Named(CL100K, _llama3(), "<|end_of_text|>", 128_000, "<|begin_of_text|>"),
    "qwen": Named(QWEN, _numbered(151_643, _QWEN), "<|endoftext|>", 151_643, None, True),
}
_SHA256 = {
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": "r50k_base",
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": "p50k_base",
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": "cl100k_base",
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": "o200k_base",
}
"""Hashes of OpenAI's files, which tiktoken's own cache stores under other names."""


def name_of(stem: str, data: bytes, tokens: int) -> str | None:
    """Return the encoding of a file by its hash, or by its name if the number of tokens fits; None if unknown.

    Args:
        stem: the file's name without ``.tiktoken``; ``tokenizer.model`` is that of Llama 3 and later.
        data, tokens: its content, and its number of tokens.
    """
    import hashlib

    name = _SHA256.get(hashlib.sha256(data).hexdigest()) or ("llama3" if stem == "tokenizer.model" else stem.lower())
    return name if name in NAMED and NAMED[name].tokens == tokens else None
