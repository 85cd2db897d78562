"""Manifest of an attribute set: its inputs, options and files.

It is in the place of `feedmill.documents.file`: that of ``x/attributes/<name>`` is
``x/.feedmill/mix-attributes/<name>/manifest.json``::

    {"version": 1, "feedmill": "0.1.0", "verb": "dedupe", "options": {...},
     "files": {"web/0.jsonl.gz": {"rows": 10, "ids": "<xxh3-128 of the ids>",
                                  "size": 123, "version": "...", "xxh3": "<of the stored bytes>",
                                  "documents": {"path": "documents/web/0.jsonl.gz",
                                                "size": 456, "version": "...", "xxh3": "<of the stored bytes>"}}}}

Where the spans of a file depend on the other files of the run, as marks of duplicates do, its entry has a `run`, and
`runs` of the manifest has the documents of that run, also those in other datasets::

    "runs": {"<run>": {"alone": true,
                       "documents": [{"path": "documents/web/0.jsonl.gz", "size": 456, "version": "...", "xxh3": "..."},
                                     {"path": "../other/documents/1.jsonl.gz", ...}]}}

A run that is `alone` has compared its documents with no others.

`ids` is a digest of the ids as compact JSON, each followed by a newline. Two files with the same rows in the same order
have the same digest. An entry is ignored if its documents have changed since it was written.

Manifest entries of deduplication runs. A repeated run that finds its files recorded does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

import orjson
import xxhash

from feedmill._version import __version__
from feedmill.curation.records import Records
from feedmill.documents.file import DocumentFile, RecordFolder, by_folder, relative
from feedmill.errors import DataError
from feedmill.formats.documents import ATTRIBUTES
from feedmill.storage import LocalStore, Store, open_store

VERSION = 1
MANIFEST = "manifest"


def manifests(store: Store, name: str) -> Records:
    """Return what knows the place of the manifest of an attribute set of the dataset in `store`."""
    return Records(store.locate(f"{ATTRIBUTES}/{name}"))


def manifest_version(store: Store, name: str) -> str | None:
    """Return the store's version of the manifest, or None if there is none."""
    place = manifests(store, name).where(MANIFEST)
    return None if place is None else place.store.stat(place.path(MANIFEST)).version


def set_store(store: Store, name: str) -> Store:
    """Return the store of an attribute set of the dataset in `store`."""
    folder = f"{ATTRIBUTES}/{name}"
    return store.below(folder) if isinstance(store, LocalStore) else open_store(store.locate(folder))


def read_manifest(store: Store, name: str) -> dict[str, Any] | None:
    """Return the manifest, or None if it does not exist or has an unsupported version.

    Raises:
        DataError: The file is not a manifest.
    """
    place = manifests(store, name).where(MANIFEST)
    if place is None:
        return None
    try:
        content = orjson.loads(place.store.read(place.path(MANIFEST)))
    except orjson.JSONDecodeError as error:
        raise _damaged(place, str(error)) from None
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict):
        raise _damaged(place, "it has no 'files'")
    return content if content.get("version") == VERSION else None


def write_manifest(store: Store, name: str, manifest: dict[str, Any]) -> None:
    """Write the manifest. Its keys are sorted, so that equal runs write equal bytes."""
    whole = {"version": VERSION, "feedmill": __version__, **manifest}
    data = orjson.dumps(whole, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    manifests(store, name).write(MANIFEST, data, durable=True)


def digest_ids(ids: Iterable[bytes], digest: xxhash.xxh3_128 | None = None) -> xxhash.xxh3_128:
    """Add ids (compact JSON) to a digest, by default a new one, and return it."""
    digest = xxhash.xxh3_128() if digest is None else digest
    digest.update(b"".join([part for one in ids for part in (one, b"\n")]))
    return digest


def fingerprint(*values: Any) -> str:
    """Return a digest of values that can be written as JSON."""
    return xxhash.xxh3_128_hexdigest(orjson.dumps(values, option=orjson.OPT_SORT_KEYS))


def _damaged(place: RecordFolder, why: str) -> DataError:
    return DataError(
        f"the manifest is corrupt: {why}",
        file=place.store.locate(place.path(MANIFEST)),
        kind="bad-index",
        fix="Delete the file and run again.",
    )


def recorded(
    files: Sequence[DocumentFile], name: str, documents_folder: str, **facts: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]] | None:
    """Return the manifests of an attribute set, and the entries of these files.

    Args:
        facts: Fields that every manifest must have with these values.

    Returns:
        None if a manifest or an entry is missing, a manifest differs from `facts`, or an attribute file is missing or
        has another size than recorded.

    Raises:
        DataError: A manifest is corrupt.
    """
    manifests, entries = [], []
    for root, members in by_folder(files).items():
        store = open_store(root or ".")
        manifest = read_manifest(store, name)
        if manifest is None or any(manifest.get(key) != value for key, value in facts.items()):
            return None
        for file in members:
            path = file.attributes(name, documents_folder)
            entry = manifest["files"].get(_key(path))
            if not _is_entry(entry) or not store.exists(path) or store.stat(path).size != entry["size"]:
                return None
            entries.append(entry)
        manifests.append(manifest)
    return manifests, entries


