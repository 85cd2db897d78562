"""Tag documents: compute attributes, row by row.

The unit of work is a file; a file that is larger than the share of a process is split into blocks. The attributes of a
file are published when they are complete, and after them the record of their inputs. After a kill, the same command
finishes the run; results that are up to date are kept. The output does not depend on the number of processes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from feedmill._version import __version__
from feedmill.curation import records, registry
from feedmill.curation.documents import Batch, Decoder, Row
from feedmill.curation.dry_run import read_first
from feedmill.curation.models.tagger import ModelTagger, add_counts, is_on_gpu
from feedmill.curation.options import Tag
from feedmill.curation.records import Records
from feedmill.curation.registry import Choice, load_modules, module_hashes
from feedmill.curation.spans import attribute_name
from feedmill.documents.file import DocumentFile, as_lines, attribute_root, once, places
from feedmill.documents.find import DocumentFiles, find_documents, skipped_warnings
from feedmill.documents.lines import Block, blocks, read_blocks
from feedmill.errors import ConfigError, FeedmillError, NotFound, refuse_empty
from feedmill.formats.documents import rows_of
from feedmill.jobs.dry_run import DryRun, JobReport, perform
from feedmill.jobs.engine import Policy, Where, in_units, key_of
from feedmill.jobs.options import verb
from feedmill.jobs.policy import OnError, on_error_policy, skips
from feedmill.jobs.progress import Progress
from feedmill.jobs.resources import available_cores
from feedmill.jobs.run import first_to_cut, run
from feedmill.storage import LocalStore, join_url, open_store, paths_of
from feedmill.storage.base import refuse_non_utf8
from feedmill.storage.codec import compression, packed
from feedmill.storage.hashed import HashedWriter

logger = logging.getLogger("feedmill")

_FIELDS = ("id", "text", "source", "version", "metadata", "added", "created")
_PRELOAD = ("feedmill.curation.tag", "feedmill.curation.taggers.words", "feedmill.kernels.text.lengths")


Tagged = tuple[int, list[bytes], dict[str, dict[str, int]]]


class TagTask(NamedTuple):
    """Task of one file, as sent to processes."""

    input: DocumentFile
    outputs: tuple[Output, ...]
    options: dict[str, Any]
    overwrite: bool
    on_error: OnError

    def __str__(self) -> str:
        return str(self.input)


class Done(NamedTuple):
    """The result of a file: rows and stored bytes, or the error; and what each model read."""

    path: str
    rows: int
    bytes: int
    made: bool
    error: FeedmillError | None = None
    models: dict[str, dict[str, int]] | None = None


@dataclass
class TagReport(JobReport):
    """The result of a run.

    Attributes:
        files, reused: number of files, and number of those that were up to date.
        rows: number of documents in all files.
        bytes: stored size of the attributes.
        outputs: folders of the attribute sets.
        models: for each model, what it read in this run: see `feedmill.curation.models.texts.Counts`.
        failed: errors of skipped files.
        missing: patterns without files, if allowed.
        warnings: files in the folders that are not documents.
    """

    files: int = 0
    reused: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    outputs: list[str] = field(default_factory=list)
    models: dict[str, dict[str, int]] = field(default_factory=dict)
    failed: list[FeedmillError] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@verb(Tag)
def tag(options: Tag) -> TagReport:
    """Return the numbers of files and documents, and the folders of the attributes.

    Raises:
        ConfigError: an option is invalid; nothing has been written.
        EmptyResult: there are no documents.
        DataError: of kind ``bad-document``, with file and line; the attributes of that file are not written.
    """
    begin = time.perf_counter()
    policy = on_error_policy(options.on_error)
    load_modules(options.tagger_modules)
    choices = [registry.Choice.parse(text) for text in options.taggers]
    facts, on_gpu = _options(choices, options.tagger_modules, options.exact)
    facts |= {} if options.id is None else {"id": options.id}
    sources = DocumentFiles()
    found = _find(options, choices, sources)
    tasks = [TagTask(input_, outputs, facts, options.overwrite, policy) for input_, outputs in found]
    if not tasks:
        raise NotFound("no files match any pattern", file=", ".join(sources.missing), fix="Check the paths.")
    refuse_inputs([(task.input, task.outputs) for task in tasks])
    outputs = sorted({output.root for task in tasks for output in task.outputs})
    report = TagReport(files=len(tasks), outputs=outputs, missing=sources.missing, warnings=skipped_warnings(sources))
    refuse = partial(refuse_empty, file=", ".join(outputs), allow=options.allow_empty)

    def plan(dry: DryRun) -> None:
        rows = _plan(dry, tasks, report)
        if rows is not None and not report.failed:
            refuse(rows, rows)

    def execute() -> None:
        # The largest first, so that no process is left alone with a large file at the end.
        tasks.sort(key=lambda task: (-task.input.size, task.input.name))
        default = 1 if on_gpu else available_cores()
        with Progress.of_files("tagging", [task.input.size for task in tasks], options.progress) as bar:
            for done in _results(tasks, default if options.workers is None else options.workers, bar):
                report.reused += done.error is None and not done.made
                report.rows += done.rows
                report.bytes += done.bytes
                for name, counts in (done.models or {}).items():
                    add_counts(report.models.setdefault(name, {}), counts)
                if done.error is not None:
                    report.failed.append(done.error)
        report.seconds = time.perf_counter() - begin
        if not report.failed:
            refuse(report.rows, report.rows)

    perform(plan, execute)
    return report


def _plan(dry: DryRun, tasks: Sequence[TagTask], report: TagReport) -> int | None:
    """Add the attributes to a dry run, and read the first documents; return their number if these are all."""

    def count(file: DocumentFile, lines: bytes) -> int:
        return len(Decoder(file.name, exact=exact).batch(rows_of(lines)))

    exact = bool(tasks[0].options["exact"])
    todo = [(task, [out for out in task.outputs if task.overwrite or not _current(task, out)]) for task in tasks]
    for _, outputs in todo:
        for output in outputs:
            dry.writes(open_store(output.root), output.path)
    report.reused = sum(not outputs for _, outputs in todo)
    if report.reused:
        dry.skipped["files that are up to date"] = report.reused
    files = [task.input for task, outputs in todo if outputs]
    failed = report.failed if skips(tasks[0].on_error) else None
    rows = read_first(dry, files, count, fields=_FIELDS, failed=failed)
    return None if report.reused else rows


def _options(choices: Sequence[registry.Choice], modules: Sequence[str], exact: bool) -> tuple[dict[str, Any], bool]:
    """Return the options on which the output depends, except documents and taggers, and whether a GPU is used."""
    if not choices:
        raise ConfigError("no tagger was given", fix="Pass at least one; 'feedmill tag --list' lists all.")
    if len({choice.name for choice in choices}) < len(choices):
        raise ConfigError("a tagger was passed twice", fix="Pass each tagger once.")
    made = [choice.create() for choice in choices]  # reports missing packages and files before the work begins
    files = {choice.name: choice.content() for choice in choices if choice.file}
    on_gpu = any(is_on_gpu(tagger.model) for tagger in made if isinstance(tagger, ModelTagger))
    return {"modules": module_hashes(modules), "files": files, "exact": exact}, on_gpu


def _results(tasks: Sequence[TagTask], workers: int, bar: Progress) -> Iterator[Done]:
    """Yield the result of each file. A file that would keep one process busy alone is split over all.

    On an engine, and with limits of units, the file is the unit.
    """
    if in_units():
        key = key_of(*(_fingerprint(task, task.outputs[0]) + task.outputs[0].path for task in tasks))
        where = Where("tagging", key, Records(tasks[0].outputs[0].root).folder, record=_tell)
        yield from run(tag_file, tasks, workers=workers, progress=bar, preload=_PRELOAD, where=where)
        return
    cut = first_to_cut((task.input.size for task in tasks), workers)
    yield from run(partial(tag_file, workers=workers), tasks[:cut], workers=1, progress=bar)
    yield from run(tag_file, tasks[cut:], workers=workers, progress=bar, preload=_PRELOAD)


def _tell(done: Done) -> None:
    """Log the error of a file that a part of a job array has skipped. The run that publishes reports it too."""
    if done.error is not None:
        logger.warning("skipped: %s", done.error)


def tag_file(task: TagTask, workers: int = 1) -> Done:
    """Tag one file unless it is up to date, in this process or split over this many."""
    try:
        return _tag_file(task, workers)
    except FeedmillError as error:
        error.file = error.file or task.input.name
        if not skips(task.on_error):
            raise
        return Done(task.input.name, 0, task.input.size, False, error)


def _tag_file(task: TagTask, workers: int) -> Done:
    source, name = task.input.store(), task.input.path
    todo = [output for output in task.outputs if task.overwrite or not _current(task, output)]
    if not todo:
        record = records.read_record(task.outputs[0].root, task.outputs[0].path)
        return Done(task.input.name, record.rows if record else 0, task.input.size, False)
    work = _Work(source.locate(name), tuple(todo), tuple(task.options["modules"].items()), task.options["exact"])
    rows, models = 0, dict[str, dict[str, int]]()
    with ExitStack() as stack:
        # Taken before reading, to detect changes while it is read.
        before = records.state(source, name, "", task.input.name)
        read = list[str]()
        lines = stack.enter_context(closing(read_blocks(task.input, fields=_FIELDS, hashed=read.append)))
        sinks = [stack.enter_context(_sink(output)) for output in todo]
        for count, made, read_by in stack.enter_context(closing(_tagged(work, blocks(lines), workers))):
            rows += count
            for model, counts in read_by.items():
                add_counts(models.setdefault(model, {}), counts)
            for (_, sink), data in zip(sinks, made, strict=True):
                sink.write(data)
        before.xxh3 = read[0]
    for output, (file, _) in zip(todo, sinks, strict=True):
        store = open_store(output.root)
        after = records.state(store, output.path, file.hexdigest())
        options = _record_options(task, output)
        record = records.Record(_fingerprint(task, output), options, __version__, rows, before, after)
        records.write_record(output.root, output.path, record)
    return Done(task.input.name, rows, task.input.size, True, models=models)


class _Work(NamedTuple):
    """Tagging of all blocks of a file: its name in errors, its outputs, and their taggers."""

    file: str
    outputs: tuple[Output, ...]
    modules: tuple[tuple[str, str], ...]
    exact: bool


def _tagged(work: _Work, blocks: Iterable[Block], workers: int) -> Generator[Tagged, None, None]:
    policy = Policy(shared=work)
    return run(_tag_block, blocks, workers=workers, preload=_PRELOAD, policy=policy)


def _tag_block(work: _Work, block: Block) -> Tagged:
    """Return the number of documents, the rows of each output, and what each model read."""
    choices = {choice for output in work.outputs for choice in output.taggers}
    taggers = {choice: tagger_of(choice, work.modules, choice.state()) for choice in choices}
    wants_metadata = any(tagger.metadata for tagger in taggers.values())
    batch = Decoder(work.file, block.line, metadata=wants_metadata, exact=work.exact).batch(rows_of(block.lines))
    made = []
    for output in work.outputs:
        named = {choice.name: taggers[choice] for choice in output.taggers}
        made.append(b"".join([row + b"\n" for row in attribute_rows(batch, output.experiment, named)]))
    counts = {choice.name: getattr(tagger, "counts", None) for choice, tagger in taggers.items()}
    return len(batch), made, {name: asdict(own.taken()) for name, own in counts.items() if own is not None}


@contextmanager
def _sink(output: Output) -> Iterator[tuple[HashedWriter, BinaryIO]]:
    """Open an attribute file that is published if the block ends without an error: the stored file, and its writer."""
    store, place = open_store(output.root), Records(output.root).place
    with (
        place.lock(output.path, "these attributes", file=store.locate(output.path)),
        store.write(output.path) as stored,
        packed(cast(BinaryIO, file := HashedWriter(stored)), compression(output.path)) as stream,
    ):
        yield file, stream


def _record_options(task: TagTask, output: Output) -> dict[str, Any]:
    names = [choice.name for choice in output.taggers]
    files = {name: hash_ for name, hash_ in task.options["files"].items() if name in names}
    return {**task.options, "taggers": names, "files": files, "experiment": output.experiment}


def _fingerprint(task: TagTask, output: Output) -> str:
    return records.fingerprint({**_record_options(task, output), "feedmill": __version__})


def _current(task: TagTask, output: Output) -> bool:
    """Return whether an attribute file exists and equals what this task would write."""
    store = open_store(output.root)
    record = records.read_record(output.root, output.path)
    if record is None or record.fingerprint != _fingerprint(task, output):
        return False
    return records.unchanged(store, output.path, record.output) and records.unchanged(
        task.input.store(), task.input.path, record.input
    )


@lru_cache(1024)
def tagger_of(
    choice: registry.Choice,
    modules: tuple[tuple[str, str], ...],
    state: Any,  # noqa: ARG001 - tells a file that changed from what is remembered
) -> registry.Tagger:
    """Return a tagger, which is created once per process.

    Args:
        modules: user's modules with their hashes.
        state: of the tagger's file, see `registry.Choice.state`.
    """
    load_modules(name for name, _ in modules)
    return choice.create()


def attribute_rows(batch: Batch, experiment: str, taggers: dict[str, registry.Tagger]) -> Iterator[bytes]:
    """Yield the rows of an attribute file for a batch, without line ends."""
    columns = [fragments_of(tagger, batch, experiment, name) for name, tagger in taggers.items()]
    for row, *pieces in zip(batch.rows, *columns, strict=True):
        yield attribute_row(row, pieces)


def attribute_row(row: Row, pieces: Iterable[bytes]) -> bytes:
    """Return the row of a document in an attribute file, from the JSON of its attributes by each tagger."""
    attributes, encode = b",".join([piece for piece in pieces if piece]), msgspec.json.encode
    return b'{"id":%b,"attributes":{%b},"source":%b}' % (encode(row.id), attributes, encode(row.source))


def fragments_of(tagger: registry.Tagger, batch: Batch, experiment: str, name: str) -> list[bytes]:
    """Return the JSON of the attributes of each document by one tagger, without the braces."""
    own = getattr(tagger, "fragments", None)  # a user's tagger may override how its attributes are written
    if own is not None:
        fragments: list[bytes] = own(batch, experiment, name)
        return fragments
    return tagger.tag(batch).fragments(len(batch), experiment, name)


class Output(NamedTuple):
    """One attribute file: its root folder, its path, its experiment and its taggers."""

    root: str
    path: str
    experiment: str
    taggers: tuple[Choice, ...]


def _find(
    options: Tag, choices: Sequence[Choice], found: DocumentFiles
) -> Iterator[tuple[DocumentFile, tuple[Output, ...]]]:
    """Yield each document file once, with its outputs.

    Args:
        found: Receives all files, skipped files, and, with `allow_empty`, the patterns that match no files.

    Raises:
        ConfigError: Two files would share an output, or an output has no folder.
        NotFound: A pattern matches no files.
    """
    documents, experiment, exact = paths_of(options.documents), options.name, options.exact
    if not documents:
        raise ConfigError("no documents given", fix="Pass patterns such as 'data/documents/**/*.jsonl.gz'.")
    roots = _roots(documents, options.output, exact)
    if experiment and any(part in ("", ".", "..") for part in experiment.split("/")):
        raise ConfigError(f"{experiment!r} is not a valid name of an attribute set", fix="Use a plain name.")
    refuse_non_utf8(experiment or "", *(root or "" for root in roots))
    groups = [(experiment, tuple(choices))] if experiment else [(choice.name, (choice,)) for choice in choices]
    for name, members in groups:
        for member in members:
            attribute_name(name, member.name, "")
    seen: dict[str, str] = {}
    place = places()
    for pattern, root in zip(documents, roots, strict=True):
        given = find_documents([pattern], exact=exact, allow_missing=options.allow_empty, id=options.id)
        files = once(given.files)
        found.files += files
        found.skipped += given.skipped
        found.missing += given.missing
        common = common_folder(files) if exact and files else None
        for file in files:
            all_ = (Output(*_place(file, root, name, common, experiment), name, members) for name, members in groups)
            outputs = tuple(output for output in all_ if _is_new(output, file, seen, place))
            if outputs:
                yield file, outputs


def _roots(documents: Sequence[str], destination: Sequence[str] | None, exact: bool) -> list[str | None]:
    if destination is None:
        return [None] * len(documents)
    if len(destination) == 1 and not exact:
        return [destination[0]] * len(documents)
    if len(destination) != len(documents):
        raise ConfigError(
            f"{len(documents)} patterns of documents but {len(destination)} destinations",
            fix="Pass one destination per pattern, or none.",
        )
    return [*destination]


def _place(
    file: DocumentFile, root: str | None, name: str, common: str | None, experiment: str | None
) -> tuple[str, str]:
    """Return the folder of an attribute set, and the path in it of a file's attributes.

    Args:
        root: The destination, if given.
        common: Deepest common folder of the pattern's files, to remove from the path as Dolma does.
    """
    if root is not None:
        return root.rstrip("/") + ("" if experiment else f"/{name}"), as_lines(file.path, file.kind)
    if common is None:
        folder, rest = attribute_root(as_lines(file.name, file.kind), name)
        return _unlinked(folder, name), rest
    folder, rest = attribute_root(f"{file.folder}/x", name)
    _unlinked(folder, name)
    below = rest.rpartition("/")[0]
    return folder, f"{below}/{file.name[len(common) + 1 :]}".lstrip("/")


def common_folder(files: Iterable[DocumentFile]) -> str:
    """Return the deepest folder that contains all files. Dolma removes it from their paths."""
    folders = [file.name.rpartition("/")[0].split("/") for file in files]
    common = folders[0]
    for other in folders[1:]:
        same = 0
        while same < min(len(common), len(other)) and common[same] == other[same]:
            same += 1
        common = common[:same]
    return "/".join(common)


def _unlinked(folder: str, name: str) -> str:
    """Return `folder`, an attribute set in the dataset. Raises `StorageError` if its path has symbolic links."""
    store = open_store(folder.removesuffix(f"attributes/{name}") or ".")
    if isinstance(store, LocalStore):
        store.below(f"attributes/{name}")
    return folder


def refuse_inputs(work: Sequence[tuple[DocumentFile, Sequence[Output]]]) -> None:
    """Raise `ConfigError` if the attributes of a file would overwrite documents."""
    place = places()
    inputs = {place(file.name): file for file, _ in work}
    for file, outputs in work:
        for output in outputs:
            over = inputs.get(place(join_url(output.root, output.path)))
            if over is not None:
                raise ConfigError(
                    f"the attributes of this file would overwrite the documents {over.name}",
                    file=file.name,
                    kind="input-is-output",
                    fix="Use another destination.",
                )


def _is_new(output: Output, file: DocumentFile, seen: dict[str, str], place: Callable[[str], str]) -> bool:
    """Return whether the output is new. Raises `ConfigError` if another file has the same output."""
    where = place(join_url(output.root, output.path))
    before = seen.get(where)
    if before is None:
        seen[where] = file.name
        return True
    if place(before) != place(file.name):
        raise ConfigError(
            f"this file and {before} would share the attribute file {output.root}/{output.path}",
            file=file.name,
            fix="Pass separate destinations.",
        )
    return False
