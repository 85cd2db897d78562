"""The random generators of samples, and how functions of users take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np


def generator(seed: int, position: int, stage: int = 0) -> np.random.Generator:
    """Return the random generator of a position: Philox with the key (seed, position). Creating one takes about 6 us.

    Generators that it spawns depend on the same. The stages of a position draw from parts of its stream that are 2^192
    apart.

    Counter-based generators with different keys are independent streams (Salmon et al., "Parallel random numbers: as
    easy as 1, 2, 3", 2011), so the draws of a transform depend only on the position of its sample.
    """
    from feedmill.loading.generator_keys import GeneratorKey

    key: Any = GeneratorKey(position, seed % (1 << 64), stage)  # numpy's stub does not know seeds of one's own
    return np.random.Generator(np.random.Philox(key, counter=stage << 192))


def takes_rng(transform: Callable[..., Any]) -> bool:
    """Return whether the transform takes a generator: a parameter ``rng``, or a second one without a default."""
    try:
        parameters = list(inspect.signature(transform).parameters.values())
    except (TypeError, ValueError):  # built-in functions may have no signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].name == "rng" or positional[1].default is inspect.Parameter.empty)


def named_rng(transform: Callable[..., Any]) -> bool:
    """Return whether the transform takes a generator only as the keyword ``rng``."""
    try:
        parameter = inspect.signature(transform).parameters.get("rng")
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.kind is parameter.KEYWORD_ONLY
