"""Units that run far longer than the others of their stage: a node that swaps, a mount that hangs, a stopped process.

The time of a unit is from its submission to its end, so that waiting for a worker counts for all alike, and it is
divided by the size of the unit where that is known: a file of 10 GB is not late because the others have 10 MB.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from feedmill.jobs.amounts import human_duration

_FACTOR = 10.0
"""A unit is late after this multiple of the median."""
_LEAST = 60.0  # seconds before a unit is late: a new worker may take half a minute to start
_ALONE = 1800.0  # seconds, while too few units have ended for a median
_FEW = 3
_RECENT = 1001  # ended units from which the median is taken
_GAP = 5.0  # seconds that a look adds at most: this process may have been stopped, or its caller busy


@dataclass(slots=True)
class _Unit:
    begin: float
    size: int
    named_at: float = 0.0  # age at which it was named last


class Stragglers:
    """The units in progress, by any key, with their ages.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.monotonic
        self._last, self._now = self._clock(), 0.0
        self._units: dict[Any, _Unit] = {}
        self._rates: deque[float] = deque(maxlen=_RECENT)  # seconds per size
        self._median, self._counted = 0.0, -1
        self._ended = 0

    def begin(self, key: Any, size: int = 1) -> None:
        """Note that a unit was submitted."""
        self._units[key] = _Unit(self._now, max(1, size))

    def end(self, key: Any) -> None:
        """Note that a unit has ended."""
        unit = self._units.pop(key, None)
        if unit is not None:
            self._ended += 1
            self._rates.append((self._now - unit.begin) / unit.size)

    def forget(self, key: Any) -> None:
        """Note that a unit is no longer in progress, although it has not ended."""
        self._units.pop(key, None)

    def tick(self) -> None:
        """Let the time pass. Call it at least every few seconds while units are in progress."""
        now = self._clock()
        self._now += min(max(0.0, now - self._last), _GAP)
        self._last = now

    def median(self, size: int = 1) -> float | None:
        """Return the median time in seconds of a unit of this size; None while too few have ended."""
        if self._ended < _FEW:
            return None
        if self._counted < 0 or self._ended - self._counted > len(self._rates) // 8:  # sorting each time is quadratic
            self._median, self._counted = statistics.median(self._rates), self._ended
        return self._median * max(1, size)

    @property
    def now(self) -> float:
        """Seconds that have passed, without those in which this process was stopped."""
        return self._now

    def late(self, factor: float = _FACTOR, least: float = _LEAST) -> list[tuple[Any, float]]:
        """Return the units that are late, each with its age in seconds: `factor` medians and `least` seconds.

        One that was `named` is returned again when its age has doubled.
        """
        found = []
        for key, unit in self._units.items():
            age = self._now - unit.begin
            if age < least or age < 2 * unit.named_at:
                continue
            median = self.median(unit.size)
            if age >= (_ALONE if median is None else factor * median):
                found.append((key, age))
        return found

    def named(self, key: Any) -> None:
        """Note that a warning names this unit."""
        unit = self._units[key]
        unit.named_at = self._now - unit.begin

    def median_text(self, key: Any) -> str:
        """Return the median for messages, as ``" (median 1.5 s)"``; empty if it is unknown."""
        unit = self._units.get(key)
        median = None if unit is None else self.median(unit.size)
        if median is None:
            return ""
        return f" (median {human_duration(median) if median >= 10 else f'{median:.1f} s'})"


def lateness(stage: str | None, names: Sequence[str], age: float, median: str, where: str = "") -> str:
    """Return the warning for a late unit.

    Args:
        stage: name of the stage, if it has one.
        names: what it works on.
        age: in seconds.
        median: see `Stragglers.median_text`.
        where: as `` on node n1``.
    """
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"{f'{stage}: ' if stage else ''}the unit {shown} has run for {human_duration(age)}{where}{median}"
