"""Killed at random moments, the same command finishes the job, with the bytes of an undisturbed run."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import warm
from helpers.tokenizer_data import tokenizer_file, write_lines

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
OUTPUTS = (".pbin", ".ds", ".ds.index", ".ds.metadata", ".bin", ".idx", ".npy", ".csv.gz")
NAMES = ("whole", "out")


def source(folder: Path, documents: int) -> Path:
    rng = random.Random(5)
    texts = (" ".join(rng.choices(WORDS, k=rng.randint(1, 300))) for _ in range(documents))
    return write_lines(folder / "a.jsonl", texts)


def start(source: Path, out: Path, workers: int, numbered: bool = False) -> subprocess.Popen[bytes]:
    words = ["tokenize", source, "-t", tokenizer_file("tok1k"), "-o", out / "web" if numbered else out]
    if numbered:
        words += ["--to", "pbin,ds,megatron,dolma", "--max-file-size", "100kB"]
    else:
        words += ["--to", "pbin,ds,megatron,dolma,vla-text", "--seq-len", "100", "--shard-sequences", "700"]
    program = (
        "import feedmill.tokens.options as t; t.Tokenize.__dataclass_fields__['unit_bytes'].default = 40_000;"
        "import feedmill.tokens.job as n; n._FEW = 0;"
        "from feedmill.cli.app import main; main()"
    )
    command = [sys.executable, "-c", program, *map(str, words), "--workers", str(workers)]
    return warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def finish(process: subprocess.Popen[bytes]) -> str:
    said = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 0, said
    return said


def kill_often(tmp_path: Path, times: int, documents: int, seed: int, numbered: bool = False) -> None:
    path = source(tmp_path, documents)
    begin = time.monotonic()
    finish(start(path, tmp_path / "whole", 2, numbered))
    took = time.monotonic() - begin
    rng = random.Random(seed)
    out, survived = tmp_path / "out", 0
    for number in range(times):
        begin, process = time.monotonic(), start(path, out, rng.choice([1, 2]), numbered)
        last = survived == number == times - 1  # on a machine that became idle meanwhile, all others came late
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0 if last else rng.uniform(0.2, 1.05) * took)
            took = min(took, time.monotonic() - begin)  # the first run was a slow one
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL) if rng.random() < 0.5 else process.kill()
        process.communicate()
        if process.returncode == 0:  # it was done: begin again, so that more kills hit something
            survived += 1
            check(tmp_path, numbered)
            for left in tmp_path.glob("out*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    time.sleep(0.2)  # orphans end by themselves, and release the lock
    for _ in range(20):
        process = start(path, out, 2, numbered)
        said = process.communicate()[0].decode()
        if process.returncode == 0:
            break
        assert "another run" in said, said
        time.sleep(0.5)
    assert process.returncode == 0, said
    check(tmp_path, numbered)
    assert survived < times


def check(folder: Path, numbered: bool) -> None:
    if numbered:
        found = [{p.name: p.read_bytes() for p in (folder / n).iterdir() if p.suffix != ".json"} for n in NAMES]
        assert found[0] == found[1] and len(found[0]) > 20
        return
    for suffix in OUTPUTS:
        whole, out = folder / f"whole{suffix}", folder / f"out{suffix}"
        assert out.read_bytes() == whole.read_bytes(), suffix
    shards = [{p.name: p.read_bytes() for p in (folder / name).iterdir() if p.name[-5:] != ".json"} for name in NAMES]
    assert shards[0] == shards[1] and len(shards[0]) > 2
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".out")]


def test_kill_a_few_times(tmp_path: Path) -> None:
    kill_often(tmp_path, 2, 2_000, 1)


def test_kill_while_numbered_files_are_written(tmp_path: Path) -> None:
    kill_often(tmp_path, 2, 2_000, 3, numbered=True)


@pytest.mark.slow
def test_kill_numbered_files_thirty_times(tmp_path: Path) -> None:
    kill_often(tmp_path, 30, 10_000, 4, numbered=True)


@pytest.mark.slow
def test_kill_fifty_times(tmp_path: Path) -> None:
    kill_often(tmp_path, 50, 10_000, 2)
