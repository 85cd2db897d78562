"""SentencePiece BPE models (``.model``, Mistral's ``.model.v3``) as the equivalent ``tokenizer.json``.

Only models that do not normalize texts are converted: those of Llama and Mistral. The others (unigram models, and those
with a table of characters) keep the engine of SentencePiece. So do texts with a user-defined symbol, such as Mistral's
``[REFERENCE_DOC_1]``, which SentencePiece looks for first. Of a model file, a protocol buffer, this reads:

    1   pieces: 1 text, 2 score (float32), 3 type (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte)
    2   training: 3 algorithm (2 is BPE), 24 space as suffix, 35 bytes as fallback
    3   normalizer: 2 table of characters, 3 space before the text, 4 extra spaces removed, 5 spaces escaped
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from feedmill.errors import ConfigError
from feedmill.tokens.engines import Encoded, TokenizerEngine
from feedmill.tokens.kinds.slow import roles_of
from feedmill.tokens.template import CONFIG, read_settings

SPACE = "▁"
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED = 1, 2, 3, 4, 5


def document(data: bytes) -> bytes | str:
    """Return a ``tokenizer.json`` equivalent to a model; or the reason, as a text, why there is none.

    Control symbols are no added tokens in it: in a text, they are plain text. See `Guarded` for user-defined symbols.

    Raises:
        ConfigError: the bytes are not a model.
    """
    pieces, training, normalizer = _pieces(data)
    if training.get(3, 1) != 2:
        return "it is not a BPE model"
    if normalizer.get(2) or normalizer.get(4, 1) or not normalizer.get(5, 1):
        return "it normalizes texts by a table, or removes spaces"
    if any(kind == _UNUSED for _, _, kind in pieces) or training.get(24):
        return "it has unused symbols, or spaces as suffixes"
    ids = {text: number for number, (text, _, _) in enumerate(pieces)}
    scores = {text: score for text, score, kind in pieces if kind == _NORMAL}
    merges: list[tuple[float, int, int, int, str, str]] = []
    for text, score in scores.items():
        for at in range(1, len(text)):
            first, second = text[:at], text[at:]
            if first in scores and second in scores:
                # Of equal scores, SentencePiece joins the leftmost: a run of spaces grows from its left end.
                merges.append((-score, -len(text), ids[first], ids[second], first, second))
    merges.sort()
    space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    before = [{"type": "Prepend", "prepend": SPACE}] if normalizer.get(3, 1) else []
    bpe: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
    }
    bpe["unk_token"] = next((text for text, _, kind in pieces if kind == _UNKNOWN), None)
    bpe |= {"fuse_unk": True, "byte_fallback": bool(training.get(35)), "ignore_merges": False}
    return orjson.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": {"type": "Sequence", "normalizers": [*before, space]},
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": None,
            "model": bpe | {"vocab": ids, "merges": [(first, second) for *_, first, second in merges]},
        }
    )


def user_defined(data: bytes) -> list[str]:
    """Return the user-defined symbols of a model, as they occur in texts."""
    return [text.replace(SPACE, " ") for text, _, kind in _read(data)[0] if kind == _USER]


def _pieces(
    data: bytes, file: str | None = None
) -> tuple[list[tuple[str, float, int]], dict[int, int], dict[int, int]]:
    """Return text, score and type of each piece, and the numbers of the training and the normalizer.

    Of a text among the numbers, its length. Raises ConfigError if the bytes are not a model.
    """
    try:
        return _read(data)
    except (IndexError, ValueError, TypeError, struct.error) as error:
        raise ConfigError(
            f"this is not a SentencePiece model ({type(error).__name__}: {error})", file=file, kind="bad-tokenizer"
        ) from None


class Guarded(TokenizerEngine):
    """An engine for texts without certain symbols, and the reference for the others."""

    def __init__(self, engine: TokenizerEngine, reference: TokenizerEngine, symbols: Sequence[str]) -> None:
        self._engine, self._reference = engine, reference
        self._symbols = re.compile("|".join(map(re.escape, symbols)))

    def encode(self, texts: list[str], template: bool, ordinary: bool) -> Encoded:
        search = self._symbols.search
        special = [number for number, text in enumerate(texts) if search(text.replace(SPACE, " "))]
        if not special:
            return self._engine.encode(texts, template, ordinary)
        rest = set(special)
        ours = self._engine.encode([text for n, text in enumerate(texts) if n not in rest], template, ordinary)
        theirs = self._reference.encode([texts[number] for number in special], template, ordinary)
        lengths = np.zeros(len(texts), np.int64)
        mask = np.zeros(len(texts), np.bool_)
        mask[special] = True
        lengths[mask], lengths[~mask] = theirs.lengths, ours.lengths
        ids = np.empty(int(lengths.sum()), np.uint32)
        owner = np.repeat(mask, lengths)
        ids[owner], ids[~owner] = theirs.ids, ours.ids
        return Encoded(ids, lengths)

    def decode(self, ids: list[int], skip_special: bool) -> str:
        return self._reference.decode(ids, skip_special)


def _read(data: bytes) -> tuple[list[tuple[str, float, int]], dict[int, int], dict[int, int]]:
    """Return the pieces, and the numbers of the training and the normalizer; of a text, its length."""
    pieces = []
    parts: dict[int, dict[int, int]] = {2: {}, 3: {}}
    for field, value in _fields(data):
        if field == 1:
            found = dict(_fields(_bytes(value)))
            score = struct.unpack("<f", _bytes(found.get(2, b"\0\0\0\0")))[0]
            kind = found.get(3, _NORMAL)
            pieces.append((_bytes(found[1]).decode(), score, kind if isinstance(kind, int) else 0))
        elif field in parts:
            for inner, content in _fields(_bytes(value)):
                parts[field][inner] = content if isinstance(content, int) else len(content)
    if not pieces:
        raise ValueError("it has no pieces")
    return pieces, parts[2], parts[3]


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise TypeError("a number, expected bytes")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message: numbers of type 0; the bytes of types 1, 2 and 5."""
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _number(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _number(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"unknown type {kind} of a field at byte {at}")
        if at + size > len(data):
            raise ValueError(f"a field at byte {at} is truncated")
        yield tag >> 3, data[at : at + size]
        at += size


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError(f"an endless number at byte {at}")


CLASS = "LlamaTokenizer"
_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def as_class(path: Path, data: bytes) -> dict[str, Any]:
    """Return a ``tokenizer.json`` of transformers' Llama class, without the added tokens of the settings.

    SentencePiece itself encodes ``<s>`` in a text as plain text. A chat template writes special tokens as text, so
    conversations need the ids of the class (`AutoTokenizer`, transformers 4.57).

    Args:
        path, data: the model.

    Raises:
        ConfigError: the settings name another class, or the model is corrupt or none that the class reads alike.
    """
    settings = read_settings(path.parent / CONFIG)
    config = read_settings(path.parent / "config.json")
    name = str(settings.get("tokenizer_class") or config.get("tokenizer_class") or CLASS).removesuffix("Fast")
    made = document(data)
    if name != CLASS or isinstance(made, str):
        why = made if isinstance(made, str) and name == CLASS else f"its class is {name}"
        raise ConfigError(
            f"special tokens in texts are read from a SentencePiece model only as {CLASS} does, but {why}",
            file=str(path),
            kind="unsupported-tokenizer",
            fix="AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW) of transformers writes a tokenizer.json.",
        )
    found: dict[str, Any] = orjson.loads(made)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    found["added_tokens"] = [
        {"id": number, "content": text, **flags, "special": kind == _CONTROL}
        for number, (text, _, kind) in enumerate(_pieces(data)[0])
        if kind in (_CONTROL, _USER)
    ]
    prefix = settings.get("add_prefix_space", True) is not False
    if settings.get("legacy", True) is False:
        scheme = "first" if prefix else "never"
        words = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
        found |= {"normalizer": None, "pre_tokenizer": words}
    else:
        before = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
        space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        found["normalizer"] = {"type": "Sequence", "normalizers": [*before, space]}
    text = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    found["decoder"] = {"type": "Sequence", "decoders": [*text, {"type": "Fuse"}, *strip]}
    return found | {"class": CLASS, "tokens": roles_of(settings, path.parent, _ROLES)}
