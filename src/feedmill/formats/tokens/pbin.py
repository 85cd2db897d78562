"""Modalities' packed token files, ``.pbin``: documents of tokens, then a pickled list of their locations.

    0      u64  D, bytes of tokens
    8      u32  token size: 1, 2 or 4
    12     D bytes, the concatenated documents; unsigned tokens, little-endian
    12 + D a pickled list of (start, length) in bytes, one pair per document, up to the end of the file

All versions can be read:

    V0  before 2024: no token size (4 bytes), big-endian, starts count from the file's beginning (8)
    V1  12 bytes of header, big-endian, starts count from the file's beginning (12)
    V2  as V1, little-endian
    V3  little-endian, starts count from the first token (0); since 2024-06. Feedmill writes it byte for byte

The pickle is parsed opcode by opcode, never unpickled. Modalities' merge writes starts that are 12, 24, ...
bytes too low; they are corrected, which `describe` reports. Rejected, each with a separate message: a length field of 0
before data (the writer was killed), a file shorter than its header declares, an index that is truncated or not a list
of pairs, and documents that do not add up to the tokens. Windows of tokens can be read without the index.

With a bounds sidecar (`manifest`), which `write_pbin` and `write_bounds` write, opening takes the same time for any
file.

Modalities' indices are a pickled ``list[tuple[int, int]]`` of offsets and lengths in bytes. The same layout is used in
the raw index of a JSONL file (``.idx``) and at the end of a ``.pbin``. The reader accepts only lists of integers from 0
to 2^63 - 1 in pickle protocols 2 to 5. Any other or misplaced opcode, a larger number, a wrong frame, bytes after the
end, or a missing end is an error with the offset. The writer writes protocol 4 like CPython. See
`feedmill.kernels.files.pairs` for the opcodes.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.content import content_hash
from feedmill.formats.format import OpenRequest
from feedmill.formats.offsets import Int64s
from feedmill.formats.tokens.base import (
    COUNTED,
    Form,
    TokenDataset,
    TokenFormat,
    Tokens,
    TokenShard,
    TokenWriter,
    VocabularySizes,
    refuse_missing,
)
from feedmill.formats.tokens.manifest import (
    HEADER,
    BoundsHeader,
    bounds_path,
    check_bounds,
    covering_bounds,
    digest_of,
    file_digest,
    file_ends,
    manifest_path,
    read_header,
    table_hash,
    tokenizer_words,
)
from feedmill.formats.tokens.masks import SUFFIX, MaskWriter, stored_mask, write_mask
from feedmill.kernels.files import pairs
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again
from feedmill.storage.staging import WriteBehind

_AT_ONCE = 32
"""Number of files of a bucket whose small parts are requested at once."""
_EMPTY_LIST = 64
"""More bytes than the opcodes around the pairs of a list have."""
PICKLE = 0x80
MERGE_SHIFT = 12
_MAKE_AGAIN = copy_again(instead="write it again from its source")
_FORMAT = "Modalities .pbin"


def token_size(vocab_size: int) -> int:
    """Return bytes per token by Modalities' rule: the smallest of 1, 2 and 4 that can store the ids below `vocab_size`.

    >>> [token_size(n) for n in (256, 257, 65_536, 65_537)]
    [1, 2, 2, 4]

    Raises:
        ConfigError: there are more than 2^32 ids, or none.
    """
    for size in (1, 2, 4):
        if 0 < vocab_size <= 1 << (8 * size):
            return size
    raise ConfigError(
        f"a vocabulary of {vocab_size} ids does not fit tokens of 4 bytes",
        fix="Use a vocabulary of 1 to 4,294,967,296 ids.",
    )


def open_pbin(store: Store, path: str, url: str) -> TokenDataset:
    """Open the documents of a ``.pbin`` file. Raises `NotFound`, and `DataError` if it is corrupt or another format."""
    return open_pbins(store, [path], url)


def open_pbins(store: Store, paths: list[str], url: str) -> TokenDataset:
    """Open several files of a store as one dataset, in the given order (Modalities calls this combined)."""
    shards: list[TokenShard] = []
    try:
        for begin in range(0, len(paths), _AT_ONCE):
            some = paths[begin : begin + _AT_ONCE]
            if begin:
                store.preload(())  # they take memory
            _preload(store, some)
            shards += [pbin_shard(store, path) for path in some]
        return TokenDataset(store, shards, name=url, format="pbin", about=tokenizer_words(store, paths))
    finally:
        store.preload(())


def _preload(store: Store, paths: list[str]) -> None:
    store.preload([name for path in paths for name in (path, bounds_path(path), path + SUFFIX, manifest_path(path))])


def pbin_shard(store: Store, path: str) -> TokenShard:
    """Return one file, whose documents are loaded on first access. Raises as `open_pbin`."""
    size = store.stat(path).size
    ends = file_ends(store, path, size)
    layout = find_layout(store, path, size, ends)
    digest = digest_of(ends)
    remarks: list[str] = []
    known = read_header(store, path, size, digest)
    tokens = layout.data // layout.dtype.itemsize
    load = partial(_load, store, path, layout, remarks)
    if known:
        fix = "Delete this file. Without it, the index is read from the .pbin itself."
        load = partial(covering_bounds, store, path, known, tokens=tokens, fix=fix)
    if known and known.repaired:
        remarks.append(_repaired(known.repaired))
    mask = stored_mask(store, path, tokens)
    shard = TokenShard(
        path,
        layout.dtype,
        layout.header,
        tokens,
        COUNTED,
        load,
        mask.load_loss,
        loss=mask.loss,
        facts=(partial(content_hash, store, path, size), *mask.facts),
        remarks=remarks,
        verify=partial(check_bounds, store, path, known) if known else None,
    )
    if known and store.is_local:
        _ = shard.bounds  # map it now, so that it may be deleted later
    return shard


def _load(store: Store, path: str, layout: PbinLayout, remarks: list[str]) -> Int64s:
    index = read_index(store, path, layout)
    if index.repaired:
        remarks.append(_repaired(index.repaired))
    return index.bounds


def _repaired(count: int) -> str:
    return f"{count} entries of the index were wrong (as written by Modalities' merge) and are corrected when read"


def documents_of(store: Store, path: str) -> int:
    """Return the number of documents of a ``.pbin``. Raises as `open_pbin`."""
    return len(read_index(store, path, find_layout(store, path, store.stat(path).size)).bounds) - 1


def write_bounds(store: Store, path: str) -> int:
    """Write the sidecar of a ``.pbin``, and return the number of documents. Raises as `open_pbin`."""
    size = store.stat(path).size
    index = read_index(store, path, find_layout(store, path, size))
    documents = len(index.bounds) - 1
    header = BoundsHeader(index.version, documents, size, file_digest(store, path, size), index.repaired, 0)
    header = header._replace(table=table_hash(index.bounds))
    with store.write(bounds_path(path)) as out:
        out.write(header.pack())
        out.write(index.bounds.astype("<i8", copy=False).data)
    return documents


class PbinWriter:
    """Writer of one ``.pbin``; created by `write_pbin`. Added documents and their bounds are on disk.

    Attributes:
        documents, tokens: numbers added so far.
    """

    def __init__(self, out: BinaryIO, bounds: BinaryIO, mask: MaskWriter, token_size: int, where: str) -> None:
        self._out, self._bounds, self._mask, self._where = out, bounds, mask, where
        self._dtype = np.dtype(f"<u{token_size}")
        self.documents = self.tokens = 0

    def add(self, tokens: Tokens, lengths: Int64s, loss: npt.NDArray[np.bool_] | None = None) -> None:
        """Append documents, see `TokenWriter.add`."""
        ends = np.cumsum(lengths, dtype=np.int64)
        if (int(ends[-1]) if len(ends) else 0) != len(tokens) or (len(ends) and np.min(lengths) < 0):
            raise FeedmillError(
                f"the lengths of the documents do not add up to {len(tokens)} tokens",
                file=self._where,
                kind="bad-costs",
            )
        self._mask.add(len(tokens), loss)
        self._out.write(self._checked(tokens, ends).data)
        self._bounds.write((ends + self.tokens).astype("<i8", copy=False).data)
        self.documents += len(ends)
        self.tokens += len(tokens)

    def _checked(self, tokens: Tokens, ends: Int64s) -> Tokens:
        """Return the tokens in their stored type, contiguous."""
        given, most = tokens.dtype, np.iinfo(self._dtype).max
        if given.kind not in "iu":
            raise FeedmillError(f"tokens must be integers, found {given}", file=self._where, kind="no-tokens")
        may_be_wrong = given.kind == "i" or given.itemsize > self._dtype.itemsize
        if len(tokens) and may_be_wrong and (tokens.max() > most or tokens.min() < 0):
            i = int(np.flatnonzero((tokens > most) | (tokens < 0))[0])
            document = self.documents + int(np.searchsorted(ends, i, side="right"))
            raise DataError(
                f"the token id {tokens[i]} does not fit tokens of {self._dtype.itemsize} bytes (0 to {most})",
                file=self._where,
                record=f"document {document}",
                kind="token-too-large",
                fix="Use a larger token size, which must fit the tokenizer's vocabulary with its added tokens.",
            )
        return np.ascontiguousarray(tokens, self._dtype)


@contextlib.contextmanager
def write_pbin(store: Store, path: str, token_size: int, *, loss: bool = False) -> Iterator[PbinWriter]:
    """Write a ``.pbin`` as Modalities 0.5 does, byte for byte, and its sidecars before it.

    Args:
        token_size: bytes per token: 1, 2 or 4; see the function `token_size`.
        loss: whether to write a loss mask beside it, see `masks`.

    Raises:
        ConfigError: the token size is unsupported.
    """
    if token_size not in (1, 2, 4):
        raise ConfigError(f"invalid token size of {token_size} bytes", fix="Use 1, 2 or 4.")
    # Contexts end from the inside out: sidecars are published first, and ignored while the file does not exist.
    with (
        store.build(path) as file,
        store.build(bounds_path(path)) as side,
        write_mask(store, path, loss, path) as mask,
    ):
        with io.BufferedWriter(WriteBehind(file, "r+")) as out, open(side, "r+b") as bounds:
            out.write(bytes(12))
            bounds.write(bytes(HEADER.size + 8))
            writer = PbinWriter(out, bounds, mask, token_size, store.locate(path))
            yield writer
            bounds.flush()
            table = np.memmap(side, "<i8", "r", HEADER.size)
            write_pairs(out, table[:-1] * token_size, np.diff(table) * token_size)
            out.seek(0)
            out.write((writer.tokens * token_size).to_bytes(8, "little") + token_size.to_bytes(4, "little"))
        _seal(str(file), str(side), writer.documents, table_hash(table))


def _seal(file: str, side: str, documents: int, table: int) -> None:
    """Write the header of the sidecar after its file is finished."""
    from feedmill.storage import open_store, split_url

    folder, name = split_url(file)
    store = open_store(folder)
    size = store.stat(name).size
    header = BoundsHeader(3, documents, size, file_digest(store, name, size), 0, table)
    with open(side, "r+b") as out:
        out.write(header.pack())


def open_found(wanted: OpenRequest) -> TokenDataset:
    """Return the file, the files of a list, or all of a folder."""
    store = wanted.store
    named = [wanted.name] if wanted.name else list(wanted.names)
    if len(named) <= _AT_ONCE:
        _preload(store, named)
    for name in named:
        refuse_missing(store, name)
    paths = named or [entry.path for entry in store.files(suffixes=(".pbin",))]
    return open_pbins(store, paths, store.url if wanted.names else wanted.url)


class Pbin(TokenFormat):
    """See `TokenFormat`."""

    def dtype(self, sizes: VocabularySizes) -> np.dtype[Any]:
        """See `TokenFormat`; Modalities' rule excludes added tokens."""
        return np.dtype(f"<u{max(token_size(max(sizes.base, 1)), token_size(sizes.largest + 1))}")

    def largest(self, form: Form, tokens: int | Int64s, documents: int | Int64s) -> Any:
        """See `TokenFormat`; a pair of the list of documents has at most 16 bytes, with its share of frames."""
        return 12 + tokens * form.token_size + _EMPTY_LIST + 16 * documents

    def open(self, store: Store, path: str, form: Form) -> AbstractContextManager[TokenWriter]:
        """See `TokenFormat`."""
        return write_pbin(store, path, form.token_size, loss=form.loss)


