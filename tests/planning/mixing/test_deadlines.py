"""Blends dealt block by block: within one sample, exact far out, and the way back."""

import pickle
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedmill.planning.mixing.blend import apportion, normalize, schedule
from feedmill.planning.mixing.deadlines import ONE_GROUP_LIMIT, Deadlines, groups_of
from feedmill.planning.mixing.lines import LINES_LIMIT, Lines
from feedmill.planning.nodes import Blend, Leaf, Repeat
from helpers.durations import examples, slow_but

ODD = st.lists(st.integers(1, 2**53), min_size=2, max_size=12)
FAR = st.one_of(st.integers(0, 5000), st.integers(0, 10**12), st.sampled_from([2**62, 2**63 - 700]))
HARD = [1, 2.0002, 5.000001, 1.0001, 5.000001, 5, 2, 3.000301, 1.000001, 5.000001, 2.0002, 8]
"""No tree of lines keeps these within one sample."""


def dealt(weights: list, groups: int | None = None) -> Deadlines:
    asked = normalize(weights)
    period = 1
    for share in asked:
        period = np.lcm.reduce([period, share.denominator], dtype=object)
    found = groups_of(apportion(asked, min(int(period), ONE_GROUP_LIMIT)))
    if groups == 2 and found is not None:
        found = found if len(found) == 2 else [found[0][-1:], found[0][:-1]]
    assert found is not None
    limit = ONE_GROUP_LIMIT if len(found) == 1 else LINES_LIMIT
    return Deadlines(asked, apportion(asked, min(int(period), limit)), found)


def check(plan: Deadlines, start: int, size: int, room: Fraction = Fraction(0)) -> None:
    """Counts, ordinals and the way back agree from `start` on, and no source is as much as 1 and `room` off."""
    positions = start + np.arange(size)
    source, ordinal = plan.at(positions)
    assert np.array_equal(plan.positions(source, ordinal), positions)
    before, after = plan.drawn(start), plan.drawn(start + size)
    assert sum(before) == start and sum(after) == start + size
    for i, weight in enumerate(plan.realized):
        mine = source == i
        assert ordinal[mine].tolist() == list(range(before[i], after[i]))
        drawn = before[i] + np.cumsum(mine)
        for offset, count in enumerate(drawn.tolist()):
            assert abs(count - weight * (start + offset + 1)) <= plan.bound
            assert abs(count - plan.asked[i] * (start + offset + 1)) < 1 + room
    assert plan.position(int(source[0]), int(ordinal[0])) == start
    assert plan.bound < 1


def stay_within_one_sample(weights: list[int], start: int) -> None:
    if groups_of(weights):
        plan = dealt(weights)
        rounded = plan.asked != plan.realized
        check(plan, start, 600, Fraction(start + 600, LINES_LIMIT) * rounded)


@pytest.mark.slow
@given(ODD, FAR)
@example([2**53] * 7 + [2**53 - 1], 0)
@example([1, 2**53, 2**53, 2**53, 2**53 - 1], 10**12)
@settings(max_examples=examples(15), deadline=None)
def test_odd_weights_stay_within_one_sample(weights: list[int], start: int) -> None:
    stay_within_one_sample(weights, start)


@pytest.mark.slow
@given(ODD, FAR)
@settings(max_examples=examples(100), deadline=None)
def test_many_odd_weights_stay_within_one_sample(weights: list[int], start: int) -> None:
    stay_within_one_sample(weights, start)


@given(ODD.filter(lambda weights: max(weights) < 2000 * min(weights)), FAR)
@settings(max_examples=examples(60), deadline=None)
def test_two_groups_stay_within_one_sample(weights: list[int], start: int) -> None:
    plan = dealt(weights, groups=2)
    check(plan, start, 600, Fraction(start + 600, LINES_LIMIT))


