"""Every kernel gives the same bits at each level of processor, and as numba compiles it from the same source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.durations import needs

ROOT = Path(__file__).parents[2]
needs("numba")


def compared(*options: str) -> str:
    """What a run of tests with compared kernels printed last."""
    command = [sys.executable, "-m", "helpers.compared_kernels", "-q", "-n0", "-p", "no:cacheprovider", *options]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=3000
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def test_some_kernels() -> None:
    chosen = [f"tests/kernels/{name}" for name in ("hashing/test_crc32c.py", "jsonl/test_plainrows.py")]
    assert compared(*chosen) == "compared 2 kernels; not called: none"


@pytest.mark.slow
def test_all_kernels() -> None:
    rooms = [f"tests/kernels/{name}" for name in ("files", "hashing", "jsonl", "order", "text")]
    files = [f"tests/kernels/test_{name}.py" for name in ("bos_eos", "edges", "pixels", "rows")]
    others = [
        "tests/formats/test_ranges.py",
        "tests/formats/test_tar_samples.py",
        "tests/formats/tokens/test_windows.py",
    ]
    last = compared("--every", "-m", "not slow", "--hypothesis-profile=quick", *rooms, *files, *others)
    assert last.endswith("not called: none")
