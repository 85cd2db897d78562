"""Run the programs of `examples/trainers` as users do: on several ranks, killed in the middle, and resumed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

from feedmill.formats.tokens.pbin import write_pbin
from feedmill.storage import LocalStore
from helpers.media_files import at_its_priority

PROGRAMS = Path(__file__).parents[2] / "examples" / "trainers"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")

Steps = dict[int, tuple[list[int], float]]


def write_recipe(folder: Path, *, samples: int | None = None) -> Path:
    """Write documents of 97 ids and a recipe over them, shuffled anew in each epoch; endless by default."""
    lines = [json.dumps({"id": n, "text": f"document {n} " * (1 + n % 7)}) for n in range(97)]
    (folder / "docs.jsonl").write_text("\n".join(lines) + "\n")
    end = "" if samples is None else f"samples: {samples}\n"
    (folder / "recipe.yaml").write_text(f"seed: 1\n{end}source: {{path: docs.jsonl, shuffle: global}}\n")
    return folder / "recipe.yaml"


def write_data(folder: Path, kind: str) -> Path:
    """Write documents of 3 to 40 byte tokens, and a recipe of rows of 33: `packs`, or `windows` across documents.

    For a `robot`, LeRobot writes a dataset of 8 episodes of 20 frames, and windows have 8 actions. Frames whose
    windows leave the episode are left out: LeRobot divides each rank's loss by the steps without padding.
    """
    if kind == "robot":
        _write_robot(folder / "robot")
        frames = "{where: {frame_index: {max: 12}}, windows: {action: [0, 7]}}"
        source = f"{{path: robot, decode: torchrgb8, shuffle: global, episodes: {frames}}}"
        (folder / "recipe.yaml").write_text(f"seed: 1\nsource: {source}\n")
        return folder / "recipe.yaml"
    rng = np.random.default_rng(0)
    with write_pbin(LocalStore(folder), "docs.pbin", 2) as writer:
        lengths = rng.integers(3, 41, 300)
        writer.add(rng.integers(0, 256, int(lengths.sum())), lengths)
    source, pack = ("windows: 32, ", "") if kind == "windows" else ("", "pack: {seq_len: 33}\n")
    (folder / "recipe.yaml").write_text(f"seed: 1\nsource: {{path: docs.pbin, {source}shuffle: global}}\n{pack}")
    return folder / "recipe.yaml"


def _write_robot(folder: Path) -> None:
    from lerobot.datasets import LeRobotDataset  # type: ignore[import-not-found]

    axes = ["height", "width", "channels"]
    features: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": None},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        "observation.images.top": {"dtype": "video", "shape": (64, 64, 3), "names": axes},
    }
    rng = np.random.default_rng(0)
    dataset = LeRobotDataset.create("local/robot", 10, features, root=folder, use_videos=True)
    for _ in range(8):
        for _ in range(20):
            numbers = rng.normal(size=5).astype(np.float32)
            picture = np.full((64, 64, 3), rng.integers(256, size=3), np.uint8)
            frame = {"observation.state": numbers[:3], "action": numbers[3:], "observation.images.top": picture}
            dataset.add_frame({**frame, "task": "move"})
        with at_its_priority():
            dataset.save_episode()
    dataset.finalize()


class Program:
    """One program of `examples/trainers`; its checkpoints are in `folder`, and each run has a log of its own."""

    def __init__(self, name: str, folder: Path, *, samples: int | None = None, data: str | None = None) -> None:
        self.name, self.folder = name, folder
        self.recipe = write_data(folder, data) if data else write_recipe(folder, samples=samples)

    def start(self, run: str, log: str, *options: object, ranks: int = 1) -> subprocess.Popen[str]:
        launcher = [*TORCHRUN, f"--nproc-per-node={ranks}"] if ranks > 1 else []
        command = [sys.executable, "-W", "ignore", *launcher, str(PROGRAMS / f"{self.name}.py"), str(self.recipe)]
        own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
        own |= {"DO_NOT_TRACK": "1", "AXOLOTL_DO_NOT_TRACK": "1"}  # no report of a test leaves the machine
        return subprocess.Popen(
            [*command, "--folder", run, "--losses", log, *map(str, options)],
            cwd=self.folder,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, run: str, log: str, *options: object, ranks: int = 1) -> Steps:
        """Run to the end, and return the steps."""
        program = self.start(run, log, *options, ranks=ranks)
        try:
            out, _ = program.communicate(timeout=1200)
        finally:
            end(program)
        assert program.returncode == 0, out[-4000:]
        return self.steps(log)

    def kill(self, run: str, log: str, after: int, *options: object, ranks: int = 1) -> Steps:
        """Run until a step is in the log, then kill every process of the run by SIGKILL."""
        program = self.start(run, log, *options, "--pause", 0.05, ranks=ranks)
        deadline = time.monotonic() + 1200
        try:
            while max(self.steps(log), default=0) < after:
                assert time.monotonic() < deadline
                if program.poll() is not None:
                    pytest.fail(f"the run ended before it was killed: {program.communicate()[0][-4000:]}")
                time.sleep(0.02)
        finally:
            end(program)
        return self.steps(log)

    def steps(self, log: str) -> Steps:
        """Return the sorted ids and the mean loss of each step over all ranks."""
        found: dict[int, list[tuple[list[int], float]]] = defaultdict(list)
        for path in (self.folder / log).glob("*.jsonl"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    entry = json.loads(line)
                    found[entry["step"]].append((entry["ids"], entry["loss"]))
        merged = {}
        for step, parts in found.items():
            ids = [number for part, _ in parts for number in part]
            merged[step] = (sorted(ids), sum(len(part) * loss for part, loss in parts) / len(ids))
        return merged


def end(program: subprocess.Popen[str]) -> None:
    """Kill every process of a run by SIGKILL, if it has not ended."""
    if program.poll() is None:
        launcher = psutil.Process(program.pid)
        for process in [*launcher.children(recursive=True), launcher]:  # torchrun's ranks have sessions of their own
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        program.communicate()


def assert_equal(whole: Steps, killed: Steps, resumed: Steps, every: int) -> None:
    """Check that a killed run and the one that resumed it saw what one undisturbed run saw, step by step."""
    first = min(resumed)
    assert 1 < first <= max(killed) + 1 and (first - 1) % every == 0, "it resumed after a checkpoint"
    assert max(resumed) == max(whole) and sorted(resumed) == list(range(first, max(whole) + 1))
    size = len(whole[1][0])
    complete = {step: seen for step, seen in killed.items() if len(seen[0]) == size}
    assert len(complete) >= len(killed) - 2
    for leg in (complete, resumed):
        for step, (ids, loss) in leg.items():
            assert ids == whole[step][0], f"other samples in step {step}"
            assert loss == pytest.approx(whole[step][1], rel=1e-5, abs=1e-5), f"another loss in step {step}"
