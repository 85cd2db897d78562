"""Whether attributes line up with their documents: the same ids in the same rows.

Where the manifest of an attribute set says that a file was made from these very documents, that is enough. Otherwise
the ids of both are read and compared, before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from feedmill.curation import records
from feedmill.curation.attribute_set import manifest_path, read_manifest
from feedmill.curation.patterns import DocumentFile
from feedmill.curation.rows import parse_ids
from feedmill.errors import DataError, FeedmillError
from feedmill.formats.documents import ATTRIBUTES, read_rows
from feedmill.storage import Store, open_store

_BATCH = 4096


@dataclass(frozen=True, slots=True)
class Pairing:
    """A file of documents and the attribute sets that are to be merged into it."""

    file: DocumentFile
    attributes: tuple[str, ...]
    input: str | None = None
    allow_missing: bool = False


def vouched(pairing: Pairing) -> bool:
    """Whether records say that all attributes were made from these very documents: nothing has to be read then."""
    store, file = pairing.file.store(), pairing.file
    try:
        paths = [(name, file.attributes(name)) for name in pairing.attributes]
        return all(store.exists(path) and _vouched(store, name, path, file) for name, path in paths)
    except FeedmillError:
        return False  # comes up again


def verify(pairing: Pairing) -> FeedmillError | None:
    """What is wrong, or None."""
    store = pairing.file.store()
    doubtful = []
    try:
        for name in pairing.attributes:
            path = pairing.file.attributes(name)
            if not store.exists(path):
                if not pairing.allow_missing:
                    return _missing(store, path, pairing.file, name)
            elif not _vouched(store, name, path, pairing.file):
                doubtful.append(path)
        if doubtful:
            _compare(store, pairing, doubtful)
    except FeedmillError as error:
        return error
    return None


def _vouched(store: Store, name: str, path: str, file: DocumentFile) -> bool:
    """Whether a record says that these attributes were made from these very documents, row by row."""
    below, now = path.split("/", 2)[2], store.stat(path)
    record = records.read_record(open_store(store.locate(f"{ATTRIBUTES}/{name}")), below)
    if record is not None and (record.output.size, record.output.version) == (now.size, now.version):
        return (record.input.size, record.input.version) == (file.size, file.version)
    entry = _entries(store, name).get(below)
    if not isinstance(entry, dict) or (entry.get("size"), entry.get("version")) != (now.size, now.version):
        return False
    made_from = entry.get("documents", {})
    return (made_from.get("path"), made_from.get("size"), made_from.get("version")) == (
        file.path,
        file.size,
        file.version,
    )


def _entries(store: Store, name: str) -> dict[str, Any]:
    """What the manifest of a set says of its files, read once."""
    path = manifest_path(name)
    return _manifest(store.url, name, store.stat(path).version) if store.exists(path) else {}


@lru_cache(maxsize=16)
def _manifest(url: str, name: str, version: str) -> dict[str, Any]:  # noqa: ARG001
    manifest = read_manifest(open_store(url), name)
    files: dict[str, Any] = manifest["files"] if manifest is not None else {}
    return files


def _compare(store: Store, pairing: Pairing, paths: list[str]) -> None:
    wanted = list(_ids(store, pairing.file.path, pairing.input))
    for path in paths:
        found = _ids(store, path, None)
        count = 0
        while batch := list(islice(found, _BATCH)):
            if batch != wanted[count : count + len(batch)]:
                for n, one in enumerate(batch):
                    if count + n >= len(wanted) or one != wanted[count + n]:
                        raise _misaligned(store, path, pairing.file, count + n, wanted, one)
            count += len(batch)
        if count != len(wanted):
            raise _misaligned(store, path, pairing.file, count, wanted, None)


def _ids(store: Store, path: str, kind: str | None) -> Iterator[bytes]:
    line = 1
    for rows in read_rows(store, path, kind=kind):
        yield from parse_ids(rows, store.locate(path), line)
        line += len(rows)


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
