"""Job of every verb that encodes documents: encode units of work on all cores, and write their tokens in order.

The inputs are divided into units (`feedmill.documents.read`). Workers write the tokens of each unit to a piece, a file
in the work folder next to the output. One output file consumes the pieces in order while later ones are still encoded.
Outputs of several files are written in a second stage of units, each of which writes whole files from the pieces that
it needs. The bytes do not depend on the number of workers or the size of units. To resume a killed run, repeat the
command: complete pieces, and output files, of the same inputs, options and tokenizer are reused.

The outputs are token files, or numbered ones of a size (`feedmill.tokens.verbs.tokenize`), and Dolma's folder of mixed
files (`feedmill.tokens.dolma_output`). A dry run names the files, and encodes the first documents of each input.
"""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import xxhash

from feedmill.documents.batch import Batch
from feedmill.documents.file import DocumentFile, Unit
from feedmill.documents.lineage.sidecar import Runs, encode_runs, joined
from feedmill.documents.read import cut
from feedmill.documents.textpath import TextReader
from feedmill.documents.typed import Typed, TypedReader
from feedmill.errors import ConfigError, DataError, EmptyResult, FeedmillError, refuse_empty
from feedmill.formats.tokens.manifest import Skipped, TokenManifest
from feedmill.jobs.dry_run import DryRun, JobReport, perform
from feedmill.jobs.engine import Where, is_shared, key_of, limits_given
from feedmill.jobs.journal import Journal
from feedmill.jobs.progress import Progress
from feedmill.jobs.resources import available_cores
from feedmill.jobs.threads import ahead, ordered_map
from feedmill.jobs.work import Work, foresee, tidy
from feedmill.storage import Store
from feedmill.tokens.encode import Encoding, Encodings, encode_batch, fix_of
from feedmill.tokens.options import Tokenizing
from feedmill.tokens.outputs import Files, FileTask, WrittenFile, files_of_part, marks, numbered_paths, write_files
from feedmill.tokens.spill import SUFFIX, Piece, PieceFacts, Pieces, find_piece, write_piece
from feedmill.tokens.template import TemplateSource
from feedmill.tokens.tokenizer import Backend, Tokenizer, identity_of, load_tokenizer

if TYPE_CHECKING:
    from feedmill.documents.read import Reader
    from feedmill.tokens.chat.checks import Check
    from feedmill.tokens.chat.reader import ChatSpec


PRELOAD = ("feedmill.tokens.job", "feedmill.tokens.engines", "fastokens")
"""Modules that workers import."""

_FIX = "Fix the document, or add --on-error skip to skip and list such documents."
_SENT = 64
"""Maximum number of small units in one task."""
EXAMPLES = 100
OTHERS = "others"
"""Name for what else the checks of a unit find, beyond the first hundred names."""
_LAYOUT = 3
_JOINED = 1 << 18  # characters
_FEW = 1 << 25
"""Number of tokens below which this process writes files of pieces: starting processes would take longer."""
_FILES = 64
"""Maximum number of files of which a dry run reads the first documents."""
_BYTES = 1 << 16
"""Bytes of each of these files, where a part of it can be read."""
LOSS_FIELDS = ("no_loss_ranges", "metadata")


