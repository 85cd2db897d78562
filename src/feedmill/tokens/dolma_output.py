"""Tokenize into Dolma's folders: the documents of each group of files are mixed and written as numbered files.

Inputs are encoded as for any other output (`feedmill.tokens.job`). The documents of each group are then read from its
pieces in Dolma's order: batches are taken from a ring of open files, and each batch is shuffled. Documents are taken
from the files of the ring in turn, or at random in proportion to the files' sizes, and the next file replaces one that
is exhausted. The order depends only on the seed; equal inputs, options and seeds give equal files.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from math import ceil, log10
from typing import Any, TypeVar

import msgspec
import numpy as np

from feedmill.documents.file import DocumentFile, Unit
from feedmill.documents.lineage.sidecar import lineage_path
from feedmill.documents.read import cut
from feedmill.documents.typed import Typed, TypedReader
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.tokens.base import Form
from feedmill.formats.tokens.dolma import CSV, NPY, Origin, dolma_dtype, write_dolma
from feedmill.formats.tokens.manifest import TokenManifest, manifest_path, read_manifest, with_files, write_manifest
from feedmill.jobs.dry_run import DryRun
from feedmill.jobs.policy import SKIP, on_error_policy, skips
from feedmill.jobs.work import Work
from feedmill.kernels.bounds import bounds_of
from feedmill.storage import Store, open_store, split_url
from feedmill.tokens.encode import Encoding
from feedmill.tokens.job import Counts, EncodeJob, EncodeSpec
from feedmill.tokens.options import Tokenizing
from feedmill.tokens.outputs import FileTask, WrittenFile, sizes_of
from feedmill.tokens.spill import Piece, Pieces
from feedmill.tokens.template import adds_space
from feedmill.tokens.tokenizer import Tokenizer, load_tokenizer

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Ring:
    """Parameters of mixing.

    Attributes:
        files: number of open files.
        batch: number of turns per batch. A turn that finds its file exhausted yields no document.
        proportional: whether files are chosen at random in proportion to their sizes; otherwise in turn.
    """

    files: int = 8
    batch: int = 10_000
    proportional: bool = False


def batches(
    ring: Ring, open_file: Callable[[int], Iterator[Item]], sizes: Sequence[int], chance: random.Random
) -> Iterator[list[Item]]:
    """Yield the documents of files, in shuffled batches.

    Args:
        open_file: returns the documents of a file by number; the last file is opened first.
        sizes: sizes of the files in bytes.
    """
    waiting = list(range(len(sizes)))
    opened: list[Iterator[Item]] = []
    weights: list[int] = []

    def take() -> None:
        number = waiting.pop()
        opened.append(open_file(number))
        weights.append(max(1, sizes[number]))

    while waiting and len(opened) < ring.files:
        take()
    while waiting or opened:
        batch: list[Item] = []
        for turn in range(ring.batch):
            if not opened:
                take()
            at = chance.choices(range(len(opened)), weights)[0] if ring.proportional else turn % len(opened)
            document = next(opened[at], None)
            if document is not None:
                batch.append(document)
                continue
            del opened[at], weights[at]
            if not opened:
                break
            if waiting:
                take()
        chance.shuffle(batch)
        if batch:
            yield batch


def groups(count: int, processes: int, most: int | None) -> list[slice]:
    """Return which of `count` files belong to each group: one per process, or more with at most `most` files each.

    >>> [(g.start, g.stop) for g in groups(5, 2, None)], [(g.start, g.stop) for g in groups(5, 1, 2)]
    ([(0, 2), (2, 5)], [(0, 2), (2, 4), (4, 5)])
    """
    step = min(most or count, count / processes)
    found, at = [], 0.0
    while at < count:
        begin, end = round(at), min(round(at + step), count)
        if begin < end:
            found.append(slice(begin, end))
        at += step
    return found


class MixedPieces(Pieces):
    """The documents of files of JSON lines, which have ids, or numbers in the file.

    Args:
        ids: whether documents have ids; otherwise ids are generated from a hash of the file's name and the line.
    """

    def __init__(self, pieces: Sequence[Piece], inputs: Mapping[str, int], ids: bool) -> None:
        super().__init__(pieces, inputs)
        self._ids = ids

    def named(self, key: Any, path: str, line: int) -> Origin:
        """See `Pieces`."""
        return Origin(key if self._ids else f"{_hashed(path)}-{line}", path, line)


@lru_cache(64)
def _hashed(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()


def mixed(
    units: Pieces, counts: Sequence[int], sizes: Sequence[int], ring: Ring, limit: int, chance: random.Random
) -> Iterator[list[int]]:
    """Yield the numbers of the documents of each file to write, in their order.

    Args:
        counts, sizes: documents and bytes of each file of a group.
        limit: a file has fewer tokens, unless it is a single longer document.
    """
    firsts = bounds_of(counts).tolist()
    found = batches(ring, lambda number: iter(range(firsts[number], firsts[number + 1])), sizes, chance)
    rest = next(found, [])
    while rest:
        numbers: list[int] = []
        tokens = 0
        while rest:
            ends = tokens + np.cumsum(units.lengths(np.array(rest, np.int64)))
            count = int(np.searchsorted(ends, limit, side="left"))
            if count == 0 and not numbers:
                count = 1  # a document that is longer than a file
            numbers += rest[:count]
            tokens = int(ends[count - 1]) if count else tokens
            rest = rest[count:]
            if rest:
                chance.shuffle(rest)
                break
            rest = next(found, [])
        yield numbers


MANIFEST = "tokens"
"""Base name of the folder's manifest. Each part also has its own manifest beside it."""

