"""Token files as outputs of any verb: file names, token sizes and writers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.format import named
from feedmill.formats.registry import targets
from feedmill.formats.tokens.base import Form, Int64s, TokenFormat, Tokens, TokenWriter, VocabularySizes
from feedmill.formats.tokens.vla_text import SEQUENCES, shard_files, write_vla_text
from feedmill.storage import Store, open_store, split_url
from feedmill.storage.hashed import hashed_store

FORMATS: Final[dict[str, tuple[str, ...]]] = {name: target.ends for name, target in targets().items() if target.ends}
"""Format -> suffixes of a dataset's files; the first one identifies the dataset."""
_BESIDE = (".loss", ".bounds")
"""Suffixes of files that only some datasets have."""
LINES = "jsonl"
"""Format of lines of text, which rewriting verbs treat as documents of bytes."""
_NEWLINE = 10
_STRIP = tuple(end for target in targets().values() for end in target.strip)


@dataclass(frozen=True, slots=True)
class Output:
    """A dataset to write.

    Attributes:
        format: a key of `FORMATS`.
        store, stem: location; the files are ``<stem><suffix>``.
        dtype: type of a stored token.
        sequence, shard: for ``vla-text``: tokens per sequence, and sequences per shard.
        max_size: bytes of a file at most; `stem` has ``{part}`` for its number. 0 for one file of any size.
        single: with `max_size`, the stem of the single file in whose place the numbered files are, if any.
    """

    format: str
    store: Store
    stem: str
    dtype: np.dtype[Any]
    sequence: int = 0
    shard: int = 0
    max_size: int = 0
    single: str = ""

    @property
    def path(self) -> str:
        """Path of the file that identifies the dataset. The manifest is next to it."""
        return self.stem + FORMATS[self.format][0]

    @property
    def url(self) -> str:
        """Full path of `path`."""
        return self.store.locate(self.path)

    def sizes(self) -> dict[str, int]:
        """Return file name -> size in bytes of the existing files; of shards only if their manifest exists."""
        return sizes_of(self.format, self.store, self.stem)

    def hashed(self) -> tuple[Output, dict[str, str]]:
        """Return the same output, and a mapping that receives the hash of each written file by path."""
        store, hashes = hashed_store(self.store)
        return replace(self, store=store), hashes

    def form(self, tokenizer_name: str, loss: bool, sentences: bool = False) -> Form:
        """Return how documents are stored."""
        kept = loss and "loss" in targets()[self.format].keeps
        return Form(self.format, self.dtype.itemsize, tokenizer_name, kept, sentences)

    def open(self, tokenizer_name: str, loss: bool, sentences: bool = False) -> AbstractContextManager[TokenWriter]:
        """Return the format's writer."""
        if targets()[self.format].form == "sequences":
            return write_vla_text(self.store, self.stem, self.sequence, self.shard)
        return write_documents(self.store, self.path, self.form(tokenizer_name, loss, sentences))


def write_documents(store: Store, path: str, form: Form) -> AbstractContextManager[TokenWriter]:
    """Return the writer of one file of this form; it is published if the block ends without an error."""
    if form.format == LINES:
        return _write_lines(store, path)
    return token_format(form.format).open(store, path, form)


def token_format(name: str) -> TokenFormat:
    """Return the writing interface of a token format."""
    found: TokenFormat = named(targets()[name].writer)
    return found


@contextmanager
def _write_lines(store: Store, path: str) -> Iterator[LineWriter]:
    with store.write(path) as file:
        yield LineWriter(file)


