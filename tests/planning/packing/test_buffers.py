"""Buffers end where passes and stages end: no row holds a later pass of a source while an earlier one is unfinished."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.planning.nodes import (
    Blend,
    Concat,
    EpochizedBlend,
    Leaf,
    Node,
    Repeat,
    Shuffle,
    StagedBlend,
    Subset,
)
from feedmill.planning.packing import best_fit
from feedmill.planning.packing.packed import PackedPlan
from helpers.durations import examples
from helpers.token_dataset import Tokenized

SEQ = 32


class Lengths(Tokenized):
    """Documents whose lengths are fixed by the number of the source."""

    def __init__(self, number: int, size: int) -> None:
        super().__init__(f"s{number}", np.random.default_rng(number).integers(1, 90, size), 1 + 10**6 * number)


def packed(node: Node, folder: Path, **options: object) -> PackedPlan:
    leaves = sorted(_leaves(node), key=lambda leaf: leaf.number)
    sources = [Lengths(leaf.number, leaf.length) for leaf in leaves]
    documents = fm.Plan(node, sources, [f"s{leaf.number}" for leaf in leaves], 7)
    return PackedPlan(documents, fm.tokens.Packing(SEQ, **options), folder)  # type: ignore[arg-type]


def _leaves(node: Node) -> list[Leaf]:
    return [node] if isinstance(node, Leaf) else [leaf for child in node.children for leaf in _leaves(child)]


def pieces(plan: PackedPlan, rows: int) -> np.ndarray:
    """Row, source, epoch, sample, first token and position of every piece of the first rows, int64[pieces, 6]."""
    spans, located = plan.locate_spans(np.arange(rows))
    row = np.repeat(np.arange(rows), np.diff(spans.row_offsets))
    return np.stack([row, located.source, located.epoch, located.index, spans.start, spans.position], 1)


def check_passes(plan: PackedPlan, rows: int) -> None:
    """No piece of a pass comes before all pieces of the pass before it, and a whole pass holds every piece once."""
    found = pieces(plan, rows)
    for source in np.unique(found[:, 1]).tolist():
        mine = found[found[:, 1] == source]
        epochs = np.unique(mine[:, 2]).tolist()
        assert epochs == list(range(len(epochs)))
        for before, after in itertools.pairwise(epochs):
            old, new = mine[mine[:, 2] == before], mine[mine[:, 2] == after]
            assert old[:, 0].max() < new[:, 0].min(), (source, before)
            used = np.unique(mine[:, 3])
            lengths = plan.sources[source].lengths
            assert lengths is not None
            every = [(index, start) for index in used.tolist() for start in range(0, int(lengths[index]), SEQ)]
            assert sorted(map(tuple, old[:, 3:5].tolist())) == every, (source, before)


def check_buffers(plan: PackedPlan, rows: int) -> None:
    """Buffers follow each other, hold at most one occurrence of a document, and end within the bound of the shares."""
    node, row, documents = plan.node, 0, 0
    while row < rows:
        buffer = plan.map.last_buffer(row + 1)
        assert buffer.first == row and buffer.start == documents and plan.map.reach(row + 1) == buffer.stop
        assert plan.map.reach(buffer.behind) == buffer.stop and 0 < buffer.stop - buffer.start <= plan.map.size
        located = plan.documents.locate(np.arange(buffer.start, buffer.stop))
        assert len(set(zip(located.source.tolist(), located.index.tolist(), strict=True))) == len(located.source)
        if type(node) is Blend:
            for count, share in zip(node.draws(buffer.stop), node.schedule.asked, strict=True):
                assert abs(count - share * buffer.stop) < node.schedule.bound
        row, documents = buffer.behind, buffer.stop


sizes = st.integers(1, 40)
weights = st.sampled_from(["0.1", "0.3", "1/3", "0.5", "0.7", "0.9", "1", "2.5"])


@st.composite
def streams(draw: st.DrawFn, first: int, depth: int = 0) -> tuple[Node, int]:
    """An endless or finite stream of one or more sources, and the next free number of a leaf."""
    kinds = ["source", "subset", "twice"] + (["blend", "concat", "shuffled", "epochized"] if depth < 2 else [])
    kind = draw(st.sampled_from(kinds))
    size = draw(sizes)
    if kind in ("source", "twice"):
        node: Node = Shuffle(Leaf(first, size), draw(st.integers(0, 99)))
        return (Repeat(node) if kind == "source" else Repeat(Repeat(node, 2))), first + 1
    if kind == "subset":
        start = draw(st.integers(0, size - 1))
        return Repeat(Subset(Leaf(first, size), start, size)), first + 1
    if kind == "blend":
        children = []
        for _ in range(draw(st.integers(1, 4))):
            child, first = draw(streams(first, depth + 1))
            children.append(child)
        parts = [draw(weights) for _ in children]
        if draw(st.booleans()):  # as a recipe with 'samples' that another one repeats: its mixture begins again
            return Repeat(Blend(children, parts, length=draw(sizes))), first
        return Blend(children, parts), first
    leaves: list[Node] = [Leaf(first + i, draw(sizes)) for i in range(draw(st.integers(1, 3)))]
    first += len(leaves)
    if kind == "epochized":
        repetitions = [draw(st.sampled_from([1, 2, "1.5", 3])) for _ in leaves]
        return Repeat(EpochizedBlend(leaves, repetitions)), first
    joined = Concat([Repeat(leaf, draw(st.sampled_from([1, 2]))) for leaf in leaves] if kind == "concat" else leaves)
    return Repeat(Shuffle(joined, 5) if kind == "shuffled" else joined), first


@st.composite
def roots(draw: st.DrawFn) -> Node:
    if draw(st.booleans()):
        return draw(streams(0))[0]
    children: list[Node] = [Repeat(Shuffle(Leaf(i, draw(sizes)), i)) for i in range(draw(st.integers(1, 4)))]
    stages: list[tuple[int | None, list[str]]] = [
        (draw(st.integers(1, 90)), [draw(weights) for _ in children]) for _ in range(draw(st.integers(1, 3)))
    ]
    if draw(st.booleans()):
        return Repeat(StagedBlend(children, stages))
    return StagedBlend(children, [*stages, (None, [draw(weights) for _ in children])])


@given(roots(), st.integers(1, 120), st.sampled_from([7, 50, 500]))
@settings(max_examples=examples(80), deadline=None)
def test_passes_of_any_mixture_follow_each_other(
    tmp_path_factory: pytest.TempPathFactory, node: Node, rows: int, most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_fit, "BUFFER", most)
        plan = packed(node, tmp_path_factory.mktemp("packed"))
        rows = plan.map.last_buffer(rows).behind
        check_buffers(plan, rows)
        check_passes(plan, rows)


@pytest.mark.parametrize("count", [1, 7, 100])
def test_rows_are_those_of_buffers_that_are_sorted_together(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of rows that are sorted at once, which may end inside a buffer."""
    node = Repeat(Blend([Leaf(0, 20), Leaf(1, 3)], [3, 1]))
    monkeypatch.setattr(best_fit, "BUFFER", 500)
    together = pieces(packed(node, tmp_path / "together"), 400)
    monkeypatch.setattr(best_fit, "_SORTED", count)
    found = packed(node, tmp_path / "found")
    assert np.array_equal(pieces(found, 400), together)
    assert found.map.last_buffer(400).start > 100  # of many buffers


