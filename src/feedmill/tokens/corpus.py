"""Token files or JSONL files as one numbered sequence of documents, and reading these in any order.

Merge, shuffle, split and filter all write a selection of these documents, in some order, to new files. A line of text
is treated as a document of bytes, so that one implementation serves both. Of remote files, ranges are read, or copies.

What is ordered are units: whole documents, or chunks of a fixed number of tokens. Both map numbers to the spans of
tokens to write. A chunk covers parts of several documents. Each part is written as a separate document, so that
documents stay separated. Units are read in batches of bounded size. Within a batch, documents are read in stored order,
and adjacent ones at once, so that a merge copies and a shuffle reads forward.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.documents.file import SUFFIXES as DOCUMENTS
from feedmill.documents.file import is_hidden, kind_of
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.format import OpenRequest, named
from feedmill.formats.registry import by_name, families
from feedmill.formats.sniff import format_of_file
from feedmill.formats.tokens.base import Int64s, TokenDataset, Tokens, TokenShard, refuse_missing
from feedmill.formats.tokens.dolma import Origin, read_origins
from feedmill.formats.tokens.manifest import TokenizerFacts, TokenManifest, read_manifest
from feedmill.formats.unread_files import data_kind, is_about, listed
from feedmill.kernels.bounds import bounds_of, ranges
from feedmill.kernels.jsonl.lines import newlines
from feedmill.storage import Store, open_store, split_url
from feedmill.storage.cache.copies import WORK, copied_ranges, held_copy

LINES = "jsonl"
"""Format of lines of text, which rewriting verbs treat as documents of bytes."""
SUFFIXES = {**{end: format.name for format in families("tokens") for end in format.files}, ".jsonl": LINES}
"""Format names by file suffix."""
BIN = ".bin"
"""Suffix of files that may be chunks of a folder with an index of them."""
_FOLDERS = tuple(end for end in SUFFIXES if end != ".idx")


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


def main_file(path: str) -> str:
    """Return the file that identifies a target: it is published last, and the manifest is named after it."""
    return path[:-4] + ".idx" if path.endswith(".bin") else path


@dataclass(slots=True)
class Corpus:
    """Documents of several files, numbered consecutively.

    Attributes:
        shards: the files, each with its store.
        format: the format of all files; "tokens" if they differ.
        firsts: int64[shards + 1], the number of each file's first document, then the number of documents.
        dtype: a type that holds the tokens of all files as they are stored.
        token_size: bytes per token to write: 1, 2 or 4.
        tokenizer: the tokenizer that made the files; None if it is unknown or differs between files.
        manifests: the manifest of each file; None for a file without one.
        name: the tokenizer's name stored in the files themselves; "" if there is none or they differ.
        indexed: whether the number of documents of every file is known.
    """

    shards: list[tuple[Store, TokenShard]]
    format: str
    dtype: np.dtype[Any]
    token_size: int
    tokenizer: TokenizerFacts | None
    manifests: list[TokenManifest | None]
    name: str
    firsts: Int64s
    indexed: bool

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @property
    def tokens(self) -> int:
        """Number of tokens of all files; number of bytes for JSONL files."""
        return sum(shard.tokens for _, shard in self.shards)

    @property
    def is_local(self) -> bool:
        """Whether all files are on disks of this machine."""
        return all(store.is_local for store, _ in self.shards)

    @property
    def has_loss(self) -> bool:
        """Whether any file has a loss mask."""
        return any(shard.load_loss is not None for _, shard in self.shards)

    def facts(self) -> list[dict[str, Any]]:
        """Return the facts that identify each file's content, for manifests and for resuming a killed run."""
        return [
            {
                "path": store.locate(shard.path),
                "bytes": store.stat(shard.path).size,
                "version": store.stat(shard.path).version,
                "documents": shard.documents,
            }
            for store, shard in self.shards
        ]

    def main_files(self) -> list[tuple[str, int]]:
        """Return path and bytes of the file that identifies each input: the index, for Megatron's pair of files."""
        named = main_file if self.format == "megatron" else str
        names = [(store, named(shard.path)) for store, shard in self.shards]
        return [(store.locate(name), store.stat(name).size) for store, name in names]

    @contextmanager
    def mapped(self, reads: Mapping[int, Reads] | None = None) -> Iterator[Mapped]:
        """Map each file when it is first read; a remote file is copied to this machine until the context ends.

        Args:
            reads: what is read of each file. It decides what is copied of a remote file: the ranges, or all of it to
                the cache folder, for all processes of this machine.
        """
        with ExitStack() as stack:
            yield Mapped(stack, self, reads)


