"""A dataset of documents of tokens, for tests of windows and packing."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from helpers.number_dataset import Numbered


class Tokenized(Numbered):
    """Document `i` has ``lengths[i]`` tokens; token `j` of it is ``begins[i] + j``, so no two tokens are the same."""

    format = "tokenized"

    def __init__(self, name: str, lengths: Sequence[int] | np.ndarray, first: int = 1) -> None:
        self._lengths = np.asarray(lengths, np.int64)
        super().__init__(name, len(self._lengths))
        self.begins = first + np.cumsum(self._lengths) - self._lengths

    @property
    def lengths(self) -> np.ndarray:
        return self._lengths

    def read_tokens(self, indices: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
        assert (starts >= 0).all() and (starts + lengths <= self._lengths[indices]).all()
        begins = self.begins[indices] + starts
        return [np.arange(b, b + n, dtype=np.int32) for b, n in zip(begins.tolist(), lengths.tolist(), strict=True)]

    def fingerprint(self) -> str:
        return json.dumps([len(self), self.url])
