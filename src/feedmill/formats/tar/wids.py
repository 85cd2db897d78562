"""Read and write index files of `wids`: shards of a WebDataset with their counts, for access by number.

Layout (JSON)::

    {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": ..., "base": ...,
     "shardlist": [{"url": "s/0.tar", "md5sum": "...", "nsamples": 14, "filesize": 20480}, ...]}

``datasets`` may replace ``shardlist``: a list of ``{"shardlist": [...], "base": ...}`` or
``{"source_url": "other.json"}``, one level deep; their shards are concatenated. A URL is relative to the folder of the
index or, if its shards do not exist there, to ``base`` relative to that folder. Samples are those of the tars (see
`feedmill.formats.tar.dataset`) in the order of the list; counts and sizes are compared with the tars at opening.

Rejected: ``pipe:`` and similar, absolute paths and ``..`` in shard names, other kinds of index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from feedmill.errors import ConfigError, DataError
from feedmill.formats.format import OpenRequest
from feedmill.formats.objects import read_object
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.tar.index import plain_shards
from feedmill.formats.tar.names import common_top, refuse_commands, refuse_twice
from feedmill.formats.tar.scan import in_file, scan_shard
from feedmill.formats.tar.strays import samples_of
from feedmill.jobs.resources import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store, join_url, open_store, split_url

INDEX = "wids.json"
BESIDE = (INDEX,)
KIND = "wids-shard-index-v1"
_AGAIN = "Write the index again with feedmill.formats.tar.wids.write_wids(...)."


def is_wids(store: Store, name: str) -> bool:
    """Return whether this JSON file is a wids index."""
    return store.exists(name) and b'"wids-shard-index' in store.read(name, 0, min(4096, store.stat(name).size))


def open_wids(store: Store, name: str, url: str) -> TarDataset:
    """Open the shards of an index.

    Raises:
        ConfigError: the index is of another kind, or leads out of its folder.
        NotFound, DataError: a shard is missing, corrupt, or does not match the index.
    """
    index = _read(store, name)
    listed = _listed(store, name, index)
    for shard, _ in listed:
        if not shard.endswith(".tar"):
            raise ConfigError(
                f"the shard {shard!r} is not a .tar",
                file=store.locate(name),
                kind="bad-index",
                fix="Decompress compressed shards, and write the index again.",
            )
    if not listed:
        raise ConfigError("the index lists no shards", file=store.locate(name), kind="bad-index", fix=_AGAIN)
    refuse_twice([shard for shard, _ in listed])
    top, paths = common_top([shard for shard, _ in listed])
    folder = open_store(top)
    dataset = TarDataset(folder, plain_shards(folder, paths), name=url, base=folder.url)
    for number, (path, (_, record)) in enumerate(zip(paths, listed, strict=True)):
        unread = dataset.table.unread.get(number)
        about = f" ({'; '.join(unread.remarks(folder.url))})" if unread else ""
        found = {"nsamples": int(dataset.table.counts[number]), "filesize": folder.stat(path).size}
        for key, value in found.items():
            if record.get(key) not in (None, value):
                raise DataError(
                    f"the index has {record[key]} for {key!r}, but the shard has {value}{about}",
                    file=folder.locate(path),
                    kind="wrong-count",
                    fix=_AGAIN,
                )
    return dataset.opened_as(about={"name": index["name"]}) if index.get("name") else dataset


def _read(store: Store, name: str) -> dict[str, Any]:
    where = store.locate(name)
    index = read_object(store, name, kind="bad-index", fix=_AGAIN)
    if index.get("__kind__") != KIND or index.get("wids_version") != 1:
        raise ConfigError(f"this is not a {KIND} of version 1", file=where, kind="unknown-format", fix=_AGAIN)
    return index


def _listed(store: Store, name: str, index: dict[str, Any], nested: bool = False) -> list[tuple[str, dict[str, Any]]]:
    """Return full path or URL, and record, of each shard."""
    where = store.locate(name)
    out = []
    for part in [index] if "shardlist" in index else index.get("datasets") or []:
        if isinstance(part, dict) and "source_url" in part:
            if nested:
                raise ConfigError("indices can only be nested one level deep", file=where, kind="bad-index", fix=_AGAIN)
            folder, other = split_url(join_url(split_url(where)[0], _inside(str(part["source_url"]), where)))
            out += _listed(open_store(folder), other, _read(open_store(folder), other), nested=True)
            continue
        records = part.get("shardlist") if isinstance(part, dict) else None
        if not isinstance(records, list) or not all(
            isinstance(r, dict) and isinstance(r.get("url"), str) for r in records
        ):
            raise DataError("'shardlist' must list objects with a 'url'", file=where, kind="bad-index", fix=_AGAIN)
        base = _base(split_url(where)[0], part.get("base"), records)
        out += [(join_url(base, _inside(record["url"], where)), record) for record in records]
    return out


def _base(folder: str, base: Any, records: Sequence[dict[str, Any]]) -> str:
    """Return the base of relative shards: the index's folder, or its ``base`` if they do not exist there."""
    if not isinstance(base, str) or not base or not records or open_store(folder).exists(records[0]["url"].lstrip("/")):
        return folder
    return join_url(folder, base)


def _inside(url: str, where: str) -> str:
    refuse_commands(url)
    if url.startswith("/") or (".." in url.split("/") and "://" not in url):
        raise ConfigError(
            f"the name {url!r} leads out of the folder of the index",
            file=where,
            kind="unsafe-name",
            fix="Use paths relative to the index or complete URLs, and set another folder as 'base'.",
        )
    return url


def write_wids(store: Store, shards: Sequence[str], path: str, *, name: str | None = None) -> int:
    """Write the index of tar shards of a folder, and return the number of samples.

    Args:
        shards: paths in the store, in the order of the index.
        path: file name in the top folder of the store, so that its shards are found.

    Raises:
        DataError: a shard is corrupt.
        ConfigError: `path` is in another folder than the store's own.
    """
    if "/" in path:
        raise ConfigError(
            "the index must be in the top folder of its shards", file=store.locate(path), fix="Give a file name."
        )

    def record(shard: str) -> dict[str, Any]:
        scan = scan_shard(store, shard)
        if scan.problem is not None:
            raise in_file(scan.problem, store.locate(shard))
        scan, _ = samples_of(scan)
        with store.local_copy(shard) as local:
            return {"url": shard, "md5sum": _md5(local), "nsamples": len(scan.keys), "filesize": local.stat().st_size}

    workers = available_cores()
    records = list(ordered_map(record, shards, workers=workers, in_flight=2 * workers))
    index: dict[str, Any] = {"__kind__": KIND, "wids_version": 1, "shardlist": records}
    if name is not None:
        index["name"] = name
    store.write_bytes(path, orjson.dumps(index, option=orjson.OPT_INDENT_2))
    return sum(record["nsamples"] for record in records)


def _md5(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def open_found(wanted: OpenRequest) -> TarDataset:
    """See `open_wids`."""
    return open_wids(wanted.store, wanted.name, wanted.url)
