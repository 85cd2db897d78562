"""Clusters of vectors by spherical k-means, and pairs of similar vectors, with results that depend on no machine.

Products of matrices in float32 differ in their last digits with the number of threads and the shape of blocks. So they
only tell what is certain; what lies within `MARGIN` of a decision is decided by sums in float64, one vector at a time.

Semantic duplicates are looked for within clusters after Abbas et al., SemDeDup, 2023 (https://arxiv.org/abs/2303.09540).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from feedmill.curation.near.stars import connected

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
MARGIN = 1e-4
"""More than the error of a product of two vectors of length 1 of up to 4,096 numbers in float32."""
SAMPLE = 64
"""Vectors for each cluster that the centers are computed from."""
ROUNDS = 8
BLOCK = 512
"""Vectors that are compared at once with all kept ones, in order."""
_CHUNK = 8192
"""Vectors of a cluster that are in memory beside them."""
_PRODUCTS = 1 << 22
"""Similarities in memory: 16 MiB."""


def unit(vectors: npt.NDArray[np.floating]) -> Floats:
    """Return vectors of length 1; zeros stay."""
    wide = np.asarray(vectors, np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    found: Floats = (wide / np.where(lengths > 0, lengths, 1)[:, None]).astype(np.float32)
    return found


def exact(one: Floats, other: Floats) -> npt.NDArray[np.float64]:
    """Return the products of pairs of vectors, one a row, as sums in float64."""
    found: npt.NDArray[np.float64] = np.einsum("ij,ij->i", one.astype(np.float64), other.astype(np.float64))
    return found


def nearest(vectors: Floats, centers: Floats) -> Ints:
    """Return the most similar center of each vector; of equal ones, the first."""
    out = np.empty(len(vectors), np.int64)
    step = max(1, _PRODUCTS // max(1, len(centers)))
    for low in range(0, len(vectors), step):
        own = vectors[low : low + step]
        products = own @ centers.T
        best = products.argmax(axis=1)
        close = products >= products[np.arange(len(own)), best][:, None] - 2 * MARGIN
        several = np.flatnonzero(close.sum(axis=1) > 1)
        rows, columns = np.nonzero(close[several])
        values = exact(own[several[rows]], centers[columns])
        order = np.lexsort((columns, -values, rows))
        _, first = np.unique(rows[order], return_index=True)
        best[several] = columns[order][first]
        out[low : low + step] = best
    return out


def centers_of(sample: Floats, count: int) -> Floats:
    """Return the centers of clusters, float32[count, d], of vectors of length 1 in an order that has no meaning.

    The first vectors are the first centers; a center without vectors stays.
    """
    centers = sample[:count].copy()
    for _ in range(ROUNDS):
        labels = nearest(sample, centers)
        order = np.argsort(labels, kind="stable")
        used, starts = np.unique(labels[order], return_index=True)
        sums = np.add.reduceat(sample[order].astype(np.float64), starts, axis=0)
        lengths = np.sqrt(np.einsum("ij,ij->i", sums, sums))
        filled = lengths > 0
        centers[used[filled]] = (sums[filled] / lengths[filled, None]).astype(np.float32)
    return centers


def cover(
    count: int, rows: Callable[[Ints], Floats], threshold: float, go_on: Callable[[], object]
) -> tuple[Ints, npt.NDArray[np.float64], int]:
    """Keep a vector unless one before it that is kept is similar to it: the first such one is its witness.

    Args:
        count: Number of vectors, in the order in which they are kept.
        rows: Returns vectors of length 1 by their places.
        threshold: Similarity of a pair from which one is removed.
        go_on: Called between blocks.

    Returns:
        The witness of each vector, or itself if it is kept, int64[count]; the similarity to it, float64[count]; and the
        number of pairs that were compared.
    """
    witness, similarity = np.arange(count), np.ones(count)
    kept, pairs = np.empty(0, np.int64), 0
    for low in range(0, count, BLOCK):
        go_on()
        places = np.arange(low, min(low + BLOCK, count))
        block = rows(places)
        left = np.arange(len(places))
        for at in range(0, len(kept), _CHUNK):
            some = kept[at : at + _CHUNK]
            pairs += len(left) * len(some)
            found, which, values = _first(block[left], rows(some), threshold)
            witness[places[left[found]]], similarity[places[left[found]]] = some[which], values
            left = np.delete(left, found)
        pairs += len(left) * (len(left) - 1) // 2
        later, earlier, values = _within(block[left], threshold)
        removed = np.zeros(len(left), np.bool_)
        for one, other, value in zip(later.tolist(), earlier.tolist(), values.tolist(), strict=True):
            if not removed[one] and not removed[other]:
                removed[one] = True
                witness[places[left[one]]], similarity[places[left[one]]] = places[left[other]], value
        kept = np.concatenate([kept, places[left[~removed]]])
    return witness, similarity, pairs


def connect(
    count: int, rows: Callable[[Ints], Floats], threshold: float, go_on: Callable[[], object]
) -> tuple[Ints, npt.NDArray[np.float64], int]:
    """Keep the first vector of those that similar pairs connect: it is the witness of the others, similar or not.

    Takes and returns the same as `cover`. Pairs of vectors that others have connected are not looked at.
    """
    labels, pairs = np.arange(count), 0
    for low in range(0, count, BLOCK):
        places = np.arange(low, min(low + BLOCK, count))
        block = rows(places)
        for at in range(0, low + len(places), _CHUNK):
            go_on()
            others = np.arange(at, min(at + _CHUNK, low + len(places)))
            pairs += len(places) * len(others)
            some = rows(others)
            products = block @ some.T
            sure = (products >= threshold + MARGIN) & (labels[places][:, None] != labels[others])
            while sure.any():  # a pair of each vector halves what is apart
                one, other = np.flatnonzero(sure.any(axis=1)), np.flatnonzero(sure.any(axis=0))
                ends = (np.append(one, sure[:, other].argmax(axis=0)), np.append(sure[one].argmax(axis=1), other))
                labels = _joined(labels, places[ends[0]], others[ends[1]])
                sure &= labels[places][:, None] != labels[others]
            close = (products >= threshold - MARGIN) & (labels[places][:, None] != labels[others])
            one, other = np.nonzero(close)
            for begin in range(0, len(one), BLOCK):
                own = slice(begin, begin + BLOCK)
                apart = labels[places[one[own]]] != labels[others[other[own]]]
                left, right = one[own][apart], other[own][apart]
                similar = exact(block[left], some[right]) >= threshold
                labels = _joined(labels, places[left[similar]], others[right[similar]])
        pairs -= len(places) * (len(places) + 1) // 2
    similarity = np.ones(count)
    for low in range(0, count, BLOCK):
        places = np.arange(low, min(low + BLOCK, count))
        similarity[places] = exact(rows(places), rows(labels[places]))
    return labels, similarity, pairs


def _joined(labels: Ints, one: Ints, other: Ints) -> Ints:
    """Return the labels, each the first place of its component, with those of pairs of places joined."""
    if not len(one):
        return labels
    nodes, heads = connected(np.stack([labels[one], labels[other]], axis=1))
    moved = np.arange(len(labels))
    moved[nodes] = heads
    found: Ints = moved[labels]
    return found


def _first(block: Floats, others: Floats, threshold: float) -> tuple[Ints, Ints, npt.NDArray[np.float64]]:
    """Return the rows of a block with a similar one among others, the first of these, and the similarity to it."""
    rows, columns = np.nonzero(block @ others.T >= threshold - MARGIN)
    values = exact(block[rows], others[columns])
    similar = values >= threshold
    rows, columns, values = rows[similar], columns[similar], values[similar]
    found, first = np.unique(rows, return_index=True)
    return found, columns[first], values[first]


def _within(block: Floats, threshold: float) -> tuple[Ints, Ints, npt.NDArray[np.float64]]:
    """Return the similar pairs of a block, (later, earlier), ascending, and their similarity."""
    later, earlier = np.nonzero(np.tril(block @ block.T >= threshold - MARGIN, -1))
    values = exact(block[later], block[earlier])
    similar = values >= threshold
    return later[similar], earlier[similar], values[similar]
