"""Find the keys that a jq expression uses directly below a key of the document."""

from __future__ import annotations

from functools import cache
from typing import Any

from feedmill.documents.expressions.jq import Node, Parser

Place = tuple[Any, ...] | None
"""The keys that lead from the document to a value; None if they are unknown."""


@cache
def named_below(text: str, key: str) -> tuple[str, ...]:
    """Return the keys that an expression uses directly below ``.<key>``, as far as its paths start at the document.

    >>> named_below("(.attributes.a[0][2]? // 0) > 1 and (.attributes | .b)", "attributes")
    ('a', 'b')

    Raises:
        ConfigError: The text is not a valid jq expression.
    """
    walk = _Walk(key)
    walk.visit(Parser(text).whole(), (), {})
    return tuple(dict.fromkeys(walk.named))


class _Walk:
    def __init__(self, key: str) -> None:
        self.key = key
        self.named: list[str] = []

    def visit(self, tree: Any, at: Place, bound: dict[str, Place]) -> Place:
        """Visit a node whose input is the value at a place; return the place of its output."""
        kind = tree[0]
        if kind == "identity":
            return at
        if kind == "variable":
            return bound.get(tree[1])
        if kind == "index":
            return self.index(tree, at, bound)
        if kind == "pipe":
            return self.visit(tree[2], self.visit(tree[1], at, bound), bound)
        if kind == "as":
            source = self.visit(tree[1], at, bound)
            return self.visit(tree[3], at, {**bound, tree[2]: source})
        if kind == "try":
            place = self.visit(tree[1], at, bound)
            if tree[2] is not None:
                self.visit(tree[2], None, bound)
            return place
        if kind == "call":
            for argument in tree[2]:
                self.visit(argument, at if tree[1] == "select" else None, bound)
            return at if tree[1] == "select" else None
        if kind in ("reduce", "foreach"):
            self.visit(tree[1], at, bound)
            self.visit(tree[3][0], at, bound)
            for part in tree[3][1:]:
                self.visit(part, None, bound)
            return None
        for child in _children(tree[1:]):
            self.visit(child, at, bound)
        return None

    def index(self, tree: Node, at: Place, bound: dict[str, Place]) -> Place:
        """Visit an index node, and record its key if it is directly below `self.key`."""
        place = self.visit(tree[1], at, bound)
        if tree[2][0] != "literal":
            self.visit(tree[2], at, bound)
            return None
        if place is None:
            return None
        if place == (self.key,) and isinstance(tree[2][1], str):
            self.named.append(tree[2][1])
        return (*place, tree[2][1])


def _children(parts: Any) -> list[Node]:
    """Return the nodes among the parts of a node, including those in lists and pairs."""
    found: list[Node] = []
    for part in parts:
        if isinstance(part, tuple) and part and isinstance(part[0], str):
            found.append(part)
        elif isinstance(part, list | tuple):
            found += _children(part)
    return found