def open_corpus(inputs: Sequence[str], *, token_size: int | None = None, mixed: bool = False) -> Corpus:
    """Open token files, folders of them, or JSONL files as one sequence of documents, in the order given.

    A folder stands for all its files of one format, including those in subfolders, sorted by path.

    Args:
        inputs: paths or URLs.
        token_size: bytes per token to write; required if the files have different token sizes.
        mixed: allow files of different tokenizers.

    Raises:
        NotFound: an input does not exist.
        ConfigError: different formats, token sizes or tokenizers.
    """
    if not inputs:
        raise ConfigError("no input was given", fix="Pass at least one file.")
    sets = [opened for url in inputs for opened in open_sets(url)]
    formats = sorted({dataset.format for dataset in sets})
    if LINES in formats and len(formats) > 1:
        raise ConfigError(
            f"lines of text and tokens cannot be combined ({', '.join(formats)})",
            kind="mixed-formats",
            fix="Tokenize the JSONL files first.",
        )
    shards = [(dataset.store, shard) for dataset in sets for shard in dataset.shards]
    manifests = [read_manifest(store, shard.path) for store, shard in shards]
    if not mixed:
        _one_tokenizer(shards, manifests)
    names = {str(name) for dataset in sets if isinstance(name := dataset.about.get("tokenizer"), str)}
    known = [manifest.tokenizer for manifest in manifests if manifest is not None and manifest.tokenizer is not None]
    same = len(known) == len(shards) and len({facts.hash for facts in known}) == 1
    counts = [shard.documents or 0 for _, shard in shards]
    return Corpus(
        shards,
        formats[0] if len(formats) == 1 else "tokens",
        np.result_type(*(shard.dtype.newbyteorder("<") for _, shard in shards)),
        _token_size(shards, token_size),
        known[0] if same else None,
        manifests,
        names.pop() if len(names) == 1 else "",
        bounds_of(counts),
        all(shard.documents is not None for _, shard in shards),
    )


def open_sets(url: str) -> list[TokenDataset]:
    """Return the dataset at a path or URL; one per file for a folder."""
    folder, name = split_url(url)
    store = open_store(folder)
    is_folder = not name or (store.is_local and os.path.isdir(store.locate(name)))
    if not is_folder and name.endswith(BIN) and (whole := _listed(store, folder)) is not None:
        return [one for one in whole if one.shards[0].path == name]
    if not is_folder and (name.endswith(tuple(SUFFIXES)) or store.exists(name)):
        return [open_tokens(store, name, url)]
    if not is_folder and format_prefix(store, name):
        return [open_tokens(store, name + ".bin", url)]
    inside = open_store(url)
    if (whole := _listed(inside, url)) is not None:
        return whole
    everything = [entry.path for entry in inside.files(suffixes=(*_FOLDERS, *DOCUMENTS))]
    paths = [path for path in everything if path.endswith(_FOLDERS)]
    kinds = sorted({format_of(path) for path in paths})
    others = [path for path in everything if not path.endswith(_FOLDERS) and _is_missed(path, kinds)]
    if kinds and others:
        raise ConfigError(
            f"besides files of {', '.join(kinds)}, the folder has {listed(others)}, which would not be read",
            file=url,
            kind="mixed-formats",
            fix="Convert or move them, or pass the files to read instead of the folder.",
        )
    if len(kinds) != 1:
        raise (NotFound if not kinds else ConfigError)(
            "the folder has no token files"
            if not kinds
            else f"the folder has files of several formats ({', '.join(kinds)})",
            file=url,
            kind="no-tokens" if not kinds else "mixed-formats",
            fix=f"Token files end in {', '.join(_FOLDERS)}." if not kinds else "Pass the files instead.",
        )
    return [open_tokens(inside, path, inside.locate(path)) for path in paths]


