"""Verify that attributes were computed from the documents they are used with.

Every attribute set that Feedmill writes names its inputs: `tag` in a record for each file
(`feedmill.curation.records`), `dedupe` in a manifest (`feedmill.curation.attribute_set`). Both store
the size, version and hash of the documents and of the attributes. The record is valid as long as the attributes are
unchanged. If the size of the documents is the recorded one but the version is not, they are read and their hash
decides.

The result is unknown for a set without a record, and for one that another program has overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from functools import lru_cache
from posixpath import normpath
from typing import Any, NamedTuple

from feedmill.curation import records
from feedmill.curation.attribute_set import manifest_version, read_manifest
from feedmill.curation.records import FileState
from feedmill.documents.file import LINES, DocumentFile, by_folder, documents_of, kind_of, places
from feedmill.errors import DataError
from feedmill.formats.documents import ATTRIBUTES, DOCUMENTS
from feedmill.storage import Entry, Store, open_store, split_url

_SHOWN = 3
STALE = "stale-attributes"
"""Error kind for attributes that were computed from other documents."""


class Verdict(Enum):
    """Whether attributes were computed from the given documents."""

    SAME = "computed from these documents"
    OTHER = "computed from other documents"
    UNKNOWN = "unknown"


class AttributeState(NamedTuple):
    """Recorded state of an attribute file: the documents that were read and the attributes that were written."""

    documents: FileState
    attributes: FileState


def verdict(store: Store, name: str, path: str, documents: Entry, *, read: bool = True) -> Verdict:
    """Return whether an attribute file was computed from these documents.

    Args:
        store: The dataset.
        name: Name of the attribute set.
        path: Path of the attribute file in the dataset.
        documents: Current state of the document file.
        read: Read files if their hashes must be compared. Otherwise the result is unknown in this case.

    Raises:
        DataError: A manifest is corrupt.
    """
    now = store.stat(path)
    made = next((one for one in _made(store, name, path) if _same(store, now, one.attributes, read)), None)
    if made is None:
        return Verdict.UNKNOWN
    if _same(store, documents, made.documents, read):
        return Verdict.SAME
    return Verdict.OTHER if read else Verdict.UNKNOWN


def _same(store: Store, now: Entry, was: FileState, read: bool) -> bool:
    if now.size != was.size or now.version == was.version:
        return now.size == was.size
    return read and bool(was.xxh3) and records.digest(store, now.path) == was.xxh3


def _made(store: Store, name: str, path: str) -> Iterator[AttributeState]:
    below = path.removeprefix(f"{ATTRIBUTES}/{name}/")
    record = records.read_record(store.locate(f"{ATTRIBUTES}/{name}"), below)
    if record is not None:
        yield AttributeState(record.input, record.output)
    version = manifest_version(store, name)
    entry = None if version is None else _manifest(store.url, name, version)[0].get(below)
    if isinstance(entry, dict) and isinstance(entry.get("documents"), dict):
        yield AttributeState(_state(entry["documents"]), _state(entry))


def _state(entry: dict[str, Any]) -> FileState:
    return FileState(entry.get("size", -1), str(entry.get("version")), str(entry.get("xxh3") or ""))


@lru_cache(maxsize=16)
def _manifest(url: str, name: str, version: str) -> tuple[dict[str, Any], dict[str, Any]]:  # noqa: ARG001
    """Return the entries and the runs of an attribute set's manifest, which is read once per version."""
    manifest = read_manifest(open_store(url), name) or {"files": {}}
    return manifest["files"], manifest.get("runs", {})