@pytest.mark.parametrize("seed", slow_but(range(6), 0, 1))
def test_a_long_stretch_across_blocks_from_the_start(seed: int) -> None:
    rng = random.Random(seed)
    weights = [rng.random() ** 3 + 1e-4 for _ in range(rng.randint(5, 12))]
    plan = dealt(weights)
    period = plan.period
    source, ordinal = plan.at(np.arange(20_000))
    for i, count in enumerate(plan.counts.tolist()):
        assert ordinal[source == i].tolist() == list(range(int((source == i).sum())))
        drawn = np.cumsum(source == i).tolist()
        assert all(abs(have * period - (k + 1) * count) <= plan.bound * period for k, have in enumerate(drawn))


def test_scattered_positions_and_draws() -> None:
    plan = dealt(HARD)
    positions = np.random.default_rng(3).integers(0, 10**13, 500)
    source, ordinal = plan.at(positions)
    assert np.array_equal(plan.positions(source, ordinal), positions)
    alone = [plan.at(positions[i : i + 1]) for i in range(20)]
    assert [(int(s[0]), int(o[0])) for s, o in alone] == list(
        zip(source[:20].tolist(), ordinal[:20].tolist(), strict=True)
    )
    assert plan.at(positions[:0])[0].tolist() == plan.positions(source[:0], ordinal[:0]).tolist() == []


def test_the_order_does_not_depend_on_what_was_asked_before() -> None:
    plan, fresh = dealt(HARD), dealt(HARD)
    for start in range(0, 40 * 10**6, 10**6):
        plan.at(np.arange(start, start + 3))
    assert np.array_equal(plan.at(np.arange(5000))[0], fresh.at(np.arange(5000))[0])
    again = pickle.loads(pickle.dumps(plan))
    assert np.array_equal(again.at(np.arange(5000))[0], fresh.at(np.arange(5000))[0])


def test_a_draw_beyond_64_bits_has_its_position() -> None:
    plan = dealt([1, 1, 1, 1, 1e-3, 1.0000001])
    for ordinal in (2**62, 2**63 - 1, 2**80):
        position = plan.position(4, ordinal)
        assert position > 2**70 and abs(position * plan.asked[4] - ordinal) < 2
    assert sum(plan.drawn(2**70)) == 2**70


def test_a_source_without_weight_is_never_drawn() -> None:
    plan = dealt([0, *HARD, 0])
    assert set(plan.at(np.arange(3000))[0].tolist()) == set(range(1, 13))
    assert plan.drawn(100)[0] == plan.drawn(100)[13] == 0


def test_five_sources_and_more_are_within_one_sample_where_no_tree_is() -> None:
    plan = schedule(HARD)
    assert isinstance(plan, Deadlines) and plan.bound < 1 and plan.realized == plan.asked
    assert isinstance(schedule([0.30000001, 0.3, 0.39999999]), Lines)
    light = schedule([*HARD, 1e-6, 1.1e-6, 0.9e-6])
    assert isinstance(light, Deadlines) and len(light._groups) == 2
    check(light, 10**12, 300)


def test_weights_of_three_scales_keep_the_wider_bound() -> None:
    weights = [1, 1, 1, 1, 1.0001, *[1e-7] * 4, 1.0001e-7, *[1e-14] * 4, 1.0001e-14]
    assert groups_of(apportion(normalize(weights), ONE_GROUP_LIMIT)) is None
    plan = schedule(weights)
    assert isinstance(plan, Lines) and 1 < plan.bound < Fraction(168, 100)
    blend = Blend([Repeat(Leaf(i, 10)) for i in range(len(weights))], weights)
    assert blend.describe().endswith(f", within {float(plan.bound):.3g} samples")
    assert groups_of([1] * 5000) is None


def test_a_period_beyond_the_arithmetic_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        Deadlines(normalize([1, 2]), [2**60, 1], [[0, 1]])
    with pytest.raises(ValueError, match="too long"):
        Deadlines(normalize([1, 2]), [2**50, 1], [[0], [1]])
