"""Verbs that write to a bucket or a file system of fsspec: whole after any number of kills, and nothing is left."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from helpers import warm
from helpers.durations import slow_but
from helpers.remote_places import PART, PLACES, Place, cache, compare, local_tree, place, small_parts, source
from helpers.remote_verbs import VERBS, arrange, make

__all__ = ["cache", "place", "small_parts", "source"]

FEW = ["reshard", "tokenize"]

_CHILD = """
import os, shutil, signal, sys
import obstore
from fsspec.implementations.ftp import FTPFileSystem
from fsspec.implementations.local import LocalFileSystem
left, part = int(sys.argv[1]), int(sys.argv[2])

def dying(function):
    def call(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

class Dying:
    def __init__(self, writer):
        self._writer = writer
        self.write, self.close = dying(writer.write), dying(writer.close)

    def __getattr__(self, name):
        return getattr(self._writer, name)

open_writer = obstore.open_writer
obstore.open_writer = lambda *arguments, **options: Dying(open_writer(*arguments, **options))
obstore.put, obstore.delete = dying(obstore.put), dying(obstore.delete)

def halved(put):
    # Die in the middle of the file: half of it was sent.
    def call(fs, source, target, **options):
        if not left:
            with open(source, "rb") as whole, open(source + ".half", "wb") as half:
                half.write(whole.read(os.path.getsize(source) // 2))
            put(fs, source + ".half", target, **options)
        dying(put)(fs, source, target, **options)
    return call

for kind in (LocalFileSystem, FTPFileSystem):
    kind.put_file = halved(kind.put_file)
    for name in ("mv", "rm_file"):
        setattr(kind, name, dying(getattr(kind, name)))
if part:
    from feedmill.storage.remote import object_store
    object_store.part_size, object_store._BUFFER, object_store._STEP = lambda: part, part // 2, part
from feedmill.cli.app import main
sys.argv = ["feedmill", *sys.argv[3:]]
if __name__ == "__main__":
    try:
        main()
    finally:
        print("left", left, flush=True)
"""
THERE = (
    "the file already exists",
    "the file exists",
    "the index already exists",
    "a dataset already exists",
    "the output already exists",
    "the output is not empty",
    "the dataset is already prepared",
    "the key also occurs in an earlier shard",
)
LARGE = ("mds", "tokenize", "merge jsonl")
"""Verbs that are also tried with parts as large as in earnest."""
PARTS = 8
"""Some of the kills must be in the middle of an upload, if an object has so many small parts."""


class Killed(NamedTuple):
    """How often a verb was killed.

    Attributes:
        cut: in the middle of an upload.
    """

    times: int
    cut: int


class Runs:
    """Runs of a verb with a store, each in a folder of its own, which are killed and run again.

    Args:
        part: bytes of the parts of uploads, 0 for the usual ones.

    Attributes:
        killed: how often it was killed.
        largest: bytes of the largest file that it writes.
    """

    def __init__(self, name: str, source: Path, place: Place, cache: Path, tmp_path: Path, part: int = PART) -> None:
        self.verb, self.source, self.place, self.cache, self.path = VERBS[name], source, place, cache, tmp_path
        self.part, self.number, self.killed = part, 0, Killed(0, 0)
        folder = tmp_path / "alone"
        words = arrange(self.verb, source, str(folder), tmp_path / "conf")
        before = local_tree(folder)
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        self.folder, self.expected, self.script = str(folder), local_tree(folder), tmp_path / "child.py"
        self.script.write_text(_CHILD)
        self.largest = max(len(data) for name, data in self.expected.items() if before.get(name) != data)

    def finish(self, moments: Iterable[int]) -> int:
        """Kill it before its requests of these numbers that write, one run after the other; then let it end.

        Returns:
            How many such requests the last run made.
        """
        self.number += 1
        url = f"{self.place.url}/{self.number}"
        words = arrange(self.verb, self.source, url, self.path / f"conf{self.number}")
        for at in (*moments, sys.maxsize):
            command = [sys.executable, str(self.script), str(at), str(self.part), *words]
            child = warm.run(command, capture_output=True, text=True, timeout=120)
            if child.returncode == -signal.SIGKILL:
                self.killed = Killed(self.killed.times + 1, self.killed.cut + bool(self.place.unfinished()))
                continue
            # It may have been killed when all was done, and the lock was about to be removed.
            assert not child.returncode or any(words in child.stderr for words in THERE), child.stderr
            break
        compare(self.place.tree(str(self.number)), self.expected, url, self.folder, self.verb.files)
        assert not self.place.unfinished()
        assert not list(self.cache.glob("uploads/*"))
        assert not [path for path in self.cache.glob("work-*/**/*") if path.is_file()]
        return sys.maxsize - int(child.stdout.rpartition("left ")[2] or sys.maxsize)


def kill_and_finish(runs: Runs, kills: int) -> None:
    """Kill a verb so often: in each folder, ever later, until it ends."""
    order = random.Random(runs.verb.words)
    while (before := runs.killed.times) < kills:
        moments = [order.randint(0, 3)]
        while len(moments) < kills - before:
            moments.append(moments[-1] + moments[-1] // 8 + order.randint(0, 3))
        runs.finish(moments)


def check(name: str, runs: Runs) -> None:
    print(f"{name}: killed {runs.killed.times} times, {runs.killed.cut} of them in the middle of an upload")
    if runs.place.url.startswith("s3://"):  # other stores do not list uploads that were begun
        assert runs.killed.cut or runs.largest < (PARTS * runs.part or 10 << 20)


@pytest.mark.parametrize(
    ("name", "place"),
    slow_but(product(FEW, ["s3", "files", "ftp"]), *product(FEW, ["s3"]), ("reshard", "files"), ("tokenize", "ftp")),
    indirect=["place"],
)
def test_killed_it_is_finished_by_the_same_command(
    name: str, source: Path, place: Place, cache: Path, tmp_path: Path, small_parts: None
) -> None:
    runs = Runs(name, source, place, cache, tmp_path)
    kill_and_finish(runs, 3)
    assert runs.killed.times >= 3


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, indirect=True)
@pytest.mark.parametrize("name", VERBS)
def test_killed_twenty_times(
    name: str, source: Path, place: Place, cache: Path, tmp_path: Path, small_parts: None
) -> None:
    runs = Runs(name, source, place, cache, tmp_path)
    kill_and_finish(runs, 20)
    check(name, runs)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["s3"], indirect=True)
@pytest.mark.parametrize("name", VERBS)
def test_killed_before_one_of_its_last_requests(
    name: str, source: Path, place: Place, cache: Path, tmp_path: Path, small_parts: None
) -> None:
    """When the output is complete, and records of the work and the lock are removed."""
    runs = Runs(name, source, place, cache, tmp_path)
    count = runs.finish([])
    for back in (1, 2, 3, 4, 5, 6, 8, 10, 13, 16):
        runs.finish([count - back] if back <= count else [])
    assert runs.killed.times >= min(count, 7), f"{runs.killed} of {count} requests"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs whose outputs are uploaded in parts of 5 MiB."""
    folder = tmp_path_factory.mktemp("large")
    make(folder, 300_000)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, indirect=True)
@pytest.mark.parametrize("name", LARGE)
def test_killed_twenty_times_with_large_parts(
    name: str, large: Path, place: Place, cache: Path, tmp_path: Path
) -> None:
    runs = Runs(name, large, place, cache, tmp_path, part=0)
    kill_and_finish(runs, 20)
    check(name, runs)
