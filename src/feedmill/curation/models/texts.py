"""What all models of texts share: the tokenizer, windows of long texts, and the scores of a head."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.curation.models.files import ModelFiles, Settings, bad_model
from feedmill.errors import MissingExtra

Floats = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
MOST_TOKENS = 512
"""Tokens of a window if neither the user nor the model's files say less."""


@dataclass(slots=True)
class Counts:
    """What a model read.

    Attributes:
        documents: Texts.
        tokens: Their tokens that were read, with special tokens.
        padding: Tokens that were added to make the texts of a batch equally long.
        cut: Texts of which only the first window was read.
        empty: Texts without tokens, which have no score.
    """

    documents: int = 0
    tokens: int = 0
    padding: int = 0
    cut: int = 0
    empty: int = 0

    def add(self, other: Counts) -> None:
        """Add other counts to these."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def taken(self) -> Counts:
        """Return the counts since the last call."""
        found = Counts(**asdict(self))
        for name in asdict(self):
            setattr(self, name, 0)
        return found


class TextModel(Protocol):
    """A model of texts. Its results do not depend on the texts beside each one.

    Attributes:
        labels: Names of its scores, or none if it only makes vectors.
        counts: What it read.
    """

    labels: tuple[str, ...]
    counts: Counts

    def scores(self, texts: Sequence[str]) -> Floats:
        """Return the score of each label, float64[n, labels]; NaN for a text without tokens."""

    def vectors(self, texts: Sequence[str]) -> Floats:
        """Return a vector of each text, float32[n, d]; zeros for a text without tokens."""


class Windows(NamedTuple):
    """Windows of texts: the token ids of each, and its text, int64[windows], ascending."""

    ids: list[list[int]]
    text: Ints


class Tokens:
    """A tokenizer that divides texts into windows.

    Args:
        limit: Tokens of a window; None for one window of any length.
        special: With the tokens that the tokenizer adds around a text.

    Raises:
        ConfigError: The tokenizer cannot be loaded.
        MissingExtra: The package tokenizers is not installed.
    """

    def __init__(self, model: ModelFiles, limit: int | None, settings: Settings, special: bool) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the processes are parallel already
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtra("models of texts need the package tokenizers", "models") from None
        try:
            self.tokenizer: Any = Tokenizer.from_file(model.tokenizer)
        except Exception as error:  # the package raises nothing more precise
            raise bad_model(f"this is not a tokenizer ({error})", model.tokenizer) from None
        self.padding: Any = self.tokenizer.padding
        self.truncation: Any = self.tokenizer.truncation
        self.tokenizer.no_padding()
        self.special, self.all = special, settings.long == "windows"
        self.limit = limit
        if limit is None:
            self.tokenizer.no_truncation()
        else:
            added = self.tokenizer.num_special_tokens_to_add(False) if special else 0
            if limit <= added:
                raise bad_model(f"a window of {limit} tokens has room for special tokens only", model.path, "Use more.")
            self.tokenizer.enable_truncation(limit)

    def windows(self, texts: Sequence[str], counts: Counts) -> Windows:
        """Return the windows of texts: all, or the first of each."""
        found, ids, owners = self.tokenizer.encode_batch_fast(texts, add_special_tokens=self.special), [], list[int]()
        for number, one in enumerate(found):
            if self.limit is not None and (more := one.overflowing):
                if self.all:
                    ids += [one.ids, *(part.ids for part in more)]
                    owners += [number] * (1 + len(more))
                    continue
                counts.cut += 1
            ids.append(one.ids)
            owners.append(number)
        return Windows(ids, np.array(owners, np.int64))


def averaged(values: Floats, text: Ints, weights: Floats, count: int, missing: float) -> Floats:
    """Return the mean over the windows of each text, weighted by their tokens, float64[count, k].

    Args:
        values: Of each window, [windows, k].
        missing: For texts whose windows have no tokens.
    """
    out = np.full((count, values.shape[1]), missing, np.float64)
    sums = np.bincount(text, weights, count)
    single = np.bincount(text, minlength=count)[text] == 1
    some = sums[text] > 0
    out[text[single & some]] = values[single & some]
    rest = ~single & some
    if rest.any():
        many = np.unique(text[rest])
        out[many] = 0
        shares = (weights[rest] / sums[text[rest]])[:, None]
        np.add.at(out, text[rest], values[rest] * shares)
    return out


def normalized(vectors: Floats) -> Floats:
    """Return vectors of length 1, float32; zeros stay."""
    wide = vectors.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))[:, None]
    found: Floats = (wide / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return found


def labels_of(names: Mapping[Any, Any] | Sequence[Any] | None, count: int, path: str) -> tuple[str, ...]:
    """Return the names of the outputs of a head.

    Args:
        names: ``id2label``, or a list of classes. Without it, one output is ``score`` and others are ``LABEL_0``, ...

    Raises:
        ConfigError: There are more or fewer names than outputs, or two would be the same attribute.
    """
    from feedmill.curation.spans import attribute_name

    listed = [f"LABEL_{k}" for k in range(count)]
    if isinstance(names, Mapping) and names:
        listed = [str(names.get(str(k), names.get(k, f"LABEL_{k}"))) for k in range(max(count, len(names)))]
    elif names and not isinstance(names, Mapping):
        listed = [str(name) for name in names]
    if len(listed) != count:
        raise bad_model(f"the model has {count:,} outputs, and its configuration {len(listed):,} labels", path)
    if listed == ["LABEL_0"]:
        return ("score",)
    listed = [f"label_{name}" if name[:1].isdigit() or not name else name for name in listed]
    made = [attribute_name("", "", name) for name in listed]
    if len(set(made)) < count:
        twice = next(name for name in made if made.count(name) > 1)
        raise bad_model(f"two labels of the model have the attribute name {twice!r}", path, "Rename one in its config.")
    return tuple(listed)


def activated(logits: Floats, activation: str) -> Floats:
    """Return scores, float64: ``softmax`` over the labels, ``sigmoid`` of each, or the values themselves."""
    values = logits.astype(np.float64)
    if activation == "softmax":
        values = np.exp(values - values.max(axis=1, keepdims=True))
        values /= values.sum(axis=1, keepdims=True)
    elif activation == "sigmoid":
        values = 1 / (1 + np.exp(-values))
    found: Floats = values
    return found
