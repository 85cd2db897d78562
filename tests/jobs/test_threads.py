from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from feedmill.jobs import threads
from feedmill.jobs.threads import THREAD_NAME, ahead, ordered_map
from helpers import warm

_before = set[threading.Thread]()
"""Threads of earlier tests, which may end in the middle of these."""


def loader_threads() -> int:
    return sum(thread.name.startswith(THREAD_NAME) for thread in set(threading.enumerate()) - _before)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    _before.update(threading.enumerate())
    yield
    assert loader_threads() == 0
    _before.clear()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_order(workers: int) -> None:
    def slow_at_first(i: int) -> int:
        time.sleep(0.005 if i % 3 == 0 else 0)
        return i * i

    assert list(ordered_map(slow_at_first, range(40), workers=workers, in_flight=6)) == [i * i for i in range(40)]


def test_never_more_in_flight_than_allowed() -> None:
    begun: list[int] = []
    results = ordered_map(lambda i: begun.append(i) or i, range(50), workers=3, in_flight=5)
    for taken, value in enumerate(results, 1):
        assert value == taken - 1
        time.sleep(0.001)
        assert len(begun) <= taken + 5
    assert sorted(begun) == list(range(50))


def test_prefetches_while_the_consumer_is_busy() -> None:
    begun: list[int] = []
    results = ordered_map(begun.append, range(50), workers=2, in_flight=4)
    next(results)
    deadline = time.monotonic() + 120
    while len(begun) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(begun) == 5
    results.close()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_error_comes_at_its_place(workers: int) -> None:
    def fail_at_7(i: int) -> int:
        if i == 7:
            raise ValueError("seven")
        return i

    results = ordered_map(fail_at_7, range(20), workers=workers, in_flight=6)
    assert [next(results) for _ in range(7)] == list(range(7))
    with pytest.raises(ValueError, match="seven"):
        next(results)
    assert loader_threads() == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stop_iteration_of_the_function_is_not_the_end(workers: int) -> None:
    nothing: Iterator[int] = iter(())
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(ordered_map(lambda i: i if i < 3 else next(nothing), range(20), workers=workers, in_flight=2))


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_collected_in_a_cycle_by_a_worker_thread() -> None:
    """The collector may run anywhere; where it runs on a worker, joining that worker would fail."""

    class Holder:
        results: object

    collect = threading.Event()
    collected = threading.Event()

    def work(i: int) -> int:
        if collect.wait(0.001):
            gc.collect()
            collected.set()
        return i

    gc.disable()
    try:
        holder, results = Holder(), ordered_map(work, range(10**6), workers=1, in_flight=2)
        next(results)
        holder.results = (holder, results)
        del holder, results
        collect.set()
        assert collected.wait(120)
    finally:
        gc.enable()
        gc.collect()
    deadline = time.monotonic() + 120
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.002)


def test_ahead_gives_the_same_items() -> None:
    assert list(ahead(iter(range(30)))) == list(range(30))
    assert list(ahead([])) == []


def test_ahead_passes_errors_on_in_their_turn() -> None:
    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("three")

    found = ahead(source())
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(ValueError, match="three"):
        next(found)


def test_ahead_goes_only_so_far_and_closes_its_source() -> None:
    taken, closed = [], []

    def source() -> Iterator[int]:
        try:
            for number in range(100):
                taken.append(number)
                yield number
        finally:
            closed.append(True)

    found = ahead(source(), depth=3)
    assert [next(found) for _ in range(5)] == [0, 1, 2, 3, 4]
    found.close()
    assert closed and len(taken) <= 5 + 3 + 1


def test_any_number_of_threads_may_be_allowed():
    assert list(ordered_map(abs, range(3), workers=10**30, in_flight=2 * 10**30)) == [0, 1, 2]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_no_results_in_flight_are_one_at_a_time(workers: int) -> None:
    assert list(ordered_map(lambda n: n * n, range(5), workers=workers, in_flight=0)) == [0, 1, 4, 9, 16]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in what the interpreter calls itself
@pytest.mark.parametrize("workers", [1, 3])
def test_interrupted_anywhere(workers: int) -> None:
    """Ctrl-C raises between any two steps of the thread that takes results; the threads end all the same."""
    interrupted = 0
    for after in range(1, 400, 3):
        results = ordered_map(abs, range(5), workers=workers, in_flight=4)
        left = [after]

        def raise_at(frame: object, event: str, argument: object, left: list[int] = left) -> object:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return raise_at

        before = sys.gettrace()
        try:
            sys.settrace(raise_at)
            for _ in results:
                pass
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(before)
        del results
    assert interrupted > 30
    threads._end_all()  # those whose end was interrupted: as the interpreter does


UNSEEN = """
import signal, threading, time
from feedmill.jobs import threads

threads.RECHECK_SECONDS = 0.01
began, ended = time.monotonic(), threading.Event()

def work(_):
    time.sleep(0.05)  # the main thread waits now, most likely
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # this thread takes it: the wait is not interrupted
    return ended.wait(100)

try:
    next(threads.ordered_map(work, [1], workers=1, in_flight=1, interrupt=ended.set))
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - began < 90)
"""


def test_a_signal_that_does_not_wake_the_main_thread_is_handled() -> None:
    """As one that arrives when the thread is about to wait: before, it was handled with the next batch, if any came."""
    done = warm.run([sys.executable, "-c", UNSEEN], capture_output=True, text=True)
    assert done.stdout == "interrupted True\n", done.stderr


UNCOUNTED = """
import signal, threading
from feedmill.jobs import threads

start, numbers = threads._thread.start_new_thread, iter(range(9))

def interrupted(*arguments):
    start(*arguments)
    if next(numbers) == 1:
        raise KeyboardInterrupt  # as a signal's handler does, behind a call

class Threads:
    start_new_thread, get_ident = staticmethod(interrupted), staticmethod(threading.get_ident)

threads._thread = Threads
try:
    list(threads.ordered_map(str, range(9), workers=4, in_flight=4))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_between_a_start_and_its_count_leaves_no_thread_waiting() -> None:
    done = warm.run([sys.executable, "-c", UNCOUNTED], capture_output=True, text=True, timeout=100)
    assert done.stdout == "interrupted\n", done.stderr
