"""Choose the documents to keep, and for each other one a kept document that is similar to it: its witness.

A document is kept unless a kept one before it is similar to it. So each removed document has a witness, and no kept
one has: the kept ones are the lexicographically first maximal independent set of the graph of similar pairs. "Before"
is the order of the input, or the order of length for ``keep="longest"``; documents of earlier dumps are before all
others. The witness is the first such document. What is decided depends on documents before, so later dumps change
nothing.

Comparing all pairs would be quadratic in the copies of a text, so each join task compares a document only with those of
its bucket that it found no similar one for (`join`), and here follow, by ranges of documents and in bounded memory:

1. *settle*: What is kept by the similar pairs known so far.
2. *check*: A bucket in which a document that was found covered is kept after all, or one that others were covered by is
   not, is compared again: kept documents with each other, and with those that they would cover before their witness.
   New pairs are settled again. Without new ones, the pairs that are left cannot change a decision.
3. *decide*: The decisions by the documents' numbers, and the numbers and sizes of clusters: a kept document and those
   that it covers.

Documents are numbered by their places here (`feedmill.curation.near.view.Order`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from feedmill.curation.near import join, labels
from feedmill.curation.near.graph import Pairs, Ranges, Runs, distinct, read_pairs
from feedmill.curation.near.parallel import go_on
from feedmill.curation.near.stars import Graph, Stage
from feedmill.curation.near.view import Ints, View, clusters_name, order_of
from feedmill.curation.options import Keep
from feedmill.formats.arrays import write_arrays
from feedmill.formats.signatures import read_arrays
from feedmill.jobs.memory import sized
from feedmill.kernels.hashing import near_pairs

NODES = 1 << 20
"""Number of documents in a range, for a task with full room, of one similar pair each. A pair takes 72 bytes."""


@dataclass(frozen=True, slots=True)
class SplitTask:
    """Array file with similar ``edges`` and equal ``copies``, (before, after) by number, to sort into ranges."""

    graph: Graph
    keep: Keep
    round: int
    number: int
    source: str

    def __str__(self) -> str:
        return f"pairs {self.number} of round {self.round}"


def split(task: SplitTask) -> int:
    """Write the pairs of a file as runs of (after, before) by place, unless an earlier run did. Return their number."""
    graph, view = task.graph, task.graph.view
    marker = f"{graph.place}/pairs-{task.round:03d}-{task.number:05d}"
    if not view.store.exists(marker):
        order, arrays = order_of(view, task.keep), read_arrays(view.store, task.source)
        runs = Runs(view.store, graph.place, task.round, task.number, graph.ranges.bounds, graph.chunk)
        edges = order.places(arrays["edges"])
        runs.add(edges[:, ::-1])
        if "copies" in arrays and len(arrays["copies"]):
            before, after = arrays["copies"][:, 0].copy(), arrays["copies"][:, 1]
            old = before < graph.ranges.first
            before[old] = view.decisions(before[old])[1]  # the witness of an equal document
            before = order.places(before)
            runs.add(np.stack([order.places(after), np.where(old, before, ~before)], axis=1))
        runs.flush()
        write_arrays(view.store, marker, {"counts": np.array([runs.written], np.int64)})
    return int(read_arrays(view.store, marker)["counts"][0])


@dataclass(frozen=True, slots=True)
class SettleTask:
    """The runs of all rounds so far: the numbers of runs of the units of each."""

    graph: Graph
    runs: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        return f"round {self.round}"

    @property
    def round(self) -> int:
        """Number of the last round."""
        return len(self.runs) - 1


def settle(task: SettleTask) -> int:
    """Write what is kept, range after range, unless an earlier run did. Return the number of other documents.

    A range's file has ``members`` int64[m], ascending, the places of documents that are not kept, and ``covers``
    int64[m], the places of their witnesses. In memory are the documents and pairs of one range: what the ranges before
    it decided is read from their files.
    """
    graph, view, removed = task.graph, task.graph.view, 0
    ranges = graph.ranges
    for part in range(ranges.earlier, ranges.count):
        path = _settled_name(graph, task.round, part)
        if not view.store.exists(path):
            go_on()
            low, high = ranges.of(part)
            pairs = _known(_pairs(graph, task.runs, part), Settled(graph, view, task.round), low)
            kept, covers = np.ones(high - low, np.uint8), np.empty(high - low, np.int64)
            near_pairs.settle(pairs, low, low, kept, covers)
            members = np.flatnonzero(covers != np.arange(low, high))
            write_arrays(view.store, path, {"members": members + low, "covers": covers[members]})
        removed += len(read_arrays(view.store, path)["members"])
    return removed


def _pairs(graph: Graph, runs: Sequence[tuple[int, ...]], part: int) -> Pairs:
    store = graph.view.store
    pieces = [
        piece
        for number, units in enumerate(runs)
        for piece in read_pairs(store, graph.place, number, units, part, graph.chunk)
    ]
    return distinct(np.concatenate([np.empty((0, 2), np.int64), *pieces]))


def _known(pairs: Pairs, settled: Settled, low: int) -> Pairs:
    """Return the pairs without those whose earlier document is before `low` and not kept.

    A document with an equal set before `low` is paired with the witness of that one, if it is not kept, instead.
    """
    earlier = pairs[:, 1]
    equal = earlier < 0
    documents = np.where(equal, ~earlier, earlier)
    before = np.flatnonzero(documents < low)
    covers = settled.covers(documents[before])
    kept = covers == documents[before]
    pairs[before, 1] = covers
    left = np.ones(len(pairs), np.bool_)
    left[before[~kept & ~equal[before]]] = False
    return pairs[left]


@dataclass(frozen=True, slots=True)
class Settled:
    """What a round settled."""

    graph: Graph
    view: View
    round: int

    def covers(self, places: Ints) -> Ints:
        """Return the place of each new document's witness, its own if it is kept; of earlier documents, their own."""
        out, ranges = places.copy(), self.graph.ranges
        order = np.argsort(places)
        cuts = np.searchsorted(places[order], ranges.bounds).tolist()
        for part in range(ranges.earlier, ranges.count):
            own = order[cuts[part] : cuts[part + 1]]
            if not len(own):
                continue
            arrays = read_arrays(self.view.store, _settled_name(self.graph, self.round, part))
            at = np.searchsorted(arrays["members"], places[own])
            hit = at < len(arrays["members"])
            hit[hit] = arrays["members"][at[hit]] == places[own][hit]
            out[own[hit]] = arrays["covers"][at[hit]]
        return out


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Join task to check after a round. `rounds` are the earlier ones in which the check found pairs."""

    graph: Graph
    join: join.JoinTask
    round: int
    rounds: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.join} after round {self.round}"

    def path(self, number: int) -> str:
        """Path of the pairs that the check after a round found."""
        return f"{self.graph.place}/check-{number:03d}-{self.join.band:02d}-{self.join.part:04d}"


def check(task: CheckTask) -> int:
    """Compare again what a round left open, unless an earlier run did. Return the number of new pairs."""
    view, path = task.graph.view, task.path(task.round)
    if not view.store.exists(path):
        sources = [task.join.path, *(task.path(number) for number in task.rounds)]
        edges = np.concatenate([read_arrays(view.store, source)["edges"] for source in sources])
        write_arrays(view.store, path, {"edges": _open_pairs(task, view, edges)})
    return len(read_arrays(view.store, path)["edges"])


def _open_pairs(task: CheckTask, view: View, edges: Pairs) -> Pairs:
    order, settled = order_of(view, task.join.keep), Settled(task.graph, view, task.round)
    before, after = order.places(edges[:, 0]), order.places(edges[:, 1])
    open_ = (settled.covers(before) != before) | (settled.covers(after) == after)
    chunks = [np.empty((0, 2), np.int64)]
    for members, pairs, equal in join.again(view, task.join, np.unique(edges[open_, 1]), order):
        places = order.places(members)
        covers = settled.covers(places)
        kept = covers == places
        kept &= ~join.removed_before(view, members)
        i, j = pairs[:, 0], pairs[:, 1]
        wanted = pairs[~equal & kept[i] & (kept[j] | (places[i] < covers[j]))]
        chunks.append(join.covered_pairs(view, members, wanted, np.zeros(len(members), np.uint8), task.join.threshold))
    return np.concatenate(chunks)


class Decided(NamedTuple):
    """Of the clusters whose kept document is in a range: their number by size, and the largest with examples."""

    sizes: dict[int, int]
    largest: list[tuple[labels.Cluster, list[int]]]


@dataclass(frozen=True, slots=True)
class TurnTask:
    """Range of places, to sort its decisions by the documents' numbers, in both directions."""

    graph: Graph
    keep: Keep
    round: int
    part: int

    def __str__(self) -> str:
        return f"range {self.part}"


