"""A run whose mixture changes three times and whose sources grow twice, killed at random, each time in another layout.

And one of packed rows of cells, with ramps.

It must see what the same run sees undisturbed, with the same changes at the same positions. Global batches are compared
as sets: which rank has which of their samples is up to the layout.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.storage import LocalStore
from helpers import warm
from helpers.mixture_rank import steps

TESTS = Path(__file__).parents[1]
SIZES = {"docs": 300, "code": 170, "web": 500, "math": 40}
FIRST = {"docs": 0.7, "code": 0.3}
SECOND = {"docs": 0.5, "code": 0.2, "web": 0.3}
THIRD = {"docs": 0.1, "code": 0.5, "web": 0.4}
FOURTH = {"web": 0.5, "math": 0.5}

State = dict[str, Any] | None
Lines = list[list[dict[str, Any]]]

PHASES: list[tuple[float, list[dict[str, float]], dict[str, int], dict[str, bool]]] = [
    # until, weights of the stages so far, how many samples sources grow by at its start, what must be allowed there
    (0.2, [FIRST], {}, {}),
    (0.4, [FIRST, SECOND], {}, {"allow_change": True}),
    (0.5, [FIRST, SECOND], {"docs": 90}, {"allow_append": True}),
    (0.7, [FIRST, SECOND, THIRD], {"code": 35, "web": 1}, {"allow_append": True, "allow_change": True}),
    (1.0, [FIRST, SECOND, THIRD, FOURTH], {}, {"allow_change": True}),
]
CHANGES = [0.2, 0.5, 0.7]


class Folder:
    """The data and the recipe of a run, which change on disk."""

    phases: ClassVar[list[dict[str, bool]]] = [flags for *_, flags in PHASES]

    def __init__(self, root: Path, total: int) -> None:
        root.mkdir()
        self.root, self.total = root, total
        self.sizes = dict.fromkeys(SIZES, 0)
        for name, size in SIZES.items():
            self.grow(name, size)

    def grow(self, name: str, count: int) -> None:
        with (self.root / f"{name}.jsonl").open("a") as lines:
            for number in range(self.sizes[name], self.sizes[name] + count):
                lines.write(json.dumps({"text": f"{name} {number}"}) + "\n")
        self.sizes[name] += count

    def phase(self, number: int) -> int:
        """Begin a phase: its data and its recipe; returns where it ends."""
        until, weights, grown, _ = PHASES[number]
        for name, count in grown.items():
            self.grow(name, count)
        begins = [0, *(int(change * self.total) for change in CHANGES)]
        stages: list[dict[str, Any]] = [{"weights": each} for each in weights]
        for stage, begin, end in zip(stages[:-1], begins, begins[1:], strict=False):
            stage["samples"] = end - begin
        names = dict.fromkeys(name for each in weights for name in each)
        # The sources stand in another order than in the recipe before; the others are new, and not drawn before.
        recipe: dict[str, Any] = {"seed": 11, "samples": int(until * self.total)}
        if len(weights) == 1:
            recipe["blend"] = [{"path": f"{name}.jsonl", "weight": weight} for name, weight in weights[0].items()]
        else:
            shown = sorted(names, key=lambda name: (name in FIRST, list(names).index(name)))
            recipe |= {"blend": [{"path": f"{name}.jsonl"} for name in shown], "stages": stages}
        (self.root / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        return int(until * self.total)


class Cells(Folder):
    """Packed rows of cells: their weights change twice, and then move to others."""

    phases: ClassVar[list[dict[str, bool]]] = [{}, {"allow_change": True}, {"allow_change": True}]

    def __init__(self, root: Path, total: int) -> None:
        root.mkdir()
        self.root, self.total = root, total
        lengths = np.random.default_rng(0).integers(1, 60, 2_000)
        with write_pbin(LocalStore(root), "tok.pbin", 4) as out:
            out.add(np.arange(lengths.sum(), dtype=np.uint32), lengths)
        self.by = [{"column": "tokens", "quantiles": 4}]
        fm.mixture.cells(root / "tok.pbin", by=self.by, progress=False)

    def phase(self, number: int) -> int:
        end = [int(0.3 * self.total), int(0.6 * self.total), self.total][number]
        weights = [(4, 3, 2, 1), (1, 1, 1, 2), (0, 5, 1, "1/7"), (1, 1, 1, 1)]
        stages: list[dict[str, Any]] = [
            {"weights": {f"tokens={cell}": weight for cell, weight in enumerate(row)}}
            for row in weights[: [1, 2, 4][number]]
        ]
        for stage in stages[:-1]:  # a row has up to 4.5 documents in the mean, and packing looks ahead
            stage["samples"] = self.total * 3 // 2 + 100
        if number == 2:
            stages[2] |= {"ramp": "cosine", "samples": self.total // 4}
        blend = {"cells": {"of": "tok.pbin", "by": self.by}}
        pack = {"seq_len": 96, "buffer": 64, "rows": end}
        recipe = {"seed": 11, "blend": blend, "stages": stages, "pack": pack}
        (self.root / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        return end


Leg = Callable[[Folder, dict[str, Any], State, dict[str, bool], random.Random, bool], Lines]


def in_process(
    folder: Folder, layout: dict[str, Any], state: State, flags: dict[str, bool], rng: random.Random, killed: bool
) -> Lines:
    """All ranks in this process, left at some step with batches under way."""
    count = rng.randint(1, 12) if killed else None
    found = []
    for rank in range(layout["world_size"]):
        given = {**layout, "rank": rank, "recipe": str(folder.root / "recipe.yaml"), "processes": False}
        run = steps(**given, state=state, flags=flags)
        found.append([json.loads(json.dumps(line)) for line in islice(run, count)])
        run.close()
        if count:
            count = max(1, count - rng.randint(0, 1))  # ranks do not die at the same step
    return found


class Processes:
    """All ranks as processes of their own, killed by SIGKILL."""

    def __init__(self, logs: Path) -> None:
        self.logs, self.legs = logs, 0

    def __call__(
        self,
        folder: Folder,
        layout: dict[str, Any],
        state: State,
        flags: dict[str, bool],
        rng: random.Random,
        killed: bool,
    ) -> Lines:
        self.legs += 1
        environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent / 'src'}{os.pathsep}{TESTS}"}
        logs, ranks = [], []
        for rank in range(layout["world_size"]):
            logs.append(self.logs / f"leg-{self.legs}-{rank}.jsonl")
            given = {**layout, "rank": rank, "recipe": str(folder.root / "recipe.yaml"), "state": state, "flags": flags}
            given |= {"log": str(logs[-1]), "pause": 0.02 if killed else 0}
            command = [sys.executable, str(TESTS / "helpers" / "mixture_rank.py"), json.dumps(given)]
            ranks.append(warm.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True))
        if killed:
            deadline = time.monotonic() + 120
            while not all(map(_lines, logs)) and all(rank.poll() is None for rank in ranks):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            time.sleep(rng.random() * 0.3)
            for rank in rng.sample(ranks, len(ranks)):
                rank.kill()
        for rank in ranks:
            _, message = rank.communicate()
            assert rank.returncode == 0 or killed, message.decode()
            assert rank.returncode in (0, -9), message.decode()
        return [_lines(log) for log in logs]


def _lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().split("\n")[:-1]] if log.exists() else []


def undisturbed(folder: Folder) -> list[str]:
    """What a run of one rank sees, phase after phase."""
    seen: list[str] = []
    state: State = None
    layout = {"world_size": 1, "batch_size": 7, "workers": 0}
    for number, flags in enumerate(folder.phases):
        end = folder.phase(number)
        (lines,) = in_process(folder, layout, state, flags, random.Random(0), False)
        seen += [text for line in lines for text in line["seen"]]
        state = lines[-1]["state"]
        assert state["position"] == end == len(seen)
    return seen


def check(tmp_path: Path, total: int, kills: int, leg: Leg, seed: int, least: int, kind: type[Folder] = Folder) -> None:
    rng = random.Random(seed)
    wanted = undisturbed(kind(tmp_path / "calm", total))
    folder = kind(tmp_path / "killed", total)
    state: State = None
    # Kills fall into phases at random, so that some phases see none and others many.
    deaths = [rng.randrange(len(folder.phases)) for _ in range(kills)]
    checked = interrupted = 0
    for number, flags in enumerate(folder.phases):
        end = folder.phase(number)
        fresh = bool(flags)  # whether the state is of the phase before
        for killed in [True] * deaths.count(number) + [False]:
            begin = 0 if state is None else state["position"]
            left = end - begin
            layout = {
                "world_size": rng.randint(1, 4),
                "batch_size": rng.randint(1, 9) if killed else 64,
                "workers": rng.randint(0, 2),
            }
            layout["processes"] = layout["workers"] > 0 and rng.random() < 0.3
            size = layout["world_size"] * layout["batch_size"]
            if fresh and begin:
                with pytest.raises(ConfigError, match="the plan is not the one"):
                    in_process(folder, {**layout, "workers": 0}, state, {}, rng, True)
            lines = leg(folder, layout, state, flags if fresh else {}, rng, killed)
            ended = all(mine and mine[-1].get("end") for mine in lines)
            done = -(-left // size) if ended else min(sum("end" not in line for line in mine) for mine in lines)
            for step in range(done):
                batch = [text for mine in lines if step < len(mine) for text in mine[step]["seen"]]
                first = begin + step * size
                assert sorted(batch) == sorted(wanted[first : min(first + size, end)]), (number, layout, step)
                checked += len(batch)
            assert ended or killed
            interrupted += killed and not ended and bool(done)
            if ended:
                state = lines[0][-1]["state"]
                assert state["position"] == end
            elif done:
                last = rng.randint(max(1, done - 2), done)  # the last checkpoint may be some steps old
                state = lines[0][last - 1]["state"]
                assert state["position"] == min(begin + last * size, end)
            fresh = fresh and not done and not ended
    assert state is not None and state["position"] == total and checked >= total
    assert interrupted >= least


def test_thirty_layouts_one_after_another(tmp_path: Path) -> None:
    check(tmp_path, 6_000, 30, in_process, 1, least=24)


@pytest.mark.slow
def test_killed_thirty_times(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    check(tmp_path, 40_000, 30, Processes(tmp_path / "logs"), 3, least=30)


def test_rows_of_cells_in_other_layouts(tmp_path: Path) -> None:
    check(tmp_path, 600, 8, in_process, 2, least=5, kind=Cells)


@pytest.mark.slow
def test_rows_of_cells_killed_fifty_times(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    check(tmp_path, 8_000, 50, Processes(tmp_path / "logs"), 4, least=45, kind=Cells)
