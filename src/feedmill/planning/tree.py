"""Render trees as text, for recipes and plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
