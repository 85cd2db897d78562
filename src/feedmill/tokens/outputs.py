"""Token files as outputs of any verb: formats, file names and numbers, sizes, and how documents are written to them.

`new_file` is the one way to a file, with its manifest and lineage. `write_file` is a unit of a stage: it writes one
file, for which it finds the documents of a corpus by number. Another process, perhaps of another machine, maps the
order and the bounds of all documents from files in the work folder, so that a unit needs no memory for them. A finished
unit leaves a small file there, its mark.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import pickle
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO, Final, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.documents.lineage.sidecar import Origins, Runs, lineage_of, lineage_path, sequences_of
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.format import named
from feedmill.formats.registry import targets
from feedmill.formats.tokens.base import Form, Int64s, TokenFormat, Tokens, TokenShard, TokenWriter, VocabularySizes
from feedmill.formats.tokens.dolma import FORMAT as DOLMA
from feedmill.formats.tokens.dolma import DolmaWriter, Origin
from feedmill.formats.tokens.manifest import TokenManifest, manifest_path, read_manifest, with_files, write_manifest
from feedmill.formats.tokens.vla_text import SEQUENCES, shard_files, write_vla_text
from feedmill.jobs.engine import Where, current, is_shared
from feedmill.jobs.progress import Progress
from feedmill.kernels.bounds import bounds_of
from feedmill.storage import Store, open_store, split_url
from feedmill.storage.cache.copies import WORK, forget_copies, held_copy
from feedmill.storage.hashed import hashed_store
from feedmill.storage.remote.locks import ObjectLock
from feedmill.structs import decode_as
from feedmill.tokens.corpus import LINES, Corpus, Documents, Numbers, Units, gathered, main_file, reads_of
from feedmill.tokens.spill import PIECES

logger = logging.getLogger("feedmill")

FORMATS: Final[dict[str, tuple[str, ...]]] = {name: target.ends for name, target in targets().items() if target.ends}
"""Format -> suffixes of a dataset's files; the first one identifies the dataset."""
_BESIDE = (".loss", ".bounds")
"""Suffixes of files that only some datasets have."""
_NEWLINE = 10
_STRIP = tuple(end for target in targets().values() for end in target.strip)
LARGE_FILE = 8 * 10**9
"""Bytes of one output file from which an engine is of little use: a machine writes them in tens of seconds at best."""
_BYTES_PER_TOKEN = 4
"""Of text, about; for a warning."""
_PART = re.compile(r"\{part(?::0?(\d+))?\}")
_NUMBERS = re.compile(r"\{(\d+)\.\.(\d+)\}")

Ends = tuple[Int64s, Int64s]
"""Tokens and documents before each unit, and of all units, int64[n + 1] each; see `file_bytes`."""


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


_INLINE = 1 << 10
"""Bytes of an array up to which it is sent to other processes as it is."""
_MARK = "written-"
_BLOCK = 1 << 20
"""Units whose origins are found at once."""

Mask = Callable[[Tokens, Int64s, int], npt.NDArray[np.bool_]]
"""Function that returns the loss mask, bool[tokens], from ids, lengths, and the number of the first document."""


class NewFile:
    """A file that is being written; created by `new_file`.

    Attributes:
        writer: the writer of its format.
        documents, tokens: what was added; for lines, tokens are bytes.
        sizes, hashes: of its files, when it is published: name -> bytes, and path -> hash.
    """

    def __init__(self, writer: Any, form: Form, hashes: dict[str, str]) -> None:
        self.writer, self._form, self.hashes = writer, form, hashes
        self._loss = keeps_loss(form.format)
        self.documents = self.tokens = 0
        self.sizes: dict[str, int] = {}

    def add(
        self,
        tokens: Tokens,
        lengths: Int64s,
        loss: npt.NDArray[np.bool_] | None = None,
        origins: Sequence[Origin] | None = None,
    ) -> None:
        """Append documents, see `TokenWriter.add`; a mask and origins are dropped if the format keeps none."""
        loss = loss if self._loss else None
        if self._form.format == DOLMA:
            cast(DolmaWriter, self.writer).add(tokens, lengths, loss, origins=origins)
        else:
            self.writer.add(tokens, lengths, loss)
        self.documents, self.tokens = self.documents + len(lengths), self.tokens + len(tokens)


