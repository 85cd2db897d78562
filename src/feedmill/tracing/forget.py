"""Find documents that must be forgotten in all that was made from them, and write what removes them from the next run.

The work of ``feedmill documents forget``. It changes no data. Its folder has:

    report.json         every file and step that holds them
    exclude.yaml        rules for the ``filter`` of a stream, which drop them by their ids
    skip-<recipe>.jsonl
                        samples to skip, for a recipe: ``skip: [{quarantine: skip-recipe.jsonl}]``
    drop-<file>.txt     numbers of documents to drop from a token file: ``feedmill filter FILE OUTPUT --drop LIST``

Documents that a set of attributes marks: with leaked questions, or as duplicates.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson

from feedmill.curation.provenance import check_attributes, check_others
from feedmill.documents.file import LINES, TEXT, DocumentFile, documents_of, is_hidden, kind_of
from feedmill.documents.lineage.chain import Lineages, Row, id_of, read_raw
from feedmill.documents.rows import bad_row, load
from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.documents import ATTRIBUTES, DOCUMENTS, read_lines, rows_of
from feedmill.formats.registry import families
from feedmill.formats.sniff import format_of_file, open_raw
from feedmill.formats.unread_files import is_about
from feedmill.jobs.options import verb
from feedmill.jobs.reports import VerbReport
from feedmill.planning.given import bound_plan
from feedmill.planning.nodes.base import unique_names
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.skip import data_of, skip_lines
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore, Store, is_local_folder, open_store, paths_of, split_url
from feedmill.tokens.corpus import main_file
from feedmill.tokens.options import DATA
from feedmill.tracing.document import LISTED, Document, Documents, sightings
from feedmill.tracing.held import Held
from feedmill.tracing.options import Forget

_DROPPABLE = (".pbin", ".ds", ".idx")
"""Suffixes of token files that `filter` writes again without some documents."""


@dataclass(frozen=True)
class Forgotten:
    """One requested document.

    Attributes:
        asked: the id, or ``FILE:LINE``.
        document: where it is, and what was made from it.
        id: its id; None if it has none.
        seen: recipe -> facts: ``times``, ``steps`` (if a global batch was given) and ``samples`` that hold it.
        questions: of benchmarks, if it was marked because it has them.
    """

    asked: str
    document: Document
    id: Any
    seen: dict[str, dict[str, Any]]
    questions: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        own = {"questions": self.questions} if self.questions else {}
        return {"asked": self.asked, "id": self.id, **self.document.as_dict(), "seen": self.seen, **own}


@dataclass(frozen=True)
class ForgetReport(VerbReport):
    """Documents to forget, and all that holds them.

    Attributes:
        documents: one entry for each raw document.
        files: path -> rows from 0 that hold one of the documents, of every file.
        unused: file -> documents of it that were marked, but from which nothing was made.
        written: the files that were written.
    """

    documents: list[Forgotten]
    files: dict[str, list[int]]
    unused: dict[str, int] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)

    @property
    def questions(self) -> dict[str, dict[str, Any]]:
        """Question -> ``documents`` that have it, as they were asked for, and ``seen``: recipe -> times and steps."""
        having: dict[str, list[Forgotten]] = defaultdict(list)
        for document in self.documents:
            for question in dict.fromkeys(document.questions):
                having[question].append(document)
        return {
            question: {
                "documents": list(dict.fromkeys(document.asked for document in having[question])),
                "seen": {
                    recipe: {
                        "times": sum(document.seen[recipe]["times"] for document in having[question]),
                        "steps": sorted(
                            {step for document in having[question] for step in document.seen[recipe]["steps"]}
                        ),
                    }
                    for recipe in having[question][0].seen
                },
            }
            for question in sorted(having)
        }

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        data = {"documents": [document.as_dict() for document in self.documents], "questions": self.questions}
        return {**data, "files": self.files, "unused": self.unused, "written": self.written}


@verb(Forget)
def forget(options: Forget) -> ForgetReport:
    """Return where they are. In a folder, files of documents without lineage are raw files.

    Raises:
        NotFound: a document is in no raw file, or a token file has no lineage, so that its documents are unknown.
        ConfigError: no path has a lineage, a recipe is endless, or the folder has files.
    """
    ids = options.ids
    wanted = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
    if not wanted:
        raise ConfigError("no document was given", kind="bad-option", fix="Give ids, FILE:LINE, or attributes.")
    marked = Marked()
    for word in list(wanted):
        if (rows := read_marked(word)) is not None:
            for row, names in rows.items():
                marked.setdefault(row, []).extend(names)
            wanted.remove(word)
    lineages = Lineages()
    plans, held, outputs = _opened(paths_of(options.paths), lineages)
    target = None if options.report is None else _empty_folder(os.fspath(options.report))
    documents = Documents(outputs, lineages)
    for path in filter(_is_tokens, documents.descent.raw):
        raise NotFound(
            "the documents of this token file are unknown, because it has no lineage",
            file=path,
            kind="no-lineage",
            fix="Write it again with this release, which writes its lineage, or pass only the other files.",
        )
    by_name, questions, unused = _of_marked(documents, marked)
    by_name |= documents.find(wanted)
    done = report_of(
        by_name, plans, held, samples=options.samples, global_batch=options.global_batch, questions=questions
    )
    done.unused.update(unused)
    if target is not None:
        store = open_store(target)
        for name, data in report_files(done, plans).items():
            store.write_bytes(name, data)
            done.written.append(store.locate(name))
    return done


def _of_marked(
    documents: Documents, marked: Marked
) -> tuple[dict[str, list[Document]], dict[str, list[str]], dict[str, int]]:
    """Return the marked documents and their questions by ``FILE:LINE``; and by file those that nothing was made from.

    Raises:
        NotFound: nothing was made from any of them.
    """
    by_name, questions, unused = dict[str, list[Document]](), dict[str, list[str]](), dict[str, int]()
    for row, names in marked.items():
        own = documents.at(row)
        if own is None:
            unused[row.path] = unused.get(row.path, 0) + 1
        else:
            asked = f"{row.path}:{row.row + 1}"
            by_name[asked], questions[asked] = own, names
    if marked and not by_name:
        raise NotFound(
            "nothing that was given was made from these marked documents",
            file=next(iter(unused)),
            kind="no-lineage",
            fix="Give the recipes, token files or folders that were made from them.",
        )
    return by_name, questions, unused


def report_of(
    by_name: Mapping[str, Sequence[Document]],
    plans: Mapping[str, Plan],
    held: Mapping[str, Held],
    *,
    samples: int | None = None,
    global_batch: int | None = None,
    questions: Mapping[str, list[str]] = MappingProxyType({}),
) -> ForgetReport:
    """Return the report about documents.

    Args:
        by_name: id or ``FILE:LINE`` -> the documents.
        plans, held: recipe -> its plan, and the files that it reads.
        samples, global_batch: see `forget`.
        questions: of documents that were marked because they have them.
    """
    ids = _ids_of(document for several in by_name.values() for document in several)
    documents = [
        Forgotten(
            asked,
            document,
            ids.get((document.file, document.row)),
            _seen(document, plans, held, samples, global_batch),
            list(questions.get(asked, ())),
        )
        for asked, several in by_name.items()
        for document in several
    ]
    files: dict[str, set[int]] = defaultdict(set)
    for traced in documents:
        for path in (traced.document.file, *traced.document.attributes):
            files[path].add(traced.document.row)
        for made in traced.document.artefacts:
            files[made.file].update(made.rows)
    return ForgetReport(documents, {path: sorted(numbers) for path, numbers in files.items() if numbers})


def _opened(paths: Sequence[str], lineages: Lineages) -> tuple[dict[str, Plan], dict[str, Held], list[str]]:
    """Return the plans with the files that they read, and all files to begin with."""
    plans, held, outputs = dict[str, Plan](), dict[str, Held](), list[str]()
    for path in paths:
        if path.endswith((".yaml", ".yml")):
            plans[path] = bound_plan(path)[0]
            held[path] = Held.of(plans[path], lineages)
            outputs += held[path].paths
            continue
        files = _files_below(path, lineages) or Held({path: open_dataset(path)}, lineages).paths
        if not files:
            raise ConfigError(
                "it has no lineage, and its format has none",
                file=path,
                kind="no-lineage",
                fix="Give recipes, token files, or folders that 'feedmill filter' wrote.",
            )
        outputs += files
    return plans, held, outputs


def _files_below(path: str, lineages: Lineages) -> list[str]:
    """Return the file if it has a lineage; of a folder, such files, token files, and documents, which are raw files."""
    if not is_local_folder(path):
        return [path] if _has_lineage(path, lineages) else []
    store = open_store(path)
    paths = list[str]()
    for entry in store.files():
        name = store.locate(entry.path)
        if is_hidden(entry.path):
            continue
        beside = f"/{ATTRIBUTES}/" in f"/{entry.path}" or (kind_of(name) == TEXT and is_about(name))
        raw = kind_of(name) is not None and not beside
        unknown = _is_tokens(name) and not _has_lineage(main_file(name), lineages)  # kept for the error about it
        if raw or unknown or _has_lineage(name, lineages):
            paths.append(name)
    return paths


def _is_tokens(path: str) -> bool:
    folder, name = split_url(path)
    format = format_of_file(open_store(folder), name) if kind_of(path) is None else None
    return format is not None and format in families("tokens")


def _has_lineage(path: str, lineages: Lineages) -> bool:
    try:
        return lineages.of(path) is not None
    except FeedmillError as error:
        if error.kind in ("changed", "bad-lineage"):
            raise
        return False


def _seen(
    document: Document,
    plans: Mapping[str, Plan],
    held: Mapping[str, Held],
    samples: int | None,
    global_batch: int | None,
) -> dict[str, dict[str, Any]]:
    """Return `Forgotten.seen`."""
    seen = {}
    for path, plan in plans.items():
        if samples is None and plan.length is None:
            raise ConfigError("the plan is endless", file=path, kind="endless", fix="Give --samples N.")
        times = sightings(plan, held[path], document, samples=samples, global_batch=global_batch)
        steps = sorted({time.step for time in times if time.step is not None})
        seen[path] = {
            "times": len(times),
            "steps": steps,
            "positions": [time.position for time in times[:LISTED]],
            "samples": sorted({(time.source, time.index) for time in times}),
        }
    return seen


def _ids_of(documents: Iterable[Document]) -> dict[tuple[str, int], Any]:
    """Return the ids of documents by file and row; those without one are named by their file and number."""
    rows, ids = defaultdict[str, set[int]](set), dict[tuple[str, int], Any]()
    for document in documents:
        rows[document.file].add(document.row)
    for path, numbers in rows.items():
        with contextlib.suppress(FeedmillError):
            ids.update({(path, row): id_of(line) for row, line in read_raw(path, numbers).items()})
    return ids


def _empty_folder(path: str) -> str:
    store = open_store(path)
    if not isinstance(store, LocalStore):
        raise ConfigError("the report is written to a local folder", file=path, kind="bad-option", fix="Give a path.")
    if os.path.isdir(store.root) and os.listdir(store.root):
        raise ConfigError("the folder has files already", file=path, kind="exists", fix="Choose another folder.")
    return path


def report_files(report: ForgetReport, plans: Mapping[str, Plan]) -> dict[str, bytes]:
    """Return the files of the report's folder: the report itself, and what removes the documents; see the module."""
    files = {"report.json": orjson.dumps({**report.as_dict(), "written": []}, option=orjson.OPT_INDENT_2)}
    ids = sorted(
        {json.dumps(document.id, ensure_ascii=False) for document in report.documents if document.id is not None}
    )
    if ids:
        rules = [f"  - {json.dumps(f'.id == {id}', ensure_ascii=False)}" for id in ids]
        files["exclude.yaml"] = "\n".join(["syntax: jq", "exclude:", *rules, ""]).encode()
    names = unique_names([_stem(path) for path in plans])
    for name, (path, plan) in zip(names, plans.items(), strict=True):
        samples = sorted({sample for document in report.documents for sample in document.seen[path]["samples"]})
        if samples:
            files[f"skip-{name}.jsonl"] = skip_lines(plan, samples)
    tokens = [path for path in sorted(report.files) if path.endswith(_DROPPABLE)]
    for name, path in zip(unique_names([path.rpartition("/")[2] for path in tokens]), tokens, strict=True):
        numbers = "".join(f"{row}\n" for row in report.files[path])
        count, digest = data_of(open_raw(path)[0])
        files[f"drop-{name}.txt"] = f"# {path}\n{DATA}{count} {digest}\n{numbers}".encode()
    return files


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml")


