"""Find the tokens that a tokenizer adds around every text, in ``tokenizer.json`` or the settings next to it.

Some classes of Hugging Face transformers ignore the template (``post_processor``) of ``tokenizer.json``, and make one
from ``add_bos_token`` and ``add_eos_token`` in ``tokenizer_config.json`` instead. `FAMILIES` lists these classes with
their defaults (transformers 4.57). datatrove and Dolma read only ``tokenizer.json``. If other classes have settings
that contradict the template, the result depends on the release of transformers, so the user must decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import ConfigError
from feedmill.storage.limits import refuse_large

TemplateSource = Literal["auto", "flags", "file", "class", "transformers4", "transformers5"]
SOURCES = ("auto", "flags", "file", "transformers4", "transformers5")
CONFIG = "tokenizer_config.json"
_FLAGS = ("add_bos_token", "add_eos_token")


class Family(NamedTuple):
    """A tokenizer class that builds its template at load time: defaults of its settings and its special tokens."""

    add_bos: bool
    add_eos: bool
    bos: str
    eos: str
    unk: str
    pad: str | None
    model_types: str


FAMILIES = {
    "LlamaTokenizer": Family(
        True,
        False,
        "<s>",
        "</s>",
        "<unk>",
        None,
        "arcee aria chameleon colpali deepseek_v2 deepseek_v3 deepseek_vl deepseek_vl_hybrid diffllama ernie4_5"
        " ernie4_5_moe idefics idefics2 idefics3 jamba janus jetmoe llama llama4 llama4_text llava llava_next"
        " llava_next_video llava_onevision ministral mistral mistral3 mixtral mllama paligemma persimmon phi3 phimoe"
        " video_llava vipllava zamba zamba2",
    ),
    "CodeLlamaTokenizer": Family(True, False, "<s>", "</s>", "<unk>", None, "code_llama"),
    "GemmaTokenizer": Family(
        True,
        False,
        "<bos>",
        "<eos>",
        "<unk>",
        "<pad>",
        "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 siglip2 t5gemma",
    ),
    "CohereTokenizer": Family(
        True, False, "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", None, "aya_vision cohere cohere2"
    ),
    "GPTNeoXTokenizer": Family(
        False,
        False,
        "<|endoftext|>",
        "<|endoftext|>",
        "<|endoftext|>",
        None,
        "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmo2 olmoe rwkv stablelm xlstm",
    ),
}


class Template(NamedTuple):
    """Tokens before and after every text: ids, and as written in the vocabulary.

    Attributes:
        own: whether the model file itself adds them; otherwise Feedmill does.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    names: tuple[tuple[str, ...], tuple[str, ...]]
    own: bool

    def __str__(self) -> str:
        parts = [
            f"{' '.join(names)} {place}" for names, place in zip(self.names, ("before", "after"), strict=True) if names
        ]
        if not parts:
            return "" if self.own else f"nothing (by {CONFIG})"
        return f"{', '.join(parts)} (by {'tokenizer.json' if self.own else CONFIG})"


def around(ids: npt.NDArray[Any], lengths: npt.NDArray[np.int64], template: Template) -> tuple[Any, Any]:
    """Return the ids of texts with a template's tokens around each, and the number of ids per text, int64[texts]."""
    head, tail = len(template.before), len(template.after)
    if not (head or tail):
        return ids, lengths
    longer = lengths + head + tail
    ends = np.cumsum(longer)
    out, own = np.empty(int(longer.sum()), ids.dtype), np.ones(int(longer.sum()), np.bool_)
    for number, token in enumerate(template.before):
        out[ends - longer + number] = token
        own[ends - longer + number] = False
    for number, token in enumerate(reversed(template.after), 1):
        out[ends - number] = token
        own[ends - number] = False
    out[own] = ids
    return out, longer


