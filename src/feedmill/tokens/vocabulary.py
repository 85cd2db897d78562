"""Tokens and ids of a tokenizer, and what its engines give."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Uint32s = npt.NDArray[np.uint32]


class Encoded(NamedTuple):
    """The ids of several texts one after another: uint32[n], and int64[texts], how many belong to each."""

    ids: Uint32s
    lengths: Int64s


class TokenizerEngine(Protocol):
    """What a backend does. Texts are `str` without lone surrogates."""

    def encode(self, texts: list[str], template: bool, ordinary: bool) -> Encoded: ...

    def decode(self, ids: list[int], skip_special: bool) -> str: ...


class Vocabulary:
    """Tokens and ids of a model file, read without an engine.

    Args:
        ids: token -> id, added tokens included.
        base: entries without the added tokens.
        special: added tokens marked special.
    """

    def __init__(self, ids: dict[str, int], base: int, special: dict[str, int]) -> None:
        self.ids, self.special = ids, special
        self.size_without_added, self.size_with_added = base, len(ids)
        self.largest = max(ids.values(), default=-1)
        self.bos: str | None = None
        self.eos: str | None = None
        self.document: dict[str, Any] | None = None  # the tokenizer.json, while it is loaded

    def close_to(self, token: str) -> list[str]:
        """Up to three tokens that look like this one, special ones first."""
        from difflib import get_close_matches

        found = get_close_matches(token, list(self.special), 3, 0.4)
        if len(found) < 3 and token:
            rest = [t for t in self.ids if t not in found and abs(len(t) - len(token)) <= 4 and t[0] == token[0]]
            found += get_close_matches(token, rest, 3 - len(found), 0.6)
        return found or list(self.special)[:3]
