"""Manifest entries of deduplication runs. A repeated run that finds its files recorded does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

from feedmill.curation.attribute_set import read_manifest, write_manifest
from feedmill.documents.file import DocumentFile, by_folder
from feedmill.storage import open_store


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
) -> None:
    """Write the manifests. Entries of other files, from earlier runs into the same attribute set, are kept.

    Args:
        entries: Entry of each file; see `entry`.
        manifest: Fields of the manifest other than ``files``.
    """
    by_file = dict(zip(files, entries, strict=True))
    for root, members in by_folder(files).items():
        store = open_store(root or ".")
        before = read_manifest(store, name)
        kept = dict(before["files"]) if before else {}
        for file in members:
            path = file.attributes(name, documents_folder)
            found = dict(by_file[file])
            documents = {"path": file.path, "size": file.size, "version": file.version, "xxh3": found.pop("read", "")}
            kept[_key(path)] = {**found, "version": store.stat(path).version, "documents": documents}
        write_manifest(store, name, {**manifest, "files": kept})


def _is_entry(entry: Any) -> bool:
    counts = ("rows", "size", "flagged", "units")
    return isinstance(entry, dict) and all(isinstance(entry.get(name), int) for name in counts)


def _key(path: str) -> str:
    return path.split("/", 2)[2]
