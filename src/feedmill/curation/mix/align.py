"""Check that attributes belong to their documents before anything is written.

If the attribute set has a record of its inputs, that record decides (see `feedmill.curation.provenance`). Otherwise the
ids of documents and attributes are read and must be the same, row by row, and no span may end beyond its text.
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
from feedmill.structs import decoder_of

_BATCH = 4096
_SLACK = 1
"""Number of characters by which a span may exceed its text: Dolma may mark one too many in a non-ASCII text."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """File of documents and the attribute sets to merge into it.

    Args:
        allow_missing: Attribute files that do not exist are ignored.
        allow_stale: Attributes of other documents are counted instead of an error.
        recorded_only: Check records only; do not compare rows.
        tag: Command that computes what the rules need; empty if that is not known.
    """

    file: DocumentFile
    attributes: tuple[str, ...]
    input: str | None = None
    allow_missing: bool = False
    allow_stale: bool = False
    recorded_only: bool = False
    tag: str = ""

    @property
    def entry(self) -> Entry:
        """Store entry of the documents."""
        return Entry(self.file.path, self.file.size, self.file.version)


class PairingCheck(NamedTuple):
    """Error of a pairing, if any, and the attribute files that were computed from other documents, if allowed."""

    error: FeedmillError | None
    stale: tuple[str, ...] = ()


def vouched(pairing: Pairing) -> bool:
    """Return whether records prove, without reading files, that all attributes were computed from these documents."""
    store, file = pairing.file.store(), pairing.file
    try:
        paths = [(name, file.attributes(name)) for name in pairing.attributes]
        return all(
            store.exists(path) and verdict(store, name, path, pairing.entry, read=False) is Verdict.SAME
            for name, path in paths
        )
    except FeedmillError:
        return False  # `verify` raises the error again


def verify(pairing: Pairing) -> PairingCheck:
    """Check the attributes of one file of documents."""
    store = pairing.file.store()
    compared: dict[str, bool] = {}
    others: list[str] = []
    try:
        for name in pairing.attributes:
            path = pairing.file.attributes(name)
            if not store.exists(path):
                if not pairing.allow_missing and not pairing.recorded_only:
                    return PairingCheck(_missing(store, path, pairing, name))
                continue
            answer = verdict(store, name, path, pairing.entry)
            if answer is Verdict.OTHER:
                if not pairing.allow_stale:
                    return PairingCheck(stale(store, path, pairing.file.name))
                others.append(store.locate(path))
            if answer is not Verdict.SAME:
                compared[path] = answer is Verdict.UNKNOWN and not pairing.allow_stale
        if compared and not pairing.recorded_only:
            _compare(store, pairing, compared)
    except FeedmillError as error:
        return PairingCheck(error)
    return PairingCheck(None, tuple(others))


def _compare(store: Store, pairing: Pairing, paths: dict[str, bool]) -> None:
    """Compare the ids of attribute files with those of the documents, row by row.

    Args:
        paths: Attribute files, each with whether to compare its spans with the texts and its sources too.
    """
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
    """Return the ids of the documents, the lengths of their texts in characters, and their sources."""
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


_row = decoder_of(_Row).decode


def _rows(store: Store, path: str) -> Iterator[tuple[bytes, _Row]]:
    """Yield the id and the other compared fields of each row."""
    line = 1
    for lines in read_lines(store, path, json=True):
        rows = rows_of(lines)
        for one, row in zip(parse_ids(rows, store.locate(path), line), rows, strict=True):
            try:
                yield one, _row(row)
            except REFUSED:
                yield one, _Row()  # reported when the row is merged
        line += len(rows)


def _beyond(attributes: Any, length: int) -> tuple[str, Any] | None:
    """Return a span that ends beyond a text of this length, and the name of its attribute.

    Spans that begin at 0 and have the integer score 1 are ignored. Dolma marks duplicate documents by them, and their
    end is the length in bytes of the value that documents were compared by.
    """
    for name, spans in attributes.items() if type(attributes) is dict else ():
        for span in spans if type(spans) is list else ():
            if type(span) is not list or len(span) != 3 or type(span[0]) is not int or type(span[1]) is not int:
                continue  # not a span: reported where it is used
            marks_all = span[0] == 0 and type(span[2]) is int and span[2] == 1
            if 0 <= span[0] < span[1] > length and not marks_all:
                return name, span
    return None


def _of_other_source(store: Store, path: str, file: DocumentFile, row: int, found: Any, wanted: Any) -> DataError:
    return DataError(
        f"the row belongs to the source {found!r}, but the document in {file.name} to {wanted!r}",
        file=store.locate(path),
        record=f"line {row + 1}",
        kind="misaligned-attributes",
        fix="Use the attributes of these documents. Ids are unique only within a source.",
    )


def _outside(store: Store, path: str, file: DocumentFile, row: int, length: int, name: str, span: Any) -> DataError:
    return DataError(
        f"the attributes belong to another text: {name!r} has the span {span}, but the text in {file.name} has"
        f" {length} characters",
        file=store.locate(path),
        record=f"line {row + 1}",
        kind="stale-attributes",
        fix="Compute the attributes again. To use them anyway, add --allow-stale (in a configuration"
        " 'allow_stale: true').",
    )


def _missing(store: Store, path: str, pairing: Pairing, name: str) -> DataError:
    otherwise = f"Compute them, remove {name!r} from 'attributes', or set 'allow_missing: true'."
    return DataError(
        f"there are no attributes {name!r} for {pairing.file.name}",
        file=store.locate(path),
        kind="no-such-attribute",
        fix=f"Run '{pairing.tag} --name {name}'." if pairing.tag else otherwise,
    )


def _misaligned(
    store: Store, path: str, file: DocumentFile, row: int, wanted: list[bytes], found: bytes | None
) -> DataError:
    if found is None:
        what = f"the attributes have {row} rows, but {file.name} has {len(wanted)} documents"
    elif row >= len(wanted):
        what = f"the attributes have more rows than {file.name} has documents ({len(wanted)})"
    else:
        of = f"belongs to the id {found.decode()}" if found else "has no id"
        what = f"the row {of}, but the document in {file.name} is {wanted[row].decode() or 'without one'}"
    return DataError(
        what,
        file=store.locate(path),
        record=f"line {row + 1}",
        kind="misaligned-attributes",
        fix="Compute the attributes again: documents and attributes must have the same rows in the same order.",
    )
