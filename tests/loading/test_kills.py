"""Runs that are killed at any moment and continue in any layout: nothing lost, nothing twice, every bit the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.formats.tokens.ds import write_ds
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.planning.recipes.recipe import Recipe
from feedmill.storage import LocalStore
from helpers import warm

TESTS = Path(__file__).parents[1]
RECIPE = """
seed: 5
samples: 6_000
pack: {seq_len: 128}
blend:
  - {path: web.pbin, name: web, shuffle: global}
  - {path: code.ds, name: code, shuffle: {kind: block, block: 64, window: 4}}
stages:
  - {samples: 1_000, weights: {web: 0.9, code: 0.1}}
  - {samples: 2_000, weights: {web: 0.5, code: 0.5}}
  - {weights: {web: 0.2, code: 0.8}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kills")
    rng, store = np.random.default_rng(1), LocalStore(root)
    for name, write in (("web.pbin", write_pbin), ("code.ds", write_ds)):
        lengths = rng.integers(1, 200, 2_000)
        with write(store, name, 2, **({"tokenizer_name": "t"} if name == "code.ds" else {})) as writer:
            writer.add(rng.integers(0, 60_000, int(lengths.sum())).astype(np.uint16), lengths)
    return root


def write_recipe(folder: Path, samples: int) -> None:
    (folder / "recipe.yaml").write_text(RECIPE.replace("6_000", str(samples)))


class Run:
    """One leg: all ranks of a layout, from a state."""

    def __init__(self, folder: Path, out: Path, layout: dict[str, Any], state: dict[str, Any] | None) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent / 'src'}{os.pathsep}{TESTS}"}
        self.logs = [out / f"rank-{rank}.jsonl" for rank in range(layout["world_size"])]
        out.mkdir()
        self.ranks = []
        for rank, log in enumerate(self.logs):
            given = {**layout, "recipe": str(folder / "recipe.yaml"), "rank": rank, "log": str(log), "state": state}
            command = [sys.executable, str(TESTS / "helpers" / "training_rank.py"), json.dumps(given)]
            self.ranks.append(warm.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True))

    def lines(self) -> list[list[dict[str, Any]]]:
        found = []
        for log in self.logs:
            lines = log.read_text().split("\n")[:-1] if log.exists() else []
            found.append([json.loads(line) for line in lines])
        return found

    def kill(self, rng: random.Random, workers: bool) -> None:
        """End the run, or one worker process of it, with SIGKILL."""
        victims = [pid for rank in self.ranks for pid in children(rank.pid)] if workers else []
        if victims:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(victims), signal.SIGKILL)
            time.sleep(rng.random())
        for rank in rng.sample(self.ranks, len(self.ranks)):
            rank.kill()
        self.wait()

    def wait(self) -> list[int]:
        for rank in self.ranks:
            _, message = rank.communicate()
            assert rank.returncode in (0, -signal.SIGKILL), message.decode()
        return [rank.returncode for rank in self.ranks]


def children(parent: int) -> list[int]:
    """Worker processes: children of the fork server, which is a child of the rank."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                below.setdefault(int((entry / "stat").read_text().rpartition(")")[2].split()[1]), []).append(
                    int(entry.name)
                )
    return [pid for server in below.get(parent, []) for pid in below.get(server, [])]


def rows_of(lines: list[list[dict[str, Any]]], end: int) -> dict[int, str]:
    """Position -> digest of what all ranks saw before `end`; a position that is seen twice fails."""
    found: dict[int, str] = {}
    for line in (line for mine in lines for line in mine):
        for position, digest in enumerate(line["rows"], line["first"]):
            if position < end:
                assert found.setdefault(position, digest) == digest and len(found)
    return found


def check(folder: Path, out: Path, kills: int, seed: int) -> int:
    """How many times the run was killed before it came to its end."""
    rng = random.Random(seed)
    total = Recipe.load(folder / "recipe.yaml").plan().length
    assert total is not None
    calm = Run(folder, out / "calm", {"world_size": 1, "batch_size": 64, "workers": 0, "processes": False}, None)
    assert calm.wait() == [0]
    wanted = rows_of(calm.lines(), total)
    assert sorted(wanted) == list(range(total))
    found: dict[int, str] = {}
    state: dict[str, Any] | None = None
    for leg in range(kills + 1):
        layout = {
            "world_size": rng.randint(1, 3),
            "batch_size": rng.choice([1, 2, 3, 5, 8]),
            "workers": rng.randint(0, 2),
            "processes": rng.random() < 0.6,
        }
        layout["processes"] &= layout["workers"] > 0
        if leg == kills:
            layout["batch_size"] = 32
        run = Run(folder, out / f"leg-{leg}", layout, state)
        if leg < kills:
            deadline = time.monotonic() + 240
            while not all(run.lines()) and all(rank.poll() is None for rank in run.ranks):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(rng.random() * 0.05)
            run.kill(rng, rng.random() < 0.4)
        else:
            assert set(run.wait()) == {0}
        lines = run.lines()
        ends = [mine[-1]["state"]["position"] if mine else -1 for mine in lines]
        if min(ends) > 0:  # the last step that every rank has finished is the checkpoint
            state = next(line["state"] for line in lines[ends.index(min(ends))][-1:])
        before = len(found)
        mine = rows_of(lines, 0 if state is None else state["position"])
        assert not mine.keys() & found.keys() and min(mine, default=before) == before
        found |= mine
        if state is not None and state["position"] >= total:
            break
    assert found == wanted
    return leg


def test_killed_a_few_times(folder: Path, tmp_path: Path) -> None:
    write_recipe(folder, 6_000)
    assert check(folder, tmp_path, 3, 1) >= 1


@pytest.mark.slow
def test_killed_a_hundred_times(folder: Path, tmp_path: Path) -> None:
    write_recipe(folder, 600_000)
    assert check(folder, tmp_path, 100, 2) == 100
