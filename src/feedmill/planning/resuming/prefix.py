"""Prove that two trees of nodes yield the same samples at their first positions. Nothing is sampled.

There are two kinds of proof. *By structure*: nodes are pure functions, so two nodes of the same kind with the same
arguments are equal as far as the parts of their children that they read are equal. Stages, sources and ends beyond the
positions in question do not matter. This takes as long for 10^12 positions as for ten. *By evaluation*: if the
structure differs, both trees are evaluated at every remaining position, up to `MOST` of them, or until one differs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from feedmill.planning.nodes import Leaf, Node

logger = logging.getLogger("feedmill")

MOST = 10**8
"""Maximum number of positions that are compared one by one: a minute or two, more with hundreds of sources."""

_FIRST_BLOCK, _LARGEST_BLOCK = 1 << 14, 1 << 19  # most differences are found early; large blocks are cheaper
_LOGGED = 1 << 24


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
    """Return whether the structure shows that the first `total` positions of two nodes' streams are the same."""
    if total == 0:
        return True
    old, new = old.stream, new.stream
    if isinstance(old, Leaf) and isinstance(new, Leaf):
        return leaves.get(old.number) == new.number and old.length == new.length
    pairs = old.stream_prefix(new, total)
    return pairs is not None and all(_same(a, b, leaves, used) for a, b, used in pairs)
