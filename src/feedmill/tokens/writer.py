"""Write documents in an order to files, with manifest and lineage: for every verb that writes tokens.

`new_file` is the one way to a file. `write_file` is a unit of a stage: it writes one file, for which it finds the
documents of a corpus by number. Another process, perhaps of another machine, maps the order and the bounds of all
documents from files in the work folder, so that a unit needs no memory for them. A finished unit leaves a small file
there, its mark.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.documents.lineage.sidecar import Origins, Runs, lineage_of, lineage_path, sequences_of
from feedmill.errors import NotFound
from feedmill.formats.tokens.base import Form, Int64s, Tokens, TokenShard
from feedmill.formats.tokens.dolma import FORMAT as DOLMA
from feedmill.formats.tokens.dolma import DolmaWriter, Origin
from feedmill.formats.tokens.manifest import TokenManifest, read_manifest, with_files, write_manifest
from feedmill.jobs.engine import Where, is_shared
from feedmill.jobs.progress import Progress
from feedmill.storage import Store, open_store, split_url
from feedmill.storage.cache.copies import WORK, forget_copies, held_copy
from feedmill.storage.hashed import hashed_store
from feedmill.storage.remote.locks import ObjectLock
from feedmill.tokens.corpus import Corpus, Documents, Numbers, Units, gathered, reads_of
from feedmill.tokens.outputs import LINES, already_exists, keeps_loss, main_file, sizes_of, stem_of, write_documents
from feedmill.tokens.spill import PIECES

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
            return msgspec.json.decode(self.folder.read(self.mark(task)), type=WrittenFile)
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
