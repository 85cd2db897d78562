"""Write the small files of Energon's ``.nv-meta``, byte for byte as Energon 7.4 writes them.

Every file is published as a whole. The order of writing keeps each intermediate state a valid index (offset files,
database, uuid, members, info, splits, description): a killed run leaves the old index or the new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash
import yaml

from feedmill.errors import ConfigError
from feedmill.formats.energon import all_offsets, members, sidecar
from feedmill.formats.energon.database import INDEX, META
from feedmill.formats.energon.prepared import INFO, INFO_YAML, UUID, idx_name
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.offsets import Int64s
from feedmill.formats.tar.names import collapse
from feedmill.storage import Store

ENERGON_VERSION = "7.4.1"
"""The release whose layout is written."""
BESIDE = (INFO, INDEX, UUID, members.PATH, all_offsets.PATH, sidecar.PATH, f"{META}/split.yaml", f"{META}/dataset.yaml")
"""Files of a prepared folder other than its shards."""


def write_idx(store: Store, shard: str, starts: Int64s) -> None:
    """Write the shard's ``.tar.idx``. `starts`: int64[n + 1], sample offsets and the end of the last sample."""
    write_idxs(store, [(shard, starts)])


def write_idxs(store: Store, shards: Iterable[tuple[str, Int64s]]) -> None:
    """Do the same for several shards."""
    store.write_together((idx_name(shard), starts.astype("<u8").tobytes()) for shard, starts in shards)


def write_info(store: Store, counts: Mapping[str, int], *, old: bool | None = None) -> None:
    """Write ``.info.json``, and ``.info.yaml`` too if an older release wrote one (`old`)."""
    content = {"energon_version": ENERGON_VERSION, "shard_counts": dict(counts)}
    store.write_bytes(INFO, json.dumps(content, indent=2).encode())
    if store.exists(INFO_YAML) if old is None else old:
        store.write_bytes(INFO_YAML, yaml.dump(content).encode())


def write_uuid(store: Store, records: Mapping[str, ShardRecord]) -> str:
    """Write ``index.uuid`` for shards in this order, and return it.

    It is a hash of their content: the same samples in the same shards have the same uuid. So rewriting an index changes
    nothing, and data derived from an index of other content is recognized as stale.
    """
    words = [f"{shard}\0{record.samples}\0{record.digest or record.version}" for shard, record in records.items()]
    word = str(uuid.UUID(bytes=xxhash.xxh3_128_digest("\n".join(words).encode("utf-8", "surrogateescape")), version=4))
    store.write_bytes(UUID, word.encode())
    return word


def write_splits(
    store: Store, parts: Mapping[str, Sequence[str]], exclude: Sequence[str] = (), name: str = "split.yaml"
) -> None:
    """Write the split file. Runs of numbered shards become brace patterns."""
    content = {"split_parts": {part: collapse(shards) for part, shards in parts.items()}, "exclude": list(exclude)}
    write_yaml(store, name, content)


def check_description_name(store: Store, name: str) -> None:
    """Check the file name of the description.

    Raises:
        ConfigError: the name is empty, leads to another folder, or belongs to another file of the index.
    """
    other = f"{META}/{name}" in (INFO, INFO_YAML, INDEX, UUID, f"{META}/split.yaml")
    if other or ".." in name.split("/") or name.rpartition("/")[2] in ("", "."):
        raise ConfigError(
            f"invalid name of the description: {name!r}",
            file=store.locate(META),
            kind="bad-name",
            fix="Set --dataset-yaml-name to an unused file name, e.g. dataset.yaml.",
        )


def match_modes(store: Store, shards: Sequence[str]) -> None:
    """Give the index the same read permissions as the shards.

    ``.nv-meta`` gets the folder's mode, its files that of the first shard, and offset files that of their shard, plus
    the owner's permissions. Errors are ignored.
    """
    if not store.is_local or not shards:
        return
    root = store.locate("")
    meta = os.path.join(root, META)
    modes = [(meta, os.stat(root).st_mode | 0o700)]
    shard_modes = [os.stat(os.path.join(root, shard)).st_mode | 0o600 for shard in shards]
    modes += [(entry.path, shard_modes[0]) for entry in os.scandir(meta) if entry.is_file()]
    modes += [(os.path.join(root, idx_name(shard)), mode) for shard, mode in zip(shards, shard_modes, strict=True)]
    for path, mode in modes:
        with contextlib.suppress(OSError):
            found = os.lstat(path).st_mode
            if found != mode and not stat.S_ISLNK(found):
                os.chmod(path, mode & 0o7777)


def match_folder(store: Store, name: str) -> None:
    """Do the same for a plain folder: ``.nv-meta`` gets the folder's mode, its file that mode without execution."""
    if not store.is_local:
        return
    root = Path(store.locate(""))
    with contextlib.suppress(OSError):
        mode = root.stat().st_mode
        for path, rights in ((root / META, (mode | 0o700) & 0o7777), (root / name, (mode | 0o600) & 0o666)):
            if not path.is_symlink():
                path.chmod(rights)


def write_yaml(store: Store, name: str, content: Mapping[str, Any]) -> None:
    """Write a description file in ``.nv-meta``, with keys in the given order."""
    store.write_bytes(f"{META}/{name}", yaml.dump(dict(content), sort_keys=False).encode())
