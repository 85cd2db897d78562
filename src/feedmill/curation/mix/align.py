"""Whether attributes belong to their documents: made of these very ones, or at least the same ids in the same rows.

Where the attribute set says what it was made of, that decides (see `feedmill.curation.provenance`). Otherwise the ids
of both are read and compared, and no span may end behind its text, before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from feedmill.curation.provenance import Verdict, stale, verdict
from feedmill.documents.file import DocumentFile
from feedmill.documents.lines import read_blocks
from feedmill.documents.rows import REFUSED, ids_of, parse_ids, parse_texts
from feedmill.errors import DataError, FeedmillError
from feedmill.formats.documents import read_lines, rows_of
from feedmill.storage import Entry, Store

_BATCH = 4096
_SLACK = 1
"""Dolma's last paragraph of a text that has more than ASCII may end one character behind it."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """A file of documents and the attribute sets that must be merged into it.

    `allow_stale`: attributes of other documents are only counted. `recorded_only`: rows are not compared.
    """

    file: DocumentFile
    attributes: tuple[str, ...]
    input: str | None = None
    allow_missing: bool = False
    allow_stale: bool = False
    recorded_only: bool = False

    @property
    def entry(self) -> Entry:
        """The documents as a file of their store."""
        return Entry(self.file.path, self.file.size, self.file.version)


class Found(NamedTuple):
    """What is wrong with a pairing, or None; and the attribute files that were made of other documents, if allowed."""

    error: FeedmillError | None
    stale: tuple[str, ...] = ()


def vouched(pairing: Pairing) -> bool:
    """Whether records say that all attributes were made from these very documents: nothing has to be read then."""
    store, file = pairing.file.store(), pairing.file
    try:
        paths = [(name, file.attributes(name)) for name in pairing.attributes]
        return all(
            store.exists(path) and verdict(store, name, path, pairing.entry, read=False) is Verdict.SAME
            for name, path in paths
        )
    except FeedmillError:
        return False  # comes up again


def verify(pairing: Pairing) -> Found:
    """Check the attributes of one file."""
    store = pairing.file.store()
    compared: dict[str, bool] = {}
    others: list[str] = []
    try:
        for name in pairing.attributes:
            path = pairing.file.attributes(name)
            if not store.exists(path):
                if not pairing.allow_missing and not pairing.recorded_only:
                    return Found(_missing(store, path, pairing.file, name))
                continue
            answer = verdict(store, name, path, pairing.entry)
            if answer is Verdict.OTHER:
                if not pairing.allow_stale:
                    return Found(stale(store, path, pairing.file.name))
                others.append(store.locate(path))
            if answer is not Verdict.SAME:
                compared[path] = answer is Verdict.UNKNOWN and not pairing.allow_stale
        if compared and not pairing.recorded_only:
            _compare(store, pairing, compared)
    except FeedmillError as error:
        return Found(error)
    return Found(None, tuple(others))


def _compare(store: Store, pairing: Pairing, paths: dict[str, bool]) -> None:
    """Compare ids row by row; and spans with texts, for those of the attribute files that say so."""
    wanted, lengths, sources = _documents(store, pairing)
    for path, bounded in paths.items():
        found = _rows(store, path) if bounded else ((one, _Row()) for one in _ids(store, path))
        count = 0
        while batch := list(islice(found, _BATCH)):
            if [one for one, _ in batch] != wanted[count : count + len(batch)]:
                for n, (one, _) in enumerate(batch):
                    if count + n >= len(wanted) or one != wanted[count + n]:
                        raise _misaligned(store, path, pairing.file, count + n, wanted, one)
            for n, (_, row) in enumerate(batch, count):
                if row.attributes and (beyond := _beyond(row.attributes, lengths[n] + _SLACK)):
                    raise _outside(store, path, pairing.file, n, lengths[n], *beyond)
                if row.source and sources[n] and row.source != sources[n]:
                    raise _of_other_source(store, path, pairing.file, n, row.source, sources[n])
            count += len(batch)
        if count != len(wanted):
            raise _misaligned(store, path, pairing.file, count, wanted, None)


def _documents(store: Store, pairing: Pairing) -> tuple[list[bytes], list[int], list[Any]]:
    """Return the ids of the documents, the characters of their texts, and their sources."""
    file = pairing.file
    ids: list[bytes] = []
    lengths: list[int] = []
    sources: list[Any] = []
    for lines in read_blocks(file, fields=("id", "text", "source"), packed=pairing.input):
        rows = parse_texts(lines, store.locate(file.path), len(ids) + 1)
        sources += [_row(row).source for row in rows_of(lines)]
        ids += ids_of(rows, store.locate(file.path), len(ids) + 1)
        lengths += [len(row.text) for row in rows]
    return ids, lengths, sources


def _ids(store: Store, path: str) -> Iterator[bytes]:
    line = 1
    for lines in read_lines(store, path, json=True):
        rows = rows_of(lines)
        yield from parse_ids(rows, store.locate(path), line)
        line += len(rows)


class _Row(msgspec.Struct, gc=False):
    attributes: Any = None
    source: Any = None


_row = msgspec.json.Decoder(_Row).decode


def _rows(store: Store, path: str) -> Iterator[tuple[bytes, _Row]]:
    """Yield the id of each row, and what else is compared."""
    line = 1
    for lines in read_lines(store, path, json=True):
        rows = rows_of(lines)
        for one, row in zip(parse_ids(rows, store.locate(path), line), rows, strict=True):
            try:
                yield one, _row(row)
            except REFUSED:
                yield one, _Row()  # comes up when it is merged
        line += len(rows)


def _beyond(attributes: Any, length: int) -> tuple[str, Any] | None:
    """Return a span that ends behind a text of this length, and the name of its attribute.

    Dolma marks duplicate documents by a span from 0 with the score 1 whose end counts the bytes of whatever documents
    were compared by: such spans say nothing.
    """
    for name, spans in attributes.items() if type(attributes) is dict else ():
        for span in spans if type(spans) is list else ():
            if type(span) is not list or len(span) != 3 or type(span[0]) is not int or type(span[1]) is not int:
                continue  # no span: comes up where it is used
            marks_all = span[0] == 0 and type(span[2]) is int and span[2] == 1
            if 0 <= span[0] < span[1] > length and not marks_all:
                return name, span
    return None


def _of_other_source(store: Store, path: str, file: DocumentFile, row: int, found: Any, wanted: Any) -> DataError:
    return DataError(
        f"the row belongs to the source {found!r}, but the document in {file.name} is of {wanted!r}",
        file=store.locate(path),
        record=f"line {row + 1}",
        kind="misaligned-attributes",
        fix="Give the attributes of these documents; an id means one document within its source only.",
    )


def _outside(store: Store, path: str, file: DocumentFile, row: int, length: int, name: str, span: Any) -> DataError:
    return DataError(
        f"the attributes belong to another text: {name!r} has the span {span}, and the text in {file.name} has"
        f" {length} characters",
        file=store.locate(path),
        record=f"line {row + 1}",
        kind="stale-attributes",
        fix="Make the attributes again; to use them all the same, add --allow-stale (in a configuration"
        " 'allow_stale: true').",
    )


def _missing(store: Store, path: str, file: DocumentFile, name: str) -> DataError:
    return DataError(
        f"there are no attributes {name!r} for {file.name}",
        file=store.locate(path),
        kind="missing-attributes",
        fix=f"Make them, leave {name!r} out of 'attributes', or set 'allow_missing: true'.",
    )


def _misaligned(
    store: Store, path: str, file: DocumentFile, row: int, wanted: list[bytes], found: bytes | None
) -> DataError:
    if found is None:
        what = f"the attributes have {row} rows, but {file.name} has {len(wanted)} documents"
    elif row >= len(wanted):
        what = f"there are more rows of attributes than documents in {file.name} ({len(wanted)})"
    else:
        of = f"belongs to the id {found.decode()}" if found else "has no id"
        what = f"the row {of}, but the document in {file.name} is {wanted[row].decode() or 'without one'}"
    return DataError(
        what,
        file=store.locate(path),
        record=f"line {row + 1}",
        kind="misaligned-attributes",
        fix="Make the attributes again: rows of documents and attributes have to be the same, in the same order.",
    )
