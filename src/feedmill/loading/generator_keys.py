"""Keys of generators, apart from their functions because `numpy.random` takes long to load."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import SeedSequence
from numpy.random.bit_generator import ISpawnableSeedSequence


class GeneratorKey(ISpawnableSeedSequence):
    """The key of a Philox generator, in the place of a seed.

    Given a key as a number, numpy would ask the system for entropy: that takes 20 us, and generators that a transform
    spawns would differ from run to run.

    Args:
        position, seed: the words of the key.
        stage: see `generators.generator`; generators that are spawned in other stages differ.
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
