"""Run decontamination: index the questions, scan the files, count n-grams over all of them, and write attributes.

1. *index*: The questions of all benchmarks, in an array file that all processes map.
2. *scan*: For each file, the pieces of questions in its documents, and how many documents have each n-gram of these.
3. *count*: N-grams of more than a share of all documents are common phrases.
4. *finish*: A piece counts if it has n-grams that are not common, and a question if its text counts, or enough of its
   text and choices together. The attributes of the file are written. Questions that would count if no n-gram were
   common are counted for the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.curation.attribute_set import digest_ids, entry, fingerprint, read_manifest, record, restore, set_store
from feedmill.curation.decontaminate.benchmarks import (
    Counted,
    benchmark_names,
    index_questions,
    piece_of,
    question_name,
    read_questions,
    shown,
)
from feedmill.curation.decontaminate.matching import MOST_QUESTIONS, Match, Matcher, needed
from feedmill.curation.dry_run import plan_set, read_first
from feedmill.curation.options import Decontaminate
from feedmill.documents.file import DocumentFile, by_folder
from feedmill.documents.find import find_documents, find_in_datasets
from feedmill.documents.lines import blocks, read_blocks
from feedmill.documents.rows import parse_documents
from feedmill.errors import ConfigError, refuse_empty
from feedmill.formats.arrays import Arrays, write_arrays
from feedmill.formats.documents import DOCUMENTS, write_lines
from feedmill.formats.signatures import read_arrays, read_marker, write_marker
from feedmill.jobs.dry_run import DryRun, JobReport, perform
from feedmill.jobs.engine import Where
from feedmill.jobs.options import verb
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run, run_largest_first
from feedmill.jobs.work import Work, foresee, tidy
from feedmill.storage import open_store, paths_of

LEAST_COMMON = 50
"""An n-gram of up to this many documents is no common phrase, however few documents there are."""
EXAMPLES = 3
"""Examples of each benchmark in the report."""
_PRELOAD = ("feedmill.curation.decontaminate.job", "feedmill.kernels.text.questions")

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class DecontaminateReport(JobReport):
    """Report of decontamination.

    Attributes:
        files, documents: Numbers of the run's input.
        flagged: Documents with at least one leaked question.
        matches: Leaked questions in documents, each pair counted once.
        benchmarks: For each benchmark: its ``questions``; those that cannot be found, because they are ``empty``,
            ``short``, or made of ``common`` phrases only; those ``leaked``, and of these ``with_answer``; ``documents``
            with one of them; and ``examples``. ``unmarked`` are those that are not marked where they are in documents,
            as their phrases are common; ``unmarked_examples`` are the most frequent ones.
        skipped: Whether an earlier run had done everything.
    """

    name: str
    files: int = 0
    documents: int = 0
    flagged: int = 0
    matches: int = 0
    benchmarks: list[dict[str, Any]] = field(default_factory=list)
    skipped: bool = False
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        leaked = sum(benchmark["leaked"] for benchmark in self.benchmarks)
        questions = sum(benchmark["questions"] for benchmark in self.benchmarks)
        return (
            f"{leaked:,} of {questions:,} questions are in {self.flagged:,} of {self.documents:,} documents,"
            f" in attributes/{self.name}"
        )


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Benchmarks to index."""

    files: tuple[DocumentFile, ...]
    options: Decontaminate
    folder: str

    def __str__(self) -> str:
        return "the questions"


def index(task: IndexTask) -> list[Counted]:
    """Write the index of all questions, unless an earlier run did. Return what is counted of each benchmark."""
    store = open_store(task.folder)
    done = read_marker(store, "index.json")
    if done is None:
        arrays, counted = index_questions(task.files, task.options)
        write_arrays(store, "index", arrays)
        done = {"benchmarks": [list(benchmark) for benchmark in counted]}
        write_marker(store, "index.json", done)
    return [Counted(*benchmark) for benchmark in done["benchmarks"]]