@dataclass(frozen=True, slots=True)
class EncodeSpec:
    """Everything that determines the content of a piece, except the unit.

    Attributes:
        tokenizer, backend: path and engine, to load the tokenizer in a worker; `identity`: its hash, backend and
            versions.
        text: location of the text.
        skip: whether invalid documents are skipped; otherwise the first one ends the job.
        origins: whether ids of documents are kept.
        typed: locations of text and id, instead of `text`.
        template_source, pattern: options to load the tokenizer; what they decide is in `identity`.
        chat: how conversations become texts, instead of `text`.
    """

    tokenizer: str
    backend: Backend
    identity: str
    text: str
    how: Encoding
    skip: bool
    origins: bool
    typed: Typed | None = None
    template_source: TemplateSource = "auto"
    pattern: str | None = None
    chat: ChatSpec | None = None

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        how: Encoding,
        text: str,
        *,
        skip: bool,
        origins: bool,
        typed: Typed | None = None,
        chat: ChatSpec | None = None,
    ) -> EncodeSpec:
        """Return the specification of encoding with a loaded tokenizer."""
        name, identity, source = str(tokenizer.path), identity_of(tokenizer), tokenizer.template_source
        return cls(name, tokenizer.backend, identity, text, how, skip, origins, typed, source, tokenizer.pattern, chat)

    def reader(self) -> Reader:
        """Return the reader of documents; each thread has its own."""
        return _reader(self, threading.get_ident())

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields to read in addition to the text."""
        return (LOSS_FIELDS if self.how.loss else ()) + (("id",) if self.origins else ())

    def key(self) -> str:
        """Return a hash of everything that decides the bytes."""
        facts = asdict(self)
        facts.pop("tokenizer")  # a copy of the file gives the same ids
        facts.pop("template_source")
        facts.pop("pattern")
        if self.chat is None:
            facts.pop("chat")
        if self.how.sentences is None:
            facts["how"].pop("sentences")
        else:
            facts["how"]["sentences"].pop("folder")
        return xxhash.xxh3_64_hexdigest(msgspec.json.encode([_LAYOUT, sorted(facts.items())]))


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """Units to encode (part of a file, or several whole files) and the path or URL of their piece.

    With `spare`, threads may read and write on idle cores.
    """

    units: tuple[Unit, ...]
    spec: EncodeSpec
    path: str
    spare: bool = False

    def __str__(self) -> str:
        first, more = self.units[0], len(self.units) - 1
        return f"{first.file.url} [{first.begin}, {first.end})" + (f" and {more} more" if more else "")

    @property
    def bytes(self) -> int:
        """Number of input bytes."""
        return sum(unit.bytes for unit in self.units)

    def place(self, facts: PieceFacts, row: int) -> tuple[DocumentFile, int]:
        """Return the file of a row of the piece, and the row's number in its unit."""
        number = bisect_right(facts.ends, row)
        return self.units[number].file, row - (facts.ends[number - 1] if number else 0)


@dataclass(frozen=True, slots=True)
class EncodedUnit:
    """A finished unit: its piece, facts, and whether an earlier run wrote it; or the first invalid document."""

    task: EncodeTask
    facts: PieceFacts
    reused: bool = False
    bad: tuple[int, str] | None = None


def encode_unit(task: EncodeTask) -> EncodedUnit:
    """Encode a unit unless its piece exists. Raises FeedmillError if its file cannot be read."""
    found = find_piece(task.path)
    if found is not None:
        return EncodedUnit(task, found, reused=True)
    spec = task.spec
    tokenizer, how = tokenizer_of(spec), spec.how
    facts = PieceFacts(bytes=task.bytes, dtype=how.dtype, loss=how.marks, origins=spec.origins, synced=is_shared())
    batches = _batches(task.units, spec.reader(), facts)
    try:
        with (
            write_piece(task.path, facts) as piece,
            closing(ahead(batches) if task.spare else batches) as source,
            closing(_encoded(source, tokenizer, spec, facts)) as encoded,
            closing(ordered_map(piece.add, encoded, workers=int(task.spare), in_flight=2)) as added,
        ):
            for _ in added:
                pass
    except _Stopped as stop:
        return EncodedUnit(task, facts, bad=stop.bad)
    return EncodedUnit(task, facts)


def encode_read(task: EncodeTask, batches: Iterable[Batch], facts: PieceFacts) -> EncodedUnit:
    """Encode documents that were read, for a dry run: only `facts` and the first invalid document are kept."""
    try:
        for found, _ in _encoded(batches, tokenizer_of(task.spec), task.spec, facts):
            facts.documents += len(found.lengths)
            facts.tokens += int(found.lengths.sum())
    except _Stopped as stop:
        return EncodedUnit(task, facts, bad=stop.bad)
    return EncodedUnit(task, facts)


def _batches(units: tuple[Unit, ...], reader: Reader, facts: PieceFacts) -> Generator[Batch, None, None]:
    """Yield the documents of units, with rows numbered across all of them. Small batches are joined."""
    joined, size, base = Batch(), 0, 0
    from feedmill.documents.read import read_documents

    for number, unit in enumerate(units):
        if number:
            facts.ends.append(base)
        first = base
        with closing(read_documents(unit, reader)) as batches:
            for batch in batches:
                base += batch.lines
                if len(units) == 1:
                    yield batch
                    continue
                joined.extend(batch, first)
                size += sum(map(len, batch.texts))
                if size >= _JOINED:
                    yield joined
                    joined, size = Batch(), 0
    if len(units) > 1:
        yield joined


