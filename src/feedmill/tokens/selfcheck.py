"""Self-check of the fast engine: encode texts on which tokenizers are known to differ with both engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from feedmill.tokens.engines import TokenizerEngine

_WORDS = (
    "Hello world", " leading", "trailing ", "  two  spaces  ", "\ttabs\t\tand\nnewlines\r\n\r\n", "I'm you're he'll WE'VE",
    "x'S 'll'd ''ve", "3.14159e-10 1,000,000 ½ ² ٣٤٥ १२३", "snake_case camelCase __init__", "https://a.b/c?d=e&f=%20#g",
    "if (a[i] != b->c) { return *p++; }", "éàü e\u0301 a\u0308 \u1e9b\u0323", "日本語のテキスト。 中文，字符 한국어",
    "Привет, мир! Ελληνικά עברית العربية हिन्दी ไทย", "👩‍👩‍👧‍👦🏳️‍🌈👍🏽 🇩🇪🇫🇷", "\u200b\u200c\u200d\ufeff\u2060 \xa0\u3000\u2028\u2029",
    "ſtraße ﬁne İıiI ǅ", "\x00\x01\x1f\x7f\x80\x9f", "\ufffd\ufffe\U0010ffff\U000e0001", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "................................", "                                 x", "\n\n\n\n\n\n\nx\n \n  \n", "1234567890123456789",
    "𝒳𝓎 𐍈 𠜎 \U0001f9ff", "<|endoftext|>", "a<|endoftext|>b <|endoftext|> ", "<s></s><unk><pad>[CLS][SEP][MASK]",
    "<|im_start|>user\nhi<|im_end|>", "▁▁ ▁x", "Ġ Ċ ĉ", "don’t — “quoted” … • ™", "ก็็็็็ z̷̛͍a̴l̵g̶o̷", "",
)  # fmt: skip
TEXTS: Final[tuple[str, ...]] = (*_WORDS, " ".join(_WORDS), "".join(reversed(_WORDS)), "\n".join(_WORDS * 2))


def differences(
    engine: TokenizerEngine, reference: TokenizerEngine, *, special: Sequence[str] = (), plain: bool = False
) -> list[str]:
    """Return the texts for which the two engines give different ids, with or without the template.

    Args:
        special: special tokens of the vocabulary, which are checked in addition to the fixed set.
        plain: whether the tokenizer always encodes special tokens in a text as plain text, and has no template.
    """
    texts = [*TEXTS, *(["".join(special), " a ".join(special)] if special else ())]
    modes = ((False, True),) if plain else ((True, False), (False, False), (True, True))
    wrong = []
    for template, ordinary in modes:
        found = _ids(engine, texts, template, ordinary)
        wanted = _ids(reference, texts, template, ordinary)
        wrong += [text for text, ours, theirs in zip(texts, found, wanted, strict=True) if ours != theirs]
    return wrong


def _ids(engine: TokenizerEngine, texts: list[str], template: bool, ordinary: bool) -> list[list[int] | None]:
    """Return the ids of each text; None for all of them if the engine fails."""
    try:
        ids, lengths = engine.encode(texts, template, ordinary)
    except BaseException as error:  # a panic of compiled code is not an Exception
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            return [None] * len(texts)
        raise
    out, at = [], 0
    for length in lengths.tolist():
        out.append(ids[at : at + length].tolist())
        at += length
    return [*out]