Marked = dict[Row, list[str]]
"""Row of a file of documents -> the names of the questions that it has, as `decontaminate` writes them; or none."""


def read_marked(path: str) -> Marked | None:
    """Return the marked documents of a set of attributes: those with a span of the set's name and a positive score.

    Args:
        path: folder ``attributes/NAME``, or a file or folder below it; path or URL.

    Returns:
        None if the path is none of these.

    Raises:
        ConfigError: the set has no attribute of its own name.
        DataError: it was computed from other documents, or a row is invalid.
        NotFound: its documents are missing.
        StorageError: they cannot be read.
    """
    parts = path.rstrip("/").split("/")
    if ATTRIBUTES not in parts[:-1] or path.startswith(("http://", "https://")):  # addresses are ids of pages
        return None
    at = parts.index(ATTRIBUTES)
    store, name = open_store("/".join(parts[:at]) or ("/" if path.startswith("/") else ".")), parts[at + 1]
    own, found, known = orjson.dumps(name), Marked(), False
    files = list(_files(store, "/".join(parts[at:])))
    of = [f"{DOCUMENTS}/{documents_of('/'.join(file.split('/')[2:]))}" for file in files]
    check_others([DocumentFile(store.url, path, kind_of(path) or LINES, 0, "") for path in of], name)
    for file, documents in zip(files, of, strict=True):
        if not store.exists(documents):
            raise NotFound("the documents of these attributes are missing", file=store.locate(file))
        check_attributes(store.locate(file))
        place, row = store.locate(documents), 0
        for block in read_lines(store, file):
            for line in rows_of(block):
                known = known or own in line
                if own in line and own + b":[]" not in line:  # most are not marked
                    try:
                        content = load(line)
                        if any(span[2] > 0 for span in content["attributes"].get(name, ())):
                            found[Row(place, row)] = list(content.get("questions", ()))
                    except (ValueError, TypeError, LookupError, AttributeError):
                        raise bad_row(line, "the row has no spans", store.locate(file), row + 1) from None
                row += 1
    if files and not known:
        raise ConfigError(
            f"these attributes have no {name!r}, so they mark no documents",
            file=path,
            kind="bad-option",
            fix="Give a set that decontaminate, dedupe or dedupe --near wrote.",
        )
    return found if files else None


def _files(store: Store, path: str) -> Iterator[str]:
    """Yield the attribute files below a path."""
    try:
        entries = list(store.files(path))
    except NotFound:
        if store.exists(path):
            yield path
        return
    yield from (entry.path for entry in entries if not is_hidden(entry.path))
