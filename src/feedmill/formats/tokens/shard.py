"""One file of tokens: where its tokens, the bounds of its documents and its loss mask are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError, FeedmillError
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again

Int64s = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.integer[Any]]


COUNTED = -1
"""Number of documents of a shard that is unknown until its bounds are loaded."""


class TokenShard:
    """One file of tokens, and the documents in it.

    Args:
        path: the file in its store.
        dtype: stored type of a token, including byte order.
        offset: bytes before the first token.
        tokens: number of tokens.
        documents: number of documents; `COUNTED` if the bounds must be loaded first, None if the format's index of
            documents is missing.
        load_bounds: returns int64[documents + 1], ascending: the first token of each document, then the end of the
            last one. Called once, when first needed; a memory map if the format allows it.
        load_loss: returns bool or uint8[tokens]: 1 for tokens that contribute to the loss. None if there is no mask.
        loss: the file of the mask, of one byte per token; None if there is none, or only `load_loss`.
        facts: strings for the fingerprint, in addition to path, counts and size, that distinguish this file from others
            of the same size; or functions that return them, called when the fingerprint is first needed. They must
            not change when the file is copied.
        verify: raises `DataError` if the bounds are corrupt; for checks that are too slow for each opening.
        remarks: problems found and fixed by `load_bounds`, for `TokenDataset.describe`.
    """

    __slots__ = (
        "_bounds",
        "_documents",
        "_identity",
        "dtype",
        "facts",
        "load_bounds",
        "load_loss",
        "loss",
        "offset",
        "path",
        "remarks",
        "tokens",
        "verify",
    )

    def __init__(
        self,
        path: str,
        dtype: np.dtype[Any],
        offset: int,
        tokens: int,
        documents: int | None,
        load_bounds: Callable[[], Int64s],
        load_loss: Callable[[], npt.NDArray[Any]] | None = None,
        facts: tuple[str | Callable[[], str], ...] = (),
        remarks: list[str] | None = None,
        verify: Callable[[], None] | None = None,
        loss: str | None = None,
    ) -> None:
        self.path, self.dtype, self.offset, self.tokens = path, dtype, offset, tokens
        self.load_bounds, self.load_loss, self.loss, self.facts = load_bounds, load_loss, loss, facts
        self.verify = verify
        self.remarks = [] if remarks is None else remarks
        self._documents = documents
        self._bounds: Int64s | None = None
        self._identity: str | None = None

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        # Another process loads or maps the bounds itself.
        return None, {name: None if name == "_bounds" else getattr(self, name) for name in self.__slots__}

    @property
    def indexed(self) -> bool:
        """Return whether there is an index of documents, without loading it."""
        return self._documents is not None

    @property
    def counted(self) -> bool:
        """Return whether the bounds must be loaded to know the number of documents."""
        return self._documents == COUNTED

    @property
    def documents(self) -> int | None:
        """Return the number of documents; None if the index of documents is missing."""
        return len(self.bounds) - 1 if self.counted else self._documents

    @property
    def bounds(self) -> Int64s:
        """Return the bounds of documents, int64[documents + 1], see `load_bounds`."""
        if self._bounds is None:
            self._bounds = self.load_bounds()
        return self._bounds

    @property
    def loaded(self) -> bool:
        """Return whether the bounds are loaded."""
        return self._bounds is not None

    def problem(self, store: Store) -> FeedmillError | None:
        """Read the offsets of all documents, and return what is wrong with them; None if nothing is."""
        try:
            if self.verify is not None:
                self.verify()
            falls = np.flatnonzero(np.diff(self.bounds) < 0)
        except FeedmillError as error:
            return error
        if not len(falls):
            return None
        return DataError(
            f"{len(falls)} documents end before they begin",
            file=store.locate(self.path),
            record=f"document {int(falls[0])}",
            kind="bad-index",
            fix=copy_again("it and its index files", "write them again"),
        )

    @property
    def tokens_in_loss(self) -> int:
        """Return the number of tokens that contribute to the loss, which reads the mask; without one, all do."""
        return self.tokens if self.load_loss is None else int(np.count_nonzero(self.load_loss()))

    @property
    def identity(self) -> str:
        """Return the string for the fingerprint, which does not require the bounds."""
        if self._identity is None:
            facts = " ".join(fact if isinstance(fact, str) else fact() for fact in self.facts)
            self._identity = f"{self.path} {self.dtype.str} {self.tokens} {self._documents} {facts}"
        return self._identity
