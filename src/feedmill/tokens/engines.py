"""Engines of `feedmill.tokens.tokenizer` (fastokens, Hugging Face tokenizers, SentencePiece), and vocabularies.

A vocabulary is read from the model file without an engine.

Self-check of a fast engine: encode, with both engines, texts on which they are known to differ.

These are a fixed set of difficult texts, and texts made of the added tokens of the file itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from itertools import chain, product, zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill.errors import ConfigError, MissingExtra
from feedmill.formats.tokens.base import Int64s
from feedmill.storage.limits import refuse_large
from feedmill.structs import decode_as
from feedmill.tokens.preload import load_native, take_native

Uint32s = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]


class Encoded(NamedTuple):
    """Concatenated ids of several texts, uint32[n], and the number of ids of each text, int64[texts]."""

    ids: Uint32s
    lengths: Int64s

    @classmethod
    def of(cls, found: Sequence[Sequence[int]]) -> Encoded:
        """Concatenate the ids of each text."""
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        return cls(np.fromiter(chain.from_iterable(found), np.uint32, int(lengths.sum())), lengths)


class TokenizerEngine(Protocol):
    """Interface of a backend. Texts are `str` without lone surrogates."""

    def encode(self, texts: list[str], template: bool, ordinary: bool) -> Encoded:
        """Return the ids of texts.

        Args:
            template: add the tokens that the tokenizer adds around every text.
            ordinary: encode special tokens that occur in a text as ordinary text.
        """

    def decode(self, ids: list[int], skip_special: bool) -> str:
        """Return the text of ids, without special tokens on request."""


class Vocabulary:
    """Tokens and ids of a model file, read without an engine.

    Args:
        ids: token -> id, added tokens included.
        base: number of entries without the added tokens.
        special: added tokens marked special.

    Attributes:
        added: special tokens, and other tokens that were added to the model's own.
    """

    def __init__(self, ids: dict[str, int], base: int, special: dict[str, int]) -> None:
        self.ids, self.special = ids, special
        self.added = set(special)
        self.size_without_added, self.size_with_added = base, len(ids)
        self.largest = max(ids.values(), default=-1)
        self.bos: str | None = None
        self.eos: str | None = None
        self.unknown: int | None = None  # the id that stands for what the model cannot encode
        self.document: dict[str, Any] | None = None  # the tokenizer.json, while it is loaded
        self.renumbered: dict[str, tuple[int, int]] = {}  # added tokens: their number in the file, and their id

    def close_to(self, token: str) -> list[str]:
        """Return up to three tokens with similar spelling, special tokens first."""
        from difflib import get_close_matches

        found = get_close_matches(token, list(self.special), 3, 0.4)
        if len(found) < 3 and token:
            rest = [t for t in self.ids if t not in found and abs(len(t) - len(token)) <= 4 and t[0] == token[0]]
            found += get_close_matches(token, rest, 3 - len(found), 0.6)
        return found or list(self.special)[:3]


def read_vocabulary(path: Path, data: bytes) -> Vocabulary:
    """Return the vocabulary of a ``tokenizer.json``. Raises ConfigError."""
    try:
        document = _document(data)
        model = document["model"]["vocab"]
        ids = dict(model) if isinstance(model, dict) else {piece: i for i, (piece, _) in enumerate(model)}
        _check_ids(ids)
        base = len(ids)
        listed = document.get("added_tokens") or []
        written = {token["content"]: int(token["id"]) for token in listed}
        added = numbers_of(ids, listed)
        special = {t["content"]: added[t["content"]] for t in listed if t.get("special") and t["content"]}
        if not {*map(type, ids), *map(type, written)} <= {str}:
            odd = next(token for token in (*ids, *written) if type(token) is not str)
            raise TypeError(f"the token {odd!r:.80} has no whole number as its id")
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"this is not a tokenizer.json ({type(error).__name__}: {error})", file=str(path)) from None
    ids.update(added)
    found = Vocabulary(ids, base, special)
    found.renumbered = {token: (written[token], number) for token, number in added.items() if written[token] != number}
    found.document = document
    found.added |= set(added)
    if found.renumbered:
        found.document["added_tokens"] = [{**token, "id": added.get(token["content"], token["id"])} for token in listed]
    unknown = document["model"].get("unk_token")
    found.unknown = ids.get(unknown) if isinstance(unknown, str) else _number(document["model"].get("unk_id"))
    found.bos, found.eos = (_declared(path.parent, kind, ids) for kind in ("bos_token", "eos_token"))
    return found


def _document(data: bytes) -> Any:
    """Return the content of a ``tokenizer.json``. The merges, half of it, stay text: only engines read them."""
    try:
        parts = decode_as(data, dict[str, msgspec.Raw])
        model = decode_as(parts.pop("model"), dict[str, msgspec.Raw])
        merges = model.pop("merges")
    except (KeyError, msgspec.DecodeError):  # another kind of model, or an error, which orjson raises below
        return orjson.loads(data)
    document = {name: orjson.loads(memoryview(part)) for name, part in parts.items()}
    document["model"] = {name: orjson.loads(memoryview(part)) for name, part in model.items()}
    document["model"]["merges"] = orjson.Fragment(bytes(merges))
    return document


def numbers_of(ids: Mapping[str, int], added: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the ids of added tokens, by text.

    `tokenizers` does not read their ids in a ``tokenizer.json``: a token has the id that the vocabulary gives it, or
    the next free one, in the order of the list (``findings/tokenizers_added_token_ids.sh``).

    Args:
        ids: the vocabulary without them.
        added: the tokens.
    """
    found: dict[str, int] = {}
    following = len(ids)
    for token in added:
        text = token["content"]
        if text and text not in found:
            number = ids.get(text)
            found[text] = following if number is None else number
            following = max(following, found[text] + 1)
    return found


