"""Positions of a plan, as users give them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, NotFound
from feedmill.planning.nodes.base import LONGEST
from feedmill.planning.skip_ranges import Gaps


def inside(positions: npt.ArrayLike, end: int) -> npt.NDArray[np.int64]:
    """Return positions as int64[n].

    Raises:
        ConfigError: they are not integers in one dimension.
        NotFound: one of them is outside ``[0, end)``.
    """
    given = np.asarray(positions)
    if given.size and (given.dtype.kind not in "iu" or given.ndim != 1):
        raise ConfigError(
            f"positions must be a 1-D integer array, not {given.dtype} of shape {given.shape}", kind="bad-position"
        )
    row = given.astype(np.int64).reshape(-1)
    if len(row):
        low, high = int(given.min()), int(given.max())
        if low < 0 or high >= end:
            raise NotFound(
                f"there is no position {low if low < 0 else high} (the plan has {end:,})",
                kind="no-such-position",
                fix="Positions count from 0; 'samples' or 'epochs' in the recipe set where they end.",
            )
    return row


def budget(samples: int | None, length: int | None) -> int | None:
    """Return a number of positions from the first one: `samples`, by default the whole plan; None for an endless one.

    Raises:
        ConfigError: the plan has fewer.
    """
    if samples is None:
        return length
    most = LONGEST if length is None else length
    if not 0 <= samples <= most:
        raise ConfigError(
            f"{samples:,} samples are requested, the plan has {most:,}",
            kind="bad-budget",
            fix="Request fewer, or raise 'samples', 'epochs' or 'max_repeats' in the recipe.",
        )
    return samples


def position_of(unskipped: int, skip: Gaps | None, length: int | None) -> int:
    """Return the position of an unskipped position. Arguments and errors: `Plan.position_of`."""
    skipped = 0 if skip is None else skip.skipped(unskipped)
    end = None if length is None else length + (0 if skip is None else skip.count)
    if unskipped < 0 or (end is not None and unskipped > end):
        raise NotFound(
            f"there is no unskipped position {unskipped:,}: the plan has {'no end' if end is None else f'{end:,}'}",
            kind="no-such-position",
            fix="Give a position that 'feedmill trace' shows under 'unskipped'.",
        )
    return unskipped - skipped
