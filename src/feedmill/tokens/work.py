"""Encode units in a worker: read the documents of a unit, or of several small ones, encode them, write a piece."""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from feedmill.documents.batch import Batch
from feedmill.documents.file import DocumentFile, Unit
from feedmill.documents.lineage.runs import Runs, encode_runs, joined
from feedmill.documents.read import Reader, read_documents
from feedmill.documents.textpath import TextReader
from feedmill.documents.typed import Typed, TypedReader
from feedmill.errors import FeedmillError
from feedmill.jobs.cores import available_cores
from feedmill.jobs.engine import is_shared
from feedmill.jobs.threads import ahead, ordered_map
from feedmill.jobs.work import Work
from feedmill.tokens.encode import Encoding, Encodings, encode_batch
from feedmill.tokens.spill import SUFFIX, PieceFacts, find_piece, write_piece
from feedmill.tokens.template import TemplateSource
from feedmill.tokens.tokenizer import Backend, Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from feedmill.tokens.chat.reader import ChatSpec

EXAMPLES = 100
OTHERS = "others"
"""Name for what else the checks of a unit find, beyond the first hundred names."""
_LAYOUT = 3
_JOINED = 1 << 18  # characters
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
                _count_checks(facts, [(part.rows[i], part.fields[i][2]) for i in kept])
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


def identity_of(tokenizer: Tokenizer) -> str:
    """Return the hash, backend, versions and settings of a tokenizer."""
    versions = ",".join(f"{name}={number}" for name, number in sorted(tokenizer.versions().items()))
    around = tokenizer.around
    template = "" if around is None or around.own else f" template {around.before} {around.after}"
    settings = f" settings {tokenizer.settings}" if tokenizer.settings else ""
    return f"{tokenizer.hash} {tokenizer.backend} {versions}{template}{settings}"


def piece_name(number: int, units: tuple[Unit, ...], spec_key: str) -> str:
    """Return the name of the piece of units: a hash of everything that determines its content."""
    words = [spec_key, "rows"]
    for unit in units:
        words += [unit.file.url, unit.file.kind, unit.file.version, str(unit.begin), str(unit.end)]
        words += [] if unit.file.rows == (0, 1) else [repr(unit.file.rows)]
    return f"{number:06d}-{xxhash.xxh3_64_hexdigest(chr(0).join(words).encode())}{SUFFIX}"
