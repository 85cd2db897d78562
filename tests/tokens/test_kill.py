"""``kill -9`` at any moment, and the same command again: the bytes of a run that nobody disturbed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from feedmill.formats.tokens.pbin import write_pbin
from feedmill.storage import LocalStore
from feedmill.storage.staging import TEMPORARY_SUFFIX
from helpers import warm
from helpers.durations import slow_but

JOBS = {
    "merge": "tokens merge a.pbin b.pbin a.pbin out/m.ds",
    "shuffle": "tokens shuffle a.pbin b.pbin out/s.pbin --seed 3",
    "shuffle many": "tokens shuffle a.pbin b.pbin out/s_{part}.ds --seed 3 --max-tokens-per-file 500000",
    "merge many": "tokens merge a.pbin b.pbin out/{part:3}_m.ds --order datatrove --seed 1 --max-tokens-per-file 4e5",
    "shuffle by processes": "tokens shuffle a.pbin b.pbin out/s.pbin --seed 3 --max-file-size 900kB --workers 2",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    random_numbers = np.random.default_rng(5)
    for name in ("a", "b"):
        lengths = random_numbers.integers(1, 400, 15_000)
        with write_pbin(LocalStore(folder), f"{name}.pbin", 2) as writer:
            writer.add(random_numbers.integers(0, 1 << 16, int(lengths.sum()), np.uint16), lengths)
    return folder


def command(job: str) -> list[str]:
    return [sys.executable, "-c", "from feedmill.cli.app import main; main()", *JOBS[job].split()]


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.endswith(TEMPORARY_SUFFIX)
    }


def folder_with(inputs: Path, folder: Path) -> Path:
    (folder / "out").mkdir(parents=True)
    for name in ("a.pbin", "b.pbin"):
        os.link(inputs / name, folder / name)
    return folder


def killed_and_finished(job: str, inputs: Path, tmp_path: Path, times: int) -> None:
    whole = folder_with(inputs, tmp_path / "whole")
    begin = time.perf_counter()
    warm.run(command(job), cwd=whole, check=True, capture_output=True)
    took = time.perf_counter() - begin
    dice = random.Random(job)
    hits = 0
    for number in range(times):
        folder = folder_with(inputs, tmp_path / f"killed{number}")
        # Half of the kills come while files are being written, which is the end of a short command.
        first = [0.0, 0.5][number % 2]
        with warm.Popen(command(job), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            last = number == times - 1 and not hits  # on a machine that became idle meanwhile, all others came late
            time.sleep(0 if last else took * dice.uniform(first, 1.0))
            hits += process.poll() is None
            process.send_signal(signal.SIGKILL)
        again = warm.run(command(job), cwd=folder, capture_output=True, text=True)
        if again.returncode:  # it had ended, or only its last word was missing: what is there is whole
            assert "already exists" in again.stderr
        wanted, found = content(whole / "out"), content(folder / "out")
        manifests = [name for name in wanted if name.endswith(".feedmill.json")]
        assert set(found) == set(wanted)
        assert [name for name in wanted if wanted[name] != found[name] and name not in manifests] == []
    assert hits


@pytest.mark.parametrize("job", slow_but(JOBS, "merge many", "shuffle", "shuffle by processes"))
def test_killed_a_few_times(job: str, inputs: Path, tmp_path: Path) -> None:
    killed_and_finished(job, inputs, tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_killed_fifty_times(job: str, inputs: Path, tmp_path: Path) -> None:
    killed_and_finished(job, inputs, tmp_path, 50)
