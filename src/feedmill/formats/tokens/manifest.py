"""Manifest of token files: their tokenizer, inputs and options.

It is ``<file>.feedmill.json`` next to the file that identifies the dataset (``x.pbin``, ``00000.ds``, ``x.idx``, ...).
No format stores the identity of the tokenizer; with the manifest, mixing data of different tokenizers is an error.

Bounds sidecar ``<x.pbin>.feedmill.bounds``, with which a file with any number of documents opens instantly.

    0   8 bytes  "FMBOUNDS"
    8   u32      2, the version of this layout
    12  u32      version of the file that it belongs to (for .pbin 0 to 3)
    16  u64      documents, n
    24  u64      bytes of the file
    32  16 bytes xxh3-128 of the file's first 12 bytes and its last 64 KiB (of a shorter file: all bytes)
    48  u64      entries of the file's own index that were wrong and are corrected here
    56  u64      xxh3-64 of the rest
    64  u64 x (n + 1)  first token of each document, then the number of tokens

All numbers are little-endian. A sidecar of another layout, or whose size or hash does not match its file, is ignored,
since it only saves time. A sidecar whose own hash differs is corrupt and an error. Its hash is verified by `check`, and
when it is loaded if it has at most `HASHED` bytes.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from feedmill.errors import DataError, NotFound
from feedmill.formats.offsets import Int64s
from feedmill.storage import Store
from feedmill.storage.hashed import hash_of
from feedmill.storage.local import raise_file_limit
from feedmill.storage.reasons import copy_again
from feedmill.structs import decode_as

SUFFIX = ".feedmill.json"
LINEAGE = ".feedmill.lineage"
"""Suffix of the file beside it that says where each document came from; see `feedmill.documents.lineage`."""
VERSION = 1


class TokenizerFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tokenizer: its name as given, a hash of its model file (xxh3-128), its vocabulary size with added tokens.

    ``path`` is the file or folder of that name, which `read_manifest` returns as an absolute path. The manifest stores
    it relative to its own folder, so that both can be moved together. Empty for a name in the Hugging Face cache.
    ``settings`` are the options that load it again, and what they applied; empty if they changed nothing.
    """

    name: str
    hash: str
    vocab_size: int
    backend: str = ""
    versions: dict[str, str] = {}
    path: str = ""
    settings: dict[str, Any] = {}


class Skipped(msgspec.Struct, frozen=True, omit_defaults=True):
    """A skipped document: input file, line (from 1), and reason."""

    file: str
    line: int
    reason: str


class TokenManifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Manifest of token files.

    Attributes:
        format: short name of the format.
        documents, tokens: numbers of documents and tokens, without `skipped` documents.
        tokenizer: the tokenizer; None if unknown (merged files of other tools).
        bos, eos: ids added before and after each document, or None.
        inputs: the input files: dicts with path, bytes, version, documents.
        skipped, skipped_examples: number of skipped documents, and the first hundred of them.
        options: other values that determine the bytes.
        sizes: file name -> bytes, for all files of the dataset.
        hashes: file name -> xxh3-128, in hex. Absent for files that contain a hash.
    """

    format: str
    documents: int
    tokens: int
    version: int = VERSION
    tokenizer: TokenizerFacts | None = None
    bos: int | None = None
    eos: int | None = None
    inputs: list[dict[str, Any]] = []
    skipped: int = 0
    skipped_examples: list[Skipped] = []
    options: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    hashes: dict[str, str] = {}


def manifest_path(path: str) -> str:
    """Return the path of the manifest of a token file."""
    return path + SUFFIX


def read_manifest(store: Store, path: str) -> TokenManifest | None:
    """Return the manifest of a token file; None if there is none, or this release cannot read it.

    That of Megatron's pair of files, either of which may be named, is named after the index.
    """
    path = f"{path[:-4]}.idx" if path.endswith(".bin") else path
    if not store.exists(manifest_path(path)):
        return None
    try:
        content = decode_as(store.read(manifest_path(path)), TokenManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if content.version != VERSION:
        return None
    folder = _folder(store, path)
    return _with_path(content, lambda given: given if folder is None else os.path.normpath(os.path.join(folder, given)))


def write_manifest(store: Store, path: str, manifest: TokenManifest) -> None:
    """Write the manifest of a token file atomically. Call this before the file itself is published."""
    folder = _folder(store, path)
    manifest = _with_path(manifest, lambda given: given if folder is None else _relative(given, folder))
    store.write_bytes(manifest_path(path), msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def _folder(store: Store, path: str) -> str | None:
    """Return the folder of a token file on this machine, without links; None if it is elsewhere."""
    return os.path.realpath(os.path.dirname(store.locate(path))) if store.is_local else None


def _with_path(manifest: TokenManifest, change: Callable[[str], str]) -> TokenManifest:
    facts = manifest.tokenizer
    if facts is None or not facts.path:
        return manifest
    return msgspec.structs.replace(manifest, tokenizer=msgspec.structs.replace(facts, path=change(facts.path)))


def _relative(path: str, folder: str) -> str:
    with contextlib.suppress(ValueError):  # another drive
        return os.path.relpath(path, folder).replace(os.sep, "/")
    return path


def with_files(manifest: TokenManifest, sizes: Mapping[str, int], hashes: Mapping[str, str]) -> TokenManifest:
    """Return the manifest with the sizes of its files, by name, and their hashes, given by path."""
    # A bounds sidecar contains its own hash, and is written again when needed.
    named = {path.rpartition("/")[2]: digest for path, digest in hashes.items() if not path.endswith(BOUNDS)}
    known = {name: named[name] for name in sizes if name in named}
    return msgspec.structs.replace(manifest, sizes=dict(sizes), hashes=known)


def wrong_files(
    store: Store, path: str, manifest: TokenManifest, advance: Callable[[int], None] | None = None
) -> Iterator[DataError]:
    """Yield the files that are missing or differ from the manifest of the token file `path` in size or hash.

    Args:
        advance: called with the bytes of each file that was compared.
    """
    where, folder = store.locate(manifest_path(path)), path[: path.rfind("/") + 1]
    for name, size in manifest.sizes.items():
        try:
            stored = store.stat(folder + name).size
        except NotFound:
            if not name.endswith(BOUNDS):  # it is written again when needed
                yield _wrong(store, folder + name, "missing-shard", f"{where} lists this file, but it is missing")
            continue
        if stored != size:
            yield _wrong(store, folder + name, "wrong-count", f"expected {size:,} bytes by {where}, found {stored:,}")
        elif name in manifest.hashes and hash_of(store, folder + name) != manifest.hashes[name]:
            yield _wrong(store, folder + name, "hash-mismatch", f"its content differs from the hash in {where}")
        if advance is not None:
            advance(size)


def _wrong(store: Store, path: str, kind: str, what: str) -> DataError:
    return DataError(
        what,
        file=store.locate(path),
        kind=kind,
        fix=copy_again(instead="write it again from its source"),
    )


def tokenizer_words(store: Store, paths: Sequence[str]) -> dict[str, Any]:
    """Return the facts about the tokenizers of token files for `TokenDataset.describe`; empty if they are unknown."""
    store.preload([manifest_path(path) for path in paths])
    found = [manifest.tokenizer for path in paths if (manifest := read_manifest(store, path)) and manifest.tokenizer]
    if not found:
        return {}
    names, hashes = (sorted({getattr(facts, word) for facts in found}) for word in ("name", "hash"))
    return {"tokenizer": ", ".join(names), "tokenizer_hash": ", ".join(hashes)}


BOUNDS = ".feedmill.bounds"
HEADER = struct.Struct("<8sIIQQ16sQQ")
MAGIC, LAYOUT = b"FMBOUNDS", 2
HASHED = 1 << 20
"""Maximum bytes of a table that is hashed each time it is loaded, which takes a tenth of a millisecond."""
HEAD, TAIL = 12, 1 << 16


class BoundsHeader(NamedTuple):
    """Header of a sidecar: version, documents, bytes, hash and corrected index entries of its file; its own hash."""

    version: int
    documents: int
    size: int
    digest: bytes
    repaired: int
    table: int

    def pack(self) -> bytes:
        """Return the first 64 bytes of the sidecar."""
        return HEADER.pack(MAGIC, LAYOUT, *self)


def bounds_path(path: str) -> str:
    """Return the path of the sidecar of a token file."""
    return path + BOUNDS


def file_ends(store: Store, path: str, size: int) -> bytes:
    """Return the beginning and the end of a sidecar's file, or all of a small one; see `file_digest`."""
    if size <= HEAD + TAIL:
        return store.read(path, 0, size)
    return b"".join(store.read_ranges(path, [0, size - TAIL], [HEAD, TAIL]))


