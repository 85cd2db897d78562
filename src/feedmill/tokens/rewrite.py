"""Write documents of a corpus to files in a given order: the core of merge, shuffle, split and filter.

The run computes the order and which documents go to which file. The files are units of one stage, which run on
processes of this machine or on an engine. The run then removes files of an earlier run, and reports.

A unit finds its documents by number in that order. Another process, perhaps of another machine, maps the order and the
bounds of all documents from files in the work folder, so that a unit needs no memory for them. A finished unit leaves a
small file there, its mark.
"""

from __future__ import annotations

import contextlib
import copy
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill.documents.lineage.runs import Runs
from feedmill.documents.lineage.sidecar import Origins, lineage_of
from feedmill.errors import ConfigError, refuse_empty
from feedmill.formats.jsonl.splits import splits_name
from feedmill.formats.offsets import hash_words
from feedmill.formats.tokens.base import Form, Int64s, Tokens, TokenShard
from feedmill.formats.tokens.dolma import FORMAT as DOLMA
from feedmill.formats.tokens.dolma import DolmaWriter, Origin, read_origins
from feedmill.formats.tokens.manifest import TokenManifest, with_files, write_manifest
from feedmill.jobs.dry_run import DryRun, JobReport, active
from feedmill.jobs.engine import Where, is_shared
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import Policy, run
from feedmill.jobs.work import Work
from feedmill.storage import LocalStore, Store, canonical_location, join_url, open_store, split_url
from feedmill.storage.cache.copies import WORK, forget_copies, held_copy
from feedmill.storage.hashed import hashed_store
from feedmill.storage.remote.claims import Claim
from feedmill.tokens.corpus import Corpus, format_of
from feedmill.tokens.outputs import FORMATS, LINES, data_files, main_file, sizes_of, write_documents
from feedmill.tokens.targets import Part, file_bytes, files_of_part, higher_parts, remove_part
from feedmill.tokens.units import Numbers, Units, gathered, in_blocks, lengths_of, reads_of

PARALLEL_FROM = 64 << 20
"""Bytes of tokens from which several files are written by several processes."""


@dataclass
class Report(JobReport):
    """Report of a verb.

    Attributes:
        verb: name of the verb.
        inputs: files read.
        outputs: files written: path, documents, tokens (bytes if documents are lines).
        documents, tokens: totals of all outputs.
        seed: seed of the order; None if nothing was drawn.
        left_out: reason -> number of dropped documents or tokens.
        notes: notes for the user.
        resumed: number of files that an earlier run had finished.
    """

    verb: str
    inputs: int
    outputs: list[WrittenFile]
    seed: int | None = None
    left_out: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    resumed: int = 0

    @property
    def documents(self) -> int:
        """Number of documents of all outputs."""
        return sum(done.documents for done in self.outputs)

    @property
    def tokens(self) -> int:
        """Number of tokens of all outputs."""
        return sum(done.tokens for done in self.outputs)

    def written_files(self) -> list[str]:
        """See `JobReport`."""
        return [name for done in self.outputs for name in files_of_part(done.path, format_of(done.path))]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        outputs = [{"path": d.path, "documents": d.documents, "tokens": d.tokens} for d in self.outputs]
        return {**JobReport.as_dict(self), "outputs": outputs, "documents": self.documents, "tokens": self.tokens}


