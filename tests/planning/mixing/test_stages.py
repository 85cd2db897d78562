"""Staged blends: shares in each stage and over all, cursors that carry on, and the way back."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.planning.mixing.blend import Stages
from feedmill.planning.mixing.lines import Lines
from feedmill.planning.nodes import Blend, EpochizedBlend, Leaf, Repeat, Shuffle, StagedBlend
from feedmill.planning.plan import Plan
from helpers.durations import examples
from helpers.number_dataset import Numbered


@st.composite
def stages(draw: st.DrawFn, longest: int = 300) -> Stages:
    sources = draw(st.integers(1, 5))
    weight = st.sampled_from([0, 1, 2, 3, 7, 0.3, "1/3", "0.123456789012345"])
    row = st.lists(weight, min_size=sources, max_size=sources).filter(any)
    sizes = draw(st.lists(st.integers(1, longest), min_size=1, max_size=5))
    last = draw(st.none() | st.integers(1, longest))
    return Stages([draw(row) for _ in range(len(sizes) + 1)], [*sizes, last])


@given(stages())
@settings(max_examples=examples(100), deadline=None)
def test_each_stage_keeps_its_shares_and_all_together_the_piecewise_share(plan: Stages) -> None:
    total = plan.length or plan.starts[-1] + 200
    source, _ = plan.at(np.arange(total))
    drawn = np.cumsum(source[None] == np.arange(len(plan.counts))[:, None], axis=1)
    for stage, part in enumerate(plan.schedules):
        start, end = plan.starts[stage], plan.starts[stage + 1] if stage + 1 < len(plan.starts) else total
        for position in {start, (start + end) // 2, end - 1}:
            for i, share in enumerate(part.asked):
                inside = int(drawn[i, position]) - (int(drawn[i, start - 1]) if start else 0)
                exact = share * (position + 1 - start)
                error = abs(inside - exact)
                assert error <= part.bound and (error < 1 or isinstance(part, Lines))
                overall = abs(int(drawn[i, position]) - plan.asked(position + 1)[i])
                assert overall <= plan.bound(position + 1)
        if stage + 1 < len(plan.starts):
            assert plan.drawn(end) == plan.before[stage + 1] == drawn[:, end - 1].tolist()


@given(stages(), st.integers(1, 97))
@settings(max_examples=examples(100), deadline=None)
def test_nothing_is_lost_or_repeated_and_any_chunk_gives_the_same(plan: Stages, chunk: int) -> None:
    total = plan.length or plan.starts[-1] + 200
    positions = np.arange(total)
    source, ordinal = plan.at(positions)
    for i in range(len(plan.counts)):  # each source's cursor counts on, through all stages and pauses
        mine = ordinal[source == i]
        assert mine.tolist() == list(range(len(mine)))
        assert plan.drawn(total)[i] == len(mine) and (plan.counts[i] > 0 or not len(mine))
    for start in range(0, total, chunk):
        part = plan.at(positions[start : start + chunk])
        assert np.array_equal(part[0], source[start : start + chunk])
        assert np.array_equal(part[1], ordinal[start : start + chunk])
    assert np.array_equal(plan.positions(source, ordinal), positions)
    assert [plan.position(int(s), int(o)) for s, o in zip(source[:20], ordinal[:20], strict=True)] == list(range(20))[
        :total
    ]


def test_a_draw_that_never_comes_is_nowhere() -> None:
    closed = Stages([[1, 1], [1, 0]], [10, 4])
    assert closed.positions(np.array([0, 0, 1]), np.array([8, 9, 5])).tolist() == [13, -1, -1]
    assert (closed.position(0, 8), closed.position(0, 9), closed.position(1, 5)) == (13, None, None)
    paused = Stages([[1, 1], [1, 0]], [10, None])
    assert paused.position(1, 5) is None and paused.position(0, 5) == 10
    assert paused.positions(np.array([1, 0]), np.array([5, 10**6])).tolist() == [-1, 10 + 10**6 - 5]


def test_a_stage_of_whole_periods_passes_no_error_on() -> None:
    plan = Stages([["0.7", "0.3"], ["0.2", "0.8"], ["0.5", "0.5"]], [100, 50, None])
    assert plan.before == [[0, 0], [70, 30], [80, 70]]


def test_a_source_goes_on_where_it_was_after_a_pause() -> None:
    node = StagedBlend([Repeat(Shuffle(Leaf(i, 60), i)) for i in range(2)], [(40, [1, 1]), (30, [1, 0]), (80, [1, 3])])
    located = node.locate(np.arange(150))
    code = located.index[located.source == 1]
    assert sorted(code[:60].tolist()) == list(range(60)) and not (located.source[40:70] == 1).any()
    alone = Repeat(Shuffle(Leaf(1, 60), 1)).locate(np.arange(len(code))).index
    assert np.array_equal(code, alone)


def test_a_resumed_run_sees_what_an_unbroken_one_saw() -> None:
    node = StagedBlend([Repeat(Shuffle(Leaf(i, 60), i)) for i in range(3)], [(40, [1, 1, 2]), (None, [0.2, 0, 0.8])])
    whole = node.locate(np.arange(200))
    for start in range(200):
        rest = node.locate(np.arange(start, min(start + 7, 200)))
        assert np.array_equal(rest.index, whole.index[start : start + 7])
        assert np.array_equal(rest.source, whole.source[start : start + 7])


@given(
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from([1, 2, 3, 1.5, "1/2", "4/3"])), min_size=1, max_size=6),
    st.integers(1, 3),
)
@settings(max_examples=examples(60), deadline=None)
def test_an_epoch_holds_each_source_as_often_as_it_says(parts: list, epochs: int) -> None:
    parts = [(size + 1, times) for size, times in parts]
    node = EpochizedBlend(
        [Shuffle(Leaf(i, size), i) for i, (size, _) in enumerate(parts)], [times for _, times in parts]
    )
    wanted = [int(Fraction(str(times)) * size) for size, times in parts]
    located = Repeat(node, epochs).locate(np.arange(epochs * node.length))
    for epoch in range(epochs):
        part = slice(epoch * node.length, (epoch + 1) * node.length)
        assert np.bincount(located.source[part], minlength=len(parts)).tolist() == wanted
    for i, (size, _) in enumerate(parts):
        mine = located.index[located.source == i]
        whole = mine[: len(mine) // size * size].reshape(-1, size)
        assert (np.sort(whole, axis=1) == np.arange(size)).all()
    half = np.bincount(located.source[: node.length // 2], minlength=len(parts))
    shares = [count * (node.length // 2) / node.length for count in wanted]
    assert np.abs(half - shares).max() < 1


def test_an_epoch_of_a_hundred_billion_samples_needs_no_table() -> None:
    node = EpochizedBlend([Leaf(0, 10**11 + 3), Leaf(1, 7 * 10**9 + 1), Leaf(2, 11)], [1, 2.5, 3])
    assert node.length == 10**11 + 3 + 17_500_000_002 + 33
    assert list(node.draws(node.length)) == [10**11 + 3, 17_500_000_002, 33]
    located = node.locate(np.array([0, node.length - 1]))
    assert node.positions(located)[0].tolist() == [0, node.length - 1]


@given(st.integers(1, 200), st.fractions("1/50", 4, max_denominator=50))
@settings(max_examples=examples(100), deadline=None)
def test_parts_of_epochs_are_cut_after_the_floor(size: int, times: Fraction) -> None:
    samples = int(size * times)
    if samples:
        node = Repeat(Shuffle(Leaf(0, size), 3), times)
        assert node.length == samples
        whole = Repeat(Shuffle(Leaf(0, size), 3)).locate(np.arange(samples)).index
        assert np.array_equal(node.locate(np.arange(samples)).index, whole)
        often = np.bincount(whole, minlength=size)
        assert often.max() - often.min() <= 1 and often.sum() == samples


def test_a_repeated_part_of_an_epoch_goes_on_with_the_rest() -> None:
    node = Repeat(Repeat(Shuffle(Leaf(0, 30), 3), 0.5), 2)
    assert sorted(node.locate(np.arange(30)).index.tolist()) == list(range(30))


def test_the_report_shows_stages_and_piecewise_shares() -> None:
    node = StagedBlend([Repeat(Leaf(0, 50)), Repeat(Leaf(1, 60))], [(99, [2, 1]), (None, [0, 1])])
    plan = Plan(node, [Numbered("a", 50), Numbered("b", 60)], ["a", "b"])
    report = plan.report(132)
    assert [source.drawn for source in report.sources] == [66, 66]
    assert [source.asked for source in report.sources] == [Fraction(1, 2), Fraction(1, 2)]
    assert [source.asked for source in plan.report().sources] == [None, None]
    first, second = report.stages
    assert first.names == ("a", "b") and first.realized == (Fraction(2, 3), Fraction(1, 3)) == first.asked
    assert (second.start, second.samples, second.realized) == (99, None, (0, 1))
    assert report.as_dict()["stages"][1]["weights_asked"] == {"a": 0.0, "b": 1.0}
    assert "stage 2, from 99, to the end: a 0.0000% -> 0.0000%, b 100.0000% -> 100.0000%" in str(report)


def test_a_nested_blend_reports_below_a_staged_one() -> None:
    inner = Blend([Repeat(Leaf(0, 50)), Repeat(Leaf(1, 60))], [1, 1])
    node = StagedBlend([inner, Repeat(Leaf(2, 9))], [(100, [1, 1]), (100, [1, 0])])
    plan = Plan(node, [Numbered(n, s) for n, s in (("a", 50), ("b", 60), ("c", 9))], ["mix/a", "mix/b", "c"])
    report = plan.report()
    assert [source.drawn for source in report.sources] == [75, 75, 50]
    assert [float(source.asked) for source in report.sources] == [0.375, 0.375, 0.25]
    assert report.stages[0].names == ("mix", "c")


def test_a_change_of_the_stages_is_named() -> None:
    def planned(second: float) -> Plan:
        node = StagedBlend([Repeat(Leaf(i, 9)) for i in range(2)], [(10, [1, 1]), (None, [second, 1])])
        return Plan(node, [Numbered("a", 9), Numbered("b", 9)], ["a", "b"])

    changes = planned(2).explain_change(planned(3).fingerprints)
    assert changes[0] == (
        "source a was number 0 of a staged blend with weight 1/2 for 10, then 3/4; repeated, "
        "is now number 0 of a staged blend with weight 1/2 for 10, then 2/3; repeated"
    )
