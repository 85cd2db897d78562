"""The ``.idx`` files of Megatron-LM's tokens: recognize and read their header; see `megatron` for the layout."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from feedmill.errors import DataError
from feedmill.storage import Store
from feedmill.storage.reasons import content_of, copy_again

MAGIC = b"MMIDIDX\x00\x00"
BIN, IDX = ".bin", ".idx"
HEADER = struct.Struct("<9sQBQQ")
VERSION = 1

_CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_INTEGERS = {code: np.dtype(name) for code, name in _CODES.items() if "f" not in name}


class MegatronIndex(NamedTuple):
    """Header of an ``.idx`` file, and the offsets of its arrays.

    Attributes:
        dtype: type of a stored token.
        sequences, documents: numbers of sequences and documents.
        multimodal: whether each sequence has a mode.
        lengths_at, offsets_at, documents_at, modes_at: offsets of the arrays: int32[sequences] tokens,
            int64[sequences] bytes into the ``.bin``, int64[documents + 1] sequences, int8[sequences].
    """

    dtype: np.dtype[Any]
    sequences: int
    documents: int
    multimodal: bool

    @property
    def lengths_at(self) -> int:
        """Offset in bytes of the lengths, int32[sequences]."""
        return HEADER.size

    @property
    def offsets_at(self) -> int:
        """Offset in bytes of where sequences begin in the ``.bin``, int64[sequences]."""
        return HEADER.size + 4 * self.sequences

    @property
    def documents_at(self) -> int:
        """Offset in bytes of the sequences at which documents begin, int64[documents + 1]."""
        return HEADER.size + 12 * self.sequences

    @property
    def modes_at(self) -> int:
        """Offset in bytes of the modes, int8[sequences]; they exist only if it is `multimodal`."""
        return self.documents_at + 8 * (self.documents + 1)


def strip(path: str) -> str:
    """Return the prefix of a path that may end in ``.bin`` or ``.idx``."""
    return path[:-4] if path.endswith((BIN, IDX)) else path


def is_megatron(store: Store, path: str) -> bool:
    """Return whether a file that ends in ``.idx`` is of this format; other tools have index files of that name."""
    return store.exists(path) and store.stat(path).size >= HEADER.size and store.read(path, 0, len(MAGIC)) == MAGIC


def read_header(store: Store, path: str) -> MegatronIndex:
    """Return the header of an ``.idx`` file, checked against its size.

    Raises:
        NotFound: there is no such file.
        DataError: the file has another format, is truncated, or its token type is not an integer.
    """
    size = store.stat(path).size
    head = store.read(path, 0, min(size, HEADER.size))
    if not head.startswith(MAGIC):
        what = f"it begins with {head[:9]!r}, not with {MAGIC!r}: it is another kind of index"
        other = content_of(head)
        if other is not None:
            what += f" ({other.name})"
            raise DataError(what, file=store.locate(path), kind="other-format", fix=other.fix)
        raise damaged(store, path, what)
    if len(head) < HEADER.size:
        raise damaged(store, path, f"it has {size} bytes, fewer than its header ({HEADER.size})", kind="truncated")
    _, version, code, sequences, bounds = HEADER.unpack(head)
    if version != VERSION:
        raise _unsupported(store, path, f"unsupported version {version}: expected {VERSION}")
    if code not in _INTEGERS:
        raise _unsupported(store, path, f"its type of a token is {_CODES.get(code, code)}, which is not an integer")
    if not bounds:
        what = "it has no document bounds: expected one more than the number of documents"
        raise _unsupported(store, path, what)
    plain = HEADER.size + 12 * sequences + 8 * bounds
    if size not in (plain, plain + sequences):
        what = f"expected {plain} bytes for {sequences} sequences and {bounds - 1} documents, found {size}"
        raise damaged(store, path, what, kind="truncated")
    return MegatronIndex(_INTEGERS[code], sequences, bounds - 1, bool(sequences) and size == plain + sequences)


def _unsupported(store: Store, path: str, what: str) -> DataError:
    fix = "Tokenize again, or write it again as Megatron-LM does, with tokens that are integers."
    return DataError(what, file=store.locate(path), kind="unsupported", fix=fix)


def code_of(dtype: np.dtype[Any]) -> int:
    """Return the code of a type of token; 0 if the format does not support it."""
    return next((code for code, known in _INTEGERS.items() if known == dtype.newbyteorder("<")), 0)


def damaged(store: Store, path: str, what: str, *, kind: str = "bad-index", record: str | None = None) -> DataError:
    """Return the error for files that are corrupt or do not match."""
    return DataError(
        what,
        file=store.locate(path),
        record=record,
        kind=kind,
        fix="'.bin' and '.idx' belong together. " + copy_again("both files", "tokenize again"),
    )
