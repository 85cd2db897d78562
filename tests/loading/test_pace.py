"""Where batches are made: the faster place is found and kept, and the stream is the same wherever they are made."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.errors import DataError
from feedmill.jobs.threads import THREAD_NAME
from feedmill.loading.loader import Loader
from feedmill.loading.workers import FIRST, MOST, SOON, Pace, Workers
from helpers.fakes import FakePlan


class Loop:
    """A loop on a clock of its own: `here` and `ahead` are seconds per batch of the two places, `own` those of the
    loop. Workers go on while the loop does its own work."""

    def __init__(self, here: float, ahead: float, own: float = 0.0) -> None:
        self.here, self.ahead, self.own = here, ahead, own
        self.pace, self.now, self.batches = Pace(), 0.0, 0
        self.moves: list[float] = []

    def run(self, seconds: float, fetched: float = 0.0) -> Loop:
        end = self.now + seconds
        while self.now < end:
            waited = fetched + (self.here if self.pace.here else max(self.ahead - self.own, 0.0))
            self.now += waited + self.own
            self.batches += 1
            if self.pace.moves(waited, self.now, fetched):
                self.moves.append(self.now)
                self.pace.begin()
        return self


def test_batches_that_take_less_time_than_a_hand_over_are_made_in_the_loop() -> None:
    loop = Loop(here=150e-6, ahead=800e-6).run(60)
    assert loop.pace.here and loop.moves[0] < 0.1
    assert loop.batches >= 0.97 * 60 / 150e-6, "the trials cost little"
    assert len(loop.moves) <= 1 + 2 * 4, "and become rare"


def test_workers_that_wait_beside_each_other_are_measured() -> None:
    """Eight workers take 8 ms for a batch each, of which they wait for 0.5 ms: half of a millisecond of the loop."""
    pace = Pace()
    for batch in range(1, 400):
        if pace.moves(0.9e-3, batch * 1e-3, fetched=0.5e-3, made=8e-3):
            break
    assert pace.here and batch < 100


def test_a_wait_for_remote_data_decides_nothing() -> None:
    loop = Loop(here=150e-6, ahead=800e-6).run(1, fetched=0.030)
    assert not loop.moves
    loop.run(0.07)
    loop.run(0.5, fetched=0.030)  # in the middle of the trial
    assert loop.pace.here, "the trial was not lost for it"
    loop.run(0.1)
    assert loop.pace.here and len(loop.moves) == 1


def test_expensive_batches_stay_with_workers() -> None:
    loop = Loop(here=0.040, ahead=0.022).run(60)
    assert not loop.pace.here and loop.batches >= 0.97 * 60 / 0.022
    assert np.diff(loop.moves[1::2]).tolist() == sorted(np.diff(loop.moves[1::2]))


def test_workers_that_keep_up_are_never_left() -> None:
    loop = Loop(here=0.001, ahead=0.005, own=0.006).run(60)
    assert not loop.moves


def test_a_loop_that_becomes_slow_gets_its_batches_from_workers_again() -> None:
    loop = Loop(here=0.010, ahead=0.016).run(200)
    assert loop.pace.here and loop.moves[-1] < 190, "it is long until the next trial"
    loop.own = 0.020
    loop.run(2 * FIRST)
    assert not loop.pace.here


def test_data_that_become_expensive_go_back_to_workers() -> None:
    loop = Loop(here=150e-6, ahead=800e-6).run(1)
    loop.here, loop.ahead = 0.040, 0.022
    loop.run(4 * FIRST)
    assert not loop.pace.here


def test_one_disturbed_measurement_does_not_decide() -> None:
    loop = Loop(here=150e-6, ahead=800e-6)
    while not loop.moves:
        loop.run(1e-6)
    loop.pace.moves(0.5, loop.now)  # the clock begins
    loop.now += 0.5  # the machine did something else
    loop.run(1)
    assert loop.pace.here


def test_a_slow_beginning_decides_nothing() -> None:
    loop = Loop(here=0.0055, ahead=0.014).run(0.06)  # files are opened, code is loaded
    loop.ahead = 0.010
    loop.run(0.05)
    loop.ahead = 0.004
    loop.run(0.25)
    assert not loop.pace.here and len(loop.moves) == 2, "the loop was tried, and is slower"


def test_a_first_trial_that_was_disturbed_is_soon_repeated() -> None:
    loop = Loop(here=0.0018, ahead=0.0012)
    while len(loop.moves) < 2:
        loop.run(1e-6)
    loop.here = 0.00065  # what disturbed the start has ended
    loop.run(2 * SOON)
    assert loop.pace.here


def test_measurements_that_never_agree_do_not_delay_the_trial_forever() -> None:
    loop = Loop(here=150e-6, ahead=800e-6)
    while not loop.pace.here and loop.now < 2:
        loop.ahead = 800e-6 if loop.ahead > 800e-6 else 1600e-6
        loop.run(0.02)
    assert loop.pace.here and loop.now < 0.3


def test_a_narrow_result_is_soon_measured_again() -> None:
    loop = Loop(here=0.0022, ahead=0.0020).run(FIRST)
    assert not loop.pace.here and len(loop.moves) == 2 * 3, "after a quarter of a second, and one more"
    loop.here = 0.0005  # the narrow result was an accident
    assert loop.run(2 * FIRST).pace.here


def test_the_interval_between_trials_is_bounded() -> None:
    loop = Loop(here=0.002, ahead=0.008).run(1000)
    assert loop.pace.here and max(np.diff(loop.moves)) <= MOST + 1


class Scripted(Pace):
    """Changes the place after given numbers of batches, endlessly."""

    def __init__(self, turns: list[int], here: bool = False) -> None:
        super().__init__()
        self.here, self._turns, self._left = here, turns * 10_000, 0
        self._left = self._turns.pop()

    def moves(self, waited: float, now: float, fetched: float = 0.0, made: float = 0.0) -> bool:
        self._left -= 1
        if self._left > 0:
            return False
        self._left = self._turns.pop()
        self.here = not self.here
        return True


def scripted(pace: Pace, **arguments: Any) -> Loader:
    loader = Loader(**{"plan": FakePlan(length=67), "batch_size": 4, **arguments})
    object.__setattr__(loader._pipeline, "pace", pace)
    return loader


def positions(batches: Iterator[Any]) -> list[int]:
    return [p for batch in batches for p in batch["position"].tolist()]


def where(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "pid": os.getpid(), "thread": threading.current_thread().name}


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.booleans(),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 70),
)
def test_the_stream_does_not_depend_on_the_place(
    turns: list[int], here: bool, workers: int, prefetch: int, length: int
) -> None:
    plan, before = FakePlan(length=length), set(threading.enumerate())
    wanted = positions(iter(Loader(plan, 4, rank=0, world_size=1)))
    loader = scripted(Scripted(turns, here), plan=plan, workers=workers, prefetch=prefetch)
    assert positions(iter(loader)) == wanted
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith(THREAD_NAME)]


def test_batches_are_made_in_both_places_and_no_more_are_begun_than_before() -> None:
    plan = FakePlan(length=400)
    loader = scripted(Scripted([5]), plan=plan, workers=2, prefetch=2, transform=where)
    places = []
    for number, batch in enumerate(loader):
        places += batch["thread"]
        assert len(plan.reads) <= number + 1 + 2 * 2
    assert any(place.startswith(THREAD_NAME) for place in places)
    assert threading.current_thread().name in places


def test_the_state_does_not_depend_on_the_place() -> None:
    plan = FakePlan(length=67)
    wanted = positions(iter(Loader(plan, 4)))
    for taken in range(1, 17):
        loader = scripted(Scripted([3, 2]), plan=plan, workers=2)
        batches = iter(loader)
        found = positions(islice(batches, taken))
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
        resumed = scripted(Scripted([2]), plan=plan, workers=3)
        resumed.load_state_dict(state)
        assert found + positions(iter(resumed)) == wanted


@pytest.mark.parametrize("bad", range(0, 40, 3))
def test_errors_come_at_their_batch_in_both_places(bad: int) -> None:
    loader = scripted(Scripted([3, 2]), plan=FakePlan(length=40, fails_at=frozenset({bad})), workers=2)
    found = []
    with pytest.raises(DataError, match="cut short"):
        for batch in loader:
            found += batch["position"].tolist()
    assert found == list(range(bad // 4 * 4))


def test_processes_and_the_loop_take_turns() -> None:
    wanted = positions(iter(Loader(FakePlan(length=67), 4)))
    workers = Workers(2, processes=True, adapt=True)
    loader = scripted(Scripted([4, 2]), transform=where, workers=workers)
    batches = list(loader)
    assert positions(iter(batches)) == wanted
    makers = {pid for batch in batches for pid in batch["pid"].tolist()}
    assert os.getpid() in makers and len(makers) > 1


def test_processes_keep_the_transform_out_of_this_one_by_default() -> None:
    assert Workers(2).adapts and not Workers(2, processes=True).adapts and not Workers(2, adapt=False).adapts


def test_the_next_iteration_begins_where_the_last_one_ended() -> None:
    plan = FakePlan()
    loader = Loader(plan, 1, workers=2)
    next(iter(loader))
    loader.close()
    loader._pipeline.pace.here = True
    begun = len(plan.reads)
    next(iter(loader))
    assert len(plan.reads) == begun + 1
    assert not pickle.loads(pickle.dumps(loader._pipeline.pace)).here, "another process measures for itself"
