from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from feedmill.storage.locks import FileLock
from helpers import warm

PARENT = """
import os, sys, time
from feedmill.storage.locks import FileLock
lock = FileLock(sys.argv[1])
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""


def test_one_at_a_time(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock"), pytest.raises(BlockingIOError):
        FileLock(tmp_path / "lock")
    FileLock(tmp_path / "lock").close()


def test_forked_children_do_not_keep_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    parent = warm.Popen([sys.executable, "-c", PARENT, path], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        with pytest.raises(BlockingIOError):
            FileLock(path)
        parent.kill()
        parent.wait()
        os.kill(child, 0)  # it is still there
        FileLock(path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_waiting_for_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = "import sys\nfrom feedmill.storage.locks import FileLock\n"
    other += "with FileLock(sys.argv[1]):\n print('held', flush=True)\n sys.stdin.read()\n"
    command, pipes = [sys.executable, "-c", other, str(path)], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with warm.Popen(command, text=True, **pipes) as holder, ThreadPoolExecutor(1) as pool:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        waiting = pool.submit(FileLock, path, wait=True)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        holder.stdin.close()
        waiting.result(120).close()
