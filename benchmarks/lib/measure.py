"""Measure programs beside each other: in fresh processes that alternate, with several runs each."""

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

# Installed programs have their bytecode, so let Feedmill and the peers write theirs in the first run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

Measure = Callable[[], dict[str, float]]
"""A function that runs one measurement in a fresh process: name -> number."""


class Failed(Exception):
    """Raised when a measured program ends with an error."""


@dataclass
class Row:
    """One line of the table.

    Attributes:
        part: the part of the benchmark that it belongs to.
        what: description of the measurement.
        unit: ``s`` (less is better), ``/s`` (more is better), or another unit that is only shown.
        ours, theirs: one number per run; `theirs` is empty if there is no peer.
        wanted: the target ratio; with `bound`, the maximum of `ours`.
        note: remarks for the reader.
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
        """Return how many times better Feedmill is: the ratio of the medians."""
        if not self.ours or not self.theirs:
            return None
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        return ours / theirs if self.unit == "/s" else theirs / ours

    @property
    def held(self) -> bool | None:
        """Return whether the target is met; None if there is no target or no number."""
        if self.bound is not None:
            return statistics.median(self.ours) <= self.bound
        return None if self.wanted is None or self.ratio is None else self.ratio >= self.wanted

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, with the medians."""
        medians = {
            f"{name}_median": statistics.median(runs) if runs else None
            for name, runs in (("ours", self.ours), ("theirs", self.theirs))
        }
        return {**vars(self), **medians, "ratio": self.ratio, "held": self.held}


def alternate(repeat: int, ours: Measure, theirs: Measure | None) -> tuple[dict[str, list[float]], ...]:
    """Return `repeat` measurements of each side, which alternate: (ours, theirs), with a list of numbers per name."""
    found = rounds(repeat, {"theirs": theirs or dict, "ours": ours})
    return found["ours"], found["theirs"]


def rounds(repeat: int, sides: Mapping[str, Measure]) -> dict[str, dict[str, list[float]]]:
    """Return `repeat` measurements of each side, in this order and reversed by turns: per side as `alternate`."""
    found: dict[str, dict[str, list[float]]] = {side: {} for side in sides}
    for turn in range(repeat):
        for side in list(sides)[:: 1 if turn % 2 == 0 else -1]:
            for name, number in sides[side]().items():
                found[side].setdefault(name, []).append(number)
    return found


def run(command: Sequence[str], env: Mapping[str, str] | None = None, folder: Path | None = None) -> dict[str, float]:
    """Return wall time, processor time and peak memory of a process. Raises `Failed` with the end of its stderr."""
    # The peak memory of a process starts at that of its parent, so the small `spawn` starts it instead of this one.
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
    """Run ``SUBJECT.peers.NAME``, and return the JSON of its last line, with the wall time of its process as ``wall``.

    The module runs from the root with ``-m``: as a script, `webdataset.py` would import itself instead of webdataset.
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
    """Return the command line that runs Feedmill's command as the installed script does."""
    return [sys.executable, "-c", "from feedmill.__main__ import main; main()", *map(str, arguments)]