class LineWriter:
    """Writer of documents of bytes as lines. A newline is added to a line that lacks one (the last line of a file)."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, tokens: Tokens, lengths: Int64s, loss: npt.NDArray[Any] | None = None) -> None:  # noqa: ARG002
        """Append lines, see `TokenWriter.add`."""
        ends = np.cumsum(lengths)[np.asarray(lengths) > 0]
        open_ends = ends[tokens[ends - 1] != _NEWLINE]
        if len(open_ends):
            tokens = np.insert(tokens, open_ends, _NEWLINE)
        self._file.write(np.ascontiguousarray(tokens, np.uint8).data)


def main_file(path: str) -> str:
    """Return the file that identifies a target: it is published last, and the manifest is named after it."""
    return path[:-4] + ".idx" if path.endswith(".bin") else path


def data_files(format: str, stem: str) -> list[str]:
    """Return the files that every dataset of a token format has; the largest one, with the tokens, is the first.

    >>> data_files("megatron", "x"), data_files("pbin", "x")
    (['x.bin', 'x.idx'], ['x.pbin'])
    """
    found = [stem + end for end in FORMATS[format] if not end.endswith(_BESIDE)]
    return sorted(found, key=lambda name: not name.endswith(".bin"))


def sizes_of(format: str, store: Store, stem: str) -> dict[str, int]:
    """Return the sizes of the files of one dataset, see `Output.sizes`."""
    names = [*(stem + suffix for suffix in FORMATS[format]), *shards_of(format, store, stem)]
    return {name.rpartition("/")[2]: store.stat(name).size for name in names if store.exists(name)}


def shards_of(format: str, store: Store, stem: str) -> list[str]:
    """Return the shards of a dataset, if its format has shards and their manifest exists."""
    has_shards = targets()[format].form == "sequences" and store.exists(stem + FORMATS[format][0])
    return shard_files(store, stem) if has_shards else []


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
    """Return the path and token size of each format, by the format's own rule.

    Args:
        output: a path; the suffix of each format replaces its suffix or is added. Or a mapping from format to path.
        vocab_size, base_vocab_size: sizes of the vocabulary with and without added tokens (Modalities excludes them).
        largest: the largest id of BOS and EOS, which must fit regardless of the rule.
        token_size: bytes per token, instead of the formats' rules.
        seq_len, shard: for ``vla-text``: the sequence length of the training program, and sequences per shard.

    Raises:
        ConfigError: a format is unknown, or does not support the token size.
    """
    paths = output if isinstance(output, Mapping) else dict.fromkeys(formats, output)
    out = []
    for name, path in paths.items():
        if name not in FORMATS:
            raise ConfigError(f"unknown token format {name!r}", fix=f"Use one or more of {', '.join(FORMATS)}.")
        folder, last = split_url(os.fspath(path))
        for suffix in _STRIP:
            last = last.removesuffix(suffix)
        if not last or (os.fspath(path).endswith("/") and targets()[name].form != "sequences"):
            raise ConfigError(
                "the output path has no file name", file=os.fspath(path), fix="Add a file name to the path."
            )
        dtype = _dtype(name, vocab_size, base_vocab_size, largest, token_size)
        sequence = (seq_len or 0) + 1 if targets()[name].form == "sequences" else 0
        out.append(Output(name, open_store(folder), last, dtype, sequence, shard or SEQUENCES if sequence else 0))
    if (seq_len is None) == any(targets()[name].form == "sequences" for name in paths):
        raise ConfigError(
            "--seq-len is required for 'vla-text', and unsupported for other formats",
            kind="missing-option" if seq_len is None else "unknown-option",
            fix="Add --seq-len N, as set in the training program." if seq_len is None else "Omit --seq-len.",
        )
    if not out:
        raise ConfigError("no format was given", fix=f"Use one or more of {', '.join(FORMATS)}.")
    return out


def _dtype(name: str, vocab_size: int, base: int, largest: int, token_size: int | None) -> np.dtype[Any]:
    allowed = targets()[name].token_sizes
    if token_size is not None:
        if token_size not in allowed:
            sizes = ", ".join(map(str, allowed))
            raise ConfigError(
                f"{name} cannot store tokens of {token_size} bytes", kind="bad-token-size", fix=f"It has {sizes}."
            )
        return token_format(name).sized(token_size) if targets()[name].form == "tokens" else np.dtype(f"<u{token_size}")
    if targets()[name].form == "sequences":  # numbers in JSON
        return np.dtype("<u4")
    return token_format(name).dtype(VocabularySizes(vocab_size, base, largest))
