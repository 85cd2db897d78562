"""Import files as they are into documents or a prepared dataset: `feedmill.import_data`.

It refuses datasets, sources that are not used, and unclear tables before it reads everything.
"""

from __future__ import annotations

import codecs
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import xxhash

from feedmill.errors import ConfigError, FeedmillError, MissingExtra
from feedmill.formats.format import TOKENS
from feedmill.formats.objects import read_object
from feedmill.formats.offsets import hash_words
from feedmill.formats.sniff import by_marks
from feedmill.importing import documents, kinds
from feedmill.importing import samples as media
from feedmill.importing.documents import empty, write_documents
from feedmill.importing.encodings import is_other
from feedmill.importing.episodes import EpisodeReader, forget, plan_episodes
from feedmill.importing.layouts import Samples, by_ratio, plan_samples
from feedmill.importing.options import Compression, Import
from feedmill.importing.recognition import (
    AUTO,
    DETECTION,
    DOCUMENTS,
    EPISODES,
    PARTS,
    TYPES,
    Recognized,
    counted_kinds,
    recognize,
    tables_about_media,
)
from feedmill.importing.report import ImportReport
from feedmill.importing.rows import NoTextColumn, Reading, Row, read_documents, reason_of
from feedmill.importing.samples import Reader, Reads, caption_encodings, refuse_documents, write_samples
from feedmill.importing.scanning import EXCLUDED, File, Files, scan, with_tables
from feedmill.indexing.splitting import empty_splits, ratio_of, sizes_by_ratio
from feedmill.jobs.dry_run import active
from feedmill.jobs.engine import Policy
from feedmill.jobs.memory import frozen, uncollected
from feedmill.jobs.options import verb
from feedmill.jobs.policy import OnError, on_error_policy, skips
from feedmill.jobs.processes import start_server
from feedmill.jobs.reports import SHOWN, LeftOut
from feedmill.jobs.run import run
from feedmill.storage import canonical_location, is_local_folder, open_store, paths_of
from feedmill.storage.codec import GZIP, PLAIN, ZSTD
from feedmill.storage.limits import parse_size
from feedmill.tokens.chat.forms import is_conversation, renaming

COMPRESSIONS: dict[Compression, str] = {"none": PLAIN, "gz": GZIP, "zst": ZSTD}
MODULES = (__name__,)
_SHOWN = 10
_MANY_SOURCES = 10
"""From more sources on, the user has named them by a pattern of the shell, in which not every file is meant."""
_FILES = 500
"""Number of tables in a unit of work."""
_FIRST_ROWS = 1000
_IMPORTED = ("lerobot", "img2dataset")
"""Formats with marks that are imported."""


@verb(Import)
def import_data(options: Import) -> ImportReport:
    """The output does not depend on `workers`. All files that are left out are named.

    Raises:
        NotFound: a source does not exist.
        ConfigError: the output exists, a source lies in another, is not used or is a dataset already, the files are of
            several kinds, it is not clear how to read some, or an option is invalid.
        DataError: there is nothing to import.
    """
    began = time.perf_counter()
    given, target = paths_of(options.sources), os.fspath(options.out)
    on_error = on_error_policy(options.on_error)
    most = _check_options(given, target, options)
    ratio = None if options.split_ratio is None else ratio_of(options.split_ratio)
    report = ImportReport(target, options.type)
    with uncollected():
        start = partial(start_server, (*documents.MODULES, *media.MODULES))
        on_many = start if options.workers != 1 and active() is None else None
        if options.type == AUTO:
            refuse_datasets(given)
        given_paths = {"include": options.include, "exclude": options.exclude, "tables": options.captions}
        patterns = {name: paths_of(paths) for name, paths in given_paths.items()}
        files = scan(given, target, report.left_out, on_many=on_many, **patterns)
        files = with_tables(files, tables_about_media(files, options.type), files.files)
        recognized = recognize(files, options.type, report.left_out, named=bool(options.include))
        refuse_unused(given, files, report.left_out)
        samples = _planned(files, recognized, options.encoding, report, splits=ratio is None)
        if samples is not None:
            samples = samples if ratio is None else _divided(samples, ratio, report)
        reading = Reading(options.text, options.id, options.encoding)
        if samples is None:
            leave_out_unclear(files, recognized, reading, report.left_out, on_error=on_error, workers=options.workers)
        _describe(report, files, recognized, samples)
    _check_found(report, recognized, samples, ratio)
    if samples is not None:
        packing = None if options.compression == "none" else options.compression
        _name_unused(report, {"--text": options.text, "--id": options.id, "--compression": packing})
    identity = _identity(
        files,
        type=options.type,
        captions=[*map(files.name, files.tables)],
        text=options.text,
        id=options.id,
        encoding=options.encoding,
        compression=options.compression,
        ratio=str(ratio),
    )
    shared: dict[str, Any] = {"most": most, "overwrite": options.overwrite}
    shared |= {"workers": options.workers, "progress": options.progress}
    if samples is None:
        suffix = _suffix(options.compression)
        chosen = files._replace(files=recognized.documents)
        job = {**identity, "most": most}
        with frozen():
            write_documents(target, chosen, job, report, reading=reading, suffix=suffix, **shared)
    else:
        refuse_documents(target)
        annotated = recognized.type == DETECTION
        of_files = Reader(tuple(files.roots), options.encoding, recognized.type != PARTS, options.decode, annotated)
        reader: Reads = of_files
        if recognized.type == EPISODES:
            reader = EpisodeReader(tuple(files.roots), tuple(files.prefixes), options.decode)
        elif recognized.type != PARTS and is_other(options.encoding):
            report.encodings = caption_encodings(of_files, samples)
        job = {**identity, "decode": options.decode}
        shared["max_shard_samples"] = options.max_shard_samples
        with frozen():
            write_samples(target, files, samples, job, report, reader, **shared)
    if not is_other(options.encoding):
        report.encodings.clear()
    report.seconds = round(time.perf_counter() - began, 3)
    return report


