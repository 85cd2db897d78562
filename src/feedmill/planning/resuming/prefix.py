"""Prove that two trees of nodes yield the same samples at their first positions. Nothing is sampled.

There are two kinds of proof. *By structure*: nodes are pure functions, so two nodes of the same kind with the same
arguments are equal as far as the parts of their children that they read are equal. Stages, sources and ends beyond the
positions in question do not matter. This takes as long for 10^12 positions as for ten. *By evaluation*: if the
structure differs, both trees are evaluated at every remaining position, up to `MOST` of them, or until one differs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf

import numpy as np

from feedmill.planning.mixing.blend import PERIOD_LIMIT
from feedmill.planning.nodes import (
    Blend,
    BlockShuffle,
    Concat,
    EpochizedBlend,
    Interleaved,
    Leaf,
    Node,
    Repeat,
    ShardShuffle,
    Shuffle,
    StagedBlend,
    Subset,
)
from feedmill.planning.orders.modalities import ModalitiesSampler
from feedmill.planning.orders.nanoset import Nanoset
from feedmill.planning.resuming.outline import sampler_arguments

logger = logging.getLogger("feedmill")

MOST = 10**8
"""Maximum number of positions that are compared one by one: a minute or two, more with hundreds of sources."""

_FIRST_BLOCK, _LARGEST_BLOCK = 1 << 14, 1 << 19  # most differences are found early; large blocks are cheaper
_LOGGED = 1 << 24

_Stages = Sequence[tuple[int | None, Sequence[Fraction]]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position at which two trees may differ.

    Attributes:
        position: the trees are the same before it.
        known: whether they differ at it; if False, no further positions were compared.
    """

    position: int
    known: bool


def first_difference(old: Node, new: Node, leaves: Mapping[int, int], total: int) -> Difference | None:
    """Return where two trees differ in their first positions; None if these are proven to be the same.

    Args:
        old, new: the roots; neither ends before `total`.
        leaves: number of an old leaf -> number of the new leaf with the same data, if there is one.
        total: number of positions.
    """
    begin = same_until(old, new, leaves, total)
    if begin == total:
        return None
    home = np.full(max(old.leaves) + 1, -1, np.int64)
    for before, now in leaves.items():
        home[before] = now
    start, end, size, logged = begin, min(total, begin + MOST), _FIRST_BLOCK, begin + _LOGGED
    while start < end:
        positions = np.arange(start, min(start + size, end), dtype=np.int64)
        was, is_now = old.locate(positions), new.locate(positions)
        differs = (home[was.source] != is_now.source) | (was.index != is_now.index)
        if differs.any():
            return Difference(start + int(differs.argmax()), True)
        start, size = start + len(positions), min(2 * size, _LARGEST_BLOCK)
        if start >= logged:
            logger.info("comparing the recipe with that of the state: %d of %d positions", start - begin, end - begin)
            logged = start + _LOGGED
    return None if end == total else Difference(end, False)


def same_until(old: Node, new: Node, leaves: Mapping[int, int], total: int) -> int:
    """Return how many of the first positions are the same by structure: all, or about as many as can be shown."""
    if _same(old, new, leaves, total):
        return total
    shown, too_many = 0, total
    while too_many - shown > 1:
        middle = (shown + too_many) // 2
        if _same(old, new, leaves, middle):
            shown = middle
        else:
            too_many = middle
    return shown


def _same(old: Node, new: Node, leaves: Mapping[int, int], total: int) -> bool:
    """Return whether the structure shows that the first `total` positions of two nodes' streams are the same.

    A stream is the sequence of all epochs, so a repetition has the stream of its child, regardless of its length.
    """
    if total == 0:
        return True
    while isinstance(old, Repeat):
        old = old.child
    while isinstance(new, Repeat):
        new = new.child
    if isinstance(old, Interleaved) and isinstance(new, Interleaved):
        return _same_blend(old, new, leaves, total)
    if type(old) is not type(new):
        return False
    if isinstance(old, Leaf) and isinstance(new, Leaf):
        return leaves.get(old.number) == new.number and old.length == new.length
    if isinstance(old, Concat) and isinstance(new, Concat):
        return _same_concat(old, new, leaves, total)
    if isinstance(old, Subset) and isinstance(new, Subset):
        if old.start != new.start:
            return False
        if total <= min(old.length, new.length):
            return _same(old.child, new.child, leaves, old.start + total)
    if not _same_arguments(old, new) or old.length != new.length:
        return False
    pairs = zip(old.children, new.children, old.reach(total), strict=True)
    return all(a.length == b.length and _same(a, b, leaves, used) for a, b, used in pairs)


