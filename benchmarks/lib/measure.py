"""Measuring two programs beside each other: fresh processes, taking turns, medians of several runs."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

# Programs that are installed have their bytecode: ours and the peers' get theirs in their first run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

Measure = Callable[[], dict[str, float]]
"""One fresh measurement: a number for each thing measured."""


class Failed(Exception):
    """A measured program ended with an error."""


@dataclass
class Row:
    """One line of the table.

    Attributes:
        part: the part of the benchmark it belongs to.
        what: what is measured.
        unit: ``s`` (less is better), ``/s`` (more is better), or another unit that is only shown.
        ours, theirs: one number for each run; `theirs` is empty where there is no peer for it.
        wanted: the least ratio that the project promises; with `bound`, the most that `ours` may be.
        note: what the reader should know.
    """

    part: str
    what: str
    unit: str
    ours: list[float]
    theirs: list[float] = field(default_factory=list)
    wanted: float | None = None
    bound: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times better we are: the ratio of the medians."""
        if not self.ours or not self.theirs:
            return None
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        return ours / theirs if self.unit == "/s" else theirs / ours

    @property
    def held(self) -> bool | None:
        """Whether the promise is kept; None where there is none or it can't be told."""
        if self.bound is not None:
            return statistics.median(self.ours) <= self.bound
        return None if self.wanted is None or self.ratio is None else self.ratio >= self.wanted

    def as_dict(self) -> dict[str, Any]:
        """Plain data, with the medians."""
        medians = {
            f"{name}_median": statistics.median(runs) if runs else None
            for name, runs in (("ours", self.ours), ("theirs", self.theirs))
        }
        return {**vars(self), **medians, "ratio": self.ratio, "held": self.held}


def alternate(repeat: int, ours: Measure, theirs: Measure | None) -> tuple[dict[str, list[float]], ...]:
    """`repeat` measurements of each, taking turns: (ours, theirs), each with a list of numbers for each name."""
    found = rounds(repeat, {"theirs": theirs or dict, "ours": ours})
    return found["ours"], found["theirs"]


def rounds(repeat: int, sides: Mapping[str, Measure]) -> dict[str, dict[str, list[float]]]:
    """`repeat` measurements of each side, in this order and in the reverse by turns: for each side, as `alternate`."""
    found: dict[str, dict[str, list[float]]] = {side: {} for side in sides}
    for turn in range(repeat):
        for side in list(sides)[:: 1 if turn % 2 == 0 else -1]:
            for name, number in sides[side]().items():
                found[side].setdefault(name, []).append(number)
    return found


def run(command: Sequence[str], env: Mapping[str, str] | None = None, folder: Path | None = None) -> dict[str, float]:
    """Wall time, processor time and peak memory of a whole process. Raises `Failed` with the end of its stderr."""
    # A process begins with the memory of the one that starts it as its peak: this one may be large, `spawn` is small.
    starter = [sys.executable, "-S", str(Path(__file__).with_name("spawn.py"))]
    done = subprocess.run(
        [*starter, *map(str, command)], capture_output=True, text=True, env=env, cwd=folder, check=False
    )
    if done.returncode:
        raise Failed(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-1500:]}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def child(
    python: str,
    module: str,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """What ``SUBJECT.peers.NAME`` prints as the last line, JSON, with the wall time of its process as ``wall``.

    It is run from the root, as a module: run as a file, `webdataset.py` would find itself where it imports webdataset.
    After `timeout` seconds it is killed, with the processes that it started.
    """
    command = [python, "-m", f"benchmarks.{module}", *map(str, arguments)]
    begin = time.perf_counter()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=timeout is not None, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException as error:
            if timeout is None:
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(f"{module} {' '.join(map(str, arguments))} hung for {timeout:g} s") from None
            raise
    wall = time.perf_counter() - begin
    if process.returncode:
        raise Failed(f"{module} {' '.join(map(str, arguments))} failed:\n{errors[-1500:]}")
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return {**found, "wall": wall}


def feedmill(*arguments: object) -> list[str]:
    """Feedmill's command line, as the installed script runs it."""
    return [sys.executable, "-c", "from feedmill.cli.app import main; main()", *map(str, arguments)]
