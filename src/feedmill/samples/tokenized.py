"""Text documents as token data: a dataset whose samples are tokenized when they are read.

The tokenizer is a `feedmill.tokens.transform.TokenizeTransform`, of a room above this one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.offsets import hash_words
from feedmill.formats.sample import Sample
from feedmill.provided import provided
from feedmill.samples.views import DatasetView

Int64s = npt.NDArray[np.int64]
Ids = npt.NDArray[np.uint32]

_KEPT = 64 << 20
"""Bytes of tokens that are kept in memory: planning a row and reading it would tokenize its documents twice."""
_AT_ONCE = 1024
"""Documents that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeOptions:
    """Options of tokenizing documents when they are read; see `feedmill.tokens.transform.TokenizeTransform`."""

    tokenizer: str
    text: str = "text"
    eos: str | bool | None = "auto"
    bos: str | bool | None = None
    rule: Literal["missing", "always"] = "missing"
    template: bool = True
    template_source: Literal["auto", "flags", "file", "transformers4", "transformers5"] = "auto"
    specials_as_text: bool = False
    pattern: str | None = None
    on_error: Literal["raise", "skip"] = "raise"


class Encoder(Protocol):
    """Tokenizer of samples, such as `TokenizeTransform`. Can be pickled."""

    @property
    def identity(self) -> str:
        """Everything that determines the ids."""

    def encode(self, samples: Sequence[Sample]) -> list[Ids]:
        """Return the ids of each sample's text."""


def encoder_of(given: Encoder | TokenizeOptions | Mapping[str, Any] | str) -> Encoder:
    """Return the encoder: itself, or that of the options, or that of a tokenizer with the default options."""
    if isinstance(given, str):
        given = TokenizeOptions(tokenizer=given)
    elif isinstance(given, Mapping):
        given = TokenizeOptions(**given)
    if not isinstance(given, TokenizeOptions):
        return given
    made: Encoder = provided("TokenizeTransform")(**asdict(given))
    return made


def tokenized(dataset: Dataset, encoder: Encoder) -> TokenizedDataset:
    """Return a dataset of text as token data. Raises `ConfigError` if it is token data already."""
    if dataset.lengths is not None:
        raise ConfigError(
            f"'tokenize' is for text: the format {dataset.format} has tokens already",
            file=dataset.url,
            kind="unsupported",
            fix="Remove 'tokenize'.",
        )
    return TokenizedDataset(dataset, encoder)


class TokenizedDataset(DatasetView):
    """Documents that are tokenized when they are read. A sample has ``input_ids``, uint32[tokens].

    The lengths are unknown until then: `lengths_of` tokenizes. `read_tokens` gives spans of documents, so that the
    dataset can be packed.

    Args:
        dataset: the documents.
        encoder: what tokenizes their samples.
    """

    format = "tokenized"

    def __init__(self, dataset: Dataset, encoder: Encoder) -> None:
        super().__init__(dataset)
        self.encoder = encoder
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Ids] = OrderedDict()
        self._bytes = 0

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_kept", "_bytes")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def made_with(self) -> tuple[str, str] | None:
        """The name and the hash of the tokenizer; None if the encoder has none."""
        tokenizer = getattr(self.encoder, "tokenizer", None)
        return None if tokenizer is None else (tokenizer.name, tokenizer.hash)

    def __len__(self) -> int:
        return len(self.dataset)

    def lengths_of(self, indices: Int64s) -> Int64s:
        """Return the numbers of tokens of samples, int64[n]; tokenizes those that are not kept in memory."""
        out = np.empty(len(indices), np.int64)
        for start in range(0, len(indices), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            out[part] = [len(ids) for ids in self._ids(indices[part])]
        return out

    def read_tokens(self, indices: Int64s, starts: Int64s, lengths: Int64s) -> list[Ids]:
        """Return tokens ``[start, start + length)`` of each document."""
        spans = zip(self._ids(indices), starts.tolist(), lengths.tolist(), strict=True)
        return [ids[start : start + length] for ids, start, length in spans]

    def read_raw(self, indices: Indices) -> list[Sample]:
        numbers = np.asarray(indices, np.int64)
        out = []
        for number, ids in zip(numbers.tolist(), self._ids(numbers), strict=True):
            block = ids.astype("<u4").tobytes()
            source, spans = partial(self.dataset.locate, number), {"input_ids": (0, len(block))}
            out.append(Sample(source().key, block, spans, source, _decode, self.dataset.subflavors))
        return out

    def _ids(self, indices: Int64s) -> list[Ids]:
        wanted = indices.tolist()
        with self._lock:
            known = {number: self._kept[number] for number in wanted if number in self._kept}
        missing = sorted(set(wanted) - known.keys())
        for start in range(0, len(missing), _AT_ONCE):
            part = missing[start : start + _AT_ONCE]
            encoded = self.encoder.encode(self.dataset.read_raw(part))
            known |= dict(zip(part, encoded, strict=True))
        with self._lock:
            for number in missing:
                if number not in self._kept:
                    self._kept[number] = known[number]
                    self._bytes += known[number].nbytes
            while self._bytes > _KEPT:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return [known[number] for number in wanted]

    def fingerprint(self) -> str:
        return hash_words([self.dataset.fingerprint(), "tokenized", self.encoder.identity])

    def describe(self) -> dict[str, Any]:
        return {**self.dataset.describe(), "tokenized": self.encoder.identity}


def _decode(_name: str, data: bytes) -> Ids:
    return np.frombuffer(data, "<u4").astype(np.uint32)