def resolve(
    path: Path, document: Mapping[str, Any] | None, ids: Mapping[str, int], source: TemplateSource
) -> Template | None:
    """Return the template applied to every text; None if the model has none.

    Args:
        path: the model file.
        document: the content of a ``tokenizer.json``; None for a SentencePiece model.
        ids: its vocabulary.
        source: ``file`` for only the model file, ``flags`` for the settings next to it, ``auto`` for what transformers'
            ``AutoTokenizer`` does.

    Raises:
        ConfigError: the settings contradict the file, or name a token missing from the vocabulary.
    """
    if source not in SOURCES:
        raise ConfigError(f"unknown template source {source!r}", fix=f"Use one of {', '.join(SOURCES)}.")
    own = None if document is None else tokens_around(document)
    if source in ("file", "transformers5"):
        return own
    source = "auto" if source == "transformers4" else source
    settings = read_settings(path.parent / CONFIG)
    family = family_of(settings, path.parent)
    flags = {name: settings.get(name) for name in _FLAGS}
    if source == "auto" and (document is None or family is None):
        _refuse_contradiction(path, flags, own, settings, ids)
        found = own
    elif family is None and all(flag is None for flag in flags.values()):
        raise ConfigError(
            f"no template can be made from {CONFIG}: it has neither add_bos_token nor add_eos_token",
            file=str(path.parent / CONFIG),
            kind="bad-template",
            fix="Pass --template-source file.",
        )
    else:
        found = _made(path, settings, family, ids)
        if own is not None and (found.before, found.after) == (own.before, own.after):
            found = own
    if source == "auto" and document is not None:
        _refuse_others(path, document, settings, family)
    return found


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings next to a tokenizer; empty if there are none."""
    try:
        refuse_large(path.stat().st_size, str(path))
        found = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"the tokenizer's settings cannot be read ({error})", file=str(path)) from None
    if not isinstance(found, dict):
        raise ConfigError("the tokenizer's settings are not a JSON object", file=str(path), fix="Fix the file.")
    return found


def family_of(settings: Mapping[str, Any], folder: Path) -> tuple[str, Family] | None:
    """Return the class that transformers loads, by the settings or the model's configuration, if in `FAMILIES`."""
    name = settings.get("tokenizer_class")
    if name is None and (folder / "config.json").is_file():
        config = read_settings(folder / "config.json")
        name = config.get("tokenizer_class")
        kind = config.get("model_type")
        if name is None:
            name = next((n for n, family in FAMILIES.items() if kind in family.model_types.split()), None)
    name = str(name).removesuffix("Fast")
    return (name, FAMILIES[name]) if name in FAMILIES else None


def _token(settings: Mapping[str, Any], kind: str, default: str | None) -> str | None:
    value = settings.get(kind, default)
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _made(
    path: Path, settings: Mapping[str, Any], family: tuple[str, Family] | None, ids: Mapping[str, int]
) -> Template:
    """Return the template that a class makes from the settings."""
    known = family[1] if family else Family(False, False, "", "", "", None, "")
    found: list[tuple[str, ...]] = []
    for flag, kind, on, default in (
        ("add_bos_token", "bos_token", known.add_bos, known.bos),
        ("add_eos_token", "eos_token", known.add_eos, known.eos),
    ):
        token = _token(settings, kind, default or None)
        if not settings.get(flag, on):
            found.append(())
        elif token is None or token not in ids:
            raise ConfigError(
                f"{flag} is true{'' if flag in settings else f' by default for {family[0]}' if family else ''}, and "
                + (f"the vocabulary lacks {token!r}" if token else f"no {kind} is set"),
                file=str(path.parent / CONFIG),
                kind="unknown-token",
                fix=f"Set {kind} or {flag} there, or pass --template-source file.",
            )
        else:
            found.append((token,))
    before, after = found
    return Template(tuple(ids[t] for t in before), tuple(ids[t] for t in after), (before, after), False)


def tokens_around(document: Mapping[str, Any]) -> Template:
    """Return the tokens that the ``post_processor`` of a ``tokenizer.json`` adds around a text."""
    before, after = _processed(document.get("post_processor"))
    return Template(
        tuple(number for _, number in before),
        tuple(number for _, number in after),
        (tuple(name for name, _ in before), tuple(name for name, _ in after)),
        True,
    )


Pairs = list[tuple[str, int]]


