"""Schedules without a table: the bound that each tree proves, exact periods, and the way back."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedmill.planning.mixing.blend import normalize, schedule
from feedmill.planning.mixing.lines import LINES_LIMIT, Lines, best_tree, worst
from helpers.durations import examples

COUNTS = st.one_of(
    st.lists(st.integers(0, 60), min_size=1, max_size=12),
    st.lists(st.integers(0, LINES_LIMIT // 12), min_size=1, max_size=12),
    st.lists(st.sampled_from([1, 2, 3, 10, 10**3, 10**6, 10**9, 10**12]), min_size=2, max_size=30),
).filter(any)
NEVER_BEYOND = Fraction(168, 100)


def lines(counts: list[int]) -> Lines:
    return Lines(normalize(counts), counts)


@given(COUNTS, st.sampled_from([0, 1, 10**6, 10**12, 2**62, 2**63 - 3000]), st.integers(0, 2000))
@example([10] * 33 + [1], 0, 0)
@example([1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89], 0, 0)
@settings(max_examples=examples(150), deadline=None)
def test_every_source_is_within_the_bound_from_the_start_to_the_end_of_64_bits(
    counts: list[int], start: int, shift: int
) -> None:
    plan = lines(counts)
    start = start + shift if start < 2**62 + 1 else start
    positions = np.arange(start, start + 500)
    source, ordinal = plan.at(positions)
    assert np.array_equal(plan.positions(source, ordinal), positions)
    before, after = plan.drawn(start), plan.drawn(start + 500)
    for i, count in enumerate(counts):
        mine = source == i
        assert ordinal[mine].tolist() == list(range(before[i], after[i]))
        for offset in (0, 1, 7, 250, 499):
            exact = Fraction(count, plan.period) * (start + offset + 1)
            assert abs(before[i] + int(mine[: offset + 1].sum()) - exact) <= plan.bound
    assert plan.position(int(source[0]), int(ordinal[0])) == start
    assert plan.bound < NEVER_BEYOND


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9))
@settings(max_examples=examples(80), deadline=None)
def test_a_period_has_its_exact_counts_and_repeats(counts: list[int]) -> None:
    plan = lines(counts)
    source, ordinal = plan.at(np.arange(2 * plan.period))
    assert np.bincount(source, minlength=len(counts)).tolist() == [2 * count for count in counts]
    first, second = source[: plan.period], source[plan.period :]
    assert np.array_equal(first, second)
    assert np.array_equal(ordinal[plan.period :] - ordinal[: plan.period], np.array(counts)[first])


@given(st.lists(st.integers(1, LINES_LIMIT // 4), min_size=1, max_size=4))
@settings(max_examples=examples(200), deadline=None)
def test_up_to_four_sources_are_always_within_one_sample(counts: list[int]) -> None:
    assert lines(counts).bound < 1


@given(st.lists(st.integers(1, 10**12), min_size=5, max_size=60))
@settings(max_examples=examples(60), deadline=None)
def test_the_bound_of_many_sources_stays_below_two(counts: list[int]) -> None:
    assert worst(best_tree(dict(enumerate(counts)))) < NEVER_BEYOND


def test_nothing_drifts_in_a_trillion_samples() -> None:
    weights = ["0.123456789012345", "0.234567890123456", "0.345678901234567", "0.296296419629632"]
    plan = schedule(weights)
    assert isinstance(plan, Lines) and plan.period == 10**15 and plan.realized == plan.asked and plan.bound < 1
    for total in (10**12, 10**12 + 12345, 10**9 + 7):
        for drawn, weight in zip(plan.drawn(total), weights, strict=True):
            assert abs(drawn - Fraction(weight) * total) < 1


def test_a_source_without_weight_is_never_drawn_and_one_alone_always() -> None:
    plan = lines([0, 3, 0, 4])
    assert set(plan.at(np.arange(100))[0].tolist()) == {1, 3}
    assert plan.drawn(7) == [0, 3, 0, 4]
    alone = lines([0, 5])
    assert alone.bound == 0 and alone.at(np.arange(9))[1].tolist() == list(range(9))


def test_a_period_beyond_the_arithmetic_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2\^50"):
        lines([LINES_LIMIT, 1])
