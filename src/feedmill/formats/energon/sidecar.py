"""Our own index beside Energon's: what each shard held when it was indexed.

``.nv-meta/feedmill.shards.json``::

    {"version": 1, "uuid": "<that of index.uuid>", "shards":
     {"s/0.tar": {"size": 20480, "version": "17f..-5000", "samples": 4, "digest": "<32 hex>", "word": "<32 hex>"}}}

`size` is in bytes, `version` is the store's word for this state of the file (a new scan is due when it changes),
`digest` is the xxh3-128 of the whole shard (absent where hashing was switched off) and `word` that of some blocks of it
(`feedmill.formats.content`). `check` compares the digest with the files, `ShardGuard` the others when a shard is first
read. A file with another uuid than the index is of an older state of it, and left aside. Energon ignores the file; a
dataset without it is scanned again by the next `prepare`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import structs

from feedmill.errors import NotFound
from feedmill.formats.content import content_word
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store

PATH, UUID = ".nv-meta/feedmill.shards.json", ".nv-meta/index.uuid"
VERSION = 1


class ShardRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One shard as it was indexed: bytes, the store's version word, samples, xxh3-128 of the content."""

    size: int
    version: str
    samples: int
    digest: str | None = None
    word: str | None = None


class _File(msgspec.Struct, omit_defaults=True):
    version: int
    shards: dict[str, ShardRecord]
    uuid: str = ""


def read(store: Store, *, older: bool = False) -> dict[str, ShardRecord]:
    """Records by shard path; empty if there is no sidecar, or one that this release does not understand, or (unless
    `older` ones will do, to who looks at sizes and versions) that belongs to an older index."""
    try:
        content = msgspec.json.decode(store.read(PATH), type=_File)
    except NotFound:
        return {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # it only saves work: without it everything is scanned again
    fits = content.version == VERSION and (older or content.uuid in ("", read_uuid(store)))
    return content.shards if fits else {}


def read_uuid(store: Store) -> str:
    """Return names this state of the index; empty if nobody wrote it (releases before 6.0)."""
    try:
        return store.read(UUID).decode("ascii", "replace")
    except NotFound:
        return ""


def with_words(store: Store, records: Mapping[str, ShardRecord]) -> dict[str, ShardRecord]:
    """Records of shards in a store, with the words that are missing."""
    missing = [shard for shard, record in records.items() if record.word is None]
    words = ordered_map(lambda s: content_word(store, s, records[s].size), missing, workers=16, in_flight=64)
    made = {s: structs.replace(records[s], word=word) for s, word in zip(missing, words, strict=True)}
    return {**records, **made}


def write(store: Store, records: Mapping[str, ShardRecord], shards: Store | None = None) -> None:
    """Write the sidecar, atomically; after ``index.uuid`` and the shards, which may be in a store of their own."""
    data = msgspec.json.encode(_File(VERSION, with_words(shards or store, records), read_uuid(store)))
    store.write_bytes(PATH, msgspec.json.format(data, indent=1))
