"""A function in a child process: results in order, limits on time and memory, crashes, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from feedmill.jobs.sandbox import Failure, Sandbox
from helpers import warm


def act(item: str) -> str:
    if item == "hang":
        while True:
            pass
    if item == "hang in C":
        sum(range(10**12))
    if item == "sleep":
        time.sleep(600)
    if item == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "memory":
        return str(len(bytearray(1 << 40)))
    if item == "work":
        begin = time.process_time()
        while time.process_time() < begin + 0.2:
            pass
    if item == "raise":
        raise ValueError("no page")
    if item == "process":
        return str(os.getpid())
    return item.upper()


def test_each_input_has_its_result_and_only_bad_ones_fail() -> None:
    items = ["a", "hang", "b", "crash", "hang in C", "memory", "raise", "c" * 100_000, "d"]
    with Sandbox(act, 0.5) as sandbox:
        found = list(sandbox.map(items))
        assert [one for one in found if isinstance(one, str)] == ["A", "B", "C" * 100_000, "D"]
        failures = {item: one.why for item, one in zip(items, found, strict=True) if isinstance(one, Failure)}
        assert list(failures) == ["hang", "crash", "hang in C", "memory", "raise"]
        assert failures["hang"] == failures["hang in C"] == "took longer than 0.5 s"
        assert failures["crash"] == "crashed" and failures["raise"] == "ValueError: no page"
        assert failures["memory"].startswith("MemoryError")
        assert list(sandbox.map([])) == []
        first, second = sandbox.map(["process", "process"])
        assert first == second and isinstance(first, str) and int(first) != os.getpid()
    assert not alive(int(first))


def test_systems_without_proc_count_wall_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.jobs.sandbox._PROC", "/nowhere")
    monkeypatch.setattr("feedmill.jobs.sandbox.ctypes.CDLL", lambda name: object())
    with Sandbox(act, 4.0) as sandbox:  # enough for the others on a busy machine
        failures = [Failure("took longer than 4 s"), Failure("crashed")]
        assert list(sandbox.map(["a", "sleep", "crash", "b"])) == ["A", *failures, "B"]


def test_a_program_in_real_time_has_a_child_that_is_not() -> None:
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        pytest.skip("this needs root")
    try:
        with Sandbox(lambda item: os.sched_getscheduler(0), 5.0) as sandbox:
            assert list(sandbox.map(["a"])) == [os.SCHED_OTHER]
    finally:
        os.sched_setscheduler(0, *before)


def test_the_limit_is_for_one_input() -> None:
    with Sandbox(act, 0.5) as sandbox:
        assert [list(sandbox.map(["work", "work"])) for _ in range(2)] == [["WORK", "WORK"]] * 2
        assert list(sandbox.map(["hang", "work"])) == [Failure("took longer than 0.5 s"), "WORK"]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # also if it ends in the middle of this
        return False


def test_the_child_ends_with_a_killed_parent() -> None:
    program = """
import sys, time
from feedmill.jobs.sandbox import Sandbox
import os
def act(item):
    print(os.getpid(), flush=True)
    while True: pass
list(Sandbox(act, 600).map(["x"]))
"""
    with warm.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 120
        while alive(child) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not alive(child)