def _check_options(sources: Sequence[str], out: str, options: Import) -> int:
    """Check options, and return the maximum size of a shard."""
    type, encoding, compression, count = options.type, options.encoding, options.compression, options.max_shard_samples
    if not sources:
        raise ConfigError("no source was given", kind="missing-option", fix="Name folders or files.")
    if any(canonical_location(source) == canonical_location(out) for source in sources):
        raise ConfigError("a source is also the output", file=out, kind="input-is-output", fix="Use another folder.")
    if os.path.isfile(out):
        raise ConfigError(
            "the output is a file, and datasets are folders",
            file=out,
            kind="exists",
            fix=f"Name the output last: feedmill import {' '.join([*sources, out])} OUT.",
        )
    if compression not in COMPRESSIONS:
        raise ConfigError(
            f"unknown compression {compression!r}", kind="bad-option", fix=f"Use one of {', '.join(COMPRESSIONS)}."
        )
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ConfigError(
            f"unknown encoding {encoding!r}", kind="bad-option", fix="Use for example cp1252 or utf-16."
        ) from None
    most = parse_size(options.max_shard_size) or 0
    if most < 1 or count < 1:
        raise ConfigError(
            f"invalid shard limit: {most} bytes, {count} samples", kind="bad-option", fix="Use 1 or more."
        )
    if type not in TYPES:
        recognize(Files([], [], []), type, ImportReport(out, type).left_out)  # raises
    return most


def _name_unused(report: ImportReport, of_documents: Mapping[str, str | None]) -> None:
    """Add a warning about given options that only documents have."""
    given = ", ".join(name for name, value in of_documents.items() if value is not None)
    if given:
        report.recognized.append(f"warning: without effect: {given} (only documents have them)")


def _planned(
    files: Files, recognized: Recognized, encoding: str, report: ImportReport, *, splits: bool
) -> Samples | None:
    """Return the samples of media or episodes; None for documents."""
    if recognized.type == DOCUMENTS:
        return None
    if recognized.type == EPISODES:
        forget()
        return plan_episodes(files, recognized, report.left_out, splits=splits)
    return plan_samples(files, recognized, encoding, report.left_out)


def _identity(files: Files, **options: Any) -> dict[str, Any]:
    """Return what determines the output, besides the limits of shards."""
    words = [f"{root} {version} {path}" for root, path, _, version in files.files]
    return {"verb": "import", "files": hash_words([*map(canonical_location, files.roots), *words]), **options}


def _divided(samples: Samples, ratio: list[Fraction], report: ImportReport) -> Samples:
    """Return the samples divided at random, by the hashes of their keys."""
    keys = [planned.key for group in samples.splits.values() for planned in group]
    sizes = sizes_by_ratio(len(keys), ratio)
    order = sorted(range(len(keys)), key=lambda number: (xxhash.xxh3_64_intdigest(keys[number].encode()), number))
    report.recognized += [f"warning: {line}" for line in empty_splits(sizes, ratio, "samples")]
    return by_ratio(samples, sizes, order)


