"""``kill -9`` at any moment of ``feedmill documents extract``; the same command writes the undisturbed files."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from feedmill.storage.staging import TEMPORARY_SUFFIX
from helpers import warm
from helpers.web_archives import archive, pages

pytest.importorskip("resiliparse")

COMMAND = ["documents", "extract", "crawl", "-o", "web", "-t", "char_length_v1", "--html-tagger", "cc_re", "--workers"]


def command(processes: int) -> list[str]:
    return [sys.executable, "-c", "from feedmill.cli.app import main; main()", *COMMAND, str(processes)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives, and their documents made undisturbed."""
    folder = tmp_path_factory.mktemp("whole")
    for k in range(5):
        archive(folder / f"crawl/{k}.warc.gz", pages(100 * (1 + k % 3), f"s{k}"))
    warm.run(command(2), cwd=folder, check=True, capture_output=True)
    return folder


def everything(folder: Path) -> dict[str, bytes]:
    """All files but the records, whose times differ; nothing may be left of killed runs."""
    files = [path for path in (folder / "web").rglob("*") if path.is_file()]
    assert not [path for path in files if path.name.endswith(TEMPORARY_SUFFIX)]
    kept = [path for path in files if path.suffix not in (".json", ".feedmill-lock")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def kill_and_finish(whole: Path, tmp_path: Path, times: int) -> None:
    wanted, dice, hits = everything(whole), random.Random(times), 0
    begin = time.perf_counter()
    (tmp_path / "timed").mkdir()
    shutil.copytree(whole / "crawl", tmp_path / "timed/crawl")
    warm.run(command(2), cwd=tmp_path / "timed", check=True, capture_output=True)
    took = time.perf_counter() - begin
    for number in range(times):
        folder = tmp_path / f"killed{number}"
        folder.mkdir()
        shutil.copytree(whole / "crawl", folder / "crawl")
        for _ in range(2):
            with warm.Popen(
                command(1 + number % 2), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process:
                time.sleep(took * dice.uniform(0.0 if not hits else 0.4, 0.9))
                hits += process.poll() is None
                process.send_signal(signal.SIGKILL)
        again = warm.run(command(2), cwd=folder, capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
        assert everything(folder) == wanted
    assert hits and len(wanted) == 20


def test_a_killed_run_is_finished_by_the_same_command(whole: Path, tmp_path: Path) -> None:
    kill_and_finish(whole, tmp_path, 2)


@pytest.mark.slow
def test_thirty_kills(whole: Path, tmp_path: Path) -> None:
    kill_and_finish(whole, tmp_path, 30)
