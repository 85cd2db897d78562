"""Apply the settings next to a ``tokenizer.json`` as `AutoTokenizer` does: added tokens, spaces, Bert's normalizer.

datatrove and Dolma read only ``tokenizer.json``; programs that use ``AutoTokenizer`` (Modalities, VLA Foundry, most
trainers) also get what these files set (transformers 4.57):

    tokenizer_config.json     ``added_tokens_decoder``; tokens by role (``eos_token``), ``additional_special_tokens``;
                              ``add_prefix_space``; ``do_lower_case``, ``strip_accents``, ``tokenize_chinese_chars``
    special_tokens_map.json,  tokens, if ``tokenizer_config.json`` has no ``added_tokens_decoder``
    added_tokens.json

Tokens that the model lacks get the next ids. What goes around a text is in `feedmill.tokens.template`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from feedmill.errors import ConfigError
from feedmill.tokens.kinds.slow import CLASSES, bert_normalizer, roles_of, token_of
from feedmill.tokens.template import CONFIG, FAMILIES, family_of, read_settings

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def applied(document: dict[str, Any], folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return a ``tokenizer.json`` with the settings of a folder applied, and what they changed.

    Args:
        document: its content, which is not modified. The special tokens of its class may be in ``tokens``.

    Raises:
        ConfigError: the settings are corrupt.
    """
    settings = read_settings(folder / CONFIG)
    name = _class(settings, folder)
    roles = document.get("tokens") or roles_of(settings, folder, _defaults(name))
    found = {key: value for key, value in document.items() if key not in ("tokens", "class")}
    changes: list[str] = []
    if wanted_tokens := _wanted(settings, folder, found, roles):
        add(found, wanted_tokens, changes)
    words, wanted = found.get("pre_tokenizer"), bool(settings.get("add_prefix_space"))
    level = words if isinstance(words, dict) and words.get("type") == "ByteLevel" else None
    if settings and level is not None and bool(level.get("add_prefix_space", True)) != wanted:
        found["pre_tokenizer"] = level | {"add_prefix_space": wanted}
        changes.append(f"add_prefix_space {str(wanted).lower()}")
    normalizer = found.get("normalizer")
    if name in CLASSES and CLASSES[name].rule == "bert" and isinstance(normalizer, dict):
        for key, value in bert_normalizer(settings).items():
            if normalizer.get("type") == "BertNormalizer" and normalizer.get(key) != value:
                found["normalizer"] = found["normalizer"] | {key: value}
                changes.append(f"{key} {str(value).lower()}")
    return found, changes


def _class(settings: Mapping[str, Any], folder: Path) -> str:
    """Return the class that the settings name, or that of the type of the model."""
    family = family_of(settings, folder)
    if family is not None:
        return family[0]
    kind = read_settings(folder / "config.json").get("model_type") if "tokenizer_class" not in settings else None
    usual = next((name for name, known in CLASSES.items() if kind in known.model_types.split()), None)
    return usual or str(settings.get("tokenizer_class")).removesuffix("Fast")


def _defaults(name: str) -> Mapping[str, str]:
    """Return the special tokens of a class by role, which it has unless the settings name others."""
    if name in CLASSES:
        return CLASSES[name].tokens
    if name not in FAMILIES:
        return {}
    family = FAMILIES[name]
    tokens = {"bos_token": family.bos, "eos_token": family.eos, "unk_token": family.unk, "pad_token": family.pad}
    return {role: token for role, token in tokens.items() if token is not None}


def _wanted(
    settings: dict[str, Any], folder: Path, document: Mapping[str, Any], roles: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the tokens to add, in order, with their flags."""
    known = {token["content"]: token for token in document.get("added_tokens") or ()}
    listed = settings.get("added_tokens_decoder")
    key = "additional_special_tokens"
    several = settings.get(key)
    if listed is None:
        several = read_settings(folder / "special_tokens_map.json").get(key, several)
    extra = settings.get("extra_special_tokens")
    special = [*roles.values(), *(several if isinstance(several, list) else ())]
    special += [*extra.values()] if isinstance(extra, dict) else []
    names = {token_of(token) for token in special}
    listed_tokens: dict[int, dict[str, Any]] = {}
    if listed is not None:
        listed_tokens = numbered(listed, folder)
    else:  # those of a tokenizer.json take precedence over this file
        added = read_settings(folder / "added_tokens.json")
        pairs = {str(i): {"content": t, "special": t in names, "normalized": t not in names} for t, i in added.items()}
        listed_tokens = numbered(pairs, folder)
        listed_tokens |= {token["id"]: flags_of(token, bool(token.get("special"))) for token in known.values()}
    out = [
        token | {"special": token["special"] or token["content"] in names}
        for _, token in sorted(listed_tokens.items())
        if {key: known.get(token["content"], {}).get(key) for key in token} != token
    ]
    seen = known.keys() | {token["content"] for token in out}
    for token in special:
        name = token_of(token)
        if name is not None and name not in seen:
            seen |= {name}
            out.append(flags_of(token, True))
    return out


def numbered(listed: Any, folder: Path) -> dict[int, dict[str, Any]]:
    """Return the tokens of ``added_tokens_decoder`` by number, with their flags. Raises ConfigError."""
    try:
        return {int(number): flags_of(token, bool(token.get("special"))) for number, token in listed.items()}
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ConfigError(
            f"the added tokens are not a mapping of numbers and tokens ({type(error).__name__}: {error})",
            file=str(folder / CONFIG),
            fix="Fix the file.",
        ) from None


def flags_of(token: Any, special: bool) -> dict[str, Any]:
    """Return a token with its flags, as `AddedToken` of `tokenizers`. Raises TypeError."""
    given = token if isinstance(token, dict) else {"content": token}
    if not isinstance(given.get("content"), str):
        raise TypeError(f"{token!r:.80} is not a token")
    flags = {flag: bool(given.get(flag)) for flag in FLAGS[:3]}
    special = bool(given.get("special", special)) or special
    return {"content": given["content"], **flags, "normalized": bool(given.get("normalized", not special))} | {
        "special": special
    }


def add(document: dict[str, Any], tokens: Iterable[Mapping[str, Any]], changes: list[str] | None = None) -> None:
    """Add tokens to a document, or change their flags, as `tokenizers` does."""
    vocab, changes = document["model"]["vocab"], [] if changes is None else changes
    base = {text: number for number, (text, _) in enumerate(vocab)} if isinstance(vocab, list) else vocab
    added = {token["content"]: token for token in document.get("added_tokens") or ()}
    following = max([len(base), *(token["id"] + 1 for token in added.values())])
    for token in tokens:
        name = token["content"]
        if not name:
            continue
        changes.append(f"{'flags of' if name in added else 'token'} {name!r}")
        number = added[name]["id"] if name in added else base.get(name, following)
        added[name] = {**token, "id": number}
        following = max(following, number + 1)
    document["added_tokens"] = [*added.values()]
