"""Read and write Modalities' indices: a pickled ``list[tuple[int, int]]`` of offsets and lengths in bytes.

The same layout is used in the raw index of a JSONL file (``.idx``) and at the end of a ``.pbin``. Nothing is unpickled.
The reader accepts only lists of integers from 0 to 2^63 - 1 in pickle protocols 2 to 5. Any other or misplaced opcode,
a larger number, a wrong frame, bytes after the end, or a missing end is an error with the offset. The writer writes
protocol 4 like CPython. See `feedmill.kernels.files.pairs` for the opcodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from feedmill.errors import DataError
from feedmill.formats.offsets import Int64s
from feedmill.kernels.files import pairs
from feedmill.storage import Store

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