@dataclass(frozen=True, slots=True)
class ScanTask:
    """File of documents to scan, and the folder of the work."""

    file: DocumentFile
    options: Decontaminate
    folder: str
    number: int

    def __str__(self) -> str:
        return str(self.file)


@dataclass(frozen=True, slots=True)
class Scanned:
    """Result of a scan: rows, the digest of their ids, and the hash of the stored bytes."""

    rows: int
    ids: str
    read: str


def scan(task: ScanTask) -> Scanned:
    """Write the pieces of questions in a file and its counts of n-grams, unless an earlier run did.

    The array file has for each piece ``rows`` int64, ``pieces`` int32, ``shares`` int32 (of 10,000), ``begins`` and
    ``ends`` int64 (characters), ``answered`` uint8, ``beside`` int32 (see `Match`), ``gram_ends`` int64 into ``grams``
    int64, and ``excerpts`` uint8 with ``excerpt_ends`` int64; ``counted`` and ``times`` int64, the n-grams and the
    number of documents with each; and ``ids`` uint8 with ``id_ends`` int64.

    Raises:
        DataError: A row is not a document or has no id.
    """
    store, name = open_store(task.folder), f"scan-{task.number:06d}"
    done = read_marker(store, f"{name}.json")
    if done is not None:
        return Scanned(**done)
    matcher = Matcher(read_arrays(store, "index"), task.options.ngram, task.options.threshold)
    digest, rows, read = digest_ids([]), 0, list[str]()
    parts, ids, counts = list[tuple[int, Match, int, int, bytes]](), list[bytes](), list[Ints]()
    with closing(read_blocks(task.file, fields=("id", "text"), hashed=read.append)) as source:
        for block in blocks(source):
            own, parsed = parse_documents(block.lines, task.file.name, block.line)
            texts = [row.text.encode() for row in parsed]
            matches, once = matcher.find(texts)
            for match, (begin, end) in zip(matches, _characters(texts, matches), strict=True):
                parts.append((rows + match.text, match, begin, end, shown(texts[match.text][match.begin : match.end])))
            digest_ids(own, digest)
            ids += own
            counts.append(once)
            rows += len(parsed)
    counted, times = np.unique(np.concatenate([np.empty(0, np.int64), *counts]), return_counts=True)
    grams = [match.grams for _, match, _, _, _ in parts]
    excerpts = [excerpt for *_, excerpt in parts]
    arrays: Arrays = {
        "rows": np.array([row for row, *_ in parts], np.int64),
        "pieces": np.array([match.piece for _, match, *_ in parts], np.int32),
        "shares": np.array([round(match.share * 10_000) for _, match, *_ in parts], np.int32),
        "begins": np.array([begin for _, _, begin, _, _ in parts], np.int64),
        "ends": np.array([end for *_, end, _ in parts], np.int64),
        "answered": np.array([match.answered for _, match, *_ in parts], np.uint8),
        "beside": np.array([match.beside for _, match, *_ in parts], np.int32),
        "grams": np.concatenate([np.empty(0, np.int64), *grams]),
        "gram_ends": np.cumsum([len(own) for own in grams], dtype=np.int64),
        "excerpts": np.frombuffer(b"".join(excerpts), np.uint8),
        "excerpt_ends": np.cumsum([len(excerpt) for excerpt in excerpts], dtype=np.int64),
        "counted": counted.astype(np.int64), "times": times.astype(np.int64),
        "ids": np.frombuffer(b"".join(ids), np.uint8), "id_ends": np.cumsum([len(id_) for id_ in ids], dtype=np.int64),
    }  # fmt: skip
    write_arrays(store, name, arrays)
    scanned = Scanned(rows, digest.hexdigest(), read[0])
    write_marker(store, f"{name}.json", {name: getattr(scanned, name) for name in Scanned.__slots__})
    return scanned