def _is_missed(path: str, kinds: Sequence[str]) -> bool:
    """Return whether a file beside files of these formats is data that a reader of the folder misses."""
    if is_hidden(path):
        return False
    if kinds == [LINES]:
        return kind_of(path) is not None and not is_about(path)
    return data_kind(path) in ("JSON lines", "Parquet", "Arrow")  # .json and .txt beside tokens are about them


def _listed(store: Store, url: str) -> list[TokenDataset] | None:
    """Return the files that a folder's own index lists (LitData), each as a dataset; None if it has no such index.

    Raises:
        ConfigError: the tokens are not in files as they are (Levanter), so that they cannot be mapped.
    """
    for format in families("tokens"):
        if (format.marks or format.later_marks) and named(format.is_folder)(store) is not None:
            if not format.flat:
                raise ConfigError(
                    f"{format.title} has compressed tokens, which only 'convert', plans and loaders read",
                    file=url,
                    kind="unsupported",
                    fix=f"Convert it first: feedmill convert {url} OUT --to ds (or another format of tokens).",
                )
            dataset: TokenDataset = named(format.open)(OpenRequest(store, "", url))
            files = [(shard, store.locate(shard.path)) for shard in dataset.shards]
            return [TokenDataset(store, [shard], name=path, format=format.name) for shard, path in files]
    return None


def format_prefix(store: Store, name: str) -> bool:
    """Return whether a name without an ending is the prefix of Megatron's two files."""
    return store.exists(name + ".idx") and store.exists(name + ".bin")


def open_tokens(store: Store, path: str, url: str) -> TokenDataset:
    """Open a token file or a JSONL file. Raises what the format's own `open` raises."""
    kind = format_of(path)
    refuse_missing(store, path)
    if kind == LINES:
        return open_lines(store, path, url)
    format = format_of_file(store, path) or by_name()[kind]  # flat files have the suffixes of formats with an index
    dataset = named(format.open)(OpenRequest(store, path, url))
    assert isinstance(dataset, TokenDataset)
    return dataset


def open_lines(store: Store, path: str, url: str) -> TokenDataset:
    """Open the lines of a text file as documents of bytes, newlines included; the last line may lack one.

    Raises:
        NotFound: the file does not exist.
    """
    entry = store.stat(path)
    bounds = np.zeros(1, np.int64)
    if entry.size:
        from feedmill.storage.cache.mapped import mapped

        with mapped(store, path) as data:
            ends = newlines(data) + 1
        if not len(ends) or ends[-1] != entry.size:
            ends = np.append(ends, entry.size)
        bounds = np.concatenate((bounds, ends))
    shard = TokenShard(
        path, np.dtype("u1"), 0, entry.size, len(bounds) - 1, partial(_as_is, bounds), facts=(entry.version,)
    )
    return TokenDataset(store, [shard], name=url, format=LINES)


def _as_is(bounds: Int64s) -> Int64s:
    return bounds


def _token_size(shards: Sequence[tuple[Store, TokenShard]], wanted: int | None) -> int:
    if wanted is not None and wanted not in (1, 2, 4):
        raise ConfigError(f"invalid token size: {wanted} bytes", kind="bad-token-size", fix="Use 1, 2 or 4.")
    filled = [(store, shard) for store, shard in shards if shard.tokens] or list(shards)
    size = filled[0][1].dtype.itemsize
    for store, shard in filled:
        if wanted is None and shard.dtype.itemsize != size:
            raise ConfigError(
                f"it has {shard.dtype.itemsize} bytes per token,"
                f" {filled[0][0].locate(filled[0][1].path)} has {size}: they may be of different tokenizers",
                file=store.locate(shard.path),
                kind="bad-token-size",
                fix="If the tokenizer is the same, set the bytes per token to write, e.g. --token-size 4.",
            )
    return wanted or min(size, 4)


