"""The random generators of samples, apart from what draws from them because `numpy.random` takes long to load."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import SeedSequence
from numpy.random.bit_generator import ISpawnableSeedSequence


def generator(seed: int, position: int, stage: int = 0) -> np.random.Generator:
    """Return the random generator of a position: Philox with the key (seed, position). Creating one takes about 6 us.

    Generators that it spawns depend on the same. The stages of a position draw from parts of its stream that are 2^192
    apart.

    Counter-based generators with different keys are independent streams (Salmon et al., "Parallel random numbers: as
    easy as 1, 2, 3", 2011), so the draws of a transform depend only on the position of its sample.
    """
    key: Any = GeneratorKey(position, seed % (1 << 64), stage)  # numpy's stub does not know seeds of one's own
    return np.random.Generator(np.random.Philox(key, counter=stage << 192))


class GeneratorKey(ISpawnableSeedSequence):
    """The key of a Philox generator, in the place of a seed.

    Given a key as a number, numpy would ask the system for entropy: that takes 20 us, and generators that a transform
    spawns would differ from run to run.

    Args:
        position, seed: the words of the key.
        stage: see `generator`; generators that are spawned in other stages differ.
    """

    def __init__(self, position: int, seed: int, stage: int) -> None:
        self._words, self._stage = (position, seed), stage
        self._spawning: SeedSequence | None = None

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> Any:  # noqa: ARG002 - Philox asks for 2
        """Return the words, uint64[2]."""
        return np.array(self._words, dtype)

    def spawn(self, n_children: int) -> Any:
        """Return further `SeedSequence` objects, which depend only on the key and the number of earlier ones."""
        self._spawning = self._spawning or SeedSequence(self._words, spawn_key=(self._stage,))
        return self._spawning.spawn(n_children)
