"""Weights that change with every sample: within one of their integral everywhere, any chunk alike, and the way back."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.planning.mixing.blend import Stages, normalize
from feedmill.planning.mixing.ramps import LONGEST_RAMP, Ramp, progress
from feedmill.planning.nodes import Leaf, Repeat, Shuffle, StagedBlend
from feedmill.planning.plan import Plan
from helpers.durations import examples
from helpers.number_dataset import Numbered

KINDS = st.sampled_from(["linear", "cosine"])


@st.composite
def ramps(draw: st.DrawFn) -> Ramp:
    sources = draw(st.integers(1, 6))
    weight = st.sampled_from([0, 0, 1, 2, 3, 7, 100, 0.3, "1/3", "0.123456789012345"])
    ends = [draw(st.lists(weight, min_size=sources, max_size=sources).filter(any)) for _ in range(2)]
    length = draw(st.one_of(st.integers(1, 5), st.integers(1, 400), st.sampled_from([3000, 70_000])))
    return Ramp(normalize(ends[0]), normalize(ends[1]), length, draw(KINDS))


def integral(ramp: Ramp, source: int, total: int) -> Fraction:
    """The draws due by the definition: trapezoids between the knots of the weight."""
    steps = progress(ramp.kind)
    knots = [Fraction(ramp.period * knot, len(steps) - 1) for knot in range(len(steps))]
    begin, end, area = ramp.begin[source], ramp.end[source], Fraction(0)
    for (a, b), (low, high) in zip(pairwise(knots), pairwise(steps), strict=True):
        if total <= a:
            break
        stop = min(b, Fraction(total))
        weight = begin + (end - begin) * low
        there = weight + (end - begin) * (high - low) * (stop - a) / (b - a)
        area += (weight + there) / 2 * (stop - a)
    return area


@given(ramps())
@settings(max_examples=examples(100), deadline=None)
def test_every_source_is_within_one_of_its_integral(ramp: Ramp) -> None:
    total = ramp.period
    source, ordinal = ramp.at(np.arange(total))
    drawn = np.cumsum(source[None] == np.arange(len(ramp.begin))[:, None], axis=1)
    for position in {*range(min(total, 50)), total // 3, total // 2, total - 2, total - 1} - {-1}:
        for i in range(len(ramp.begin)):
            due = integral(ramp, i, position + 1)
            assert due == ramp.due(position + 1)[i] and abs(int(drawn[i, position]) - due) < 1
    assert ramp.drawn(total) == drawn[:, -1].tolist()
    for i in range(len(ramp.begin)):
        mine = ordinal[source == i]
        assert mine.tolist() == list(range(len(mine)))


@given(ramps(), st.integers(1, 997), st.randoms(use_true_random=False))
@settings(max_examples=examples(60), deadline=None)
def test_any_chunk_in_any_order_gives_the_same_and_the_way_back(ramp: Ramp, chunk: int, random: object) -> None:
    positions = np.arange(ramp.period)
    source, ordinal = ramp.at(positions)
    again = Ramp(ramp.begin, ramp.end, ramp.period, ramp.kind)
    starts = list(range(0, ramp.period, max(chunk, ramp.period // 40)))
    random.shuffle(starts)  # type: ignore[attr-defined]
    for start in starts:
        found = again.at(positions[start : start + chunk])
        assert np.array_equal(found[0], source[start : start + chunk])
        assert np.array_equal(found[1], ordinal[start : start + chunk])
    assert np.array_equal(again.positions(source, ordinal), positions)
    for at in {0, ramp.period // 2, ramp.period - 1}:
        assert again.position(int(source[at]), int(ordinal[at])) == at
        assert again.drawn(at) == np.bincount(source[:at], minlength=len(ramp.begin)).tolist()


@pytest.mark.parametrize("samples", [1, 2, 3, 5, 9, 12, 20, 40, 63, 65, 1000])
@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_the_mean_of_a_ramp_is_half_way(samples: int, kind: str) -> None:
    assert Ramp([Fraction(1), Fraction(0)], [Fraction(0), Fraction(1)], samples, kind).asked == (Fraction(1, 2),) * 2


def test_windows_are_exact_where_floating_point_is_not() -> None:
    """A weight that falls to nearly nothing: its last draws are due at the root of a difference of near numbers."""
    tiny = Fraction(1, 10**12)
    ramp = Ramp([Fraction(1, 2), Fraction(1, 2)], [tiny, 1 - tiny], 3_000_000)
    for due in ramp._due:
        for draw in [0, 1, 2, 1000, due._last - 1, due._last]:
            begin, end = (int(each[0]) for each in due.windows(draw, 1))
            assert due.at(begin) <= draw < due.at(begin + 1) if begin < ramp.period else due.at(begin) == draw
            assert end > ramp.period or due.at(end - 1) < draw + 1 <= due.at(end)


def test_the_first_and_the_last_weights_are_those_of_the_stages() -> None:
    node = StagedBlend(
        [Repeat(Shuffle(Leaf(i, 60), i)) for i in range(2)],
        [(1000, [1, 0]), (1000, [0, 1], "cosine"), (None, [0, 1])],
    )
    source = node.locate(np.arange(3000)).source
    assert not source[:1000].any() and source[2000:].all()
    halves = source[1000:1500].mean(), source[1500:2000].mean()
    assert halves[0] == pytest.approx(1 - halves[1], abs=0.01) and source[1000:1100].mean() < 0.02
    assert "(cosine) for 1,000" in node.describe() and node.arguments()["stages"][1] == [1000, [0, 1], "cosine"]


def test_the_report_shows_where_the_weights_come_from_and_go() -> None:
    node = StagedBlend(
        [Repeat(Leaf(0, 50)), Repeat(Leaf(1, 60))], [(100, ["0.8", "0.2"]), (100, [1, 1], "linear"), (None, [1, 1])]
    )
    plan = Plan(node, [Numbered("a", 50), Numbered("b", 60)], ["a", "b"], 3)
    ramp = plan.report(samples=300).stages[1]
    assert ramp.asked == (Fraction(65, 100), Fraction(35, 100)) and ramp.kind == "linear"
    assert ramp.ramp == ((Fraction(4, 5), Fraction(1, 2)), (Fraction(1, 5), Fraction(1, 2)))
    assert "linear ramp: a 65.0000% -> 65.0000% (80.0000% to 50.0000%)" in str(ramp)
    assert ramp.as_dict()["weights_to"] == {"a": 0.5, "b": 0.5}


def test_ramps_that_cannot_be() -> None:
    for weights, samples, kinds, why in (
        ([[1, 1], [1, 2]], [10, None], ["linear", None], "is the first"),
        ([[1, 1], [1, 2]], [10, None], [None, "cosine"], "has no end"),
    ):
        with pytest.raises(ConfigError, match=why):
            Stages(weights, samples, 1, kinds)
    with pytest.raises(ConfigError, match="ends within a run"):
        Stages([[1, 1], [1, 2]], [10, 7], 5, [None, "linear"])
    with pytest.raises(ConfigError, match="longer than"):
        Stages([[1, 1], [1, 2]], [10, LONGEST_RAMP + 1], 1, [None, "linear"])
