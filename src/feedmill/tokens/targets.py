"""Writers for any token format, chosen by the end of the target's name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import Int64s, Tokens, TokenWriter
from feedmill.formats.tokens.manifest import SUFFIX as MANIFEST
from feedmill.formats.tokens.suffixes import FORMATS
from feedmill.storage import Store, open_store, split_url
from feedmill.tokens.corpus import LINES, Corpus, format_of

_PART = re.compile(r"\{part(?::0?(\d+))?\}")
_NEWLINE = 10


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


def form_for(target: str, corpus: Corpus, *, drop_loss: bool = False) -> Form:
    """How a corpus is stored under a name.

    Args:
        drop_loss: write formats that keep no mask of the tokens to be learned, and lose it.

    Raises:
        ConfigError: the format cannot keep what the corpus has.
    """
    format = format_of(target)
    if (format == LINES) != (corpus.format == LINES):
        raise ConfigError(
            "lines of text are written to '.jsonl' files, and only they are",
            file=target,
            kind="mixed-formats",
            fix="Give the output the ending of the inputs; 'feedmill tokenize' makes tokens of text.",
        )
    loss = corpus.has_loss and not drop_loss
    if loss and format != "ds":
        raise ConfigError(
            "this format has no place for the masks of tokens to be learned, which the inputs have",
            file=target,
            kind="no-loss-mask",
            fix="Write '.ds', or add --drop-loss.",
        )
    size = corpus.token_size
    name = corpus.tokenizer.name if corpus.tokenizer is not None and not corpus.name else corpus.name
    return Form(format, max(size, 2) if format in ("ds", "megatron", "dolma") else size, name or None, loss)


@contextmanager
def write_documents(store: Store, path: str, form: Form) -> Iterator[TokenWriter]:
    """The writer of one file of this form; it appears when the block ends without an error."""
    if form.format == LINES:
        with store.write(path) as file:
            yield LineWriter(file)
    elif form.format == "pbin":
        from feedmill.formats.tokens.pbin import write_pbin

        with write_pbin(store, path, form.token_size) as pbin:
            yield pbin
    elif form.format == "ds":
        from feedmill.formats.tokens.ds import write_ds

        with write_ds(store, path, form.token_size, tokenizer_name=form.tokenizer, loss=form.loss) as ds:
            yield ds
    elif form.format == "megatron":
        from feedmill.formats.tokens.megatron import write_megatron

        with write_megatron(store, path[:-4], "<u2" if form.token_size == 2 else "<i4") as megatron:
            yield megatron
    else:
        raise ConfigError(
            f"merging and shuffling do not write {form.format} files",
            file=store.locate(path),
            kind="unknown-format",
            fix="Name a target that ends in .pbin, .ds, .bin or .jsonl.",
        )


def main_file(path: str) -> str:
    """The file by which a target is recognised: it appears last, and the manifest is named after it."""
    return path[:-4] + ".idx" if path.endswith(".bin") else path


def has_parts(target: str) -> bool:
    """Whether a target stands for several files."""
    return _PART.search(target) is not None


def part_path(target: str, part: int | str) -> str:
    """The path of one part: ``{part}`` is its name, or its number in five digits (``{part:3}``: in three).

    >>> part_path("x_{part}.ds", 7), part_path("{part:03}_x.ds", 7), part_path("x.{part}.ds", "val")
    ('x_00007.ds', '007_x.ds', 'x.val.ds')
    """
    return _PART.sub(lambda m: part if isinstance(part, str) else f"{part:0{int(m[1] or 5)}d}", target)


def higher_parts(target: str, first: int) -> list[str]:
    """The paths of numbered parts that are there, from number `first` up to the first one that is not."""
    found: list[str] = []
    while has_parts(target):
        path = part_path(target, first + len(found))
        folder, name = split_url(path)
        if not open_store(folder).exists(main_file(name)):
            break
        found.append(path)
    return found


def remove_part(path: str, format: str) -> None:
    """Remove one part with its manifest. The file by which it is recognised goes last: a killed run leaves it."""
    folder, name = split_url(path)
    store, main = open_store(folder), main_file(name)
    suffixes = FORMATS[format] if format != LINES else (".jsonl",)
    stem = main.removesuffix(suffixes[0])
    for other in (main + MANIFEST, *(stem + suffix for suffix in suffixes[1:]), main):
        store.delete(other)


def need_parts(target: str, why: str) -> None:
    """Raises `ConfigError` where a target of several files does not say where their names differ."""
    if not has_parts(target):
        stem, dot, suffix = target.rpartition(".")
        raise ConfigError(
            f"{why} writes several files, and their names are the same",
            file=target,
            kind="no-part",
            fix=f"Write {{part}} where the part's name or number belongs, e.g. {stem}_{{part}}{dot}{suffix}.",
        )


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
