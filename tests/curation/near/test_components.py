"""Components by forests and stars in bounded memory, beside those in memory, on graphs of any shape."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.curation.near import adding, graph, stars
from feedmill.curation.near.adding import find_clusters
from feedmill.curation.near.graph import Ranges
from feedmill.curation.near.view import View
from feedmill.formats.arrays import write_arrays
from feedmill.formats.signatures import read_arrays
from feedmill.storage import LocalStore
from helpers.durations import examples
from oracles import near_pairs

Edges = list[tuple[int, int]]


class Documents(View):
    """Documents that have only numbers and lengths."""

    def lengths(self, numbers: Any) -> Any:
        return numbers * 7 % 5

    def ids(self, numbers: Any) -> list[bytes]:
        return [b'"%d"' % number for number in numbers.tolist()]

    def origin(self, number: int) -> tuple[str, int]:
        return "documents/a", number


class Case:
    """A folder with dumps of documents, of which all but the last have their clusters."""

    def __init__(self, root: Path, *rows: int) -> None:
        self.root, self.store, self.plans = root, LocalStore(root), list[dict[str, Any]]()
        for number, count in enumerate(rows):
            first = sum(rows[:number])
            self.plans.append({"first": first, "rows": count, "folder": f"dumps/{number}", "files": []})

    def find(self, edges: Edges, keep: str = "first", files: int = 1, dump: int = -1) -> tuple[Any, dict[str, Any]]:
        """Return the decisions on all documents of a dump, and the report."""
        plans = self.plans[: dump + 1 or None]
        view = Documents(self.store, plans)
        paths = [f"{view.plan['folder']}/edges-{n}" for n in range(files)]
        pieces = [edges[n::files] for n in range(files)]
        for path, piece in zip(paths, pieces, strict=True):
            write_arrays(self.store, path, {"edges": np.array(piece, np.int64).reshape(-1, 2)})

        def stage(function: Callable[..., Any], tasks: Sequence[Any], name: str) -> Iterator[Any]:
            self.stages.append(name)
            results = [function(task) for task in tasks]
            assert [function(task) for task in tasks] == results, "a finished unit gives other facts"
            return iter(results)

        self.stages = list[str]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stars, "open_view", lambda *_: view)
            found, size = find_clusters("", view, paths, list(map(len, pieces)), keep, stage)
        view.plan.pop("clusters", None)
        if size:
            view.plan["clusters"] = size
        numbers = np.arange(view.plan["first"], view.plan["first"] + view.plan["rows"])
        return [one.tolist() for one in view.decisions(numbers)], found


@pytest.fixture(autouse=True, scope="module")
def unsynced() -> Iterator[None]:
    """Hundreds of small files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feedmill.storage.local.sync", lambda path: None)
        yield


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stars, "EDGES", 3)
    monkeypatch.setattr(graph, "CHUNK", 4)
    monkeypatch.setattr(adding, "NODES", 7)


def both_ways(root: Path, rows: Sequence[int], steps: Sequence[Edges], keep: str, files: int) -> list[str]:
    """Find the clusters of each dump in memory and by ranges; return the names of the stages of the last."""
    whole, parts = Case(root / "whole", *rows), Case(root / "parts", *rows)
    for dump, edges in enumerate(steps):
        wanted = whole.find(edges, keep, dump=dump)
        assert not whole.stages
        with pytest.MonkeyPatch.context() as patch:
            make_small(patch)
            assert parts.find(edges, keep, files, dump) == wanted
        assert bool(edges) == any(wanted[0][2])
    return parts.stages


@st.composite
def graphs(draw: Any) -> tuple[list[int], list[Edges]]:
    rows = draw(st.lists(st.integers(1, 30), min_size=1, max_size=3))
    steps = []
    for dump, count in enumerate(rows):
        first = sum(rows[:dump])
        later = st.integers(first, first + count - 1)
        pairs = draw(st.lists(st.tuples(st.integers(0, first + count - 1), later), max_size=60))
        steps.append([(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]])
    return rows, steps


@settings(deadline=None, max_examples=examples(25))
@given(graphs(), st.sampled_from(["first", "longest"]), st.integers(1, 6))
def test_any_graph_both_ways(tmp_path_factory: Any, case: Any, keep: str, files: int) -> None:
    both_ways(tmp_path_factory.mktemp("graph"), *case, keep, files)