def turn(task: TurnTask) -> tuple[int, int]:
    """Write runs of (document, witness) and of (witness, document), unless an earlier run did. Return their numbers."""
    graph, view = task.graph, task.graph.view
    marker = f"{graph.place}/turned-{task.part:05d}"
    if not view.store.exists(marker):
        order = order_of(view, task.keep)
        arrays = read_arrays(view.store, _settled_name(graph, task.round, task.part))
        ends = np.stack([order.documents(arrays["members"]), order.documents(arrays["covers"])], axis=1)
        written = []
        for folder, columns in zip(_turned(graph), (ends, ends[:, ::-1]), strict=True):
            runs = Runs(view.store, folder, 0, task.part - graph.ranges.earlier, graph.ranges.bounds, graph.chunk)
            runs.add(columns)
            runs.flush()
            written.append(runs.written)
        write_arrays(view.store, marker, {"counts": np.array(written, np.int64)})
    covered, covering = read_arrays(view.store, marker)["counts"].tolist()
    return covered, covering


@dataclass(frozen=True, slots=True)
class DecideTask:
    """Range of documents, and the numbers of runs of `turn`."""

    graph: Graph
    part: int
    covered: tuple[int, ...]
    covering: tuple[int, ...]

    def __str__(self) -> str:
        return f"range {self.part}"


