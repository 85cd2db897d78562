"""The contract of engines for data in a bucket: no machine shares a folder with another, and the bytes are the same.

Each part has a cache folder of its own, as on a machine of its own. The parts of the fast tests run in this process.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from feedmill.cli.app import app
from feedmill.storage import open_store
from feedmill.storage.remote import options
from feedmill.storage.remote.locks import ObjectLock
from helpers import warm
from helpers.engine_verbs import (
    VERBS,
    are_equal,
    copies,
    download,
    filter_in_bucket,
    in_bucket,
    locks,
    outputs,
    unfinished_work,
    upload,
)
from helpers.kills import command

_FAST = {"prepare", "prepare-media", "convert-file", "reshard"}
"""With tokenize and dedupe below, and neardedupe on Ray's nodes, they use each kind of unfinished work."""
SOME = [verb if verb in _FAST else pytest.param(verb, marks=pytest.mark.slow) for verb in VERBS]
_STAGES = {
    "dedupe": 3,
    "dedupe-documents": 3,
    "dedupe-substrings": 5,
    "dedupe-bloom": 3,
    "neardedupe": 3,
    "neardedupe-embeddings": 5,
    "decontaminate": 4,
    "tokenize-numbered": 2,
}


@pytest.fixture
def place(inputs: Path, s3_bucket: str, tmp_path: Path) -> str:
    """A folder of the bucket with the inputs; the configuration of ``filter`` is in `tmp_path`."""
    url = f"{s3_bucket}/data"
    upload(inputs, url)
    filter_in_bucket(tmp_path, url)
    return url


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str], str], None]:
    """Run a command in this process, with the cache folder of a machine."""
    monkeypatch.chdir(tmp_path)

    def run(words: list[str], machine: str) -> None:
        monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "caches" / machine))
        with contextlib.redirect_stdout(open(os.devnull, "w")):
            status = app(words, prog_name="feedmill", standalone_mode=False)
        assert not status or (status == 3 and "--part" in words)  # parts may have to run again

    return run


def is_equal(verb: str, place: str, folder: Path, alone: Any) -> bool:
    """Whether the bucket has what one process writes to a disk, and nothing else is left there or in a cache."""
    there = download(place, folder / "there")
    assert not unfinished_work(there) and not locks(there)
    assert not copies(folder / "caches")
    return are_equal(verb, there, folder, alone(verb))


@pytest.mark.parametrize("verb", SOME)
def test_parts_have_nothing_but_the_bucket(
    verb: str, place: str, call: Any, alone: Any, inputs: Path, tmp_path: Path
) -> None:
    one = [] if verb == "filter-tokens" else ["--workers", "1"]  # it writes one file
    words = [*in_bucket(VERBS[verb], place), *one, "--engine", "part"]
    for stage in range(1 if verb == "neardedupe" else _STAGES.get(verb, 1)):
        for part in (2, 1):
            call([*words, "--part", f"{part}/2"], f"part{part}")
        if not stage:
            call([*words, "--part", "2/2"], "another")  # once more, elsewhere
    call([*words, "--finish"], "finish")
    assert is_equal(verb, place, tmp_path, alone)


def test_the_work_may_be_elsewhere_in_a_bucket(
    place: str, s3_bucket: str, call: Any, alone: Any, tmp_path: Path
) -> None:
    words = [*in_bucket(VERBS["dedupe"], place), "--workers", "1", "--engine", "part", "--work", f"{s3_bucket}/work"]
    call([*words, "--part", "2/2"], "two")
    assert any(entry.path.endswith(".keys") for entry in open_store(f"{s3_bucket}/work").files())
    call([*words, "--finish"], "finish")
    assert is_equal("dedupe", place, tmp_path, alone)
    with pytest.raises(LookupError):
        list(open_store(f"{s3_bucket}/work").files())


_DYING = """
import os, signal, sys
left = int(sys.argv[1])
from feedmill.storage.remote.object_store import _Parts
complete = _Parts.complete

def dying(self):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    complete(self)

_Parts.complete = dying
from feedmill.cli.app import main
sys.argv = ["feedmill", *sys.argv[2:]]
main()
"""


