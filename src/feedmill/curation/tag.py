"""Tagging: documents in, attributes out, row by row.

The unit of work is a file. Its attributes appear when they are whole, then the record that says what they were made
of; a run that was killed is finished by the same command, and what is up to date is not made again. The output does
not depend on the number of processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from feedmill import __version__
from feedmill.curation import records, registry
from feedmill.curation.documents import Batch, Decoder
from feedmill.curation.inputs import Input, attribute_root, common_folder, find_inputs
from feedmill.curation.modules import load_modules, module_hashes
from feedmill.curation.spans import attribute_name
from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.documents import read_rows, write_rows
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.storage import open_store, split_url

FAIL, CONTINUE = "fail", "continue"


class Output(NamedTuple):
    """One attribute file: below which folder, where there, which experiment's, by which taggers."""

    root: str
    path: str
    experiment: str
    taggers: tuple[str, ...]


class Task(NamedTuple):
    """One file's work, as processes are told it."""

    input: Input
    outputs: tuple[Output, ...]
    options: dict[str, Any]
    redo: bool
    on_error: str


class Done(NamedTuple):
    """What became of a file: rows and stored bytes, 0 rows made where it was up to date; or the error."""

    path: str
    rows: int
    bytes: int
    made: bool
    error: FeedmillError | None = None


@dataclass
class TagReport:
    """What a run did.

    Attributes:
        files, reused: how many files there are, and how many of them were up to date.
        rows: documents in all of them.
        bytes: their stored size.
        outputs: the attribute sets' folders.
        failed: what was wrong with files, where the run went on.
    """

    files: int = 0
    reused: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    outputs: list[str] = field(default_factory=list)
    failed: list[FeedmillError] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {**vars(self), "failed": [error.as_dict() for error in self.failed]}


def tag(
    documents: Sequence[str],
    taggers: Sequence[str],
    *,
    experiment: str | None = None,
    destination: Sequence[str] | None = None,
    modules: Sequence[str] = (),
    processes: int | None = 1,
    redo: bool = False,
    on_error: str = FAIL,
    exact: bool = False,
    progress: bool = True,
) -> TagReport:
    """Write the attributes of documents.

    Args:
        documents: patterns of files, see `feedmill.curation.inputs.find_inputs`.
        taggers: names, see `feedmill.curation.registry`.
        experiment: the name of the attribute set; None for a set for each tagger, called as it.
        destination: a folder for each pattern; None for ``attributes/<name>`` in the place of ``documents``.
        modules: files or modules with taggers of the user's own; they are run.
        processes: None for one per core.
        redo: whether to make again what is up to date.
        on_error: ``"fail"`` to stop at the first bad file, ``"continue"`` to finish the others first.
        exact: whether to keep Dolma's known defects, see docs/migration/dolma.md.

    Raises:
        ConfigError: for options, before anything is written.
        DataError: of kind ``bad-document``, naming file and line; nothing of that file's attributes is there then.
    """
    begin = time.perf_counter()
    if on_error not in (FAIL, CONTINUE):
        raise ConfigError(f"there is no policy {on_error!r} for errors", fix=f"Use {FAIL!r} or {CONTINUE!r}.")
    load_modules(modules)
    options = _options(taggers, modules, exact)
    tasks = [
        Task(input_, outputs, options, redo, on_error)
        for input_, outputs in _places(documents, taggers, experiment, destination, exact)
    ]
    report = TagReport(files=len(tasks), outputs=sorted({output.root for task in tasks for output in task.outputs}))
    # The largest first, so that no process is left alone with a large file at the end.
    tasks.sort(key=lambda task: (-task.input.size, task.input.path))
    with Progress("tagging", len(tasks), "files", enabled=progress) as bar:
        for done in run(tag_file, tasks, workers=processes, progress=bar):
            report.reused += done.error is None and not done.made
            report.rows += done.rows
            report.bytes += done.bytes
            if done.error is not None:
                report.failed.append(done.error)
    report.seconds = time.perf_counter() - begin
    return report


def _options(taggers: Sequence[str], modules: Sequence[str], exact: bool) -> dict[str, Any]:
    """What the output depends on but for the documents."""
    if not taggers:
        raise ConfigError("no tagger is named", fix="Name some; 'feedmill tag --list' shows all.")
    if len(set(taggers)) < len(taggers):
        raise ConfigError("a tagger is named twice", fix="Name each once.")
    for name in taggers:
        registry.create(name)  # what is missing is said before the work begins
    return {"taggers": list(taggers), "modules": module_hashes(modules), "exact": exact}


