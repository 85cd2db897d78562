"""Our own index beside Energon's: what each shard held when it was indexed.

``.nv-meta/feedmill.shards.json``::

    {"version": 1, "shards": {"s/0.tar": {"size": 20480, "version": "17f..-5000", "samples": 4, "digest": "<32 hex>"}}}

`size` is in bytes, `version` is the store's word for this state of the file (a new scan is due when it changes) and
`digest` is the xxh3-128 of the whole shard (absent where hashing was switched off). `check` compares all of them with
the files. Energon ignores the file; a data set without it is simply scanned anew.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from feedmill.storage import Store

PATH = ".nv-meta/feedmill.shards.json"
VERSION = 1


class ShardRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One shard as it was indexed: bytes, the store's version word, samples, xxh3-128 of the content."""

    size: int
    version: str
    samples: int
    digest: str | None = None


class _File(msgspec.Struct):
    version: int
    shards: dict[str, ShardRecord]


def read(store: Store) -> dict[str, ShardRecord]:
    """Records by shard path; empty where there is no sidecar, or one that this release does not understand."""
    if not store.exists(PATH):
        return {}
    try:
        content = msgspec.json.decode(store.read(PATH), type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # it only saves work: without it everything is scanned again
    return content.shards if content.version == VERSION else {}


def write(store: Store, records: Mapping[str, ShardRecord]) -> None:
    """Write the sidecar, atomically."""
    data = msgspec.json.encode(_File(VERSION, dict(records)))
    store.write_bytes(PATH, msgspec.json.format(data, indent=1))
