"""The nodes of a plan as a tree: its leaves, and its text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feedmill.planning.nodes import Leaf, Node
from feedmill.planning.nodes.base import Junction
from feedmill.planning.tree import Tree


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
    return ", ".join([node.describe(), *reversed(words)]), [tree_of(child, names) for child in node.children]