def _places(
    documents: Sequence[str],
    taggers: Sequence[str],
    experiment: str | None,
    destination: Sequence[str] | None,
    exact: bool,
) -> Iterator[tuple[Input, tuple[Output, ...]]]:
    """Each file with its outputs. Raises `ConfigError` where two files would share an output."""
    if not documents:
        raise ConfigError("no documents are named", fix="Give patterns such as 'data/documents/**/*.jsonl.gz'.")
    if destination is not None and len(destination) != len(documents):
        raise ConfigError(
            f"there are {len(documents)} patterns of documents and {len(destination)} destinations",
            fix="Give one destination for each pattern, or none.",
        )
    groups = [(experiment, tuple(taggers))] if experiment else [(name, (name,)) for name in taggers]
    for name, members in groups:
        for member in members:
            attribute_name(name, member, "")
    seen: dict[tuple[str, str], str] = {}
    for number, pattern in enumerate(documents):
        files = find_inputs([pattern])
        common = common_folder(files) if exact else None
        for file in files:
            outputs = []
            for name, members in groups:
                if destination is not None:
                    root = destination[number].rstrip("/") + ("" if experiment else f"/{name}")
                    path = file.relative
                elif common is not None:
                    root, rest = attribute_root(f"{file.base}/x", name)
                    path = "/".join(part for part in (rest.rpartition("/")[0],) if part)
                    path = f"{path}/{file.path[len(common) + 1:]}".lstrip("/")
                else:
                    root, path = attribute_root(file.path, name)
                outputs.append(Output(root, path, name, members))
                before = seen.setdefault((root, path), file.path)
                if before != file.path:
                    raise ConfigError(
                        f"this file and {before} have the same place for their attributes, {root}/{path}",
                        file=file.path,
                        fix="Give them destinations of their own.",
                    )
            yield file, tuple(outputs)


def tag_file(task: Task) -> Done:
    """Do one file's work, unless it is done. Runs in a process of its own."""
    try:
        return _tag_file(task)
    except FeedmillError as error:
        if task.on_error == FAIL:
            raise
        return Done(task.input.path, 0, task.input.size, False, error)


def _tag_file(task: Task) -> Done:
    folder, name = split_url(task.input.path)
    source = open_store(folder)
    todo = [output for output in task.outputs if task.redo or not _current(task, output)]
    if not todo:
        record = records.read_record(open_store(task.outputs[0].root), task.outputs[0].path)
        return Done(task.input.path, record.rows if record else 0, task.input.size, False)
    before = records.state(source, name, task.input.path)
    taggers = {name: _tagger(name, tuple(task.options["modules"]))
               for output in todo for name in output.taggers}
    decoder = Decoder(source.locate(name), metadata=any(tagger.metadata for tagger in taggers.values()))
    with ExitStack() as stack:
        sinks = [stack.enter_context(write_rows(open_store(output.root), output.path)) for output in todo]
        for rows in read_rows(source, name):
            batch = decoder.batch(rows)
            for output, sink in zip(todo, sinks, strict=True):
                sink(attribute_rows(batch, output.experiment, {name: taggers[name] for name in output.taggers}))
    for output in todo:
        store = open_store(output.root)
        made = records.state(store, output.path)
        options = {**task.options, "taggers": list(output.taggers), "experiment": output.experiment}
        record = records.Record(_fingerprint(task, output), options, __version__, decoder.line, before, made)
        records.write_record(store, output.path, record)
    return Done(task.input.path, decoder.line, task.input.size, True)


def _fingerprint(task: Task, output: Output) -> str:
    return records.fingerprint(
        {**task.options, "taggers": output.taggers, "experiment": output.experiment, "feedmill": __version__}
    )


def _current(task: Task, output: Output) -> bool:
    """Whether an attribute file is there and is what this task would write."""
    store = open_store(output.root)
    record = records.read_record(store, output.path)
    if record is None or record.fingerprint != _fingerprint(task, output):
        return False
    folder, name = split_url(task.input.path)
    return records.unchanged(store, output.path, record.output) and records.unchanged(
        open_store(folder), name, record.input
    )


@lru_cache(1024)
def _tagger(name: str, modules: tuple[str, ...]) -> registry.Tagger:
    load_modules(modules)
    return registry.create(name)


def attribute_rows(batch: Batch, experiment: str, taggers: dict[str, registry.Tagger]) -> Iterator[bytes]:
    """The rows of an attribute file for a batch, without line ends."""
    columns = [_fragments(tagger, batch, experiment, name) for name, tagger in taggers.items()]
    encode = msgspec.json.encode
    for row, *pieces in zip(batch.rows, *columns, strict=True):
        attributes = b",".join([piece for piece in pieces if piece])
        yield b'{"id":%b,"attributes":{%b},"source":%b}' % (encode(row.id), attributes, encode(row.source))


def _fragments(tagger: registry.Tagger, batch: Batch, experiment: str, name: str) -> list[bytes]:
    own = getattr(tagger, "fragments", None)  # a user's tagger may write its attributes in its own way
    if own is not None:
        found: list[bytes] = own(batch, experiment, name)
        return found
    return tagger.tag(batch).fragments(len(batch), experiment, name)


