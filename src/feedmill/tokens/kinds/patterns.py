"""Patterns by which named encodings of tiktoken split texts, and their special tokens.

A ``.tiktoken`` file has only tokens and their ranks. The pattern that splits a text into words, and the special tokens,
are in the code of the program that uses the file. Patterns are written without possessive quantifiers, which not all
engines know; they match the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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