def decide(task: DecideTask) -> Decided:
    """Write the clusters of a range of new documents, unless an earlier run did. Return those that it keeps one of."""
    graph, view = task.graph, task.graph.view
    covered, covering = _turned(graph)
    low, high = graph.ranges.of(task.part)
    counts = np.zeros(high - low, np.int64)
    for own in read_pairs(view.store, covering, 0, task.covering, task.part, graph.chunk):
        heads, times = np.unique(own[:, 0], return_counts=True)
        counts[heads - low] += times
    heads = np.flatnonzero(counts)
    sizes = counts[heads] + 1
    heads += low
    if task.part >= graph.ranges.earlier:
        path = clusters_name(graph.last, task.part - graph.ranges.earlier)
        if not view.store.exists(path):
            pairs = read_pairs(view.store, covered, 0, task.covered, task.part, graph.chunk)
            ends = np.concatenate([np.empty((0, 2), np.int64), *pairs])
            members, kept = np.concatenate([ends[:, 0], heads]), np.concatenate([ends[:, 1], heads])
            by_number = np.argsort(members)
            kept = kept[by_number]
            write_arrays(view.store, path, {"members": members[by_number], "roots": kept, "kept": kept})
    largest = [(cluster, list[int]()) for cluster in labels.largest(heads, sizes, heads)]
    shown = np.array([cluster.head for cluster, _ in largest], np.int64)
    for own in read_pairs(view.store, covering, 0, task.covering, task.part, graph.chunk):
        own = own[np.isin(own[:, 0], shown)]
        for shown_cluster, documents in largest:
            documents[:] = sorted([*documents, *own[own[:, 0] == shown_cluster.head, 1].tolist()])[: labels.EXAMPLES]
    return Decided(labels.count_sizes(sizes), largest)


def cover(joins: Sequence[join.JoinTask], pairs: int, keep: Keep, stage: Stage) -> tuple[dict[str, Any], int]:
    """Write the clusters of the last dump from the pairs of its join tasks.

    Args:
        joins: Join tasks of the dump, done.
        pairs: Number of similar pairs that they found.
        keep: Document of similar ones that is kept.
        stage: Runs a function over units.

    Returns:
        What the report says of the clusters, and the number of documents in the range of a file of them.
    """
    task, view = joins[0], joins[0].view
    first, rows = view.plan["first"], view.plan["rows"]
    nodes = max(1, sized(NODES, task.room) // max(1, -(-pairs // max(1, rows))))
    graph = Graph(task.folder, task.dumps, task.last, Ranges(first, first + rows, nodes), task.room)
    runs, sources, rounds = list[tuple[int, ...]](), [task.path for task in joins], list[int]()
    while sources:
        number = len(runs)
        splits = [SplitTask(graph, keep, number, n, source) for n, source in enumerate(sources)]
        runs.append(tuple(stage(split, splits, f"sorting round {number}")))
        for _ in stage(settle, [SettleTask(graph, tuple(runs))], f"settling round {number}"):
            pass
        checks = [CheckTask(graph, task, number, tuple(rounds)) for task in joins]
        checked = list(stage(check, checks, f"checking round {number}"))
        sources = [task.path(number) for task, new in zip(checks, checked, strict=True) if new]
        rounds.append(number)
    new = range(graph.ranges.earlier, graph.ranges.count)
    turned = list(stage(turn, [TurnTask(graph, keep, len(runs) - 1, part) for part in new], "deciding order"))
    covered, covering = (tuple(files[n] for files in turned) for n in (0, 1))
    units = [DecideTask(graph, part, covered, covering) for part in range(graph.ranges.count)]
    sizes, largest = dict[int, int](), list[tuple[labels.Cluster, list[int]]]()
    for decided in stage(decide, units, "deciding"):
        for size, times in decided.sizes.items():
            sizes[size] = sizes.get(size, 0) + times
        largest = sorted([*largest, *decided.largest], key=lambda shown: (-shown[0].size, shown[0].head))[
            : labels.LARGEST
        ]
    return labels.report(view, sizes, tuple(cluster for cluster, _ in largest), [shown for _, shown in largest]), nodes


def _settled_name(graph: Graph, round_: int, part: int) -> str:
    return f"{graph.place}/settled-{round_:03d}-{part:05d}"


def _turned(graph: Graph) -> tuple[str, str]:
    """Folders of the runs that `turn` writes."""
    return f"{graph.place}/covered", f"{graph.place}/covering"