def _characters(texts: Sequence[bytes], matches: Sequence[Match]) -> list[tuple[int, int]]:
    """Return where each match begins and ends, in characters. Each text is decoded once."""
    bytes_ = sorted({(match.text, at) for match in matches for at in (match.begin, match.end)})
    characters, text, before, count = dict[tuple[int, int], int](), -1, 0, 0
    for number, at in bytes_:
        if number != text:
            text, before, count = number, 0, 0
        count += len(texts[text][before:at].decode())
        before = at
        characters[number, at] = count
    return [(characters[match.text, match.begin], characters[match.text, match.end]) for match in matches]


@dataclass(frozen=True, slots=True)
class CountTask:
    """Scans whose counts of n-grams are added up; `most` documents have one that is not common."""

    folder: str
    scans: int
    most: float
    options: Decontaminate

    def __str__(self) -> str:
        return "the n-grams"


def count(task: CountTask) -> list[tuple[int, int]]:
    """Write the n-grams of more than `most` documents, unless an earlier run did.

    Returns:
        For each benchmark, the number of questions with too few words to be found, and of those that cannot be found
        as their n-grams are common, in documents or in questions.
    """
    store = open_store(task.folder)
    questions = read_arrays(store, "index")
    grams = len(questions["grams"])
    if not store.exists("common"):
        times = np.zeros(grams, np.int64)
        for number in range(task.scans):
            arrays = read_arrays(store, f"scan-{number:06d}")
            times[arrays["counted"]] += arrays["times"]
        write_arrays(store, "common", {"common": np.flatnonzero(times > task.most)})
    sizes = np.diff(questions["starts"])
    suggest = sizes <= MOST_QUESTIONS
    suggest[read_arrays(store, "common")["common"]] = False
    pieces, first = questions["pieces"], np.ones(len(questions["pieces"]), np.bool_)
    first[1:] = pieces[1:] != pieces[:-1]
    first[questions["starts"][:-1]] = True  # a piece counts once for each of its n-grams
    own = np.bincount(pieces[first & np.repeat(suggest, sizes)], minlength=len(questions["owners"]))
    lengths = np.diff(questions["ends"], prepend=0)
    long = lengths >= task.options.ngram
    possible, able = (
        _able(questions, lengths, which, task.options) for which in (long, long & (own >= needed(lengths)))
    )
    empty = np.bincount(questions["owners"], weights=lengths, minlength=len(possible)) == 0
    benchmarks, most = questions["benchmark"], int(questions["benchmark"].max(initial=-1)) + 1
    short, common = (np.bincount(benchmarks[of], minlength=most) for of in (~possible & ~empty, possible & ~able))
    return list(zip(short.tolist(), common.tolist(), strict=True))


def _able(
    questions: Arrays, lengths: Ints, pieces: npt.NDArray[np.bool_], options: Decontaminate
) -> npt.NDArray[np.bool_]:
    """Return which questions can be found by these pieces, bool[questions]: the rules of `_leaks`."""
    owners, stems, count = questions["owners"], questions["stems"] == 1, len(questions["benchmark"])

    def words(which: npt.NDArray[np.bool_]) -> Ints:
        return np.bincount(owners[which], weights=lengths[which], minlength=count).astype(np.int64)

    total, stem, both = words(lengths > 0), words(stems & pieces), words(pieces)
    alone = (stem >= 2 * options.ngram) | ((stem > 0) & (stem == total))
    beside = np.where(stem > 0, words(~stems & (lengths < options.ngram)), 0)
    return np.asarray(alone | ((both > 0) & (both + beside >= options.threshold * total)))


@dataclass(frozen=True, slots=True)
class FinishTask:
    """File whose attributes are written; `names` are those of the benchmarks."""

    scan: ScanTask
    names: tuple[str, ...]
    scanned: Scanned

    def __str__(self) -> str:
        return str(self.scan)

    @property
    def out(self) -> str:
        """Path of the attribute file below the dataset's root."""
        return self.scan.file.attributes(self.scan.options.name)


