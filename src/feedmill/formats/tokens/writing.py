"""Token formats as targets of writing: the form of documents, the type of a token, and the writer of a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.formats.tokens.shard import Int64s, Tokens
from feedmill.storage import Store


@dataclass(frozen=True, slots=True)
class Form:
    """How documents are stored.

    Attributes:
        format: name of the format.
        token_size: bytes per token.
        tokenizer: a tokenizer's name, for formats that keep one.
        loss: whether there is a loss mask.
        sentences: whether a document has a sequence for each sentence: `TokenWriter.add` gets marks of their first
            tokens instead of a loss mask. Only Megatron-LM's format can store them.
    """

    format: str
    token_size: int
    tokenizer: str | None = None
    loss: bool = False
    sentences: bool = False


class VocabularySizes(NamedTuple):
    """Sizes of a vocabulary, which determine the size of a token.

    Attributes:
        size, base: entries of the vocabulary, with and without added tokens.
        largest: an id that must fit.
    """

    size: int
    base: int
    largest: int


class TokenFormat(ABC):
    """A token format as a target of writing, named by its `feedmill.formats.format.TargetFormat`."""

    @abstractmethod
    def dtype(self, sizes: VocabularySizes) -> np.dtype[Any]:
        """Return the type of a token by the format's own rule."""

    def sized(self, token_size: int) -> np.dtype[Any]:
        """Return the type of a token of this many bytes."""
        return np.dtype(f"<u{token_size}")

    def largest(self, form: Form, tokens: int | Int64s, documents: int | Int64s) -> Any:  # noqa: ARG002
        """Return the bytes of the largest file with these numbers of tokens and documents, or a little more.

        It does not decrease with either number. Both are numbers, or int64[n] for an array of results.
        """
        return tokens * form.token_size

    @abstractmethod
    def open(self, store: Store, path: str, form: Form) -> AbstractContextManager[TokenWriter]:
        """Open the writer of one file, which is published if the block ends without an error."""


class TokenWriter(Protocol):
    """Writer of one dataset of tokens, created by each format's ``write_...`` context manager.

    Documents are added in order and in batches of any size. The files are published if the block ends without an error,
    the file that identifies the format last.
    """

    def add(self, tokens: Tokens, lengths: Int64s, loss: npt.NDArray[np.bool_] | None = None) -> None:
        """Append documents.

        Args:
            tokens: concatenated ids of all documents, of any integer type.
            lengths: int64[n], tokens per document; they add up to ``len(tokens)``.
            loss: bool[len(tokens)], False for tokens that do not contribute to the loss; only if the writer was opened
                for a mask. None: all tokens contribute.

        Raises:
            DataError: an id does not fit the file's token size.
        """
