"""Connect similar pairs to clusters of documents, and choose the document to keep of each.

The decisions of earlier dumps never change. Their documents do not become duplicates later, and their clusters are not
merged. A new document that is similar to two clusters of earlier dumps joins the one that begins first.
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
    """Write the clusters of the last dump, unless an earlier run did."""
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
    """Return the similar pairs of all bands, (earlier, later), as int64[m, 2]."""
    pieces = [np.empty((0, 2), np.int64)]
    for band in range(bands):
        for part in range(len(ranges(view.plan["rows"]))):
            pieces.append(read_arrays(view.store, index_name(view.plan["folder"], band, part))["edges"])
    return np.concatenate(pieces)


def _connect(view: View, edges: npt.NDArray[np.int64]) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Return the new documents with edges, the first document of each one's cluster, and whether that is not new."""
    # Pairs that other pairs connect are not among the edges, and which pairs those are depends on the ranges. So the
    # result must depend only on which documents are connected, also through documents of earlier dumps.
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
    """Return the number and sizes of the last dump's clusters, and the largest clusters with example documents.

    A cluster that began in an earlier dump counts its first document and the new ones.
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