@contextmanager
def new_file(
    store: Store,
    path: str,
    form: Form,
    origins: Callable[[], Origins | None],
    manifest: Callable[[NewFile], TokenManifest | None],
    sequences: tuple[int, Sequence[Int64s]] | None = None,
) -> Iterator[NewFile]:
    """Write a file, which is published with its manifest and lineage if the block ends without an error.

    Args:
        path: the file that identifies the dataset, in `store`.
        origins: returns the origins of its documents when all were added; None if they are unknown.
        manifest: returns its manifest without sizes and hashes; None if it is written later.
        sequences: tokens of a sequence and of each document, if documents are cut into sequences.
    """
    view, hashes = hashed_store(store)
    place, lineage = lineage_of(store.locate(path)) if form.format == LINES else (store, lineage_path(path))
    with write_documents(view, path, form) as writer:
        file = NewFile(writer, form, hashes)
        yield file
        record = None if form.format == LINES else manifest(file)
        if record is not None:
            write_manifest(store, path, record)  # sizes are known when the files are published
        place.delete(lineage)
    if (found := origins()) is not None:
        cut = None
        if sequences is not None:
            size, lengths = sequences
            cut = sum(int(some.sum()) for some in lengths) // size, sequences_of(lengths, size)
        data = found.encoded(store.locate(path), store.stat(path).size, cut)
        place.write_bytes(lineage, data)
    file.sizes = sizes_of(form.format, store, stem_of(form.format, path))
    if form.format == LINES:
        (file.tokens,) = file.sizes.values()  # a newline is added to a last line without one
    if record is not None:
        write_manifest(store, path, with_files(record, file.sizes, hashes))


class WrittenFile(msgspec.Struct, frozen=True):
    """A finished file: its path as given, what it has, its files, and whether an earlier run wrote it."""

    path: str
    documents: int
    tokens: int
    sizes: dict[str, int] = {}
    hashes: dict[str, str] = {}
    reused: bool = False


@dataclass(frozen=True, slots=True)
class FileTask:
    """One file to write.

    Attributes:
        number: its number among all files of the stage; its units are this row of the job.
        path: path or URL.
        format: its format.
        inputs: numbers of the inputs that it was made from; None for all.
        options: options for its manifest, in addition to those of the job.
    """

    number: int
    path: str
    format: str
    inputs: Sequence[int] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.path


