"""Tokenizers on the same text: tokens per word and byte, unknown tokens, and the tokens of a text side by side."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.tokens.base import TokenDataset
from feedmill.planning.names import unique_names
from feedmill.tokens.pieces import files_of, tokenizer_of
from feedmill.tokens.tokenizer import Tokenizer, load_tokenizer
from feedmill.web.corpus import corpus_of
from feedmill.web.library import OpenItem

MOST_TEXTS, MOST_TOKENS = 256, 1_000
"""Documents that are encoded again, and tokens of each that are decoded."""
MOST_CHARACTERS, MOST_TEXT = 1_000_000, 100_000
"""Characters of all documents that are encoded, and of each."""
_loading = threading.Lock()


@dataclass(frozen=True, slots=True)
class Texts:
    """Documents at equal distances over a dataset, as text.

    Attributes:
        numbers: of the documents, int64[n].
        texts: their texts, or the beginnings of long ones.
        of: documents of the dataset; `cut`: texts that are not whole.
        stored: tokens of these texts as they are stored, without special ones; None if they are not tokens.
    """

    numbers: npt.NDArray[np.int64]
    texts: list[str]
    of: int
    cut: int
    stored: int | None


def texts_of(thing: OpenItem) -> Texts:
    """Return documents as text, decoded if they are tokens. Read once.

    Raises:
        NoDocuments: the dataset has neither tokens nor documents.
        FeedmillError: there is no tokenizer to decode tokens with.
    """
    with _loading:
        known = thing.__dict__.get("_texts")
        if known is None:
            known = thing.__dict__["_texts"] = _read(thing)
    found: Texts = known
    return found


def _read(thing: OpenItem) -> Texts:
    dataset = files_of(thing.dataset())
    if not isinstance(dataset, TokenDataset):
        corpus = corpus_of(thing)
        numbers = _spread(len(corpus))
        texts = [corpus.documents.text(n) for n in numbers.tolist()]
        step = max(1, -(-sum(min(len(text), MOST_TEXT) for text in texts) // MOST_CHARACTERS))
        numbers, texts = numbers[::step], texts[::step]
        whole = [text[:MOST_TEXT].encode("utf-8", "replace").decode() for text in texts]  # no lone surrogates
        return Texts(numbers, whole, len(corpus), sum(len(text) > MOST_TEXT for text in texts), None)
    tokenizer, numbers = tokenizer_of(dataset, thing.tokenizers), _spread(len(dataset))
    special, lengths = _special(tokenizer), dataset.lengths[numbers]
    rows = dataset.read_tokens(numbers, np.zeros(len(numbers), np.int64), np.minimum(lengths, MOST_TOKENS))
    plain = [row[~np.isin(row, special)] for row in rows]
    texts = [tokenizer.decode(row) for row in plain]
    return Texts(numbers, texts, len(dataset), int((lengths > MOST_TOKENS).sum()), sum(map(len, plain)))


def _spread(count: int) -> npt.NDArray[np.int64]:
    return np.unique(np.linspace(0, max(0, count - 1), min(count, MOST_TEXTS)).astype(np.int64))


def tokenizers_of(thing: OpenItem) -> tuple[dict[str, Tokenizer], list[str]]:
    """Return the tokenizers that can be compared, by name: that of the dataset, those given, those of what is open.

    The second result says why others cannot be used.
    """
    with _loading:
        known = thing.__dict__.get("_tokenizers")
        if known is None:
            known = thing.__dict__["_tokenizers"] = _find(thing)
    found: tuple[dict[str, Tokenizer], list[str]] = known
    return found


def _find(thing: OpenItem) -> tuple[dict[str, Tokenizer], list[str]]:
    found: list[Tokenizer] = []
    problems: list[str] = []

    def add(make: Any) -> None:
        try:
            tokenizer = make()
        except FeedmillError as error:
            problems.append(str(error))
            return
        if tokenizer.hash not in [known.hash for known in found]:
            found.append(tokenizer)

    for other in [thing, *(one for one in thing.others.values() if one is not thing)]:
        if other.kind == "dataset" and isinstance(files_of(other.dataset()), TokenDataset):
            add(lambda other=other: tokenizer_of(other.dataset(), other.tokenizers))
        if other is thing:
            for path in thing.tokenizers:
                add(lambda path=path: load_tokenizer(path, template_source="file"))
    names = unique_names([_name(tokenizer) for tokenizer in found])
    return dict(zip(names, found, strict=True)), problems


def _name(tokenizer: Tokenizer) -> str:
    """Return the name of the folder of a ``tokenizer.json``, and of other models their file's."""
    path = tokenizer.path.absolute()
    return path.parent.name or path.name if path.name == "tokenizer.json" else path.stem


@lru_cache(maxsize=16)
def _special(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Return the ids of special tokens, without the unknown one: of the latter there is one for a piece of the text."""
    return np.array([i for i in tokenizer.special_tokens().values() if i != tokenizer.unknown], np.int64)


def measured(tokenizer: Tokenizer, texts: Texts) -> dict[str, Any]:
    """Return what a tokenizer makes of texts.

    Returns:
        ``tokens`` without special ones, ``words`` (separated by white space), ``bytes`` of UTF-8, ``unknown`` tokens,
        ``single`` tokens of single bytes (byte fallback), ``used`` entries of the vocabulary, and ``lengths`` of texts.
    """
    ids, lengths = tokenizer.encode(texts.texts)
    plain = ~np.isin(ids, _special(tokenizer))
    owner = np.repeat(np.arange(len(lengths)), lengths)
    ids = ids[plain]
    return {
        "tokens": len(ids),
        "words": sum(len(text.split()) for text in texts.texts),
        "bytes": sum(len(text.encode()) for text in texts.texts),
        "unknown": None if tokenizer.unknown is None else int((ids == tokenizer.unknown).sum()),
        "single": None if (single := _single(tokenizer)) is None else int(np.isin(ids, single).sum()),
        "used": len(np.unique(ids)),
        "vocabulary": tokenizer.vocab_size,
        "lengths": np.bincount(owner[plain], minlength=len(lengths)),
    }


def _single(tokenizer: Tokenizer) -> npt.NDArray[np.int64] | None:
    """Return the ids of tokens of single bytes, ``<0x00>`` to ``<0xFF>``; None if the model has none."""
    found = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    known = [number for number in found if number is not None]
    return np.array(known, np.int64) if len(known) == 256 else None


def encoded(tokenizer: Tokenizer, text: str, most: int) -> tuple[Sequence[int], int]:
    """Return the first ids of a text without those of the template, and how many there are."""
    ids = tokenizer.encode([text]).ids
    plain = ids[~np.isin(ids, _special(tokenizer))]
    return plain[:most].tolist(), len(plain)


def chosen(tokenizers: dict[str, Tokenizer], name: str | None, otherwise: str | None) -> str | None:
    """Return the name of a tokenizer. Raises `ConfigError` for an unknown one."""
    if name is None:
        return otherwise
    if name not in tokenizers:
        known = ", ".join(tokenizers) or "none; give one with --tokenizer"
        raise ConfigError(f"no tokenizer {name[:80]!r} is open", kind="bad-address", fix=f"Open: {known}.")
    return name
