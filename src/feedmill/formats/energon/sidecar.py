"""Feedmill's sidecar of Energon's index: sizes and hashes of the shards when they were indexed.

``.nv-meta/feedmill.shards.json``::

    {"version": 1, "uuid": "<that of index.uuid>", "shards":
     {"s/0.tar": {"size": 20480, "version": "17f..-5000", "samples": 4, "digest": "<32 hex>", "word": "<32 hex>",
                  "middle": "<32 hex>", "blocks": "<80 hex>"}}}

`size` is in bytes. `version` is the store's version of the file; the shard is scanned again when it changes. `digest`
is the xxh3-128 of the whole shard (absent if hashing was disabled), `word` that of ten blocks of it, and `middle` that
of one; `blocks` has 8 digits for each of ten blocks (`feedmill.formats.content`). `check` compares the digest with the
files; `ShardGuard` compares the other fields when a shard is first read. A sidecar whose uuid differs from the index
belongs to an older state and is ignored. Energon ignores the file; a dataset without it is scanned again by the next
`prepare`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import msgspec
from msgspec import structs

from feedmill.errors import NotFound
from feedmill.jobs.threads import ordered_map, runs_of
from feedmill.storage import Store

PATH, UUID = ".nv-meta/feedmill.shards.json", ".nv-meta/index.uuid"
VERSION = 1


class ShardRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One shard when it was indexed: size in bytes, store version, number of samples, and hashes of the content.

    `write` adds `word`, `middle` and `blocks`.
    """

    size: int
    version: str
    samples: int
    digest: str | None = None
    word: str | None = None
    middle: str | None = None
    blocks: str | None = None


class _File(msgspec.Struct, omit_defaults=True):
    version: int
    shards: dict[str, ShardRecord]
    uuid: str = ""


def read(store: Store, *, older: bool = False) -> dict[str, ShardRecord]:
    """Return the records by shard path.

    The result is empty if there is no sidecar, this release cannot read it, or it belongs to an older index. Pass
    `older` to accept the latter, if only sizes and versions are used.
    """
    try:
        content = msgspec.json.decode(store.read(PATH), type=_File)
    except NotFound:
        return {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # without it, everything is scanned again
    fits = content.version == VERSION and (older or content.uuid in ("", read_uuid(store)))
    return content.shards if fits else {}


def read_uuid(store: Store) -> str:
    """Return the uuid of this state of the index; empty if there is none (releases before 6.0)."""
    try:
        return store.read(UUID).decode("ascii", "replace")
    except NotFound:
        return ""


def with_words(store: Store, records: Mapping[str, ShardRecord]) -> dict[str, ShardRecord]:
    """Return the records with missing content hashes (`word`, `middle` and `blocks`) added."""

    from feedmill.formats.content import content_hashes, middle_hash

    def complete(shard: str) -> ShardRecord:
        record = records[shard]
        word, blocks = content_hashes(store, shard, record.size)
        middle = middle_hash(store, shard, record.size)
        return structs.replace(record, word=record.word or word, middle=middle, blocks=blocks)

    missing = [shard for shard, record in records.items() if None in (record.word, record.middle, record.blocks)]
    runs = runs_of(missing, 16)
    made = ordered_map(lambda run: list(map(complete, run)), runs, workers=16, in_flight=64)
    return {**records, **dict(zip(missing, chain.from_iterable(made), strict=True))}


def write(store: Store, records: Mapping[str, ShardRecord], shards: Store | None = None) -> None:
    """Write the sidecar atomically. Call this after writing ``index.uuid`` and the shards.

    Args:
        shards: store of the shards, if it is another one.
    """
    data = msgspec.json.encode(_File(VERSION, with_words(shards or store, records), read_uuid(store)))
    store.write_bytes(PATH, msgspec.json.format(data, indent=1))
