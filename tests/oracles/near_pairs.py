"""The pairs of `feedmill.kernels.hashing.near_pairs` in plain Python, by what its docstring says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from feedmill.kernels.hashing.near_pairs import LEAST, MOST, PAIRS


def reach(size: int) -> int:
    """Return how many of the first documents, and of the last before it, a document is paired with in a bucket."""
    return max(LEAST, min(MOST, PAIRS // max(1, size)))


def candidates(
    keys: Sequence[int], new: Sequence[bool], digests: Sequence[int], columns: Sequence[Sequence[int]]
) -> tuple[list[tuple[int, int]], int]:
    """Return the pairs (earlier, later) of document numbers, and the number of pairs skipped by `reach`.

    Args:
        keys: the band key of each document, sorted; equal keys are in the order of the input.
        new: whether each document is new. A pair whose later document is not is skipped: an earlier run handled it.
        digests: the digest of each document's set.
        columns: the keys of the earlier bands.
    """
    pairs, left_out = [], 0
    for _, group in groupby(range(len(keys)), keys.__getitem__):
        bucket = list(group)
        most = reach(len(bucket))
        distinct: list[int] = []
        first: dict[int, int] = {}
        for j in bucket:
            i = first.setdefault(digests[j], j)
            if i != j:
                if new[j] and not columns:
                    pairs.append((i, j))
                continue
            if new[j]:
                partners = distinct
                if len(distinct) > 2 * most:
                    partners = distinct[:most] + distinct[-most:]
                    left_out += len(distinct) - 2 * most
                pairs += [(i, j) for i in partners if all(column[i] != column[j] for column in columns)]
            distinct.append(j)
    return pairs, left_out


def similar(sets: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]], threshold: float) -> list[tuple[int, int]]:
    """Return the pairs with a Jaccard similarity of at least `threshold`, except those that earlier pairs connect."""
    parents = list(range(len(sets)))
    kept = []
    for i, j in pairs:
        if _root(parents, i) == _root(parents, j):
            continue
        shared = len(set(sets[i]) & set(sets[j]))
        if shared / (len(sets[i]) + len(sets[j]) - shared) >= threshold:
            parents[_root(parents, j)] = _root(parents, i)
            kept.append((i, j))
    return kept


def covering(
    sets: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]], threshold: float, covered: list[int]
) -> list[int]:
    """Return the indices of the similar pairs whose documents are not covered; the later one then is, in place."""
    kept = []
    for k, (i, j) in enumerate(pairs):
        shared = len(set(sets[i]) & set(sets[j]))
        if not covered[i] and not covered[j] and shared / (len(sets[i]) + len(sets[j]) - shared) >= threshold:
            covered[j] = 1
            kept.append(k)
    return kept


def settle(pairs: Sequence[tuple[int, int]], first: int, low: int, kept: list[int], count: int) -> list[int]:
    """Return what covers each of `count` documents from `low` on; see the kernel."""
    covers = []
    for document in range(low, low + count):
        of = document
        for earlier in (earlier for later, earlier in pairs if later == document):
            equal, earlier = (True, ~earlier) if earlier < 0 else (False, earlier)
            if earlier < first or kept[earlier - first]:
                of = earlier
            elif equal:
                of = covers[earlier - low] if earlier >= low else ~earlier
            if of != document:
                kept[document - first] = 0
                break
        covers.append(of)
    return covers


def components(count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return the first member of the component that each of `count` nodes belongs to."""
    parents = list(range(count))
    for i, j in pairs:
        a, b = _root(parents, i), _root(parents, j)
        parents[max(a, b)] = min(a, b)
    return [_root(parents, i) for i in range(count)]


def _root(parents: list[int], i: int) -> int:
    while parents[i] != i:
        i = parents[i]
    return i
