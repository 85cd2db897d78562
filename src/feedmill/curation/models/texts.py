"""What all models of texts share: the tokenizer, windows of long texts, and the scores of a head."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.curation.models.files import ModelFiles, Settings, bad_model
from feedmill.errors import MissingExtra

Floats = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
MOST_TOKENS = 512
"""Tokens of a window if neither the user nor the model's files say less."""
_LOCAL = ("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Strip")
"""Normalizers that change nothing across white space."""
_MARKS = "".join(mark for mark in map(chr, range(33, 127)) if not mark.isalnum())
_ENTRY, _HELD = 150, 1 << 25
"""Approximate bytes of a kept word beside its characters, and of all."""


@dataclass(slots=True)
class Counts:
    """What a model read.

    Attributes:
        documents: Texts.
        tokens: Their tokens that were read, with special tokens.
        padding: Tokens that were added to make the texts of a batch equally long.
        cut: Texts of which only the first window was read.
        empty: Texts without tokens, which have no score.
        alone: Texts that were read one at a time, as the network's results depend on what is beside each one.
    """

    documents: int = 0
    tokens: int = 0
    padding: int = 0
    cut: int = 0
    empty: int = 0
    alone: int = 0

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
    """Windows of texts: their token ids one after another, int64[tokens]; the number of each, and its text, ascending,
    int64[windows]."""

    ids: Ints
    sizes: Ints
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
        whole_texts(self.tokenizer)
        self.special, self.all = special, settings.long == "windows"
        self.limit = limit
        around = self.tokenizer.encode("", add_special_tokens=True).ids if special else []
        if limit is not None and limit <= len(around):
            raise bad_model(f"a window of {limit} tokens has room for special tokens only", model.path, "Use more.")
        self.words = Words.of(self.tokenizer)
        self.head, self.tail = around[:0], around
        for text in ("a", "1", *self.tokenizer.get_vocab()) if around else ():
            if own := self.tokenizer.encode(text, add_special_tokens=False).ids:
                whole = self.tokenizer.encode(text, add_special_tokens=True).ids
                ways = [n for n in range(len(around) + 1) if whole == [*around[:n], *own, *around[n:]]]
                if not ways:
                    raise bad_model("the tokenizer adds tokens that depend on the text", model.tokenizer)
                self.head, self.tail = around[: ways[0]], around[ways[0] :]
                break

    def windows(self, texts: Sequence[str], counts: Counts) -> Windows:
        """Return the windows of texts: all, or the first of each."""
        if self.words is not None:
            ids, sizes = self.words.encode(texts)
        else:
            ids, sizes = _flat([one.ids for one in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)])
        text = np.arange(len(sizes))
        if self.limit is not None:
            room = self.limit - len(self.head) - len(self.tail)
            if self.all:
                text, whole = np.repeat(text, np.maximum(1, -(-sizes // room))), sizes
                last = np.append(text[1:] != text[:-1], True)[: len(text)]
                sizes = np.where(last, whole[text] - (np.maximum(1, -(-whole // room)) - 1)[text] * room, room)
            elif (sizes > room).any():
                counts.cut += int((sizes > room).sum())
                ids = ids[ranges(np.cumsum(sizes) - sizes, np.minimum(sizes, room))]
                sizes = np.minimum(sizes, room)
        if len(self.head) or len(self.tail):
            wide = sizes + len(self.head) + len(self.tail)
            ends, out = np.cumsum(wide), np.empty(int(wide.sum()), np.int64)
            for n, token in enumerate(self.head):
                out[ends - wide + n] = token
            for n, token in enumerate(self.tail[::-1]):
                out[ends - 1 - n] = token
            out[ranges(ends - wide + len(self.head), sizes)] = ids
            ids, sizes = out, wide
        return Windows(ids, sizes, text)


def whole_texts(tokenizer: Any) -> None:
    """Undo what training left in the file of a tokenizer: it would cut texts, fill them up, or make ids random."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    for setting in ("dropout", "alpha", "nbest_size"):
        if getattr(tokenizer.model, setting, None) is not None:
            setattr(tokenizer.model, setting, None)


class Words:
    """A tokenizer that encodes the words between white space apart: each is encoded once, and kept.

    Most of a tokenizer's time goes into cutting and normalizing words that it has seen before. What lies between white
    space is independent of the rest if the tokenizer drops white space before it looks for tokens, as those of BERT do.

    Attributes:
        marks: Characters that are words of their own.
    """

    ids: Ints
    starts: Ints
    sizes: Ints

    def __init__(self, tokenizer: Any, marks: str, cjk: bool, added: Sequence[str]) -> None:
        self.tokenizer, self.marks, self.added = tokenizer, marks, added
        self.cjk = re.compile("[\u4e00-\u9fff]") if cjk else None
        self._forget()

    @classmethod
    def of(cls, tokenizer: Any) -> Words | None:
        """Return the words of a tokenizer, or None if they are not independent of each other."""
        facts = json.loads(tokenizer.to_str())
        cut = facts["pre_tokenizer"] or {}
        steps = [one for one in (facts["normalizer"],) if one is not None]
        steps = steps[0]["normalizers"] if steps and steps[0]["type"] == "Sequence" else steps
        added = [one["content"] for one in facts["added_tokens"]]
        if (
            cut.get("type") not in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
            or any(step["type"] not in _LOCAL for step in steps)
            or facts["model"].get("dropout")
            or any(content.split() != [content] for content in added)
        ):
            return None
        bert = cut["type"] == "BertPreTokenizer" and not any(one["normalized"] for one in facts["added_tokens"])
        bert = bert and not any(step["type"] in ("NFC", "NFKC") for step in steps)  # "=" and U+0338 are one character
        cjk = bert and any(step.get("handle_chinese_chars") for step in steps)
        return cls(tokenizer, _MARKS if bert else "", cjk, added)

    def encode(self, texts: Sequence[str]) -> tuple[Ints, Ints]:
        """Return the token ids of texts one after another, int64[tokens], and the number of each, int64[texts]."""
        joined = "\n".join([text.replace("\n", " ") for text in texts])
        if self.marks and not any(token in joined for token in self.added):
            for mark in self.marks:
                joined = joined.replace(mark, f" {mark} ")
            if self.cjk is not None and not joined.isascii():
                joined = self.cjk.sub(r" \g<0> ", joined)
        parts = [line.split(" ") for line in joined.replace("\t", " ").replace("\r", " ").split("\n")] if texts else []
        every = list(chain.from_iterable(parts))
        if new := set(every).difference(self.known):
            if self.held + _ENTRY * len(new) > _HELD:
                self._forget()
                new = set(every)
            self._add(sorted(new))
        numbers = np.fromiter(map(self.known.__getitem__, every), np.int64, len(every))
        sizes = self.sizes[numbers]
        bounds = np.cumsum([0, *map(len, parts)])
        sums = np.append(0, np.cumsum(sizes))
        return self.ids[ranges(self.starts[numbers], sizes)], sums[bounds[1:]] - sums[bounds[:-1]]

    def _add(self, words: list[str]) -> None:
        found = self.tokenizer.encode_batch_fast(words, add_special_tokens=False)
        ids, sizes = _flat([one.ids for one in found])
        self.known.update(zip(words, range(len(self.known), len(self.known) + len(words)), strict=True))
        self.starts = np.concatenate([self.starts, len(self.ids) + np.cumsum(sizes) - sizes])
        self.ids, self.sizes = np.concatenate([self.ids, ids]), np.concatenate([self.sizes, sizes])
        self.held += _ENTRY * len(words) + sum(map(len, words))

    def _forget(self) -> None:
        self.known, self.held = dict[str, int](), 0
        self.ids = self.starts = self.sizes = np.empty(0, np.int64)


def _flat(found: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    sizes = np.fromiter(map(len, found), np.int64, len(found))
    return np.fromiter(chain.from_iterable(found), np.int64, int(sizes.sum())), sizes


def ranges(starts: Ints, sizes: Ints) -> Ints:
    """Return the numbers from each start, as many as its size.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(sizes)
    found: Ints = np.repeat(starts - ends + sizes, sizes) + np.arange(int(sizes.sum()))
    return found


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
