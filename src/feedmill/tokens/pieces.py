"""Show token ids as text: the tokenizer that made them, and rows with borders of documents and loss masks marked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.base import Dataset
from feedmill.formats.sample import Sample
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.manifest import read_manifest
from feedmill.formats.tokens.window import Window
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.samples.targets import LOSS_MASK
from feedmill.samples.tokenized import TokenizedDataset
from feedmill.tokens.tokenizer import Tokenizer
from feedmill.tokens.verbs.decode import tokenizer_for

MOST_TOKENS = 400
"""Tokens of a row that `row_text` decodes; more do not fit where it is shown."""
_BROKEN = "\ufffd"
_LONGEST = 8  # tokens that may share a character
_loading = threading.Lock()


def tokenizer_of(dataset: Dataset, given: Sequence[str] = ()) -> Tokenizer:
    """Return the tokenizer of token data: one of those given, else the one that the manifest names.

    Args:
        given: paths of tokenizers; the first one that made the tokens is used.

    Raises:
        ConfigError: there is none, or it is another one than that of the tokens.
        NotFound: it is not on this machine.
    """
    if isinstance(dataset, TokenizedDataset):
        own = getattr(dataset.encoder, "tokenizer", None)
        if own is not None:
            return own  # type: ignore[no-any-return]
    files = files_of(dataset)
    if not isinstance(files, TokenDataset) or not files.shards:
        raise ConfigError("these are not token files", file=dataset.url, kind="no-tokens")
    with _loading:
        known = files.__dict__.get("_tokenizer")
        if known is None:
            known = files.__dict__["_tokenizer"] = _load(files, given)
    found: Tokenizer = known
    return found


def _load(files: TokenDataset, given: Sequence[str]) -> Tokenizer:
    """Return the first tokenizer that made the tokens, of those that were given and the one that the manifest names."""
    manifest = read_manifest(files.store, files.shards[0].path)
    problem: FeedmillError | None = None
    for path in [*given, None]:
        try:
            return tokenizer_for(manifest, path, files.url)
        except FeedmillError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def has_tokens(dataset: Dataset) -> bool:
    """Return whether samples are tokens: documents, or windows of them."""
    return isinstance(files_of(dataset), TokenDataset | TokenizedDataset)


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


def row_text(dataset: Dataset, sample: Sample, span: tuple[int, int] | None = None) -> str:
    """Return a sample of tokens as text.

    A line ``--- document at token N ---`` stands before each document that begins inside a window. Tokens that the loss
    mask excludes are in ``[no loss: ...]``.

    Args:
        span: show only tokens ``[first, end)`` of the sample: the part of a document that is in a packed row.

    Raises:
        FeedmillError: as `tokenizer_of`.
    """
    tokenizer = tokenizer_of(dataset)
    ids = np.asarray(sample["input_ids"])
    low, high = span or (0, len(ids))
    stop = min(high, low + MOST_TOKENS)
    starts = _starts(sample)
    mask = np.asarray(sample[LOSS_MASK]) if LOSS_MASK in sample else np.ones(len(ids), bool)
    edges = {low, stop, *starts, *(np.flatnonzero(np.diff(mask)) + 1).tolist()}
    out = []
    for begin, end in pairwise(sorted(edge for edge in edges if low <= edge <= stop)):
        if begin in starts and begin > low:
            out.append(f"\n--- document at token {begin:,} ---\n")
        text = tokenizer.decode(ids[begin:end].tolist(), skip_special=False)
        out.append(text if mask[begin] else f"[no loss: {text}]")
    if stop < high:
        out.append(f"\n... (+{high - stop:,} tokens)")
    return "".join(out)


def _starts(sample: Sample) -> list[int]:
    """Return the starts of documents in a window; of a document, or where they are unknown, only 0."""
    if not isinstance(sample, Window):
        return [0]
    try:
        return sample.starts()
    except FeedmillError:
        return [0]