WRITER = Pbin()


class PbinLayout(NamedTuple):
    """Layout of a file: token type, bytes before the tokens, bytes of tokens, bytes of the file."""

    dtype: np.dtype[Any]
    header: int
    data: int
    size: int

    @property
    def behind(self) -> int:
        """Return the offset of the pickled list."""
        return self.header + self.data


def find_layout(store: Store, path: str, size: int, ends: bytes | None = None) -> PbinLayout:
    """Return the layout of a file, as needed to read its tokens. Raises `DataError`.

    Args:
        ends: its beginning and end, if they were read.
    """
    head = store.read(path, 0, min(12, size)) if ends is None else ends[:12]
    layouts = [layout for layout in _possible(head, size) if _is_index(store, path, layout)]
    if len(layouts) > 1:  # the first token of a V0 can look like a token size, so the documents must add up
        layouts = [layout for layout in layouts if _adds_up(store, path, layout)] or layouts[:1]
    if not layouts:
        raise _no_layout(store, path, head, size)
    layout = layouts[0]
    if (store.read(path, size - 1, 1) if ends is None else ends[-1:]) != b".":
        raise DataError(
            f"the list of documents at byte {layout.behind} is truncated",
            file=store.locate(path),
            kind="truncated",
            fix=_MAKE_AGAIN,
        )
    return layout


