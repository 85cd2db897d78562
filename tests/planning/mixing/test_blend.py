"""Exact blends: the bound, the counts, the inverse, and weights as people write them."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.planning.mixing.blend import Schedule, apportion, exact_weight, normalize, schedule
from feedmill.planning.mixing.lines import LINES_LIMIT, Lines
from helpers.durations import examples

WEIGHTS = st.lists(
    st.one_of(
        st.integers(1, 60),
        st.sampled_from([0.7, 0.3, 0.05, "1/3", "0.125", 1e-3, "0.0002", 0]),
        st.decimals("0.001", "1", places=3),
    ),
    min_size=1,
    max_size=12,
).filter(lambda weights: any(exact_weight(weight) for weight in weights))


@given(WEIGHTS)
@example([1] * 12)
@example(["1/2", "1/4", "1/8", "1/16", "1/32", "1/64", "1/128", "1/256", "1/512", "1/1024", "1/1024"])
@example([0.999, 0.0005, 0.0005])
@example([19, 19, 19, 1])
@settings(max_examples=examples(120), deadline=None)
def test_every_source_is_always_within_one_sample_of_its_share(weights: list) -> None:
    plan = schedule(weights, 20_000)
    assume(isinstance(plan, Schedule))
    after = np.arange(1, plan.period + 1)
    for i, count in enumerate(plan.counts.tolist()):
        drawn = np.cumsum(plan.source == i)
        # In integers: |drawn - after * count / period| < 1.
        assert np.abs(drawn * plan.period - after * count).max() < plan.period
        assert drawn[-1] == count
    assert plan.bound == 1


@given(WEIGHTS)
@settings(max_examples=examples(60), deadline=None)
def test_source_and_ordinal_name_each_position_once(weights: list) -> None:
    plan = schedule(weights, 3000)
    assume(isinstance(plan, Schedule))
    start = 7 * plan.period - 3
    for positions in (np.arange(min(2 * plan.period + 5, 4000)), np.arange(start, start + 1000)):
        source, ordinal = plan.at(positions)
        assert np.array_equal(plan.positions(source, ordinal), positions)
        draws = zip(source[:9].tolist(), ordinal[:9].tolist(), strict=True)
        assert [plan.position(*draw) for draw in draws] == positions[:9].tolist()
    source, ordinal = plan.at(np.arange(2 * plan.period))
    for i in range(len(weights)):
        assert ordinal[source == i].tolist() == list(range(2 * int(plan.counts[i])))
        for total in (0, 1, plan.period // 2, plan.period, 2 * plan.period):
            assert plan.drawn(total)[i] == int((source[:total] == i).sum())


def test_positions_far_out_keep_their_exact_counts() -> None:
    plan = schedule([0.7, "0.2", 0.1])
    far = 2**63 - 1
    source, ordinal = plan.at(np.array([far - 1, far]))
    assert (plan.positions(source, ordinal) == np.array([far - 1, far])).all()
    assert sum(plan.drawn(far)) == far
    assert abs(Fraction(plan.drawn(10**18)[0]) - Fraction(7, 10) * 10**18) < 1
    assert plan.position(2, 10**17) == 10**18 + plan.position(2, 0)


def test_weights_are_read_through_their_decimal_text() -> None:
    assert exact_weight(0.1) + exact_weight(0.2) == Fraction(3, 10)
    assert exact_weight(np.float32(0.7)) == exact_weight("70%") == exact_weight("0.70") == Fraction(7, 10)
    assert exact_weight("1e-3") == Fraction(1, 1000)
    assert exact_weight(" 2/6 ") == Fraction(1, 3)
    assert exact_weight(np.int64(4)) == 4
    assert normalize([0.7, 0.3, 1]) == (Fraction(7, 20), Fraction(3, 20), Fraction(1, 2))
    assert schedule([0.7, 0.3]).period == 10


@pytest.mark.parametrize(
    ("weight", "why"),
    [
        (-0.1, "negative"),
        ("-1/3", "not a number"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        ("much", "not a number"),
        ("1/0", "not a number"),
        (True, "not a number"),
        (None, "not a number"),
        ([1], "not a number"),
        ("1e999999999", "out of range"),
        ("1e-999999999", "out of range"),
    ],
)
def test_weights_that_are_none_are_refused(weight: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        schedule([1, weight])


def test_percentages_that_do_not_add_up_to_100_are_named(caplog: pytest.LogCaptureFixture) -> None:
    for weights in (["50%", "50%"], ["33%"] * 3, ["33.3%"] * 3, ["50%", 0.25], [3, 4]):
        normalize(weights)
        assert not caplog.records
    assert normalize(["70%", "71.25%"]) == normalize([280, 285])
    assert normalize(["71.25%", "70%", 0])
    (record,) = caplog.records
    assert "add up to 141.2%, not 100%: shares are relative to their sum" in record.getMessage()


def test_weights_that_add_up_to_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"percentages and numbers: 50% is 0\.5, beside 30"):
        normalize(["50%", 30, "20"])
    assert normalize(["50%", 0.25, "1/4", 0]) == (Fraction(1, 2), Fraction(1, 4), Fraction(1, 4), 0)
    for weights in ([], [0, 0.0, "0%"]):
        with pytest.raises(ConfigError, match="add up to zero"):
            schedule(weights)


def test_a_source_without_weight_is_never_drawn() -> None:
    plan = schedule([0, 3, 0, 1])
    assert plan.counts.tolist() == [0, 3, 0, 1]
    assert set(plan.source.tolist()) == {1, 3}


def test_weights_with_a_long_period_are_computed_not_rounded() -> None:
    weights = ["0.333333333333", "0.666666666666", "0.000000000001"]
    plan = schedule(weights)
    assert isinstance(plan, Lines) and plan.period == 10**12 and plan.bound < 1
    assert plan.asked == plan.realized == tuple(Fraction(weight) for weight in weights)
    assert isinstance(schedule([3, 5], 8), Schedule) and isinstance(schedule([3, 5], 7), Lines)
    beyond = schedule([1 / 3, 1 / 7, "1e-30"])
    assert beyond.period == LINES_LIMIT and beyond.asked != beyond.realized
    assert all(abs(a - b) * 10**12 < 0.002 for a, b in zip(beyond.asked, beyond.realized, strict=True))


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=40))
@settings(max_examples=examples(60), deadline=None)
def test_apportioned_counts_fill_the_period(weights: list[int]) -> None:
    shares = normalize(weights)
    counts = apportion(shares, 64)
    assert sum(counts) == 64 and min(counts) >= 1
    if min(shares) * 64 >= 1:  # nobody needed lifting to one
        assert all(abs(count - share * 64) < 1 for count, share in zip(counts, shares, strict=True))


def test_more_sources_than_slots_are_refused() -> None:
    with pytest.raises(ConfigError, match="9 sources, at most 8"):
        apportion(normalize(range(1, 10)), 8)


def test_many_odd_weights_are_rounded_at_once() -> None:
    weights = [Fraction(10**17 + 7 * i * i, 10**18) for i in range(20_000)]
    counts = apportion(normalize(weights), 2**50)
    assert sum(counts) == 2**50 and max(counts) - min(counts) < 2**50 // 20_000