TYPED, RING = Typed(), Ring()


class GroupedOptions(Tokenizing, kw_only=True):
    """Options of `tokenize_grouped`, in addition to those of any job.

    Attributes:
        bos, eos: ids added around documents that lack them; at least one is required.
        segment: encode each paragraph by itself, see `feedmill.tokens.encode`.
        specials_as_text: encode special tokens that occur in a text as plain text.
        typed: locations of the text and the id.
        dtype: type of a token; None selects the smallest type that fits the vocabulary.
        workers: number of processes, and of groups of files (unless `files_per_group` gives more). As in Dolma, the
            output depends on it.
        ring: parameters of mixing.
        limit: a file has fewer tokens, unless it is a single longer document.
        seed: seed of the order of files and documents.
        exact: also reproduce Dolma's defects: invalid documents are skipped, `dtype` must be the exact type, files are
            replaced, a group without tokens writes zeros.
    """

    workers: int = 1
    bos: int | None = None
    eos: int | None = None
    segment: bool = False
    specials_as_text: bool = False
    typed: Typed = TYPED
    dtype: str | None = None
    files_per_group: int | None = None
    ring: Ring = RING
    limit: int = 1 << 30
    seed: int = 3920
    exact: bool = False


@dataclass
class GroupedReport(Counts):
    """Report of a run.

    Attributes:
        folder, parts: the output folder, and the names of its files without suffix.
        empty: number of skipped documents whose text has only white space.
        empty_groups: number of groups of files without a token; with ``exact`` each wrote a file of zeros.
        dtype: type of a token.
        seed: seed of the order of the files.
    """

    folder: str
    empty: int = 0
    parts: list[str] = field(default_factory=list)
    empty_groups: int = 0
    dtype: str = ""
    seed: int = 0

    def restore(self, manifests: Sequence[TokenManifest]) -> None:
        """See `Counts.restore`."""
        super().restore(manifests)
        (found,) = manifests
        self.blank, self.empty = found.options["blank_lines"], found.options["empty_documents"]
        self.empty_groups = found.options["empty_groups"]
        self.parts = [name.removesuffix(NPY) for name in found.sizes if name.endswith(NPY)]