@dataclass(slots=True, kw_only=True)
class Rewriting:
    """One run of a verb; created by `start`.

    Attributes:
        key: identifies the outputs.
        options: options for the manifests.
        seed: the given seed, or one drawn at the first start; `seeded`: whether it is used; `seed_known`: whether the
            next run has it, too: a dry run draws one for itself.
        workers: processes that write files; None for one per core if there is enough to do.
        writing: whether outputs may have been written.
        written: all finished files.
    """

    work: Work
    key: str
    corpus: Corpus
    form: Form
    options: dict[str, Any]
    seed: int
    seeded: bool
    seed_known: bool
    overwrite: bool
    workers: int | None
    progress: bool | None
    writing: bool = False
    written: list[WrittenFile] = field(default_factory=list)

    def write(
        self,
        units: Units,
        parts: Sequence[Part],
        *,
        mask: Mask | None = None,
        numbered: str = "",
        allow_empty: bool = False,
        left_out: dict[str, int] | None = None,
    ) -> list[WrittenFile]:
        """Write parts of the corpus as the units of a stage, except parts that an earlier run finished.

        Args:
            mask: returns the loss mask, instead of the masks of the corpus.
            numbered: the target with ``{part}``, if parts are numbered from 0. Higher-numbered parts of an earlier run
                are removed when the new parts are complete.
            allow_empty: accept parts without any documents.
            left_out: reason -> number of dropped documents, for the error about an empty result.

        Raises:
            EmptyResult: the parts have no documents.
            ConfigError: a target exists already, or is an input.
        """
        lines = self.form.format == LINES
        target = parts[0].path if len(parts) == 1 else numbered
        kept, noun = sum(len(part.numbers) for part in parts), "line" if lines else "document"
        refuse_empty(kept, len(units), noun, file=target or None, skipped=left_out, allow=allow_empty)
        higher = higher_parts(numbered, len(parts))
        _refuse_inputs(self.corpus, [*(part.path for part in parts), *higher])
        with self.work.beginning():
            if not self.work.noted.get("checked"):
                self._refuse_existing([*(part.path for part in parts), *higher])
                self.work.note(checked=True)  # what is there from now on is of this job
        if (dry := active()) is not None:
            return self._plan(dry, units, parts, higher)
        self.writing = True
        unit = "B" if lines else "tokens"
        job = PartJob(
            corpus=self.corpus,
            units=units,
            rows=[part.numbers for part in parts],
            form=self.form,
            options=self.options,
            inputs=[] if lines else self.corpus.facts(),
            files=self.corpus.main_files(),
            mask=mask,
            folder=self.work.scratch,
            key=self.key,
        )
        tasks = [PartTask(number, part.path) for number, part in enumerate(parts)]
        where = Where("writing", self.key, self.work.scratch, copies=not self.corpus.is_local)
        with Progress("writing", self.corpus.tokens, unit, self.progress) as bar:
            job.advance = bar.advance
            options: dict[str, Any] = {"workers": self._workers(), "preload": (write_part.__module__,), "where": where}
            tokens = 0
            with closing(run(write_part, tasks, policy=Policy(shared=job), **options)) as results:
                for done in results:
                    self.written.append(done)
                    tokens += done.tokens
                    bar.advance(max(0, tokens - bar.done))  # what other processes have written
        for path in reversed(higher):  # a killed run then finds the remaining ones
            remove_part(path, self.form.format)
        return self.written

    def _plan(self, dry: DryRun, units: Units, parts: Sequence[Part], higher: Sequence[str]) -> list[WrittenFile]:
        """Add the parts to a dry run; return them as they would be written."""
        lines = self.form.format == LINES
        dry.reads(store.stat(shard.path).size for store, shard in self.corpus.shards)
        for part in parts:
            documents = int(in_blocks(units.documents, part.numbers).sum())
            done = WrittenFile(part.path, documents, int(lengths_of(units, part.numbers).sum()))
            store, main = main_of(part.path)
            exact = len(parts) == 1 or not self.seeded or self.seed_known
            size = file_bytes(self.form, done.tokens, 0 if lines else documents) if exact else None
            stem = "" if lines else main.removesuffix(FORMATS[self.form.format][0])
            for number, path in enumerate([main] if lines else data_files(self.form.format, stem)):
                dry.writes(store, path, None if number else size)
            self.written.append(done)
        for store, main in map(main_of, higher):
            dry.deletes_all(store, [main])
        noun = ("lines", "bytes") if lines else ("documents", "tokens")
        dry.counts |= {noun[0]: sum(d.documents for d in self.written), noun[1]: sum(d.tokens for d in self.written)}
        if self.seeded:
            dry.counts["seed"] = str(self.seed) if self.seed_known else "drawn at random"
        return self.written

    def _workers(self) -> int | None:
        """Return the number of processes."""
        small = self.corpus.tokens * self.corpus.dtype.itemsize < PARALLEL_FROM
        return 1 if self.workers is None and small else self.workers

    def _refuse_existing(self, targets: Sequence[str]) -> None:
        for store, main in map(main_of, targets):
            if not self.overwrite and store.exists(main):
                raise ConfigError(
                    "the file already exists",
                    file=store.locate(main),
                    kind="exists",
                    fix="Choose another file, or add --overwrite (Modalities: --file_existence_policy override).",
                )

    def finish(self, **fields: Any) -> Report:
        """End the job after all files are written, and return the report."""
        self.work.finish()
        shards, lines = self.corpus.shards, self.corpus.format == LINES
        notes = [f"{store.locate(shard.path)}: {remark}" for store, shard in shards for remark in shard.remarks]
        notes += [
            f"{store.locate(shard.path)}: its splits are not copied; divide the output with 'feedmill prepare FILE"
            " --split-ratio 8,1,1'"
            for store, shard in shards
            if lines and store.exists(splits_name(shard.path))
        ]
        return Report(
            self.options["verb"],
            len(shards),
            self.written,
            seed=self.seed if self.seeded and self.seed_known else None,
            resumed=sum(done.reused for done in self.written),
            notes=notes,
            **fields,
        )


