"""Tokenize untokenized text with a local tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.samples.vla.text import Tokenize
from feedmill.tokens.tokenizer import load_tokenizer


def tokenizer(path: str) -> Tokenize:
    """Return a function from texts to token ids. Raises the errors of `feedmill.tokens.tokenizer.load_tokenizer`."""
    return _Texts(path)


class _Texts:
    """Tokenizing function that can be pickled: another process loads the tokenizer again."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._tokenizer = load_tokenizer(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Texts, (self.path,)

    def __call__(self, texts: Sequence[str]) -> list[npt.NDArray[np.integer[Any]]]:
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        found = self._tokenizer.encode(clean)
        return list(np.split(found.ids, np.cumsum(found.lengths)[:-1]))
