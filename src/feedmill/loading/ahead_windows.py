"""Windows of steps whose bytes are read ahead together, and the byte ranges that they need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from feedmill.formats.extents import Extents
from feedmill.planning.dealing.grid import Step


class Window(NamedTuple):
    """Consecutive steps of a rank.

    Attributes:
        first: number of the first step.
        steps: the steps.
        extents: the byte ranges that they need.
    """

    first: int
    steps: list[Step]
    extents: list[Ranges]


class Ranges(NamedTuple):
    """Byte ranges of files of one store.

    Attributes:
        extents: the ranges.
        steps: int64[m], the number of the step that needs each.
        uses: int64[m] each: the positions of the plan that read each range now, and next; see `ReadAhead.want`.
    """

    extents: Extents
    steps: Any
    uses: tuple[Any, Any] | None


def together(window: Window, following: Window | None) -> Iterator[Ranges]:
    """Yield the ranges of two windows, those of the same files as one."""
    others = list(following.extents) if following else []
    for ranges in window.extents:
        extents = ranges.extents
        for number, other in enumerate(others):
            if other.extents.store is extents.store and other.extents.paths == extents.paths:
                del others[number]
                uses = None
                if ranges.uses is not None and other.uses is not None:
                    now, later = map(np.concatenate, zip(ranges.uses, other.uses, strict=True))
                    uses = now, later
                yield Ranges(extents.joined(other.extents), np.concatenate((ranges.steps, other.steps)), uses)
                break
        else:
            yield ranges
