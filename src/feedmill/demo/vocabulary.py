"""Train a small tokenizer for the demo on its documents: byte-level BPE, because nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from feedmill.errors import MissingExtra
from feedmill.storage import Store

EOS = "<|endoftext|>"


def train_tokenizer(store: Store, texts: Iterable[str], vocab_size: int = 4096) -> int:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``, as Hugging Face's tools do. Return the vocabulary size.

    Raises:
        MissingExtra: the package `tokenizers` is not installed.
    """
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise MissingExtra("training a tokenizer needs the package tokenizers", "tokenize") from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    with store.write("tokenizer.json") as file:
        file.write(tokenizer.to_str().encode())
    with store.write("tokenizer_config.json") as file:
        file.write(orjson.dumps({"eos_token": EOS}))
    return int(tokenizer.get_vocab_size())
