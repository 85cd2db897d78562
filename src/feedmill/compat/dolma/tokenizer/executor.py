"""Dolma's call that tokenizes files of documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["tokenize_in_parallel"]


def tokenize_in_parallel(
    sources: Sequence[str],
    destination: str,
    num_writers: int = 1,
    num_readers: int | None = None,
    local_shuffle: int = 10_000,
    ring_size: int = 8,
    tokenizer_name_or_path: str | None = None,
    bos_token_id: int | None = None,
    eos_token_id: int | None = 50279,
    pad_token_id: int | None = 1,
    segment_before_tokenization: bool = False,
    encode_special_tokens: bool = False,
    seed: int = 3920,
    metadata_dir: str | None = None,  # noqa: ARG001 - a killed run is resumed without it
    max_size: int = 1024 * 1024 * 1024,
    dtype: str = "uint16",
    debug: bool = False,
    sample_ring_prop: bool = False,
    refresh_tokenizer: int = 0,
    use_fast_tokenizer: bool = True,
    text_field_name: str = "text",
    text_field_type: str = "str",
    id_field_name: str | None = "id",
    id_field_type: str = "str",
) -> None:
    """Run the command ``tokens`` with these options.

    Raises:
        TypeError: `dtype` is not that of the tokenizer's ids.
        FeedmillError: the command failed.
    """
    from feedmill.compat.dolma.tokenizer.tokenizer import Tokenizer
    from feedmill.compat.dolma.tokens import tokens

    needed = Tokenizer.from_file(str(tokenizer_name_or_path)).dtype
    if np.dtype(dtype) != needed:
        raise TypeError(f"the dtype {dtype} is not that of the tokenizer's ids, which is {needed}")
    options: dict[str, Any] = {
        "tokenizer.name_or_path": tokenizer_name_or_path,
        "tokenizer.bos_token_id": bos_token_id,
        "tokenizer.eos_token_id": eos_token_id,
        "tokenizer.pad_token_id": pad_token_id,
        "tokenizer.segment_before_tokenization": segment_before_tokenization,
        "tokenizer.encode_special_tokens": encode_special_tokens,
        "tokenizer.refresh": refresh_tokenizer,
        "tokenizer.fast": use_fast_tokenizer,
        "fields.text_field_name": text_field_name,
        "fields.text_field_type": text_field_type,
        "fields.id_field_name": id_field_name,
        "fields.id_field_type": id_field_type,
    }
    config: dict[str, Any] = {
        "documents": list(sources),
        "destination": destination,
        "processes": num_writers,
        "files_per_process": num_readers,
        "batch_size": local_shuffle,
        "ring_size": ring_size,
        "seed": seed,
        "max_size": max_size,
        "dtype": dtype,
        "debug": debug,
        "sample_ring_prop": sample_ring_prop,
    }
    for name, value in options.items():
        group, _, key = name.partition(".")
        config.setdefault(group, {})[key] = value
    tokens((), config, False)
