"""Exact schedules from weights: by a table of one period, by lines, by deadlines, in runs, in stages, and on ramps."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

PERIOD_LIMIT = 2**20
"""Longest period that is stored as a table."""


class Change(NamedTuple):
    """The weight of a source in a ramp: at its beginning and its end, and what else its values depend on."""

    begin: Fraction
    end: Fraction
    kind: str
    samples: int

    def __bool__(self) -> bool:
        return bool(self.begin or self.end)

    def __str__(self) -> str:
        return f"{self.begin} to {self.end} ({self.kind})"
