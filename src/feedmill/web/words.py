"""Tokens as text: the tokenizer of a thing that is open, for rows that are shown decoded."""

from __future__ import annotations

from feedmill.formats.base import Dataset
from feedmill.tokens import pieces
from feedmill.tokens.pieces import files_of, has_tokens, pieces_of
from feedmill.tokens.tokenizer import Tokenizer
from feedmill.web.library import Thing

__all__ = ["files_of", "has_tokens", "pieces_of", "tokenizer_of"]


def tokenizer_of(thing: Thing, dataset: Dataset) -> Tokenizer:
    """Return the tokenizer of token data, first of those given to `serve`. Raises as `pieces.tokenizer_of`."""
    return pieces.tokenizer_of(dataset, thing.tokenizers)