def _number(value: Any) -> int | None:
    return value if type(value) is int else None


RANDOM = ("dropout", "alpha", "nbest_size")
"""Settings of `tokenizers` models that make ids random."""


def _check_ids(ids: dict[str, Any]) -> None:
    if set(map(type, ids.values())) <= {int} and (not ids or (min(ids.values()) >= 0 and max(ids.values()) < 1 << 32)):
        return
    token, number = next((t, n) for t, n in ids.items() if type(n) is not int or not 0 <= n < 1 << 32)
    raise ValueError(f"invalid id of {token!r}: expected a number from 0 to 2^32 - 1, found {number!r}")


def random_settings(document: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a ``tokenizer.json`` that would make ids random; they are disabled."""
    model = document.get("model") or {}
    return {name: model[name] for name in RANDOM if model.get(name)}


def _declared(folder: Path, kind: str, ids: dict[str, int]) -> str | None:
    """Return the token that ``tokenizer_config.json`` or ``special_tokens_map.json`` set, if the vocabulary has it."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        with contextlib.suppress(OSError, orjson.JSONDecodeError, AttributeError):
            refuse_large((folder / name).stat().st_size, str(folder / name))
            value = orjson.loads((folder / name).read_bytes()).get(kind)
            token = value.get("content") if isinstance(value, dict) else value
            if isinstance(token, str) and token in ids:
                return token
    return None


class Fastokens(TokenizerEngine):
    """Engine `fastokens`, limited to one thread; see `feedmill.tokens.preload`."""

    def __init__(self, path: Path, text: bytes | None = None) -> None:
        """Load a ``tokenizer.json``; with `text`, this content instead of the file's."""
        try:
            self._model: Any = take_native(str(path)) if text is None else load_native(text=text.decode())
        except ImportError as error:
            raise MissingExtra(f"fastokens is not installed ({error})", "tokenize") from None
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise ConfigError(
                    f"fastokens cannot load the file ({error})", file=str(path), kind="unsupported-tokenizer"
                ) from None
            raise

    def encode(self, texts: list[str], template: bool, ordinary: bool) -> Encoded:
        ids, offsets = self._model.encode_batch_flat(texts, template, ordinary)
        ends = np.frombuffer(offsets, np.int64)
        return Encoded(np.frombuffer(ids, np.uint32), ends[1:] - ends[:-1])

    def decode(self, ids: list[int], skip_special: bool) -> str:
        text: str = self._model.decode(ids, skip_special)
        return text


class HuggingFace(TokenizerEngine):
    """Engine Hugging Face `tokenizers`, the reference."""

    def __init__(self, path: Path, text: bytes | None = None) -> None:
        """Load a ``tokenizer.json``; with `text`, this content instead of the file's."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtra(f"the package tokenizers is not installed ({error})", "tokenize") from None
        try:
            self._model: Any = Tokenizer.from_file(str(path)) if text is None else Tokenizer.from_buffer(text)
        except Exception as error:
            raise ConfigError(f"this is not a tokenizer ({error})", file=str(path), kind="bad-tokenizer") from None
        self._model.no_truncation()
        self._model.no_padding()
        for setting in RANDOM:  # settings left from training would make ids random
            if getattr(self._model.model, setting, None) is not None:
                setattr(self._model.model, setting, None)

    def encode(self, texts: list[str], template: bool, ordinary: bool) -> Encoded:
        self._model.encode_special_tokens = ordinary
        found = [e.ids for e in self._model.encode_batch_fast(texts, add_special_tokens=template)]
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        ids = np.empty(int(lengths.sum()), np.uint32)
        at = 0
        for piece in found:
            ids[at : at + len(piece)] = piece
            at += len(piece)
        return Encoded(ids, lengths)

    def decode(self, ids: list[int], skip_special: bool) -> str:
        text: str = self._model.decode(ids, skip_special_tokens=skip_special)
        return text

    def offsets(self, text: str, template: bool, ordinary: bool) -> tuple[Uint32s, Int64s]:
        """Return ids, and the characters of each token; tokens of the template cover none."""
        self._model.encode_special_tokens = ordinary
        found = self._model.encode(text, add_special_tokens=template)
        return np.asarray(found.ids, np.uint32), np.asarray(found.offsets, np.int64).reshape(-1, 2)


class SentencePiece(TokenizerEngine):
    """Engine for SentencePiece models. They have no template, and control symbols in a text are plain text."""

    def __init__(self, path: Path) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise MissingExtra(f"the package sentencepiece is not installed ({error})", "tokenize") from None
        try:
            self._model: Any = SentencePieceProcessor(model_file=str(path))
        except Exception as error:
            raise ConfigError(f"this is not a SentencePiece model ({error})", file=str(path)) from None
        count = self._model.GetPieceSize()
        ids = {self._model.IdToPiece(i): i for i in range(count)}
        special = {self._model.IdToPiece(i): i for i in range(count) if self._model.IsControl(i)}
        self.vocabulary = Vocabulary(ids, count, special)
        for kind, number in (("bos", self._model.bos_id()), ("eos", self._model.eos_id())):
            setattr(self.vocabulary, kind, self._model.IdToPiece(number) if number >= 0 else None)
        self.vocabulary.unknown = self._model.unk_id() if self._model.unk_id() >= 0 else None
        self._size = count

    def encode(self, texts: list[str], template: bool, ordinary: bool) -> Encoded:  # noqa: ARG002
        return Encoded.of(self._model.Encode(texts, out_type=int, num_threads=1))

    def decode(self, ids: list[int], skip_special: bool) -> str:  # noqa: ARG002
        text: str = self._model.Decode([i for i in ids if i < self._size])
        return text


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
