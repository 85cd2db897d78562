"""``feedmill compat dolma tokens`` killed at random moments: the same command finishes it with the same bytes."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import warm
from helpers.dolma_golden import DOLMA

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def corpus(folder: Path, files: int, documents: int) -> None:
    rng = random.Random(3)
    for file in range(files):
        rows = [
            json.dumps({"id": f"{file}-{n}", "text": " ".join(rng.choices(WORDS, k=rng.randint(1, 200)))})
            for n in range(documents)
        ]
        data = "\n".join(rows).encode()
        (folder / f"{file}.jsonl{'.gz' if file % 2 else ''}").write_bytes(gzip.compress(data) if file % 2 else data)


def start(folder: Path, out: str) -> subprocess.Popen[bytes]:
    words = [
        "compat",
        "dolma",
        "tokens",
        "--documents",
        "*.jsonl",
        "*.jsonl.gz",
        "--destination",
        out,
        "--processes",
        "2",
    ]
    words += ["--tokenizer.name_or_path", str(DOLMA / "tokenizer/tokenizer.json"), "--tokenizer.eos_token_id", "2"]
    words += ["--max_size", "150000", "--batch_size", "500"]
    program = (
        "import feedmill.tokens.job as j; j._FEW = 0; import feedmill.tokens.dolma_output as t;"
        "t.GroupedOptions.__dataclass_fields__['unit_bytes'].default = 100_000;"
        "from feedmill.cli.app import main; main()"
    )
    command = [sys.executable, "-c", program, *words]
    return warm.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def kept(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.endswith((".npy", ".csv.gz"))}


def kill_often(tmp_path: Path, times: int, documents: int, seed: int) -> None:
    corpus(tmp_path, 5, documents)
    begin = time.monotonic()
    whole = start(tmp_path, "whole")
    assert whole.communicate()[0] and whole.returncode == 0
    took = time.monotonic() - begin
    want = kept(tmp_path / "whole")
    assert len(want) > 4
    rng, survived = random.Random(seed), 0
    for number in range(times):
        begin, process = time.monotonic(), start(tmp_path, f"out{survived}")
        last = survived == number == times - 1  # on a machine that became idle meanwhile, all others came late
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0 if last else rng.uniform(0.2, 1.05) * took)
            took = min(took, time.monotonic() - begin)  # the first run was a slow one
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL) if number % 2 else process.kill()
        process.communicate()
        if process.returncode == 0:  # it was done: begin another, so that more kills hit something
            assert kept(tmp_path / f"out{survived}") == want
            survived += 1
    for _ in range(20):
        process = start(tmp_path, f"out{survived}")
        said = process.communicate()[0].decode()
        if process.returncode == 0:
            break
        assert "another run" in said, said
        time.sleep(0.5)
    assert process.returncode == 0, said
    out = tmp_path / f"out{survived}"
    assert kept(out) == want
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]
    assert survived < times


def test_kill_a_few_times(tmp_path: Path) -> None:
    kill_often(tmp_path, 4, 400, 1)


@pytest.mark.slow
def test_kill_fifty_times(tmp_path: Path) -> None:
    kill_often(tmp_path, 50, 2_000, 2)
