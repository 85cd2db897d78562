"""A SentencePiece BPE model as transformers' Llama class reads it: with special tokens in texts.

SentencePiece itself encodes ``<s>`` in a text as plain text. A chat template writes special tokens as text, so
conversations need the ids of the class (`AutoTokenizer`, transformers 4.57).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from feedmill.errors import ConfigError
from feedmill.tokens.kinds.pieces import CONTROL, SPACE, USER, document, read_pieces
from feedmill.tokens.kinds.slow import roles_of
from feedmill.tokens.template import CONFIG, read_settings

CLASS = "LlamaTokenizer"
_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def as_class(path: Path, data: bytes) -> dict[str, Any]:
    """Return a ``tokenizer.json`` of the class, without the added tokens of the settings.

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
            kind="other-tokenizer-kind",
            fix="AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW) of transformers writes a tokenizer.json.",
        )
    found: dict[str, Any] = orjson.loads(made)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    found["added_tokens"] = [
        {"id": number, "content": text, **flags, "special": kind == CONTROL}
        for number, (text, _, kind) in enumerate(read_pieces(data)[0])
        if kind in (CONTROL, USER)
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
