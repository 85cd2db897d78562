"""The contract of `Work`: one job on one output, killed at any moment, whatever the output is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound, StorageError
from feedmill.jobs.journal import LOCK, UNITS, Journal, place_of, scratch_of
from feedmill.jobs.parts import PartEngine
from feedmill.jobs.work import Work, alone, settle, tidy
from feedmill.jobs.work_folder import FOLDER, JOB
from feedmill.storage import LocalStore, Store, open_store
from feedmill.storage.locks import FileLock
from feedmill.storage.remote.locks import lock_path
from helpers import warm

JOB_A, JOB_B = {"verb": "a", "seed": 1}, {"verb": "b"}
Target = tuple[Store, str]


@pytest.fixture(params=["a folder", "a file", "a bucket", "an object"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    name = "" if request.param in ("a folder", "a bucket") else "x.jsonl"
    if request.param in ("a bucket", "an object"):
        return open_store(f"{request.getfixturevalue('s3_bucket')}/out"), name
    return LocalStore(tmp_path / "out"), name


def leave(target: Target, identity: dict[str, object] = JOB_A, **facts: Any) -> None:
    """A job that was begun and killed: a unit is finished, an output staged."""
    with Work(*target) as work:
        work.begin(identity, **facts)
        work.units.add("one", b"facts")
        work.place.write_bytes("staged", b"half")


def leftovers(target: Target) -> set[str]:
    """The files of unfinished work, wherever they lie."""
    found = set()
    for place in (place_of(*target), scratch_of(*target)):
        with contextlib.suppress(NotFound):
            found |= {entry.path for entry in place.files()}
    return found


def test_the_same_job_finds_its_units_and_staged_outputs(target: Target) -> None:
    leave(target, noted=5)
    assert Journal(*target).is_of(JOB_A) and not Journal(*target).is_of(JOB_B)
    with Work(*target) as work:
        assert work.begin(JOB_A) and work.resumed and work.noted["noted"] == 5
        assert work.units.read() == {"one": b"facts"} and work.place.read("staged") == b"half"
        work.finish()
    assert not leftovers(target) and Journal(*target).job is None


def test_another_job_is_refused_or_removes_it(target: Target) -> None:
    leave(target)
    with Work(*target) as work, pytest.raises(ConfigError) as caught:
        work.begin(JOB_B, overwrite=False)
    assert caught.value.kind == "unfinished-job"
    with Work(*target) as work:
        assert not work.begin(JOB_B) and work.units.read() == {} and not work.place.exists("staged")
    leave(target)
    with Work(*target) as work:
        assert not work.begin(JOB_B, keep_staged=True) and work.place.exists("staged")


@pytest.mark.parametrize("engine", [contextlib.nullcontext, lambda: PartEngine(finish=True)], ids=["here", "engine"])
def test_one_process_at_a_time(target: Target, engine: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
    with engine():
        with Work(*target):
            with pytest.raises(StorageError) as caught:
                Work(*target)
            assert caught.value.kind == "busy"
        with Work(*target), pytest.raises(StorageError), alone(*target):
            pass
    assert not leftovers(target)


def test_a_job_that_did_nothing_leaves_nothing(target: Target, tmp_path: Path) -> None:
    with Work(*target):
        pass
    with alone(*target):
        pass
    assert not (tmp_path / "out").exists() and not leftovers(target)


def test_what_a_finished_job_could_not_remove_is_removed_later(target: Target) -> None:
    place_of(*target).write_bytes("staged", b"of a job that was killed behind its end")
    scratch_of(*target).write_bytes("shards.scanned", b"of use to any job")
    tidy(*target)
    assert sorted(leftovers(target)) == [LOCK, "shards.scanned"]


@pytest.mark.parametrize("job", [b"", b"[]", b'{"version": 1}', b'{"version": 0, "identity": {}}', b"\xff", b"null"])
def test_a_damaged_job_is_a_message(target: Target, job: bytes) -> None:
    place_of(*target).write_bytes(JOB, job)
    with pytest.raises(DataError, match="interrupted run") as caught:
        Work(*target)
    assert caught.value.kind == "bad-job" and caught.value.fix
    assert place_of(*target).read(JOB) == job


def test_units_are_not_trusted_after_a_restart_of_the_machine(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    with Work(*target) as work:
        work.begin(JOB_A, durable=False)
        work.units.add("one", b"")
    with Work(*target) as work:
        assert work.begin(JOB_A, durable=False)
    monkeypatch.setattr("feedmill.jobs.work.boot_id", lambda: "another start")
    with Work(*target) as work:
        assert not work.begin(JOB_A, durable=False, keep_staged=True) and work.units.read() == {}


@pytest.mark.parametrize("tail", [b"torn", b"\0" * 40, b"\xff" * 64])
def test_a_torn_tail_of_units_is_cut_off(target: Target, tail: bytes) -> None:
    leave(target)
    place = place_of(*target)
    if place.is_local:
        place.write_bytes(UNITS, place.read(UNITS) + tail)
    else:
        place.write_bytes(f"{UNITS}/000000000007-0123abcd", tail)
        place.write_bytes(f"{UNITS}/none of ours", tail)
    with Work(*target) as work:
        assert work.begin(JOB_A) and work.units.read() == {"one": b"facts"}
        work.units.add("two", b"")
        work.units.add("\udcff", b"a name that cannot be noted is done again")
    with Work(*target) as work:
        assert work.units.read() == {"one": b"facts", "two": b""}


def test_another_machine_continues_with_a_job_in_an_object_store(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target[0].is_local:
        pytest.skip("machines share an object store")
    leave(target, noted=5)
    with Work(*target) as work:
        work.begin(JOB_A)
        work.units.add("one", b"later facts")
        work.units.add("two", b"")
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache of another machine"))
    with Work(*target) as work:
        assert work.begin(JOB_A) and work.noted["noted"] == 5 and work.place.read("staged") == b"half"
        work.units.add("three", b"")
        assert work.units.read() == {"one": b"later facts", "two": b"", "three": b""}
        work.finish()
    assert not leftovers(target)


def test_the_lock_of_a_machine_that_died_is_named_and_its_work_is_continued(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target[0].is_local:
        pytest.skip("the system releases a lock on a disk")
    program = (
        "import os, signal, sys\n"
        "from feedmill.jobs.work import Work\nfrom feedmill.storage import open_store\n"
        f"work = Work(open_store(sys.argv[1]), sys.argv[2])\nwork.begin({JOB_A!r})\nwork.units.add('one', b'facts')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = warm.run([sys.executable, "-c", program, target[0].url, target[1]], check=False)
    assert run.returncode == -signal.SIGKILL
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache of another machine"))
    with pytest.raises(StorageError) as caught:
        Work(*target)
    lock = lock_path(target[1])
    assert caught.value.kind == "busy" and lock in str(caught.value)
    target[0].delete(lock)
    with Work(*target) as work:
        assert work.begin(JOB_A) and work.units.read() == {"one": b"facts"}
        work.finish()
    assert not leftovers(target)


class Killed(BaseException):
    pass


def killed_at(moment: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """From now on the n-th file that is renamed or removed is the last."""
    left = [moment]

    def counted(function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object, **options: object) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            function(*arguments, **options)

        return call

    monkeypatch.setattr(os, "replace", counted(os.replace))
    monkeypatch.setattr(LocalStore, "delete", counted(LocalStore.delete))
    return lambda: left[0]


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("name", ["", "x"])
@pytest.mark.parametrize("who", ["a reader", "a writer", "the same job"])
def test_publishing_is_finished_by_whoever_comes_next(tmp_path: Path, who: str, name: str) -> None:
    old, new = {"a": "old", "gone": "old"}, {"a": "new", "b": "new"}
    for moment in range(20):
        folder = tmp_path / str(moment)
        folder.mkdir()
        for path, text in old.items():
            (folder / path).write_text(text)
        store = LocalStore(folder)
        with pytest.MonkeyPatch.context() as patch:
            work = Work(store, name)
            work.begin(JOB_A)
            for path, text in new.items():
                work.place.write_bytes(f"new/{path}", text.encode())
            left = killed_at(moment, patch)
            with contextlib.suppress(Killed):
                work.publish([(f"new/{path}", path) for path in new], ["gone"], facts={"n": 1})
            done = left() >= 0
        work.close()
        half = json.loads(work.place.read(JOB)).get("half")
        if who == "a reader":
            settle(store, name)
        elif who == "a writer":
            with alone(store, name):
                pass
        else:
            with Work(store, name) as work:
                assert work.begin(JOB_A) and work.roll_forward() == bool(half or done)
                assert work.noted.get("facts") == ({"n": 1} if half or done else None)
        assert contents(folder) == (new if half or done else old)
        if done:
            return
    raise AssertionError("it is never done")


def test_a_reader_waits_for_a_writer_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.jobs.work._PATIENCE", 0.1)
    store = LocalStore(tmp_path)
    job = {"version": 1, "identity": {"verb": "delete"}, "half": True, "moves": [], "deletes": []}
    place_of(store).write_bytes(JOB, json.dumps(job).encode())
    with FileLock(tmp_path / FOLDER / LOCK), pytest.raises(DataError, match="a 'delete' is publishing") as caught:
        settle(store)
    assert caught.value.kind == "unfinished-job"
    settle(store)
    assert "half" not in json.loads(place_of(store).read(JOB))


@pytest.mark.parametrize("path", ["../mine", "/etc/mine", "link/mine"])
def test_a_hostile_note_reaches_nothing_outside(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "d"
    (tmp_path / "outside").mkdir()
    for mine in (tmp_path / "mine", tmp_path / "outside/mine"):
        mine.write_text("mine")
    store = LocalStore(folder)
    place_of(store).write_bytes("new/x", b"x")
    (folder / "link").symlink_to(tmp_path / "outside")
    for moves, deletes in (([["new/x", path]], []), ([[path, "x"]], []), ([], [path])):
        job = {"version": 1, "identity": {"verb": "delete"}, "half": True, "moves": moves, "deletes": deletes}
        place_of(store).write_bytes(JOB, json.dumps(job).encode())
        with contextlib.suppress(FeedmillError):
            settle(store)
        assert (tmp_path / "mine").read_text() == (tmp_path / "outside/mine").read_text() == "mine"
        assert not (folder / "x").exists()


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("mine")
    for act in (lambda: Work(LocalStore(tmp_path)), lambda: alone(LocalStore(tmp_path)).__enter__()):
        with pytest.raises(StorageError, match="a file has the name of the folder for unfinished work") as caught:
            act()
        assert caught.value.file == str(tmp_path / FOLDER)
    settle(LocalStore(tmp_path))
    assert (tmp_path / FOLDER).read_text() == "mine"


@pytest.mark.parametrize("step", ["note", "publish", "read", "finish"])
def test_without_locks_the_process_that_lost_its_work_says_that_another_one_writes_here(
    step: str, tmp_path: Path
) -> None:
    """The other process was not kept out by the lock, ended first, and removed the folder."""
    with pytest.raises(StorageError, match="another process was writing here too, and has removed") as caught:  # noqa: SIM117
        with Work(open_store(tmp_path)) as work:
            work.begin({"verb": "convert"})
            (tmp_path / FOLDER / "new").mkdir()
            (tmp_path / FOLDER / "new" / "a").write_text("x")
            shutil.rmtree(tmp_path / FOLDER)
            if step == "note":
                work.note(a=1)
            elif step == "publish":
                work.publish([("new/a", "a")], [])
            elif step == "read":
                work.scratch.read("new/a")
            else:
                work.finish()
    assert caught.value.kind == "busy" and not (tmp_path / "a").exists()
