"""Hash keys to 128 bits, order the hashes by their first bits, and find the ones seen before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.curation.dedupe.units import Units
from feedmill.kernels.hashing import murmur

Hashes = npt.NDArray[np.uint64]


def hash_documents(units: Units) -> Hashes:
    """Return the XXH3 hashes of keys of one part each, uint64[keys, 2]. No hash is (0, 0), the empty slot of tables."""
    view = units.data.data
    bounds = zip(units.lows.tolist(), units.highs.tolist(), strict=True)
    digests = b"".join([xxhash.xxh3_128_digest(view[low:high]) for low, high in bounds])
    hashes = np.frombuffer(digests, ">u8").reshape(-1, 2).astype(np.uint64)
    hashes[~hashes.any(axis=1), 1] = 1
    return hashes


def hash_parts(units: Units) -> Hashes:
    """Return the MurmurHash3 of keys of any number of parts, uint64[keys, 2]; see `feedmill.kernels.hashing.murmur`."""
    hashes = np.empty((len(units.firsts), 2), np.uint64)
    murmur.hash_keys(units.data, units.lows, units.highs, units.firsts, units.counts, hashes)
    return hashes


def partition(hashes: Hashes, bits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Return a stable order of keys by the first `bits` of their hashes.

    Returns:
        The start of each part, int64[2^bits + 1], and the order, uint32[keys].
    """
    starts, order = np.empty((1 << bits) + 1, np.int64), np.empty(len(hashes), np.uint32)
    murmur.partition(hashes, 64 - bits, starts, order)
    return starts, order


def first_seen(slices: list[Hashes], inserted: list[bool]) -> list[npt.NDArray[np.bool_]]:
    """Return, for each slice, which of its keys occurred before in an `inserted` slice, as bool[keys].

    Before means earlier in the same slice or in an earlier slice.
    """
    count = sum(len(one) for one, goes_in in zip(slices, inserted, strict=True) if goes_in)
    table = np.zeros((1 << max(4, (2 * count).bit_length()), 2), np.uint64)
    out = []
    for one, goes_in in zip(slices, inserted, strict=True):
        found = np.empty(len(one), np.bool_)
        murmur.first_seen(one, table, goes_in, found)
        out.append(found)
    return out