@dataclass(slots=True, kw_only=True)
class Files:
    """What all files of a stage have in common.

    Attributes:
        units: the documents, and how they are numbered.
        rows: numbers of the units of each file, in order.
        forms: format -> form of the files, and what their manifests have in common; None if these are written later.
        verb, options: for the lineage.
        inputs: path and bytes of the file that identifies each input, for the lineage.
        facts: facts about the inputs, for the manifests.
        mask: returns the loss mask, instead of the masks of the corpus.
        folder: the work folder.
        key: identifies the outputs, in the names of marks.
        overwrite: whether a file of another job is replaced.
        advance: called with the tokens written; in other processes, nothing is called.
    """

    units: Units
    verb: str
    inputs: list[tuple[str, int]]
    facts: list[dict[str, Any]]
    folder: Store
    key: str
    rows: list[Numbers] = field(default_factory=list)
    forms: dict[str, tuple[Form, TokenManifest | None]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    mask: Mask | None = None
    overwrite: bool = True
    advance: Callable[[int], None] | None = None
    _sent: tuple[bytes, tuple[Store, str] | None] | None = field(default=None, init=False, repr=False)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Return what other processes need; large arrays are in one file of the work folder, which they map."""
        if self._sent is None:
            units = copy.copy(self.units)
            units.corpus = _with_bounds(units.corpus)
            own = ("units", "advance", "_sent")
            job = {name: getattr(self, name) for name in self.__slots__ if name not in own}
            pickler = _Pickler(data := io.BytesIO())
            pickler.dump({**job, "units": units})
            self._sent = data.getvalue(), _stored(pickler.arrays, self.folder) if pickler.arrays else None
        return _received, self._sent

    def mark(self, task: FileTask) -> str:
        """Return the name of the mark of a file."""
        return os.path.join(marks(self.key), str(task.number))

    def finished(self, task: FileTask) -> WrittenFile | None:
        """Return a file that an earlier run has finished; None if there is none."""
        try:
            return decode_as(self.folder.read(self.mark(task)), WrittenFile)
        except (NotFound, msgspec.MsgspecError):
            return None

    def manifest(self, task: FileTask, file: NewFile) -> TokenManifest | None:
        """Return the manifest of a file, without sizes and hashes."""
        common = self.forms[task.format][1]
        if common is None:
            return None
        return msgspec.structs.replace(
            common,
            documents=file.documents,
            tokens=file.tokens,
            inputs=self.facts if task.inputs is None else [self.facts[number] for number in task.inputs],
            options={**common.options, **task.options},
        )

    def origins(self, task: FileTask) -> Origins | None:
        """Return where the documents of a file come from; None if an input has no index of documents."""
        origins, numbers = Origins(self.verb, self.options), np.full(len(self.inputs), -1, np.int64)
        for number in range(len(self.inputs)) if task.inputs is None else task.inputs:
            numbers[number] = origins.number(*self.inputs[number])
        row = self.rows[task.number]
        for low in range(0, len(row), _BLOCK):
            found = self.units.origins(np.asarray(row[low : low + _BLOCK], np.int64))
            if found is None:
                return None
            origins.add(Runs.of(numbers[found[0]], found[1]))
        return origins


def marks(key: str) -> str:
    """Return the name of the folder of marks in the work folder."""
    return f"{_MARK}{key}"


def remove_marks(folder: Store) -> None:
    """Remove marks of a finished job, whose process was killed while it removed its work folder."""
    for entry in list(folder.files()):
        if entry.path.startswith(_MARK):
            folder.delete(entry.path)


def main_of(path: str) -> tuple[Store, str]:
    """Return the store and path of the file that identifies a target."""
    folder, name = split_url(path)
    return open_store(folder), main_file(name)


def write_files(
    job: Files, tasks: Sequence[FileTask], workers: int | None, tokens: int, unit: str, shown: bool | None
) -> Iterator[WrittenFile]:
    """Write files as the units of a stage, except those that an earlier run finished. Yield them in order.

    Args:
        workers: processes; None for one per core.
        tokens: about the number of tokens of all files, for the progress bar, in the `unit`; `shown`: see `Progress`.
    """
    is_local = job.units.corpus.is_local
    from feedmill.jobs.engine import Policy
    from feedmill.jobs.run import run

    where, policy = Where("writing", job.key, job.folder, copies=not is_local), Policy(shared=job)
    try:
        with Progress("writing", tokens, unit, shown) as bar:
            job.advance = bar.advance
            written = 0
            results = run(write_file, tasks, policy=policy, workers=workers, preload=(__name__,), where=where)
            with closing(results):
                for file in results:
                    yield file
                    written += file.tokens
                    bar.advance(max(0, written - bar.done))  # what other processes have written
    finally:
        if not is_local:
            forget_copies()


def write_file(job: Files, task: FileTask) -> WrittenFile:
    """Write one file atomically, unless its mark shows that an earlier run has.

    Raises:
        ConfigError: the file exists, and is not of this job.
    """
    (store, main), (form, common) = main_of(task.path), job.forms[task.format]
    done = job.finished(task)
    sizes = {} if done is None and job.overwrite else sizes_of(task.format, store, stem_of(task.format, main))
    if done is not None and done.sizes == sizes:
        return msgspec.structs.replace(done, reused=True)
    if sizes and not job.overwrite and common is not None:
        _refuse_other(store, main, common)
    row = job.rows[task.number]
    # On an engine, the run has the lock of the output; one of a machine that is lost would never be released.
    lock = contextlib.nullcontext() if is_shared() else ObjectLock(store, split_url(task.path)[1], inside=True)
    new = new_file(store, main, form, lambda: job.origins(task), lambda file: job.manifest(task, file))
    with lock, new as file:
        for documents in documents_of(job.units, row, loss=form.loss and job.mask is None, ids=form.format == DOLMA):
            if job.mask is not None:
                mask = job.mask(documents.tokens, documents.lengths, file.documents)
                documents = documents._replace(loss=mask)
            file.add(*documents)
            if job.advance is not None:
                job.advance(len(documents.tokens))
    written = WrittenFile(task.path, file.documents, file.tokens, file.sizes, file.hashes)
    job.folder.write_bytes(job.mark(task), msgspec.json.encode(written))
    return written


class Batch(NamedTuple):
    """Documents as `NewFile.add` takes them."""

    tokens: Tokens
    lengths: Int64s
    loss: npt.NDArray[np.bool_] | None
    origins: Sequence[Origin] | None


def documents_of(units: Units, numbers: Numbers, *, loss: bool, ids: bool) -> Iterator[Batch]:
    """Yield the documents of units, in batches.

    Args:
        loss, ids: whether to read the loss mask, and the ids and origins.
    """
    corpus, first = units.corpus, 0
    reader = units.reader() if ids and isinstance(units, Documents) else None
    with corpus.mapped(reads_of(corpus, units, numbers)) as mapped:
        for tokens, lengths, mask in gathered(corpus, mapped, units, numbers, loss):
            last = first + len(lengths)
            origins = None if reader is None else reader(np.asarray(numbers[first:last], np.int64))
            yield Batch(tokens, lengths, mask, origins)
            first = last


def _refuse_other(store: Store, main: str, common: TokenManifest) -> None:
    found = read_manifest(store, main)
    if found is None or found.options.get("job") != common.options["job"]:
        raise already_exists(store.locate(main))


class _Pickler(pickle.Pickler):
    """Pickles a job of this process for its own units, and sets its large arrays apart."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.arrays: list[Int64s] = []
        self._size = 0

    def persistent_id(self, value: Any) -> tuple[int, int] | None:
        if not isinstance(value, np.ndarray) or value.dtype != np.int64 or value.nbytes <= _INLINE:
            return None
        self.arrays.append(value)
        self._size += len(value)
        return self._size - len(value), self._size


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, table: Int64s) -> None:
        super().__init__(io.BytesIO(data))
        self._table = table

    def persistent_load(self, place: Any) -> Int64s:
        return self._table[place[0] : place[1]]