def tokenize_grouped(
    files: Sequence[DocumentFile], folder: str, tokenizer: str | os.PathLike[str], options: GroupedOptions
) -> GroupedReport:
    """Tokenize files of documents into ``part-<group>-<number>.npy`` and ``.csv.gz``.

    Args:
        files: files of JSON lines, with any suffix.

    Raises:
        ConfigError: options are invalid, or the folder has token files of another job.
        EmptyResult: no document has text.
        DataError: a document is invalid (and `on_error` is ``raise``), or a file is corrupt.
    """
    begin = time.perf_counter()
    _check(options)
    options = replace(
        options,
        on_error=SKIP if options.exact else on_error_policy(options.on_error),
        allow_empty=options.allow_empty or options.exact,
    )
    TypedReader(options.typed)  # errors in the fields are reported before the work begins
    loaded = load_tokenizer(tokenizer, template_source="file")  # Dolma reads only tokenizer.json
    dtype = _dtype(loaded, options)
    ordered = list(files)
    random.Random(f"files {options.seed}").shuffle(ordered)
    plan = [tuple(ordered[part]) for part in groups(len(ordered), options.workers, options.files_per_group)]
    report = GroupedReport(folder, dtype=dtype.name, seed=options.seed)
    EncodeJob(DolmaFolder(folder, plan, dtype, options, report), _spec(loaded, dtype, options), loaded, options).run()
    report.seconds = time.perf_counter() - begin
    return report


def _check(options: GroupedOptions) -> None:
    if options.bos is None and options.eos is None:
        raise ConfigError(
            "neither BOS nor EOS is set, so nothing would separate documents",
            kind="unknown-token",
            fix="Set the id of at least one, e.g. --tokenizer.eos_token_id.",
        )
    ring = options.ring
    if min(options.bos or 0, options.eos or 0) < 0 or min(options.workers, ring.files, ring.batch, options.limit) < 1:
        raise ConfigError("ids must be at least 0, and sizes and processes at least 1", fix="Fix the options.")


def encoding_of(tokenizer: Tokenizer, dtype: np.dtype[Any], options: GroupedOptions) -> Encoding:
    """Return how texts are encoded for tokens of this type."""
    wide = max(tokenizer.size, 1 + max(options.bos or 0, options.eos or 0)) > 1 << 16
    return Encoding(
        bos=options.bos,
        eos=options.eos,
        always=False,
        template=False,
        ordinary=options.specials_as_text,
        limit=int(min(np.iinfo(dtype).max, (1 << 32) - 1)),
        dtype="<u4" if wide else "<u2",
        segment=options.segment,
        prefix=options.segment and tokenizer.path.suffix == ".json" and adds_space(tokenizer.path),
        keep_empty=True,
    )


def _spec(tokenizer: Tokenizer, dtype: np.dtype[Any], options: GroupedOptions) -> EncodeSpec:
    how = encoding_of(tokenizer, dtype, options)
    skip, typed = skips(options.on_error), options.typed
    return EncodeSpec.of(tokenizer, how, typed.text, skip=skip, origins=True, typed=typed)


def _dtype(tokenizer: Tokenizer, options: GroupedOptions) -> np.dtype[Any]:
    """Return the type of a token. Raises ConfigError if the given type is unknown or too small."""
    given, exact, ids = options.dtype, options.exact, (options.bos, options.eos)
    needed = dolma_dtype(max(tokenizer.vocab_size, *(1 + (i or 0) for i in ids)) if not exact else tokenizer.vocab_size)
    if needed.kind != "u":
        raise ConfigError(
            f"the id of a special token exceeds all token types: {max(i or 0 for i in ids)}", fix="Correct it."
        )
    if given is None and not exact:
        return needed
    try:
        kind = np.dtype(given or "uint16").newbyteorder("<")
    except TypeError:
        raise ConfigError(f"unknown token type {given!r}", fix=f"Use {needed.name}.") from None
    if (kind != needed) if exact else (kind.kind != "u" or kind.itemsize < needed.itemsize):
        raise ConfigError(
            f"the type {kind.name} is too small for a vocabulary of {tokenizer.vocab_size:,} and its special ids",
            file=str(tokenizer.path),
            kind="bad-token-size",
            fix=f"Set dtype to {needed.name}"
            + (" (the only type that --exact accepts)." if exact else ", or omit it."),
        )
    return kind


