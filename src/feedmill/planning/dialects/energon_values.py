"""Values in Energon's metadatasets: their types and keys, with errors that name the line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedmill.errors import ConfigError, did_you_mean
from feedmill.formats.yamls import Document
from feedmill.planning.dialects import Place


def mapping_of(document: Document, path: Place, value: Any) -> Mapping[str, Any]:
    """Return a value that must be a mapping. Raises `ConfigError`, which names its place."""
    if not isinstance(value, Mapping):
        shown = "nothing" if value is None else repr(value)[:60]
        raise ConfigError(f"{path[-1]!r}: expected a mapping, found {shown}", file=document.at(path), kind="bad-recipe")
    return value


def text_of(document: Document, path: Place, value: Any) -> str:
    """Return a value that must be text. Raises `ConfigError`, which names its place."""
    if not isinstance(value, str) or not value:
        raise ConfigError(
            f"{path[-1]!r}: expected text, found {value!r:.60}", file=document.at(path), kind="bad-recipe"
        )
    return value


def check_known(document: Document, path: Place, node: Mapping[str, Any], keys: Sequence[str], what: str) -> None:
    """Raise `ConfigError` for a key that is not one of `keys`."""
    for key in node:
        if key not in keys:
            raise unknown_key(document, (*path, key), key, keys, what)


def unknown_key(document: Document, path: Place, key: str, keys: Sequence[str], what: str) -> ConfigError:
    """Return the error for an unknown key, with the one that may be meant."""
    guess = did_you_mean(str(key), list(keys))
    return ConfigError(
        f"unknown key {key!r} of {what}{guess}",
        file=document.at(path),
        kind="bad-recipe",
        fix=f"Its keys: {', '.join(dict.fromkeys(keys))}.",
    )
