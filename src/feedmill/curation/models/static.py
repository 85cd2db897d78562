"""Static embeddings: the mean of the vectors of a text's tokens, and the heads that are trained on it.

The layouts are those of model2vec 0.10 (``embeddings``, ``weights`` and ``mapping`` in model.safetensors, ``normalize``
and ``max_length`` in config.json, a head's layers in head.safetensors with its ``head_config``) and of
sentence-transformers (``embedding.weight``, and ``Normalize`` among its modules). Results are those of these packages:
unknown tokens do not count, and of a text only as many characters are read as its tokens have at most, by the median
length of a token.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedmill.curation.models.files import ModelFiles, Settings, bad_model, read_tensors
from feedmill.curation.models.texts import (
    MOST_TOKENS,
    Counts,
    Floats,
    Ints,
    Tokens,
    activated,
    averaged,
    labels_of,
    normalized,
)

_GATHERED = 1 << 22
"""Numbers that are gathered at once, from the vectors of tokens: 16 MiB."""


class StaticModel:
    """A `TextModel` of static embeddings.

    Raises:
        ConfigError: The files are not such a model, or its head is of another kind.
        MissingExtra: A package is not installed.
    """

    def __init__(self, model: ModelFiles, settings: Settings) -> None:
        self.counts = Counts()
        tensors, config, path = read_tensors(model.weights), model.config, model.path
        name = "embedding.weight" if model.sentences else "embeddings"
        if name not in tensors or tensors[name].ndim != 2:
            raise bad_model(f"the file has no matrix {name!r}; it has {', '.join(sorted(tensors)[:5])}", model.weights)
        self.table = tensors[name]
        self.weights, self.mapping = tensors.get("weights"), tensors.get("mapping")
        self.normalize = bool(config.get("normalize", False))
        if model.sentences:
            modules = model.read_json("modules.json")
            self.normalize = any(str(one.get("type", "")).endswith(".Normalize") for one in modules or ())
        most = config.get("max_length", MOST_TOKENS)
        self.tokens = Tokens(model, settings.tokens or most, settings, special=False)
        tokenizer = self.tokens.tokenizer
        vocabulary = tokenizer.get_vocab()
        rows = len(self.table) if self.mapping is None else len(self.mapping)
        if max(vocabulary.values(), default=-1) >= rows:
            raise bad_model(f"the tokenizer has {len(vocabulary):,} tokens, and the model vectors of {rows:,}", path)
        self.unknown = _unknown_id(tokenizer)
        self.characters = None
        if self.tokens.limit is not None and settings.long == "first":
            self.characters = self.tokens.limit * int(np.median([len(token) for token in vocabulary]))
        self.labels: tuple[str, ...] = ()
        self.layers: list[tuple[Floats, Floats]] = []
        self._read_head(model)

    def _read_head(self, model: ModelFiles) -> None:
        head = os.path.join(model.folder, "head.safetensors")
        if not os.path.isfile(head):
            if os.path.isfile(os.path.join(model.folder, "pipeline.skops")):
                raise bad_model(
                    "the head is pipeline.skops, an old form that can run code, and is not read",
                    model.path,
                    "Convert it with model2vec's convert_legacy_pipeline, and save it again.",
                )
            return
        tensors, config = read_tensors(head), model.config.get("head_config") or {}
        self.activation = str(config.get("activation", "identity"))
        try:
            numbers = range(int(config.get("n_layers", 0)))
            self.layers = [(tensors[f"head.{k}.weight"], tensors[f"head.{k}.bias"]) for k in numbers]
        except (KeyError, TypeError, ValueError) as error:
            raise bad_model(f"the head lacks {error}", head) from None
        if self.activation not in ("softmax", "sigmoid", "identity") or not self.layers:
            what = f"{len(self.layers)} layers and the activation {self.activation!r}"
            raise bad_model(
                f"a head with {what} is unknown",
                model.path,
                "config.json needs the 'head_config' that model2vec writes: n_layers, activation and classes.",
            )
        self.labels = labels_of(config.get("classes"), len(self.layers[-1][1]), model.path)

    def scores(self, texts: Sequence[str]) -> Floats:
        means, text, sizes = self._means(texts)
        out = normalized(means) if self.normalize else means
        for number, (weight, bias) in enumerate(self.layers):
            out = out @ weight.T + bias
            if number < len(self.layers) - 1:
                out = np.maximum(out, 0)
        found = averaged(activated(out, self.activation), text, sizes, len(texts), np.nan)
        self.counts.empty += int(np.isnan(found[:, 0]).sum())
        return found

    def vectors(self, texts: Sequence[str]) -> Floats:
        means, text, sizes = self._means(texts)
        found = averaged(means, text, sizes, len(texts), 0).astype(np.float32)
        self.counts.empty += len(texts) - int((np.bincount(text, sizes, len(texts)) > 0).sum())
        return normalized(found) if self.normalize else found

    def _means(self, texts: Sequence[str]) -> tuple[Floats, Ints, Floats]:
        """Return the mean vector of each window, float32[windows, d]; its text, and its number of tokens."""
        self.counts.documents += len(texts)
        most, counts = self.characters, Counts()
        windows = self.tokens.windows(texts if most is None else [text[:most] for text in texts], counts)
        self.counts.cut += counts.cut if most is None else self._cut(texts, windows.sizes, most)
        ids, sizes = windows.ids, windows.sizes
        if self.unknown is not None:
            known = ids != self.unknown
            owner = np.repeat(np.arange(len(sizes)), sizes)
            sizes = np.bincount(owner[known], minlength=len(sizes))
            ids = ids[known]
        self.counts.tokens += len(ids)
        return self._summed(ids, sizes), windows.text, sizes.astype(np.float64)

    def _cut(self, texts: Sequence[str], sizes: Ints, most: int) -> int:
        """Return the number of texts of which characters or tokens were cut off."""
        full = self.tokens.limit
        return sum(len(text) > most or size == full for text, size in zip(texts, sizes.tolist(), strict=True))

    def _summed(self, ids: Ints, sizes: Ints) -> Floats:
        """Return the mean over the tokens of each window: one after another, so that it stays in the caches."""
        out = np.zeros((len(sizes), self.table.shape[1]), np.float32)
        step, end = max(1, _GATHERED // self.table.shape[1]), 0
        for number, size in enumerate(sizes.tolist()):
            begin, end = end, end + size
            for low in range(begin, end, step):
                own = ids[low : min(low + step, end)]
                rows = self.table[own if self.mapping is None else self.mapping[own]].astype(np.float32, copy=False)
                if self.weights is not None:
                    rows = rows * self.weights[own].astype(np.float32)[:, None]
                out[number] += rows.sum(axis=0)
            out[number] /= max(1, size)
        return out


def _unknown_id(tokenizer: Any) -> int | None:
    """Return the id of the unknown token, if the tokenizer has one."""
    model = json.loads(tokenizer.to_str())["model"]
    if "unk_id" in model:  # Unigram
        return None if model["unk_id"] is None else int(model["unk_id"])
    unknown = model.get("unk_token")
    found: int | None = None if unknown is None else tokenizer.token_to_id(unknown)
    return found
