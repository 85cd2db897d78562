"""Map and write files of numbers one after the other, such as token ids, with the checks that all formats share."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.tokens.shard import Int64s, Tokens
from feedmill.storage import Store
from feedmill.storage.local import raise_file_limit


class FlatFile:
    """Writer of concatenated tokens of one type.

    Args:
        file: the output file.
        dtype: type of a stored token.
        where: path or URL of the file, for errors.

    Attributes:
        documents, tokens: numbers written so far.
    """

    def __init__(self, file: BinaryIO, dtype: np.dtype[Any], where: str) -> None:
        self.file, self.dtype, self.where = file, dtype, where
        self.documents = self.tokens = 0

    def add(self, tokens: Tokens, lengths: Int64s) -> Int64s:
        """Append documents. Return the end of each, in tokens from the beginning of the file, int64[n].

        Raises:
            DataError: an id does not fit the token size.
            ValueError: the lengths do not add up to the tokens.
        """
        tokens = np.asarray(tokens)
        lengths = np.asarray(lengths, np.int64)
        if (lengths < 0).any() or int(lengths.sum()) != len(tokens):
            raise ValueError(f"lengths that add up to {int(lengths.sum())} for {len(tokens)} tokens")
        ends = self.tokens + np.cumsum(lengths)
        if len(tokens):
            self._check(tokens, ends)
            self.file.write(np.ascontiguousarray(tokens, self.dtype).data)
        self.documents += len(lengths)
        self.tokens += len(tokens)
        return ends

    def _check(self, tokens: Tokens, ends: Int64s) -> None:
        limits = np.iinfo(self.dtype)
        if int(tokens.min()) >= 0 and (tokens.dtype == self.dtype or int(tokens.max()) <= limits.max):
            return
        wrong = int(np.flatnonzero((tokens < 0) | (tokens > limits.max))[0])
        raise DataError(
            f"the token id {int(tokens[wrong])} does not fit into {self.dtype.itemsize} bytes"
            f" (the maximum is {limits.max})",
            file=self.where,
            record=str(self.documents + int(np.searchsorted(ends, self.tokens + wrong, side="right"))),
            kind="token-too-large",
            fix="Use a larger token size, or check that this is the intended tokenizer.",
        )


class FlatWriter:
    """Base class of writers of formats with one flat file."""

    def __init__(self, flat: FlatFile) -> None:
        self._flat = flat

    @property
    def tokens(self) -> int:
        """Number of tokens written so far."""
        return self._flat.tokens

    @property
    def documents(self) -> int:
        """Number of documents written so far."""
        return self._flat.documents


def load_numbers(store: Store, path: str, dtype: str, offset: int = 0, count: int = -1) -> npt.NDArray[Any]:
    """Return numbers of a file, memory-mapped if it is local.

    Args:
        dtype: type of a number.
        offset: bytes before the first number.
        count: number of values; by default all up to the end.
    """
    kind = np.dtype(dtype)
    if count < 0:
        count = (store.stat(path).size - offset) // kind.itemsize
    if not count:
        return np.zeros(0, kind)
    if store.is_local:
        raise_file_limit()
        with store.local_copy(path) as local:
            return np.asarray(np.memmap(local, kind, "r", offset, (count,)))
    return np.frombuffer(store.read(path, offset, count * kind.itemsize), kind)
