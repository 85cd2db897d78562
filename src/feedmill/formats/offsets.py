"""What the formats share: offset files, and reading records by offset.

An offset file is n + 1 unsigned 64-bit little-endian numbers: where each record begins, then where the last one ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.storage import Store
from feedmill.storage.local import more_files

MAX_RUN = 4 << 20
"""Bytes read at once from neighbouring records."""

_LARGE = 1 << 20
"""Bytes from which on an index is mapped even where the map's descriptor is one of few."""

Int64s = npt.NDArray[np.int64]


def load_offsets(store: Store, path: str, *, fix: str) -> Int64s:
    """The numbers of an offset file, int64[n + 1]: mapped where the file is local, and large or descriptors plenty.

    Raises:
        NotFound: there is no such file.
        DataError: its size is not that of such a file.
    """
    size = store.stat(path).size
    if size < 8 or size % 8:
        raise DataError(
            f"the index is damaged ({size} bytes are no list of offsets)",
            file=store.locate(path),
            kind="bad-index",
            fix=fix,
        )
    if store.is_local and (more_files() or size > _LARGE):
        with store.local_copy(path) as local:
            return np.asarray(np.memmap(local, "<i8", "r"))
    return np.frombuffer(store.read(path), "<i8")


def read_records(store: Store, path: str, begins: Int64s, ends: Int64s) -> list[bytes]:
    """Return the bytes of records of one file, in the requested order; neighbours are read together.

    Args:
        begins, ends: int64[n], offsets of each record.
    """
    if not len(begins):
        return []
    joined = (begins[1:] == ends[:-1]) & (begins[1:] // MAX_RUN == begins[:-1] // MAX_RUN)
    if not joined.any():
        return store.read_ranges(path, begins.tolist(), (ends - begins).tolist())
    first = np.flatnonzero(np.concatenate(([True], ~joined)))
    after = np.append(first[1:], len(begins))
    blocks = store.read_ranges(path, begins[first].tolist(), (ends[after - 1] - begins[first]).tolist())
    out: list[bytes] = []
    b, e = begins.tolist(), ends.tolist()
    for low, high, block in zip(first.tolist(), after.tolist(), blocks, strict=True):
        base = b[low]
        out += [block] if high - low == 1 else [block[b[i] - base : e[i] - base] for i in range(low, high)]
    return out


def hash_words(words: Sequence[str]) -> str:
    """Return a 32-digit hash (xxh3, 128 bits) of a list of words."""
    import xxhash

    return str(xxhash.xxh3_128_hexdigest("\0".join(words).encode("utf-8", "surrogateescape")))


def fingerprint_of_starts(shards: Iterable[tuple[str, Int64s]]) -> str:
    """Return a short hash of shard paths and of where their samples begin."""
    import xxhash

    found = xxhash.xxh3_128()
    for number, (shard, starts) in enumerate(shards):
        found.update(("\0" * bool(number) + f"{shard} ").encode("utf-8", "surrogateescape"))
        found.update(starts.tobytes().hex().encode())
    return str(found.hexdigest())
