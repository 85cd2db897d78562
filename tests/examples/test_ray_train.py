"""examples/ray_train.py, as a user would run it: on two ranks, one of which is killed, and then on another number."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "ray_train.py"
pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A recipe; Ray starts on this machine, for these tests alone."""
    # In another process: once Ray is imported, the tests of the engine cannot set what it prints.
    found = subprocess.run([sys.executable, "-c", "import ray.train, torch"], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"Ray Train is not installed: pip install 'ray[train]' torch ({found.stderr.splitlines()[-1]})")
    lines = [json.dumps({"text": f"document {n} " * (1 + n % 7)}) for n in range(50)]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "recipe.yaml").write_text("seed: 1\nsource: {path: docs.jsonl, shuffle: global}\n")
    (tmp_path / "token").write_text(secrets.token_hex(16))  # otherwise Ray writes one to the home folder
    home = tempfile.mkdtemp(prefix="fmr", dir="/tmp")  # names of sockets have at most 107 bytes
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("RAY_TMPDIR", home)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")  # by default each report takes 2 s
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield tmp_path
    shutil.rmtree(home, ignore_errors=True)


def start(folder: Path, name: str, *options: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), "recipe.yaml", "--storage", "runs", "--name", name, *map(str, options)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(program: subprocess.Popen[str]) -> dict[str, float]:
    """The numbers of the last line."""
    out, err = program.communicate(timeout=240)
    assert program.returncode == 0, err
    found = re.search(
        r"step (?P<step>\d+): loss (?P<loss>[\d.]+), (?P<samples>\d+) samples seen; (?P<ranks>\d+) ranks,"
        r" resumed at step (?P<resumed>\d+)",
        out.splitlines()[-1],
    )
    assert found is not None, out
    return {name: float(value) for name, value in found.groupdict().items()}


def test_a_killed_worker_and_another_number_of_ranks_make_no_difference(folder: Path) -> None:
    """The loss after 400 steps depends on every sample of every step."""
    whole = end(start(folder, "whole", "--steps", 400, "--ranks", 1))
    program = start(folder, "pieces", "--steps", 300, "--ranks", 2, "--every", 10)
    kill_a_worker(program, folder / "runs/pieces")
    pieces = end(program)
    assert pieces["step"] == 300 and 0 < pieces["resumed"] < 300
    pieces = end(start(folder, "pieces", "--steps", 400, "--ranks", 1))
    assert pieces["resumed"] == 300 and pieces["samples"] == whole["samples"] == 6400
    assert pieces["loss"] == pytest.approx(whole["loss"], rel=1e-2)


def kill_a_worker(program: subprocess.Popen[str], run: Path) -> None:
    """Kill a worker of Ray Train when the run has recorded a checkpoint."""
    from ray._private.utils import psutil  # type: ignore[attr-defined]

    deadline, record = time.monotonic() + 120, run / "checkpoint_manager_snapshot.json"
    while not (record.exists() and "checkpoint_20" in record.read_text()):
        assert program.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(program.pid).children(recursive=True)
    workers = [child for child in children if "RayTrainWorker" in " ".join(child.cmdline())]
    assert len(workers) == 2
    os.kill(workers[-1].pid, signal.SIGKILL)