def file_digest(store: Store, path: str, size: int) -> bytes:
    """Return the hash that identifies a sidecar's file: of its beginning and end, 16 bytes."""
    return digest_of(file_ends(store, path, size))


def digest_of(ends: bytes) -> bytes:
    """Return the hash of the beginning and end of a file, 16 bytes."""
    return bytes(xxhash.xxh3_128_digest(ends))


def read_header(store: Store, path: str, size: int, digest: bytes) -> BoundsHeader | None:
    """Return the header of a file's sidecar; None if there is none, or it belongs to another file or release."""
    side = bounds_path(path)
    if not store.exists(side):
        return None
    length = store.stat(side).size
    if length < HEADER.size:
        return None
    magic, layout, *rest = HEADER.unpack(store.read(side, 0, HEADER.size))
    header = BoundsHeader(*rest)
    fits = length == HEADER.size + 8 * (header.documents + 1) and (header.size, header.digest) == (size, digest)
    return header if (magic, layout) == (MAGIC, LAYOUT) and fits else None


def map_bounds(store: Store, path: str, header: BoundsHeader) -> Int64s:
    """Return the bounds in a file's sidecar, int64[documents + 1], mapped if the file is local. Raises `DataError`."""
    side, count = bounds_path(path), header.documents + 1
    if store.is_local:
        raise_file_limit()
        with store.local_copy(side) as local:
            bounds = np.asarray(np.memmap(local, "<i8", "r", HEADER.size, (count,)))
    else:
        bounds = np.frombuffer(store.read(side, HEADER.size, 8 * count), "<i8")
    if bounds.nbytes <= HASHED:
        check_table(store, path, header, bounds)
    return bounds


def covering_bounds(store: Store, path: str, header: BoundsHeader, *, tokens: int, fix: str) -> Int64s:
    """Return `map_bounds` of a file with these `tokens`; if they end elsewhere, raise `DataError` with this `fix`."""
    bounds = map_bounds(store, path, header)
    if bounds[0] != 0 or bounds[-1] != tokens:
        raise DataError(
            f"expected bounds from 0 to {tokens}, found {bounds[0]} to {bounds[-1]}",
            file=store.locate(bounds_path(path)),
            kind="bad-index",
            fix=fix,
        )
    return bounds


def check_bounds(store: Store, path: str, header: BoundsHeader) -> None:
    """Raise `DataError` if the bounds in a file's sidecar are not those that were written."""
    check_table(store, path, header, map_bounds(store, path, header))


def table_hash(bounds: Int64s) -> int:
    """Return the hash of a table, int64[n], little endian."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(bounds, "<i8").data)


def check_table(store: Store, path: str, header: BoundsHeader, bounds: Int64s) -> None:
    """Raise `DataError` if the bounds are not those that were written."""
    if table_hash(bounds) != header.table:
        raise DataError(
            "the bounds of documents are corrupt (their hash differs)",
            file=store.locate(bounds_path(path)),
            kind="bad-index",
            fix=f"Run 'feedmill tokens index {store.locate(path)} --overwrite' to write it again, or delete this file.",
        )
