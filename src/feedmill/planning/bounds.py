"""Prove before a run starts that no source is repeated more often than its `max_repeats`, and those of stages, allow.

How far a plan of a given length reaches into each source's stream has a closed form that only grows with the length.
The longest plan that respects every limit is therefore found by bisection. What a stage draws is the difference of two
such numbers: those at its end and at its start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from feedmill.errors import ConfigError
from feedmill.planning.nodes import Leaf, Node, Repeat, StagedBlend
from feedmill.planning.nodes.base import LONGEST


class Limit(NamedTuple):
    """A limit of repeats, and what a plan of some length draws.

    Attributes:
        name: the source.
        most: `max_repeats`.
        size: samples of one pass.
        used: samples that are drawn at most, in the whole plan or in the stage.
        stage: the stage that it is a limit of, from 1; None for the whole plan.
        positions: samples of the stage.
        node: the blend with this stage.
        where: ``file:line`` of the limit.
    """

    name: str
    most: int
    size: int
    used: int
    stage: int | None = None
    positions: int = 0
    node: StagedBlend | None = None
    where: str | None = None

    @property
    def broken(self) -> bool:
        """Return whether more is drawn than the limit allows."""
        return self.used > self.most * self.size

    @property
    def ends(self) -> bool:
        """Return whether the limit is of a stage that has an end, and cannot end an endless plan."""
        return self.node is not None and self.stage is not None and self.node.stages.samples[self.stage - 1] is not None


def longest(root: Node) -> int | None:
    """Return the length of the plan under `root`, or None if it is endless.

    A finite node keeps its own length; an endless one is as long as the limits below it allow.

    Raises:
        ConfigError: the node's own length exceeds a limit, or a stage that has an end does; the message shows the
            arithmetic.
    """
    asked = LONGEST if root.length is None else root.length
    broken = [limit for limit in limits(root, asked) if limit.broken]
    for limit in broken:
        if root.length is not None or limit.ends:
            raise _refusal(root, asked, limit)
    if root.length is not None or not broken:
        return root.length
    length = root.whole(_bisect(root, LONGEST))
    if length == 0:
        raise _refusal(root, 1, broken[0])
    return length


def reach(root: Node, leaf: int, total: int) -> int:
    """Return how many epochs of a leaf the first `total` positions of the plan begin."""
    node = root
    while not isinstance(node, Leaf):
        number = next(i for i, child in enumerate(node.children) if leaf in child.leaves)
        total = node.reach(total)[number]
        node = node.children[number]
    return -(-total // node.length)


def reaches(root: Node, total: int) -> dict[int, int]:
    """Return `reach` of every leaf, by leaf number, in one traversal."""
    if isinstance(root, Leaf):
        return {root.number: -(-total // root.length)}
    lengths: dict[int, int] = {}
    for child, used in zip(root.children, root.reach(total), strict=True):
        lengths.update(reaches(child, used))
    return lengths


def limits(node: Node, total: int) -> Iterator[Limit]:
    """Yield each limit under a node, with what the first `total` positions draw.

    A limit holds if that is at most `max_repeats` times the samples of one pass.
    """
    if isinstance(node, StagedBlend):
        yield from _of_stages(node, total)
    for child, used in zip(node.children, node.reach(total), strict=True):
        if isinstance(node, Repeat) and node.max_repeats:
            yield Limit(node.name, node.max_repeats, node.child.finite("counting repeats"), used)
        yield from limits(child, used)


def _of_stages(node: StagedBlend, total: int) -> Iterator[Limit]:
    """Yield the limits of the stages of a blend. If it is repeated, its stages draw as much in each round."""
    total = total if node.length is None else min(total, node.length)
    for number, caps in enumerate(node.caps):
        if caps is None:
            continue
        start, size = node.stages.starts[number], node.stages.samples[number]
        stop = max(start, total if size is None else min(total, start + size))
        low, high = min(start, total), min(stop, total)
        for name, most, passes, used in _drawn(node, caps.most, low, high):
            yield Limit(name, most, passes, used, number + 1, high - low, node, caps.where)


def _drawn(node: StagedBlend, most: dict[int, int], start: int, stop: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, limit, samples of a pass and draws between two positions of each source that has a limit."""
    before, behind = node.draws(start), node.draws(stop)
    for child, cap in most.items():
        for name, size, used in _passes(node.children[child], int(before[child]), int(behind[child])):
            yield name, cap, size, used


def _passes(node: Node, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, samples of a pass and draws of a source; of a mixture without passes, those of its sources."""
    if isinstance(node, Repeat) and node.child.length is not None:
        yield node.name, node.child.length, stop - start
    elif node.length is not None:
        yield "", node.length, stop - start
    else:
        for child, low, high in zip(node.children, node.draws(start), node.draws(stop), strict=True):
            yield from _passes(child, int(low), int(high))


def _broken(root: Node, total: int) -> bool:
    """Return whether a plan of this length exceeds a limit."""
    return any(limit.broken for limit in limits(root, total))


def _bisect(root: Node, too_long: int) -> int:
    fits = 0
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if _broken(root, middle):
            too_long = middle
        else:
            fits = middle
    return fits


def _refusal(root: Node, asked: int, limit: Limit) -> ConfigError:
    size, cap = limit.size, limit.most
    if limit.stage is None:
        fits = _bisect(root, asked)
        bound = f"Ask for at most 'samples: {fits}'" if fits else "Use more of its samples"
        what = f"the source would be repeated too often: {asked:,} samples of the plan"
    else:
        fits = _fits(limit)
        bound = f"Give the stage at most 'samples: {fits}'" if fits else "Use more of its samples"
        what = f"the source would be repeated too often in stage {limit.stage}: its {limit.positions:,} samples"
    return ConfigError(
        f"{what} draw {limit.used:,} from it, but max_repeats {cap} x {size:,} samples = {cap * size:,}",
        file=limit.where,
        record=limit.name or None,
        kind="too-many-repeats",
        fix=f"{bound}, raise max_repeats to {-(-limit.used // size)}, or lower its weight.",
    )


def _fits(limit: Limit) -> int:
    """Return how many samples of its stage respect a limit; 0 for a ramp, whose weights depend on its length."""
    node, stage = limit.node, limit.stage
    assert node is not None and stage is not None
    if node.stages.is_ramp(stage - 1):
        return 0
    start = node.stages.starts[stage - 1]
    caps = node.caps[stage - 1]
    assert caps is not None
    fits, too_long = 0, node.stages.samples[stage - 1] or LONGEST - start
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        found = _drawn(node, caps.most, start, start + middle)
        if any(used > most * size for name, most, size, used in found if name == limit.name):
            too_long = middle
        else:
            fits = middle
    return fits