def newcomers(folder: Path, **options: object) -> PackedPlan:
    lengths = np.clip(np.rint(300 * np.exp(np.random.default_rng(1).standard_normal(459))), 20, 9000).astype(np.int64)
    documents = fm.Plan.over([Tokenized("clean", lengths)], [1], seed=7)
    return PackedPlan(documents, fm.tokens.Packing(256, **options), folder)  # type: ignore[arg-type]


def test_the_first_pass_holds_every_document_of_a_small_set(tmp_path: Path) -> None:
    plan = newcomers(tmp_path)
    lengths = plan.sources[0].lengths
    assert lengths is not None
    end = plan.map.last_buffer(1).behind
    found = pieces(plan, end)
    assert len(np.unique(found[:, 3])) == 459 and (found[:, 2] == 0).all()
    assert len(found) == int((-(-lengths // 256)).sum())
    assert end <= 1.03 * int(lengths.sum()) / 256  # and this takes 3 % of padding at most
    assert len(list(tmp_path.rglob("*.pack"))) == 1  # with many buffers in a file


def test_a_given_buffer_packs_across_passes_as_before(tmp_path: Path) -> None:
    plan = newcomers(tmp_path, buffer=1 << 16)
    found = pieces(plan, 1248)
    assert len(np.unique(found[:, 2])) > 100  # epochs side by side
    assert fm.tokens.Packing(256, buffer=1 << 20).order() == "best_fit 256, long split, buffer 1,048,576, version 1"
    spans = newcomers(tmp_path / "small", buffer=100).spans(np.arange(500))
    digest = hashlib.blake2b(digest_size=8)
    for column in (spans.row_offsets, spans.position, spans.start, spans.length):
        digest.update(np.ascontiguousarray(column, "<i8").tobytes())
    assert digest.hexdigest() == "4b6a209d1348747c"  # as of the release in which it was the only order


def test_a_stream_of_a_million_documents_without_an_end_of_a_pass_keeps_its_rows(tmp_path: Path) -> None:
    sizes = np.random.default_rng(2).integers(1, 60, 1 << 20)
    documents = fm.Plan.over([Tokenized("a", sizes), Tokenized("b", sizes[::-1], 10**8)], [0.5, 0.5], seed=1)
    plans = [PackedPlan(documents, fm.tokens.Packing(4096, buffer=buffer), tmp_path) for buffer in (None, 1 << 20)]
    rows = np.arange(0, plans[0].map.last_buffer(1).behind, 7)
    ours, given = (plan.spans(rows) for plan in plans)
    assert np.array_equal(ours.position, given.position) and np.array_equal(ours.row_offsets, given.row_offsets)


def test_no_row_holds_documents_of_two_stages(tmp_path: Path) -> None:
    node = StagedBlend([Repeat(Shuffle(Leaf(i, 3000), i)) for i in range(2)], [(2000, [1, 0]), (None, [0, 1])])
    plan = packed(node, tmp_path)
    end = plan.map.last_buffer(1)
    assert (end.start, end.stop) == (0, 2000)
    source = pieces(plan, end.behind + 100)
    assert (source[source[:, 0] < end.behind, 1] == 0).all() and (source[source[:, 0] >= end.behind, 1] == 1).all()


@given(st.integers(0, 99), st.integers(1, 300))
@settings(max_examples=examples(20), deadline=None)
def test_rows_before_a_change_of_weights_stay(tmp_path_factory: pytest.TempPathFactory, seed: int, change: int) -> None:
    """Up to the last buffer that ends before the change, rows are the same with and without it."""
    folder, rng = tmp_path_factory.mktemp("packed"), np.random.default_rng(seed)
    leaves = [Repeat(Shuffle(Leaf(i, int(rng.integers(5, 60))), i)) for i in range(3)]
    first, then = (rng.integers(1, 9, 3).tolist() for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_fit, "BUFFER", 400)
        before = packed(Blend(leaves, first), folder)
        after = packed(StagedBlend(leaves, [(change, first), (None, then)]), folder)
        rows = 0
        while (buffer := before.map.last_buffer(rows + 1)).stop <= change:
            rows = buffer.behind
        assert after.map.reach(rows) == before.map.reach(rows) <= change
        assert before.map.same_buffers(after.node, after.map.reach(rows))
        assert np.array_equal(pieces(before, rows), pieces(after, rows))
        assert change in [after.map.reach(row) for row in range(rows, rows + 200)]


def test_fewest_cuts_as_late_as_the_seams_allow() -> None:
    seams = np.array([[9, 12], [3, 8], [5, 6], [14, 14], [11, 13]])
    assert best_fit.cuts(seams).tolist() == [6, 12, 14]
    assert best_fit.cuts(seams[:0]).tolist() == []
    # Sources with equally long passes share their ends, also where these are not a whole number of draws.
    node = Blend([Repeat(Leaf(0, 100)), Repeat(Leaf(1, 200)), Repeat(Leaf(2, 50))], [2, 4, 1])
    assert best_fit.cuts(node.seams(0, 2000)).tolist() == [350, 700, 1050, 1400, 1750]
    assert node.seams(700, 1400).shape == (3, 2)


def test_the_skip_list_of_documents_moves_the_ends_of_passes(tmp_path: Path) -> None:
    documents = fm.Plan.over(Tokenized("docs", range(1, 51)), seed=3).skipping([(3, 10), (60, 62)])
    plan = PackedPlan(documents, fm.tokens.Packing(64), tmp_path)
    ends = [plan.map.last_buffer(row + 1).stop for row in range(60)]
    assert list(dict.fromkeys(ends))[:3] == [43, 91, 141]
