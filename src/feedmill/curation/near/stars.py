"""Connected components in bounded memory: spanning forests, and stars by ranges of documents.

1. *forest*: The pairs of some files are reduced to a spanning forest, and forests to one of all, while they fit a task.
2. *star*: Larger graphs alternate two operations over ranges of documents until nothing changes. Large-star connects
   the larger neighbors of each document with its smallest one, or with the document itself if that is smaller;
   small-star does so with the smaller neighbors and the document. Both keep what is connected. At the end, each
   component is a star around its first document. After Kiveris et al., Connected Components in MapReduce and Beyond,
   2014.

Each step is a stage of units, whose results are array files in the dump's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from feedmill.curation.near import graph as graphs
from feedmill.curation.near.graph import Pairs, Ranges, Runs, read_pairs
from feedmill.curation.near.parallel import go_on
from feedmill.curation.near.view import WORK, View, open_view
from feedmill.formats.arrays import write_arrays
from feedmill.formats.signatures import read_arrays
from feedmill.jobs.memory import sized
from feedmill.kernels.hashing import near_pairs

EDGES = 2 << 20
"""Number of pairs in memory of a task with full room that connects them. Each takes 100 bytes."""
Stage = Callable[[Callable[..., Any], Sequence[Any], str], Iterator[Any]]
"""Runs a function over units; the last argument identifies the stage."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Location of the graph of an added dump: the folder of signatures, and the dump's folder in it."""

    folder: str
    dumps: int
    last: str
    ranges: Ranges
    room: int

    @property
    def view(self) -> View:
        """The documents."""
        return open_view(self.folder, self.dumps, self.last, self.room)

    @property
    def chunk(self) -> int:
        """Number of pairs in memory."""
        return sized(graphs.CHUNK, self.room)

    @property
    def place(self) -> str:
        """Folder of the graph's files, which are removed with other unfinished work."""
        return f"{self.last}/{WORK}"


@dataclass(frozen=True, slots=True)
class ForestTask:
    """Array files with ``edges`` to reduce to one. `first`: documents of earlier dumps are among their ends."""

    graph: Graph
    level: int
    number: int
    sources: tuple[str, ...]

    def __str__(self) -> str:
        return f"forest {self.number} of level {self.level}"

    @property
    def path(self) -> str:
        """Path of the result."""
        return f"{self.graph.place}/forest-{self.level:02d}-{self.number:05d}"


def forest(task: ForestTask) -> int:
    """Write the edges of a spanning forest, unless an earlier run did. Return their number."""
    view = task.graph.view
    if not view.store.exists(task.path):
        edges = read_edges(view, task.sources)
        if not task.level:
            edges = contracted(view, edges)
        nodes, heads = connected(edges)
        own = nodes != heads
        write_arrays(view.store, task.path, {"edges": np.stack([heads[own], nodes[own]], axis=1)})
    return len(read_arrays(view.store, task.path)["edges"])


def read_edges(view: View, paths: Sequence[str]) -> Pairs:
    """Return the edges of array files, (earlier, later), as int64[m, 2]."""
    edges = (read_arrays(view.store, path)["edges"].copy() for path in paths)
    return np.concatenate([np.empty((0, 2), np.int64), *edges])


def contracted(view: View, edges: Pairs) -> Pairs:
    """Return the edges with each document of earlier dumps replaced by the first one of its cluster."""
    first = view.plan["first"]
    ends, places = np.unique(edges, return_inverse=True)
    earlier = int(np.searchsorted(ends, first))
    ends[:earlier] = view.decisions(ends[:earlier])[0]
    return ends[places].reshape(-1, 2)


def connected(edges: Pairs) -> tuple[Pairs, Pairs]:
    """Return the ends of the edges, ascending, and the first document of each one's component, int64[n] each."""
    nodes, which = np.unique(edges, return_inverse=True)
    return nodes, nodes[near_pairs.components(len(nodes), which.reshape(-1, 2))]


def forests(graph: Graph, sources: Sequence[str], sizes: Sequence[int], stage: Stage) -> list[str]:
    """Reduce files of edges to forests, and these to one, or to as few as a task has memory for. Return the paths.

    Args:
        sources, sizes: Paths of the files, and the number of edges of each.
    """
    paths, level = list(sources), 0
    while True:
        groups = _groups(sizes, sized(EDGES, graph.room))
        if level and (len(paths) == 1 or 4 * len(groups) > 3 * len(paths)):
            return paths
        tasks = [ForestTask(graph, level, number, tuple(paths[low:high])) for number, (low, high) in enumerate(groups)]
        sizes = list(stage(forest, tasks, f"connecting forest {level}"))
        paths, level = [task.path for task in tasks], level + 1