def _possible(head: bytes, size: int) -> Iterator[PbinLayout]:
    """Yield the layouts that match the header and the sizes."""
    for order, name in (("<", "little"), (">", "big")):
        data, width = (int.from_bytes(part, name) for part in (head[:8], head[8:12]))  # type: ignore[arg-type]
        if len(head) == 12 and width in (1, 2, 4) and 12 + data < size and data % width == 0:
            yield PbinLayout(np.dtype(f"{order}u{width}"), 12, data, size)
    data = int.from_bytes(head[:8], "big")
    if 8 + data < size and data % 4 == 0:
        yield PbinLayout(np.dtype(">u4"), 8, data, size)


def _is_index(store: Store, path: str, layout: PbinLayout) -> bool:
    """Return whether a pickled list begins after the tokens."""
    start = store.read(path, layout.behind, min(4, layout.size - layout.behind))
    if not (len(start) == 4 and start[0] == PICKLE and 2 <= start[1] <= 5 and start[2] in b"\x5d\x95"):
        return False
    return layout.data > 0 or _adds_up(
        store, path, layout
    )  # no tokens: either there are no documents, or the writer was killed


def _adds_up(store: Store, path: str, layout: PbinLayout) -> bool:
    try:
        read_index(store, path, layout)
    except DataError:
        return False
    return True


