"""The parts of Python's standard library that `feedmill.jobs` builds on and that are not public.

A Python that has changed them fails here, with the part's name, and not in a run that hangs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, get_context, popen_fork, popen_forkserver
from multiprocessing.context import ForkContext, ForkProcess, ForkServerContext, ForkServerProcess
from typing import Any

import pytest

VERSION = f"Python {sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize("popen", [popen_fork.Popen, popen_forkserver.Popen], ids=["fork", "forkserver"])
def test_what_starts_a_process_is_polled_with_a_flag_and_keeps_its_exit_code(popen: type[Any]) -> None:
    where = f"{popen.__module__}.Popen in {VERSION}"
    assert list(inspect.signature(popen.poll).parameters) == ["self", "flag"], f"{where} is polled in another way"
    source = "".join(inspect.getsource(cls) for cls in popen.__mro__ if cls is not object)
    for part in ("self.returncode", "self.sentinel"):
        assert part in source, f"{where} has no {part}"


@pytest.mark.parametrize("process", [ForkProcess, ForkServerProcess])
def test_a_process_is_started_by_its_popen(process: type[Any]) -> None:
    made: Any = inspect.getattr_static(process, "_Popen", None)
    assert isinstance(made, staticmethod), f"{process.__name__}._Popen of {VERSION} is no static method"
    assert list(inspect.signature(made.__func__).parameters) == ["process_obj"]


@pytest.mark.parametrize(("context", "method"), [(ForkContext, "fork"), (ForkServerContext, "forkserver")])
def test_contexts_can_be_made_and_start_processes_by_their_own_process(context: type[Any], method: str) -> None:
    made = context()
    assert made.get_start_method() == method and callable(made.Process), f"{context.__name__} of {VERSION}"
    assert callable(get_context("forkserver").set_forkserver_preload)


def test_the_pool_has_a_queue_of_results_whose_end_can_be_closed() -> None:
    """`jobs.run` closes it where workers were ended, or the pool would wait for the rest of a result for ever."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        queue = getattr(pool, "_result_queue", None)
        assert queue is not None, f"ProcessPoolExecutor of {VERSION} has no _result_queue"
        assert isinstance(getattr(queue, "_writer", None), connection.Connection), (
            f"{VERSION}: no _result_queue._writer"
        )
        close: Callable[[], None] = queue._writer.close
        assert callable(close)
        items = getattr(pool, "_call_queue", None)
        assert isinstance(getattr(items, "_reader", None), connection.Connection), f"{VERSION}: no _call_queue._reader"
        assert hasattr(items, "_thread"), f"{VERSION}: no _call_queue._thread"
