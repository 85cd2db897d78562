"""The verb ``extract``: make documents from web archives.

The form of Feedmill: documents, and an attribute set for each tagger.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from feedmill.curation.documents import RowWithMetadata
from feedmill.curation.extract import linearizers
from feedmill.curation.extract.job import PRELOAD, ExtractRecord, ExtractTask, Output, extract_archive, is_up_to_date
from feedmill.curation.extract.pages import Draft, Form, Pieces, Settings
from feedmill.curation.options import Extract
from feedmill.curation.registry import Choice, load_modules, module_hashes
from feedmill.curation.spans import attribute_name
from feedmill.curation.tag import attribute_row
from feedmill.documents.file import FOLDER, DocumentFile
from feedmill.documents.warc.find import find_archives, stem
from feedmill.documents.warc.pages import KINDS, Page, PageFilter, read_pages
from feedmill.documents.warc.records import Fault, Record
from feedmill.errors import ConfigError, refuse_empty
from feedmill.formats.documents import ATTRIBUTES, DOCUMENTS
from feedmill.jobs.dry_run import DryRun, JobReport, perform
from feedmill.jobs.engine import Where, in_units, key_of
from feedmill.jobs.options import verb
from feedmill.jobs.progress import Progress
from feedmill.jobs.reports import LeftOut
from feedmill.jobs.resources import available_cores
from feedmill.jobs.run import first_to_cut, run
from feedmill.storage import open_store, paths_of
from feedmill.storage.base import refuse_non_utf8
from feedmill.storage.limits import parse_size

_HEADERS = 1 << 20
"""Bytes that the headers of a record may add to those of its page."""


@dataclass
class ExtractReport(JobReport):
    """The result of a run.

    Attributes:
        output: the folder of the documents.
        archives, reused: number of archives, and number of those that were up to date.
        documents: number of documents in all archives.
        input_bytes, bytes: stored size of the archives, and of the documents and attributes.
        left_out: pages that are not documents, and records that cannot be read.
        skipped: number of records of other types, by type.
        attributes: names of the attribute sets.
        outputs: paths or URLs of all files of documents and attributes.
        missing: patterns without archives, if allowed.
    """

    output: str
    archives: int = 0
    reused: int = 0
    documents: int = 0
    input_bytes: int = 0
    bytes: int = 0
    seconds: float = 0.0
    left_out: LeftOut = field(default_factory=LeftOut)
    skipped: dict[str, int] = field(default_factory=dict)
    attributes: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def written_files(self) -> list[str]:
        """See `JobReport`."""
        return self.outputs


@verb(Extract)
def extract(options: Extract) -> ExtractReport:
    """Documents are in ``<output>/documents``, the attributes of taggers in ``<output>/attributes``: one file of each
    for an archive. The output does not depend on `workers`. A dry run does not read archives.

    Raises:
        ConfigError: an option is invalid; nothing has been written.
        NotFound: there are no archives.
        EmptyResult: there are no documents.
        MissingExtra: a package is not installed.
    """
    folder = os.fspath(options.output)
    refuse_non_utf8(folder)
    settings, facts = settings_of(
        options.linearizer,
        options.html_taggers,
        options.taggers,
        options.tagger_modules,
        options.page_timeout,
        only_tagged_before=options.only_tagged,
    )
    if options.only_tagged and not options.html_taggers:
        raise ConfigError("--only-tagged requires an HTML tagger", kind="bad-option", fix="Add --html-tagger NAME.")
    source, html = options.source, options.keep_html
    wanted = _wanted(options.status, options.mime, options.max_page_size)
    sets = tuple(choice.name for choice in (*settings.before, *settings.after))
    report = ExtractReport(folder, attributes=list(sets))
    facts |= {"source": source, "status": wanted.statuses, "mime": wanted.mimes, "largest": wanted.largest}
    facts |= {"html": html, "sets": sets}
    tasks = [
        _task(file, folder, DocumentForm(file.path, source, wanted, html, sets), settings, facts, options.overwrite)
        for file in _find(options.archives, report, options.allow_empty)
    ]

    def execute() -> None:
        run_tasks(tasks, report, options.workers, options.progress)
        seen, skipped = report.documents + len(report.left_out), report.left_out.counts
        refuse_empty(report.documents, seen, "page", file=folder, skipped=skipped, allow=options.allow_empty)

    perform(partial(_plan, tasks, report), execute)
    return report


def _plan(tasks: list[ExtractTask], report: ExtractReport, dry: DryRun) -> None:
    """Add the archives and their outputs to a dry run."""
    _describe(tasks, report)
    todo = [task for task in tasks if task.overwrite or not is_up_to_date(task)]
    dry.reads(task.input.size for task in todo)
    for task in todo:
        for output in task.outputs:
            dry.writes(open_store(output.root), output.path)
    if len(todo) < len(tasks):
        report.reused = dry.skipped["archives that are up to date"] = len(tasks) - len(todo)


def _describe(tasks: list[ExtractTask], report: ExtractReport) -> None:
    """Sort the tasks, the largest first, so that no process is left alone with a large archive at the end."""
    _refuse_shared(tasks)
    report.archives, report.input_bytes = len(tasks), sum(task.input.size for task in tasks)
    report.outputs = sorted(output.url for task in tasks for output in task.outputs)
    tasks.sort(key=lambda task: (-task.input.size, task.input.name))


def _wanted(status: Sequence[int], mime: Sequence[str], max_page_size: int | str) -> PageFilter:
    """Return which pages are read. Raises `ConfigError` for an invalid size."""
    largest = parse_size(max_page_size) or 0
    if largest < 1:
        raise ConfigError(f"the page size {max_page_size!r} is invalid", kind="bad-option", fix="Use 1 or more bytes.")
    return PageFilter(tuple(status), tuple(kind.lower() for kind in mime), largest)


def _find(
    archives: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], report: ExtractReport, allow_missing: bool
) -> list[DocumentFile]:
    """Return each archive once, and report the patterns without any."""
    patterns = paths_of(archives)
    if not patterns:
        raise ConfigError("no archive was given", kind="missing-option", fix="Name WARC files, or folders of them.")
    files = list[DocumentFile]()
    for pattern in patterns:
        found = find_archives(pattern, allow_missing=allow_missing)
        report.missing += [] if found else [pattern]
        files += found
    return list({file.url: file for file in files}.values())


def _task(
    file: DocumentFile, folder: str, form: DocumentForm, settings: Settings, options: dict[str, Any], overwrite: bool
) -> ExtractTask:
    """Return the task of an archive: a file of documents, and one of each attribute set."""
    below = f"{stem(file.path)}.jsonl.gz"
    outputs = [Output(folder, part, below) for part in (DOCUMENTS, *(f"{ATTRIBUTES}/{name}" for name in form.sets))]
    mine = {**options, "archive": file.path}
    longest = form.wanted.largest + _HEADERS
    return ExtractTask(file, tuple(outputs), form, settings, KINDS, longest, mine, overwrite)


def settings_of(
    linearizer: str,
    before: Sequence[str],
    after: Sequence[str],
    modules: Sequence[str],
    seconds: float,
    *,
    dolma: bool = False,
    only_tagged_before: bool = False,
    only_tagged_after: bool = False,
) -> tuple[Settings, dict[str, Any]]:
    """Return the settings of pages, and what they add to the options in records.

    Raises:
        ConfigError: a name is unknown or occurs twice, or the number of seconds is invalid.
        MissingExtra: a package is not installed.
    """
    linearizers.check_name(linearizer)
    if not seconds > 0:
        raise ConfigError(f"a timeout of {seconds:g} s is invalid", kind="bad-option", fix="Use more than 0.")
    load_modules(modules)
    choices = [tuple(Choice.parse(text) for text in given) for given in (before, after)]
    both = [*choices[0], *choices[1]]
    if len({choice.name for choice in both}) < len(both):
        raise ConfigError("a tagger was passed twice", fix="Pass each tagger once.")
    for choice in both:
        attribute_name(choice.name, choice.name, "")
        choice.create()  # report missing packages and files before the work begins
    hashes = module_hashes(modules)
    files = {choice.name: choice.content() for choice in both if choice.file}
    settings = Settings(
        linearizer,
        dolma,
        seconds,
        choices[0],
        choices[1],
        only_tagged_before,
        only_tagged_after,
        tuple(hashes.items()),
    )
    names = [[choice.name for choice in given] for given in choices]
    release = f"{linearizer} {linearizers.release(linearizer)}"
    only = [only_tagged_before, only_tagged_after]
    return settings, {"linearizer": release, "taggers": names, "only": only, "modules": hashes, "files": files}


def run_tasks(tasks: list[ExtractTask], report: ExtractReport, workers: int | None, progress: bool | None) -> None:
    """Extract the archives, and complete the report. Raises `ConfigError` if two would share an output."""
    begin = time.perf_counter()
    _describe(tasks, report)
    skipped = Counter[str]()
    with Progress.of_files("extracting", [task.input.size for task in tasks], progress) as bar:
        for made in _results(tasks, available_cores() if workers is None else workers, bar):
            report.reused += not made.made
            report.documents += made.documents
            report.bytes += sum(state.size for state in made.outputs)
            report.left_out.merge(made.counts, made.examples)
            skipped.update(made.skipped)
    report.skipped = dict(sorted(skipped.items()))
    report.seconds = round(time.perf_counter() - begin, 3)


def _results(tasks: Sequence[ExtractTask], workers: int, bar: Progress) -> Iterator[ExtractRecord]:
    """Yield the record of each archive. One that would keep one process busy alone is divided among all.

    On an engine, and with limits of units, the archive is the unit.
    """
    if not tasks:
        return
    if in_units():
        key = key_of(*(f"{task.options}{task.outputs}" for task in tasks))
        where = Where("extracting", key, open_store(tasks[0].outputs[0].root).below(FOLDER))
        yield from run(extract_archive, tasks, workers=workers, progress=bar, preload=PRELOAD, where=where)
        return
    cut = len(tasks) if len(tasks) < workers else first_to_cut((task.input.size for task in tasks), workers)
    yield from run(partial(extract_archive, workers=workers), tasks[:cut], workers=1, progress=bar)
    yield from run(extract_archive, tasks[cut:], workers=workers, progress=bar, preload=PRELOAD)


def _refuse_shared(tasks: Sequence[ExtractTask]) -> None:
    seen: dict[Output, ExtractTask] = {}
    for task in tasks:
        other = seen.setdefault(task.outputs[0], task)
        if other is not task:
            raise ConfigError(
                f"this archive and {other.input.name} would share the file {task.outputs[0].url}",
                file=task.input.name,
                kind="name-clash",
                fix="Extract them into separate folders, or name the folder above both.",
            )


_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class DocumentForm(Form):
    """Documents with ``id``, ``text``, ``source``, ``created`` and ``metadata``.

    Attributes:
        archive: path of the archive below the folder that was given.
        source: the ``source`` of the documents.
        wanted: which pages are read.
        html: keep the HTML in ``metadata.html``.
        sets: names of the attribute sets.
    """

    archive: str
    source: str
    wanted: PageFilter
    html: bool
    sets: tuple[str, ...]

    def drafts(self, items: Sequence[Record | Fault], info: Record | None) -> Iterator[Draft | Fault]:  # noqa: ARG002
        for page in read_pages(items, self.wanted):
            yield page if isinstance(page, Fault) else self._draft(page)

    def _draft(self, page: Page) -> Draft:
        metadata: dict[str, Any] = {
            "url": page.url,
            "content_type": page.mime,
            "charset": page.charset,
            "warc": self.archive,
            "offset": page.offset,
            "html": page.text,
        }
        text, html = (page.text, None) if page.is_text else ("", page.text)
        name = page.id or f"{self.archive}:{page.number}"
        row = RowWithMetadata(id=name, text=text, source=self.source, metadata=metadata)
        return Draft(page.offset, page.url, row, html, {"created": page.date} if page.date else {})

    def rows(self, draft: Draft, pieces: Pieces) -> list[bytes]:
        row = draft.row
        metadata = {key: value for key, value in (row.metadata or {}).items() if key != "html" or self.html}
        document = {"id": row.id, "text": row.text, "source": row.source, **draft.fields, "metadata": metadata}
        return [_encode(document), *(attribute_row(row, [pieces[name]]) for name in self.sets)]
