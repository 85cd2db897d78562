"""``kill -9`` at any moment of ``feedmill tag``, and the same command again: the files of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from feedmill.storage.staging import TEMPORARY_SUFFIX
from helpers import warm
from helpers.document_datasets import SENTENCE, document, write_documents

TAGGERS = ["char_length_with_paragraphs_v1", "c4_v2", "gopher_v2", "uniseg_length_v1"]


def command(processes: int) -> list[str]:
    words = ["tag", "documents/**/*", "--name", "e", "--workers", str(processes)]
    words += [word for name in TAGGERS for word in ("-t", name)]
    return [sys.executable, "-c", "from feedmill.cli.app import main; main()", *words]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, and its attributes made undisturbed."""
    folder = tmp_path_factory.mktemp("whole")
    texts = ["\n".join([SENTENCE * (k % 40), "end"]) for k in range(400)]
    for k in range(6):
        rows = (document(i, texts[(i * 7 + k) % 400]) for i in range(400 * (1 + k % 3)))
        write_documents(folder / f"documents/sub{k % 2}/part-{k}.jsonl.gz", rows)
    warm.run(command(2), cwd=folder, check=True, capture_output=True)
    return folder


def everything(folder: Path) -> dict[str, bytes]:
    """All files but the records, whose times differ; nothing may be left of killed runs."""
    files = [path for path in (folder / "attributes").rglob("*") if path.is_file()]
    assert not [path for path in files if path.name.endswith(TEMPORARY_SUFFIX)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if ".feedmill" not in path.parts}


def kill_and_finish(whole: Path, tmp_path: Path, times: int, kills: int = 1) -> None:
    begin = time.perf_counter()
    timed = tmp_path / "timed"
    timed.mkdir()
    os.symlink(whole / "documents", timed / "documents")
    warm.run(command(2), cwd=timed, check=True, capture_output=True)
    took = time.perf_counter() - begin
    wanted = everything(whole)
    dice = random.Random(times)
    hits = 0
    for number in range(times):
        folder = tmp_path / f"killed{number}"
        folder.mkdir()
        os.symlink(whole / "documents", folder / "documents")
        for _ in range(kills):
            with warm.Popen(
                command(1 + number % 2), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process:
                # The first ones early: a machine that has become faster since must not end before all of them.
                time.sleep(took * (dice.uniform(0, 0.1) if not hits else dice.uniform([0.0, 0.5][number % 2], 1.0)))
                hits += process.poll() is None
                process.send_signal(signal.SIGKILL)
        again = warm.run(command(2), cwd=folder, capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
        assert everything(folder) == wanted
    assert hits


def test_a_killed_run_is_finished_by_the_same_command(whole: Path, tmp_path: Path) -> None:
    kill_and_finish(whole, tmp_path, 2, kills=2)


@pytest.mark.slow
def test_fifty_kills(whole: Path, tmp_path: Path) -> None:
    kill_and_finish(whole, tmp_path, 50)