def _suffix(compression: Compression) -> str:
    """Return the suffix of files of documents."""
    return ".jsonl" + (f".{COMPRESSIONS[compression]}" if COMPRESSIONS[compression] else "")


def _check_found(
    report: ImportReport, recognized: Recognized, samples: Samples | None, ratio: list[Fraction] | None
) -> None:
    """Raise if there is nothing to import, or documents with a split ratio; a dry run counts what would be read."""
    if samples is None and ratio is not None:
        raise ConfigError(
            "--split-ratio divides samples, and these files are documents",
            kind="bad-option",
            fix="Remove it. Documents are divided after tokenizing, with 'feedmill tokens split'.",
        )
    if not (recognized.documents if samples is None else samples.total):
        raise empty(report)
    if (dry := active()) is not None:
        dry.files, dry.bytes = report.files, report.input_bytes


def _describe(report: ImportReport, files: Files, recognized: Recognized, samples: Samples | None) -> None:
    report.type = recognized.type
    report.recognized = [*recognized.notes, *report.recognized]
    used = recognized.documents if samples is None else files.files
    links = files.leading_out()
    if links:
        shown = f"{', '.join(links[:SHOWN])}{', ...' if len(links) > SHOWN else ''}"
        what = "1 link leads" if len(links) == 1 else f"{len(links):,} links lead"
        report.recognized.append(f"warning: {what} out of the sources, and what they lead to is read ({shown})")
    report.files, report.input_bytes = len(used), sum(file.size for file in used)
    if samples is not None:
        report.samples, report.sample_type = samples.total, samples.sample_type
        report.splits = {split: len(group) for split, group in samples.splits.items()}
        used_parts = [part for group in samples.splits.values() for planned in group for part in planned.parts]
        report.files = len({(part[2], part[3]) for part in used_parts if part[4] is None})


def refuse_datasets(sources: Sequence[str]) -> None:
    """Raise `ConfigError` for a source that is a dataset which `feedmill.open` recognizes by a file of its own."""
    for source in sources:
        if "://" not in source and not is_local_folder(source):
            continue
        try:
            found = by_marks(open_store(source))  # not `sniff`, which lists all files for each format that it looks for
        except FeedmillError:
            found = None
        if found is None:
            _refuse_chunks(source)
        elif found.format.name not in _IMPORTED:
            format = found.format
            verbs = "tokenize, convert" if format.family in ("rows", "lines") else "convert"
            verbs = "shuffle, merge, split" if format.family in TOKENS else verbs
            raise ConfigError(
                f"this is a dataset already ({format.title})",
                file=source,
                kind="other-format",
                fix=f"Use it as it is: feedmill.open, recipes and the verbs {verbs} read it. To import its files one by"
                " one, choose with --type.",
            )


def _refuse_chunks(source: str) -> None:
    """Raise `ConfigError` for a folder of LitData's chunks, of which only tokens are read."""
    store = open_store(source)
    try:
        index = read_object(store, "index.json", kind="bad-index", fix="") if store.exists("index.json") else {}
    except FeedmillError:
        return
    if {"chunks", "config"} <= index.keys():
        raise ConfigError(
            "this is a dataset already (LitData's chunks), of which only tokens are read",
            file=source,
            kind="other-format",
            fix="Read its samples with LitData, and write them with feedmill.write.",
        )


def refuse_unused(sources: Sequence[str], files: Files, left: LeftOut) -> None:
    """Raise `ConfigError` for a source that has no role in the import."""
    if len(sources) > _MANY_SOURCES or (len(files.roots) == 1 and not files.typed):
        return
    why = {name: reason for reason, names in left.names.items() if reason not in EXCLUDED for name in names}
    for root, top in enumerate(files.roots):
        inside = [file for file in files.files if file.root == root]
        unused = [file for file in inside if files.name(file) in why]
        typed = [file for file in unused if (root, file.path) in files.typed]
        whole = bool(inside) and len(unused) == len(inside) and len(files.roots) > 1
        if typed or whole:
            name = files.name((typed or unused)[0])
            raise ConfigError(
                f"this source is not used: {why[name]}",
                file=f"{top}/{typed[0].path}" if typed else top,
                kind="loses-content",
                fix="Leave it out, choose with --type, or import it to a folder of its own.",
            )


class Unclear(NamedTuple):
    """A file that cannot be read as it is: its position, why, and whether the user must decide.

    `columns` are those of the row, if the column of the text is not clear; `fix` and `kind` are the error's.
    """

    number: int
    why: str
    decide: bool
    columns: tuple[str, ...] = ()
    fix: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class _Shared:
    roots: list[str]
    prefixes: list[str]
    reading: Reading