def _no_layout(store: Store, path: str, head: bytes, size: int) -> DataError:
    """Return the error for a file that is not a .pbin, or is incomplete."""
    where = store.locate(path)
    data, width = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:12], "little")
    if size < 12:
        what, kind = f"the file has {size} bytes, fewer than the header of a {_FORMAT}", "truncated"
    elif data == 0 and width in (1, 2, 4, 0):
        return DataError(
            "the length field is 0 although there is data: the program that wrote the file did not finish",
            file=where,
            kind="truncated",
            fix="Write the file again; it has no list of documents.",
        )
    elif width in (1, 2, 4) and 12 + data >= size:
        what, kind = (
            f"the file is truncated: its header declares {data} bytes of tokens and a list of documents, but the"
            f" file has {size} bytes",
            "truncated",
        )
    elif width in (1, 2, 4):
        odd = f"{data} bytes are not a whole number of tokens of {width} bytes"
        gone = f"no list of documents begins at byte {12 + data}, where the tokens end"
        what, kind = odd if data % width else gone, "bad-index"
    else:
        return DataError(
            f"this is not a {_FORMAT}: its header has tokens of {width} bytes, expected 1, 2 or 4",
            file=where,
            offset=8,
            kind="bad-header",
            fix="Check the path.",
        )
    return DataError(what, file=where, kind=kind, fix=_MAKE_AGAIN)


class Index(NamedTuple):
    """Documents of a file: int64[n + 1] bounds in tokens, version of the file, number of corrected entries."""

    bounds: Int64s
    version: int
    repaired: int


