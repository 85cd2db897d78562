"""What a loader asks of a plan; `feedmill.planning` gives it, and so can any other object with these few names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class LocatedLike(Protocol):
    """Where positions lead: int32[n] source numbers, int64[n] sample numbers in the source, int64[n] epochs."""

    @property
    def source(self) -> npt.NDArray[np.int32]: ...

    @property
    def index(self) -> npt.NDArray[np.int64]: ...

    @property
    def epoch(self) -> npt.NDArray[np.int64]: ...


class PlanLike(Protocol):
    """A pure function from positions to samples, safe to call from several threads.

    Attributes:
        length: samples in the plan, or None where it never ends.
        seed: the recipe's seed.
        fingerprint: one word for the whole plan: the same word means the same order of the same samples.
        fingerprints: that word for each part that may change, by name; what `explain_change` compares.
    """

    @property
    def length(self) -> int | None: ...

    @property
    def seed(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def fingerprints(self) -> Mapping[str, str]: ...

    def locate(self, positions: npt.NDArray[np.int64]) -> LocatedLike:
        """Source, sample number and epoch of each position, int64[n]."""

    def read(self, positions: npt.NDArray[np.int64]) -> list[Any]:
        """The samples at these positions, int64[n], in that order."""

    def explain_change(self, old: dict[str, str]) -> list[str]:
        """What differs between this plan and the one with the fingerprints `old`, a phrase for each difference."""
