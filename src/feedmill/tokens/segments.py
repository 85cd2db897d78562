"""Encode documents paragraph by paragraph, as Dolma can, for tokenizers that are slow on long texts.

A paragraph begins with the newlines before it. Some tokenizers add a space before every text, and would add one before
every paragraph. For them, a space is added to each paragraph but the first, and the first token, which then covers both
spaces, is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.formats.tokens.base import Int64s

_PARAGRAPH = re.compile(r"\n*[^\n]+|\n+")


def paragraphs(texts: list[str], prefix: bool) -> tuple[list[str], Int64s]:
    """Return the paragraphs of all texts, and int64[texts], the number of paragraphs of each.

    >>> paragraphs(["a\\n\\nb", "c"], True)[0]
    ['a', ' \\n\\nb', 'c']
    """
    found = [_PARAGRAPH.findall(text) or [""] for text in texts]
    if prefix:
        found = [[pieces[0], *(" " + piece for piece in pieces[1:])] for pieces in found]
    return [piece for pieces in found for piece in pieces], np.fromiter(map(len, found), np.int64, len(found))


def joined(ids: npt.NDArray[Any], lengths: Int64s, counts: Int64s, prefix: bool) -> tuple[npt.NDArray[Any], Int64s]:
    """Join the ids of paragraphs to the ids of texts. Return the ids, and int64[texts], the number of ids of each.

    Args:
        ids, lengths: concatenated ids of all paragraphs, and their numbers.
        counts: int64[texts], number of paragraphs of each text.
        prefix: whether to drop the first token of each paragraph except the first of a text.
    """
    firsts = np.cumsum(counts) - counts
    if prefix:
        drop = lengths > 0
        drop[firsts] = False
        keep = np.ones(len(ids), np.bool_)
        keep[(np.cumsum(lengths) - lengths)[drop]] = False
        ids, lengths = ids[keep], lengths - drop
    return ids, np.add.reduceat(lengths, firsts) if len(firsts) else np.zeros(0, np.int64)


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