def _encoded(
    batches: Iterable[Batch], tokenizer: Tokenizer, spec: EncodeSpec, facts: PieceFacts
) -> Generator[tuple[Encodings, list[Any] | None], None, None]:
    """Yield the encoded documents, with their ids if these are kept. Skipped documents are counted."""
    runs: list[Runs] = []
    for batch in batches:
        for part in _parts(batch):
            found = encode_batch(tokenizer, spec.how, part)
            ids = None
            rows = part.rows if found.kept is None else [part.rows[i] for i in found.kept]
            runs.append(Runs.of(0, rows))
            kept = range(len(part.texts)) if found.kept is None else found.kept
            if spec.chat is not None:
                _count_checks(facts, [(part.rows[i], names) for i in kept if (names := part.fields[i][2])])
            if spec.origins:
                keys = [part.fields[i][-1] for i in kept]
                ids = keys if spec.typed is not None else [_key(key) for key in keys]
            yield found, ids
            if part.bad:
                _note(facts, part, spec.skip)
        facts.lines += batch.lines
        facts.blank += batch.blank
        facts.empty += batch.empty
    facts.rows = encode_runs(joined(runs))


def tasks_of(
    job: Work, units: Sequence[tuple[Unit, ...]], spec: EncodeSpec, workers: int | None, keep: str = ""
) -> list[EncodeTask]:
    """Return the tasks for units, on `workers` processes (None for one per core).

    Other files in the work folder are removed, except `keep`.
    """
    key, cores = spec.key(), available_cores()
    spare = min(cores if workers is None else workers, len(units)) < cores
    names = [piece_name(number, group, key) for number, group in enumerate(units)]
    job.sweep({keep, *names})
    # Uncompressed files are divided instead, because processes help more than threads.
    return [
        EncodeTask(group, spec, job.scratch.locate(name), spare and group[0].file.packed)
        for group, name in zip(units, names, strict=True)
    ]


class _Stopped(Exception):
    def __init__(self, bad: tuple[int, str]) -> None:
        self.bad = bad


def _count_checks(facts: PieceFacts, found: Iterable[tuple[int, Sequence[str]]]) -> None:
    """Count what checks found in documents, given with the row of each."""
    for row, names in found:
        for name in names:
            name = name if name in facts.checks or len(facts.checks) < EXAMPLES else OTHERS
            count, first = facts.checks.get(name, (0, row))
            facts.checks[name] = count + 1, first


def _note(facts: PieceFacts, batch: Batch, skip: bool) -> None:
    bad = sorted(batch.bad)
    if not skip:
        raise _Stopped(bad[0])
    facts.bad += len(bad)
    facts.examples += bad[: EXAMPLES - len(facts.examples)]


def _parts(batch: Batch, limit: int = 8 << 20) -> Iterator[Batch]:
    """Yield a batch in slices of at most this many characters (or one text), to bound memory."""
    if sum(map(len, batch.texts)) <= limit:
        yield batch
        return
    sizes = [len(text) for text in batch.texts]
    begin = total = 0
    for index, size in enumerate([*sizes, limit + 1]):
        if (total + size > limit and index > begin) or index == len(sizes):
            fields = batch.fields[begin:index]
            yield Batch(batch.texts[begin:index], batch.rows[begin:index], [] if begin else batch.bad, fields)
            begin, total = index, 0
        total += size


def _key(value: object) -> object:
    """Return an id that can be stored; None if the document must be identified by its line."""
    if isinstance(value, str):
        with contextlib.suppress(UnicodeEncodeError):  # a lone surrogate cannot be stored
            value.encode()
            return value
        return None
    return value if isinstance(value, int) else None


@lru_cache(maxsize=8)
def _reader(spec: EncodeSpec, thread: int) -> Reader:  # noqa: ARG001
    if spec.chat is not None:
        from feedmill.tokens.chat.reader import ChatReader

        return ChatReader(spec.chat)
    if spec.typed is not None:
        return TypedReader(spec.typed)
    return TextReader(spec.text, spec.fields, keep_empty=spec.how.keep_empty)


@lru_cache(maxsize=2)
def _loaded(
    name: str, backend: Backend, identity: str, template_source: TemplateSource, pattern: str | None
) -> Tokenizer:
    found = load_tokenizer(name, backend, check=False, template_source=template_source, pattern=pattern)
    if identity_of(found) != identity:
        raise FeedmillError("the tokenizer changed while it was in use", file=name, fix="Run the command again.")
    return found


