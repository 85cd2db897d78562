from __future__ import annotations

import pytest

from feedmill.jobs.events import Stragglers, lateness


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def passing(units: Stragglers, clock: Clock, seconds: float) -> None:
    """Let the time pass in looks of a second."""
    for _ in range(round(seconds)):
        clock.now += 1
        units.tick()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def ended(units: Stragglers, clock: Clock, seconds: list[float], sizes: list[int] | None = None) -> None:
    for number, each in enumerate(seconds):
        units.begin(("ended", number), 1 if sizes is None else sizes[number])
        passing(units, clock, each)
        units.end(("ended", number))


def test_a_unit_is_late_after_ten_times_the_median_and_a_minute(clock: Clock) -> None:
    units = Stragglers(clock)
    ended(units, clock, [9, 10, 11])
    units.begin("slow")
    passing(units, clock, 99)
    assert units.late() == []
    passing(units, clock, 1)
    assert units.late() == [("slow", 100.0)]
    assert units.median_text("slow") == " (median 10 s)"
    units.end("slow")
    assert units.late() == []
    ended(fast := Stragglers(clock), clock, [1, 1, 1])
    fast.begin("slow")
    passing(fast, clock, 59)
    assert fast.late() == []
    passing(fast, clock, 1)
    assert fast.late() == [("slow", 60.0)]


def test_a_large_unit_has_more_time(clock: Clock) -> None:
    units = Stragglers(clock)
    ended(units, clock, [10, 10, 10], [100, 100, 100])
    units.begin("large", 1000)
    units.begin("small", 50)
    passing(units, clock, 100)
    assert [key for key, _ in units.late()] == ["small"]
    passing(units, clock, 900)
    assert [key for key, _ in units.late()] == ["large", "small"]
    assert units.median_text("large") == " (median 1 min 40 s)"


def test_a_named_unit_is_named_again_when_its_age_has_doubled(clock: Clock) -> None:
    units = Stragglers(clock)
    ended(units, clock, [5, 5, 5])
    units.begin("slow")
    ages = []
    for _ in range(1000):
        passing(units, clock, 1)
        for key, age in units.late():
            units.named(key)
            ages.append(age)
    assert ages == [60, 120, 240, 480, 960]


def test_without_others_a_unit_is_late_after_half_an_hour(clock: Clock) -> None:
    units = Stragglers(clock)
    units.begin("alone")
    passing(units, clock, 1799)
    assert units.late() == []
    passing(units, clock, 1)
    assert units.late() == [("alone", 1800.0)] and units.median_text("alone") == ""


def test_time_in_which_this_process_was_stopped_does_not_count(clock: Clock) -> None:
    units = Stragglers(clock)
    ended(units, clock, [1, 1, 1])
    units.begin("slow")
    clock.now += 10_000
    units.tick()
    assert units.late() == []


def test_the_warning_names_units_age_and_place() -> None:
    names = [f"f{n}" for n in range(6)]
    assert lateness("tagging", names, 61, " (median 1.0 s)", " on node n1") == (
        "tagging: the unit f0, f1, f2, f3 and 2 more has run for 1 min 1 s on node n1 (median 1.0 s)"
    )
    assert lateness(None, ["f0"], 5, "") == "the unit f0 has run for 5 s"
