"""A process that uses a loader ends at once: interrupted, or with an iteration that was never finished."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, time
from fakes import FakePlan
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
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


def test_ctrl_c_while_waiting_for_a_batch() -> None:
    with start("for _ in batches: pass\n") as child:
        child.send_signal(signal.SIGINT)
        _, message = child.communicate(timeout=20)
    assert child.returncode == -signal.SIGINT
    assert message.splitlines()[-1] == "KeyboardInterrupt"


def test_ending_with_an_unfinished_iteration() -> None:
    with start("sys.exit(3)\n") as child:
        _, message = child.communicate(timeout=20)
    assert (child.returncode, message) == (3, "")
