"""A real mount, where this machine has FUSE and lets us use it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import feedmill as fm
from helpers.written_datasets import samples

MISSING = next(
    (
        why
        for missing, why in (
            (not os.path.exists("/dev/fuse"), "there is no /dev/fuse"),
            (not os.access("/dev/fuse", os.R_OK | os.W_OK), "/dev/fuse may not be used"),
            (shutil.which("fusermount3") is None, "fusermount3 is not installed"),
        )
        if missing
    ),
    None,
)
pytest.importorskip("mfusepy", exc_type=(ImportError, OSError)) if MISSING is None else None
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"no FUSE: {MISSING}")

_PROGRAM = "from feedmill.cli.app import main; main()"


def start(root: Path, place: Path, *options: str) -> subprocess.Popen[str]:
    fm.write(str(root), samples(300), max_shard_samples=100)
    place.mkdir()
    command = [sys.executable, "-c", _PROGRAM, "mount", str(root), str(place), *options]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not os.path.ismount(place) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if child.poll() is not None:
        pytest.skip(f"this machine does not let us mount: {child.communicate()[1].strip()[-200:]}")
    return child


@pytest.fixture(params=["flat", "folders"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    place = tmp_path / "mnt"
    child = start(tmp_path / "d", place, *(["-s"] if request.param == "folders" else []))
    yield place, request.param
    subprocess.run(["fusermount3", "-u", str(place)], check=True)
    assert child.wait(120) == 0


def test_programs_see_the_files(mounted: tuple[Path, str]) -> None:
    place, kind = mounted
    wanted = {s["__key__"]: s["bin"] for s in samples(300)}

    def path(key: str) -> Path:
        return place / (f"{key}.bin" if kind == "flat" else f"{key}/{key}.bin")

    assert len(os.listdir(place)) == (600 if kind == "flat" else 300)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda key: path(key).read_bytes(), wanted)) == list(wanted.values())
    with open(path("s00009"), "rb") as f:
        f.seek(100)
        assert f.read(7) == wanted["s00009"][100:107]
    assert subprocess.run(["cmp", path("s00001"), path("s00001")], check=False).returncode == 0
    with pytest.raises(OSError, match="Read-only"):
        (place / "new").write_bytes(b"x")
    with pytest.raises(OSError, match="Read-only"):
        path("s00001").unlink()
    with pytest.raises(FileNotFoundError):
        (place / "nope.txt").read_bytes()


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_without_an_error(by: signal.Signals, tmp_path: Path) -> None:
    place = tmp_path / "mnt"
    child = start(tmp_path / "d", place)
    child.send_signal(by)
    _, said = child.communicate(timeout=180)
    assert child.returncode == 0 and "error" not in said
    assert not os.path.ismount(place)
