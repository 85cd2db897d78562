"""Trees of plans and recipes: as text, their leaves, and unique names for their sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feedmill.planning.nodes import Leaf, Node
from feedmill.planning.nodes.base import Junction

_MANY, _FEW = 12, 3
Tree = tuple[str, Sequence["Tree"]]
"""A label and its subtrees."""


def render(tree: Tree) -> str:
    """Return the tree with one line per label.

    >>> print(render(("blend", [("docs", []), ("code", [("shuffle", [])])])))
    blend
    ├─ docs
    └─ code
       └─ shuffle
    """
    return "\n".join(_lines(tree))


def _lines(tree: Tree) -> Iterator[str]:
    label, branches = tree
    yield label
    for number, branch in enumerate(branches):
        last = number == len(branches) - 1
        first, *rest = _lines(branch)
        yield ("└─ " if last else "├─ ") + first
        yield from (("   " if last else "│  ") + line for line in rest)


def leaves_of(node: Node) -> Iterator[Leaf]:
    """Yield the leaves below a node, from the first to the last."""
    if isinstance(node, Leaf):
        yield node
    for child in node.children:
        yield from leaves_of(child)


def tree_of(node: Node, names: Sequence[str]) -> Tree:
    """Return one line per source or junction, which includes the nodes that rearrange it."""
    words = []
    while not isinstance(node, Leaf | Junction):
        words.append(node.describe())
        node = node.children[0]
    if isinstance(node, Leaf):
        return ", ".join([f"{names[node.number]}: {node.describe()}", *reversed(words)]), []
    branches = [tree_of(child, names) for child in node.children]
    if len(branches) > _MANY and len({label.partition("[")[0] for label, _ in branches}) == 1:  # cells of one dataset
        branches = [*branches[:_FEW], (f"{len(branches) - _FEW:,} more cells", [])]
        return ", ".join([node.describe().partition(" ")[0], *reversed(words)]), branches
    return ", ".join([node.describe(), *reversed(words)]), branches


def unique_names(wanted: Sequence[str]) -> list[str]:
    """Return the names, with ``-2``, ``-3``, ... appended to duplicates.

    >>> unique_names(["docs", "code", "docs"])
    ['docs', 'code', 'docs-2']
    """
    taken: dict[str, int] = {}  # name -> the last suffix that was tried
    names = []
    for name in wanted:
        name = free = name or "source"
        while free in taken:
            taken[name] += 1
            free = f"{name}-{taken[name]}"
        taken[free] = 1
        names.append(free)
    return names
