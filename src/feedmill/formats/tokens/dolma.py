"""Dolma's token files (``.npy`` and ``.csv.gz``), as OLMo reads them.

Layout::

    part-0-00000.npy      only concatenated token ids, little-endian; despite the name, not numpy's ``.npy`` format
    part-0-00000.csv.gz   one row per document: start, end, id, src, loc. No header; commas, quotes only if needed, rows
                          end with CRLF. Start and end count tokens; rows are consecutive without gaps. src is the
                          path of the document's file as given, loc its line there, from 1

A folder stands for all its ``.npy`` files, sorted by path. The type of a token (unsigned, 1, 2, 4 or 8 bytes) is not
stored; it is derived from the size of the ``.npy`` and the end of the last row. Opening therefore reads the rows.

Rejected: rows that are not consecutive, and sizes that do not match. For a group of files without tokens, Dolma writes
a file of zeros; such a pair is rejected too, and can be deleted.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.content import content_hash
from feedmill.formats.csv_rows import csv_rows
from feedmill.formats.format import OpenRequest
from feedmill.formats.tokens.base import (
    Form,
    Int64s,
    TokenDataset,
    TokenFormat,
    Tokens,
    TokenShard,
    TokenWriter,
    VocabularySizes,
    open_files,
)
from feedmill.formats.tokens.manifest import tokenizer_words
from feedmill.formats.tokens.masks import MaskWriter, stored_mask, write_mask
from feedmill.formats.tokens.number_files import FlatFile, FlatWriter
from feedmill.storage import Store
from feedmill.storage.limits import max_unpacked, too_large
from feedmill.storage.reasons import copy_again

FORMAT = "dolma"
NPY, CSV = ".npy", ".csv.gz"

_LONGEST = 64 << 20
"""Maximum characters of an id; an unclosed quote would include everything after it."""
_NUMPY_MAGIC = b"\x93NUMPY"
_TYPES = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}


class Origin(NamedTuple):
    """Origin of a document: its id, its file as given, and its line there (from 1)."""

    id: str
    src: str
    loc: int


def open_dolma(store: Store, path: str, url: str, *, dtype: np.dtype[Any] | str | None = None) -> TokenDataset:
    """Open one pair of files, or a folder of them.

    Args:
        store: the store of the files.
        path: a ``.npy`` file in the store, or a folder ("" for the store's own).
        url: path or URL as the user gave it.
        dtype: type of a token; None derives it from the sizes.

    Raises:
        NotFound: a file is missing.
        ConfigError: it is one of numpy's own ``.npy`` files, or the tokens have another type than `dtype`.
        DataError: the files are corrupt or do not match.
    """
    names = [path] if path.endswith(NPY) and store.exists(path) else _in_folder(store, path, url)
    shards = [_shard(store, name, None if dtype is None else np.dtype(dtype)) for name in names]
    return TokenDataset(store, shards, name=url, format=FORMAT, about=tokenizer_words(store, names))


def read_origins(store: Store, path: str) -> Iterator[Origin]:
    """Yield the origins of the documents of a ``.npy`` file, in order.

    Raises:
        NotFound: there is no ``.csv.gz`` next to it.
        DataError: the ``.csv.gz`` is corrupt.
    """
    name = _beside(path)
    for number, row in enumerate(_rows(store, name)):
        try:
            yield Origin(row[2], row[3], int(row[4]))
        except (ValueError, IndexError):
            raise _damaged(store, name, f"expected start, end, id, src, loc, found {row!s:.80}", number) from None


def dolma_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the type of a token for a vocabulary: the smallest that can store its last id.

    >>> [dolma_dtype(size).name for size in (256, 257, 65_536, 65_537)]
    ['uint8', 'uint16', 'uint16', 'uint32']
    """
    return np.dtype(np.min_scalar_type(max(0, vocab_size - 1))).newbyteorder("<")


@contextlib.contextmanager
def write_dolma(store: Store, path: str, dtype: np.dtype[Any] | str, *, loss: bool = False) -> Iterator[DolmaWriter]:
    """Write a ``.npy`` file and the ``.csv.gz`` next to it.

    Args:
        store, path: location; `path` ends in ``.npy``.
        dtype: type of a token; see `dolma_dtype`.
        loss: whether to write a loss mask beside the ``.npy``, see `masks`.

    Raises:
        ConfigError: the type is not an unsigned integer.
    """
    kind = np.dtype(dtype).newbyteorder("<")
    if kind not in _TYPES.values():
        raise ConfigError(
            f"the format does not support tokens of type {np.dtype(dtype)}",
            file=store.locate(path),
            kind="bad-token-size",
            fix="Use uint16 for small vocabularies, and uint32 for others.",
        )
    with (  # the first one is published last
        store.write(path) as file,
        store.write(_beside(path)) as packed,
        write_mask(store, path, loss, path) as mask,
    ):
        # The header has no time and no name, so the same documents give the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=6, mtime=0) as rows:
            yield DolmaWriter(FlatFile(file, kind, store.locate(path)), rows, mask)
        store.delete(path)  # readers must not see older tokens with the new rows


class DolmaWriter(FlatWriter):
    """`TokenWriter` of Dolma's files; created by `write_dolma`."""

    def __init__(self, flat: FlatFile, rows: BinaryIO | gzip.GzipFile, mask: MaskWriter) -> None:
        super().__init__(flat)
        self._rows, self._mask = rows, mask

    def add(
        self,
        tokens: Tokens,
        lengths: Int64s,
        loss: npt.NDArray[np.bool_] | None = None,
        *,
        origins: Sequence[tuple[str, str, int]] | None = None,
    ) -> None:
        """Append documents, see `TokenWriter.add`.

        Args:
            origins: id, src and loc of each document (`Origin`); by default, documents are numbered from 0.
        """
        first, begin = self._flat.documents, self._flat.tokens
        if origins is None:
            origins = [(str(first + i), "", first + i + 1) for i in range(len(lengths))]
        elif len(origins) != len(lengths):
            raise ValueError(f"{len(origins)} origins for {len(lengths)} documents")
        self._mask.add(len(tokens), loss)
        ends = self._flat.add(tokens, lengths).tolist()
        text = io.StringIO()
        starts = [begin, *ends[:-1]]
        csv.writer(text).writerows(
            [start, end, *origin] for start, end, origin in zip(starts, ends, origins, strict=False)
        )
        self._rows.write(text.getvalue().encode("utf-8", "surrogatepass"))


def _in_folder(store: Store, path: str, url: str) -> list[str]:
    names = [entry.path for entry in store.files(path.rstrip("/"), suffixes=(NPY,))]
    if not names:
        raise NotFound("no '.npy' files in this folder", file=url, kind="no-tokens", fix="Check the folder.")
    return names


def _beside(path: str) -> str:
    return path.removesuffix(NPY) + CSV


def _shard(store: Store, path: str, dtype: np.dtype[Any] | None) -> TokenShard:
    entry, rows = store.stat(path), _beside(path)
    if store.read(path, 0, min(entry.size, 6)) == _NUMPY_MAGIC:
        raise ConfigError(
            "expected Dolma's tokens without a header, found an array saved by numpy",
            file=store.locate(path),
            kind="unknown-format",
            fix="Read it with numpy.load.",
        )
    if not store.exists(rows):
        raise NotFound(
            f"its file {rows.rpartition('/')[2]!r} with the ends of documents is missing",
            file=store.locate(path),
            fix="Restore it, or check that these are Dolma's tokens.",
        )
    bounds = _bounds(store, rows)
    tokens = int(bounds[-1])
    size = dtype.itemsize if dtype is not None else entry.size // tokens if tokens else 0
    if tokens * size != entry.size or (tokens and size not in _TYPES):
        raise DataError(
            f"its {entry.size} bytes do not match the {tokens} tokens of its '.csv.gz'",
            file=store.locate(path),
            kind="truncated",
            fix=copy_again("both files")
            + " If the '.csv.gz' is empty, both are leftovers of Dolma and can be deleted.",
        )
    mask = stored_mask(store, path, tokens)
    return TokenShard(
        path=path,
        dtype=_TYPES[size or 2] if dtype is None else dtype.newbyteorder("<"),
        offset=0,
        tokens=tokens,
        documents=len(bounds) - 1,
        load_bounds=partial(np.asarray, bounds),
        load_loss=mask.load_loss,
        loss=mask.loss,
        facts=(
            partial(content_hash, store, path, entry.size),
            partial(content_hash, store, rows, store.stat(rows).size),
            *mask.facts,
        ),
    )


def _blocks(store: Store, path: str) -> Iterator[bytes]:
    """Yield whole rows, about a megabyte at a time. The limit applies to all rows, which stay in memory."""
    from feedmill.formats.documents import read_lines  # it imports libraries that other formats do not need

    limit, size = max_unpacked(store.stat(path).size), 0
    for block in read_lines(store, path):
        size += len(block)
        if size > limit:
            raise too_large(limit, file=store.locate(path))
        yield block


def _rows(store: Store, path: str) -> Iterator[list[str]]:
    blocks = (block.decode("utf-8", "surrogatepass") for block in _blocks(store, path))
    lines = (line for block in blocks for line in io.StringIO(block, newline=""))
    try:
        yield from csv_rows(lines, _LONGEST)
    except (csv.Error, UnicodeDecodeError) as error:
        raise _damaged(store, path, f"it cannot be read ({error})") from None


def _bounds(store: Store, path: str) -> Int64s:
    """Return the bounds, int64[documents + 1], from the first two columns."""
    table = _plain_table(store, path)
    if table is None:
        pairs = array("q")
        for number, row in enumerate(_rows(store, path)):
            try:
                start, end = int(row[0]), int(row[1])
                if (start | end) >> 63:  # negative, or too large for int64
                    raise ValueError
            except (ValueError, IndexError):
                raise _damaged(store, path, f"expected start and end, found {row!s:.80}", number) from None
            pairs.extend((start, end))
        table = np.frombuffer(pairs, np.int64).reshape(-1, 2)
    bounds = np.concatenate((np.zeros(1, np.int64), table[:, 1]))
    wrong = np.flatnonzero((table[:, 0] != bounds[:-1]) | (table[:, 1] < table[:, 0]))
    if len(wrong):
        start, end = table[wrong[0]].tolist()
        what = f"its tokens are {start} to {end}, expected from {int(bounds[wrong[0]])} on"
        raise _damaged(store, path, what, int(wrong[0]))
    return bounds


def _plain_table(store: Store, path: str) -> Int64s | None:
    """Return the first two columns, int64[n, 2]; None if a row has quotes or other values than numbers."""
    tables = [np.zeros((0, 2), np.int64)]
    for block in _blocks(store, path):
        table = _plain_columns(block) if b'"' not in block else None
        if table is None:
            return None
        tables.append(table)
    return np.concatenate(tables)


def _plain_columns(data: bytes) -> Int64s | None:
    """Return the first two columns of rows without quotes, int64[n, 2]; None if they are not all numbers."""
    text = np.frombuffer(data if data.endswith(b"\n") else data + b"\n", np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    starts = np.concatenate(([0], ends[:-1] + 1))
    commas = np.append(np.flatnonzero(text == ord(",")), len(text))
    first = np.searchsorted(commas, starts)
    if (commas[np.minimum(first + 1, len(commas) - 1)] >= ends).any():
        return None
    left, right = commas[first], commas[first + 1]
    numbers = [_digits(text, starts, left), _digits(text, left + 1, right)]
    return None if numbers[0] is None or numbers[1] is None else np.stack(numbers, axis=1)  # type: ignore[arg-type]


def _digits(text: npt.NDArray[np.uint8], begins: Int64s, ends: Int64s) -> Int64s | None:
    """Return the decimal numbers in these ranges, int64[n]; None if any range is not 1 to 18 digits."""
    width = ends - begins
    if (width < 1).any() or (width > 18).any():
        return None
    out = np.zeros(len(begins), np.int64)
    for place in range(int(width.max())):
        live = width > place
        digit = text[np.where(live, begins + place, begins)] - np.uint8(ord("0"))
        if (digit[live] > 9).any():
            return None
        out = np.where(live, out * 10 + digit, out)
    return out


def _damaged(store: Store, path: str, what: str, row: int | None = None) -> DataError:
    return DataError(
        what,
        file=store.locate(path),
        record=None if row is None else f"row {row + 1}",
        kind="bad-index",
        fix=copy_again(instead="tokenize again"),
    )


def open_found(wanted: OpenRequest) -> TokenDataset:
    """See `open_dolma`; files of a list are opened together."""
    return open_files(wanted, FORMAT, lambda one: open_dolma(one.store, one.name, one.url))


class Dolma(TokenFormat):
    """See `TokenFormat`."""

    def dtype(self, sizes: VocabularySizes) -> np.dtype[Any]:
        """See `TokenFormat`."""
        return dolma_dtype(sizes.size)

    def open(self, store: Store, path: str, form: Form) -> AbstractContextManager[TokenWriter]:
        """See `TokenFormat`."""
        return write_dolma(store, path, np.dtype(f"<u{form.token_size}"), loss=form.loss)


WRITER = Dolma()
