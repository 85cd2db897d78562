"""Work on threads: in order, ended by the first error, and soon."""

from __future__ import annotations

import threading
import time

import pytest

from feedmill.curation.near.parallel import Stopped, go_on, map_units
from feedmill.jobs.progress import Progress


def test_results_come_in_order() -> None:
    with Progress("working", 9, enabled=False) as bar:
        assert list(map_units(lambda n: (time.sleep(0.001 * (9 - n)), n)[1], range(9), 3, bar)) == list(range(9))
        assert bar.done == 9
        assert list(map_units(str, range(3), 1, bar)) == ["0", "1", "2"]


def test_the_first_error_in_order_comes_out_and_stops_the_others() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(n: int) -> int:
        if n == 1:
            assert begun.wait(100)
            raise KeyError(n)
        if n == 2:
            raise ValueError(n)
        if n == 3:
            begun.set()
            try:
                while True:
                    go_on()
                    time.sleep(0.001)
            except Stopped:
                ended.set()
                raise
        return n

    with Progress("working", 9, enabled=False) as bar:
        results = map_units(work, range(9), 4, bar)
        assert next(results) == 0
        with pytest.raises(KeyError):
            next(results)
    assert ended.is_set()
    go_on()
