"""Token files as they are written, by whichever verb: names of their files, sizes of their tokens, their writers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.registry import targets
from feedmill.formats.tokens.base import Int64s, Tokens, TokenWriter
from feedmill.formats.tokens.vla_text import SEQUENCES, shard_files, write_vla_text
from feedmill.storage import Store, open_store, split_url

FORMATS: Final[dict[str, tuple[str, ...]]] = {name: target.ends for name, target in targets().items() if target.ends}
"""Name -> ends of the names of one dataset's files; by the first it is recognised."""
LINES = "jsonl"
"""Lines of text are documents of bytes to the verbs that write files of documents."""
_NEWLINE = 10
_STRIP = tuple(end for target in targets().values() for end in target.strip)


@dataclass(frozen=True, slots=True)
class Form:
    """How documents are stored.

    Attributes:
        format: short name of the format.
        token_size: bytes per token.
        tokenizer: a tokenizer's name, for formats that keep one.
        loss: whether there is a mask of the tokens to be learned.
    """

    format: str
    token_size: int
    tokenizer: str | None = None
    loss: bool = False


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

    def open(self, tokenizer_name: str, loss: bool) -> AbstractContextManager[TokenWriter]:
        """The format's writer."""
        if self.format == "vla-text":
            return write_vla_text(self.store, self.stem, self.sequence, self.shard)
        return write_documents(self.store, self.path, Form(self.format, self.dtype.itemsize, tokenizer_name, loss))


def write_documents(store: Store, path: str, form: Form) -> AbstractContextManager[TokenWriter]:
    """The writer of one file of this form; it appears when the block ends without an error."""
    if form.format == LINES:
        return _write_lines(store, path)
    if form.format == "pbin":
        from feedmill.formats.tokens.pbin import write_pbin

        return write_pbin(store, path, form.token_size)
    if form.format == "ds":
        from feedmill.formats.tokens.ds import write_ds

        return write_ds(store, path, form.token_size, tokenizer_name=form.tokenizer, loss=form.loss)
    if form.format == "megatron":
        from feedmill.formats.tokens.megatron import write_megatron

        return write_megatron(store, path[:-4], "<u2" if form.token_size == 2 else "<i4")
    from feedmill.formats.tokens.dolma import write_dolma

    return write_dolma(store, path, np.dtype(f"<u{form.token_size}"))


@contextmanager
def _write_lines(store: Store, path: str) -> Iterator[LineWriter]:
    with store.write(path) as file:
        yield LineWriter(file)


class LineWriter:
    """Documents of bytes as lines of a file. A line without its newline (the last one of a file) gets one."""

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
    """The file by which a target is recognised: it appears last, and the manifest is named after it."""
    return path[:-4] + ".idx" if path.endswith(".bin") else path


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
    allowed = targets()[name].token_sizes
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
