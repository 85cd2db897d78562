"""Prove before a run starts that no source is repeated more often than its `max_repeats` allows.

How far a plan of a given length reaches into each source's stream has a closed form that only grows with the length.
The longest plan that respects every limit is therefore found by bisection.
"""

from __future__ import annotations

from collections.abc import Iterator

from feedmill.errors import ConfigError
from feedmill.planning.nodes import Leaf, Node, Repeat
from feedmill.planning.nodes.base import LONGEST


def longest(root: Node) -> int | None:
    """Return the length of the plan under `root`, or None if it is endless.

    A finite node keeps its own length; an endless one is as long as the limits below it allow.

    Raises:
        ConfigError: the node's own length exceeds a limit; the message shows the arithmetic.
    """
    if root.length is not None:
        broken = _broken(root, root.length)
        if broken:
            raise _refusal(root, root.length, *broken)
        return root.length
    broken = _broken(root, LONGEST)
    if not broken:
        return None
    length = root.whole(_bisect(root, LONGEST))
    if length == 0:
        raise _refusal(root, 1, *broken)
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


def proofs(root: Node, total: int) -> list[tuple[str, int, int, int]]:
    """Return for each limit under `root`: name, `max_repeats`, samples of one epoch, maximum number of samples drawn.

    A limit holds if the first `total` positions draw at most `max_repeats` times the samples of one epoch.
    """
    return [
        (node.name, node.max_repeats or 0, node.child.finite("counting repeats"), used)
        for node, used in _limits(root, total)
    ]


def _limits(node: Node, total: int) -> Iterator[tuple[Repeat, int]]:
    """Yield each limited repetition, and how far the first `total` positions reach into the stream that it repeats."""
    for child, used in zip(node.children, node.reach(total), strict=True):
        if isinstance(node, Repeat) and node.max_repeats:
            yield node, used
        yield from _limits(child, used)


def _broken(root: Node, total: int) -> tuple[Repeat, int] | None:
    """Return the first repetition whose limit a plan of this length exceeds, and the samples it would draw."""
    for node, used in _limits(root, total):
        if used > (node.max_repeats or 0) * node.child.finite("counting repeats"):
            return node, used
    return None


def _bisect(root: Node, too_long: int) -> int:
    fits = 0
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if _broken(root, middle):
            too_long = middle
        else:
            fits = middle
    return fits


def _refusal(root: Node, asked: int, node: Repeat, used: int) -> ConfigError:
    size, cap = node.child.finite("counting repeats"), node.max_repeats or 0
    fits = _bisect(root, asked)
    needed = -(-used // size)
    bound = f"Ask for at most 'samples: {fits}'" if fits else "Use more of its samples"
    return ConfigError(
        f"the source would be repeated too often: {asked:,} samples of the plan draw {used:,} from it,"
        f" but max_repeats {cap} x {size:,} samples = {cap * size:,}",
        record=node.name or None,
        kind="too-many-repeats",
        fix=f"{bound}, raise max_repeats to {needed}, or lower its weight.",
    )
