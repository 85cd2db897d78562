"""Hash samples of a file's content, at a cost that does not grow with the file.

The hash of a file covers its size and ten blocks of 32 KiB: the first, the last, and eight evenly spaced between them
(smaller files are hashed whole). Copies have the same hash. Of more than `MOST` files, `MOST` are read, evenly spaced.
A change between the blocks, or in a file that is not read, is not detected; the index that `feedmill prepare` writes
has hashes of all bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

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


def _hash_of(size: int, blocks: Iterable[bytes | memoryview]) -> str:
    hasher = xxhash.xxh3_128(size.to_bytes(8, "little"))
    for block in blocks:
        hasher.update(block)
    return str(hasher.hexdigest())


class ContentHashes(NamedTuple):
    """Hashes of a sample of a file: `content_hash`, `middle_hash`, and 8 hex digits for each of its `block_places`."""

    word: str
    middle: str
    blocks: str


def content_hashes(store: Store, path: str, size: int) -> ContentHashes:
    """Return the hashes of a file. Raises as `Store.read`."""
    return hashes_of(partial(store.read_ranges, path), size)


def hashes_of(read: Callable[[Sequence[int], Sequence[int]], Sequence[bytes | memoryview]], size: int) -> ContentHashes:
    """Return the hashes of a file of `size` bytes.

    Args:
        read: returns its ranges by their offsets and lengths; called once.
    """
    at, length = block_places(size)
    middle = middle_place(size)[0]
    if small := size <= BLOCK * BLOCKS:
        (whole,) = read([0], [size])
        parts: Sequence[bytes | memoryview] = [whole[offset : offset + length] for offset in (*at, middle)]
    else:
        parts = read([*at, middle], [length] * (len(at) + 1))
    word = _hash_of(size, [whole] if small else parts[:-1])
    return ContentHashes(word, _hash_of(size, parts[-1:]), "".join(map(block_hash, parts[:-1])))


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
    return _hash_of(size, store.read_ranges(path, [begin], [length]))


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
