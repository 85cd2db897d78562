"""Kernels index nothing out of bounds: their tests, and damaged inputs, in a build that checks every index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from feedmill.kernels.interface import symbol
from helpers.kernel_module import ROOT, compiled

MODULE = """
@kernel("i64[:], i64 -> i64")
def element(values, at):
    return values[at]


@kernel("i64[:,:], i64 -> i64")
def of_row(table, at):
    row = table[at]
    return row[0]


@kernel("out i64[:], i64[:], i64")
def copied(out, values, count):
    out[:count] = values


@kernel("i64[:], i64 -> i64")
def shifted(values, by):
    return values[1] << by
"""
CALL = """
import ctypes, struct, sys
import numpy as np
name, values = sys.argv[2], np.arange(6)
at = values.ctypes.data
words = {"element": (at, 6), "of_row": (at, 3, 2), "copied": (at, 6, at, 3), "shifted": (at, 6)}
given = (*words[name], *map(int, sys.argv[4:]))
library = ctypes.CDLL(sys.argv[1])
print(getattr(library, sys.argv[3])(struct.pack(f"{len(given)}q", *given)), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of all kernels, checked."""
    from kernels.build import build

    assert ROOT
    found = tmp_path_factory.mktemp("checked")
    build(found, checked=True, work=found / "work")
    return found


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    variables = {**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"}
    return subprocess.run(
        [sys.executable, "-m", "helpers.checked_kernels", str(folder), *command],
        cwd=ROOT, env=variables, capture_output=True, text=True, timeout=3000,
    )  # fmt: skip


def run_tests(folder: Path, *options: str) -> None:
    done = run(folder, "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-m", "not slow", *options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_the_checks_end_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled(MODULE, tmp_path, monkeypatch, checked=True)
    library = next(tmp_path.glob("*/kernels.checked.so"))
    for name, at, fine in (
        *(("element", at, 0 <= at < 6) for at in (0, 5, 6, -1)), *(("of_row", at, 0 <= at < 3) for at in (0, 2, 3, -1)),
        ("copied", 3, True), ("copied", 4, False), ("shifted", 63, True), ("shifted", 64, False),
    ):  # fmt: skip
        command = [sys.executable, "-c", CALL, str(library), name, symbol(made.__name__, name, 0)]
        done = subprocess.run([*command, str(at)], capture_output=True, text=True)
        assert (done.returncode == 0) == fine, (name, at, done)
        assert fine or done.returncode < 0


def test_some_tests_in_the_checked_build(folder: Path) -> None:
    run_tests(
        folder,
        "tests/kernels/hashing/test_crc32c.py",
        "tests/kernels/jsonl/test_spanrows.py",
        "--hypothesis-profile=quick",
    )


@pytest.mark.slow
def test_all_tests_of_kernels_in_the_checked_build(folder: Path) -> None:
    rooms = [f"tests/kernels/{name}" for name in ("files", "hashing", "jsonl", "order", "text")]
    files = [f"tests/kernels/test_{name}.py" for name in ("bos_eos", "edges", "pixels", "rows")]
    run_tests(folder, *rooms, *files)
    run_tests(folder, "tests/formats/tokens", "tests/curation/dedupe", "tests/curation/near", "tests/planning/packing")


@pytest.mark.slow
def test_damaged_inputs_in_the_checked_build(folder: Path) -> None:
    done = run(folder, "fuzzing", "--inputs", "5000", "--seed", "3")
    assert done.returncode == 0 and "FOUND" not in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]
