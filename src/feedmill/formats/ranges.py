"""Read many ranges of remote files into one buffer: in one call, without the GIL, where they were read ahead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from feedmill.formats.offsets import Int64s
from feedmill.kernels.files.ranges_compiled import copy_all, read_all
from feedmill.storage import Store
from feedmill.storage.base import OnDisk, Ranges


def read_remote(
    store: Store, files: Sequence[Ranges], offsets: Int64s, lengths: Int64s, buffer: npt.NDArray[np.uint8]
) -> None:
    """Read ranges of several files into a buffer of their total size, without gaps.

    Args:
        files: the ranges, by file.
        offsets, lengths: int64[n], all of them, in the same order.
        buffer: uint8, contiguous.

    Raises:
        DataError: a range ends after the end of its file.
        StorageError: it cannot be read.
    """
    # Loading compiled code takes longer than many a first batch: `Dataset.warm` does it meanwhile.
    found = store.fetched(files) if copy_all.loaded else None
    if found is not None:
        addresses = np.cumsum(lengths) - lengths + int(buffer.__array_interface__["data"][0])
        if not isinstance(found, OnDisk):
            copy_all(found.addresses, lengths, addresses)
            return
        count = read_all(found.descriptors, np.ascontiguousarray(offsets), lengths, addresses)
        if count == len(lengths) and found.unchanged():
            return
    store.fill(files, buffer.data)


def load_copying() -> None:
    """Load the compiled code that copies what was read ahead."""
    none = np.zeros(0, np.int64)
    read_all(none, none, none, none)
    copy_all(none, none, none)