def read_index(store: Store, path: str, layout: PbinLayout) -> Index:
    """Read the pickled list of documents. Raises `DataError` if it is corrupt or does not match the tokens."""
    total = documents = repaired = base = 0
    width = layout.dtype.itemsize
    pieces = [np.zeros(1, np.int64)]
    bad = partial(_bad_entry, store.locate(path))
    for starts, lengths in read_pairs(store, path, layout.behind, layout.size - layout.behind, fix=_MAKE_AGAIN):
        if not len(starts):
            continue
        if documents == 0 and starts[0] == layout.header:
            base = layout.header
        wrong = np.flatnonzero((lengths > layout.data) | (lengths % width != 0))
        if len(wrong):
            i = int(wrong[0])
            raise bad(
                documents + i, f"a length of {lengths[i]} bytes, with tokens of {width} bytes, {layout.data} in all"
            )
        ends = total + np.cumsum(lengths)
        early = ends - lengths + base - starts
        wrong = np.flatnonzero((early < 0) | (early % MERGE_SHIFT != 0))
        if len(wrong):
            i = int(wrong[0])
            raise bad(documents + i, f"a start of {starts[i]}, expected {ends[i] - lengths[i] + base}")
        repaired += int(np.count_nonzero(early))
        total, documents = int(ends[-1]), documents + len(starts)
        pieces.append(ends // width)
    if total != layout.data:
        raise DataError(
            f"expected documents of {layout.data} bytes in total, found {total} in the index",
            file=store.locate(path),
            kind="bad-index",
            fix=_MAKE_AGAIN + " Windows (seq_len=...) can still be read.",
        )
    little = layout.dtype.str[0] != ">"
    version = (3 if base == 0 else 2) if little else (1 if layout.header == 12 else 0)
    return Index(np.concatenate(pieces), version, repaired)


def _bad_entry(where: str, number: int, found: str) -> DataError:
    return DataError(
        f"invalid entry in the index of documents: {found}",
        file=where,
        record=f"document {number}",
        kind="bad-index",
        fix=_MAKE_AGAIN + " Windows (seq_len=...) can still be read.",
    )


BLOCK = 1 << 20
"""Bytes read at once; blocks of this size stay in the processor's cache."""

_WHAT = {
    pairs.FOREIGN_OPCODE: "the pickle has the opcode {}, which a list of pairs of integers cannot have",
    pairs.MISPLACED: "the pickle has the opcode {} at an invalid position",
    pairs.BAD_NUMBER: "a number of the pickled list is negative or above 2^63 - 1 (opcode {})",
    pairs.BAD_PROTOCOL: "the pickle is of a protocol other than 2 to 5",
    pairs.BAD_FRAME: "a frame of the pickle does not match its opcodes (at {})",
    pairs.TRAILING: "there are bytes after the end of the pickled list",
    pairs.TRUNCATED: "the pickled list is truncated",
}


def read_pairs(store: Store, path: str, offset: int, size: int, *, fix: str) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield the pairs of a pickled list that is a file or its end, in batches of int64[n] each.

    Args:
        offset, size: location of the pickle in the file, in bytes.
        fix: fix for the error about a corrupt list.

    Raises:
        DataError: the pickle is not such a list. The error has the offset and the opcode.
    """
    blocks = (store.read(path, at, min(BLOCK, offset + size - at)) for at in range(offset, offset + size, BLOCK))
    try:
        yield from pairs.decode(blocks)
    except pairs.PickleFault as error:
        fault = error.fault
        raise DataError(
            _WHAT[fault.code].format(pairs.opcode_name(fault.opcode)),
            file=store.locate(path),
            offset=offset + fault.offset,
            kind="bad-pickle" if fault.code != pairs.TRUNCATED else "truncated",
            fix=fix,
        ) from None


def load_pairs(store: Store, path: str, offset: int, size: int, *, fix: str) -> tuple[Int64s, Int64s]:
    """Return all pairs of a pickled list, int64[n] both. Raises as `read_pairs`."""
    pieces = list(read_pairs(store, path, offset, size, fix=fix))
    firsts, seconds = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
    return firsts, seconds


def write_pairs(out: BinaryIO, starts: Int64s, lengths: Int64s) -> int:
    """Write the pickle of ``list(zip(starts, lengths))``, int64[n] both. Return the number of bytes."""
    size = 0
    for piece in pairs.encode(starts, lengths):
        size += out.write(piece)
    return size
