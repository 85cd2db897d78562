"""The hashes of `feedmill.kernels.hashing.ahash` one by one, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from feedmill.kernels.hashing.ahash import CONSTANTS, _folded, _rotl, _State


def hash_key(parts: Sequence[bytes], seeds: Sequence[int]) -> int:
    """Return the hash of one key under one quadruple of seeds."""
    k0, k1, k2, k3 = (int(seed) ^ constant for seed, constant in zip(seeds, CONSTANTS, strict=True))
    state = _State(k1, k0, k2, k3)
    state.update(len(parts))
    for part in parts:
        state.write(part)
        state.update(0xFF)
    return _rotl(_folded(state.buffer, k0), state.buffer % 64)


def positions(keys: Sequence[Sequence[bytes]], seeds: npt.NDArray[np.uint64], words: int) -> npt.NDArray[np.uint64]:
    """Return the bit of each hash in a filter of `words` 32-bit words, uint64[keys, k]."""
    found = np.zeros((len(keys), len(seeds)), np.uint64)
    for i, key in enumerate(keys):
        for j, four in enumerate(seeds.tolist()):
            value = hash_key(key, four)
            found[i, j] = value // 32 % words * 32 + value % 32
    return found
