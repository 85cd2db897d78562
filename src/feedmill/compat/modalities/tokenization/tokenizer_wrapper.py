"""Modalities' tokenizers: ``from feedmill.compat.modalities.tokenization.tokenizer_wrapper import ...``.

Ids are those of Modalities 0.5 with transformers 4.57, given by `feedmill.tokens.tokenizer`. Nothing is downloaded.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any

from feedmill.errors import ConfigError
from feedmill.tokens.tokenizer import Tokenizer, load_tokenizer


class TokenizerWrapper(ABC):
    """Base of the tokenizers."""

    @abstractmethod
    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text."""

    @abstractmethod
    def decode(self, input_ids: list[int]) -> str:
        """Return the text of ids."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Return the number of tokens."""

    @abstractmethod
    def get_token_id(self, token: str) -> int:
        """Return the id of a token. Raises ValueError if it has none."""

    @abstractmethod
    def is_special_token_id(self, token_id: int) -> bool:
        """Return whether an id is that of a special token."""


class _Loaded(TokenizerWrapper):
    """A tokenizer that each process loads itself."""

    _arguments: dict[str, Any]

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments
        self.tokenizer: Tokenizer = load_tokenizer(**arguments)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "tokenizer"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.tokenizer = load_tokenizer(**self._arguments)

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode([text]).ids.tolist()
        return ids

    def tokenize_many(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of many texts, faster than one by one."""
        ids, lengths = self.tokenizer.encode(texts)
        values, at, out = ids.tolist(), 0, []
        for length in lengths.tolist():
            out.append(values[at : at + length])
            at += length
        return out

    def decode(self, input_ids: list[int]) -> str:
        return self.tokenizer.decode(input_ids)

    def is_special_token_id(self, token_id: int) -> bool:
        return token_id in self.tokenizer.special_tokens().values()


class PreTrainedHFTokenizer(_Loaded):
    """The tokenizer of a folder, a ``tokenizer.json`` or a model in the Hugging Face cache, as AutoTokenizer loads it.

    Args:
        pretrained_model_name_or_path: see `feedmill.tokens.tokenizer.load_tokenizer`.
        truncation: cut the ids, template included, to `max_length`.
        padding: unsupported: a text has no batch to be padded to.
        max_length: see `truncation`.
        special_tokens: role -> token; each must be in the vocabulary.

    Raises:
        FeedmillError: as `load_tokenizer`.
        ConfigError: padding, or truncation without a length.
        NotImplementedError: a special token is not in the vocabulary, as in Modalities.
    """

    def __init__(
        self,
        pretrained_model_name_or_path: str,
        truncation: bool | None = False,
        padding: bool | str | None = False,
        max_length: int | None = None,
        special_tokens: dict[str, str | list[str]] | None = None,
    ) -> None:
        super().__init__(name=str(pretrained_model_name_or_path))
        if padding not in (None, False, "do_not_pad") or (truncation and max_length is None):
            raise ConfigError(
                "padding, and truncation without max_length, are unsupported",
                kind="unsupported",
                fix="Remove them: batches are padded by the collate function.",
            )
        values = (special_tokens or {}).values()
        named = [token for value in values for token in ([value] if isinstance(value, str) else value)]
        unknown = [token for token in named if self.tokenizer.token_to_id(token) is None]
        if unknown:
            raise NotImplementedError(
                "Currently only tokens already known to the tokenizers vocabulary can be added; unknown: "
                + ", ".join(map(repr, unknown))
            )
        self.special_tokens = dict(special_tokens or {})
        self.truncation, self.padding, self.max_length = truncation, padding, max_length

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.base_vocab_size

    def tokenize(self, text: str) -> list[int]:
        if not self.truncation:
            return super().tokenize(text)
        around, length = self.tokenizer.around, self.max_length or 0
        if around is None:
            return super().tokenize(text)[:length]
        self.tokenizer.template = False
        try:
            inner = super().tokenize(text)
        finally:
            self.tokenizer.template = True
        room = max(0, length - len(around.before) - len(around.after))
        return [*around.before, *inner[:room], *around.after]

    def get_token_id(self, token: str) -> int:
        """Return the id of a token; that of the unknown token, with a warning, if there is none."""
        found = self.tokenizer.token_to_id(token)
        if found is None and self.tokenizer.unknown is None:
            raise ValueError("Token is not represented by a single token id!")
        if found is None or found == self.tokenizer.unknown:
            found = self.tokenizer.unknown
            warnings.warn(
                f"The provided eod token {token} has the same token id ({found}) as the unk token", stacklevel=2
            )
        assert found is not None
        return found


class PreTrainedSPTokenizer(_Loaded):
    """A SentencePiece model. Raises as `load_tokenizer`."""

    def __init__(self, tokenizer_model_file: str) -> None:
        super().__init__(name=str(tokenizer_model_file))

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def get_token_id(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        if found is None or found == self.tokenizer.unknown:
            raise ValueError("Token cannot be represented by a single token ID!")
        return found
