"""Choose the format and file names of the outputs of merge, shuffle, split and filter."""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from feedmill.documents.lineage.sidecar import lineage_of, lineage_path
from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import Form, Int64s
from feedmill.formats.tokens.manifest import manifest_path
from feedmill.jobs.engine import current
from feedmill.kernels.bounds import bounds_of
from feedmill.storage import open_store, split_url
from feedmill.tokens.corpus import Corpus, format_of
from feedmill.tokens.outputs import FORMATS, LINES, Output, main_file, shards_of, token_format
from feedmill.tokens.units import Numbers

logger = logging.getLogger("feedmill")

LARGE_FILE = 8 * 10**9
"""Bytes of one output file from which an engine is of little use: a machine writes them in tens of seconds at best."""
_BYTES_PER_TOKEN = 4
"""Of text, about; for a warning."""
_PART = re.compile(r"\{part(?::0?(\d+))?\}")

Ends = tuple[Int64s, Int64s]
"""Tokens and documents before each unit, and of all units, int64[n + 1] each; see `file_bytes`."""


class Part(NamedTuple):
    """One file to write: its path or URL, and the numbers of the units it contains, in order."""

    path: str
    numbers: Numbers


def form_for(target: str, corpus: Corpus, *, drop_loss: bool = False) -> Form:
    """Return the form in which a corpus is stored under a name.

    Args:
        drop_loss: drop the loss masks of the corpus.

    Raises:
        ConfigError: the format cannot store the corpus.
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
    place, lineage = lineage_of(store.locate(main))
    place.delete(lineage)
    for other in (manifest_path(main), *(stem + suffix for suffix in suffixes[1:]), main):
        store.delete(other)


def files_of_part(path: str, format: str) -> list[str]:
    """Return the paths or URLs of the files that one part can have, with those beside it."""
    main = main_file(path)
    beside = [manifest_path(main), lineage_path(main)]
    if format == LINES:
        return [main, *beside]
    ends = FORMATS[format]
    folder, stem = split_url(main.removesuffix(ends[0]))
    store = open_store(folder)
    return [*beside, *(store.locate(name) for name in (*(stem + end for end in ends), *shards_of(format, store, stem)))]


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


def file_bytes(form: Form, tokens: int, documents: int) -> int:
    """Return the bytes of the largest file of a form with these tokens and documents, or a little more.

    Args:
        tokens: number of tokens; for lines, their bytes.
        documents: number of documents; for lines, of lines that may lack their newline.
    """
    if form.format == LINES:
        return tokens + documents
    return int(token_format(form.format).largest(form, tokens, documents))


def that_fit(form: Form, limit: int, ends: Ends, first: int, have: tuple[int, int] = (0, 0)) -> int:
    """Return how many units, from number `first` on, fit in a file that has some tokens and documents already."""
    tokens, documents = ends

    def size(last: int) -> int:
        more = int(tokens[last] - tokens[first]), int(documents[last] - documents[first])
        return file_bytes(form, have[0] + more[0], have[1] + more[1])

    return bisect_right(range(first + 1, len(tokens)), limit, key=size)


def ends_of(tokens: Int64s, documents: Int64s) -> Ends:
    """Return the `Ends` of units with these tokens and documents, int64[n] each."""
    return bounds_of(tokens), bounds_of(documents)


def cut_by_size(form: Form, ends: Ends, limit: int) -> list[slice]:
    """Return the units of each file, so that no file has more than `limit` bytes unless it is a single larger unit.

    Raises:
        ConfigError: the limit is not positive.
    """
    if limit < 1:
        raise ConfigError(f"a limit of {limit} bytes per file", kind="bad-option", fix="Give 1 or more.")
    first, out = 0, []
    while first < len(ends[0]) - 1:
        last = first + max(1, that_fit(form, limit, ends, first))
        out.append(slice(first, last))
        first = last
    return out


def larger_files(form: Form, files: Sequence[tuple[int, int]], limit: int) -> str | None:
    """Return a note about the files that are larger than the limit; None if there are none.

    Args:
        files: tokens and documents of each; for lines, bytes and 0.
    """
    larger = sum(file_bytes(form, *counts) > limit for counts in files)
    if not larger:
        return None
    what = "lines" if form.format == LINES else form.format
    return (
        f"{larger:,} of {len(files):,} files ({what}) are larger than {limit:,} bytes: documents and chunks stay whole"
    )


def warn_of_one_file(output: str, size: int) -> None:
    """Warn that an output of about `size` bytes is one file, if other machines could write parts of it."""
    if current() is not None and size > LARGE_FILE:
        logger.warning(
            "%s: this is one file of about %.0f GB, which a single machine writes. --max-file-size 1GB writes numbered"
            " files, each by any machine",
            output,
            size / 1e9,
        )


def warn_of_large_files(outputs: Sequence[Output], text: int) -> None:
    """Warn of the outputs of about `text` bytes of documents, as `warn_of_one_file` does."""
    for out in outputs:
        if not out.sequence:
            warn_of_one_file(out.url, text // _BYTES_PER_TOKEN * out.dtype.itemsize)


def need_parts(target: str, why: str) -> None:
    """Raise `ConfigError` if a target of several files contains no ``{part}``."""
    if not has_parts(target):
        stem, dot, suffix = target.rpartition(".")
        raise ConfigError(
            f"{why} writes several files, but the output has a single name",
            file=target,
            kind="bad-option",
            fix=f"Add {{part}} to the output, for the part's name or number, e.g. {stem}_{{part}}{dot}{suffix}.",
        )