_ready: dict[str, Tokenizer] = {}


def offer(tokenizer: Tokenizer) -> None:
    """Make a loaded tokenizer available to this process."""
    _ready.clear()
    _ready[identity_of(tokenizer)] = tokenizer


def tokenizer_of(spec: EncodeSpec) -> Tokenizer:
    """Return the tokenizer of a job, loaded once in each process."""
    found = _ready.get(spec.identity) or _loaded(
        spec.tokenizer, spec.backend, spec.identity, spec.template_source, spec.pattern
    )
    found.template, found.ordinary = spec.how.template, spec.how.ordinary
    return found


def piece_name(number: int, units: tuple[Unit, ...], spec_key: str) -> str:
    """Return the name of the piece of units: a hash of everything that determines its content."""
    words = [spec_key, "rows"]
    for unit in units:
        words += [unit.file.url, unit.file.kind, unit.file.version, str(unit.begin), str(unit.end)]
        words += [] if unit.file.rows == (0, 1) else [repr(unit.file.rows)]
    return f"{number:06d}-{xxhash.xxh3_64_hexdigest(chr(0).join(words).encode())}{SUFFIX}"


@dataclass(kw_only=True)
class Counts(JobReport):
    """Counts of a run that encodes documents.

    Attributes:
        documents, tokens, bytes: documents and tokens written, and bytes read.
        files, units, reused: numbers of input files, units of work, and units that an earlier run had finished.
        blank: number of blank lines, which are not documents.
        skipped: number of skipped documents; `skipped_examples`: file, line and reason of the first hundred.
        tokenizer, backend, fallback: name of the tokenizer, its engine, and why the fast engine was not used.
        tokens_in_loss: tokens that contribute to the loss; None if no mask was made.
        checks: what checks found in valid documents: name -> number, and the first of them; see
            `feedmill.tokens.chat.checks`.
        complete: whether an earlier run of the same job had written the output, so that nothing was done.
    """

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    files: int = 0
    units: int = 0
    reused: int = 0
    blank: int = 0
    skipped: int = 0
    skipped_examples: list[Skipped] = field(default_factory=list)
    tokenizer: str = ""
    backend: str = ""
    fallback: str | None = None
    complete: bool = False
    seconds: float = 0.0
    tokens_in_loss: int | None = None
    checks: dict[str, Check] = field(default_factory=dict)

    def restore(self, manifests: Sequence[TokenManifest]) -> None:
        """Set the counts from the manifests of a complete output."""
        first = manifests[0]
        self.complete, self.documents, self.tokens = True, first.documents, first.tokens
        self.skipped, self.skipped_examples = first.skipped, first.skipped_examples
        self.tokens_in_loss = first.options.get("tokens_in_loss")
        from feedmill.tokens.chat.checks import Check

        self.checks = {name: Check(**one) for name, one in first.options.get("checks", {}).items()}

    def refuse_empty(self, output: str, allow: bool) -> None:
        """Raise `EmptyResult` if no document was kept."""
        reasons = {}
        if self.skipped_examples:
            first = self.skipped_examples[0]
            reasons[f"skipped, the first in {first.file} line {first.line}: {first.reason}"] = self.skipped
        read = self.documents + self.skipped
        refuse_empty(self.documents, read, file=output, skipped=reasons, allow=allow)