def _processed(processor: Any) -> tuple[Pairs, Pairs]:
    if not isinstance(processor, dict):
        return [], []
    kind = processor.get("type")
    before: Pairs = []
    after: Pairs = []
    try:
        if kind == "Sequence":
            for inner in processor["processors"]:
                first, last = _processed(inner)
                before, after = [*first, *before], [*after, *last]
        elif kind in ("BertProcessing", "RobertaProcessing"):
            before, after = [(processor["cls"][0], processor["cls"][1])], [(processor["sep"][0], processor["sep"][1])]
        elif kind == "TemplateProcessing":
            pairs = before
            for item in processor["single"]:
                if "Sequence" in item:
                    pairs = after
                else:
                    name = item["SpecialToken"]["id"]
                    special = processor["special_tokens"][name]
                    pairs += list(zip(special["tokens"], special["ids"], strict=True))
    except (KeyError, IndexError, TypeError, ValueError):  # the engine reports the error
        return [], []
    return before, after


def _refuse_contradiction(
    path: Path,
    flags: Mapping[str, Any],
    own: Template | None,
    settings: Mapping[str, Any],
    ids: Mapping[str, int],
) -> None:
    """Raise `ConfigError` if a class that keeps the template has settings that contradict it."""
    for flag, kind, place in (("add_bos_token", "bos_token", 0), ("add_eos_token", "eos_token", 1)):
        wanted, token = flags[flag], _token(settings, kind, None)
        if not isinstance(wanted, bool):
            continue
        number = None if token is None else ids.get(token)
        added = own is not None and number is not None and number in (own.before, own.after)[place]
        if wanted != added:
            what = (
                "a SentencePiece model has no template"
                if own is None
                else (f"the template in tokenizer.json {'adds' if added else 'does not add'} {token!r}")
            )
            raise _undecided(path, flag, wanted, what)


def _refuse_others(
    path: Path,
    document: Mapping[str, Any],
    settings: Mapping[str, Any],
    family: tuple[str, Family] | None,
) -> None:
    """Raise `ConfigError` for a setting that ``AutoTokenizer`` applies by converting the SentencePiece model again."""
    wanted = settings.get("add_prefix_space")
    if wanted is not None and family and family[0] == "LlamaTokenizer" and bool(wanted) != prepends_space(document):
        raise _undecided(path, "add_prefix_space", wanted, "tokenizer.json differs")


def _undecided(path: Path, setting: str, value: Any, what: str) -> ConfigError:
    shown = f"is {str(value).lower()}" if isinstance(value, bool) else str(value)
    return ConfigError(
        f"{setting} {shown}, but {what}: programs differ in which one they use",
        file=str(path.parent / CONFIG),
        kind="undecided-template",
        fix="Pass --template-source file to use tokenizer.json"
        + (", or --template-source flags to use the setting" if setting in _FLAGS else "")
        + " (in Python template_source=...), or make the files agree.",
    )


def adds_space(path: Path) -> bool:
    """Return whether a ``tokenizer.json`` adds a space before a text, by the settings that Dolma checks."""
    document = orjson.loads(path.read_bytes())
    before = _members(document.get("pre_tokenizer"), "pretokenizers")
    normal = _members(document.get("normalizer"), "normalizers")
    # Dolma checks the model as `tokenizers` saves it again, which drops this entry of a Metaspace.
    return any(m.get("add_prefix_space") and m.get("type") != "Metaspace" for m in before) or any(
        m.get("type") == "Prepend" for m in normal
    )


def prepends_space(document: Mapping[str, Any]) -> bool:
    """Return whether the content of a ``tokenizer.json`` adds a space before a text, by any of its settings."""
    before = _members(document.get("pre_tokenizer"), "pretokenizers")
    normal = _members(document.get("normalizer"), "normalizers")
    return any(m.get("type") == "Prepend" for m in normal) or any(
        m.get("prepend_scheme", "always" if m.get("add_prefix_space", True) else "never") != "never"
        for m in before
        if m.get("type") in ("Metaspace", "ByteLevel")
    )


def _members(part: Any, key: str) -> list[dict[str, Any]]:
    if not isinstance(part, dict):
        return []
    return list(part.get(key) or ()) if part.get("type") == "Sequence" else [part]