def _same_arguments(old: Node, new: Node) -> bool:
    """Return whether two nodes of the same kind, which read whole epochs of their children, have the same arguments."""
    if isinstance(old, BlockShuffle) and isinstance(new, BlockShuffle):
        return (old.key, old.block, old.window) == (new.key, new.block, new.window)
    if isinstance(old, ShardShuffle) and isinstance(new, ShardShuffle):
        return old.identity() == new.identity()
    if isinstance(old, Shuffle) and isinstance(new, Shuffle):
        return old.key == new.key
    if isinstance(old, Subset) and isinstance(new, Subset):
        return old.start == new.start
    if isinstance(old, ModalitiesSampler) and isinstance(new, ModalitiesSampler):
        return sampler_arguments(old) == sampler_arguments(new)
    if isinstance(old, Nanoset) and isinstance(new, Nanoset):
        return old.seed == new.seed and np.array_equal(old.weights, new.weights)
    return False


def _same_concat(old: Concat, new: Concat, leaves: Mapping[int, int], total: int) -> bool:
    """Compare the children as far as they are reached; after the first epoch, all of them."""
    if total > min(old.length, new.length):
        sizes = [child.length for child in old.children] == [child.length for child in new.children]
        pairs: Iterable[tuple[Node, Node, int]] = (
            zip(old.children, new.children, old.draws(total), strict=True) if sizes else ()
        )
        return sizes and all(_same(a, b, leaves, used) for a, b, used in pairs)
    for before, now in zip(old.children, new.children, strict=False):
        a, b = before.finite("a concatenation"), now.finite("a concatenation")
        used = min(total, a)
        if (total > a and a != b) or used > b or not _same(before, now, leaves, used):
            return False
        total -= used
        if not total:
            return True
    return False


def _same_blend(old: Interleaved, new: Interleaved, leaves: Mapping[int, int], total: int) -> bool:
    """Return whether the same children are drawn in the same order, and each is the same as far as it is drawn.

    The source that a schedule draws depends only on the positive weights and their order.
    """
    if old.run_length != new.run_length:
        return False
    ends = [_restarts(node) for node in (old, new)]
    inside = total
    if total > min(ends):
        if ends[0] != ends[1]:
            return False
        inside = int(ends[0])
    stages = _stages(old), _stages(new)
    pairs = None if stages[0] is None or stages[1] is None else _pairs(stages[0], stages[1], inside)
    if pairs is None:
        return False
    drawn, drawn_now = old.draws(total), new.draws(total)
    return all(
        drawn[a] == drawn_now[b] and _same(old.children[a], new.children[b], leaves, drawn[a]) for a, b in pairs.items()
    )


def _restarts(node: Interleaved) -> float:
    """Return after how many positions the node restarts its schedule, if that has an effect."""
    if node.length is None or (node.seamless and not isinstance(node, StagedBlend)):
        return inf
    return node.length


def _stages(node: Interleaved) -> _Stages | None:
    """Return the lengths of a blend's stages, and the share of each child in them."""
    if isinstance(node, StagedBlend):
        parts = zip(node.stages.samples, node.stages.schedules, strict=True)
        return [(samples, schedule.asked) for samples, schedule in parts]
    if isinstance(node, EpochizedBlend) or (isinstance(node, Blend) and node.limit == PERIOD_LIMIT):
        return [(None, node.schedule.asked)]
    return None


def _pairs(old: _Stages, new: _Stages, total: int) -> dict[int, int] | None:
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
