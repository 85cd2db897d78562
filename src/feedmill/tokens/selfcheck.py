"""Self-check of a fast engine: encode, with both engines, texts on which they are known to differ.

These are a fixed set of difficult texts, and texts made of the added tokens of the file itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product, zip_longest
from typing import Any, Final

import xxhash

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


CHECK: Final = xxhash.xxh3_64_hexdigest(repr((3, TEXTS)).encode())
"""Names the texts; a kept verdict counts for these texts only. The number changes with the texts of added tokens."""
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_FEW = 16
"""How many added tokens are joined in pairs; of more, those with different flags and forms."""
_OVERLAPS = 64
_WORD, _NUMBER = re.compile(r"[^\W\d_]+"), re.compile(r"\d+")

Added = Mapping[str, Any]
"""An added token: its ``content``, and its flags as in a ``tokenizer.json``."""


def differences(
    engine: TokenizerEngine, reference: TokenizerEngine, *, added: Sequence[Added] = (), plain: bool = False
) -> list[str]:
    """Return the texts for which the two engines give different ids, with or without the template.

    Args:
        added: added and special tokens. Texts are made of them, in addition to the fixed set.
        plain: whether the tokenizer always encodes special tokens in a text as plain text, and has no template.
    """
    texts = [*TEXTS, *texts_of(added)]
    modes = ((False, True),) if plain else ((True, False), (False, False), (True, True))
    wrong = []
    for template, ordinary in modes:
        found = _ids(engine, texts, template, ordinary)
        wanted = _ids(reference, texts, template, ordinary)
        wrong += [text for text, ours, theirs in zip(texts, found, wanted, strict=True) if ours != theirs]
    return wrong


def cut_twice(added: Sequence[Added]) -> tuple[str, str] | None:
    """Return an added token that takes the blanks after it, and one that begins with a blank; None without such a pair.

    `tokenizers` raises for some texts with both, so a comparison would show nothing.
    """
    first = next((token["content"] for token in added if token.get("rstrip")), None)
    second = next((token["content"] for token in added if token["content"][:1].isspace()), None)
    return None if first is None or second is None else (first, second)


def texts_of(added: Sequence[Added]) -> list[str]:
    """Return texts made of added tokens: all of them, and pairs that touch, overlap, or have blanks or letters between.

    fastokens looks for added tokens in one pass; `tokenizers` finds those that are not ``normalized`` first, then the
    others in what is left, and only then looks at the flags (``findings/fastokens_added_tokens.sh``).
    """
    tokens = [token for token in added if token["content"]]
    if not tokens:
        return []
    names = [token["content"] for token in tokens]
    out = [".".join(names), "".join(names), *_overlaps(tokens)]
    few = [token["content"] for token in _different(tokens)]
    for one in few:
        out += [
            one,
            f" {one}",
            f"{one} ",
            f"  {one}  ",
            f"a{one}",
            f"{one}a",
            f"\n{one}\n",
            f"{one.upper()}{one.lower()}",
        ]
    for one, two in product(few, few):
        out += [f"{one}{two}", f"{one} {two}", f"{one}  {two}{one}", f"a{one}{two}a"]
        out.append(
            f".{one}a{two}. {one}{two} .{one}\n{two}\t{one}.▁{one}▁{two}.a {one} {two} a.{one.upper()}{two.lower()}."
        )
    return list(dict.fromkeys(out))


def _different(tokens: Sequence[Added]) -> list[Added]:
    """Return a few tokens: one of each form and flags, those of all flags in turn."""
    kinds: dict[tuple[bool, ...], dict[str, Added]] = {}
    for token in tokens:
        flags = tuple(bool(token.get(flag)) for flag in _FLAGS)
        form = _NUMBER.sub("0", _WORD.sub("a", token["content"])) if len(tokens) > _FEW else token["content"]
        kinds.setdefault(flags, {}).setdefault(form, token)
    turns = zip_longest(*(forms.values() for forms in kinds.values()))
    return [token for turn in turns for token in turn if token is not None][:_FEW]


def _overlaps(tokens: Sequence[Added]) -> list[str]:
    """Return texts in which the end of one token is the beginning of another, those with different flags first."""
    begins: dict[str, list[Added]] = {}
    for token in tokens:
        for length in range(1, len(token["content"])):
            begins.setdefault(token["content"][:length], []).append(token)
    alike: list[str] = []
    mixed: list[str] = []
    for token in tokens:
        name = token["content"]
        for at in range(1, len(name)):
            for other in begins.get(name[at:], ())[:_OVERLAPS]:
                same = all(token.get(flag) == other.get(flag) for flag in _FLAGS)
                (alike if same else mixed).append(name[:at] + other["content"])
    return [*mixed[:_OVERLAPS], *alike[:_OVERLAPS]]


def _ids(engine: TokenizerEngine, texts: list[str], template: bool, ordinary: bool) -> list[list[int] | None]:
    """Return the ids of each text; None where the engine fails."""
    try:
        ids, lengths = engine.encode(texts, template, ordinary)
    except BaseException as error:  # a panic of compiled code is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if len(texts) == 1:
            return [None]
        return [_ids(engine, [text], template, ordinary)[0] for text in texts]
    out, at = [], 0
    for length in lengths.tolist():
        out.append(ids[at : at + length].tolist())
        at += length
    return [*out]
