"""Write one output file of merge, shuffle, split or filter: the unit that workers and engines run.

A unit is a file. It finds its documents by number in the order that the run computed. Another process, perhaps of
another machine, maps the order and the bounds of all documents from files in the work folder, so that a unit needs no
memory for them. A finished unit leaves a small file there, its mark.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.documents.lineage.runs import Runs
from feedmill.documents.lineage.sidecar import Origins, lineage_of
from feedmill.formats.tokens.base import Form, Int64s, Tokens, TokenShard
from feedmill.formats.tokens.dolma import FORMAT as DOLMA
from feedmill.formats.tokens.dolma import DolmaWriter, Origin, read_origins
from feedmill.formats.tokens.manifest import TokenManifest, with_files, write_manifest
from feedmill.jobs.engine import is_shared
from feedmill.storage import LocalStore, Store, open_store, split_url
from feedmill.storage.cache.copies import WORK, held_copy
from feedmill.storage.hashed import hashed_store
from feedmill.storage.remote.claims import Claim
from feedmill.tokens.corpus import Corpus
from feedmill.tokens.gather import gathered, reads_of
from feedmill.tokens.orders import Numbers
from feedmill.tokens.outputs import FORMATS, LINES, main_file, sizes_of, write_documents
from feedmill.tokens.units import Units

_INLINE = 1 << 10
"""Bytes of an array up to which it is sent to other processes as it is."""
_MARK = "written-"
_BLOCK = 1 << 20
"""Units whose origins are found at once."""

Mask = Callable[[Tokens, Int64s, int], npt.NDArray[np.bool_]]
"""Function that returns the loss mask, bool[tokens], from ids, lengths, and the number of the first document."""


class WrittenFile(msgspec.Struct, frozen=True):
    """A finished file: its path as given, its numbers of documents and tokens, and whether an earlier run wrote it."""

    path: str
    documents: int
    tokens: int
    reused: bool = False


@dataclass(frozen=True, slots=True)
class PartTask:
    """One file to write: its number among all files, and its path or URL."""

    number: int
    path: str

    def __str__(self) -> str:
        return self.path


@dataclass(slots=True, kw_only=True)
class PartJob:
    """What all files of a run have in common.

    Attributes:
        corpus, units: the documents, and how they are numbered.
        rows: numbers of the units of each file, in order.
        form, options: form of the files, and options for their manifests.
        inputs: facts about the inputs, for the manifests.
        files: path and bytes of the file that identifies each input, for the lineage.
        mask: returns the loss mask, instead of the masks of the corpus.
        folder: the work folder.
        key: identifies the outputs, in the names of marks.
        advance: called with the tokens written; in other processes, nothing is called.
    """

    corpus: Corpus
    units: Units
    rows: Sequence[Numbers]
    form: Form
    options: dict[str, Any]
    inputs: list[dict[str, Any]]
    files: list[tuple[str, int]]
    mask: Mask | None
    folder: Store
    key: str
    advance: Callable[[int], None] | None = None
    _sent: tuple[Any, ...] | None = field(default=None, init=False, repr=False)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Return what other processes need; large arrays are in files, which they map."""
        if self._sent is None:
            corpus = _with_mapped_bounds(self.corpus, self.folder)
            units = {name: _sendable(value, self.folder) for name, value in vars(self.units).items()} | {"corpus": None}
            job = {
                name: getattr(self, name) for name in ("form", "options", "inputs", "files", "mask", "folder", "key")
            }
            self._sent = (corpus, type(self.units), units, _sendable_rows(self.rows, self.folder), job)
        return _received, self._sent


def _received(
    corpus: Corpus, kind: type[Any], units: dict[str, Any], rows: list[range | StoredNumbers], job: dict[str, Any]
) -> PartJob:
    documents = object.__new__(kind)
    vars(documents).update(
        {name: value() if isinstance(value, StoredNumbers) else value for name, value in units.items()}
    )
    documents.corpus = corpus
    mapped = [row if isinstance(row, range) else row() for row in rows]
    return PartJob(corpus=corpus, units=documents, rows=mapped, **job)


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """Entries [first, stop) of a file of int64 in the work folder; called to map them, or a copy on this machine."""

    folder: Store
    name: str
    first: int
    stop: int

    def __call__(self) -> Int64s:
        if not isinstance(self.folder, LocalStore):
            with held_copy(self.folder, self.name, kind=WORK) as held:  # its bytes stay mapped when it is removed
                return np.memmap(held.path, np.int64, "r")[self.first : self.stop]
        path = self.folder.locate(self.name)
        file = os.stat(path)  # of a later run, it is another file
        return _mapped(path, file.st_ino, file.st_mtime_ns)[self.first : self.stop]


@lru_cache(8)
def _mapped(path: str, *_: int) -> Int64s:
    return np.memmap(path, np.int64, "r")


def _stored(numbers: Int64s, folder: Store) -> StoredNumbers:
    """Write numbers to a file that is named by their hash, unless it exists."""
    numbers = np.ascontiguousarray(numbers, np.int64)
    name = f"numbers-{xxhash.xxh3_128_hexdigest(numbers.data)}"
    if not folder.exists(name):
        with folder.write(name) as file:
            file.write(numbers.data)
    return StoredNumbers(folder, name, 0, len(numbers))


def _sendable(value: Any, folder: Store) -> Any:
    large = isinstance(value, np.ndarray) and value.nbytes > _INLINE
    return _stored(value, folder) if large else value


