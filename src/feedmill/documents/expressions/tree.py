"""The tree of an expression: tuples, of which the first part is the kind of a node and the others its parts.

Every node gives any number of outputs for an input. Both dialects have:

=====================================  ======================================================================
``identity``                           the input
``literal value``, ``variable name``   a value
``pipe a b``, ``comma a b``            `b` on each output of `a`; the outputs of both
``and a b``, ``or a b``                logic
``call name arguments``                a function (`functions`)
=====================================  ======================================================================

Only jq has ``index a key``, ``slice a low high``, ``each a``, ``alternative a b``, ``binary a b sign``, ``negative a``,
``array a``, ``object entries``, ``string parts``, ``if test then other``, ``try a caught``, ``as a name body`` and
``reduce a name start update``.

Only JSONPath, for which nothing is an error, has ``find a key`` and ``part a start end step`` (what is there, of arrays
and objects), ``filter a test``, ``exists a``, ``compare a b sign`` (of all outputs at once) and ``size a many``.
"""

from __future__ import annotations

from typing import Any

Node = tuple[Any, ...]
Place = tuple[Any, ...] | None
"""The keys that lead from the document to a value; None if they are unknown."""

IDENTITY: Node = ("identity",)
DOCUMENT: Node = ("variable", "$")
"""The document itself, in the filter of a JSONPath."""


def keys_of(tree: Node, step: str) -> list[Any] | None:
    """Return the keys of a path from the input by constant keys; None for other expressions.

    Args:
        tree: The expression.
        step: The kind of its steps: ``index`` or ``find``.
    """
    keys: list[Any] = []
    while tree[0] == step and tree[2][0] == "literal":
        keys.insert(0, tree[2][1])
        tree = tree[1]
    return keys if tree == IDENTITY else None


class Mentions:
    """The keys that an expression names directly below a key of the document, as `named`.

    Only paths that start at the document count, through pipes, variables, ``select`` and filters of the key itself.
    """

    def __init__(self, tree: Node, key: str) -> None:
        self.key = key
        self.named: list[str] = []
        self.visit(tree, (), {"$": ()})

    def visit(self, tree: Node, at: Place, bound: dict[str, Place]) -> Place:
        """Visit a node whose input is the value at a place; return the place of its output."""
        kind = tree[0]
        if kind == "identity":
            return at
        if kind == "variable":
            return bound.get(tree[1])
        if kind in ("index", "find"):
            return self.index(tree, at, bound)
        if kind == "pipe":
            return self.visit(tree[2], self.visit(tree[1], at, bound), bound)
        if kind == "as":
            source = self.visit(tree[1], at, bound)
            return self.visit(tree[3], at, {**bound, tree[2]: source})
        if kind == "filter":
            source = self.visit(tree[1], at, bound)
            self.visit(tree[2], source if source == (self.key,) else None, bound)
            return None
        if kind == "try":
            place = self.visit(tree[1], at, bound)
            if tree[2] is not None:
                self.visit(tree[2], None, bound)
            return place
        if kind == "call":
            for argument in tree[2]:
                self.visit(argument, at if tree[1] == "select" else None, bound)
            return at if tree[1] == "select" else None
        if kind == "reduce":
            for part, place in zip((tree[1], tree[3], tree[4]), (at, at, None), strict=True):
                self.visit(part, place, bound)
            return None
        for child in _children(tree[1:]):
            self.visit(child, at, bound)
        return None

    def index(self, tree: Node, at: Place, bound: dict[str, Place]) -> Place:
        """Visit a step by a key, and record the key if it is directly below `self.key`."""
        place = self.visit(tree[1], at, bound)
        if tree[2][0] != "literal":
            self.visit(tree[2], at, bound)
            return None
        if place is None:
            return None
        if place == (self.key,) and isinstance(tree[2][1], str):
            self.named.append(tree[2][1])
        return (*place, tree[2][1])


def names_document(tree: Node) -> bool:
    """Return whether an expression uses `DOCUMENT`."""
    return tree == DOCUMENT or any(map(names_document, _children(tree[1:])))


def _children(parts: Any) -> list[Node]:
    """Return the nodes among the parts of a node, including those in lists and pairs."""
    found: list[Node] = []
    for part in parts:
        if isinstance(part, tuple) and part and isinstance(part[0], str):
            found.append(part)
        elif isinstance(part, list | tuple):
            found += _children(part)
    return found