@dataclass
class TokenizeReport(Counts):
    """Report of a run.

    Attributes:
        outputs: format -> path of the file that identifies the output; of numbered files, a pattern of all of them.
        numbered_files: format -> number of files, with `max_file_size`.
        bos, eos: tokens added around each document, or None; `rule`: when they are added.
        template: whether the tokenizer's template was applied; `template_adds`: its tokens and the file defining it;
            `has_template`: whether there is one.
        settings: what settings next to the tokenizer changed, and the pattern of a tiktoken file.
        switched_off: disabled settings of the tokenizer that would make ids random, with their values.
        token_bytes: format -> bytes per token; not for ``vla-text``, which is JSON.
        skipped_files: files in the folders that were not read; `skipped_files_examples`: the first hundred.
        notes: notes for the user; `warnings`: those of them that concern every conversation, which were logged.
        left_over: tokens at the end that do not fill a sequence of ``vla-text`` and are dropped.
        chat: form and mask rule of conversations; None for texts.
    """

    outputs: dict[str, str]
    bos: str | None = None
    eos: str | None = None
    rule: str = "missing"
    template: bool = True
    template_adds: str | None = None
    has_template: bool = True
    settings: list[str] = field(default_factory=list)
    switched_off: dict[str, Any] = field(default_factory=dict)
    token_bytes: dict[str, int] = field(default_factory=dict)
    left_over: int = 0
    numbered_files: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    skipped_files: int = 0
    skipped_files_examples: list[str] = field(default_factory=list)
    chat: dict[str, str] | None = None

    def restore(self, manifests: Sequence[TokenManifest]) -> None:
        """See `Counts.restore`."""
        super().restore(manifests)
        self.left_over = max(int(manifest.options.get("left_over", 0)) for manifest in manifests)

    def written_files(self) -> list[str] | None:
        """See `JobReport`."""
        paths = [(path, name) for name, given in self.outputs.items() for path in numbered_paths(given)]
        unknown = any("{part" in path for path, _ in paths)  # in a dry run
        return None if unknown else [file for path, name in paths for file in files_of_part(path, name)]


class JobOutput(Protocol):
    """Output of encoded documents.

    Attributes:
        store, name: the output, next to which the work folder is; see `Work`.
        url: URL of the output, for messages.
        files: the inputs.
        report: counts of the job.
        in_units: whether units of a second stage write the output.
    """

    store: Store
    url: str
    in_units: bool

    @property
    def name(self) -> str:
        """Path of the output in `store`."""

    def plan(self, dry: DryRun) -> None:
        """Add the files to write, and those that are deleted, to a dry run."""

    @property
    def files(self) -> Sequence[DocumentFile]:
        """The input files, in order."""

    @property
    def report(self) -> Counts:
        """Counts of the job, which grow as units finish."""

    def identity(self) -> Iterable[str]:
        """The values that determine the output, in addition to the `EncodeSpec`."""

    def units(self, unit_bytes: int) -> Sequence[tuple[Unit, ...]]:
        """Return the units of work, in the order in which they are passed to `opened`."""

    def manifests(self) -> Iterable[TokenManifest | None]:
        """Return the manifests; None for one that is missing or does not match its files."""

    def existing(self) -> ConfigError | None:
        """Return the error for output of another job that must not be replaced; None if there is none."""

    def opened(self, job: EncodeJob, work: Work) -> AbstractContextManager[Callable[[Piece], object]]:
        """Return a context with a function that consumes the pieces of units, in order.

        The output is written, or published, with its manifests if the block ends without an error.
        """