def _received(data: bytes, table: tuple[Store, str] | None) -> Files:
    return Files(**_Unpickler(data, np.zeros(0, np.int64) if table is None else _mapped(*table)).load())


def _mapped(folder: Store, name: str) -> Int64s:
    """Return the numbers of a file, mapped: of a copy on this machine, if it is remote."""
    with held_copy(folder, name, kind=WORK) as held:  # its bytes stay mapped when it is removed
        return np.memmap(held.path, np.int64, "r")


def _stored(arrays: Sequence[Int64s], folder: Store) -> tuple[Store, str]:
    """Write arrays to a file that is named by their hash, unless it exists."""
    digest = xxhash.xxh3_128()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    name = f"numbers-{digest.hexdigest()}"
    if not folder.exists(name):
        with folder.write(name) as file:
            for array in arrays:
                file.write(np.ascontiguousarray(array).data)
    return folder, name


def _with_bounds(corpus: Corpus) -> Corpus:
    """Return a corpus that is sent with the bounds of its documents, which other processes would read or find again."""
    if corpus.format == PIECES:
        return corpus
    shards: list[tuple[Store, TokenShard]] = []
    for store, shard in corpus.shards:
        other = copy.copy(shard)
        if shard.indexed:
            other.load_bounds = partial(np.asarray, shard.bounds)
        shards.append((store, other))
    return replace(corpus, shards=shards)