def restore(report: Any, files: Sequence[DocumentFile], documents_folder: str, run: str) -> bool:
    """Fill a report from the manifests of its attribute set, if these record this run and its outputs are unchanged.

    Args:
        report: A dataclass with ``name``, that of the set, and ``skipped``, which is set.

    Returns:
        Whether they do.
    """
    found = recorded(files, report.name, documents_folder, run=run)
    if found is None or not all(isinstance(manifest.get("report"), dict) for manifest in found[0]):
        return False
    saved = found[0][-1]["report"]
    for one in fields(report):
        if one.name in saved:
            setattr(report, one.name, saved[one.name])
    report.skipped = True
    return True


class Marked(Protocol):
    """Result of one file: `xxh3` is the hash of its attributes as stored, `read` that of its documents."""

    @property
    def rows(self) -> int:
        """Number of rows of the file."""

    @property
    def ids(self) -> str:
        """Hash of the ids of all rows, in order."""

    @property
    def size(self) -> int:
        """Bytes of the attributes as stored."""

    @property
    def xxh3(self) -> str:
        """Hash of the attributes as stored."""

    @property
    def read(self) -> str:
        """Hash of the documents that were read."""


def entry(done: Marked, flagged: int, units: int) -> dict[str, Any]:
    """Return the manifest entry of a file."""
    counts = {"rows": done.rows, "ids": done.ids, "size": done.size, "flagged": flagged, "units": units}
    return {**counts, "xxh3": done.xxh3, "read": done.read}


def record(
    files: Sequence[DocumentFile],
    entries: Sequence[Mapping[str, Any]],
    name: str,
    documents_folder: str,
    manifest: Mapping[str, Any],
    *,
    together: bool = False,
    alone: bool = True,
) -> None:
    """Write the manifests. Entries of other files, from earlier runs into the same attribute set, are kept.

    Args:
        entries: Entry of each file; see `entry`.
        manifest: Fields of the manifest other than ``files`` and ``runs``.
        together: Whether the spans of a file depend on the other files, which must then stay as they are.
        alone: Whether they depend on no other documents.
    """
    by_file = dict(zip(files, entries, strict=True))
    states = {
        file: {"path": file.path, "size": file.size, "version": file.version, "xxh3": one.get("read", "")}
        for file, one in by_file.items()
    }
    run = {"run": manifest["run"]} if together else {}
    for root, members in by_folder(files).items():
        store = open_store(root or ".")
        before = read_manifest(store, name)
        kept = dict(before["files"]) if before else {}
        for file in members:
            path = file.attributes(name, documents_folder)
            found = {key: value for key, value in by_file[file].items() if key != "read"} | run
            kept[_key(path)] = {**found, "version": store.stat(path).version, "documents": states[file]}
        runs = dict(before.get("runs", {})) if before else {}
        if together:
            own = store.locate("")
            documents = [
                state if file.folder == root else {**state, "path": relative(file.place, own)}
                for file, state in states.items()
            ]
            runs[manifest["run"]] = {"alone": alone, "documents": documents}
        used = {one.get("run") for one in kept.values() if isinstance(one, dict)}
        runs = {name: states_of for name, states_of in runs.items() if name in used}
        write_manifest(store, name, {**manifest, "files": kept, **({"runs": runs} if runs else {})})


def _is_entry(entry: Any) -> bool:
    counts = ("rows", "size", "flagged", "units")
    return isinstance(entry, dict) and all(isinstance(entry.get(name), int) for name in counts)


def _key(path: str) -> str:
    return path.split("/", 2)[2]