def _sendable_rows(rows: Sequence[Numbers], folder: Store) -> list[range | StoredNumbers]:
    """Return rows whose arrays are in one file."""
    arrays = [row for row in rows if not isinstance(row, range)]
    if not any(map(len, arrays)):
        return [row if isinstance(row, range) else range(0) for row in rows]
    table = _stored(np.concatenate(arrays), folder)
    out: list[range | StoredNumbers] = []
    first = 0
    for row in rows:
        if isinstance(row, range):
            out.append(row)
            continue
        out.append(replace(table, first=first, stop=first + len(row)))
        first += len(row)
    return out


def _with_mapped_bounds(corpus: Corpus, folder: Store) -> Corpus:
    """Return the corpus with the bounds of its files in one file: other processes would read or find them again."""
    indexed = [shard.bounds for _, shard in corpus.shards if shard.indexed]
    if not indexed:
        return corpus
    table = _stored(np.concatenate(indexed), folder)
    shards: list[tuple[Store, TokenShard]] = []
    first = 0
    for store, shard in corpus.shards:
        other = copy.copy(shard)
        if shard.indexed:
            stop = first + len(shard.bounds)
            other.load_bounds = replace(table, first=first, stop=stop)
            first = stop
        shards.append((store, other))
    return replace(corpus, shards=shards)


def write_part(job: PartJob, task: PartTask) -> WrittenFile:
    """Write one file atomically, unless its mark shows that an earlier run has."""
    store, main = main_of(task.path)
    name, form = split_url(task.path)[1], job.form
    mark = f"{_MARK}{job.key}-{task.number}"
    if job.folder.exists(mark) and store.exists(main):
        with contextlib.suppress(msgspec.MsgspecError):
            documents, tokens = msgspec.json.decode(job.folder.read(mark), type=tuple[int, int])
            return WrittenFile(task.path, documents, tokens, reused=True)
    documents = tokens = 0
    view, hashes = hashed_store(store)
    # On an engine, the run has the lock of the output; one of a machine that is lost would never be released.
    claim = contextlib.nullcontext() if is_shared() else Claim(store, name)
    row = job.rows[task.number]
    mapping = job.corpus.mapped(reads_of(job.corpus, job.units, row))
    with claim, mapping as mapped, write_documents(view, name, form) as writer:
        carried = form.loss and job.mask is None
        rows = StoredRows(job.corpus) if form.format == DOLMA else None
        for ids, lengths, loss in gathered(job.corpus, mapped, job.units, row, carried):
            mask = loss if job.mask is None else job.mask(ids, lengths, documents)
            if rows is None:
                writer.add(ids, lengths, mask)
            else:
                numbers = row[documents : documents + len(lengths)]
                cast(DolmaWriter, writer).add(ids, lengths, mask, origins=rows.of(numbers))
            documents, tokens = documents + len(lengths), tokens + len(ids)
            if job.advance is not None:
                job.advance(len(ids))
        if form.format != LINES:
            manifest = _manifest(job, documents, tokens)
            write_manifest(store, main, manifest)  # sizes are known when the files are published
        place, path = lineage_of(store.locate(main))
        place.delete(path)
    if form.format == LINES:
        tokens = store.stat(main).size  # a newline is added to a last line without one
    if (origins := _origins(job, job.rows[task.number])) is not None:
        place.write_bytes(path, origins.encoded(store.locate(main), store.stat(main).size))
    if form.format != LINES:
        sizes = sizes_of(form.format, store, main.removesuffix(FORMATS[form.format][0]))
        write_manifest(store, main, with_files(manifest, sizes, hashes))
    job.folder.write_bytes(mark, msgspec.json.encode((documents, tokens)))
    return WrittenFile(task.path, documents, tokens)


class StoredRows:
    """Reader of the ids and origins in Dolma's ``.csv.gz`` files of a corpus, which are read forward."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._shard, self._next = -1, 0
        self._rows: Iterator[Origin] = iter(())

    def of(self, numbers: Numbers) -> list[Origin]:
        """Return the rows of these documents of a corpus of Dolma's files."""
        numbers = np.asarray(numbers, np.int64)
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


def _origins(job: PartJob, numbers: Numbers) -> Origins | None:
    """Return where the documents of these units come from; None if an input has no index of documents."""
    options = {name: value for name, value in job.options.items() if name != "verb"}
    origins = Origins(job.options["verb"], options)
    inputs = np.array([origins.number(*file) for file in job.files], np.int64)
    for low in range(0, len(numbers), _BLOCK):
        found = job.units.origins(np.asarray(numbers[low : low + _BLOCK], np.int64))
        if found is None:
            return None
        origins.add(Runs.of(inputs[found[0]], found[1]))
    return origins


def remove_marks(folder: Store) -> None:
    """Remove marks of a finished job, whose process was killed while it removed its work folder."""
    for entry in list(folder.files()):
        if entry.path.startswith(_MARK):
            folder.delete(entry.path)


def main_of(path: str) -> tuple[Store, str]:
    """Return the store and path of the file that identifies a target."""
    folder, name = split_url(path)
    return open_store(folder), main_file(name)


def _manifest(job: PartJob, documents: int, tokens: int) -> TokenManifest:
    corpus = job.corpus
    known = [manifest for manifest in corpus.manifests if manifest is not None]
    ends = {(manifest.bos, manifest.eos) for manifest in known}
    bos, eos = ends.pop() if len(known) == len(corpus.manifests) and len(ends) == 1 else (None, None)
    return TokenManifest(
        job.form.format,
        documents,
        tokens,
        tokenizer=corpus.tokenizer,
        bos=bos,
        eos=eos,
        inputs=job.inputs,
        options=job.options,
    )
