"""Killed at any moment, the same command finishes the job, with the result of a run that nobody disturbed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest

from helpers import warm
from helpers.durations import slow_but
from helpers.near_copies import make_texts, write_documents

AT_EVERY_WRITE = """
import os, signal, sys
from feedmill.curation.dedupe.job import dedupe
from feedmill.jobs import memory
from feedmill.storage import local

def go(folder, patterns, die=None):
    os.chdir(folder)
    left = [die]
    publish = local.publish
    def dying(temporary, final):
        if left[0] is not None:
            left[0] -= 1
            if left[0] == -1:
                os.kill(os.getpid(), signal.SIGKILL)
        publish(temporary, final)
    local.publish = dying
    dedupe(patterns, near=True, threshold=0.7, signatures=SIGNATURES, workers=1, memory="1GB", progress=False)

def forked(*arguments):
    child = os.fork()
    if not child:
        try:
            go(*arguments)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

SIGNATURES = sys.argv[2] or None
memory.FULL = 1 << int(sys.argv[4])
folder, whole = sys.argv[1] + "/killed", sys.argv[1] + "/whole"
go(sys.argv[1] + "/warm", ["documents"])
for die in range(-1, 1000, int(sys.argv[3])):
    os.system(f"cp -rp {sys.argv[1]}/clean {folder}")  # in the same place each time: signatures are called by it
    assert forked(folder, ["documents/a.jsonl"]) == 0
    if die < 0:
        assert forked(folder, ["documents"]) == 0
        os.rename(folder, whole)
        continue
    killed = forked(folder, ["documents"], die)
    assert killed in (0, -signal.SIGKILL), killed
    assert forked(folder, ["documents"]) == 0
    assert not os.system(f"diff -r -x '*.json' -x '.*' {whole} {folder}"), die
    left = os.popen(f"find {folder} -name '.*.feedmill-tmp'").read()
    assert not left, left
    os.system(f"rm -r {folder}")
    if not killed:
        break
print(die)
"""


SPILLS = slow_but([("s", 300, 44), ("s", 90, 44), ("", 7, 44)], ("s", 300, 44))
"""In these, a task has memory for some tens of documents: for 2^44 instead of 2^28 bytes, it would have full room."""


def tree(root: Path) -> dict[str, bytes]:
    """The attribute files, and what a run found in the folder of signatures."""
    files = [*(root / "attributes").rglob("*.jsonl*"), *(root / "s").rglob("*")]
    kept = [path for path in files if path.is_file() and path.suffix != ".json" and path.name[0] != "."]
    return {str(path.relative_to(root)): path.read_bytes() for path in kept}


def prepare(folder: Path) -> None:
    texts = make_texts(120, 3)
    write_documents(folder, {"a.jsonl": texts[:40], "b/c.jsonl.gz": texts[40:80], "d.jsonl": texts[80:]})
    for path in (folder / "documents").rglob("*.*"):
        os.utime(path, ns=(10**18, 10**18))  # signatures are called by versions, and those by times


@pytest.mark.parametrize(
    ("signatures", "step", "full"), slow_but(product(["", "s"], [60, 9, 1], [28]), ("s", 60, 28)) + SPILLS
)
def test_killed_at_every_write(tmp_path: Path, signatures: str, step: int, full: int) -> None:
    """Of a second run, after a first one over one of the files."""
    for name in ("warm", "clean"):
        prepare(tmp_path / name)
    done = warm.run(
        [sys.executable, "-c", AT_EVERY_WRITE, str(tmp_path), signatures, str(step), str(full)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 20


COMMAND = [sys.executable, "-c", "from feedmill.cli.app import main; main()", "dedupe", "--near", "documents"]
ROOM = ["--memory", "6GB"]  # with less of it, and more workers, the folder would be divided into other files


def kill_some(folder: Path, count: int, seed: int) -> None:
    prepare(folder / "whole")
    command = [*COMMAND, *ROOM, "--signatures", "s", "--threshold", "0.7", "--json", "--workers"]
    warm.run([*command, "5"], cwd=folder / "whole", check=True, stdout=subprocess.DEVNULL)
    prepare(folder / "timed")
    begin = time.monotonic()
    warm.run([*command, "2"], cwd=folder / "timed", check=True, stdout=subprocess.DEVNULL)
    length = time.monotonic() - begin
    wanted, moments, killed = None, random.Random(seed), 0
    for number in range(10 * count):
        root = folder / "killed"
        prepare(root)
        child = warm.Popen(
            [*command, "2" if number % 3 else "5"], cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        time.sleep(moments.uniform(0, length))
        child.send_signal(signal.SIGKILL)
        killed += child.wait() == -signal.SIGKILL
        done = warm.run([*command, "2"], cwd=root, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        found = tree(root)
        attributes = {path: data for path, data in found.items() if path.startswith("attributes")}
        assert attributes == {p: d for p, d in tree(folder / "whole").items() if p.startswith("attributes")}
        wanted = found if wanted is None else wanted
        assert found == wanted
        shutil.rmtree(root)
        if killed == count:
            break
    assert killed == count, "too few runs were still going when they were to be killed"


def test_killed_at_some_moments(tmp_path: Path) -> None:
    kill_some(tmp_path, 1, 5)


@pytest.mark.slow
def test_killed_at_fifty_moments(tmp_path: Path) -> None:
    kill_some(tmp_path, 50, 6)