@dataclass(frozen=True, slots=True)
class Finished:
    """Result of a file.

    Attributes:
        rows, ids, read: See `Scanned`.
        flagged, matches: Documents with questions, and questions in documents.
        documents: For each benchmark, the documents with a question of it.
        hidden: For each question that is not marked as its n-grams are common: its number, and documents.
        leaked: For each question found: its number, documents, those with an answer, and an example: the row, share of
            words in 10,000 and excerpt.
        size, xxh3: Of the attribute file as stored.
    """

    rows: int
    ids: str
    read: str
    flagged: int
    matches: int
    documents: list[int]
    hidden: list[list[int]]
    leaked: list[list[Any]]
    size: int
    xxh3: str


def finish(task: FinishTask) -> Finished:
    """Write the attributes of a file, unless this run wrote them before it was interrupted."""
    scan_, store = task.scan, open_store(task.scan.folder)
    marker, files = f"done-{scan_.number:06d}.json", scan_.file.store()
    done = read_marker(store, marker)
    if done is not None and files.exists(task.out) and files.stat(task.out).size == done["size"]:
        return Finished(**done)
    questions, matches = read_arrays(store, "index"), read_arrays(store, f"scan-{scan_.number:06d}")
    common = read_arrays(store, "common")["common"]
    by_row: dict[int, list[_Leak]] = {}
    for leak in _leaks(questions, matches, common, scan_.options):
        by_row.setdefault(leak.row, []).append(leak)
    marked = {(row, leak.question) for row, leaks in by_row.items() for leak in leaks}
    whole = _leaks(questions, matches, np.empty(0, np.int64), scan_.options)
    hidden = Counter(question for _, question in {(leak.row, leak.question) for leak in whole} - marked)
    written, name = list[str](), scan_.options.name
    key, answers = orjson.dumps(name), orjson.dumps(f"{name}_answered")
    with write_lines(files, task.out, hashed=written.append) as append:
        begin = 0
        for row, end in enumerate(matches["id_ends"].tolist()):
            own = matches["ids"][begin:end].tobytes()
            begin = end
            leaks = by_row.get(row, ())
            spans = orjson.dumps([[leak.begin, leak.end, leak.share / 10_000] for leak in leaks])
            near = orjson.dumps([[leak.begin, leak.end, 1] for leak in leaks if leak.answered])
            names = orjson.dumps([question_name(questions, leak.question, task.names) for leak in leaks])
            of = b',"questions":' + names if leaks else b""
            append(b'{"attributes":{%b:%b,%b:%b},"id":%b%b}\n' % (key, spans, answers, near, own, of))
    documents = [set[int]() for _ in task.names]
    leaked: dict[int, list[Any]] = {}
    for row, leaks in sorted(by_row.items()):
        for leak in leaks:
            documents[int(questions["benchmark"][leak.question])].add(row)
        for number in {leak.question for leak in leaks}:
            best = max((leak for leak in leaks if leak.question == number), key=lambda leak: leak.share)
            excerpt = piece_of(matches["excerpts"], matches["excerpt_ends"], best.match).decode()
            counts = leaked.setdefault(number, [number, 0, 0, row, best.share, excerpt])
            counts[1] += 1
            counts[2] += any(leak.answered for leak in leaks if leak.question == number)
    finished = Finished(
        rows=task.scanned.rows,
        ids=task.scanned.ids,
        read=task.scanned.read,
        flagged=len(by_row),
        matches=sum(len({leak.question for leak in leaks}) for leaks in by_row.values()),
        documents=[len(rows) for rows in documents],
        hidden=[list(pair) for pair in sorted(hidden.items())],
        leaked=[leaked[number] for number in sorted(leaked)],
        size=files.stat(task.out).size,
        xxh3=written[0],
    )
    write_marker(store, marker, {field.name: getattr(finished, field.name) for field in fields(finished)})
    return finished


@dataclass(frozen=True, slots=True)
class _Leak:
    """A question in a document: `match` is the number of its best piece among those found in the file."""

    row: int
    question: int
    share: int
    begin: int
    end: int
    answered: bool
    match: int