@pytest.mark.parametrize("keep", ["first", pytest.param("longest", marks=pytest.mark.slow)])
def test_shapes_both_ways(tmp_path: Path, keep: str) -> None:
    numbers = random.Random(3)
    order = numbers.sample(range(60), 60)
    shapes: dict[str, Edges] = {
        "chain": [(n, n + 1) for n in range(59)],
        "mixed chain": [tuple(sorted(pair)) for pair in pairwise(order)],  # type: ignore[misc]
        "star at the end": [(n, 59) for n in range(59)],
        "pairs": [(n, n + 30) for n in range(30)],
        "complete": [(i, j) for j in range(30) for i in range(j)],
        "nothing": [],
    }
    stages = {}
    for name, edges in shapes.items():
        stages[name] = both_ways(tmp_path / name, [60], [edges], keep, 5)
    assert (
        not stages["nothing"]
        and "connecting decisions" in stages["chain"]
        and "connecting decisions" in stages["pairs"]
    )


def test_files_of_one_forest_need_no_stars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs that other files repeat take no room once they are merged."""
    edges = [(i, j) for j in range(8) for i in range(j)] * 9
    wanted = Case(tmp_path / "whole", 20).find(edges)
    monkeypatch.setattr(stars, "EDGES", 30)
    case = Case(tmp_path / "parts", 20)
    assert case.find(edges, files=20) == wanted
    assert case.stages[0] == "connecting forest 0" and all(name.startswith("connecting forest") for name in case.stages)


@pytest.mark.parametrize(
    "shape", ["chain", *(pytest.param(s, marks=pytest.mark.slow) for s in ("mixed", "one component"))]
)
def test_a_hundred_thousand_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    """The rounds grow with the logarithm, and no task has more than its share in memory."""
    count = 100_000
    order = np.arange(count)
    if shape != "chain":
        order = np.random.default_rng(1).permutation(count)
    edges = np.stack([order[:-1], order[1:]], axis=1)
    if shape == "one component":  # around some documents
        edges = np.stack([order[:-1] // 1000 * 1000, order[1:]], axis=1)
        edges = np.concatenate([edges, np.stack([order[:-1000:1000], order[1000::1000]], axis=1)])
    pairs = np.sort(edges[edges[:, 0] != edges[:, 1]], axis=1)
    monkeypatch.setattr(adding, "NODES", 1 << 16)
    monkeypatch.setattr(graph, "CHUNK", 1 << 15)
    monkeypatch.setattr(stars, "EDGES", 1 << 15)
    held = list[int]()
    of = graph.read_pairs
    for module in (stars, adding.labels):
        monkeypatch.setattr(module, "read_pairs", lambda *a: (held.append(len(e)) or e for e in of(*a)))
    case = Case(tmp_path, count)
    (roots, kept, members), found = case.find(pairs.tolist(), files=8)
    assert roots == near_pairs.components(count, pairs.tolist()) == kept
    assert all(members) and found["sizes"] == {str(count): 1} and found["largest"][0]["duplicates"] == ["1", "2", "3"]
    assert max(held) <= 1 << 15
    assert sum(name.startswith("connecting star") for name in case.stages) <= 3 * 17


def test_ranges() -> None:
    for first, end, nodes in ((0, 10, 3), (4, 9, 3), (6, 6, 3), (0, 0, 5), (1, 2, 5), (9, 12, 3)):
        ranges = Ranges(first, end, nodes)
        spans = [ranges.of(part) for part in range(ranges.count)]
        assert [number for span in spans for number in range(*span)] == list(range(end))
        assert ranges.bounds.tolist() == [*(low for low, _ in spans), end]
        assert all((low < first) == (part < ranges.earlier) for part, (low, _) in enumerate(spans))


def test_runs_hold_each_pair_once(tmp_path: Path, small: None) -> None:
    runs = graph.Runs(LocalStore(tmp_path), "x", 1, 2, Ranges(0, 20, 7).bounds, 4)
    for _ in range(3):
        runs.add(np.array([[8, 1], [3, 8], [8, 1], [19, 0]]))
    runs.flush()
    assert runs.written == 3
    arrays = read_arrays(LocalStore(tmp_path), graph.run_name("x", 1, 2, 0))
    assert arrays["ends"].tolist() == [[3, 8], [8, 1], [19, 0]] and arrays["starts"].tolist() == [0, 1, 2, 3]
    pairs = [e.tolist() for e in graph.read_pairs(LocalStore(tmp_path), "x", 1, (0, 0, 3), 1, 4)]
    assert pairs == [[[8, 1]]] * 3
