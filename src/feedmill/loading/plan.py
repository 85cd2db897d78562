"""Protocols of the plans that a loader accepts; `feedmill.planning` implements them, and other objects can, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from feedmill.formats.base import Source
from feedmill.formats.batches import Batch, Want
from feedmill.formats.extents import Extents
from feedmill.planning.packing.spans import LocatedSpans
from feedmill.planning.resuming.resume import Allowed, changed, differing
from feedmill.storage.cache.settings import DataCache

Positions = npt.NDArray[np.int64]


class LocatedLike(Protocol):
    """Where positions lead: int32[n] source numbers, int64[n] sample numbers in the source, int64[n] epochs."""

    @property
    def source(self) -> npt.NDArray[np.int32]: ...

    @property
    def index(self) -> npt.NDArray[np.int64]: ...

    @property
    def epoch(self) -> npt.NDArray[np.int64]: ...


class PlainPlan(Protocol):
    """A pure function from positions to samples, safe to call from several threads.

    Attributes:
        length: samples in the plan, or None if it never ends.
        seed: the recipe's seed.
        fingerprint: hash of the whole plan: equal fingerprints mean the same order of the same samples.
        fingerprints: the hash of each component that may change, by name; compared by `explain_change`.
    """

    @property
    def length(self) -> int | None: ...

    @property
    def seed(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def fingerprints(self) -> Mapping[str, str]: ...

    def locate(self, positions: Positions) -> LocatedLike:
        """Source, sample number and epoch of each position, int64[n]."""

    def read(self, positions: Positions) -> list[Any]:
        """The samples at these positions, int64[n], in that order."""

    def explain_change(self, old: dict[str, str]) -> list[str]:
        """Return the differences between this plan and the one with the fingerprints `old`, a phrase for each."""


class PlanLike(PlainPlan, Protocol):
    """The full interface of plans that loaders use.

    Attributes:
        names: of the sources; empty if they have none.
    """

    @property
    def names(self) -> Sequence[str]: ...

    def locate_to_read(self, positions: Positions) -> LocatedLike | LocatedSpans | None:
        """Return the lookup of positions that `read` and the labels share; None if `read` does its own lookup."""

    def locate_sample(self, source: int, index: int) -> Source | None:
        """Return the location of a sample of a source; None if it is unknown."""

    def read(self, positions: Positions, located: Any = None) -> list[Any]:
        """The samples at these positions, int64[n], in that order; `located` is what `locate_to_read` gave for them."""

    def read_batch(self, positions: Positions, want: Want, located: Any = None) -> Batch | None:
        """The same samples as a batch, or the parts of one; None if there is no shorter way than `read`."""

    def bookmark(self, position: int) -> dict[str, Any]:
        """Return what a state stores besides position and fingerprint, as JSON data."""

    def reopened(self, state: Mapping[str, Any], allowed: Allowed, proven: dict[str, int]) -> int:
        """The position at which a state of another plan resumes. Raises ConfigError if that is not allowed."""


class ReadableAhead(Protocol):
    """What reading ahead from remote stores uses of a plan. A plan that does not have it is not read ahead.

    Attributes:
        is_remote: whether `extents` has something to request.
        cache: where remote data is kept on this machine; None for the settings of the environment.
    """

    is_remote: bool
    cache: DataCache | None

    def extents(self, positions: Positions, located: Any = None) -> Sequence[Extents]:
        """Return the byte ranges that `read` will request of remote stores for these positions, int64[n]."""


class _Completed:
    """A plan with the names of `PlainPlan`, and without a shorter way to anything."""

    def __init__(self, plan: PlainPlan) -> None:
        self._plan = plan
        self.names: Sequence[str] = getattr(plan, "names", ())
        self.locate, self.explain_change = plan.locate, plan.explain_change

    @property
    def length(self) -> int | None:
        return self._plan.length

    @property
    def seed(self) -> int:
        return self._plan.seed

    @property
    def fingerprint(self) -> str:
        return self._plan.fingerprint

    @property
    def fingerprints(self) -> Mapping[str, str]:
        return self._plan.fingerprints

    def locate_to_read(self, positions: Positions) -> None:  # noqa: ARG002
        return None

    def locate_sample(self, source: int, index: int) -> None:  # noqa: ARG002
        return None

    def read(self, positions: Positions, located: Any = None) -> list[Any]:  # noqa: ARG002
        return self._plan.read(positions)

    def read_batch(self, positions: Positions, want: Want, located: Any = None) -> None:  # noqa: ARG002
        return None

    def bookmark(self, position: int) -> dict[str, Any]:  # noqa: ARG002
        return {"sources": dict(self.fingerprints)}

    def reopened(self, state: Mapping[str, Any], allowed: Allowed, proven: dict[str, int]) -> int:  # noqa: ARG002
        sources = dict(state.get("sources", {}))
        changes = self.explain_change(sources) if sources else differing(self.fingerprints, str(state.get("parts", "")))
        raise changed(changes or [f"its fingerprint was {state['plan']} and is {self.fingerprint}"])


_MORE = ("names", "locate_to_read", "locate_sample", "read_batch", "bookmark", "reopened")


def completed(plan: PlainPlan) -> PlanLike:
    """Return the plan itself where it has all that a loader uses, else one that has it through the plan's few names."""
    return cast("PlanLike", plan) if all(hasattr(plan, name) for name in _MORE) else _Completed(plan)
