"""Hash samples of a file's content, at a cost that does not grow with the file.

The hash of a file covers its size and ten blocks of 32 KiB: the first, the last, and eight evenly spaced between them
(smaller files are hashed whole). Copies have the same hash. Of more than `MOST` files, `MOST` are read, evenly spaced.
A change between the blocks, or in a file that is not read, is not detected; the index that `feedmill prepare` writes
has hashes of all bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from feedmill.formats.offsets import hash_words
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store

BLOCK, BLOCKS = 32 << 10, 10
MOST = 1024
"""Maximum number of files of a dataset that are read."""
_THREADS = 16
"""Number of threads; reading small blocks is mostly waiting."""


def content_hash(store: Store, path: str, size: int, start: int = 0) -> str:
    """Return the hash of `size` bytes of a file from offset `start`, 32 hex digits. Raises as `Store.read`."""
    if size <= BLOCK * BLOCKS:
        blocks = [store.read(path, start, size)]
    else:
        at = [start + (size - BLOCK) * number // (BLOCKS - 1) for number in range(BLOCKS)]
        blocks = store.read_ranges(path, at, [BLOCK] * BLOCKS)
    return _hash_of(size, blocks)


def _hash_of(size: int, blocks: Sequence[bytes]) -> str:
    hasher = xxhash.xxh3_128(size.to_bytes(8, "little"))
    for block in blocks:
        hasher.update(block)
    return str(hasher.hexdigest())


def content_hashes(store: Store, path: str, size: int) -> tuple[str, str]:
    """Return `content_hash` of a file, and the hashes of the blocks at `block_places`, 8 hex digits each.

    Raises as `Store.read`.
    """
    at, length = block_places(size)
    if size <= BLOCK * BLOCKS:
        whole = [store.read(path, 0, size)]
        blocks = [whole[0][offset : offset + length] for offset in at]
    else:
        whole = blocks = store.read_ranges(path, at, [length] * len(at))
    return _hash_of(size, whole), "".join(map(block_hash, blocks))


def block_places(size: int) -> tuple[list[int], int]:
    """Return the offsets of up to ten evenly spaced blocks of a file, and their length in bytes.

    The first and the last block are among them. For a file of more than ten blocks they are those of `content_hash`.
    """
    length = min(BLOCK, size)
    count = max(1, min(BLOCKS, size // BLOCK))
    return [(size - length) * number // max(1, count - 1) for number in range(count)], length


def block_hash(block: bytes | memoryview) -> str:
    """Return the hash of one block, 8 hex digits."""
    return f"{xxhash.xxh3_64_intdigest(block) & 0xFFFFFFFF:08x}"


def middle_hash(store: Store, path: str, size: int) -> str:
    """Return the hash of the size of a file and of a block from its middle, which takes one request. Raises as
    `Store.read`."""
    begin, length = middle_place(size)
    hasher = xxhash.xxh3_128(size.to_bytes(8, "little"))
    hasher.update(store.read_ranges(path, [begin], [length])[0])
    return str(hasher.hexdigest())


def middle_place(size: int) -> tuple[int, int]:
    """Return the offset and the length of the block of `middle_hash`, in bytes."""
    length = min(BLOCK, size)
    return (size - length) // 2, length


def content_of_files(store: Store, paths: Sequence[str]) -> str:
    """Return one hash for the content of several files. Raises as `Store.stat` and `Store.read`."""
    chosen = paths
    if len(paths) > MOST:
        chosen = [paths[int(number)] for number in np.linspace(0, len(paths) - 1, MOST)]

    def hash_of(path: str) -> str:
        return content_hash(store, path, store.stat(path).size)

    workers = _THREADS if len(chosen) > 1 else 0
    return hash_words(list(ordered_map(hash_of, chosen, workers=workers, in_flight=4 * _THREADS)))
