"""Helpers for orders that must be computed as a whole, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import LONGEST
from feedmill.planning.nodes.repeat import too_long


@contextmanager
def made_whole(samples: int) -> Iterator[None]:
    """Report running out of memory inside the block as a `ConfigError` about the order."""
    try:
        if samples >= 2**59:
            raise MemoryError  # numpy raises a different error for impossible sizes
        yield
    except MemoryError as error:
        size = samples * (4 if samples <= 2**32 else 8) / 1e9
        raise ConfigError(
            f"this order does not fit into memory: {samples:,} samples need {size:,.1f} GB and half as much again",
            kind="too-long",
            fix="Use a machine with more memory, or Feedmill's own order, which needs none.",
        ) from error


def countable(samples: int) -> int:
    """Return the number if it is a valid length of a plan.

    Raises:
        ConfigError: it exceeds 64 bits.
    """
    if samples > LONGEST:
        raise too_long(samples)
    return samples