def _groups(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return the bounds of groups of neighboring files with up to `most` edges, or one file with more."""
    groups, low, held = [], 0, 0
    for at, size in enumerate(sizes):
        if at > low and held + size > most:
            groups.append((low, at))
            low, held = at, 0
        held += size
    return [*groups, (low, len(sizes))]


@dataclass(frozen=True, slots=True)
class SplitTask:
    """Forest whose edges are sorted into ranges."""

    graph: Graph
    number: int
    source: str

    def __str__(self) -> str:
        return f"forest {self.number}"


class Star(NamedTuple):
    """Number of runs that a unit wrote, and of edges that it changed."""

    runs: int
    changed: int


def split(task: SplitTask) -> Star:
    """Write the edges of a forest as runs, in both directions, unless an earlier run did."""
    view = task.graph.view
    marker = _marker(task.graph, 0, task.number)
    if not view.store.exists(marker):
        runs = Runs(view.store, task.graph.place, 0, task.number, task.graph.ranges.bounds, task.graph.chunk)
        edges = read_arrays(view.store, task.source)["edges"]
        for at in range(0, len(edges), step := max(1, task.graph.chunk // 2)):
            _add_both(runs, edges[at : at + step, 0], edges[at : at + step, 1])
        _mark(view, marker, runs, 0)
    return _marked(view, marker)


@dataclass(frozen=True, slots=True)
class StarTask:
    """Range of documents of a stage: large-star in odd stages, small-star in even ones.

    `sources` are the numbers of runs of the units of the stage before.
    """

    graph: Graph
    stage: int
    part: int
    sources: tuple[int, ...]

    def __str__(self) -> str:
        return f"range {self.part} of stage {self.stage}"


def star(task: StarTask) -> Star:
    """Write the edges that the documents of a range get as runs, unless an earlier run did.

    Large-star reads edges in both directions and writes them by their larger end, small-star the reverse.
    """
    graph, view = task.graph, task.graph.view
    marker = _marker(graph, task.stage, task.part)
    if view.store.exists(marker):
        return _marked(view, marker)
    low, high = graph.ranges.of(task.part)
    least = np.arange(low, high)
    for ends in read_pairs(view.store, graph.place, task.stage - 1, task.sources, task.part, graph.chunk):
        np.minimum.at(least, ends[:, 0] - low, ends[:, 1])
    runs = Runs(view.store, graph.place, task.stage, task.part, graph.ranges.bounds, graph.chunk)
    changed = 0
    for ends in read_pairs(view.store, graph.place, task.stage - 1, task.sources, task.part, graph.chunk):
        go_on()
        if task.stage % 2:
            ends = ends[ends[:, 1] > ends[:, 0]]
            center = least[ends[:, 0] - low]
            changed += int(np.count_nonzero(center != ends[:, 0]))
            runs.add(np.stack([ends[:, 1], center], axis=1))
        else:
            center = least[ends[:, 0] - low]
            other = ends[:, 1] != center
            changed += int(np.count_nonzero(other))
            _add_both(runs, center, np.where(other, ends[:, 1], ends[:, 0]))
    _mark(view, marker, runs, changed)
    return _marked(view, marker)


def _add_both(runs: Runs, a: Pairs, b: Pairs) -> None:
    runs.add(np.concatenate([np.stack([a, b], axis=1), np.stack([b, a], axis=1)]))


def _marker(graph: Graph, stage: int, unit: int) -> str:
    return f"{graph.place}/runs-{stage:03d}-{unit:05d}"


def _mark(view: View, path: str, runs: Runs, changed: int) -> None:
    runs.flush()
    write_arrays(view.store, path, {"counts": np.array([runs.written, changed], np.int64)})


def _marked(view: View, path: str) -> Star:
    return Star(*read_arrays(view.store, path)["counts"].tolist())


def stars(graph: Graph, paths: Sequence[str], stage: Stage) -> tuple[int, tuple[int, ...]]:
    """Connect the edges of forests to stars around the first document of each component.

    Returns:
        The number of the last stage, and the number of runs of each of its units, with edges in both directions.
    """
    tasks = [SplitTask(graph, number, path) for number, path in enumerate(paths)]
    number, changed = 0, 1
    runs = tuple(one.runs for one in stage(split, tasks, "connecting split"))
    while changed:
        changed = 0
        for _ in ("large", "small"):
            number += 1
            units = [StarTask(graph, number, part, runs) for part in range(graph.ranges.count)]
            results = list(stage(star, units, f"connecting star {number}"))
            runs = tuple(result.runs for result in results)
            changed += sum(result.changed for result in results)
    return number, runs
