"""Describe what determines an order, and the differences between two plans."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from feedmill.planning.nodes import Leaf, Node

_KEY = re.compile(r" key [0-9a-f]{16}")
_BUFFER = re.compile(r" buffer ([0-9,]+),")


def fingerprint_of(parts: Mapping[str, str]) -> str:
    """Return one hash of the components in `Plan.fingerprints`."""
    import hashlib
    import json

    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def explain(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return a phrase for each difference between the parts of two fingerprints.

    Args:
        old, new: as `Plan.fingerprints`.
    """
    changes = []
    for part in dict.fromkeys([*old, *new]):
        before, now = old.get(part), new.get(part)
        if before is not None and now is not None and old.get("seed") != new.get("seed"):
            # A new seed changes all keys; report it only once.
            before, now = _KEY.sub("", before), _KEY.sub("", now)
        if before == now:
            continue
        if before is None:
            changes.append(f"{part} is new")
        elif now is None:
            changes.append(f"{part} is gone")
        elif _KEY.sub("", before) == _KEY.sub("", now):
            changes.append(f"{part} is shuffled with another key: a seed or name of a recipe above it changed")
        else:
            changes.append(f"{part} was {before}, is now {now}".replace(" key ", " with key "))
            given = _BUFFER.search(before)
            if part == "packing" and given and not _BUFFER.search(now):
                changes[-1] += f" ('buffer: {given[1].replace(',', '')}' in 'pack' gives the order of the saved run)"
    return changes


def ways(node: Node, above: Sequence[str] = (), repeated: bool = False) -> Iterator[tuple[int, str]]:
    """Yield each leaf below a node with a description of the path from the root to it.

    Args:
        node: the root of the tree, without its skip list.
        above: descriptions of the nodes above it.
        repeated: whether the parent repeats the node.
    """
    if isinstance(node, Leaf):
        yield node.number, "; ".join(above) or "as stored"
        return
    paths = node.paths(root=not above, repeated=repeated)
    for child, own in zip(node.children, paths, strict=True):
        yield from ways(child, [*above, *own], node.stream is not node)