def _leaks(questions: Arrays, matches: Arrays, common: Ints, options: Decontaminate) -> list[_Leak]:
    """Return the questions in the documents of a file, by row and place."""
    sizes = np.diff(questions["ends"], prepend=0)
    rare = ~np.isin(matches["grams"], common)
    counts = np.diff(np.append(0, np.cumsum(rare))[matches["gram_ends"]], prepend=0)
    lengths = sizes[matches["pieces"]]
    evident = np.flatnonzero(counts >= needed(lengths))
    owners = questions["owners"][matches["pieces"]]
    totals = np.bincount(questions["owners"], weights=sizes, minlength=len(questions["benchmark"]))
    groups: dict[tuple[int, int], list[int]] = {}
    for at in evident.tolist():
        groups.setdefault((int(matches["rows"][at]), int(owners[at])), []).append(at)
    leaks = []
    for (row, question), own in groups.items():
        stems = [at for at in own if questions["stems"][matches["pieces"][at]]]
        total = float(totals[question])
        enough = [at for at in stems if lengths[at] >= 2 * options.ngram or lengths[at] == total]
        for at in enough:
            leaks.append(_leak(matches, row, question, [at], int(matches["shares"][at])))
        if not enough:
            best = {int(matches["pieces"][at]): at for at in sorted(own, key=lambda at: int(matches["shares"][at]))}
            words = sum(float(lengths[at]) * int(matches["shares"][at]) for at in best.values())
            words += 10_000.0 * max(int(matches["beside"][at]) for at in own)
            if words >= options.threshold * 10_000 * total:
                leaks.append(_leak(matches, row, question, sorted(best.values()), round(words / total)))
    return sorted(leaks, key=lambda leak: (leak.row, leak.begin, leak.end, leak.question))


def _leak(matches: Arrays, row: int, question: int, own: Sequence[int], share: int) -> _Leak:
    begin, end = min(int(matches["begins"][at]) for at in own), max(int(matches["ends"][at]) for at in own)
    return _Leak(row, question, share, begin, end, any(bool(matches["answered"][at]) for at in own), own[0])


@verb(Decontaminate)
def decontaminate(given: Decontaminate) -> DecontaminateReport:
    """Return the numbers of leaked questions by benchmark, with examples.

    The result is the same for any number of workers. A repeated run only does the remaining work.

    Raises:
        EmptyResult: There are no documents, or a benchmark has no questions.
        NotFound: No files were found.
        ConfigError: Options are invalid, or there is no field with questions.
        DataError: A row is invalid.
    """
    options = replace(given, documents=(), against=())
    documents, allow_empty = paths_of(given.documents), given.allow_empty
    report = DecontaminateReport(options.name)
    benchmarks = find_documents(paths_of(given.against)).files
    if not benchmarks:
        raise ConfigError("no benchmark was given", kind="missing-option", fix="Pass questions with --against.")
    files = find_in_datasets(documents, report.warnings, DOCUMENTS, allow_missing=allow_empty, id=given.id)
    places = {file.store().locate(file.path) for file in benchmarks}
    if both := [file.name for file in files if file.store().locate(file.path) in places]:
        number = "1 file is" if len(both) == 1 else f"{len(both):,} files are"
        shown = ", ".join(both[:3]) + (", ..." if len(both) > 3 else "")
        report.warnings.append(
            f"{number} among the benchmarks and the documents, where all of the questions are found: {shown}."
            " Remove them with the filter, or leave them out of the documents"
        )
    identities = [[file.identity for file in files], [file.identity for file in benchmarks]]
    run_print = fingerprint(*identities, options.as_dict())
    target = set_store(files[0].store(), options.name)
    identity = {"verb": "decontaminate", "run": run_print}
    done = restore(report, files, DOCUMENTS, run_print)
    again = [] if done else _grown(files, benchmarks, options.name)
    refuse = partial(refuse_empty, file=f"attributes/{options.name}", allow=allow_empty)

    def plan(dry: DryRun) -> None:
        if done:
            return
        report.warnings += again
        foresee(target)
        for file in benchmarks:
            next(read_questions(file, options.fields or {}), None)
        plan_set(dry, files, options.name, DOCUMENTS)
        rows = read_first(dry, files)
        if rows is not None:
            refuse(rows, rows)

    def execute() -> None:
        if done:
            tidy(target, identity=identity)
        else:
            with Work(target) as work:
                work.begin(identity, keep_staged=True)
                folder = f"{work.folder}/leaks-{run_print}"
                _run(files, benchmarks, options, folder, run_print, given.workers, given.progress, report)
                work.finish()
            report.warnings += again  # of this run only, so the manifest does not have it
        refuse(report.documents, report.documents)

    perform(plan, execute)
    return report