def _one_tokenizer(shards: Sequence[tuple[Store, TokenShard]], manifests: Sequence[TokenManifest | None]) -> None:
    first: tuple[str, TokenizerFacts] | None = None
    for (store, shard), manifest in zip(shards, manifests, strict=True):
        if manifest is None or manifest.tokenizer is None:
            continue
        where, facts = store.locate(shard.path), manifest.tokenizer
        if first is None:
            first = (where, facts)
        elif facts.hash != first[1].hash:
            raise ConfigError(
                f"it was made with the tokenizer {facts.name} ({facts.hash[:12]}), {first[0]} with {first[1].name}"
                f" ({first[1].hash[:12]})",
                file=where,
                kind="mixed-tokenizers",
                fix="Tokenize one of them again, or add --mixed-tokenizers if their ids mean the same.",
            )


FORGET = 64 << 20
"""Number of bytes read after which mapped pages are released, so that memory stays bounded."""
LARGE = 256 << 20
"""Total size in bytes above which scattered documents are read with `preadv` instead of through the mapping.

A mapping would keep all files in memory, and read more than needed where they are not in the page cache. Below this
size, mapped files are twice as fast."""


class Reads(NamedTuple):
    """What is read of one file.

    Attributes:
        begins, ends: int64[n], ranges of tokens, ascending, with small gaps bridged.
        tokens: number of tokens that are wanted.
    """

    begins: Int64s
    ends: Int64s
    tokens: int

    @property
    def scattered(self) -> bool:
        """Whether the ranges have more than a quarter beside what is wanted: small documents from everywhere."""
        return int((self.ends - self.begins).sum()) > self.tokens + self.tokens // 4


class _File(NamedTuple):
    """The tokens of one file, with the mapping and the open descriptor (None and -1 for an empty file)."""

    tokens: npt.NDArray[Any]
    mapping: mmap.mmap | None = None
    descriptor: int = -1
    offset: int = 0


class Mapped:
    """Mapped tokens of a corpus's files, and their loss masks on demand.

    Args:
        stack: closes the files.
        reads: see `Corpus.mapped`.
    """

    def __init__(self, stack: ExitStack, corpus: Corpus, reads: Mapping[int, Reads] | None = None) -> None:
        self._stack, self._corpus, self._reads = stack, corpus, reads
        self._files: dict[int, _File] = {}
        self._loss: dict[int, npt.NDArray[np.bool_]] = {}
        self._large = sum(shard.tokens * shard.dtype.itemsize for _, shard in corpus.shards) > LARGE
        self._alike = all(shard.dtype == corpus.dtype for _, shard in corpus.shards)
        self._read = 0

    def _file(self, number: int) -> _File:
        if number not in self._files:
            reads = None if self._reads is None else self._reads.get(number)
            self._files[number] = _map(self._stack, *self._corpus.shards[number], reads)
        return self._files[number]

    def tokens(self, number: int) -> npt.NDArray[Any]:
        """Return the tokens of a file. Raises `DataError` if it has become shorter since it was opened."""
        return self._file(number).tokens

    def loss(self, number: int) -> npt.NDArray[np.bool_]:
        """Return the loss mask of a file, bool[tokens]; all True for a file without one."""
        if number not in self._loss:
            _, shard = self._corpus.shards[number]
            self._loss[number] = (
                np.broadcast_to(np.True_, (shard.tokens,))
                if shard.load_loss is None
                else np.asarray(shard.load_loss()).astype(np.bool_, copy=False)
            )
        return self._loss[number]

    def copy(self, pieces: Iterable[tuple[int, int, int, int, int]], out: npt.NDArray[Any]) -> None:
        """Copy ranges of tokens to `out`.

        Args:
            pieces: (file, begin, end, begin in `out`, end in `out`) of each range.
            out: the array to fill.

        Raises:
            DataError: a file has become shorter since it was opened.
        """
        if not (self._large and self._alike):
            for file, low, high, at, end in pieces:
                out[at:end] = self.tokens(file)[low:high]
            return
        size = out.itemsize
        view = memoryview(out).cast("B")  # type: ignore[arg-type]
        for file, low, _, at, end in pieces:
            _, _, descriptor, offset = self._file(file)
            at, end, place = at * size, end * size, offset + low * size
            while at < end:
                count = os.preadv(descriptor, (view[at:end],), place)
                if not count:
                    store, shard = self._corpus.shards[file]
                    raise _shrunk(store.locate(shard.path), os.fstat(descriptor).st_size)
                at, place = at + count, place + count

    def was_read(self, size: int) -> None:
        """Count bytes read, and release mapped pages every `FORGET` bytes (they stay in the page cache)."""
        self._read += size
        if self._large and self._read >= FORGET:
            self._read = 0
            for file in self._files.values():
                if file.mapping is not None:
                    file.mapping.madvise(mmap.MADV_DONTNEED)


