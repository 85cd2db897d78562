"""Choose the format and file names of the outputs of merge, shuffle, split and filter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import Form, Int64s
from feedmill.formats.tokens.manifest import manifest_path
from feedmill.storage import open_store, split_url
from feedmill.tokens.corpus import Corpus, format_of
from feedmill.tokens.orders import Numbers
from feedmill.tokens.outputs import FORMATS, LINES, main_file

_HEADERS = 64
"""Bytes of a file, at most, that are neither tokens nor an entry of a document."""
_ENTRIES = {"pbin": 20, "ds": 8, "megatron": 20}
"""Bytes of the index per document, at most: in the same file for a ``.pbin``, else in a file of its own."""

_PART = re.compile(r"\{part(?::0?(\d+))?\}")


class Part(NamedTuple):
    """One file to write: its path or URL, and the numbers of the units it contains, in order."""

    path: str
    numbers: Numbers


def form_for(target: str, corpus: Corpus, *, drop_loss: bool = False) -> Form:
    """Return the form in which a corpus is stored under a name.

    Args:
        drop_loss: allow formats without a loss mask, and drop the mask.

    Raises:
        ConfigError: the format cannot keep what the corpus has.
    """
    format = format_of(target)
    if (format == LINES) != (corpus.format == LINES):
        raise ConfigError(
            "lines of text can only be written to '.jsonl' files, and tokens cannot",
            file=target,
            kind="mixed-formats",
            fix="Use the suffix of the inputs for the output. To tokenize text, use 'feedmill tokenize'.",
        )
    if format not in ("pbin", "ds", "megatron", LINES):
        raise ConfigError(
            f"merging and shuffling do not write {format} files",
            file=target,
            kind="unknown-format",
            fix="Use a target that ends in .pbin, .ds, .bin or .jsonl.",
        )
    loss = corpus.has_loss and not drop_loss
    if loss and format != "ds":
        raise ConfigError(
            "this format cannot store the loss masks that the inputs have",
            file=target,
            kind="no-loss-mask",
            fix="Write a '.ds' file, or add --drop-loss.",
        )
    size = corpus.token_size
    name = corpus.tokenizer.name if corpus.tokenizer is not None and not corpus.name else corpus.name
    return Form(format, max(size, 2) if format in ("ds", "megatron") else size, name or None, loss)


def has_parts(target: str) -> bool:
    """Return whether a target stands for several files."""
    return _PART.search(target) is not None


def part_path(target: str, part: int | str) -> str:
    """Return the path of one part: ``{part}`` is its name, or its number in five digits (``{part:3}``: in three).

    >>> part_path("x_{part}.ds", 7), part_path("{part:03}_x.ds", 7), part_path("x.{part}.ds", "val")
    ('x_00007.ds', '007_x.ds', 'x.val.ds')
    """
    return _PART.sub(lambda m: part if isinstance(part, str) else f"{part:0{int(m[1] or 5)}d}", target)


def higher_parts(target: str, first: int) -> list[str]:
    """Return the paths of existing numbered parts, from number `first` up to the first missing one."""
    found: list[str] = []
    while has_parts(target):
        path = part_path(target, first + len(found))
        folder, name = split_url(path)
        if not open_store(folder).exists(main_file(name)):
            break
        found.append(path)
    return found


def remove_part(path: str, format: str) -> None:
    """Remove one part with its manifest. Its identifying file is removed last, so that a killed run can resume."""
    folder, name = split_url(path)
    store, main = open_store(folder), main_file(name)
    suffixes = FORMATS[format] if format != LINES else (".jsonl",)
    stem = main.removesuffix(suffixes[0])
    for other in (manifest_path(main), *(stem + suffix for suffix in suffixes[1:]), main):
        store.delete(other)


def numbered_parts(target: str, rows: Sequence[Numbers]) -> list[Part]:
    """Return a part for each list of units, numbered if the target stands for several files."""
    return [Part(part_path(target, number), row) for number, row in enumerate(rows)]


def numbered_target(target: str) -> str:
    """Return a target of several files: ``_{part}`` is added before the suffix if it has no ``{part}``.

    >>> numbered_target("out/x.ds"), numbered_target("{part}_x.ds")
    ('out/x_{part}.ds', '{part}_x.ds')
    """
    stem, dot, suffix = target.rpartition(".")
    return target if has_parts(target) else f"{stem}_{{part}}{dot}{suffix}"


def stored_bytes(form: Form, tokens: Int64s, documents: Int64s) -> Int64s:
    """Return the bytes that units take in the larger file of a form, at most, int64[n].

    Args:
        tokens: tokens of each unit, int64[n]; for lines, their bytes.
        documents: documents of each unit, int64[n]; for lines, 1 for a line that may lack its newline, else 0.
    """
    if form.format == LINES:
        return tokens + documents
    data, entries = tokens * form.token_size, documents * _ENTRIES[form.format]
    return data + entries if form.format == "pbin" else np.maximum(data, entries)


def cut_by_size(form: Form, sizes: Int64s, limit: int) -> list[slice]:
    """Return the units of each file, so that no file has more than `limit` bytes unless it is a single larger unit.

    Args:
        sizes: see `stored_bytes`.

    Raises:
        ConfigError: the limit is not positive.
    """
    if limit < 1:
        raise ConfigError(f"a limit of {limit} bytes per file", kind="bad-limit", fix="Give 1 or more.")
    most = limit if form.format == LINES else limit - _HEADERS
    ends, first, out = np.cumsum(sizes), 0, []
    while first < len(ends):
        base = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, base + most, side="right")))
        out.append(slice(first, last))
        first = last
    return out


def need_parts(target: str, why: str) -> None:
    """Raise `ConfigError` if a target of several files contains no ``{part}``."""
    if not has_parts(target):
        stem, dot, suffix = target.rpartition(".")
        raise ConfigError(
            f"{why} writes several files, but the output has a single name",
            file=target,
            kind="no-part",
            fix=f"Add {{part}} to the output, for the part's name or number, e.g. {stem}_{{part}}{dot}{suffix}.",
        )