@contextlib.contextmanager
def start(
    target: str,
    corpus: Corpus,
    form: Form,
    options: dict[str, Any],
    *,
    seed: int | None = None,
    seeded: bool = True,
    overwrite: bool = False,
    workers: int | None = None,
    progress: bool | None = None,
    **more: Any,
) -> Iterator[Rewriting]:
    """Lock the target for a run of a verb; nothing is written yet.

    To resume a killed run, repeat the call: the work folder has its seed and the marks of finished files.

    Args:
        options: the verb and other options for the manifests.
        seed: seed of the order; None draws one. It is used and reported only if `seeded`.
        overwrite: replace existing files.
        workers: processes that write files; None for one per core if there is enough to do.
        progress: whether to show a progress bar, see `Progress`.
        more: further values that determine the output bytes and are not in manifests.

    Raises:
        ConfigError: the target is an input, another unfinished job writes there, or a number has more than 64 bits.
        StorageError: another process is writing there (kind ``busy``).
    """
    _refuse_inputs(corpus, [target])
    seed = seed if seeded else 0
    drawn = seed is None
    facts = {"inputs": corpus.facts(), "form": asdict(form), "target": target, **options, **more, "seed": seed}
    try:
        text = orjson.dumps(facts, default=str, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as error:
        raise ConfigError(f"invalid option ({error})", kind="bad-option", fix="Use smaller numbers.") from None
    folder, name = split_url(target)
    identity = {"verb": "rewrite", "job": hash_words([text])}
    with Work(open_store(folder), name) as work:
        with work.beginning():  # parts of a job array must have the same seed
            work.refuse_other(identity, overwrite=overwrite)
            begun = work.begin(identity, seed=secrets.randbits(31) if seed is None else seed)
            if not begun and active() is None:
                remove_marks(work.scratch)
        seed = int(work.noted["seed"])
        rewriting = Rewriting(
            work=work,
            key=hash_words([text, str(seed)]),
            corpus=corpus,
            form=form,
            options={**options, "seed": seed} if seeded else options,
            seed=seed,
            seeded=seeded,
            seed_known=active() is None or not drawn or work.resumed,
            overwrite=overwrite,
            workers=workers,
            progress=progress,
        )
        try:
            yield rewriting
        except BaseException:
            if not rewriting.writing:
                work.abandon()
            raise
        finally:
            if not corpus.is_local:
                forget_copies()


def _refuse_inputs(corpus: Corpus, targets: Sequence[str]) -> None:
    """Raise `ConfigError` if a target is also an input, under any name or through a link: it would be overwritten."""
    paths = [store.locate(main_file(shard.path)) for store, shard in corpus.shards]
    inputs = {*map(_place, paths), *map(canonical_location, paths)}
    for target in targets:
        if _place(main_file(target)) in inputs:
            raise ConfigError(
                "the output is one of the inputs", file=target, fix="Choose another output.", kind="exists"
            )


def _place(path: str) -> str:
    """Return where a file is put, which replaces a link of its name."""
    folder, name = split_url(path)
    return join_url(canonical_location(folder), name)


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
