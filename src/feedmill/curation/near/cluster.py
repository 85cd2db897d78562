"""From similar pairs to clusters: connected documents, of which one is kept.

What earlier dumps decided stays: a document of theirs does not become a duplicate later on, and two clusters of theirs
stay two, even where a new document is similar to both; it then belongs to the one that begins first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.curation.near.join import index_name, ranges
from feedmill.curation.near.options import LONGEST
from feedmill.curation.near.view import Ints, View
from feedmill.formats.signatures import read_arrays, write_arrays
from feedmill.kernels.hashing import near_pairs_compiled as compiled


def decide(view: View, bands: int, keep: str) -> None:
    """Write the clusters of the dump at the end; nothing if an earlier run did."""
    path = f"{view.plan['folder']}/clusters"
    if view.store.exists(path):
        return
    members, roots, attached = _connect(view, _edges(view, bands))
    kept = roots.copy()
    if attached.any():
        kept[attached] = view.decisions(roots[attached])[1]
    if keep == LONGEST:
        free = np.flatnonzero(~attached)
        order = free[np.lexsort((members[free], -view.lengths(members[free]), roots[free]))]
        _, heads, inverse = np.unique(roots[order], return_index=True, return_inverse=True)
        kept[order] = members[order[heads]][inverse]
    write_arrays(view.store, path, {"members": members, "roots": roots, "kept": kept})


def _edges(view: View, bands: int) -> npt.NDArray[np.int64]:
    """int64[m, 2]: the similar pairs of all bands, (earlier, later)."""
    pieces = [np.empty((0, 2), np.int64)]
    for band in range(bands):
        for part in range(len(ranges(view.plan["rows"]))):
            pieces.append(read_arrays(view.store, index_name(view.plan["folder"], band, part))["edges"])
    return np.concatenate(pieces)


def _connect(view: View, edges: npt.NDArray[np.int64]) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """The new documents that have an edge, the first document of the cluster of each, and whether that is an earlier
    dump's."""
    # Pairs that others connect are not among the edges, and which those are depends on the ranges: nothing but what is
    # connected at all may count, through documents of earlier dumps as well.
    first = view.plan["first"]
    members = np.unique(edges[edges >= first])
    ends, places = np.unique(edges, return_inverse=True)
    earlier = int(np.searchsorted(ends, first))
    ends[:earlier] = view.decisions(ends[:earlier])[0]
    nodes, which = np.unique(ends, return_inverse=True)
    heads = nodes[compiled.components(len(nodes), which[places].reshape(-1, 2))]
    roots = heads[np.searchsorted(nodes, members)]
    return members, roots, roots < first


def summary(view: View, largest: int = 10, examples: int = 3) -> dict[str, Any]:
    """Return the clusters of the dump at the end: how many, how large, the largest with some of their documents.

    A cluster that an earlier dump began counts with the document that it began with, and the new ones.
    """
    arrays = view.clusters(len(view.plans) - 1)
    members, roots, kept = arrays["members"], arrays["roots"], arrays["kept"]
    heads, where, counts = np.unique(roots, return_inverse=True, return_counts=True)
    sizes = counts + (heads < view.plan["first"])
    values, times = np.unique(sizes, return_counts=True)
    shown = []
    for cluster in np.lexsort((heads, -sizes))[:largest].tolist():
        own = np.flatnonzero(where == cluster)
        marked = members[own][members[own] != kept[own]][:examples]
        stays = int(kept[own[0]])
        name, line = view.origin(stays)
        shown.append(
            {
                "cluster": int(heads[cluster]),
                "documents": int(sizes[cluster]),
                "kept": {"id": _text(view.ids(np.array([stays]))[0]), "file": name, "line": line},
                "duplicates": [_text(one) for one in view.ids(marked)],
            }
        )
    return {
        "clusters": len(heads),
        "sizes": {str(size): int(n) for size, n in zip(values.tolist(), times.tolist(), strict=True)},
        "largest": shown,
    }


def _text(raw: bytes) -> Any:
    import orjson

    return orjson.loads(raw)
