"""Damaged inputs of every reader and configuration: none crashes, hangs, takes a gigabyte, or runs code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def fuzzed(*options: str) -> tuple[int, list[str]]:
    """How many inputs were run, and what was found."""
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    command = [sys.executable, "-m", "fuzzing", *options]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    count = re.search(r"^([\d,]+) inputs", done.stdout, re.M)
    assert count is not None, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    assert done.returncode == bool(found)
    return int(count[1].replace(",", "")), found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it forks, and bounds memory by /proc")
def test_hundreds_of_inputs_are_read_or_refused() -> None:
    """Of each reader some, or it is a failure."""
    assert fuzzed("--inputs", "250", "--seed", "1") == (250, [])


@pytest.mark.slow
def test_fifty_thousand_inputs_are_read_or_refused() -> None:
    assert fuzzed("--inputs", "50000", "--seed", "2") == (50_000, [])
