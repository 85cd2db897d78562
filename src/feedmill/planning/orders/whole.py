"""What it means that an order has to be made as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import LONGEST
from feedmill.planning.nodes.repeat import too_long


@contextmanager
def made_whole(samples: int) -> Iterator[None]:
    """Running out of memory inside is reported as the order's fault."""
    try:
        if samples >= 2**59:
            raise MemoryError  # numpy has another error for what no memory could ever hold
        yield
    except MemoryError as error:
        size = samples * (4 if samples <= 2**32 else 8) / 1e9
        raise ConfigError(
            f"this order has to be made as a whole: {samples:,} samples take {size:,.1f} GB and half as much again",
            kind="too-long",
            fix="Use a machine with more memory, or Feedmill's own order, which takes none.",
        ) from error


def countable(samples: int) -> int:
    """Return the number, if positions can be numbered with it.

    Raises:
        ConfigError: it is beyond 64 bits.
    """
    if samples > LONGEST:
        raise too_long(samples)
    return samples