class EncodeJob:
    """One run, from documents to a published output.

    Attributes:
        key: hash of everything that determines the output.
        marks: folder in the work folder for the facts of finished output files.
    """

    def __init__(self, output: JobOutput, spec: EncodeSpec, tokenizer: Tokenizer, options: Tokenizing) -> None:
        self.output, self.spec, self.tokenizer, self.options = output, spec, tokenizer, options
        self.key = xxhash.xxh3_64_hexdigest("\n".join([spec.key(), *output.identity()]).encode())
        self.marks = marks(self.key)
        self.inputs: list[dict[str, Any]] = [
            {"path": f.url, "bytes": f.size, "version": f.version} for f in output.files
        ]
        report = output.report
        report.files = len(output.files)
        report.tokenizer, report.backend, report.fallback = tokenizer.name, tokenizer.backend, tokenizer.fallback

    def run(self) -> None:
        """Do the unfinished work.

        Raises:
            ConfigError: an output of another job exists.
            DataError: a document is invalid, or a file is corrupt.
            EmptyResult: there are no documents.
            StorageError: another process is writing the output, or it cannot be written.
        """
        output, options = self.output, self.options
        identity = {"verb": "tokenize", "job": self.key}
        done = False
        if not options.overwrite and not Journal(output.store, output.name).is_of(identity):
            done = self._is_complete()
            if not done and (error := output.existing()) is not None:
                raise error
        if not done:
            perform(self._plan, partial(self._execute, identity))
            return
        tidy(output.store, output.name)  # workers of a killed run may have written pieces later
        output.report.refuse_empty(output.url, options.allow_empty)

    def _plan(self, dry: DryRun) -> None:
        """Add the inputs and outputs to a dry run, and encode the first documents of the inputs.

        The counts of the report are those of the first documents. If these are all there are, they are those of the
        result.

        Raises:
            DataError: one of these documents is invalid, unless invalid ones are skipped.
            EmptyResult: there are no documents.
        """
        output, report = self.output, self.output.report
        foresee(output.store, output.name)
        dry.reads(file.size for file in output.files)
        output.plan(dry)
        offer(self.tokenizer)
        read = [_first(self.spec, file) for file in output.files[:_FILES]]
        whole = len(read) == len(output.files) and all(complete for _, complete in read)
        self._count([found for found, _ in read])
        if whole:
            report.refuse_empty(output.url, self.options.allow_empty)
            dry.counts |= {"documents": report.documents, "tokens": report.tokens}
        elif report.bytes and not any(file.packed or file.kind not in ("lines", "text") for file in output.files):
            about = report.tokens * dry.bytes // report.bytes
            dry.counts["tokens"] = f"about {about:,}, as in the first {report.documents:,} documents"
        if report.skipped:
            dry.skipped["invalid documents" + ("" if whole else " among the first ones")] = report.skipped

    def _execute(self, identity: Mapping[str, Any]) -> None:
        output, options = self.output, self.options
        with Work(output.store, output.name) as work:
            work.begin(identity, keep_staged=True)
            tasks = tasks_of(work, output.units(options.unit_bytes), self.spec, options.workers, keep=self.marks)
            output.report.units = len(tasks)
            offer(self.tokenizer)
            try:
                with output.opened(self, work) as add:
                    self._encode(tasks, add, work)
                    output.report.refuse_empty(output.url, options.allow_empty)
            except EmptyResult:
                work.finish()  # no other run can use the pieces
                raise
            work.finish()

    def manifest(self, format: str, documents: int, tokens: int, options: dict[str, Any]) -> TokenManifest:
        """Return the manifest of one file of the output, without its sizes and hashes."""
        return TokenManifest(
            format,
            documents,
            tokens,
            tokenizer=self.tokenizer.facts(),
            bos=self.spec.how.bos,
            eos=self.spec.how.eos,
            inputs=self.inputs,
            skipped=self.output.report.skipped,
            skipped_examples=self.output.report.skipped_examples,
            options={"job": self.key, **options},
        )

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each input, by URL."""
        return {str(facts["path"]): number for number, facts in enumerate(self.inputs)}

    def files(self, units: Pieces, folder: Store, overwrite: bool = True) -> Files:
        """Return the stage that writes files of the pieces, of which there are none yet."""
        inputs = [(str(facts["path"]), int(facts["bytes"])) for facts in self.inputs]
        return Files(
            units=units,
            verb="tokenize",
            inputs=inputs,
            facts=self.inputs,
            folder=folder,
            key=self.key,
            overwrite=overwrite,
        )

    def write(self, files: Files, tasks: Sequence[FileTask], formats: int = 1) -> Iterator[WrittenFile]:
        """Write files of pieces as the units of a stage, each piece in this many formats. Yield them in order."""
        tokens, options = self.output.report.tokens, self.options
        workers = 1 if tokens < _FEW else options.workers
        return write_files(files, tasks, workers, tokens * formats, "tokens", options.progress)

    def _count(self, done: Sequence[EncodedUnit]) -> None:
        """Add finished units to the counts of the report. Raises DataError for one that stopped at a document."""
        for _ in _in_order([unit.task for unit in done], done, self.output.report):
            pass

    def _is_complete(self) -> bool:
        """Return whether the output is complete and of this job. If so, set the counts of the report."""
        manifests = []
        for manifest in self.output.manifests():
            if manifest is None or manifest.options.get("job") != self.key:
                return False
            manifests.append(manifest)
        self.output.report.restore(manifests)
        self.output.report.bytes = sum(file.size for file in self.output.files)
        return True

    def _encode(self, tasks: Sequence[EncodeTask], add: Callable[[Piece], object], work: Work) -> None:
        report, options = self.output.report, self.options
        total = sum(task.bytes for task in tasks)
        at_once = min(_SENT, max(1, options.unit_bytes * len(tasks) // max(1, total)))
        with Progress("tokenizing", total, "B", options.progress) as bar:
            key = key_of(*(os.path.basename(task.path) for task in tasks))
            where = Where("tokenizing", key, work.scratch, record=_refuse_bad, last=not self.output.in_units)
            bar.of_sizes([task.bytes for task in tasks])
            options_of_run: dict[str, Any] = {"workers": options.workers, "preload": PRELOAD, "chunk": at_once}
            from feedmill.jobs.run import run

            encode = encode_unit if limits_given().max_failed is None else encode_or_refuse
            results = run(encode, tasks, progress=bar, where=where, **options_of_run)
            with closing(results):
                for done, line in _in_order(tasks, results, report):
                    files = tuple(unit.file.url for unit in done.task.units)
                    add(Piece(done.task.path, done.facts, line, files))
                    bar.note(f"{report.tokens / max(bar.elapsed, 1e-9) / 1e6:.1f} M tokens/s")


def encode_or_refuse(task: EncodeTask) -> EncodedUnit:
    """Encode a unit. Raises `DataError` if it stops at an invalid document: within a budget, only this unit fails."""
    done = encode_unit(task)
    _refuse_bad(done)
    return done


def _refuse_bad(done: EncodedUnit) -> None:
    """Raise `DataError` for a unit that stopped at an invalid document, of a job array or of a budget.

    Its line in the file is unknown here: others have the units before it.
    """
    if done.bad is not None:
        file, row = done.task.place(done.facts, done.bad[0])
        begin = next(unit.begin for unit in done.task.units if unit.file is file)
        where = f"row {row + 1}" + (f" from byte {begin} on" if begin else "")
        raise _bad_document(done.bad[1], file.url, where)


def _bad_document(reason: str, file: str, record: str) -> DataError:
    fix = fix_of(reason)
    kind = "bad-document" if fix is None else "bad-token-size"
    return DataError(reason, file=file, record=record, kind=kind, fix=fix or _FIX)


def _in_order(
    tasks: Sequence[EncodeTask], results: Iterable[EncodedUnit], counts: Counts
) -> Iterator[tuple[EncodedUnit, int]]:
    """Yield finished units and add them to the counts, each with the line of its file (from 0) where it begins.

    Raises:
        DataError: a unit stopped at a bad document; of kind ``bad-document``.
    """
    line = 0
    for task, done in zip(tasks, results, strict=True):
        facts = done.facts
        if not task.units or task.units[0].begin == 0:  # first unit of its file
            line = 0
        if done.bad is not None:
            file, row = task.place(facts, done.bad[0])
            what = "row" if file.kind in ("parquet", "arrow") else "line"
            raise _bad_document(done.bad[1], file.url, f"{what} {line + row + 1}")
        counts.documents += facts.documents
        counts.tokens += facts.tokens
        if facts.loss and task.spec.how.loss:  # otherwise they are marks of sentences
            counts.tokens_in_loss = (counts.tokens_in_loss or 0) + facts.learned
        counts.bytes += facts.bytes
        counts.blank += facts.blank
        counts.reused += done.reused
        counts.skipped += facts.bad
        room = EXAMPLES - len(counts.skipped_examples)
        places = ((task.place(facts, row), why) for row, why in facts.examples[:room])
        counts.skipped_examples += [Skipped(file.url, line + row + 1, why) for (file, row), why in places]
        for name, (count, row) in facts.checks.items():
            from feedmill.tokens.chat.checks import Check, added

            file, number = task.place(facts, row)
            counts.checks = added(counts.checks, {name: Check(count, file.url, line + number + 1)})
        yield done, line
        line += facts.lines


def _first(spec: EncodeSpec, file: DocumentFile) -> tuple[EncodedUnit, bool]:
    """Return the first documents of a file, encoded, and whether it has no others."""
    unit = next(iter(cut([file], _BYTES)), None)
    task = EncodeTask((unit,) if unit is not None else (), spec, "")
    facts = PieceFacts(bytes=task.bytes, dtype=spec.how.dtype, loss=spec.how.loss, origins=spec.origins)
    if unit is None:
        return EncodedUnit(task, facts), True
    from feedmill.documents.read import read_documents

    with closing(read_documents(unit, spec.reader())) as batches:
        listed = list(islice(batches, 1))
        done = encode_read(task, listed, facts)
        complete = unit.end >= file.size if file.kind != "parquet" else len(list(cut([file], _BYTES))) == 1
        return done, complete and next(batches, None) is None
