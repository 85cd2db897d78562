"""What an import refuses before it reads everything: datasets, sources that are not used, and unclear tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from feedmill.errors import ConfigError, FeedmillError, MissingExtra
from feedmill.formats.format import TOKENS
from feedmill.formats.objects import read_object
from feedmill.formats.sniff import sniff
from feedmill.importing import kinds
from feedmill.importing.recognition import Recognized, counted_kinds
from feedmill.importing.rows import NoTextColumn, Reading, Row, read_documents, reason_of
from feedmill.importing.scanning import EXCLUDED, File, Files
from feedmill.jobs.left_out import LeftOut
from feedmill.jobs.policy import OnError, skips
from feedmill.jobs.run import Policy, run
from feedmill.storage import is_local_folder, open_store
from feedmill.tokens.chat.forms import is_conversation

MODULES = (__name__,)
_SHOWN = 10
_MANY_SOURCES = 10
"""From more sources on, the user has named them by a pattern of the shell, in which not every file is meant."""
_FILES = 500
"""Number of tables in a unit of work."""
_FIRST_ROWS = 1000
_IMPORTED = ("lerobot", "img2dataset")
"""Formats with marks that are imported."""


def refuse_datasets(sources: Sequence[str]) -> None:
    """Raise `ConfigError` for a source that is a dataset which `feedmill.open` recognizes by a file of its own."""
    for source in sources:
        if "://" not in source and not is_local_folder(source):
            continue
        try:
            format = sniff(source).format
        except FeedmillError:
            _refuse_chunks(source)
            continue
        if (format.marks or format.later_marks) and format.name not in _IMPORTED:
            verbs = "tokenize, convert" if format.family in ("rows", "lines") else "convert"
            verbs = "shuffle, merge, split" if format.family in TOKENS else verbs
            raise ConfigError(
                f"this is a dataset already ({format.title})",
                file=source,
                kind="is-dataset",
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
            kind="is-dataset",
            fix="Read its samples with LitData, and write them with feedmill.write.",
        )


def refuse_unused(sources: Sequence[str], files: Files, left: LeftOut) -> None:
    """Raise `ConfigError` for a source that has no role in the import."""
    if len(sources) > _MANY_SOURCES:
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
                kind="unused-source",
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
    files: Files, found: Recognized, reading: Reading, left: LeftOut, *, on_error: OnError, workers: int | None
) -> None:
    """Read the first rows of all tables. Those that cannot be read are left out of `found` and added to `left`.

    Raises:
        ConfigError: it is not clear how to read some, and `on_error` is ``raise``; all of them are named.
    """
    tables = [
        (number, file)
        for number, file in enumerate(found.documents)
        if file.size and kinds.divide(file.path).kind in (*kinds.TABLES, kinds.JSON)
    ]
    shared = _Shared(files.roots, files.prefixes, reading)
    units = [tables[at : at + _FILES] for at in range(0, len(tables), _FILES)]
    results = run(_examined, units, workers=workers, preload=MODULES, policy=Policy(shared=shared))
    with closing(results):
        unclear = [one for each in results for one in each]
    decide = [one for one in unclear if one.decide]
    if decide and not skips(on_error):
        raise _refusal(files, [(found.documents[one.number], one) for one in decide])
    for one in unclear:
        left.add(one.why, files.name(found.documents[one.number]))
    gone = {one.number for one in unclear}
    found.documents = [file for number, file in enumerate(found.documents) if number not in gone]
    if gone:
        found.notes = [*counted_kinds(found.documents), *(note for note in found.notes if note.startswith("warning"))]


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
    for found in islice(rows, _FIRST_ROWS):
        if isinstance(found, dict):
            return


def _refusal(files: Files, decide: Sequence[tuple[File, Unclear]]) -> ConfigError:
    """Return one error for all files that the user must decide about."""
    chats = [file for file, one in decide if is_conversation(one.columns)]
    skip = f"Leave {'it' if len(decide) == 1 else 'them'} out with --on-error skip"
    shared = set.intersection(*(set(one.columns) for _, one in decide))
    fix = f"Name the column of the text with --text COLUMN, or l{skip[1:]}." if shared and not chats else f"{skip}."
    if chats:
        which = (
            "This is a conversation"
            if len(decide) == 1
            else f"Conversations are not imported ({len(chats):,} of these)"
        )
        path = f"{files.roots[chats[0].root]}/{chats[0].path}"
        fix += f" {which}: 'feedmill tokenize {path} -o OUT -t TOKENIZER --chat auto' reads it."
    if len(decide) == 1:
        file, one = decide[0]
        fix = fix if one.columns else f"{one.fix} {skip}."
        return ConfigError(one.why, file=files.name(file), kind=one.kind, fix=fix)
    by_reason: dict[str, list[str]] = {}
    for file, one in decide:
        by_reason.setdefault(one.why, []).append(files.name(file))
    shown = "; ".join(
        f"{why}: {', '.join(names[:_SHOWN])}{f' and {len(names) - _SHOWN:,} more' if len(names) > _SHOWN else ''}"
        for why, names in list(by_reason.items())[:_SHOWN]
    )
    more = f"; and {len(by_reason) - _SHOWN:,} more reasons" if len(by_reason) > _SHOWN else ""
    what = f"it is not clear how to read {len(decide):,} files: {shown}{more}"
    return ConfigError(what, kind="no-column", fix=fix)
