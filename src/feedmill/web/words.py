"""Tokens as text: each token's piece, for rows that are shown decoded."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.base import Dataset
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.manifest import read_manifest
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.tokens.decode import tokenizer_for
from feedmill.tokens.tokenizer import Tokenizer
from feedmill.web.library import Thing

_BROKEN = "\ufffd"
_LONGEST = 8  # tokens that may share a character
_loading = threading.Lock()


def tokenizer_of(thing: Thing, dataset: Dataset) -> Tokenizer:
    """Return the tokenizer of a token dataset: the one given to `serve`, else the one that its manifest names.

    The manifest may name a path that was relative to another folder, so a tokenizer of that name beside the data counts
    too. Its hash must be that of the manifest.

    Raises:
        ConfigError: there is none, or it is another one than that of the tokens.
        NotFound: it is not on this machine.
    """
    files = files_of(dataset)
    if not isinstance(files, TokenDataset) or not files.shards:
        raise ConfigError("these are not token files", file=dataset.url, kind="not-tokens")
    with _loading:
        known = files.__dict__.get("_web_tokenizer")
        if known is None:
            known = files.__dict__["_web_tokenizer"] = _load(thing, files)
    found: Tokenizer = known
    return found


def _load(thing: Thing, files: TokenDataset) -> Tokenizer:
    """Return the first tokenizer that made the tokens, of those that were given and the one that the manifest names."""
    manifest = read_manifest(files.store, files.shards[0].path)
    facts, problem = None if manifest is None else manifest.tokenizer, None
    beside = None if facts is None else _beside(files, facts.name)
    for path in [*thing.tokenizers, None, *([beside] if beside is not None else [])]:
        try:
            return tokenizer_for(manifest, path, files.url)
        except FeedmillError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _beside(files: TokenDataset, name: str) -> str | None:
    """Return the path of a tokenizer of this name beside the files, if there is one."""
    folder = files.url if os.path.isdir(files.url) else os.path.dirname(files.url)
    path = os.path.join(folder, os.path.basename(name.rstrip("/")))
    return path if files.store.is_local and os.path.exists(path) else None


def has_tokens(dataset: Dataset) -> bool:
    """Return whether samples are tokens: documents, or windows of them."""
    return isinstance(files_of(dataset), TokenDataset)


def files_of(dataset: Dataset) -> Dataset:
    """Return the documents of token files for windows of them, and other datasets as they are."""
    return dataset.tokens if isinstance(dataset, WindowDataset) else dataset


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the text of each token. Tokens that share a character have one piece: ``count`` of them.

    Each piece is a mapping of ``text``, ``count`` and ``special``.
    """
    special = _special(tokenizer)
    found: list[dict[str, Any]] = []
    at = 0
    while at < len(ids):
        if ids[at] in special:
            found.append({"text": special[ids[at]], "count": 1, "special": True})
            at += 1
            continue
        for count in range(1, _LONGEST + 1):
            text = tokenizer.decode(list(ids[at : at + count]), skip_special=False)
            if _BROKEN not in text or at + count >= len(ids):
                break
        else:
            count, text = 1, tokenizer.decode([ids[at]], skip_special=False)
        found.append({"text": text, "count": count, "special": False})
        at += count
    return found


@lru_cache(maxsize=8)
def _special(tokenizer: Tokenizer) -> dict[int, str]:
    return {number: token for token, number in tokenizer.special_tokens().items()}
