"""Bloom filter files of Dolma 1.2: reading, writing and sizing.

Layout, little-endian::

    u32  magic 0x81F0F117
    u32  version 1
    u32  k, the number of hashes
    k x 4 x u64  their seeds
    u64  W, the number of words
    W x u32  the words

Hash h (see `feedmill.kernels.hashing.ahash`) is bit ``h mod 32`` of word ``h div 32 mod W``. Rejected: another magic or
version, k of 0, no words, and a file that is shorter or longer than its header declares.
"""

from __future__ import annotations

import math
import secrets
import struct
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.kernels.hashing.ahash import CONSTANTS
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again

MAGIC, VERSION = 0x81F0F117, 1
MOST_HASHES = 24
"""Maximum number of hashes of filters sized here. More make a filter slower, and 24 suffice for a rate of 10^-7."""
_HEAD = struct.Struct("<III")


@dataclass
class BloomFilter:
    """A filter in memory: seeds uint64[k, 4], words uint32[W]."""

    seeds: npt.NDArray[np.uint64]
    words: npt.NDArray[np.uint32]

    @property
    def keys(self) -> npt.NDArray[np.uint64]:
        """Return the seeds as the compiled hash takes them, uint64[4, k]."""
        return np.ascontiguousarray((self.seeds ^ np.array(CONSTANTS, np.uint64)).T)

    @property
    def fill(self) -> float:
        """Return the fraction of bits that are set."""
        return float(np.bitwise_count(self.words).sum()) / max(1, 32 * len(self.words))


def read_bloom(store: Store, path: str) -> BloomFilter:
    """Read a filter.

    Raises:
        NotFound, StorageError: the file cannot be read.
        DataError: the file is not a Bloom filter, or it is corrupt.
    """
    with store.local_copy(path) as local, open(local, "rb", buffering=0) as raw:
        seeds, count = _read_head(raw, local.stat().st_size, store.locate(path))
        return BloomFilter(seeds, np.fromfile(raw, "<u4", count).astype(np.uint32, copy=False))


def read_bloom_head(store: Store, path: str) -> tuple[npt.NDArray[np.uint64], int]:
    """Return the seeds of a filter, uint64[k, 4], and its number of words. Raises as `read_bloom`."""
    with store.local_copy(path) as local, open(local, "rb", buffering=0) as raw:
        return _read_head(raw, local.stat().st_size, store.locate(path))


def _read_head(raw: BinaryIO, size: int, where: str) -> tuple[npt.NDArray[np.uint64], int]:
    magic, version, k = _HEAD.unpack(raw.read(_HEAD.size).ljust(_HEAD.size, b"\0"))
    if magic != MAGIC or version != VERSION or not k:
        raise DataError(
            f"not a Bloom filter of version 1: the header is {magic:#x}, {version}, {k}",
            file=where,
            kind="bad-data",
            fix="Give a file that an earlier run wrote, or the name of a new file.",
        )
    head = _HEAD.size + 32 * k + 8
    if size < head:
        raise _wrong_size(where, head, size)
    seeds = np.frombuffer(raw.read(32 * k), "<u8").reshape(k, 4).astype(np.uint64)
    count = int.from_bytes(raw.read(8), "little")
    if not count or size != head + 4 * count:
        raise _wrong_size(where, head + 4 * count, size)
    return seeds, count


def write_bloom(store: Store, path: str, bloom: BloomFilter) -> None:
    """Write a filter. The file is published when it is complete."""
    with store.write(path) as f:
        f.write(_HEAD.pack(MAGIC, VERSION, len(bloom.seeds)))
        f.write(bloom.seeds.astype("<u8").tobytes())
        f.write(len(bloom.words).to_bytes(8, "little"))
        f.write(bloom.words.astype("<u4", copy=False).data)


def new_bloom(
    *,
    size: int = 0,
    items: int = 0,
    false_positives: float = 0.0,
    most: int | None = MOST_HASHES,
    seed: int | None = None,
) -> BloomFilter:
    """Return an empty filter, sized by Dolma's rules.

    Args:
        size: bytes; 0 for the first of 1 MiB, 2 MiB, 4 MiB, ... whose estimated rate reaches `false_positives`.
        items: expected number of keys.
        most: maximum number of hashes; None for as many as Dolma would use (thousands, for few items).
        seed: makes the seeds of the hashes reproducible; by default they are random.

    Raises:
        ConfigError: no size is given, and no size reaches `false_positives`.
    """
    if items <= 0:
        raise ConfigError(
            "a new Bloom filter needs the expected number of items",
            kind="bad-option",
            fix="Set --items, or bloom_filter.estimated_doc_count in a configuration.",
        )
    if size <= 0:
        if not 0 < false_positives < 1:
            raise ConfigError(
                f"invalid false positive rate of a Bloom filter: {false_positives}",
                kind="bad-option",
                fix="Set --false-positives between 0 and 1, or bloom_filter.size_in_bytes or"
                " .desired_false_positive_rate in a configuration.",
            )
        size = 1 << 20
        while _rate(size, items, most) > false_positives:
            size *= 2
    try:
        words = np.zeros(max(1, size // 4), np.uint32)
    except (MemoryError, ValueError, OverflowError):  # the last two are raised for sizes beyond the address space
        raise ConfigError(
            f"a Bloom filter of {size:,} bytes does not fit into memory",
            kind="bad-option",
            fix="Use fewer items or a higher false positive rate, or deduplicate without a filter.",
        ) from None
    k = hashes(size, items, most)
    if seed is None:
        seeds = np.frombuffer(secrets.token_bytes(32 * k), "<u8").reshape(k, 4).astype(np.uint64)
    else:
        seeds = np.random.default_rng(seed).integers(0, 2**64, (k, 4), np.uint64)
    return BloomFilter(seeds, words)


def hashes(size: int, items: int, most: int | None = MOST_HASHES) -> int:
    """Return the best number of hashes for a filter of `size` bytes: ``ceil(bits / items x ln 2)``, at most `most`."""
    k = max(1, math.ceil(8 * size / items * math.log(2)))
    return k if most is None else min(k, most)


def _rate(size: int, items: int, most: int | None) -> float:
    k = hashes(size, items, most)
    return float((1.0 - (1.0 - 1.0 / (8.0 * size)) ** (k * items)) ** k)


def _wrong_size(file: str, expected: int, found: int) -> DataError:
    return DataError(
        f"the Bloom filter is corrupt: expected {expected} bytes, found {found}",
        file=file,
        kind="bad-data",
        fix=copy_again(instead="delete it and run the command again"),
    )
