"""Connect similar pairs to clusters of documents, and choose the document to keep of each.

The decisions of earlier dumps never change. Their documents do not become duplicates later, and their clusters are not
merged. A new document that is similar to two clusters of earlier dumps joins the one that begins first.

Pairs that other pairs connect are not among the edges, and which pairs those are depends on the ranges. So the result
depends only on which documents are connected, also through documents of earlier dumps. Up to `stars.EDGES`, after
reduction to a spanning forest, are connected here; more are by ranges of documents (`curation.near.stars`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.curation.near import labels, stars
from feedmill.curation.near.graph import NODES, Ranges
from feedmill.curation.near.stars import Graph, Stage, connected, contracted, read_edges
from feedmill.curation.near.view import Ints, View, clusters_name
from feedmill.curation.options import LONGEST
from feedmill.formats.arrays import write_arrays
from feedmill.formats.signatures import read_arrays
from feedmill.jobs.memory import sized


def find_clusters(
    folder: str, view: View, sources: Sequence[str], sizes: Sequence[int], keep: str, stage: Stage
) -> tuple[dict[str, Any], int]:
    """Write the clusters of the last dump, unless an earlier run did.

    Args:
        folder: Folder of the signatures.
        view: All its documents.
        sources, sizes: Array files with the similar pairs, and the number of pairs of each.
        keep: Document of a cluster that is kept.
        stage: Runs a function over units.

    Returns:
        Number and sizes of the clusters, and the largest clusters with example documents; and the number of documents
        in the range of a file of clusters, 0 if there is one file.
    """
    plan, path = view.plan, clusters_name(view.plan["folder"])
    if not view.store.exists(path):
        nodes = sized(NODES, view.room)
        ranges = Ranges(plan["first"], plan["first"] + plan["rows"], nodes)
        graph = Graph(folder, len(view.plans) - 1, plan["folder"], ranges, view.room)
        forest = list(sources)
        if sum(sizes) > sized(stars.EDGES, view.room):
            forest = stars.forests(graph, sources, sizes, stage)
            if len(forest) > 1:
                return _by_range(view, graph, forest, keep, stage), nodes
        _decide(view, forest, keep, path)
    return _summary(view, path), 0


def _decide(view: View, sources: Sequence[str], keep: str, path: str) -> None:
    members, roots, attached = _connect(view, contracted(view, read_edges(view, sources)))
    kept = roots.copy()
    if attached.any():
        kept[attached] = view.decisions(roots[attached])[1]
    if keep == LONGEST:
        free = np.flatnonzero(~attached)
        order = free[np.lexsort((members[free], -view.lengths(members[free]), roots[free]))]
        _, heads, inverse = np.unique(roots[order], return_index=True, return_inverse=True)
        kept[order] = members[order[heads]][inverse]
    write_arrays(view.store, path, {"members": members, "roots": roots, "kept": kept})


def _connect(view: View, edges: npt.NDArray[np.int64]) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Return the new documents with edges, the first document of each one's cluster, and whether that is not new."""
    nodes, heads = connected(edges)
    at = int(np.searchsorted(nodes, view.plan["first"]))
    return nodes[at:], heads[at:], heads[at:] < view.plan["first"]


def _summary(view: View, path: str) -> dict[str, Any]:
    arrays = read_arrays(view.store, path)
    heads, firsts, counts = np.unique(arrays["roots"], return_index=True, return_counts=True)
    sizes = counts + (heads < view.plan["first"])
    shown = tuple(labels.largest(heads, sizes, arrays["kept"][firsts]))
    return labels.report(view, labels.count_sizes(sizes), shown, labels.examples(arrays, shown))


def _by_range(view: View, graph: Graph, forest: Sequence[str], keep: str, stage: Stage) -> dict[str, Any]:
    ranges = graph.ranges
    new = range(ranges.earlier, ranges.count)
    number, runs = stars.stars(graph, forest, stage)
    for _ in stage(
        labels.label, [labels.LabelTask(graph, part, number, runs, keep) for part in new], "connecting labels"
    ):
        pass
    sizes, top = dict[int, int](), list[labels.Cluster]()
    units = [labels.CombineTask(graph, part, keep) for part in range(ranges.count)]
    for one in stage(labels.combine, units, "connecting sizes"):
        for size, times in one.sizes.items():
            sizes[size] = sizes.get(size, 0) + times
        top = sorted([*top, *one.largest], key=lambda cluster: (-cluster.size, cluster.head))[: labels.LARGEST]
    shown, marked = tuple(top), [list[int]() for _ in top]
    for found in stage(
        labels.decide_range, [labels.DecideTask(graph, part, shown) for part in new], "connecting decisions"
    ):
        for documents, more in zip(marked, found, strict=True):
            documents += more[: labels.EXAMPLES - len(documents)]
    return labels.report(view, sizes, shown, marked)
