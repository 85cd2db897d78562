"""Requests for ranges: which errors are tried again, how often, and what happens when a server refuses or hangs."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from datetime import timedelta

import numpy as np
import pytest
from tests.helpers.range_server import RangeServer, range_server

from feedmill.errors import DataError, FeedmillError, StorageError
from feedmill.storage.fetching import lanes
from feedmill.storage.fetching.fetch import Fetcher, fetcher
from feedmill.storage.fetching.lanes import Flight, Lane
from feedmill.storage.remote.object_store import RemoteStore

SOON = {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=10), "base": 2}
DATA = bytes(np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8))


@pytest.fixture
def server():
    with range_server() as running:
        running.objects["a"] = DATA
        yield running


def store_of(server: RangeServer, **options) -> RemoteStore:
    return RemoteStore("s3://bkt", **server.options, retry_config={"backoff": SOON}, **options)


def first_is(fault: str, count: int = 1):
    return lambda number, begin, end: fault if number < count else None


@pytest.mark.parametrize("fault", ["503", "reset", "cut", "range"])
def test_faults_that_pass_are_tried_again(server, fault):
    server.fault = first_is(fault, 2)
    one = Fetcher()
    assert bytes(one.fetch(store_of(server), [("a", 1000, 301_000)])[0]) == DATA[1000:301_000]
    assert len(server.asked) == 3 and one.retries == 2 and one.throttled == 2 * (fault == "503")


def test_a_request_whose_answer_is_no_longer_wanted_is_not_made_again(server):
    flight = Flight()

    def fault(number: int, begin: int, end: int) -> str:
        if number == 2:
            flight.drop()
        return "503"

    server.fault = fault
    with pytest.raises(Exception, match="503"):
        fetcher().request(store_of(server), "a", 0, 10, flight)
    assert len(server.asked) == 3


PROGRAM = """
import sys, time
from feedmill.storage.fetching.fetch import fetcher
from feedmill.storage.remote.object_store import RemoteStore
store = RemoteStore("s3://bkt", endpoint=sys.argv[1], region="us-east-1", skip_signature=True)
assert len(store.read("a", 0, 10)) == 10
fetcher().submit(store, "a", 20, 30)
time.sleep(0.5)
"""


def test_a_program_ends_though_a_request_still_fails(server):
    server.fault = lambda number, begin, end: "503" if begin == 20 else None
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", PROGRAM, server.options["endpoint"]], check=False, timeout=180)
    assert done.returncode == 0 and time.monotonic() - began < 150  # not three minutes


def test_an_answer_to_another_range_is_an_error_when_it_comes_three_times(server):
    server.fault = first_is("range", 99)
    with pytest.raises(StorageError):
        store_of(server).read("a", 10, 10)
    assert len(server.asked) == 3


def test_a_silent_server_is_asked_again_after_the_limit_for_silence(server):
    server.fault, server.silence = first_is("stall"), 600
    store = store_of(server, client_options={"read_timeout": "300ms"})
    assert store.read("a", 0, 1000) == DATA[:1000]
    assert len(server.asked) >= 2


def test_a_denied_request_is_tried_once_more_with_a_new_connection(server):
    store = store_of(server)
    assert store.read("a", 0, 5) == DATA[:5]
    old = store.reader
    server.fault = lambda number, begin, end: "403" if number == 1 else None
    assert store.read("a", 5, 5) == DATA[5:10] and store.reader is not old
    server.fault = lambda number, begin, end: "403"
    with pytest.raises(StorageError) as caught:
        store.read("a", 5, 5)
    assert caught.value.kind == "eacces" and len(server.asked) == 5


def test_an_object_that_is_replaced_while_it_is_open_is_named_and_not_mixed(server):
    store = store_of(server)
    store.pin_files()
    assert store.read("a", 0, 5) == DATA[:5]
    server.objects["a"] = DATA[::-1]
    with pytest.raises(DataError, match="replaced") as caught:
        store.read("a", 5, 5)
    assert caught.value.kind == "changed" and caught.value.file == "s3://bkt/a"
    unpinned = store_of(server)
    assert unpinned.read("a", 0, 5) == DATA[::-1][:5]
    server.objects["a"] = DATA
    assert unpinned.read("a", 0, 5) == DATA[:5]


@pytest.fixture
def hedging(monkeypatch):
    """A fetcher made now sends second requests, which it does not in other tests; see `conftest.py`."""
    monkeypatch.setenv("FEEDMILL_HEDGE", "on")


def test_a_request_that_hangs_is_made_a_second_time(server, hedging):
    now = [0.0]

    def fault(number: int, begin: int, end: int) -> str | None:
        if number != 40:
            return None
        now[0] += 60.0  # it has been sent, and the second one is not yet
        return "stall"

    server.fault, server.silence = fault, 600
    store = store_of(server)
    one = Fetcher(lambda: now[0])
    for at in range(40):
        assert bytes(one.fetch(store, [("a", at, at + 9)])[0]) == DATA[at : at + 9]
    assert bytes(one.fetch(store, [("a", 700, 900)])[0]) == DATA[700:900]
    assert one.hedges == 1


def test_second_requests_can_be_turned_off_and_are_few(server, hedging, monkeypatch):
    monkeypatch.setattr(lanes, "_OVERDUE", 0.1)
    server.fault = lambda number, begin, end: "late"
    few = Fetcher()
    few.fetch(store_of(server), [("a", at, at + 9) for at in range(0, 200_000, 5000)])
    assert few.hedges <= 4
    monkeypatch.setenv("FEEDMILL_HEDGE", "off")
    none = Fetcher()
    none.fetch(store_of(server), [("a", 0, 9)])
    assert none.hedges == 0


def test_a_server_that_refuses_is_asked_less_at_once_and_more_again_later():
    now = [100.0]
    lane = Lane(16, grows=False, clock=lambda: now[0])
    lane.refused(now[0])
    assert lane.limit == 8
    lane.refused(99.0)  # was in flight when the first one was refused
    assert lane.limit == 8
    for _ in range(5):
        now[0] += 0.1
        lane.refused(now[0])
    assert lane.limit == 4  # never less: one that hangs would hold up all others
    now[0] += 3.0
    with lane.slot():
        assert lane.limit == 7
    now[0] += 60.0
    with lane.slot():
        assert lane.limit == 16


def test_the_limit_grows_while_that_raises_the_rate():
    now = [0.0]
    lane = Lane(16, grows=True, clock=lambda: now[0])
    now[0] = 100.0
    lane._waiting = 1
    seen = []
    for _ in range(8):
        for _ in range(lane.limit):  # the rate follows the limit up to 40 at once
            now[0] += 0.3 / lane.limit
            lane.answered(min(lane.limit, 40) * 100_000 // lane.limit, 0.1)
        now[0] += 0.01
        lane.answered(0, 0.1)
        seen.append(lane.limit)
    assert max(seen) == 48 and seen[-1] in (40, 48)


def test_a_lane_lets_no_more_through_than_its_limit():
    lane, inside, most = Lane(4, grows=False), [0], [0]
    lock, four = threading.Lock(), threading.Barrier(4, timeout=120)

    def work() -> None:
        with lane.slot():
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            four.wait()
            with lock:
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 4


@pytest.mark.parametrize("fault", ["503", "reset", "cut", "range", "403"])
def test_a_storm_of_faults_ends_with_the_right_bytes_or_one_error(server, fault):
    rng = np.random.default_rng(3)
    bad = set(rng.choice(400, 80, replace=False).tolist())
    server.fault = lambda number, begin, end: fault if number in bad else None
    store = store_of(server)
    offsets = list(range(0, 1 << 20, 40_000))
    for _ in range(4):
        try:
            found = store.read_ranges("a", offsets, [500] * len(offsets))
        except FeedmillError:
            assert fault in ("range", "403")
        else:
            assert found == [DATA[at : at + 500] for at in offsets]


def test_answers_are_freed_without_collecting_garbage():
    """A request and its answer referred to each other: their bytes took twice the memory."""
    with range_server() as server:
        server.objects = {"a": bytes(100_000)}
        store = RemoteStore("s3://bkt", **server.options)
        gc.disable()
        try:
            answer = fetcher().submit(store, "a", 0, 100_000)
            assert len(answer.result()) == 100_000
            freed = weakref.ref(answer)
            deadline = time.monotonic() + 120  # the thread of the request still has it for a moment
            del answer
            while freed() is not None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert freed() is None
        finally:
            gc.enable()


def test_places_of_answered_requests_are_forgotten():
    lane = Lane(4, grows=False)
    for _ in range(100):
        with lane.slot(), lane.slot():
            pass
    assert not lane._slots
