"""A process that uses a loader ends at once: interrupted, or with an iteration that was never finished."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import warm

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, time
from helpers.fakes import FakePlan
from feedmill.loading.loader import Loader

def transform(sample):
    time.sleep(0.002)
    return sample

batches = iter(Loader(FakePlan(), 4, workers=3, transform=transform))
next(batches)
print("ready", flush=True)
"""


def start(end: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, "-c", PROGRAM + end]
    child = warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


def test_ctrl_c_while_waiting_for_a_batch() -> None:
    with start("for _ in batches: pass\n") as child:
        child.send_signal(signal.SIGINT)
        _, message = child.communicate(timeout=180)
    assert child.returncode == -signal.SIGINT
    assert message.splitlines()[-1] == "KeyboardInterrupt"


def test_ending_with_an_unfinished_iteration() -> None:
    with start("sys.exit(3)\n") as child:
        _, message = child.communicate(timeout=180)
    assert (child.returncode, message) == (3, "")


PROCESSES = """
import os, sys, time
from pathlib import Path
from helpers.fakes import FakePlan
from helpers.worker_functions import briefly
from feedmill.loading.loader import Loader
from feedmill.loading.workers import Workers

def below(process):
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in path.read_text().split():
            yield child
            yield from below(child)

batches = iter(Loader(FakePlan(), 4, workers=Workers(2, processes=True), transform=briefly))
next(batches)
print(*below(os.getpid()), flush=True)
"""


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "feedmill" in name}


@pytest.mark.skipif(
    not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"), reason="/proc does not list child processes"
)
@pytest.mark.parametrize(
    ("end", "number"),
    [
        ("for _ in batches: pass\n", signal.SIGINT),
        ("for _ in batches: pass\n", signal.SIGKILL),
        ("raise ValueError('a bug in the loop')\n", None),
    ],
    ids=["interrupted", "killed", "failed"],
)
def test_processes_and_shared_memory_are_gone(end: str, number: int | None) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, "-c", PROCESSES + end]
    before = shared_memory()
    with warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        workers = child.stdout.readline().split()
        assert len(workers) >= 3  # the fork server, and two workers
        if number is not None:
            child.send_signal(number)
        _, message = child.communicate(timeout=180)
    assert child.returncode == (-number if number else 1), message
    until = time.monotonic() + 120
    while left := [process for process in workers if os.path.exists(f"/proc/{process}")]:
        assert time.monotonic() < until, left
        time.sleep(0.05)
    assert shared_memory() <= before


FORKED = """
import os, sys
from itertools import islice
from helpers.fakes import FakePlan
from feedmill.errors import ConfigError
from feedmill.loading.loader import Loader

def positions(batches, count):
    return [p for batch in islice(batches, count) for p in batch["position"].tolist()]

loader = Loader(FakePlan(), 4, workers=3, stall=5.0)
batches = iter(loader)
assert positions(batches, 2) == list(range(8))
for _ in range(5):
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except ConfigError as error:
            assert "forked process" in str(error)
            assert positions(loader, 3) == list(range(8, 20))  # again, with threads of its own
            loader.close()
            del batches
            sys.exit(7)
        sys.exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert positions(batches, 3) == list(range(8, 20))
print("done")
"""


def test_a_fork_leaves_threads_where_they_are() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    done = warm.run([sys.executable, "-c", FORKED], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
