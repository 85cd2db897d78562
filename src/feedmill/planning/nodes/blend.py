"""Nodes of several children: `Concat`, one after the other, and blends, which interleave them by weight.

The weights of a `Blend` are fixed. Those of a `StagedBlend` change at given sample counts. Each epoch of an
`EpochizedBlend` holds every child a given number of times.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from fractions import Fraction
from math import inf, lcm
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.kernels.bounds import bounds_of
from feedmill.planning.mixing import PERIOD_LIMIT, Change
from feedmill.planning.nodes.base import LONGEST, NOWHERE, Epochs, IntArray, Junction, Node, borders
from feedmill.planning.nodes.repeat import Repeat, epochs_of, epochs_text, too_long

if TYPE_CHECKING:
    from feedmill.planning.mixing.blend import AnySchedule


def common_group(children: Sequence[Node], sizes: Sequence[int] = ()) -> int | None:
    """Return the samples of a run that is whole groups of each of several nodes; None if there is no such number.

    Args:
        sizes: multiples of which the run must divide.
    """
    groups = [child.group for child in children]
    known = [group for group in groups if group is not None]
    together = lcm(*known)
    return None if len(known) < len(groups) or any(size % together for size in sizes) else together


class Concat(Junction):
    """Node that has all positions of the first child, then all of the second, and so on, in each epoch."""

    length: int
    tag = "concat"

    def __init__(self, children: Sequence[Node]) -> None:
        super().__init__(children)
        if not children:
            raise ConfigError("there is nothing to concatenate", kind="empty-source")
        self._sizes = [child.finite("a concatenation") for child in children]
        self.length = sum(self._sizes)
        if self.length > LONGEST:
            raise too_long(self.length)
        self._starts = bounds_of(self._sizes[:-1])
        self.group = common_group(self.children, self._sizes)
        self._ends = self._starts + np.array(self._sizes, np.int64)

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[npt.NDArray[np.int64], IntArray, Epochs]:
        child = np.searchsorted(self._ends, positions, side="right")
        return child, positions - self._starts[child], epochs

    def outward(self, child: IntArray, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        return positions + self._starts[child], epochs

    def whole(self, total: int) -> int:
        epochs, rest = divmod(total, self.length)
        if not rest:
            return total
        number = int(np.searchsorted(self._ends, rest))  # the child in which the cut is, or after which
        before = epochs * self._sizes[number]
        inside = self.children[number].whole(before + rest - int(self._starts[number])) - before
        return epochs * self.length + int(self._starts[number]) + inside

    def draws(self, total: int) -> Sequence[int]:
        epochs, rest = divmod(total, self.length)
        return [
            epochs * size + min(max(rest - int(start), 0), size)
            for size, start in zip(self._sizes, self._starts, strict=True)
        ]

    def stream_prefix(self, other: Node, total: int) -> Sequence[tuple[Node, Node, int]] | None:
        """Compare the children as far as they are reached; after the first epoch, all of them."""
        if not isinstance(other, Concat) or total > min(self.length, other.length):
            return super().stream_prefix(other, total)
        pairs = []
        for child, child_of_other, size, size_of_other in zip(
            self.children, other.children, self._sizes, other._sizes, strict=False
        ):
            used = min(total, size)
            if used > size_of_other or (total > size and size != size_of_other):
                return None
            pairs.append((child, child_of_other, used))
            total -= used
            if not total:
                break
        return pairs

    def paths(self, *, root: bool, repeated: bool) -> Sequence[Sequence[str]]:  # noqa: ARG002
        return [[f"number {number} of a row"] for number in range(len(self.children))]

    def seams(self, start: int, stop: int) -> IntArray:
        ends = self._ends.tolist()
        return np.concatenate([self.child_seams(start, stop), borders(ends, self.length, start, stop)])

    def describe(self) -> str:
        return "concat"


Shares: TypeAlias = "tuple[Fraction, ...]"

Weights: TypeAlias = "tuple[Fraction | Change, ...]"
Phases = Sequence[tuple[int | None, Weights]]
"""The stages of a blend: the length of each, None for no end, and the share of each child in it, which may change."""

_LONGEST_SHOWN = 10**6
_LARGEST_COMMON = 10**18


class ScheduleLike(Protocol):
    """Protocol of schedules: those of `mixing.blend`."""

    @property
    def counts(self) -> IntArray:
        """Return 0 for sources that are never drawn, a positive number for others: int64[sources]."""

    @property
    def period(self) -> int | None:
        """Return the number of positions after which the schedule repeats; None if it never does."""

    def at(self, positions: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
        """Return source and ordinal of positions int64[n]."""

    def positions(self, source: npt.NDArray[Any], ordinal: IntArray) -> IntArray:
        """Return the inverse of `at`; -1 if a source has no such draw."""

    def position(self, source: int, ordinal: int) -> int | None:
        """Return the position of one draw, as an integer of any size; None if it does not occur."""

    def drawn(self, total: int) -> list[int]:
        """Return the number of draws of each source in the first `total` positions."""


class Interleaved(Junction):
    """Node that interleaves the streams of its children in the order of a schedule.

    Endless if the schedule and the children are. Otherwise it ends before the first position that would draw more from
    a child than one epoch of it. If the node is repeated, each child's stream continues.

    Args:
        children: the nodes to interleave.
        schedule: the child that each position draws from.
        length: length of the node; must not exceed what the children allow.
        longest: length of the schedule; None if it is endless.

    Attributes:
        asked_length: `length` as given.
        run_length: samples of one child at a time.
        in_groups: whether the runs only keep groups of samples together.
    """

    run_length: int = 1
    in_groups = False
    options: ClassVar[Mapping[str, Any]] = {"run_length": 1}
    restarts = False
    """Whether the schedule begins again with each epoch, even after whole periods."""

    def __init__(
        self, children: Sequence[Node], schedule: ScheduleLike, length: int | None = None, longest: int | None = None
    ) -> None:
        super().__init__(children)
        self._schedule, self.asked_length = schedule, length
        lengths = [child.length for child in children]
        ends = [schedule.position(i, size) for i, size in enumerate(lengths) if size is not None and schedule.counts[i]]
        known = [end for end in (*ends, longest) if end is not None]
        self.length = min(*known, LONGEST) if known else None
        if length is not None and not 1 <= length <= (self.length or LONGEST):
            raise ConfigError(
                f"the blend cannot have {length:,} samples: a source of it ends after {self.length or LONGEST:,}",
                kind="too-large",
                fix="Request fewer samples, or allow its sources to repeat more often.",
            )
        self.length = length or self.length
        # An endless child counts as one epoch of maximum length.
        self._lengths = np.array([LONGEST if size is None else size for size in lengths], np.int64)
        self._per_epoch = np.array(schedule.drawn(self.length or LONGEST), np.int64)
        self._first_group = self._common_group()
        self.group = self._first_group
        if self.group is not None and (self.length or 0) % self.group:
            self.group = None  # the next epoch begins within a run

    def _common_group(self) -> int | None:
        """Return `Node.first_group`.

        Raises:
            ConfigError: runs of one child at a time are not whole groups of it.
        """
        drawn = [child for number, child in enumerate(self.children) if self._schedule.counts[number]]
        if len(drawn) == 1:
            return drawn[0].group
        for child in drawn:
            if child.group is None:
                raise ConfigError(
                    f"groups of different sizes cannot be blended with other samples ({child.described_groups()})",
                    kind="bad-recipe",
                    fix="Give all groups of this source one size, make it the only source, or use 'concat'.",
                )
            if self.run_length % child.group:
                raise ConfigError(
                    f"a blend in runs of {self.run_length:,} samples would tear groups of {child.group:,} apart"
                    f" ({child.described_groups()})",
                    kind="bad-recipe",
                    fix=f"Use runs of a multiple of {child.group:,} samples.",
                )
        return common_group(drawn)

    @property
    def first_group(self) -> int | None:
        return self._first_group

    @property
    def one_source(self) -> bool:
        """Return whether runs are batches of one source, and not only whole groups of samples."""
        return self.run_length > 1 and not self.in_groups

    def whole(self, total: int) -> int:
        begin = total // self.run_length * self.run_length
        if self.length is not None:  # runs begin again with each epoch
            epoch, rest = divmod(total, self.length)
            begin = epoch * self.length + rest // self.run_length * self.run_length
        cut = total
        for child, before, drawn in zip(self.children, self.draws(begin), self.draws(total), strict=True):
            if drawn > before or self.run_length == 1:
                cut = min(cut, total - (drawn - child.whole(drawn)))
        return cut

    def cut(self, length: int) -> Interleaved:
        """Return this blend, which must be endless, up to a length. Raises `ConfigError` if its children allow less."""
        other = copy(self)
        Interleaved.__init__(other, self.children, self._schedule, length)
        return other

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[npt.NDArray[Any], IntArray, Epochs]:
        child, ordinal = self._schedule.at(positions)
        if self.length is None:  # then all children that are ever drawn are endless too
            return child, ordinal, 0
        if isinstance(epochs, np.ndarray) or epochs:
            ordinal = ordinal + epochs * self._per_epoch[child]
        sizes = self._lengths[child]
        inner_epochs = ordinal // sizes
        return child, ordinal - inner_epochs * sizes, inner_epochs

    def outward(self, child: IntArray, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        ordinal = epochs * self._lengths[child] + positions
        most = self._per_epoch[child]
        if self.length is None:
            never = ordinal >= most  # its position is beyond 64 bits
            known, ordinal = np.where(never, int(self._per_epoch.argmax()), child), np.where(never, 0, ordinal)
            return np.where(never, NOWHERE, self._schedule.positions(known, ordinal)), epochs * 0
        never = most == 0
        known = np.where(never, int(self._per_epoch.argmax()), child)
        own_epochs, rest = np.divmod(ordinal, self._per_epoch[known])
        return np.where(never, NOWHERE, self._schedule.positions(known, rest)), own_epochs

    @property
    def seamless(self) -> bool:
        """Return whether its length is a whole number of schedule periods, so that repeating it has no effect."""
        period = self._schedule.period
        return self.length is not None and period is not None and self.length % period == 0

    def draws(self, total: int) -> Sequence[int]:
        if self.length is None:
            return self._schedule.drawn(total)
        epochs, rest = divmod(total, self.length)
        return [
            epochs * int(each) + part for each, part in zip(self._per_epoch, self._schedule.drawn(rest), strict=True)
        ]

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "length": self.asked_length}

    @property
    @abstractmethod
    def phases(self) -> Phases:
        """The stages; a blend without stages is one without an end."""

    def stream_prefix(self, other: Node, total: int) -> Sequence[tuple[Node, Node, int]] | None:
        """Compare with any other blend: the same children must be drawn in the same order, as far as they are drawn.

        The child that a schedule draws depends only on the positive weights and their order.
        """
        if not isinstance(other, Interleaved) or self.run_length != other.run_length:
            return None
        if getattr(self, "limit", PERIOD_LIMIT) != getattr(other, "limit", PERIOD_LIMIT):
            return None
        ends, inside = [node._restart() for node in (self, other)], total
        if total > min(ends):
            if ends[0] != ends[1]:
                return None
            inside = int(ends[0])
        pairs = _pairs(self.phases, other.phases, inside)
        if pairs is None:
            return None
        drawn, drawn_by_other = self.draws(total), other.draws(total)
        if any(drawn[a] != drawn_by_other[b] for a, b in pairs.items()):
            return None
        return [(self.children[a], other.children[b], drawn[a]) for a, b in pairs.items()]

    def _restart(self) -> float:
        """Return after how many positions the node begins its schedule again, if that has an effect."""
        return inf if self.length is None or (self.seamless and not self.restarts) else self.length

    def paths(self, *, root: bool, repeated: bool) -> Sequence[Sequence[str]]:
        ends = self.length is not None and (not root or (repeated and not self.seamless))
        end = [f"first {self.length:,}"] if ends else []
        return [[self.part(number), *end] for number in range(len(self.children))]

    def seams(self, start: int, stop: int) -> IntArray:
        return self.child_seams(start, stop)

    @abstractmethod
    def shares(self, total: int | None) -> tuple[Shares, Shares] | None:
        """Return requested and realized shares over the first `total` positions of the stream, or over all of it.

        Return None if the shares change, the stream is endless, and `total` is not given.
        """

    @abstractmethod
    def part(self, number: int) -> str:
        """Return everything that determines the positions of child `number`, for fingerprints."""

    @property
    def runs(self) -> str:
        """Return the run length as text for descriptions and fingerprints; empty if single samples are interleaved."""
        return "" if self.run_length == 1 else f" in runs of {self.run_length:,}"

    def identity(self) -> str:
        return "; ".join(map(self.part, range(len(self.children))))


def shares_text(shares: Weights) -> str:
    """Return shares for display: as fractions if these are short, otherwise rounded to six digits."""
    changes = [share for share in shares if isinstance(share, Change)]
    if changes:
        begin, end = (tuple(getattr(change, name) for change in changes) for name in ("begin", "end"))
        return f"{shares_text(begin)} to {shares_text(end)} ({changes[0].kind})"
    fixed = [share for share in shares if not isinstance(share, Change)]
    exact = max(share.denominator for share in fixed) <= _LONGEST_SHOWN
    return " : ".join(str(share) if exact else f"{float(share):.6g}" for share in fixed)


def short_weights(shares: Sequence[Fraction]) -> list[int] | list[str]:
    """Return shares as integers with these ratios if they are short, otherwise as fractions, for outlines."""
    common = lcm(*(share.denominator for share in shares))
    if common <= _LARGEST_COMMON:
        return [int(share * common) for share in shares]
    return [str(share) for share in shares]


def _pairs(old: Phases, new: Phases, total: int) -> dict[int, int] | None:
    """Return the child of the new blend that is drawn in place of each old one; None if this cannot be shown."""
    pairs: dict[int, int] = {}
    back: dict[int, int] = {}
    start = 0
    for (size, weights), (size_now, weights_now) in zip(old, new, strict=False):
        drawn = [(number, weight) for number, weight in enumerate(weights) if weight]
        drawn_now = [(number, weight) for number, weight in enumerate(weights_now) if weight]
        if [weight for _, weight in drawn] != [weight for _, weight in drawn_now]:
            return None
        for (a, _), (b, _) in zip(drawn, drawn_now, strict=True):
            if pairs.setdefault(a, b) != b or back.setdefault(b, a) != a:
                return None
        ends = [inf if each is None else start + each for each in (size, size_now)]
        if min(ends) >= total:
            return pairs
        if ends[0] != ends[1]:
            return None
        start = int(ends[0])
    return None


class Blend(Interleaved):
    """Node that interleaves the streams of its children so that each is always within one sample of its share.

    Only weights on three or more scales, with tiny ones among them, may have the wider bound given in `lines`.

    Args:
        children: the nodes to interleave.
        weights: one per child; see `blend.exact_weight`.
        length: length of the node; must not exceed what the children allow.
        limit: longest period that is stored as a table.
        run_length: samples of one child at a time. With more than 1, runs are interleaved instead of samples, and each
            child is always within one run of its share.
        in_groups: see `Interleaved`.
    """

    tag = "blend"
    args = ("length", "weights")
    options: ClassVar[Mapping[str, Any]] = {"run_length": 1, "limit": PERIOD_LIMIT}

    def __init__(
        self,
        children: Sequence[Node],
        weights: Sequence[Any],
        *,
        length: int | None = None,
        limit: int = PERIOD_LIMIT,
        run_length: int = 1,
        in_groups: bool = False,
    ) -> None:
        if len(children) != len(weights):
            raise ConfigError(f"{len(children)} sources and {len(weights)} weights", kind="bad-recipe")
        from feedmill.planning.mixing.blend import run_schedule

        self.schedule, self.limit = run_schedule(weights, run_length, limit), limit
        self.run_length, self.in_groups = run_length, in_groups
        super().__init__(children, self.schedule, length)

    @property
    def weights(self) -> list[int] | list[str]:
        """The weights of the children, as integers or as texts of fractions."""
        return short_weights(self.schedule.asked)

    @property
    def phases(self) -> Phases:
        return [(None, self.schedule.asked)]

    def shares(self, total: int | None) -> tuple[Shares, Shares]:  # noqa: ARG002 - always the same
        return self.schedule.asked, self.schedule.realized

    def part(self, number: int) -> str:
        return f"number {number} of a blend{self.runs} with weight {self.schedule.asked[number]}"

    def describe(self) -> str:
        bound = self.schedule.bound
        wider = "" if bound <= self.run_length else f", within {float(bound):.3g} samples"
        return f"blend {shares_text(self.schedule.asked)}{self.runs}{wider}"


class EpochizedBlend(Interleaved):
    """Node whose epochs hold each child exactly `repetitions` times, spread evenly.

    The weights are the counts themselves, so one period of an exact blend's schedule is one epoch. This needs no table
    of the epoch's length, and each child's share is even throughout. If the node is repeated, each child's stream
    continues: a child with 1/2 repetitions yields the two halves of its order in two epochs, then a new order.

    Args:
        children: finite nodes.
        repetitions: one per child, above 0; a fraction stands for ``floor(fraction * length)`` samples.
        max_repeats: for each child, the maximum number of epochs that the whole plan may use of it, or None.
        names: display names of the children, for messages.
        length: cut each epoch to this length.

    Raises:
        ConfigError: a child is endless, a repetition has no sample, or an epoch is longer than 2^50 samples.
    """

    length: int
    tag = "epochs"
    args = ("length", "repetitions")
    options: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        children: Sequence[Node],
        repetitions: Sequence[Any],
        *,
        max_repeats: Sequence[int | None] = (),
        names: Sequence[str] = (),
        length: int | None = None,
    ) -> None:
        if len(children) != len(repetitions):
            raise ConfigError(f"{len(children)} sources and {len(repetitions)} repetitions", kind="bad-recipe")
        sizes = [child.finite("an epochized blend") for child in children]
        for child in children:
            child.ungrouped("'blend_epochized'")
        self.counts = [epochs_of(times, size)[1] for times, size in zip(repetitions, sizes, strict=True)]
        self.repetitions = [epochs_of(times, size)[0] for times, size in zip(repetitions, sizes, strict=True)]
        from feedmill.planning.mixing.lines import LINES_LIMIT

        if sum(self.counts) > LINES_LIMIT:
            raise ConfigError(
                f"an epoch of {sum(self.counts):,} samples is longer than 2^50",
                kind="too-large",
                fix="Repeat its sources less often.",
            )
        caps = max_repeats or [None] * len(children)
        titles = names or [""] * len(children)
        streams = [
            Repeat(child, max_repeats=cap, name=name) for child, cap, name in zip(children, caps, titles, strict=True)
        ]
        from feedmill.planning.mixing.blend import schedule

        self.schedule: AnySchedule = schedule(self.counts)
        super().__init__(streams, self.schedule, length, sum(self.counts))

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "repetitions": [str(times) for times in self.repetitions]}

    @property
    def below(self) -> Sequence[Node]:
        return [child.children[0] for child in self.children]  # the constructor adds the repetitions

    @property
    def phases(self) -> Phases:
        return [(None, self.schedule.asked)]

    def seams(self, start: int, stop: int) -> IntArray:
        return np.concatenate([self.child_seams(start, stop), borders([self.length], self.length, start, stop)])

    def shares(self, total: int | None) -> tuple[Shares, Shares]:  # noqa: ARG002 - always the same
        return self.schedule.asked, self.schedule.realized

    def part(self, number: int) -> str:
        return f"number {number} of an epochized blend with weight {self.schedule.asked[number]}"

    def describe(self) -> str:
        return "epochized blend " + " : ".join(epochs_text(times) for times in self.repetitions)


class Caps(NamedTuple):
    """How often a stage may repeat sources. This does not change the order.

    Attributes:
        most: number of a child -> passes over it. A child without passes, such as a blend, stands for its children.
        where: ``file:line`` of the limit, for messages.
    """

    most: dict[int, int]
    where: str | None = None


class StagedBlend(Interleaved):
    """A blend in stages, each with its own weights; each child's stream continues from stage to stage.

    A child with weight 0 in a stage pauses there. If the last stage ends and the node is repeated, the first stage
    follows, and the children's streams continue. For the bounds, see `feedmill.planning.mixing.blend`.

    Args:
        children: the nodes to interleave.
        stages: for each stage its length in samples and a weight per child; the last length may be None (open-ended).
            A third item, ``linear`` or ``cosine``, makes it a ramp from the weights of the stage before to its own.
        length: length of the node; must not exceed what stages and children allow.
        run_length: samples of one source at a time; the length of every stage but the last must be a multiple of it.
        in_groups: see `Interleaved`.
        caps: for each stage, how often it may repeat sources, or None; checked by `bounds`. By default, no limits.
    """

    tag = "stages"
    args = ("length", "stages")
    restarts = True

    def __init__(
        self,
        children: Sequence[Node],
        stages: Sequence[Sequence[Any]],
        *,
        length: int | None = None,
        run_length: int = 1,
        in_groups: bool = False,
        caps: Sequence[Caps | None] = (),
    ) -> None:
        for number, (_, weights, *_) in enumerate(stages):
            if len(weights) != len(children):
                raise ConfigError(
                    f"{len(children)} sources and {len(weights)} weights in stage {number + 1}", kind="bad-recipe"
                )
        from feedmill.planning.mixing.blend import Stages

        samples, weights, *_ = zip(*(stage[:2] for stage in stages), strict=True) if stages else ((), ())
        ramps = [stage[2] if len(stage) > 2 else None for stage in stages]
        self.stages = Stages(weights, samples, run_length, ramps)
        self.run_length, self.in_groups, self.caps = run_length, in_groups, tuple(caps)
        super().__init__(children, self.stages, length, self.stages.length)

    def arguments(self) -> dict[str, Any]:
        stages = []
        for size, weights in self.phases:
            ends = [weight.end if isinstance(weight, Change) else weight for weight in weights]
            stages.append(
                [size, short_weights(ends), *(weight.kind for weight in weights[:1] if isinstance(weight, Change))]
            )
        return {**super().arguments(), "stages": stages}

    @property
    def phases(self) -> Phases:
        return list(zip(self.stages.samples, self.stages.weights, strict=True))

    def seams(self, start: int, stop: int) -> IntArray:
        ends = [end for end in self.stages.starts[1:] if self.length is None or end < self.length]
        ends += [] if self.length is None else [self.length]
        return np.concatenate([self.child_seams(start, stop), borders(ends, self.length, start, stop)])

    def shares(self, total: int | None) -> tuple[Shares, Shares] | None:
        total = self.length if total is None else total
        if not total:
            return None
        rounds, rest = (0, total) if self.length is None else divmod(total, self.length)
        whole = self.stages.asked(self.length or 0)
        exact = [rounds * a + b for a, b in zip(whole, self.stages.asked(rest), strict=True)]
        return tuple(each / total for each in exact), tuple(Fraction(count, total) for count in self.draws(total))

    def part(self, number: int) -> str:
        steps = [str(asked[number]) + ("" if size is None else f" for {size:,}") for size, asked in self.phases]
        return f"number {number} of a staged blend{self.runs} with weight {', then '.join(steps)}"

    def describe(self) -> str:
        steps = [shares_text(asked) + ("" if size is None else f" for {size:,}") for size, asked in self.phases]
        return f"blend in stages {', then '.join(steps)}{self.runs}"