def _map(stack: ExitStack, store: Store, shard: TokenShard, reads: Reads | None) -> _File:
    if not shard.tokens:
        return _File(np.zeros(0, shard.dtype))
    path = _on_this_machine(stack, store, shard, reads)
    file = stack.enter_context(open(path, "rb"))  # noqa: SIM115 - the stack closes it
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if len(mapping) < shard.offset + shard.tokens * shard.dtype.itemsize:
        raise _shrunk(store.locate(shard.path), len(mapping))
    return _File(np.frombuffer(mapping, shard.dtype, shard.tokens, shard.offset), mapping, file.fileno(), shard.offset)


def _on_this_machine(stack: ExitStack, store: Store, shard: TokenShard, reads: Reads | None) -> Path:
    if store.is_local or reads is None:
        return stack.enter_context(store.local_copy(shard.path))
    if reads.scattered:
        return stack.enter_context(held_copy(store, shard.path, kind=WORK)).path
    size = shard.dtype.itemsize
    begins, ends = shard.offset + reads.begins * size, shard.offset + reads.ends * size
    return stack.enter_context(copied_ranges(store, shard.path, begins, ends))


def _shrunk(where: str, size: int) -> DataError:
    return DataError(
        f"the file has {size} bytes, fewer than when it was opened",
        file=where,
        kind="truncated",
        fix="It changed meanwhile: run the command again.",
    )


_BLOCK = 1 << 20


class Spans(NamedTuple):
    """Tokens ``[start, start + length)`` of the files `shard`; int64[n] each."""

    shard: Int64s
    start: Int64s
    length: Int64s


class Units(Protocol):
    """Interface of a numbered sequence of units of a corpus."""

    corpus: Corpus

    def __len__(self) -> int: ...

    def lengths(self, numbers: Int64s) -> Int64s:
        """Return the number of tokens of each unit, int64[n]."""

    def documents(self, numbers: Int64s) -> Int64s:
        """Return the number of documents that each unit becomes, at most, int64[n]."""

    def spans(self, numbers: Int64s) -> Spans:
        """Return the concatenated spans of these units; at least one for each unit that has tokens."""

    def origins(self, numbers: Int64s) -> tuple[Int64s, Int64s] | None:
        """Return the file, and the document in it, of each span; None if a file has no index of documents."""


