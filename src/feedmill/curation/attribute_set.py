"""Manifest of an attribute set: its inputs, options and files.

It is stored at ``attributes/<name>/.feedmill/manifest.json``::

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

from feedmill import __version__
from feedmill.errors import ConfigError, DataError
from feedmill.storage import LocalStore, Store, is_local_file, open_store

VERSION = 1
FOLDER = ".feedmill"


def manifest_path(name: str) -> str:
    """Return the path of the manifest of an attribute set, below the root of the dataset."""
    return f"attributes/{name}/{FOLDER}/manifest.json"


def set_store(store: Store, name: str) -> Store:
    """Return the store of an attribute set of the dataset in `store`."""
    folder = f"attributes/{name}"
    return store.below(folder) if isinstance(store, LocalStore) else open_store(store.locate(folder))


def refuse_blocked(store: Store, folder: str = "") -> None:
    """Raise `ConfigError` if a file has the name of the records folder of an attribute set.

    Dolma's ``dedupe`` can create such a file. Its patterns match hidden names, so it writes an empty attribute file for
    a folder ``.feedmill`` among the documents, which earlier versions wrote.

    Args:
        folder: Folder of the attribute set in the store.
    """
    path = f"{folder}/{FOLDER}" if folder else FOLDER
    if is_local_file(store.locate(path)):
        raise ConfigError(
            "this is a file: the records of the attribute set need a folder of this name. Dolma creates such a file"
            f" if a pattern matches a folder {FOLDER!r} among the documents",
            file=store.locate(path),
            kind="blocked-records",
            fix="Delete the file.",
        )


def read_manifest(store: Store, name: str) -> dict[str, Any] | None:
    """Return the manifest, or None if it does not exist or has an unsupported version.

    Raises:
        DataError: The file is not a manifest.
    """
    path = manifest_path(name)
    if not store.exists(path):
        return None
    try:
        found = orjson.loads(store.read(path))
    except orjson.JSONDecodeError as error:
        raise _damaged(store, path, str(error)) from None
    if not isinstance(found, dict) or not isinstance(found.get("files"), dict):
        raise _damaged(store, path, "it has no 'files'")
    return found if found.get("version") == VERSION else None


def write_manifest(store: Store, name: str, manifest: dict[str, Any]) -> None:
    """Write the manifest. Its keys are sorted, so that equal runs write equal bytes."""
    whole = {"version": VERSION, "feedmill": __version__, **manifest}
    store.write_bytes(manifest_path(name), orjson.dumps(whole, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))


def digest_ids(ids: Iterable[bytes], digest: xxhash.xxh3_128 | None = None) -> xxhash.xxh3_128:
    """Add ids (compact JSON) to a digest, by default a new one, and return it."""
    digest = xxhash.xxh3_128() if digest is None else digest
    digest.update(b"".join([part for one in ids for part in (one, b"\n")]))
    return digest


def fingerprint(*values: Any) -> str:
    """Return a digest of values that can be written as JSON."""
    return xxhash.xxh3_128_hexdigest(orjson.dumps(values, option=orjson.OPT_SORT_KEYS))


def _damaged(store: Store, path: str, why: str) -> DataError:
    return DataError(
        f"the manifest is corrupt: {why}",
        file=store.locate(path),
        kind="bad-manifest",
        fix="Delete the file and run again.",
    )
