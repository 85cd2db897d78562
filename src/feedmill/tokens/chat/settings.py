"""Find the chat template and the special tokens in the files of a tokenizer, as transformers does.

A template is ``chat_template.jinja`` (others of a model in ``additional_chat_templates/NAME.jinja``), the key
``chat_template`` of ``tokenizer_config.json`` (a text, or a list of named ones), or ``chat_template.json``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from feedmill.errors import ConfigError
from feedmill.tokens.template import CONFIG, family_of, read_settings

_FILE, _OTHERS, _JSON = "chat_template.jinja", "additional_chat_templates", "chat_template.json"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DEFAULT, TOOLS = "default", "tool_use"


class ChatTemplate(NamedTuple):
    """A template, the one for rows with tools if it differs, and where they were found."""

    text: str
    with_tools: str | None
    where: str


def find_template(folder: Path, asked: str | None = None) -> ChatTemplate:
    """Return the template of a tokenizer's folder.

    Args:
        folder: the folder.
        asked: the name of one of its templates, or the path of a file; None for its default.

    Raises:
        ConfigError: there is none, or it has another name.
    """
    if asked is not None and (os.sep in asked or asked.endswith((".jinja", ".jinja2", ".j2", ".txt"))):
        path = Path(asked)
        if not path.is_file():
            raise ConfigError("the chat template does not exist", file=asked, kind="no-chat-template")
        return ChatTemplate(_text(path), None, asked)
    named, where = _named(folder)
    if not named:
        raise ConfigError(
            "the tokenizer's files have no chat template",
            file=str(folder),
            kind="no-chat-template",
            fix=f"Pass --chat-template FILE, or put {_FILE} beside the tokenizer.",
        )
    name = asked or DEFAULT
    if name not in named:
        raise ConfigError(
            f"the tokenizer has no chat template {name!r}",
            file=where,
            kind="no-chat-template",
            fix=f"Pass --chat-template with one of {', '.join(map(repr, named))}.",
        )
    return ChatTemplate(named[name], named.get(TOOLS) if asked is None else None, where)


def special_tokens(folder: Path) -> dict[str, Any]:
    """Return the special tokens that a template gets as variables, such as ``bos_token``."""
    settings, older = read_settings(folder / CONFIG), read_settings(folder / "special_tokens_map.json")
    found: dict[str, Any] = {}
    family = family_of(settings, folder)
    if family is not None:
        found |= {"bos_token": family[1].bos, "eos_token": family[1].eos}
    for name in (*_SPECIAL, *(settings.get("model_specific_special_tokens") or {})):
        value = settings.get(name, older.get(name))
        value = (settings.get("model_specific_special_tokens") or {}).get(name, value)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[name] = value
        elif name in settings and value is None:
            found.pop(name, None)
    more = settings.get("additional_special_tokens", older.get("additional_special_tokens")) or []
    texts = [item.get("content") if isinstance(item, dict) else item for item in more]
    return found | ({"additional_special_tokens": texts} if texts else {})


def _named(folder: Path) -> tuple[dict[str, str], str]:
    """Return the templates of a folder by name, and the file that has the first."""
    found: dict[str, str] = {}
    where = ""
    for name in (_JSON, CONFIG):  # the later file overrides the earlier one
        value = read_settings(folder / name).get("chat_template")
        if isinstance(value, str):
            value = [{"name": DEFAULT, "template": value}]
        for item in value if isinstance(value, list) else ():
            if isinstance(item, Mapping) and isinstance(item.get("template"), str):
                found[str(item.get("name", DEFAULT))] = item["template"]
                where = str(folder / name)
    if (folder / _FILE).is_file():
        found[DEFAULT], where = _text(folder / _FILE), str(folder / _FILE)
    if (folder / _OTHERS).is_dir():
        for path in sorted((folder / _OTHERS).glob("*.jinja")):
            found[path.stem] = _text(path)
            where = where or str(path)
    return found, where


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chat template cannot be read ({error})", file=str(path)) from None