def leave_out_unclear(
    files: Files, recognized: Recognized, reading: Reading, left: LeftOut, *, on_error: OnError, workers: int | None
) -> None:
    """Read the first rows of all tables. Those that cannot be read are left out of `found` and added to `left`.

    Raises:
        ConfigError: it is not clear how to read some, and `on_error` is ``raise``; all of them are named.
    """
    wanted = (*kinds.TABLES, kinds.JSON)
    if not any(recognized.kinds[kind] for kind in wanted):
        return
    tables = [
        (number, file)
        for number, file in enumerate(recognized.documents)
        if file.size and kinds.divide(file.path).kind in wanted
    ]
    shared = _Shared(files.roots, files.prefixes, reading)
    units = [tables[at : at + _FILES] for at in range(0, len(tables), _FILES)]
    results = run(_examined, units, workers=workers, preload=MODULES, policy=Policy(shared=shared))
    with closing(results):
        unclear = [file for unit in results for file in unit]
    decide = [file for file in unclear if file.decide]
    if decide and not skips(on_error):
        raise _refusal(files, [(recognized.documents[file.number], file) for file in decide])
    for unclear_file in unclear:
        left.add(unclear_file.why, files.name(recognized.documents[unclear_file.number]))
    gone = {file.number for file in unclear}
    recognized.documents = [file for number, file in enumerate(recognized.documents) if number not in gone]
    if gone:
        counts = Counter(kinds.divide(file.path).kind for file in recognized.documents)
        recognized.notes = [
            *counted_kinds(counts),
            *(note for note in recognized.notes if note.startswith("warning")),
        ]


def _examined(shared: _Shared, tables: Sequence[tuple[int, File]]) -> list[Unclear]:
    stores = [open_store(root) for root in shared.roots]
    out = []
    for number, file in tables:
        try:
            _first_document(read_documents(stores[file.root], shared.prefixes[file.root], file, shared.reading))
        except ConfigError as error:
            columns = tuple(error.columns) if isinstance(error, NoTextColumn) else ()
            out.append(Unclear(number, error.what, True, columns, error.fix or "", error.kind))
        except MissingExtra:
            raise
        except FeedmillError as error:
            out.append(Unclear(number, reason_of(error), False))
    return out


def _first_document(rows: Iterable[dict[str, Any] | Row]) -> None:
    """Read rows up to the first document; by then, the column of the text is known."""
    for document in islice(rows, _FIRST_ROWS):
        if isinstance(document, dict):
            return


def _refusal(files: Files, decide: Sequence[tuple[File, Unclear]]) -> ConfigError:
    """Return one error for all files that the user must decide about."""
    chats = [file for file, unclear in decide if is_conversation(unclear.columns)]
    skip = f"Leave {'it' if len(decide) == 1 else 'them'} out with --on-error skip"
    shared = set.intersection(*(set(unclear.columns) for _, unclear in decide))
    fix = f"Name the column of the text with --text COLUMN, or l{skip[1:]}." if shared and not chats else f"{skip}."
    if chats:
        which = (
            "This is a conversation"
            if len(decide) == 1
            else f"Conversations are not imported ({len(chats):,} of these)"
        )
        path = f"{files.roots[chats[0].root]}/{chats[0].path}"
        fix += f" {which}: 'feedmill tokenize {path} -o OUT -t TOKENIZER --chat auto' reads it."
    elif advice := next((text for _, unclear in decide if (text := renaming(unclear.columns))), ""):
        fix += f" To make conversations, {advice}, and use 'feedmill tokenize ... --chat auto'."
    if len(decide) == 1:
        file, reading = decide[0]
        fix = fix if reading.columns else f"{reading.fix} {skip}."
        return ConfigError(reading.why, file=files.name(file), kind=reading.kind, fix=fix)
    by_reason: dict[str, list[str]] = {}
    for file, reading in decide:
        by_reason.setdefault(reading.why, []).append(files.name(file))
    shown = "; ".join(
        f"{why}: {', '.join(names[:_SHOWN])}{f' and {len(names) - _SHOWN:,} more' if len(names) > _SHOWN else ''}"
        for why, names in list(by_reason.items())[:_SHOWN]
    )
    more = f"; and {len(by_reason) - _SHOWN:,} more reasons" if len(by_reason) > _SHOWN else ""
    what = f"it is not clear how to read {len(decide):,} files: {shown}{more}"
    return ConfigError(what, kind="no-column", fix=fix)
