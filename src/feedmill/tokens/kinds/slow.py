"""Folders with ``vocab.json`` and ``merges.txt`` (byte-level BPE), or ``vocab.txt`` (WordPiece), as ``tokenizer.json``.

Such a folder holds a tokenizer of a class of Hugging Face transformers. The class decides how texts are split and what
goes around them; `AutoTokenizer` converts it when it loads the folder. The GPT-2 and Bert classes, whose files
Megatron-LM reads as well, are converted here in the same way (transformers 4.57). Of the others of `CLASSES`, folders
with a ``tokenizer.json`` are read, which get the special tokens of their class.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from feedmill.errors import ConfigError
from feedmill.tokens.template import CONFIG, read_settings

CONVERT = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW) of transformers writes a tokenizer.json."
FILES = {"vocab.json": ("vocab.json", "merges.txt"), "vocab.txt": ("vocab.txt",)}


class Class(NamedTuple):
    """A tokenizer class.

    Attributes:
        file: its vocabulary.
        rule: ``gpt2`` or ``bert``; empty if a folder must have a ``tokenizer.json``.
        model_types: models that use it.
        tokens: its special tokens by role, unless the settings name others.
    """

    file: str
    rule: str
    model_types: str
    tokens: dict[str, str]


_END = "<|endoftext|>"
_GPT2 = {"unk_token": _END, "bos_token": _END, "eos_token": _END}
_ROBERTA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "cls_token": "<s>"}
_ROBERTA |= {"pad_token": "<pad>", "mask_token": "<mask>"}
_BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
_CLIP = _GPT2 | {"bos_token": "<|startoftext|>", "pad_token": _END}
_QWEN2 = {"unk_token": _END, "eos_token": _END, "pad_token": _END}
CLASSES = {
    "GPT2Tokenizer": Class("vocab.json", "gpt2", "gpt2 gpt_neo gptj gpt_bigcode opt imagegpt", _GPT2),
    "CodeGenTokenizer": Class("vocab.json", "gpt2", "codegen phi", _GPT2),
    "RobertaTokenizer": Class("vocab.json", "", "roberta data2vec-text ibert", _ROBERTA),
    "BartTokenizer": Class("vocab.json", "", "bart", _ROBERTA),
    "LEDTokenizer": Class("vocab.json", "", "led", _ROBERTA),
    "LongformerTokenizer": Class("vocab.json", "", "longformer", _ROBERTA),
    "Qwen2Tokenizer": Class("vocab.json", "", "qwen2 qwen2_moe qwen3 qwen3_moe", _QWEN2),
    "CLIPTokenizer": Class("vocab.json", "", "clip altclip clipseg groupvit owlvit owlv2 oneformer xclip", _CLIP),
    "WhisperTokenizer": Class("vocab.json", "", "whisper", _GPT2),
    "BertTokenizer": Class("vocab.txt", "bert", "bert visual_bert nezha", _BERT),
    "DistilBertTokenizer": Class("vocab.txt", "bert", "distilbert", _BERT),
    "ElectraTokenizer": Class("vocab.txt", "bert", "electra", _BERT),
    "MobileBertTokenizer": Class("vocab.txt", "bert", "mobilebert", _BERT),
    "ConvBertTokenizer": Class("vocab.txt", "bert", "convbert", _BERT),
    "SqueezeBertTokenizer": Class("vocab.txt", "bert", "squeezebert", _BERT),
}
_DEFAULTS = {"vocab.json": "GPT2Tokenizer", "vocab.txt": "BertTokenizer"}
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def document(path: Path) -> dict[str, Any]:
    """Return an equivalent ``tokenizer.json``, without the added tokens of the settings.

    Args:
        path: ``vocab.json`` or ``vocab.txt``.

    Raises:
        ConfigError: a file is corrupt, or the class is unsupported.
    """
    settings = read_settings(path.parent / CONFIG)
    name, found = class_of(path, settings)
    roles = roles_of(settings, path.parent, found.tokens)
    tokens = {role: text for role, token in roles.items() if (text := token_of(token)) is not None}
    vocab = _words(path) if found.rule == "bert" else _vocab(path)
    named = {role: (token, vocab[token]) for role, token in tokens.items() if token in vocab}
    rule = _RULES[found.rule]
    try:
        parts = rule(settings, tokens, named)
    except KeyError as error:
        role = str(error.args[0])
        raise ConfigError(
            f"the vocabulary lacks {tokens[role]!r}, the {role} of {name}", file=str(path), kind="unknown-token"
        ) from None
    model = {"type": "BPE"} | parts.pop("model", {})
    if model["type"] == "BPE":
        model["merges"] = _merges(path.parent / "merges.txt", vocab)
    head: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
    }
    return head | parts | {"model": model | {"vocab": vocab}, "class": name, "tokens": roles}


def class_of(path: Path, settings: Mapping[str, Any]) -> tuple[str, Class]:
    """Return the class of a folder, by its settings, else its model, else its files. Raises ConfigError."""
    config = read_settings(path.parent / "config.json")
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    name = None if named is None else str(named).removesuffix("Fast")
    kind = config.get("model_type")
    if name is None and kind is not None:
        name = next((n for n, known in CLASSES.items() if kind in known.model_types.split()), f"that of {kind}")
    name = name or _DEFAULTS[path.name]
    if name in CLASSES and CLASSES[name].file == path.name and CLASSES[name].rule:
        return name, CLASSES[name]
    raise ConfigError(
        f"a folder with {' and '.join(FILES[path.name])} is read for the classes"
        f" {', '.join(n for n, known in CLASSES.items() if known.file == path.name and known.rule)}; found {name}",
        file=str(path.parent),
        kind="unsupported-tokenizer",
        fix=CONVERT,
    )


def roles_of(settings: Mapping[str, Any], folder: Path, defaults: Mapping[str, str]) -> dict[str, Any]:
    """Return the special tokens by role that the settings of a folder name, and the defaults of their class."""
    named = dict(settings)
    if "added_tokens_decoder" not in settings:
        named |= read_settings(folder / "special_tokens_map.json")
    return {role: token for role in ROLES if (token := named.get(role, defaults.get(role))) is not None}


def token_of(value: Any) -> str | None:
    """Return a token in settings, which is a text or an object with ``content``; otherwise None."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _vocab(path: Path) -> dict[str, int]:
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"this is not a vocabulary ({error})", file=str(path), kind="bad-tokenizer") from None
    if not isinstance(found, dict) or not all(type(number) is int for number in found.values()):
        raise ConfigError("this is not a vocabulary: expected tokens with ids", file=str(path), kind="bad-tokenizer")
    return found