class Documents(Units):
    """Units that are the documents of a corpus, with one span each."""

    def __init__(self, corpus: Corpus) -> None:
        if not corpus.indexed:
            for store, shard in corpus.shards:
                if shard.documents is None:
                    raise ConfigError(
                        "the index of documents is missing",
                        file=store.locate(shard.path),
                        kind="not-prepared",
                        fix="Restore the index, or shuffle chunks of tokens: --chunk 2048.",
                    )
        self.corpus = corpus

    def __len__(self) -> int:
        return len(self.corpus)

    def lengths(self, numbers: Int64s) -> Int64s:
        return self.spans(numbers).length

    def documents(self, numbers: Int64s) -> Int64s:
        return np.ones(len(numbers), np.int64)

    def origins(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        shard = np.searchsorted(self.corpus.firsts, numbers, side="right").astype(np.int64) - 1
        return shard, numbers - self.corpus.firsts[shard]

    def reader(self) -> Callable[[Int64s], Sequence[Origin]]:
        """Return a function that returns the ids and origins of documents, as Dolma stores them."""
        return StoredRows(self.corpus).of

    def spans(self, numbers: Int64s) -> Spans:
        numbers = np.asarray(numbers, np.int64)
        firsts, shards = self.corpus.firsts, self.corpus.shards
        if len(shards) == 1:
            bounds = shards[0][1].bounds
            start = np.asarray(bounds[numbers], np.int64)
            return Spans(np.zeros(len(numbers), np.int64), start, np.asarray(bounds[numbers + 1], np.int64) - start)
        shard = np.searchsorted(firsts, numbers, side="right") - 1
        start, stop = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
        for number in _occurring(shard):
            rows = np.flatnonzero(shard == number)
            local = numbers[rows] - firsts[number]
            bounds = shards[number][1].bounds
            start[rows], stop[rows] = bounds[local], bounds[local + 1]
        return Spans(shard.astype(np.int64), start, stop - start)


class StoredRows:
    """Reader of the ids and origins in Dolma's ``.csv.gz`` files of a corpus, which are read forward."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._shard, self._next = -1, 0
        self._rows: Iterator[Origin] = iter(())

    def of(self, numbers: Int64s) -> list[Origin]:
        """Return the rows of these documents of a corpus of Dolma's files."""
        firsts = self.corpus.firsts
        shards = np.searchsorted(firsts, numbers, side="right") - 1
        return [self._row(*place) for place in zip(shards.tolist(), (numbers - firsts[shards]).tolist(), strict=True)]

    def _row(self, shard: int, number: int) -> Origin:
        if shard != self._shard or number < self._next:
            store, file = self.corpus.shards[shard]
            self._shard, self._next, self._rows = shard, 0, read_origins(store, file.path)
        row = next(islice(self._rows, number - self._next, None))
        self._next = number + 1
        return row


class Chunks(Units):
    """Units that are chunks of a fixed number of tokens.

    Args:
        corpus: the documents.
        size: tokens per chunk.
        order: order of documents, int64[n], whose concatenation is cut; None cuts each file separately.
        keep_tails: whether the tokens left at the end of a sequence are a shorter chunk; otherwise they are dropped.

    Attributes:
        left_out: number of tokens at the ends that are in no chunk.
        empty: number of documents without tokens, which are in no chunk.
        counts: number of chunks of each sequence.
    """

    def __init__(self, corpus: Corpus, size: int, order: Int64s | None = None, *, keep_tails: bool = True) -> None:
        if size < 1:
            raise ConfigError(f"invalid chunk size: {size} tokens", kind="bad-option", fix="Use 1 or more.")
        self.corpus, self.size, self._order = corpus, size, order
        if order is None:
            row_tokens = [shard.tokens for _, shard in corpus.shards]
            self._ends = _document_ends(corpus)
        else:
            row_tokens = [corpus.tokens]
            self._ends = np.cumsum(Documents(corpus).lengths(order))
        self.empty = int((np.diff(self._ends, prepend=0) == 0).sum())
        tokens = np.asarray(row_tokens, np.int64)
        self._begins = np.cumsum(tokens) - tokens
        whole, tails = np.divmod(tokens, size)
        self.counts: list[int] = (whole + (tails > 0) if keep_tails else whole).tolist()
        self.left_out = 0 if keep_tails else int(tails.sum())
        self._stops = self._begins + (tokens if keep_tails else whole * size)
        self._firsts = bounds_of(self.counts)

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def _range(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return where chunks begin and end, in tokens of all concatenated sequences."""
        row = np.searchsorted(self._firsts, numbers, side="right") - 1
        begin = self._begins[row] + (numbers - self._firsts[row]) * self.size
        return begin, np.minimum(begin + self.size, self._stops[row])

    def lengths(self, numbers: Int64s) -> Int64s:
        begin, end = self._range(np.asarray(numbers, np.int64))
        return end - begin

    def documents(self, numbers: Int64s) -> Int64s:
        return self._pieces(*self._range(np.asarray(numbers, np.int64)))[1]

    def _pieces(self, begin: Int64s, end: Int64s) -> tuple[Int64s, Int64s]:
        """Return the first document of each range of tokens, and their number, with empty ones."""
        first = np.searchsorted(self._ends, begin, side="right")
        return first, np.searchsorted(self._ends, end, side="left") - first + 1

    def spans(self, numbers: Int64s) -> Spans:
        begin, end = self._range(np.asarray(numbers, np.int64))
        first, counts = self._pieces(begin, end)
        unit = np.repeat(np.arange(len(begin)), counts)
        document = ranges(first, counts)  # their numbers in the sequence
        stop = self._ends[document]
        start = np.where(document > 0, self._ends[document - 1], 0)
        low, high = np.maximum(start, begin[unit]), np.minimum(stop, end[unit])
        filled = high > low  # empty documents inside a chunk are dropped
        document, low, high, start = document[filled], low[filled], high[filled], start[filled]
        if self._order is None:
            shard = np.searchsorted(self._begins, low, side="right") - 1
            return Spans(shard.astype(np.int64), low - self._begins[shard], high - low)
        places = Documents(self.corpus).spans(self._order[document])
        return Spans(places.shard, places.start + (low - start), high - low)

    def origins(self, numbers: Int64s) -> tuple[Int64s, Int64s] | None:
        if not self.corpus.indexed:
            return None
        shard, start, _ = self.spans(numbers)
        row = np.empty(len(start), np.int64)
        for number in _occurring(shard):
            of = np.flatnonzero(shard == number)
            row[of] = np.searchsorted(self.corpus.shards[number][1].bounds, start[of], side="right") - 1
        return shard, row


def _occurring(shard: Int64s) -> list[int]:
    """Return the numbers that occur, ascending. `np.unique` would load all of `numpy.ma` for it."""
    found: list[int] = np.flatnonzero(np.bincount(shard)).tolist()
    return found


def _document_ends(corpus: Corpus) -> Int64s:
    """Return the end of each document, in tokens of all concatenated files. A file without an index is one document."""
    ends, base = [np.zeros(0, np.int64)], 0
    for _, shard in corpus.shards:
        if shard.documents is None:
            ends.append(np.asarray([base + shard.tokens], np.int64))
        else:
            ends.append(np.asarray(shard.bounds[1:], np.int64) + base)
        base += shard.tokens
    return np.concatenate(ends)


def lengths_of(units: Units, numbers: Numbers) -> Int64s:
    """Return the number of tokens of each unit, int64[n], computed in batches."""
    return in_blocks(units.lengths, numbers)


def in_blocks(function: Callable[[Int64s], Int64s], numbers: Numbers) -> Int64s:
    """Return the results of a function of units, int64[n], computed in batches."""
    blocks = [function(np.asarray(numbers[low : low + _BLOCK], np.int64)) for low in range(0, len(numbers), _BLOCK)]
    return np.concatenate([np.zeros(0, np.int64), *blocks])


Numbers = Int64s | range
"""Numbers of documents, in the order in which they are written."""

BATCH = 2 << 20
"""Bytes of tokens gathered at once; data that stays in the processor's cache is written fastest."""
_AT_ONCE = 1 << 16
_GAP = 1 << 20
"""Bytes between ranges of a remote file up to which they are read as one."""

Copy = Callable[[Iterable[tuple[int, int, int, int, int]], npt.NDArray[Any]], None]


def reads_of(corpus: Corpus, units: Units, numbers: Numbers) -> dict[int, Reads]:
    """Return what units read of each remote file, by the number of the file: 24 bytes of memory for each span."""
    if corpus.is_local:
        return {}
    blocks = [
        units.spans(np.asarray(numbers[low : low + _AT_ONCE], np.int64)) for low in range(0, len(numbers), _AT_ONCE)
    ]
    if not blocks:
        return {}
    shard, start, length = (np.concatenate(columns) for columns in zip(*blocks, strict=True))
    order = np.lexsort((start, shard))
    shard, start, length = shard[order], start[order], length[order]
    numbers_of, firsts = np.unique(shard, return_index=True)
    found = {}
    for number, low, high in zip(numbers_of.tolist(), firsts, [*firsts[1:], len(shard)], strict=True):
        # An empty document may come after one that begins at the same token.
        begins, ends = start[low:high], np.maximum.accumulate(start[low:high] + length[low:high])
        gap = _GAP // corpus.shards[number][1].dtype.itemsize
        apart = np.flatnonzero(begins[1:] - ends[:-1] > gap) + 1
        found[number] = Reads(
            begins[np.concatenate(([0], apart))], ends[np.append(apart - 1, -1)], int(length[low:high].sum())
        )
    return found


def gathered(
    corpus: Corpus, mapped: Mapped, units: Units, numbers: Numbers, loss: bool
) -> Iterator[tuple[Tokens, Int64s, npt.NDArray[np.bool_] | None]]:
    """Yield the tokens of units in batches: concatenated ids, tokens per document, and the mask if `loss`."""
    for low in range(0, len(numbers), _AT_ONCE):
        block = np.asarray(numbers[low : low + _AT_ONCE], np.int64)
        spans = units.spans(block)
        ends = np.cumsum(spans.length)
        first = 0
        while first < len(ends):
            base = int(ends[first - 1]) if first else 0
            limit = base + BATCH // corpus.dtype.itemsize
            last = max(int(np.searchsorted(ends, limit, side="right")), first + 1)
            batch = Spans(*(column[first:last] for column in spans))
            yield (
                _gather(mapped.tokens, mapped.copy, batch, corpus.dtype),
                batch.length,
                _gather(mapped.loss, None, batch, np.dtype(np.bool_)) if loss else None,
            )
            mapped.was_read((int(ends[last - 1]) - base) * corpus.dtype.itemsize)
            first = last


def _gather(
    file: Callable[[int], npt.NDArray[Any]], copy: Copy | None, spans: Spans, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return the concatenated tokens of spans. Adjacent spans are copied at once; one range is not copied."""
    shard, start, length = spans
    breaks = np.flatnonzero((shard[1:] != shard[:-1]) | (start[1:] != start[:-1] + length[:-1])) + 1
    first = np.concatenate(([0], breaks))
    to = np.cumsum(length) - length  # position of each span in the output
    total = int(length.sum())
    begins = start[first]
    sizes = np.add.reduceat(length, first)
    if len(first) == 1:
        piece = file(int(shard[0]))[int(begins[0]) : int(begins[0]) + total]
        return piece.astype(dtype, copy=False)
    out = np.empty(total, dtype)
    order = np.lexsort((begins, shard[first]))
    columns = (shard[first], begins, begins + sizes, to[first], to[first] + sizes)
    pieces = zip(*(column[order].tolist() for column in columns), strict=True)
    if copy is not None:
        copy(pieces, out)
        return out
    for number, low, high, at, end in pieces:
        out[at:end] = file(number)[low:high]
    return out
