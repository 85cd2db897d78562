"""Dolma's tokenizer over those of `feedmill.tokens`, and its typed fields of documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from feedmill.documents.batch import Batch
from feedmill.formats.tokens.dolma import dolma_dtype
from feedmill.tokens.dolma_output import GroupedOptions, encoding_of
from feedmill.tokens.encode import encode_batch
from feedmill.tokens.tokenizer import load_tokenizer

__all__ = ["Tokenizer", "make_retriever_for_field", "make_spec_from_fields"]


class Tokenizer:
    """Tokenizer that adds BOS and EOS to texts that lack them; made by `from_file`.

    Attributes:
        vocab_size: number of entries with added tokens.
        dtype: the smallest type of a token.
    """

    def __init__(
        self,
        base_tokenizer: Any,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        segment_before_tokenization: bool = False,
        encode_special_tokens: bool = False,
    ) -> None:
        self.base_tokenizer = base_tokenizer
        self.bos_token_id, self.eos_token_id = bos_token_id, eos_token_id
        self.pad_token_id = eos_token_id if pad_token_id is None else pad_token_id
        self.vocab_size: int = base_tokenizer.vocab_size
        self.dtype = dolma_dtype(self.vocab_size)
        self.segment_before_tokenization, self.encode_special_tokens = (
            segment_before_tokenization,
            encode_special_tokens,
        )
        options = GroupedOptions(
            bos=bos_token_id,
            eos=eos_token_id,
            segment=segment_before_tokenization,
            specials_as_text=encode_special_tokens,
        )
        self._with_ends = encoding_of(base_tokenizer, np.dtype("<u4"), options)
        base_tokenizer.template, base_tokenizer.ordinary = False, encode_special_tokens

    @classmethod
    def from_file(cls, filename: str | os.PathLike[str], **kwargs: Any) -> Tokenizer:
        """Load a tokenizer.json, with the arguments of the class. Raises the errors of `load_tokenizer`."""
        return cls(load_tokenizer(filename, template_source="file"), **kwargs)

    from_pretrained = from_file
    """Nothing is downloaded: the name is that of a local file or of a model in the cache of this machine."""

    def encode(self, input: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""
        return self.encode_batch([input], add_special_tokens)[0]

    def encode_batch(self, inputs: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Return the ids of several texts. Raises `ValueError` for a text that cannot be encoded."""
        how = self._with_ends if add_special_tokens else replace(self._with_ends, bos=None, eos=None)
        batch = Batch(list(inputs), list(range(len(inputs))), [])
        found = encode_batch(self.base_tokenizer, how, batch)
        if batch.bad:
            raise ValueError(f"text {batch.bad[0][0]}: {batch.bad[0][1]}")
        ends = np.cumsum(found.lengths)[:-1]
        return [ids.tolist() for ids in np.split(np.frombuffer(found.data, how.dtype), ends)] if inputs else []

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        text: str = self.base_tokenizer.decode(token_ids, skip_special=skip_special_tokens)
        return text


def make_spec_from_fields(name: str, *fields: tuple[str, type] | None) -> type[msgspec.Struct]:
    """Return a struct with fields of these dotted names and types; None is left out."""
    tree: dict[str, Any] = {}
    for field, kind in filter(None, fields):
        *parents, last = field.split(".")
        at = tree
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = kind
    return _struct(name, tree)


def _struct(name: str, tree: dict[str, Any]) -> type[msgspec.Struct]:
    kinds = [(key, _struct(key, kind) if isinstance(kind, dict) else kind) for key, kind in tree.items()]
    return msgspec.defstruct(name, kinds)


def make_retriever_for_field(field_name: str, field_type: type[Any]) -> Callable[[Any], Any]:  # noqa: ARG001
    """Return a function that gets the field of a dotted name."""
    return attrgetter(field_name)
