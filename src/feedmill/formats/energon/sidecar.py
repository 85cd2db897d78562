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

The split file of a prepared folder: which shards each split has, and which shards and samples none has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.energon.database import META
from feedmill.formats.tar.names import expand
from feedmill.jobs.threads import ordered_map, runs_of
from feedmill.storage import Store
from feedmill.structs import decode_as

PATH, UUID = ".nv-meta/feedmill.shards.json", ".nv-meta/index.uuid"
VERSION = 1


class ShardRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One shard when it was indexed: size in bytes, store version, number of samples, and hashes of the content.

    `write` adds `word`, `middle` and `blocks` where they are missing.
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
        content = decode_as(store.read(PATH), _File)
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

    from feedmill.formats.content import content_hashes

    def complete(shard: str) -> ShardRecord:
        record = records[shard]
        word, middle, blocks = content_hashes(store, shard, record.size)
        return msgspec.structs.replace(record, word=record.word or word, middle=middle, blocks=blocks)

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


@dataclass(slots=True)
class Splits:
    """The content of a split file, patterns expanded.

    Attributes:
        parts: split name -> shard paths in order.
        shards_out: shards excluded from every split.
        samples_out: (shard, key) of excluded samples.
    """

    parts: dict[str, list[str]] = field(default_factory=dict)
    shards_out: set[str] = field(default_factory=set)
    samples_out: list[tuple[str, str]] = field(default_factory=list)

    def shards(self, split: str) -> list[str]:
        """Return the shards of one split, without excluded ones."""
        return [shard for shard in self.parts[split] if shard not in self.shards_out]


def meta_file(store: Store, name: str) -> str:
    """Return the path of a file in ``.nv-meta``. Raises `NotFound`, which names the existing files."""
    path = f"{META}/{name}"
    if not store.exists(path):
        have = sorted(e.path.removeprefix(f"{META}/") for e in store.files(META, suffixes=(".yaml", ".yml", ".json")))
        raise NotFound(
            "there is no such file",
            file=store.locate(path),
            kind="not-found",
            fix=f"The folder has: {', '.join(h for h in have if not h.startswith(('.', 'feedmill.'))) or 'none'}.",
        )
    return path


_PART = re.compile(rb"  ([A-Za-z]\w*):(?: \[\]\n|\n((?:  - (?:\w[\w./{}-]*\.tar|'[\w./{}-]*\.tar')\n)+))")
_WRITTEN = re.compile(rb"split_parts:\n((?:%s)+)exclude: \[\]\n" % _PART.pattern)


def _as_written(data: bytes) -> dict[str, Any] | None:
    """Return the content of a split file as `prepare` writes it, without the package for YAML; None for any other."""
    found = _WRITTEN.fullmatch(data)
    if found is None:
        return None
    listed = _PART.findall(found[1])
    parts = {name.decode(): [line[4:].strip(b"'").decode() for line in shards.splitlines()] for name, shards in listed}
    return {"split_parts": parts} if len(parts) == len(listed) else None


def read_splits(store: Store, name: str | None = None) -> Splits | None:
    """Read the split file `name` (default ``split.yaml``, else ``split.json``); None if there is none."""
    paths = [f"{META}/split.yaml", f"{META}/split.json"] if name is None else [meta_file(store, name)]
    for path in paths:
        try:
            data = store.read_small(path)
            break
        except NotFound:
            if name is not None:
                raise
    else:
        return None
    where = store.locate(path)
    content: Any = _as_written(data)
    if content is None:
        from feedmill.formats import yamls

        content = yamls.read_config(data, where, last_counts=True).value  # as Energon, whose users append
    if not isinstance(content, dict) or not isinstance(content.get("split_parts"), dict):
        raise ConfigError("'split_parts' is missing", file=where, fix="Write a split file with 'feedmill prepare'.")
    unknown = set(content) - {"split_parts", "exclude"}
    if unknown:
        raise ConfigError(f"unknown entry {sorted(unknown)[0]!r}: expected split_parts and exclude", file=where)
    out = Splits()
    for split, patterns in content["split_parts"].items():
        out.parts[str(split)] = [shard for pattern in _strings(patterns, where) for shard in expand(pattern)]
    for entry in (e for pattern in _strings(content.get("exclude"), where) for e in expand(pattern)):
        shard, marker, key = entry.partition(".tar/")
        if marker:
            out.samples_out.append((f"{shard}.tar", key))
        else:
            out.shards_out.add(entry)
    return out


def _strings(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"expected a list of patterns, found {value!r}", file=where)
    return [str(item) for item in value]
