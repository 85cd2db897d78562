"""The formats that tokenizing writes: names of their files, sizes of their tokens, their writers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.tokens.suffixes import FORMATS
from feedmill.formats.tokens.vla_text import SEQUENCES, shard_files, write_vla_text
from feedmill.storage import Store, open_store, split_url

_STRIP = (".pbin", ".ds", ".idx", ".bin", ".npy")


@dataclass(frozen=True, slots=True)
class Output:
    """One dataset to be written.

    Attributes:
        format: a key of `FORMATS`.
        store, stem: where: the files are ``<stem><suffix>``.
        dtype: of a token as stored.
        sequence, shard: of ``vla-text``: tokens of a sequence, sequences of a shard.
    """

    format: str
    store: Store
    stem: str
    dtype: np.dtype[Any]
    sequence: int = 0
    shard: int = 0

    @property
    def path(self) -> str:
        """The file by which the format is recognised; the manifest lies beside it."""
        return self.stem + FORMATS[self.format][0]

    @property
    def url(self) -> str:
        """Its full path."""
        return self.store.locate(self.path)

    def sizes(self) -> dict[str, int]:
        """Name -> bytes of the files that are there; of shards only where their manifest is."""
        return sizes_of(self.format, self.store, self.stem)

    def open(self, tokenizer_name: str, loss: bool) -> AbstractContextManager[Any]:
        """The format's writer."""
        if self.format == "pbin":
            from feedmill.formats.tokens.pbin import write_pbin

            return write_pbin(self.store, self.path, self.dtype.itemsize)
        if self.format == "ds":
            from feedmill.formats.tokens.ds import write_ds

            return write_ds(self.store, self.path, self.dtype.itemsize, tokenizer_name=tokenizer_name, loss=loss)
        if self.format == "megatron":
            from feedmill.formats.tokens.megatron import write_megatron

            return write_megatron(self.store, self.stem, self.dtype)
        if self.format == "vla-text":
            return write_vla_text(self.store, self.stem, self.sequence, self.shard)
        from feedmill.formats.tokens.dolma import write_dolma

        return write_dolma(self.store, self.path, self.dtype)


def sizes_of(format: str, store: Store, stem: str) -> dict[str, int]:
    """What a manifest says of the files of one dataset, see `Output.sizes`."""
    names = [stem + suffix for suffix in FORMATS[format]]
    if format == "vla-text" and store.exists(names[0]):
        names += shard_files(store, stem)
    return {name.rpartition("/")[2]: store.stat(name).size for name in names if store.exists(name)}


def plan_outputs(
    output: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
    formats: Sequence[str],
    *,
    vocab_size: int,
    base_vocab_size: int,
    largest: int,
    token_size: int | None,
    seq_len: int | None = None,
    shard: int | None = None,
) -> list[Output]:
    """Where each format goes and how large its tokens are, by the format's own rule.

    Args:
        output: a path; the suffix of each format is added to it, in place of one that it has. Or a mapping from each
            format to its path.
        vocab_size, base_vocab_size: of the tokenizer, with and without added tokens (Modalities counts without).
        largest: an id that has to fit whatever the rule says: of BOS and EOS.
        token_size: bytes, in place of the rules.
        seq_len, shard: what ``vla-text`` needs: the sequence length of the training program; sequences of a shard.

    Raises:
        ConfigError: an unknown format, or a token size that it does not have.
    """
    paths = output if isinstance(output, Mapping) else dict.fromkeys(formats, output)
    out = []
    for name, path in paths.items():
        if name not in FORMATS:
            raise ConfigError(f"there is no token format {name!r}", fix=f"Use some of {', '.join(FORMATS)}.")
        folder, last = split_url(os.fspath(path))
        for suffix in _STRIP:
            last = last.removesuffix(suffix)
        if not last or (os.fspath(path).endswith("/") and name != "vla-text"):
            raise ConfigError("the output has no name", file=os.fspath(path), fix="Add the name of a file to the path.")
        dtype = _dtype(name, vocab_size, base_vocab_size, largest, token_size)
        sequence = (seq_len or 0) + 1 if name == "vla-text" else 0
        out.append(Output(name, open_store(folder), last, dtype, sequence, shard or SEQUENCES if sequence else 0))
    if (seq_len is None) == ("vla-text" in paths):
        raise ConfigError(
            "'vla-text', and it alone, is written in sequences of a length",
            kind="no-sequence-length" if seq_len is None else "unknown-option",
            fix="Add --seq-len N, that of the training program." if seq_len is None else "Leave --seq-len out.",
        )
    if not out:
        raise ConfigError("no format is named", fix=f"Use some of {', '.join(FORMATS)}.")
    return out


def _dtype(name: str, vocab_size: int, base: int, largest: int, token_size: int | None) -> np.dtype[Any]:
    allowed = {"pbin": (1, 2, 4), "ds": (2, 4), "megatron": (2, 4), "dolma": (1, 2, 4), "vla-text": (1, 2, 4)}[name]
    if token_size is not None:
        if token_size not in allowed:
            sizes = ", ".join(map(str, allowed))
            raise ConfigError(
                f"{name} has no tokens of {token_size} bytes", kind="bad-token-size", fix=f"It has {sizes}."
            )
        return np.dtype("<i4" if name == "megatron" and token_size == 4 else f"<u{token_size}")
    if name == "vla-text":  # numbers in JSON
        return np.dtype("<u4")
    if name == "pbin":
        from feedmill.formats.tokens.pbin import token_size as pbin_token_size

        return np.dtype(f"<u{max(pbin_token_size(max(base, 1)), pbin_token_size(largest + 1))}")
    if name == "ds":
        from feedmill.formats.tokens.ds import ds_token_size

        return np.dtype(f"<u{ds_token_size(vocab_size)}")
    if name == "megatron":
        from feedmill.formats.tokens.megatron import megatron_dtype

        return megatron_dtype(vocab_size)
    from feedmill.formats.tokens.dolma import dolma_dtype

    return dolma_dtype(vocab_size)
