"""Extract one archive: the unit of work, with its outputs, its record and what it left out.

The documents of an archive appear when they are complete, and after them the record of their inputs. After a kill, the
same command finishes the run; archives that are up to date are kept. Beside the documents (`documents.beside`) are, for
each archive, ``<output>.extract.json`` (the record) and ``<output>.left_out.jsonl``. There is no lineage: the documents
are the raw ones of `trace` and `forget`, and each names its archive and the offset of its record.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec
import orjson

from feedmill._version import __version__
from feedmill.curation import records
from feedmill.curation.extract import pages
from feedmill.curation.extract.pages import ArchiveSettings, BlockResult, Form, Settings, extract_block
from feedmill.curation.records import FileState
from feedmill.documents.file import DocumentFile, RecordFolder, beside, inside
from feedmill.documents.warc.records import blocks
from feedmill.documents.warc.stored import chunks
from feedmill.errors import FeedmillError
from feedmill.formats.documents import ATTRIBUTES, write_lines
from feedmill.jobs.engine import Policy
from feedmill.jobs.progress import count_read
from feedmill.jobs.reports import SHOWN, LeftOut
from feedmill.jobs.run import run
from feedmill.storage import join_url, open_store
from feedmill.storage.hashed import HashedReader
from feedmill.structs import decode_as

RECORD, LEFT_OUT = ".extract.json", ".left_out.jsonl"
PRELOAD = ("feedmill.curation.extract.job",)


class Output(NamedTuple):
    """A file to write.

    Attributes:
        root: the folder that the user gave; nothing below it is written through links.
        folder: ``documents``, the folder of an attribute set, or nothing.
        name: path of the file below it.
    """

    root: str
    folder: str
    name: str

    @property
    def path(self) -> str:
        """Path of the file below `root`."""
        return f"{self.folder}/{self.name}" if self.folder else self.name

    @property
    def url(self) -> str:
        """Path or URL of the file."""
        return join_url(self.root, self.path)


class ExtractTask(NamedTuple):
    """An archive, as sent to processes.

    Attributes:
        outputs: the documents, then the attribute sets.
        kinds, largest: see `feedmill.documents.warc.records.blocks`.
        options: what decides the outputs, for the record.
    """

    input: DocumentFile
    outputs: tuple[Output, ...]
    form: Form
    settings: Settings
    kinds: tuple[str, ...]
    largest: int
    options: dict[str, Any]
    overwrite: bool

    def __str__(self) -> str:
        return str(self.input)


class ExtractRecord(msgspec.Struct):
    """Record of an archive that was extracted.

    Attributes:
        counts, examples: number of pages left out by reason, and names of the first ones.
        skipped: number of records of other types.
        outputs: the documents, then the attribute sets.
    """

    fingerprint: str
    options: dict[str, Any]
    feedmill: str
    documents: int
    counts: dict[str, int]
    examples: dict[str, list[str]]
    skipped: dict[str, int]
    input: FileState
    outputs: list[FileState]
    made: bool = False
    """Whether this run made it; not part of the file."""


def place_of(output: Output) -> RecordFolder:
    """Return where the files about an output are."""
    folder = join_url(output.root, output.folder) if output.folder else output.root
    return beside(folder) or inside(folder)


def extract_archive(task: ExtractTask, workers: int = 1) -> ExtractRecord:
    """Extract an archive unless it is up to date, in this process or its blocks on several."""
    place, output = place_of(task.outputs[0]), task.outputs[0].name
    known = _read(place, output)
    if not task.overwrite and known is not None and _is_current(task, known):
        return known
    with place.lock(output, "these documents", file=task.outputs[0].url):
        try:
            found = _extracted(task, place, workers)
        finally:
            pages.close()
    place.store.write_note(place.path(output, RECORD), msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    found.made = True
    return found


def _extracted(task: ExtractTask, place: RecordFolder, workers: int) -> ExtractRecord:
    source, name = task.input.store(), task.input.path
    before = records.state(source, name, "", task.input.name)  # before it is read, to notice later changes
    left_out, skipped = LeftOut(), dict[str, int]()
    documents = at = 0
    hashes: list[str] = []
    with ExitStack() as stack:
        file = stack.enter_context(open(stack.enter_context(source.local_copy(name)), "rb", buffering=0))
        raw = cast(BinaryIO, HashedReader(file))
        sinks: list[Callable[[bytes], object]] = [
            stack.enter_context(write_lines(open_store(output.root), output.path, hashed=hashes.append))
            for output in reversed(task.outputs)  # closed in reverse: the documents first
        ][::-1]
        names = stack.enter_context(write_lines(place.store, place.path(task.outputs[0].name, LEFT_OUT), kind=""))
        parts = blocks(chunks(raw, task.input.name), task.kinds, task.largest)
        for made in stack.enter_context(closing(_made(task, parts, workers))):
            for sink, lines in zip(sinks, made.lines, strict=False):  # no lines at all without rows
                sink(lines)
            documents += made.documents
            count_read(file.tell() - at)
            at = file.tell()
            for fault in made.left_out:
                shown = fault.url or f"{task.input.name} at byte {fault.offset}"
                left_out.add(fault.what, shown, most=SHOWN)
                names(orjson.dumps({"reason": fault.what, "url": fault.url, "offset": fault.offset}) + b"\n")
            for kind, count in made.skipped.items():
                skipped[kind] = skipped.get(kind, 0) + count
        before.xxh3 = cast(HashedReader, raw).hexdigest()
    states = [records.state(open_store(o.root), o.path, xxh3) for o, xxh3 in zip(task.outputs, hashes, strict=True)]
    _record_sets(task, states, documents)
    return ExtractRecord(
        fingerprint=_fingerprint(task),
        options=task.options,
        feedmill=__version__,
        documents=documents,
        counts=left_out.counts,
        examples=left_out.names,
        skipped=skipped,
        input=before,
        outputs=states,
    )


def _made(task: ExtractTask, parts: Any, workers: int) -> Generator[BlockResult, None, None]:
    policy = Policy(shared=ArchiveSettings(task.form, task.settings))
    return run(extract_block, parts, workers=workers, preload=PRELOAD, policy=policy)


def _record_sets(task: ExtractTask, states: list[FileState], documents: int) -> None:
    """Record the attribute sets as `tag` does, so that a filter knows which documents they belong to."""
    read = msgspec.structs.replace(states[0], path=task.outputs[0].url)
    for output, state in zip(task.outputs[1:], states[1:], strict=True):
        name = output.folder.removeprefix(f"{ATTRIBUTES}/")
        record = records.Record(_fingerprint(task), {**task.options, "set": name}, __version__, documents, read, state)
        records.write_record(join_url(output.root, output.folder), output.name, record)


def _fingerprint(task: ExtractTask) -> str:
    return records.fingerprint({**task.options, "feedmill": __version__})


def _read(place: RecordFolder, output: str) -> ExtractRecord | None:
    try:
        content = decode_as(place.store.read(place.path(output, RECORD)), ExtractRecord)
    except (FeedmillError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    content.made = False
    return content


def is_up_to_date(task: ExtractTask) -> bool:
    """Return whether the documents of an archive are those that this task would write."""
    known = _read(place_of(task.outputs[0]), task.outputs[0].name)
    return known is not None and _is_current(task, known)


def _is_current(task: ExtractTask, known: ExtractRecord) -> bool:
    return (
        known.fingerprint == _fingerprint(task)
        and len(known.outputs) == len(task.outputs)
        and all(
            records.unchanged(open_store(output.root), output.path, state)
            for output, state in zip(task.outputs, known.outputs, strict=True)
        )
        and records.unchanged(task.input.store(), task.input.path, known.input)
    )
