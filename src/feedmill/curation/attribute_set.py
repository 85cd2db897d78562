"""Manifest of an attribute set: its inputs, options and files.

It is in the place of `feedmill.documents.record_folders`: that of ``x/attributes/<name>`` is
``x/.feedmill/mix-attributes/<name>/manifest.json``::

    {"version": 1, "feedmill": "0.1.0", "verb": "dedupe", "options": {...},
     "files": {"web/0.jsonl.gz": {"rows": 10, "ids": "<xxh3-128 of the ids>",
                                  "size": 123, "version": "...", "xxh3": "<of the stored bytes>",
                                  "documents": {"path": "documents/web/0.jsonl.gz",
                                                "size": 456, "version": "...", "xxh3": "<of the stored bytes>"}}}}

`ids` is a digest of the ids as compact JSON, each followed by a newline. Two files with the same rows in the same order
have the same digest. An entry is ignored if its documents have changed since it was written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
import xxhash

from feedmill._version import __version__
from feedmill.documents.record_folders import RecordFolder, Records
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