def check_others(files: Sequence[DocumentFile], name: str) -> str | None:
    """Check the other documents that marks of duplicates depend on: the copies of a lost document are its last ones.

    Args:
        files: Files of documents, relative to the roots of their datasets, whose attributes are used.
        name: Name of the attribute set.

    Returns:
        A warning if the files were marked by several runs, none of which knew the documents of the others.

    Raises:
        DataError: Documents that were compared with these are gone or have changed since (kind ``stale-attributes``).
    """
    place = places()
    used, looked, lost = {place(file.name) for file in files}, set[tuple[str, str]](), dict[str, None]()
    alone = set[str]()
    for root, members in by_folder(files).items():
        store = open_store(root or ".")
        version = manifest_version(store, name)
        if version is None:
            continue
        entries, runs = _manifest(store.url, name, version)
        beside = f"{ATTRIBUTES}/{name}/"
        of = (entries.get(file.attributes(name).removeprefix(beside)) for file in members)
        for run in dict.fromkeys(entry["run"] for entry in of if isinstance(entry, dict) and entry.get("run") in runs):
            alone |= {run} if runs[run]["alone"] else set()
            for state in runs[run]["documents"]:
                path = _resolved(state["path"], store)
                if (where := place(path)) not in used and (where, state["version"]) not in looked:
                    looked.add((where, state["version"]))
                    folder, below = split_url(path)
                    if not records.unchanged(open_store(folder), below, _state(state)):
                        lost[path] = None
    if lost:
        shown = ", ".join([*lost][:_SHOWN]) + (f" and {len(lost) - _SHOWN:,} more" if len(lost) > _SHOWN else "")
        raise DataError(
            f"the attributes {name!r} mark copies of documents that are gone or have changed since: {shown}",
            file=files[0].store().locate(f"{ATTRIBUTES}/{name}"),
            kind=STALE,
            fix="Compute the attributes again. If the other copies are kept elsewhere, add --allow-stale"
            " (in a configuration 'allow_stale: true').",
        )
    if len(alone) < 2:
        return None
    return (
        f"the documents were marked in {name!r} by {len(alone)} runs, which did not compare them with each other:"
        " copies between them are not marked"
    )


def _resolved(path: str, store: Store) -> str:
    """Return the path or URL of documents that a manifest names relative to its dataset."""
    if path.startswith("/") or "://" in path:
        return path
    scheme, separator, rest = store.url.partition("://")
    return f"{scheme}://{normpath(f'{rest}/{path}')}" if separator else normpath(f"{store.url}/{path}")


def stale(store: Store, path: str, documents: str) -> DataError:
    """Return the error for attributes that were computed from other documents.

    Args:
        path: Path of the attributes in the store.
        documents: Name of the document file, for the message.
    """
    return DataError(
        f"these attributes were computed from another version of {documents}: its size or hash is not the recorded one",
        file=store.locate(path),
        kind=STALE,
        fix="Compute the attributes again. To use them with the changed documents, add --allow-stale"
        " (in a configuration 'allow_stale: true').",
    )


def check_attributes(location: str) -> tuple[str, DocumentFile] | None:
    """Check a file that can be an attribute file against its documents, if they exist.

    Args:
        location: Path or URL of the file.

    Returns:
        The name of the set and the file of documents, for `check_others`; None if no record says what was read.

    Raises:
        DataError: The attributes were computed from other documents (kind ``stale-attributes``).
    """
    folder, file = split_url(location)
    parts = [*folder.split("/"), file]
    if ATTRIBUTES not in parts[:-2]:
        return None
    at = parts.index(ATTRIBUTES)
    store = open_store("/".join(parts[:at]) or ("/" if folder.startswith("/") else "."))
    for name, below in _splits(parts[at + 1 :]):
        documents, path = f"{DOCUMENTS}/{documents_of(below)}", f"{ATTRIBUTES}/{name}/{below}"
        if next(_made(store, name, path), None) is not None:
            if store.exists(documents) and verdict(store, name, path, store.stat(documents)) is Verdict.OTHER:
                raise stale(store, path, store.locate(documents))
            return name, DocumentFile(store.url, documents, kind_of(documents) or LINES, 0, "")
    return None


def _splits(parts: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the possible names of the attribute set, shortest first, each with the path of the file in the set."""
    for cut in range(1, len(parts)):
        yield "/".join(parts[:cut]), "/".join(parts[cut:])