def _grown(files: Sequence[DocumentFile], benchmarks: Sequence[DocumentFile], name: str) -> list[str]:
    """Return a warning if an earlier run looked for some of these benchmarks in the files, and wrote the same set."""
    names, same = set(benchmark_names(benchmarks)), list[str]()
    for root, own in by_folder(files).items():
        manifest = read_manifest(open_store(root or "."), name) or {}
        report, entries = manifest.get("report"), manifest.get("files", {}).values()
        known = {one["documents"]["path"] for one in entries if isinstance(one.get("documents"), dict)}
        if isinstance(report, dict) and any(file.path in known for file in own):
            same += [one["benchmark"] for one in report.get("benchmarks", ())]
    old = names.intersection(same)
    if not old or names <= set(same):
        return []
    new = sorted(names.difference(same))
    shown = ", ".join(new[:3]) + (", ..." if len(new) > 3 else "")
    return [
        f"{len(old):,} of {len(names):,} benchmarks are those of an earlier run into {name!r}, and are looked for"
        f" again. To look for the new ones only ({shown}), give them a set of their own with '--name', and list both"
        " sets in the filter"
    ]


def _run(
    files: list[DocumentFile],
    benchmarks: list[DocumentFile],
    options: Decontaminate,
    folder: str,
    run_print: str,
    workers: int | None,
    progress: bool | None,
    report: DecontaminateReport,
) -> None:
    store = open_store(folder)

    def stage(name: str, last: bool = False) -> Where:
        return Where(name, fingerprint(run_print, name), store, last=last)

    def alone(function: Any, task: Any, name: str) -> Any:
        with Progress(name, 1, "steps", progress) as bar:
            (result,) = run(function, [task], workers=1, progress=bar, preload=_PRELOAD, where=stage(name))
            return result

    counted = alone(index, IndexTask(tuple(benchmarks), options, folder), "indexing")
    scans = [ScanTask(file, options, folder, number) for number, file in enumerate(files)]
    sizes = [file.size for file in files]
    with Progress.of_files("scanning", sizes, progress) as bar:
        scanned = run_largest_first(
            scan, scans, sizes, workers=workers, progress=bar, preload=_PRELOAD, where=stage("scanning")
        )
    documents = sum(file.rows for file in scanned)
    most = max(LEAST_COMMON, options.common * documents)
    lost = alone(count, CountTask(folder, len(scans), most, options), "counting")
    names = tuple(benchmark.name for benchmark in counted)
    tasks = [FinishTask(task, names, result) for task, result in zip(scans, scanned, strict=True)]
    with Progress.of_files("writing", sizes, progress) as bar:
        results = run_largest_first(
            finish, tasks, sizes, workers=workers, progress=bar, preload=_PRELOAD, where=stage("writing", last=True)
        )
    _fill(report, read_arrays(store, "index"), counted, lost, files, results)
    entries = [entry(result, result.flagged, result.matches) for result in results]
    manifest = {"verb": "decontaminate", "options": options.as_dict(), "run": run_print, "report": report.as_dict()}
    manifest["questions"] = _texts(files, read_arrays(store, "index"), names, results, options.name)
    record(files, entries, options.name, DOCUMENTS, manifest)