def _merges(path: Path, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    out = []
    for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
        pair = line.split()
        if not pair or (number == 1 and line.startswith("#")):
            continue
        if len(pair) != 2 or not all(token in vocab for token in (*pair, "".join(pair))):
            raise ConfigError(
                f"line {number} is not two tokens that are joined to a third one of the vocabulary: {line!r:.80}",
                file=str(path),
                kind="bad-tokenizer",
            )
        out.append((pair[0], pair[1]))
    return out


def _words(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"this is not a vocabulary ({error})", file=str(path), kind="bad-tokenizer") from None
    if lines and not lines[-1]:
        lines.pop()
    return {line.rstrip("\r"): number for number, line in enumerate(lines)}


_LEVEL = {"type": "ByteLevel", "trim_offsets": True}
_DECODER = _LEVEL | {"add_prefix_space": True, "use_regex": True}
Named = Mapping[str, tuple[str, int]]


def _gpt2(settings: Mapping[str, Any], tokens: Mapping[str, str], named: Named) -> dict[str, Any]:  # noqa: ARG001
    level = _LEVEL | {"add_prefix_space": bool(settings.get("add_prefix_space")), "use_regex": True}
    after = template_of([named["bos_token"]], []) if settings.get("add_bos_token") else None
    return {"pre_tokenizer": level, "post_processor": after, "decoder": _DECODER}


def _bert(settings: Mapping[str, Any], tokens: Mapping[str, str], named: Named) -> dict[str, Any]:
    model = {"type": "WordPiece", "unk_token": tokens["unk_token"], "continuing_subword_prefix": "##"}
    return {
        "normalizer": {"type": "BertNormalizer", "clean_text": True} | bert_normalizer(settings),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template_of([named["cls_token"]], [named["sep_token"]]),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": model | {"max_input_chars_per_word": 100},
    }


def bert_normalizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of Bert's normalizer, with the defaults of its classes."""
    return {
        "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
        "strip_accents": settings.get("strip_accents"),
        "lowercase": settings.get("do_lower_case", True),
    }


_RULES = {"gpt2": _gpt2, "bert": _bert}


def template_of(before: list[tuple[str, int]], after: list[tuple[str, int]]) -> dict[str, Any]:
    """Return the template that puts tokens before and after a text, as pairs of token and id."""
    first, last = ([{"SpecialToken": {"id": token, "type_id": 0}} for token, _ in side] for side in (before, after))
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
    special = {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in (*before, *after)}
    return {
        "type": "TemplateProcessing",
        "single": [*first, pair[0], *last],
        "pair": [*first, pair[0], *last, pair[1], *last],
        "special_tokens": special,
    }
