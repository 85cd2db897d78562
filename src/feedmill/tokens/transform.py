"""Tokenize samples when they are read: `TokenizeTransform`, for a loader, a dataset or a recipe.

    Loader(plan, transform=TokenizeTransform("tokenizer"))      each sample's tokens
    open("docs.jsonl", tokenize="tokenizer")                    a dataset of tokens, which can be packed
    {path: docs.jsonl, tokenize: tokenizer}                     the same in a recipe

The ids are those that `feedmill tokenize` writes for the same options.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from feedmill.documents.batch import BadDocument, Batch, Record
from feedmill.documents.textpath import TextReader, checked, parse_path
from feedmill.errors import ConfigError, DataError
from feedmill.formats.sample import Sample, locate
from feedmill.tokens.encode import Encoding, encode_batch
from feedmill.tokens.template import TemplateSource
from feedmill.tokens.tokenizer import AUTO, Given, Tokenizer, ends_of, identity_of, load_tokenizer

logger = logging.getLogger("feedmill")

_EMPTY = "the text is empty"
Ids = npt.NDArray[np.uint32]


class TokenizeTransform:
    """A transform from a sample with a text to its tokens: ``{"input_ids": int64[tokens]}``.

    Args:
        tokenizer: see `load_tokenizer`, as for `template_source` and `pattern`.
        text: location of the text: a part or column of the sample, or a path or jq expression in its JSON.
        eos, bos: special tokens for the end and the beginning of each document; see `feedmill.tokens.tokenizer`.
        rule: ``missing`` adds them only where the document does not have them already, ``always`` to every document.
        template: apply the tokenizer's template.
        specials_as_text: encode special tokens that occur in a text as plain text.
        on_error: ``raise`` at a sample without text, or ``skip``: it has no tokens, is counted in `skipped`, and the
            first one is logged. An empty text has no tokens either.

    Raises:
        ConfigError: a token is not in the vocabulary or is an ordinary word, or an option is unknown; or as
            `load_tokenizer`.
    """

    def __init__(
        self,
        tokenizer: str,
        *,
        text: str = "text",
        eos: Given = AUTO,
        bos: Given = None,
        rule: Literal["missing", "always"] = "missing",
        template: bool = True,
        template_source: TemplateSource = "auto",
        specials_as_text: bool = False,
        pattern: str | None = None,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        for value, known in ((rule, ("missing", "always")), (on_error, ("raise", "skip"))):
            if value not in known:
                raise ConfigError(f"unknown value {value!r}", fix=f"Use {' or '.join(known)}.")
        self._tokenizer = (str(tokenizer), template_source if template else "file", pattern)
        self._text, self._on_error = text, on_error
        loaded = _loaded(*self._tokenizer)
        ends = ends_of(loaded, bos, eos)
        self._how = Encoding(
            bos=ends.bos_id,
            eos=ends.eos_id,
            always=rule == "always",
            template=template,
            ordinary=specials_as_text,
            limit=(1 << 32) - 1,
            dtype="<u4",
            keep_empty=True,
        )
        self.identity = f"{identity_of(loaded)} of {text} as {self._how}, invalid ones: {on_error}"
        self.skipped = 0
        self._begin()

    def _begin(self) -> None:
        steps = parse_path(self._text)
        self._name = str(steps[0]) if steps and len(steps) == 1 else None
        self._reader = TextReader(self._text)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_reader", "_name")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, which each process loads once."""
        return _loaded(*self._tokenizer)

    def __call__(self, sample: Sample) -> dict[str, Any]:
        (ids,) = self.encode([sample])
        return {"input_ids": ids.astype(np.int64)}

    def encode(self, samples: Sequence[Sample]) -> list[Ids]:
        """Return the ids of each sample's text, uint32[tokens].

        Raises:
            DataError: a sample has no text, or cannot be tokenized; its file and key are named.
        """
        batch = Batch()
        for number, sample in enumerate(samples):
            record = self._record(sample)
            if record.reason != _EMPTY:
                batch.add(number, record)
        tokenizer = self.tokenizer
        tokenizer.template, tokenizer.ordinary = self._how.template, self._how.ordinary
        found = encode_batch(tokenizer, self._how, batch) if batch.texts else None
        out = [np.zeros(0, np.uint32) for _ in samples]
        if found is not None:
            kept = range(len(batch.texts)) if found.kept is None else found.kept
            ends = np.cumsum(found.lengths)
            parts = np.split(np.frombuffer(found.data, "<u4").astype(np.uint32), ends[:-1])
            for which, ids in zip(kept, parts, strict=True):
                out[batch.rows[which]] = ids
        for number, reason in batch.bad:
            self._invalid(samples[number], reason)
        return out

    def _record(self, sample: Sample) -> Record:
        if self._name is not None and self._name in sample:
            value = sample[self._name]
            try:
                text = checked(bytes(value).decode() if isinstance(value, bytes | memoryview) else value, self._text)
            except (UnicodeDecodeError, BadDocument) as error:
                return Record(None, str(error))
            return Record(text)
        if "json" in sample:
            return self._reader.record(bytes(sample.raw("json")))
        return Record(None, f"the sample has no {self._text!r}, and no JSON that could have it")

    def _invalid(self, sample: Sample, reason: str) -> None:
        source = sample.source
        if self._on_error == "raise":
            fix = "Fix it, or set on_error: skip to give such samples no tokens."
            raise locate(DataError(f"the sample cannot be tokenized: {reason}", kind="bad-document", fix=fix), source)
        if not self.skipped:
            logger.warning(
                "%s %s: %s. It has no tokens; further such samples are counted", source.where, sample.key, reason
            )
        self.skipped += 1


@lru_cache(maxsize=4)
def _loaded(name: str, template_source: TemplateSource, pattern: str | None) -> Tokenizer:
    return load_tokenizer(name, template_source=template_source, pattern=pattern)
