"""What tells the content of a file from another one's of the same size, at a cost that does not grow with the file.

A file's word is a hash of its size and of ten blocks of 32 KiB: the first, the last, and eight evenly between; of the
whole file where it has no more than that. A copy, wherever it lies, has the same word. Of more than `MOST` files, as
many are read, evenly spaced. So a change that lies between the blocks, or in a file between those, is not seen; what
`feedmill prepare` writes has a hash of all bytes.
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
"""Files that are read of a dataset."""
_THREADS = 16
"""Reading small blocks is waiting, and little else."""


def content_word(store: Store, path: str, size: int, start: int = 0) -> str:
    """The word of a file, or of the `size` bytes of it from `start` on, 32 digits. Raises as `Store.read` does."""
    if size <= BLOCK * BLOCKS:
        blocks = [store.read(path, start, size)]
    else:
        at = [start + (size - BLOCK) * number // (BLOCKS - 1) for number in range(BLOCKS)]
        blocks = store.read_ranges(path, at, [BLOCK] * BLOCKS)
    found = xxhash.xxh3_128(size.to_bytes(8, "little"))
    for block in blocks:
        found.update(block)
    return str(found.hexdigest())


def content_of_files(store: Store, paths: Sequence[str]) -> str:
    """One word for the content of files that belong together. Raises as `Store.stat` and `Store.read` do."""
    chosen = paths
    if len(paths) > MOST:
        chosen = [paths[int(number)] for number in np.linspace(0, len(paths) - 1, MOST)]

    def word(path: str) -> str:
        return content_word(store, path, store.stat(path).size)

    workers = _THREADS if len(chosen) > 1 else 0
    return hash_words(list(ordered_map(word, chosen, workers=workers, in_flight=4 * _THREADS)))
