"""Flat files of token ids that other tools train from: nanoGPT, llm.c and its kin, OLMo-core, arrays of numpy.

Layouts; all of them hold one stream of tokens, in which an end-of-text token separates documents::

    raw     x.bin, x.npy   only token ids; nothing in the file says how many bytes a token has (nanoGPT: 2; OLMo-core: 2
                           or 4, despite the name not numpy's ``.npy`` format)
    llm.c   x.bin          256 int32: 20240520, 1, tokens (uint16 follow), or 20240801, 7, tokens (uint32 follow). The
                           end-of-text token comes before each document; in the others, after it
    numpy   x.npy          numpy's own format: one dimension, integers

Without an index the file has windows only. ``feedmill tokens index FILE --eos-id ID`` writes the bounds of documents,
and for a raw file the size of a token, to a sidecar (`bounds`); its version is 256 plus the bytes of a token.

A ``.bin`` with an ``.idx`` beside it is Megatron-LM's, a ``.npy`` with a ``.csv.gz`` Dolma's.

Rejected: a raw file whose size of a token is unknown, sizes that do not match the header, other headers of llm.c
(evaluation files), arrays of other types or dimensions.
"""

from __future__ import annotations

import io
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np

from feedmill.errors import ConfigError, DataError
from feedmill.formats.content import content_hash
from feedmill.formats.format import OpenRequest
from feedmill.formats.npz.arrays import npy_header
from feedmill.formats.tokens.base import Int64s, TokenDataset, TokenShard, open_files
from feedmill.formats.tokens.manifest import (
    BoundsHeader,
    bounds_path,
    check_bounds,
    covering_bounds,
    file_digest,
    read_header,
    table_hash,
)
from feedmill.formats.tokens.number_files import load_numbers
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again

FORMAT = "flat"
BIN, NPY = ".bin", ".npy"
SIZES = (1, 2, 4, 8)
"""Bytes per token of raw files, which are unsigned."""

_LLM_C = {20240520: (1, "<u2"), 20240801: (7, "<u4")}
"""Magic number -> version and type of a token."""
_LLM_C_HEADER = 1024
_LLM_C_EVALUATION = 20240522
_NUMPY = b"\x93NUMPY"
_LONGEST_HEADER = 1 << 16
_SIDECAR = 256
_PIECE = 1 << 24


class FlatLayout(NamedTuple):
    """Location of the tokens in a file.

    Attributes:
        kind: ``raw``, ``llm.c`` or ``numpy``.
        dtype: type of a token.
        offset, tokens: offset of the first token in bytes, and number of tokens.
    """

    kind: str
    dtype: np.dtype[Any]
    offset: int
    tokens: int


def is_flat(store: Store, name: str) -> bool:
    """Return whether a ``.bin`` or ``.npy`` exists and has no index of Megatron-LM or Dolma beside it."""
    stem = name[:-4]
    return store.exists(name) and not store.exists(stem + (".idx" if name.endswith(BIN) else ".csv.gz"))


def mark(store: Store) -> str | None:
    """Return "" if a folder has ``.npy`` files without an index, or a ``.bin`` with a header of llm.c, else None."""
    for entry in store.files(suffixes=(BIN, NPY)):
        if not is_flat(store, entry.path):
            return None
        if entry.path.endswith(NPY) or _magic(store, entry.path, entry.size) in _LLM_C:
            return ""
        return "" if store.exists(bounds_path(entry.path)) else None
    return None


def open_found(wanted: OpenRequest) -> TokenDataset:
    """Open a flat file, a list of them, or a folder in the order of their paths.

    Raises:
        NotFound: there is no such file.
        ConfigError: the size of a token is unknown, or contradicts the header.
        DataError: a file is truncated or has an unsupported header.
    """
    if not wanted.name and not wanted.names:
        wanted = wanted._replace(names=tuple(entry.path for entry in wanted.store.files(suffixes=(BIN, NPY))))
    return open_files(wanted, FORMAT, _open)


