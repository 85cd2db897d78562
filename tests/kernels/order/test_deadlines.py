"""Draws with windows: the compiled kernel against the definitions, and every draw in its window."""

from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.order.deadlines import Rates, counts_before, deal
from helpers.durations import examples
from oracles import deadlines as plain

WEIGHTS = st.one_of(
    st.lists(st.integers(1, 30), min_size=1, max_size=9),
    st.lists(st.integers(2**50, 2**55), min_size=1, max_size=9),
    st.lists(st.sampled_from([1, 2, 3, 5, 8, 13, 21]), min_size=1, max_size=9),
)


@st.composite
def rates(draw: st.DrawFn) -> Rates:
    """All of a blend within Tijdeman's bound or strictly within 1, or one side of a rounded line."""
    weights = tuple(draw(WEIGHTS))
    total = sum(weights)
    if draw(st.booleans()):
        room = draw(st.sampled_from([1, total // max(1, 2 * len(weights) - 2)]))
        return Rates(weights, total, total - max(1, room), 0)
    period = min(total + draw(st.integers(1, 50 * total)), 2**60)
    return Rates(weights, period, period - 1, draw(st.sampled_from([period // 2, period - 1 - period // 2])))


@given(rates(), st.one_of(st.integers(0, 3), st.integers(0, 10**9), st.integers(10**20, 10**30)))
@settings(max_examples=examples(150), deadline=None)
def test_from_border_to_border_every_draw_is_in_its_window(each: Rates, block: int) -> None:
    length = 2 * (sum(each.weights) // min(each.weights) + 1)
    slot = block * length
    before, after = counts_before(each, slot), counts_before(each, slot + length)
    assert sum(before) == slot and sum(after) == slot + length
    assert before == plain.counts_before(each, slot)
    order = deal(each, slot, before, after)
    assert order.tolist() == plain.deal(each, slot, before, after)
    counts = list(before)
    for number, source in enumerate(order.tolist()):
        begin, end = each.window(source, counts[source])
        assert begin <= each.time(slot + number) <= end
        counts[source] += 1
    assert counts == after


@given(rates(), st.integers(0, 10**6))
@settings(max_examples=examples(100), deadline=None)
def test_a_window_ends_before_the_count_is_too_far_from_its_share(each: Rates, draw: int) -> None:
    for source, weight in enumerate(each.weights):
        begin, end = each.window(source, draw)
        period, slack = each.period, each.slack
        assert (draw + 1) * period - weight * (begin + 1) <= slack < (draw + 1) * period - weight * begin
        assert weight * end - draw * period <= slack < weight * (end + 1) - draw * period
