"""Protocols of the plans that a loader accepts.

`feedmill.planning` implements them. Implement `PlainPlan` to load from your own object; `completed` adds the rest of
`PlanLike`. `ReadableAhead` is for plans with remote data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from feedmill.formats.batches import Batch, Want
from feedmill.formats.offsets import Extents
from feedmill.formats.sample import Source

if TYPE_CHECKING:
    from feedmill.planning.packing.options import Packing
    from feedmill.planning.packing.spans import LocatedSpans
    from feedmill.planning.resuming.resume import Allowed
    from feedmill.storage.cache.settings import DataCache

Positions = npt.NDArray[np.int64]


class LocatedLike(Protocol):
    """The samples of positions: int32[n] source numbers, int64[n] sample numbers in the source, int64[n] epochs."""

    @property
    def source(self) -> npt.NDArray[np.int32]:
        """Number of the source of each position, int32[n]."""

    @property
    def index(self) -> npt.NDArray[np.int64]:
        """Number of the sample within its source, int64[n]."""

    @property
    def epoch(self) -> npt.NDArray[np.int64]:
        """Epoch of the source in which the sample is read, int64[n]."""


class PlainPlan(Protocol):
    """A pure function from positions to samples, safe to call from several threads.

    Attributes:
        length: number of samples in the plan; None if it never ends.
        seed: the recipe's seed.
        fingerprint: hash of the whole plan: equal fingerprints mean the same order of the same samples.
        fingerprints: the hash of each component that may change, by name; compared by `explain_change`.
    """

    @property
    def length(self) -> int | None:
        """Number of samples; None if the plan never ends."""

    @property
    def seed(self) -> int:
        """The recipe's seed."""

    @property
    def fingerprint(self) -> str:
        """Hash of the whole plan."""

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Hash of each component that may change, by name."""

    def locate(self, positions: Positions) -> LocatedLike:
        """Return source, sample number and epoch of each position, int64[n]."""

    def read(self, positions: Positions) -> list[Any]:
        """Return the samples at these positions, int64[n], in that order."""

    def explain_change(self, old: dict[str, str]) -> list[str]:
        """Return the differences between this plan and the one with the fingerprints `old`, a phrase for each."""


class PlanLike(PlainPlan, Protocol):
    """The full interface of plans that loaders use.

    Attributes:
        names: names of the sources; empty if they have none.
    """

    @property
    def names(self) -> Sequence[str]:
        """Names of the sources; empty if they have none."""

    def locate_to_read(self, positions: Positions) -> LocatedLike | LocatedSpans | None:
        """Return the lookup of positions that `read` and the labels share; None if `read` does its own lookup."""

    def locate_sample(self, source: int, index: int) -> Source | None:
        """Return the location of a sample of a source; None if it is unknown."""

    def read(self, positions: Positions, located: Any = None) -> list[Any]:
        """Return the samples at these positions, int64[n], in that order.

        Args:
            positions: the positions.
            located: the result of `locate_to_read` for them; None to look them up.
        """

    def read_batch(self, positions: Positions, want: Want, located: Any = None) -> Batch | None:
        """Return the same samples as a batch, or its parts; None if that is not faster than `read`."""

    def bookmark(self, position: int) -> dict[str, Any]:
        """Return the entries of a state besides position and fingerprint, as JSON data."""

    def reopened(self, state: Mapping[str, Any], allowed: Allowed, proven: dict[str, int]) -> int:
        """Return the position at which a state of another plan resumes. Raises ConfigError if that is not allowed."""


class ReadableAhead(Protocol):
    """The interface for reading ahead from remote stores. Plans without it are not read ahead.

    Attributes:
        is_remote: whether the plan has remote data that `extents` can return.
        cache: settings of the cache for remote data; None for those of the environment.
    """

    is_remote: bool
    cache: DataCache | None

    def extents(self, positions: Positions, located: Any = None) -> Sequence[Extents]:
        """Return the byte ranges that `read` will request of remote stores for these positions, int64[n]."""


@runtime_checkable
class PlannedByReading(Protocol):
    """The interface of plans that must read samples to find those of a position; `bookmark` stores how far they are."""

    def use_landmark(self, state: Mapping[str, Any]) -> None:
        """Begin where the state of a loader says, so that nothing before it is read."""


class PackedLike(Protocol):
    """What loaders ask of plans that pack; others lack it.

    Attributes:
        of_samples: whether rows are of whole samples (`feedmill.samples.SampleRow`), not of tokens.
        packing: how samples or documents are packed.
        width: tokens of a row of tokens, with the one by which targets are shifted.
        borders: positions from which rows have another width, ascending.
        widths: returns the widths of the rows at positions, int64[n].
    """

    of_samples: bool
    packing: Packing
    width: int
    borders: Sequence[int]
    widths: Callable[[Positions], Positions]


def yields_rows(plan: Any) -> bool:
    """Return whether a plan yields rows of samples (`feedmill.samples.SampleRow`)."""
    return bool(getattr(plan, "of_samples", False))


class _Completed:
    """Adapter from `PlainPlan` to `PlanLike`, without the faster paths of `PlanLike`."""

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
        changes = self.explain_change(dict(state.get("sources", {})))
        from feedmill.planning.resuming.resume import changed

        raise changed(changes or [f"its fingerprint was {state['plan']} and is {self.fingerprint}"])


_PLAN_LIKE_NAMES = ("names", "locate_to_read", "locate_sample", "read_batch", "bookmark", "reopened")


def completed(plan: PlainPlan) -> PlanLike:
    """Return the plan if it implements `PlanLike`, otherwise an adapter that does."""
    return cast("PlanLike", plan) if all(hasattr(plan, name) for name in _PLAN_LIKE_NAMES) else _Completed(plan)