def _open(wanted: OpenRequest) -> TokenDataset:
    store, path = wanted.store, wanted.name
    size = store.stat(path).size
    side = read_header(store, path, size, file_digest(store, path, size))
    known = side.version - _SIDECAR if side is not None else None
    layout = layout_of(store, path, wanted.token_size or known)
    if known not in (None, layout.dtype.itemsize):
        raise ConfigError(
            f"token_size={wanted.token_size} contradicts its index, which has {known} bytes per token",
            file=store.locate(path),
            kind="bad-token-size",
            fix="Omit token_size, or write the index again with 'feedmill tokens index --overwrite'.",
        )
    shard = TokenShard(
        path,
        layout.dtype,
        layout.offset,
        layout.tokens,
        None if side is None else side.documents,
        partial(_no_index, store, path)
        if side is None
        else partial(covering_bounds, store, path, side, tokens=layout.tokens, fix=_AGAIN),
        facts=(partial(content_hash, store, path, size),),
        verify=None if side is None else partial(check_bounds, store, path, side),
    )
    return TokenDataset(store, [shard], name=wanted.url, format=FORMAT, about={"layout": layout.kind})


def layout_of(store: Store, path: str, token_size: int | None) -> FlatLayout:
    """Return the layout of a file.

    Args:
        token_size: bytes per token, for files without a header.

    Raises:
        ConfigError: it is unknown, or contradicts the header.
        DataError: the file is truncated, or its header is unsupported.
    """
    size = store.stat(path).size
    magic = _magic(store, path, size)
    if store.read(path, 0, min(size, len(_NUMPY))) == _NUMPY:
        layout = _numpy_layout(store, path, size)
    elif magic in _LLM_C:
        layout = _llm_c_layout(store, path, size, magic)
    elif magic == _LLM_C_EVALUATION:
        raise _damaged(store, path, "it is an evaluation file of llm.c, which holds examples and not a text")
    else:
        if token_size not in SIZES:
            found = "unknown" if token_size is None else f"{token_size} bytes"
            raise ConfigError(
                f"the file has no header, and the size of a token is {found}",
                file=store.locate(path),
                kind="bad-token-size",
                fix=f"Pass token_size=2 (nanoGPT) or another of {', '.join(map(str, SIZES))}, or once run 'feedmill"
                f" tokens index FILE --token-size 2 --eos-id ID'. If it is of another tool, restore its index:"
                f" {'.idx (Megatron-LM)' if path.endswith(BIN) else '.csv.gz (Dolma)'}.",
            )
        if size % token_size:
            raise _truncated(store, path, f"{size} bytes are not a whole number of tokens of {token_size} bytes")
        return FlatLayout("raw", np.dtype(f"<u{token_size}"), 0, size // token_size)
    if token_size not in (None, layout.dtype.itemsize):
        raise ConfigError(
            f"token_size={token_size} contradicts the header: {layout.dtype.itemsize} bytes per token",
            file=store.locate(path),
            kind="bad-token-size",
            fix="Omit token_size.",
        )
    return layout


def flat_bounds(
    store: Store, path: str, eos: int, *, token_size: int | None = None, vocab_size: int | None = None
) -> tuple[FlatLayout, Int64s]:
    """Return the layout of a flat file and the bounds of its documents, int64[documents + 1].

    Args and errors: see `write_flat_bounds`.
    """
    layout = layout_of(store, path, token_size)
    tokens = load_numbers(store, path, layout.dtype.str, layout.offset, layout.tokens)
    found = [np.zeros(1, np.int64)]
    for low in range(0, layout.tokens, _PIECE):
        part = tokens[low : low + _PIECE]
        if vocab_size is not None and len(part) and not 0 <= int(part.min()) <= int(part.max()) < vocab_size:
            at = int(np.flatnonzero((part < 0) | (part >= vocab_size))[0])
            raise DataError(
                f"the id {int(part[at])} of token {low + at:,} is not in a vocabulary of {vocab_size:,}",
                file=store.locate(path),
                kind="token-too-large",
                fix="Check the size of a token, and that this is the tokenizer of the file.",
            )
        found.append(np.flatnonzero(part == eos) + (low + (layout.kind != "llm.c")))
    if sum(map(len, found)) == 1 and layout.tokens:
        raise ConfigError(
            f"the end-of-text token {eos} does not occur among {layout.tokens:,} tokens",
            file=store.locate(path),
            kind="unknown-token",
            fix="Check --eos-id (50256 for GPT-2) and --token-size.",
        )
    return layout, np.unique(np.concatenate([*found, np.array([layout.tokens])]))


def write_flat_bounds(
    store: Store, path: str, eos: int, *, token_size: int | None = None, vocab_size: int | None = None
) -> int:
    """Write the bounds of documents to a sidecar. Return their number.

    Args:
        eos: id of the end-of-text token. In files of llm.c a document begins with it, in others it ends with it.
        token_size: bytes per token, for files without a header.
        vocab_size: check that all ids are below it.

    Raises:
        ConfigError, DataError: as `layout_of`; an id is not below `vocab_size`, or `eos` does not occur.
    """
    layout, bounds = flat_bounds(store, path, eos, token_size=token_size, vocab_size=vocab_size)
    size = store.stat(path).size
    header = BoundsHeader(
        _SIDECAR + layout.dtype.itemsize,
        len(bounds) - 1,
        size,
        file_digest(store, path, size),
        0,
        table_hash(bounds),
    )
    with store.write(bounds_path(path)) as out:
        out.write(header.pack())
        out.write(bounds.astype("<i8").data)
    return len(bounds) - 1


def _magic(store: Store, path: str, size: int) -> int:
    return int.from_bytes(store.read(path, 0, 4), "little") if size >= 4 else 0


def _llm_c_layout(store: Store, path: str, size: int, magic: int) -> FlatLayout:
    version, kind = _LLM_C[magic]
    dtype = np.dtype(kind)
    if size < _LLM_C_HEADER:
        raise _truncated(store, path, f"{size} bytes are fewer than its header of {_LLM_C_HEADER}")
    _, found, tokens = np.frombuffer(store.read(path, 0, 12), "<i4").tolist()
    if found != version:
        raise _damaged(store, path, f"its header has the version {found}, expected {version} for {magic}")
    expected = _LLM_C_HEADER + tokens * dtype.itemsize
    if tokens < 0 or size != expected:
        raise _truncated(store, path, f"expected {expected:,} bytes for {tokens:,} tokens, found {size:,}")
    return FlatLayout("llm.c", dtype, _LLM_C_HEADER, tokens)


def _numpy_layout(store: Store, path: str, size: int) -> FlatLayout:
    head = io.BytesIO(store.read(path, 0, min(size, _LONGEST_HEADER)))
    try:
        shape, _, dtype = npy_header(head)
    except ValueError as error:
        raise _damaged(store, path, f"its numpy header cannot be read ({error})") from None
    if dtype.kind not in "iu" or len(shape) != 1:
        raise _damaged(store, path, f"it is an array of {dtype} with the shape {shape}, expected one row of integers")
    expected = head.tell() + shape[0] * dtype.itemsize
    if size != expected:
        raise _truncated(store, path, f"expected {expected:,} bytes for {shape[0]:,} tokens, found {size:,}")
    return FlatLayout("numpy", dtype, head.tell(), shape[0])


_AGAIN = "Run 'feedmill tokens index FILE --eos-id ID --overwrite' to write it again."


def _no_index(store: Store, path: str) -> NoReturn:
    raise ConfigError(
        "the documents of a flat file are unknown",
        file=store.locate(path),
        kind="not-prepared",
        fix="Run 'feedmill tokens index FILE --eos-id ID' once, or read windows.",
    )


def _damaged(store: Store, path: str, what: str) -> DataError:
    return DataError(
        f"the file is unsupported: {what}",
        file=store.locate(path),
        kind="bad-header",
        fix="Check the file, or write it again as integers of one dimension.",
    )


def _truncated(store: Store, path: str, what: str) -> DataError:
    return DataError(
        f"the file is truncated: {what}",
        file=store.locate(path),
        kind="truncated",
        fix=copy_again(instead="check the size of a token"),
    )
