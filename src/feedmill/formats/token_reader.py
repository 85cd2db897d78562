"""What datasets of tokens have beyond the `Dataset` contract: spans of documents, and lengths that are known late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt


@runtime_checkable
class TokenReader(Protocol):
    """The methods of a token dataset beyond the `Dataset` contract: reading spans of documents in bulk."""

    def read_tokens(
        self, indices: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> Sequence[npt.NDArray[np.integer[Any]]]:
        """Return tokens ``[start, start + length)`` of each document, in the given order; int64[n] all three."""


@runtime_checkable
class CountedOnRead(Protocol):
    """The method of a dataset that knows how many tokens a sample has only when it reads it; its `lengths` are None."""

    def lengths_of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the tokens of samples, int64[n]. They depend on nothing but the fingerprint."""
