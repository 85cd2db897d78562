"""Clusters of a graph whose components are stars, by ranges of documents, in bounded memory.

1. *label*: The documents of a range get the first document of their cluster, and each cluster its number of documents
   in the range and the longest of them.
2. *combine*: The clusters that begin in a range are counted, and the document to keep of each is chosen.
3. *decide*: The documents of a range get the document that is kept, in a file of clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from feedmill.curation.near.graph import read_pairs
from feedmill.curation.near.stars import Graph
from feedmill.curation.near.view import Ints, View, clusters_name
from feedmill.curation.options import LONGEST
from feedmill.formats.arrays import Arrays, write_arrays
from feedmill.formats.signatures import read_arrays

LARGEST, EXAMPLES = 10, 3
"""Number of the largest clusters that are reported, and of example documents of each."""


class Cluster(NamedTuple):
    """A cluster for the report: number of documents, its first document, and the one that is kept."""

    size: int
    head: int
    kept: int


@dataclass(frozen=True, slots=True)
class LabelTask:
    """Range of new documents, and the graph: its last stage, and the numbers of runs of that stage's units."""

    graph: Graph
    part: int
    stage: int
    sources: tuple[int, ...]
    keep: str

    def __str__(self) -> str:
        return f"labels of range {self.part}"

    @property
    def path(self) -> str:
        """Path of the result."""
        return _labels(self.graph, self.part)


def label(task: LabelTask) -> int:
    """Write the cluster of each document of a range, unless an earlier run did. Return the number of documents.

    The array file has ``members`` and ``roots`` as in `feedmill.formats.signatures`; and for each cluster with a
    document in the range ``heads`` int64[k], ascending, ``counts``, ``lengths`` and ``best`` int64[k]: the number of
    documents, and the length and number of the longest; and ``starts``, the first of ``heads`` in each range.
    """
    graph, view = task.graph, task.graph.view
    if view.store.exists(task.path):
        return len(read_arrays(view.store, task.path)["members"])
    low, high = graph.ranges.of(task.part)
    heads = np.full(high - low, -1, np.int64)
    for ends in read_pairs(view.store, graph.place, task.stage, task.sources, task.part, graph.chunk):
        leaf = ends[:, 1] < ends[:, 0]
        heads[ends[leaf, 0] - low] = ends[leaf, 1]
        heads[ends[~leaf, 0] - low] = ends[~leaf, 0]
    members = np.flatnonzero(heads >= 0)
    roots = heads[members]
    members += low
    lengths = view.lengths(members) if task.keep == LONGEST else np.zeros(len(members), np.int64)
    order = np.lexsort((-lengths, roots))  # the first of the longest
    found, best, counts = np.unique(roots[order], return_index=True, return_counts=True)
    longest = order[best]
    arrays = {
        "members": members,
        "roots": roots,
        "heads": found,
        "counts": counts.astype(np.int64),
        "lengths": lengths[longest],
        "best": members[longest],
        "starts": np.searchsorted(found, graph.ranges.bounds),
    }
    write_arrays(view.store, task.path, arrays)
    return len(members)


@dataclass(frozen=True, slots=True)
class CombineTask:
    """Range of documents with which clusters begin."""

    graph: Graph
    part: int
    keep: str

    def __str__(self) -> str:
        return f"clusters of range {self.part}"

    @property
    def path(self) -> str:
        """Path of the result."""
        return _table(self.graph, self.part)


class Combined(NamedTuple):
    """Clusters that begin in a range: their number by size, and the largest."""

    sizes: dict[int, int]
    largest: list[Cluster]


def combine(task: CombineTask) -> Combined:
    """Write the size and the document to keep of the clusters that begin in a range, unless an earlier run did."""
    view = task.graph.view
    if not view.store.exists(task.path):
        write_arrays(view.store, task.path, _combined(task, view))
    arrays = read_arrays(view.store, task.path)
    return Combined(count_sizes(arrays["sizes"]), largest(arrays["heads"], arrays["sizes"], arrays["kept"]))


