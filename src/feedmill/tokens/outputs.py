"""Token files as outputs of any verb: formats, file names and numbers, sizes, and writers."""

from __future__ import annotations

import logging
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from feedmill.documents.lineage.sidecar import lineage_of, lineage_path
from feedmill.errors import ConfigError
from feedmill.formats.format import named
from feedmill.formats.registry import families, targets
from feedmill.formats.tokens.base import Form, Int64s, TokenFormat, Tokens, TokenWriter, VocabularySizes
from feedmill.formats.tokens.manifest import manifest_path
from feedmill.formats.tokens.vla_text import SEQUENCES, shard_files, write_vla_text
from feedmill.jobs.engine import current
from feedmill.kernels.bounds import bounds_of
from feedmill.storage import Store, open_store, split_url

logger = logging.getLogger("feedmill")

FORMATS: Final[dict[str, tuple[str, ...]]] = {name: target.ends for name, target in targets().items() if target.ends}
"""Format -> suffixes of a dataset's files; the first one identifies the dataset."""
_BESIDE = (".loss", ".bounds")
"""Suffixes of files that only some datasets have."""
LINES = "jsonl"
"""Format of lines of text, which rewriting verbs treat as documents of bytes."""
_NEWLINE = 10
_STRIP = tuple(end for target in targets().values() for end in target.strip)
SUFFIXES = {**{end: format.name for format in families("tokens") for end in format.files}, ".jsonl": LINES}
"""Format names by file suffix."""
LARGE_FILE = 8 * 10**9
"""Bytes of one output file from which an engine is of little use: a machine writes them in tens of seconds at best."""
_BYTES_PER_TOKEN = 4
"""Of text, about; for a warning."""
_PART = re.compile(r"\{part(?::0?(\d+))?\}")
_NUMBERS = re.compile(r"\{(\d+)\.\.(\d+)\}")

Ends = tuple[Int64s, Int64s]
"""Tokens and documents before each unit, and of all units, int64[n + 1] each; see `file_bytes`."""


def format_of(path: str) -> str:
    """Return the format of a file by its suffix. Raises `ConfigError` if no format has that suffix."""
    suffix = path[path.rfind(".") :] if "." in path.rpartition("/")[2] else ""
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"no format has files with the suffix {suffix!r}" if suffix else "the file has no suffix",
            file=path,
            kind="unknown-format",
            fix=f"Use one of the suffixes {', '.join(SUFFIXES)}.",
        )
    return SUFFIXES[suffix]


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

    def form(self, tokenizer_name: str, loss: bool, sentences: bool = False) -> Form:
        """Return how documents are stored."""
        kept = loss and keeps_loss(self.format)
        return Form(self.format, self.dtype.itemsize, tokenizer_name, kept, sentences, self.sequence, self.shard)


def write_documents(store: Store, path: str, form: Form) -> AbstractContextManager[TokenWriter]:
    """Return the writer of one file of this form; it is published if the block ends without an error."""
    if form.format == LINES:
        return _write_lines(store, path)
    if form.sequence:
        return write_vla_text(store, stem_of(form.format, path), form.sequence, form.shard)
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


def suffixes_of(format: str) -> tuple[str, ...]:
    """Return the suffixes of the files of one dataset of tokens, or of lines."""
    return (".jsonl",) if format == LINES else FORMATS[format]


def stem_of(format: str, main: str) -> str:
    """Return the stem of the files of a dataset, given the file that identifies it."""
    return main.removesuffix(suffixes_of(format)[0])


def keeps_loss(format: str) -> bool:
    """Return whether files of a format have a loss mask, if there is one."""
    return format != LINES and "loss" in targets()[format].keeps


def already_exists(url: str) -> ConfigError:
    """Return the error for an output that must not be replaced."""
    fix = "Add --overwrite to replace it, or choose another output."
    return ConfigError("the output already exists", file=url, kind="exists", fix=fix)


def sizes_of(format: str, store: Store, stem: str) -> dict[str, int]:
    """Return the sizes of the files of one dataset, see `Output.sizes`."""
    names = [*(stem + suffix for suffix in suffixes_of(format)), *shards_of(format, store, stem)]
    return {name.rpartition("/")[2]: store.stat(name).size for name in names if store.exists(name)}


def shards_of(format: str, store: Store, stem: str) -> list[str]:
    """Return the shards of a dataset, if its format has shards and their manifest exists."""
    has_shards = (
        format != LINES and targets()[format].form == "sequences" and store.exists(stem + suffixes_of(format)[0])
    )
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
    stem = stem_of(format, main)
    place, lineage = lineage_of(store.locate(main))
    place.delete(lineage)
    for other in (manifest_path(main), *(stem + suffix for suffix in suffixes_of(format)[1:]), main):
        store.delete(other)


def files_of_part(path: str, format: str) -> list[str]:
    """Return the paths or URLs of the files that one part can have, with those beside it."""
    main = main_file(path)
    beside = [manifest_path(main), lineage_path(main)]
    folder, stem = split_url(stem_of(format, main))
    store, ends = open_store(folder), suffixes_of(format)
    return [*beside, *(store.locate(name) for name in (*(stem + end for end in ends), *shards_of(format, store, stem)))]


def numbered_paths(pattern: str) -> list[str]:
    """Return the paths of the numbered files that a report names by one pattern.

    >>> numbered_paths("x_{00008..00010}.ds")
    ['x_00008.ds', 'x_00009.ds', 'x_00010.ds']
    """
    match = _NUMBERS.search(pattern)
    if match is None:
        return [pattern]
    low, high = match.groups()
    return [_NUMBERS.sub(f"{number:0{len(low)}d}", pattern) for number in range(int(low), int(high) + 1)]


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