def _texts(
    files: Sequence[DocumentFile], questions: Arrays, names: Sequence[str], results: Sequence[Finished], name: str
) -> dict[str, str]:
    """Return the beginning of the text of each leaked question by its name, also of earlier runs into the same set."""
    texts = dict[str, str]()
    for root in by_folder(files):
        texts.update((read_manifest(open_store(root or "."), name) or {}).get("questions", {}))
    for question in sorted({number for result in results for number, *_ in result.leaked}):
        text = piece_of(questions["texts"], questions["text_ends"], question).decode()
        texts[question_name(questions, question, names)] = text
    return texts


def _fill(
    report: DecontaminateReport,
    questions: Arrays,
    counted: Sequence[Counted],
    lost: Sequence[tuple[int, int]],
    files: Sequence[DocumentFile],
    results: Sequence[Finished],
) -> None:
    """Fill the report."""
    report.files, report.documents = len(files), sum(result.rows for result in results)
    report.flagged, report.matches = (
        sum(result.flagged for result in results),
        sum(result.matches for result in results),
    )
    leaked: dict[int, list[Any]] = {}
    hidden = Counter[int]()
    for file, finished in zip(files, results, strict=True):
        for number, documents in finished.hidden:
            hidden[number] += documents
        for number, documents, answered, row, share, excerpt in finished.leaked:
            known = leaked.setdefault(number, [0, 0, file.name, row + 1, share, excerpt])
            known[0] += documents
            known[1] += answered

    def of(question: int) -> dict[str, Any]:
        return {
            "id": piece_of(questions["ids"], questions["id_ends"], question).decode(),
            "question": piece_of(questions["texts"], questions["text_ends"], question).decode(),
        }

    for number, (benchmark, (short, common)) in enumerate(zip(counted, lost, strict=True)):
        own = sorted(question for question in leaked if questions["benchmark"][question] == number)
        unmarked = sorted(question for question in hidden if questions["benchmark"][question] == number)
        examples = [
            {
                **of(question),
                "documents": leaked[question][0],
                "file": leaked[question][2],
                "line": leaked[question][3],
                "share": leaked[question][4] / 10_000,
                "text": leaked[question][5],
            }
            for question in sorted(own, key=lambda question: (-leaked[question][0], question))[:EXAMPLES]
        ]
        report.benchmarks.append(
            {
                "benchmark": benchmark.name,
                "questions": benchmark.questions,
                "empty": benchmark.empty,
                "short": short,
                "common": common,
                "leaked": len(own),
                "with_answer": sum(leaked[question][1] > 0 for question in own),
                "documents": sum(result.documents[number] for result in results),
                "examples": examples,
                "unmarked": len(unmarked),
                "unmarked_examples": [
                    {**of(question), "documents": hidden[question]}
                    for question in sorted(unmarked, key=lambda question: (-hidden[question], question))[:EXAMPLES]
                ],
            }
        )
    missed = sum(benchmark["empty"] + benchmark["short"] + benchmark["common"] for benchmark in report.benchmarks)
    repeated = sum(one.repeated for one in counted)
    if repeated:
        report.warnings.append(
            f"{repeated:,} {'question has' if repeated == 1 else 'questions have'} the id of one before in the same"
            " benchmark, and the line in their names. Name another field with '--fields id=FIELD' to avoid that"
        )
    if missed:
        noun = "question" if missed == 1 else "questions"
        report.warnings.append(
            f"cannot be found: {missed:,} {noun} without text, with too few words, or of common phrases only"
        )
    if hidden:
        noun = "question is" if len(hidden) == 1 else "questions are"
        report.warnings.append(
            f"{len(hidden):,} {noun} not marked in up to {max(hidden.values()):,} documents, as the phrases are common."
            " Raise '--common' if these are leaks"
        )