class DolmaFolder:
    """Output of `tokenize_grouped`: numbered files in a folder; the documents of each group of files are mixed."""

    in_units = True

    def __init__(
        self,
        folder: str,
        plan: Sequence[tuple[DocumentFile, ...]],
        dtype: np.dtype[Any],
        options: GroupedOptions,
        report: GroupedReport,
    ) -> None:
        self.store, self.name, self.url = open_store(folder), MANIFEST, folder
        self.grouped, self.dtype, self.options, self.report = plan, dtype, options, report
        self.files = [file for group in plan for file in group]
        self._owners: list[int] = []  # file number of each unit; a file can be given twice
        self._words: dict[str, Any] = {
            "ring": asdict(options.ring),
            "limit": options.limit,
            "seed": options.seed,
            "exact": options.exact,
            "dtype": dtype.str,
        }

    def plan(self, dry: DryRun) -> None:
        """See `JobOutput`."""
        dry.writes(self.store, "/")

    def identity(self) -> Iterator[str]:
        """See `JobOutput`."""
        yield repr(sorted(self._words.items()))
        yield from (f"{n} {file.url} {file.version}" for n, group in enumerate(self.grouped) for file in group)

    def units(self, unit_bytes: int) -> list[tuple[Unit, ...]]:
        """See `JobOutput`. Each unit has its own piece, so that a file can be read separately."""
        units = [[(unit,) for unit in cut([file], unit_bytes)] for file in self.files]
        self._owners = [number for number, group in enumerate(units) for _ in group]
        return [unit for group in units for unit in group]

    def manifests(self) -> Iterator[TokenManifest | None]:
        """See `JobOutput`."""
        found = read_manifest(self.store, MANIFEST)
        whole = found is not None and all(
            self.store.exists(name) and self.store.stat(name).size == size for name, size in found.sizes.items()
        )
        yield found if whole else None

    def existing(self) -> ConfigError | None:
        """See `JobOutput`."""
        if self.options.exact or not _token_files(self.store):
            return None
        return ConfigError(
            "the folder has token files of another job",
            file=self.url,
            kind="exists",
            fix="Choose another destination, or add --overwrite to replace them.",
        )

    @contextmanager
    def opened(self, job: EncodeJob, work: Work) -> Iterator[Callable[[Piece], None]]:
        """See `JobOutput`."""
        pieces: list[list[Piece]] = [[] for _ in self.files]
        owners = iter(self._owners)

        def add(piece: Piece) -> None:
            pieces[next(owners)].append(piece)
            self.report.empty += piece.facts.empty

        yield add
        written = self._write(job, work, pieces)
        parts = [part for group in written for part in group]
        self.report.empty_groups = sum(not any(part.tokens for part in group) for group in written)
        self.report.parts = [part.path for part in parts]
        if not self.options.exact:
            self._remove_others({part.path for part in parts})
        options = {
            **self._words,
            "segment": self.options.segment,
            "groups": len(self.grouped),
            "blank_lines": self.report.blank,
            "empty_documents": self.report.empty,
            "empty_groups": self.report.empty_groups,
        }
        for part in parts:
            manifest = job.manifest("dolma", part.documents, part.tokens, options)
            write_manifest(self.store, part.path + NPY, with_files(manifest, part.sizes, part.hashes))
        sizes = {name: size for part in parts for name, size in part.sizes.items()}
        total = job.manifest("dolma", self.report.documents, self.report.tokens, options)
        write_manifest(self.store, MANIFEST, with_files(total, sizes, {}))

    def _write(self, job: EncodeJob, work: Work, pieces: Sequence[list[Piece]]) -> list[list[WrittenFile]]:
        """Return the files of each group of inputs, given the pieces of each input; their paths have no suffix."""
        options, digits, ids = self.options, ceil(log10(len(self.grouped) + 1)), self.options.typed.id is not None
        files = job.files(MixedPieces([piece for of in pieces for piece in of], job.numbers, ids), work.scratch)
        files.forms["dolma"] = Form("dolma", self.dtype.itemsize), None
        tasks: list[FileTask] = []
        groups: list[int] = []
        of_file, base = iter(pieces), 0
        for number, group in enumerate(self.grouped):
            own = [next(of_file) for _ in group]
            units = MixedPieces([piece for of in own for piece in of], job.numbers, ids)
            counts = [sum(piece.facts.documents for piece in of) for of in own]
            inputs = list(dict.fromkeys(job.numbers[file.url] for file in group))
            chance, sizes = random.Random(f"{options.seed} {number}"), [file.size for file in group]
            for count, numbers in enumerate(mixed(units, counts, sizes, options.ring, options.limit, chance)):
                self._check_long(units, numbers)
                path = self.store.locate(f"part-{number:0{digits}d}-{count:05d}{NPY}")
                tasks.append(FileTask(len(tasks), path, "dolma", inputs))
                files.rows.append(np.array(numbers, np.int64) + base)
                groups.append(number)
            base += len(units)
        written: list[list[WrittenFile]] = [[] for _ in self.grouped]
        for number, file in zip(groups, job.write(files, tasks), strict=True):
            name = split_url(file.path)[1].removesuffix(NPY)
            written[number].append(msgspec.structs.replace(file, path=name))
        for number, group_files in enumerate(written):
            if options.exact and not group_files:
                group_files.append(self._zeros(f"part-{number:0{digits}d}-{0:05d}"))
        return written

    def _check_long(self, units: Pieces, numbers: Sequence[int]) -> None:
        """Raise `DataError` for a file that is a document with too many tokens, only with `exact`."""
        first = np.array(numbers[:1], np.int64)
        if self.options.exact and (tokens := int(units.lengths(first)[0])) >= self.options.limit:
            ((_, path, line),) = units.reader()(first)
            raise DataError(
                f"the document has {tokens} tokens, but files have fewer than {self.options.limit}; Dolma never"
                " terminates",
                file=path,
                record=f"line {line}",
                kind="too-large",
                fix="Set a larger max_size, or omit --exact to write the document to a separate file.",
            )

    def _zeros(self, name: str) -> WrittenFile:
        """Write the file that Dolma writes for a group without tokens: zeros, of the maximum size of a file."""
        with write_dolma(self.store, name + NPY, self.dtype):
            pass
        with self.store.write(name + NPY) as file:
            file.seek(self.options.limit * self.dtype.itemsize - 1)  # a sparse file, which takes no space
            file.write(b"\0")
        return WrittenFile(name, 0, 0, sizes_of("dolma", self.store, name))

    def _remove_others(self, names: set[str]) -> None:
        """Remove numbered files of an earlier job: they would be read together with the new ones."""
        for path in _token_files(self.store):
            stem = path.removesuffix(NPY).removesuffix(CSV)
            if stem not in names:
                self.store.delete(path)
                self.store.delete(lineage_path(stem + NPY))
                if self.store.exists(manifest_path(stem + NPY)):
                    self.store.delete(manifest_path(stem + NPY))


def _token_files(store: Store) -> list[str]:
    """Return the numbered files directly in the folder."""
    try:
        entries = list(store.files(suffixes=(NPY, CSV)))
    except NotFound:
        return []
    return [entry.path for entry in entries if entry.path.startswith("part-") and "/" not in entry.path]
