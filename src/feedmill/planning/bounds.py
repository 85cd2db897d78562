"""The proof, before a run starts, that no source is repeated more often than its `max_repeats` allows.

How far a plan of a given length reaches into each source's stream is known in closed form and only grows with the
length, so the longest plan that respects every limit is found by bisection.
"""

from __future__ import annotations

from collections.abc import Iterator

from feedmill.errors import ConfigError
from feedmill.planning.nodes import Leaf, Node, Repeat
from feedmill.planning.nodes.base import LONGEST


def longest(root: Node) -> int | None:
    """The length of the plan under `root`: its own, or what the limits below leave of an endless one; None is endless.

    Raises:
        ConfigError: the node's own length breaks a limit; the message shows the arithmetic.
    """
    if root.length is not None:
        broken = _broken(root, root.length)
        if broken:
            raise _refusal(root, root.length, *broken)
        return root.length
    broken = _broken(root, LONGEST)
    if not broken:
        return None
    length = _bisect(root, LONGEST)
    if length == 0:
        raise _refusal(root, 1, *broken)
    return length


def reach(root: Node, leaf: int, total: int) -> int:
    """Return how many epochs of a leaf the first `total` positions of the plan touch; later epochs are not used."""
    node = root
    while not isinstance(node, Leaf):
        number = next(i for i, child in enumerate(node.children) if leaf in child.leaves)
        total = node.reach(total)[number]
        node = node.children[number]
    return -(-total // node.length)


def reaches(root: Node, total: int) -> dict[int, int]:
    """`reach` of every leaf by its number, in one walk."""
    if isinstance(root, Leaf):
        return {root.number: -(-total // root.length)}
    found: dict[int, int] = {}
    for child, used in zip(root.children, root.reach(total), strict=True):
        found.update(reaches(child, used))
    return found


def proofs(root: Node, total: int) -> list[tuple[str, int, int, int]]:
    """Every limit under `root` and what holds it: name, `max_repeats`, samples of one epoch, samples drawn at most.

    A limit holds where the samples drawn by the first `total` positions are at most `max_repeats` times one epoch.
    """
    return [
        (node.name, node.max_repeats or 0, node.child.finite("counting repeats"), used)
        for node, used in _limits(root, total)
    ]


def _limits(node: Node, total: int) -> Iterator[tuple[Repeat, int]]:
    """Yield every repetition with a limit, and how far the first `total` positions reach into the stream it repeats."""
    for child, used in zip(node.children, node.reach(total), strict=True):
        if isinstance(node, Repeat) and node.max_repeats:
            yield node, used
        yield from _limits(child, used)


def _broken(root: Node, total: int) -> tuple[Repeat, int] | None:
    """Return the first repetition whose limit a plan of this length breaks, and the samples it would need."""
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
    bound = f"Ask for at most 'samples: {fits}'" if fits else "Take more of its samples"
    return ConfigError(
        f"the source would be repeated too often: {asked:,} samples of the plan draw {used:,} from it,"
        f" but max_repeats {cap} x {size:,} samples = {cap * size:,}",
        record=node.name or None,
        kind="too-many-repeats",
        fix=f"{bound}, raise max_repeats to {needed}, or lower its weight.",
    )
