"""Folders with ``spiece.model`` of transformers' T5 class (T5, MT5, LongT5 ...), as ``tokenizer.json``.

The class adds sentinel tokens (``<extra_id_0>`` ...) to a SentencePiece unigram model, and EOS after each text, so the
ids are not those of the model alone (transformers 4.57). Other classes with this file change ids in other ways.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feedmill.errors import ConfigError
from feedmill.tokens.kinds.pieces import CONTROL, SPACE, USER, charsmap, read_pieces
from feedmill.tokens.kinds.slow import roles_of, template_of, token_of
from feedmill.tokens.template import CONFIG, read_settings

FILE = "spiece.model"
CLASSES = ("T5Tokenizer", "MT5Tokenizer")
_MODEL_TYPES = ["t5", "mt5", "umt5", "longt5", "switch_transformers", "musicgen", "musicgen_melody", "pix2struct"]
_ROLES = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_EXTRA = 100
_UNIGRAM = 1


def is_t5(path: Path) -> bool:
    """Return whether a file is the model of such a folder, by the class that the settings beside it name."""
    if path.name != FILE:
        return False
    config = read_settings(path.parent / "config.json")
    name = read_settings(path.parent / CONFIG).get("tokenizer_class") or config.get("tokenizer_class")
    if name is not None:
        return str(name).removesuffix("Fast") in CLASSES
    return config.get("model_type") in _MODEL_TYPES


def document(path: Path, data: bytes) -> dict[str, Any]:
    """Return an equivalent ``tokenizer.json``, without the added tokens of the settings.

    Args:
        path, data: the model.

    Raises:
        ConfigError: the model is corrupt or no unigram model, or its settings contradict each other.
    """
    settings = read_settings(path.parent / CONFIG)
    pieces, training, _ = read_pieces(data, str(path))
    if training.get(3, _UNIGRAM) != _UNIGRAM:
        raise _wrong(path, "the T5 class needs a unigram model")
    extra = [f"<extra_id_{number}>" for number in range(_extra_ids(settings, path))]
    vocab = [[text, score] for text, score, _ in pieces] + [[token, 0.0] for token in reversed(extra)]
    ids = {text: number for number, (text, _) in enumerate(vocab)}
    roles = roles_of(settings, path.parent, _ROLES)
    eos = token_of(roles.get("eos_token"))
    if "</s>" not in ids or eos not in ids:
        raise _wrong(path, f"the model lacks {'</s>' if '</s>' not in ids else eos!r}, which the class appends")
    added = [_added(n, text, special=kind == CONTROL) for n, (text, _, kind) in enumerate(pieces) if kind in _ADDED]
    added += [_added(ids[token], token, special=True) for token in reversed(extra)]
    scheme = "never" if settings.get("add_prefix_space") is False else "always"
    if scheme == "always" and settings.get("legacy") is False:
        scheme = "first"
    words = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
    table = charsmap(data)
    normalizers: list[dict[str, Any]] = [
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": SPACE},
    ]
    if table:
        normalizers.insert(0, {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": words,
        "post_processor": template_of([], [("</s>", ids["</s>"])]),
        "decoder": words,
        "model": {"type": "Unigram", "unk_id": training.get(40, 0), "vocab": vocab, "byte_fallback": False},
        "class": "T5Tokenizer",
        "tokens": roles,
    }


_ADDED = (CONTROL, USER)


def _added(number: int, text: str, *, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return {"id": number, "content": text, **flags}


def _extra_ids(settings: Mapping[str, Any], path: Path) -> int:
    """Return the number of sentinel tokens."""
    count = settings.get("extra_ids", _EXTRA)
    if type(count) is not int or count < 0:
        raise _wrong(path, f"extra_ids is {count!r}, expected a number")
    given = settings.get("additional_special_tokens")
    named = [token_of(token) for token in given] if isinstance(given, list) else []
    listed = sum("<extra_id_" in str(token) for token in named)
    if count and listed not in (0, count):
        raise _wrong(path, f"extra_ids is {count}, but additional_special_tokens have {listed} of these tokens")
    return count


def _wrong(path: Path, what: str) -> ConfigError:
    return ConfigError(
        what, file=str(path), kind="bad-tokenizer", fix="Use the files as the model's authors published them."
    )