def _combined(task: CombineTask, view: View) -> Arrays:
    ranges = task.graph.ranges
    low, high = ranges.of(task.part)
    counts, best = np.zeros(high - low, np.int64), np.zeros(high - low, np.int64)
    lengths = np.full(high - low, -1, np.int64)
    for part in range(max(task.part, ranges.earlier), ranges.count):  # no cluster has documents before its first one
        arrays = read_arrays(view.store, _labels(task.graph, part))
        own = slice(*arrays["starts"][task.part : task.part + 2].tolist())
        at = arrays["heads"][own] - low
        counts[at] += arrays["counts"][own]
        longer = arrays["lengths"][own] > lengths[at]
        lengths[at[longer]], best[at[longer]] = arrays["lengths"][own][longer], arrays["best"][own][longer]
    heads = np.flatnonzero(counts)
    sizes, chosen = counts[heads], best[heads]
    heads += low
    if task.part < ranges.earlier:
        sizes, kept = sizes + 1, view.decisions(heads)[1]
    else:
        kept = chosen if task.keep == LONGEST else heads
    return {"heads": heads, "sizes": sizes, "kept": kept}


def count_sizes(sizes: Ints) -> dict[int, int]:
    """Return the number of clusters of each size."""
    values, times = np.unique(sizes, return_counts=True)
    return dict(zip(values.tolist(), times.tolist(), strict=True))


def largest(heads: Ints, sizes: Ints, kept: Ints) -> list[Cluster]:
    """Return the largest clusters; of equal ones, those that begin first."""
    chosen = np.lexsort((heads, -sizes))[:LARGEST]
    return [Cluster(*one) for one in zip(*(a[chosen].tolist() for a in (sizes, heads, kept)), strict=True)]


@dataclass(frozen=True, slots=True)
class DecideTask:
    """Range of new documents. `shown` are the clusters to report."""

    graph: Graph
    part: int
    shown: tuple[Cluster, ...]

    def __str__(self) -> str:
        return f"range {self.part}"

    @property
    def path(self) -> str:
        """Path of the result."""
        return clusters_name(self.graph.last, self.part - self.graph.ranges.earlier)


def decide_range(task: DecideTask) -> list[list[int]]:
    """Write the clusters of a range of documents, unless an earlier run did.

    Returns:
        Some documents of each shown cluster that are not kept.
    """
    view, ranges = task.graph.view, task.graph.ranges
    if not view.store.exists(task.path):
        arrays = read_arrays(view.store, _labels(task.graph, task.part))
        roots, places = np.unique(arrays["roots"], return_inverse=True)
        kept, cuts = roots.copy(), np.searchsorted(roots, ranges.bounds).tolist()
        for part in range(task.part + 1):
            if own := slice(cuts[part], cuts[part + 1]) if cuts[part] < cuts[part + 1] else None:
                table = read_arrays(view.store, _table(task.graph, part))
                kept[own] = table["kept"][np.searchsorted(table["heads"], roots[own])]
        found = {"members": arrays["members"], "roots": arrays["roots"], "kept": kept[places]}
        write_arrays(view.store, task.path, found)
    return examples(read_arrays(view.store, task.path), task.shown)


def examples(clusters: Arrays, shown: tuple[Cluster, ...]) -> list[list[int]]:
    """Return some members of each of these clusters that are not kept."""
    members, roots = clusters["members"], clusters["roots"]
    own = np.flatnonzero(np.isin(roots, np.array([one.head for one in shown], np.int64)))
    members, roots = members[own], roots[own]
    return [members[(roots == one.head) & (members != one.kept)][:EXAMPLES].tolist() for one in shown]


def report(view: View, sizes: dict[int, int], shown: tuple[Cluster, ...], marked: list[list[int]]) -> dict[str, Any]:
    """Return the number and sizes of the clusters, and the largest ones with example documents.

    A cluster that began in an earlier dump counts its first document and the new ones.
    """
    clusters = []
    for one, documents in zip(shown, marked, strict=True):
        name, line = view.origin(one.kept)
        clusters.append(
            {
                "cluster": one.head,
                "documents": one.size,
                "kept": {"id": _text(view.ids(np.array([one.kept]))[0]), "file": name, "line": line},
                "duplicates": [_text(raw) for raw in view.ids(np.array(documents, np.int64))],
            }
        )
    return {
        "clusters": sum(sizes.values()),
        "sizes": {str(size): sizes[size] for size in sorted(sizes)},
        "largest": clusters,
    }


def _text(raw: bytes) -> Any:
    import orjson

    return orjson.loads(raw)


def _labels(graph: Graph, part: int) -> str:
    return f"{graph.place}/labels-{part:05d}"


def _table(graph: Graph, part: int) -> str:
    return f"{graph.place}/clusters-{part:05d}"
