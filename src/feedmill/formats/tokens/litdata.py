"""Token chunks of LitData (`TokensLoader`), as LitGPT trains from them.

Layout: a folder with ``index.json`` and the chunks it lists in order::

    index.json      chunks: [{filename, chunk_size (documents), dim (tokens), chunk_bytes}, ...]
                    config: {data_format: ["no_header_tensor:N"] or ["no_header_numpy:N"], compression, encryption,
                    item_loader, ...}
    chunk-0-0.bin   u32 n, the number of documents; u32 x (n + 1), where each begins in the file and the end; the tokens

N is the position of the type in LitData's list of torch types or of numpy's; of the latter, the integers come first.
A document is one item that the writer yielded.

Rejected: compressed or encrypted chunks, several fields per item, chunks written without `TokensLoader` (their ``dim``
is null), types that are not integers, and sizes that do not match.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, DataError
from feedmill.formats.content import content_hash
from feedmill.formats.format import OpenRequest
from feedmill.formats.tokens.base import Int64s, TokenDataset, TokenShard
from feedmill.formats.tokens.number_files import load_numbers
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again

FORMAT = "litdata"
INDEX = "index.json"
_TYPES: dict[str, dict[int, str]] = {
    "no_header_tensor": dict(
        enumerate(("u1", "i1", "<i2", "<i2", "<i4", "<i4", "<i8", "<i8", "?", "<u2", "<u4", "<u8"), 11)
    ),
    "no_header_numpy": dict(enumerate(("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8"))),
}


def mark(store: Store) -> str | None:
    """Return "" if the folder's ``index.json`` is LitData's index of token chunks, else None."""
    if not store.exists(INDEX):
        return None
    size = store.stat(INDEX).size
    ends = store.read(INDEX, 0, min(size, 4096)) + store.read(INDEX, max(size - 4096, 0), min(size, 4096))
    return "" if b'"chunks"' in ends and b'"item_loader"' in ends and b"no_header_" in ends else None


def open_found(wanted: OpenRequest) -> TokenDataset:
    """Open a folder of chunks.

    Raises:
        NotFound: a chunk is missing.
        ConfigError: the chunks are compressed, encrypted or hold several fields.
        DataError: the index or a chunk is corrupt.
    """
    store = wanted.store
    where = store.locate(INDEX)
    try:
        index = json.loads(store.read_small(INDEX))
        config, chunks = index["config"], list(index["chunks"])
        dtype = _type_of(config, [chunk["dim"] for chunk in chunks], where)
        rows = [(str(chunk["filename"]), int(chunk["chunk_size"]), int(chunk["dim"])) for chunk in chunks]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"this is not an index of token chunks ({type(error).__name__}: {error})",
            file=where,
            kind="bad-index",
            fix=copy_again("the folder", "write it again with LitData's TokensLoader"),
        ) from None
    shards = [_shard(store, *row, dtype) for row in rows]
    return TokenDataset(store, shards, name=wanted.url, format=FORMAT)


def _type_of(config: dict[str, Any], tokens: Sequence[Any], where: str) -> np.dtype[Any]:
    """Return the type of a token. Raises `ConfigError` for chunks that are not supported."""
    data_format = config.get("data_format") or []
    what = None
    for name in ("compression", "encryption", "ipc_compression"):
        if config.get(name):
            what = f"its chunks have {name} ({config[name]})"
    kind, _, code = str(data_format[0] if data_format else "").partition(":")
    if what is None and (len(data_format) != 1 or kind not in _TYPES):
        what = f"its items are {', '.join(map(str, data_format)) or 'unknown'}, expected one tensor or array of tokens"
    if what is None and None in tokens:
        what = "they were written without TokensLoader (their dim is null), so their items are not divided into tokens"
    if what is None and (not code.isdigit() or _TYPES[kind].get(int(code), "?") == "?"):
        what = f"its tokens have the type {code} of LitData's list, which is not an integer"
    if what is not None:
        raise ConfigError(
            f"these chunks are unsupported: {what}",
            file=where,
            kind="unsupported",
            fix="Write them again with TokensLoader(), tensors or arrays of integers, and without compression.",
        )
    return np.dtype(_TYPES[kind][int(code)])


def _shard(store: Store, path: str, documents: int, tokens: int, dtype: np.dtype[Any]) -> TokenShard:
    entry = store.stat(path)
    offset = 4 * (documents + 2)
    expected = offset + tokens * dtype.itemsize
    head = int.from_bytes(store.read(path, 0, 4), "little") if entry.size >= 4 else None
    if documents < 0 or tokens < 0 or entry.size != expected or head != documents:
        raise DataError(
            f"expected {expected:,} bytes and {documents:,} documents by the index, found {entry.size:,} and {head}",
            file=store.locate(path),
            kind="truncated",
            fix="It does not belong to this index, or is incomplete. " + copy_again("the folder"),
        )
    load = partial(_bounds, store, path, documents, tokens, dtype.itemsize)
    return TokenShard(
        path, dtype, offset, tokens, documents, load, facts=(partial(content_hash, store, path, entry.size),)
    )


def _bounds(store: Store, path: str, documents: int, tokens: int, size: int) -> Int64s:
    offsets = load_numbers(store, path, "<u4", 4, documents + 1).astype(np.int64) - 4 * (documents + 2)
    bounds, odd = np.divmod(offsets, size)
    if odd.any() or bounds[0] != 0 or bounds[-1] != tokens or (np.diff(bounds) < 0).any():
        raise DataError(
            "the documents of the chunk do not follow one another, or end elsewhere than its tokens",
            file=store.locate(path),
            kind="bad-index",
            fix="Write the chunk again.",
        )
    return bounds
