"""A loader ends at once while its store refuses all requests or is silent: closed by another thread, or by Ctrl-C."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import feedmill as fm
from helpers import warm
from helpers.range_server import RangeServer, range_server

ROOT = Path(__file__).parents[2]
SOON = 90.0
"""Seconds: with the retries of a request it would take minutes, and so would a silent request."""
PROGRAM = """
import os, sys, threading, time
import feedmill as fm

def say(*words):
    print(*words, flush=True)

def iterate(batches):
    try:
        for _ in batches:
            pass
    except fm.FeedmillError as error:
        say("ended", str(error)[:14])

def main():
    endpoint, mode, fault = sys.argv[1:]
    workers = {"0": 0, "threads": fm.Workers(2, adapt=False), "processes": fm.Workers(2, processes=True)}[mode]
    options = {"endpoint": endpoint, "region": "us-east-1", "skip_signature": True, "read_timeout": 600, "timeout": 600}
    recipe = {"source": "s3://bkt/data", "epochs": 5, "seed": 3, "storage": {"s3://bkt": options}}
    loader = fm.Loader(fm.Recipe.parse(recipe).plan(), 32, workers=workers)
    batches = iter(loader)
    next(batches)
    say("ready")
    sys.stdin.readline()
    thread = threading.Thread(target=iterate, args=(batches,))
    thread.start()
    sys.stdin.readline()
    began = time.monotonic()
    loader.close()
    thread.join()
    say(time.monotonic() - began)
    sys.stdin.readline()
    try:
        iterate(loader)
    except KeyboardInterrupt:
        say("interrupted")
    if fault != "503":
        os._exit(0)  # a request in flight ends after the limit for silence

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    folder, order = tmp_path_factory.mktemp("closing"), random.Random(0)
    samples = [{"__key__": f"k{i:05}", "bin": order.randbytes(15_000)} for i in range(900)]
    fm.write(str(folder), samples, max_shard_samples=300, progress=False)
    with range_server() as running:
        for path in folder.rglob("*"):
            if path.is_file():
                running.objects[f"data/{path.relative_to(folder)}"] = path.read_bytes()
        running.silence = 600
        yield running


def wait_for_fault(server: RangeServer, fault: str) -> None:
    until = time.monotonic() + 240
    while not server.faults[fault]:
        assert time.monotonic() < until
        time.sleep(0.01)


CASES = [
    pytest.param(
        mode, fault, marks=[] if (mode, fault) in {("threads", "stall"), ("processes", "503")} else pytest.mark.slow
    )
    for mode in ("0", "threads", "processes")
    for fault in ("503", "stall")
]


@pytest.mark.parametrize(("mode", "fault"), CASES)
def test_it_ends_at_once(server: RangeServer, mode: str, fault: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    server.fault = lambda number, begin, end: None
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "FEEDMILL_CACHE_DIR": str(tmp_path / "cache"),
        "FEEDMILL_READ_AHEAD": "4M",
    }
    command = [sys.executable, str(script), server.options["endpoint"], mode, fault]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with warm.Popen(command, text=True, env=environment, **pipes) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        server.faults.clear()
        server.fault = lambda number, begin, end: fault
        child.stdin.write("\n")
        child.stdin.flush()
        wait_for_fault(server, fault)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "ended this iteration\n"
        assert float(child.stdout.readline()) < SOON
        server.faults.clear()
        child.stdin.write("\n")
        child.stdin.flush()
        wait_for_fault(server, fault)
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
        assert time.monotonic() - began < SOON
        _, errors = child.communicate(timeout=180)
        assert child.returncode == 0, errors
        assert time.monotonic() - began < 2 * SOON
