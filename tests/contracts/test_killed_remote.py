"""Verbs that write to a bucket or a file system of fsspec: whole after any number of kills, and nothing is left."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
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
    from feedmill.storage.remote import upload
    upload.part_size, upload._BUFFER, upload._STEP = lambda: part, part // 2, part
from feedmill.cli.app import main
sys.argv = ["feedmill", *sys.argv[3:]]
if __name__ == "__main__":
    main()
"""
THERE = (
    "the file already exists",
    "the file exists",
    "the index already exists",
    "a dataset already exists",
    "the output is not empty",
    "the key also occurs in an earlier shard",
)
WHOLE = ("index tokens", "plan", "preview", "report", "stat", "vla merge-stats")
"""Whose outputs are so small, or written so, that each is sent by one request."""
LARGE = ("mds", "tokenize", "merge jsonl")
"""Verbs that are also tried with parts as large as in earnest."""
UPLOADING = ("s3",)
"""Places that list the uploads that were begun."""


class Killed(NamedTuple):
    """How often a verb was killed.

    Attributes:
        cut: in the middle of an upload.
    """

    times: int
    cut: int


def kill_and_finish(
    name: str, source: Path, place: Place, cache: Path, tmp_path: Path, kills: int, part: int = PART
) -> Killed:
    """Kill a verb so often, before any of its requests that write, and let it end.

    Args:
        part: bytes of the parts of uploads, 0 for the usual ones.
    """
    verb, folder, order = VERBS[name], tmp_path / "alone", random.Random(name)
    done = CliRunner().invoke(app, arrange(verb, source, str(folder), tmp_path / "conf"))
    assert done.exit_code == 0, done.output
    expected = local_tree(folder)
    script = tmp_path / "child.py"
    script.write_text(_CHILD)
    killed = cut = 0
    while killed < kills:
        folder_of_run = str(killed)
        url = f"{place.url}/{folder_of_run}"
        words = arrange(verb, source, url, tmp_path / f"conf{killed}")
        at, code = order.randint(0, 3), -signal.SIGKILL
        while code:
            command = [sys.executable, str(script), str(at), str(part), *words]
            child = subprocess.run(command, capture_output=True, text=True, timeout=120)
            code = child.returncode
            if code == 1 and any(words in child.stderr for words in THERE):
                code = 0  # it was killed when all was done, and the lock was about to be removed
            assert code in (0, -signal.SIGKILL), child.stderr
            killed, at = killed + (code != 0), at + at // 8 + order.randint(0, 3)
            at = at if killed < kills else sys.maxsize
            cut += code != 0 and bool(place.unfinished())
        compare(place.tree(folder_of_run), expected, url, str(folder), verb.files)
        assert not place.unfinished()
        assert not list(cache.glob("uploads/*"))
        assert not [path for path in cache.glob("work-*/**/*") if path.is_file()]
    return Killed(killed, cut)


def check(name: str, killed: Killed, place: Place) -> None:
    print(f"{name}: killed {killed.times} times, {killed.cut} of them in the middle of an upload")
    assert killed.cut or name in WHOLE or not place.url.startswith(UPLOADING)


@pytest.mark.parametrize("place", ["s3", "files"], indirect=True)
@pytest.mark.parametrize("name", FEW)
def test_killed_it_is_finished_by_the_same_command(
    name: str, source: Path, place: Place, cache: Path, tmp_path: Path, small_parts: None
) -> None:
    kill_and_finish(name, source, place, cache, tmp_path, 3)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, indirect=True)
@pytest.mark.parametrize("name", VERBS)
def test_killed_twenty_times(
    name: str, source: Path, place: Place, cache: Path, tmp_path: Path, small_parts: None
) -> None:
    check(name, kill_and_finish(name, source, place, cache, tmp_path, 20), place)


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
    check(name, kill_and_finish(name, large, place, cache, tmp_path, 20, 0), place)