def killed(words: list[str], moment: int, cache: Path, folder: Path) -> bool:
    """Whether the command was killed before it put object `moment`; otherwise it is done."""
    environment = {**os.environ, "FEEDMILL_CACHE_DIR": str(cache)}
    words = [sys.executable, "-c", _DYING, str(moment), *words]
    done = warm.run(words, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode in (0, 3, -signal.SIGKILL), done.stderr  # 3: a part whose verb has another stage
    return done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("verb", "moments"),
    [
        ("tokenize", [1]),
        pytest.param("tokenize", range(14), marks=pytest.mark.slow),
        pytest.param("dedupe", range(0, 40, 3), marks=pytest.mark.slow),
        pytest.param("neardedupe", range(0, 60, 5), marks=pytest.mark.slow),
        pytest.param("convert-file", range(12), marks=pytest.mark.slow),
        pytest.param("reshard", range(0, 20, 3), marks=pytest.mark.slow),
        pytest.param("prepare", range(12), marks=pytest.mark.slow),
    ],
)
def test_a_killed_part_and_a_killed_finish_go_on_elsewhere(
    verb: str, moments: Any, inputs: Path, s3_bucket: str, call: Any, alone: Any, tmp_path: Path
) -> None:
    """Both are killed before the same object, and continued at once with another cache folder."""
    dead = 0
    for moment in moments:
        place, folder = f"{s3_bucket}/{moment}", tmp_path / str(moment)
        folder.mkdir()
        upload(inputs, place)
        words = [*in_bucket(VERBS[verb], place), "--workers", "1", "--engine", "part"]
        dead += killed([*words, "--part", "1/2"], moment, folder / "caches/one", tmp_path)
        call([*words, "--part", "1/2"], f"{moment}")
        if killed([*words, "--finish"], moment, folder / "caches/finish", tmp_path):  # else it is done
            dead += 1
            call([*words, "--finish"], f"{moment}-elsewhere")
        there = download(place, folder / "there")
        assert outputs(there) == alone(verb), moment
        assert not unfinished_work(there) and not locks(there)
        assert not copies(tmp_path / "caches")
    assert dead > 1


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_seven_parts_at_once_of_which_some_are_killed(
    verb: str, place: str, call: Any, alone: Any, tmp_path: Path
) -> None:
    numbers, parts = random.Random(verb), [*range(1, 8), 4]
    words = [*in_bucket(VERBS[verb], place), "--engine", "part"]
    for turn in range(_STAGES.get(verb, 1)):
        numbers.shuffle(parts)
        running = []
        for n, part in enumerate(parts):
            environment = {**os.environ, "FEEDMILL_CACHE_DIR": str(tmp_path / f"caches/{turn}-{n}")}
            line = command(*words, "--part", f"{part}/7")
            running.append(warm.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment))
        time.sleep(numbers.uniform(1, 8))
        running[0].kill()
        running[1].kill()
        for n, process in enumerate(running):
            _, err = process.communicate(timeout=240)
            # Of two processes of one part that run at the same time, one ends.
            assert process.returncode in (0, 3, -signal.SIGKILL) or "already running" in err, err
            if process.returncode == -signal.SIGKILL:  # its machine is lost, and the copies in its cache
                shutil.rmtree(tmp_path / f"caches/{turn}-{n}", ignore_errors=True)
    call([*words, "--finish"], "finish")
    assert is_equal(verb, place, tmp_path, alone)


@pytest.fixture
def unreliable(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The server answers 503 to one request in seven. The value is the number of refusals; -1 ends them.

    Each is sent again after some milliseconds, not seconds.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    answer, refused, chance = DomainDispatcherApplication.__call__, [0], random.Random(5)

    def sometimes(self: Any, environ: dict[str, Any], start: Any) -> Any:
        if refused[0] >= 0 and chance.random() < 1 / 7:
            refused[0] += 1
            start("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", "0")])
            return [b""]
        return answer(self, environ, start)

    monkeypatch.setattr(DomainDispatcherApplication, "__call__", sometimes)
    soon = {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=20), "base": 2}
    for settings in (options._PATIENCE, options._HASTE):
        monkeypatch.setitem(settings, "backoff", soon)
    yield refused


@pytest.mark.parametrize("verb", ["tokenize", pytest.param("neardedupe", marks=pytest.mark.slow)])
def test_a_server_that_refuses_requests_now_and_then(
    verb: str, place: str, call: Any, alone: Any, tmp_path: Path, unreliable: list[int]
) -> None:
    words = [*in_bucket(VERBS[verb], place), "--workers", "1", "--engine", "part"]
    for _ in range(_STAGES.get(verb, 1)):
        for part in (2, 1):
            call([*words, "--part", f"{part}/2"], f"part{part}")
    call([*words, "--finish"], "finish")
    assert unreliable[0] > 5
    unreliable[0] = -1
    assert is_equal(verb, place, tmp_path, alone)


def test_nothing_but_parts_runs_while_a_part_runs(
    place: str, call: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*in_bucket(VERBS["tokenize"], place), "--workers", "1"]
    with ObjectLock(open_store(place), "tokens", part=3):
        for more in ([], ["--engine", "part", "--finish"]):
            with pytest.raises(AssertionError):
                call([*words, *more], "other")
            assert "part 3 of a job array is running: process" in capsys.readouterr().err
        call([*words, "--engine", "part", "--part", "1/4"], "other")
