"""One writer at a time for a place in an object store: of one process, one machine, and several."""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import FeedmillError, StorageError
from feedmill.storage import open_store
from feedmill.storage.remote import locks
from feedmill.storage.remote.locks import ObjectLock, lock_path, turn
from feedmill.storage.remote.object_store import RemoteStore
from helpers import warm


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Lets this process be another machine, which has another cache folder and holds other locks."""
    held: dict[str, dict[str, locks._Held]] = {}

    def be(name: str) -> None:
        monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / name))
        monkeypatch.setattr(locks, "_held", held.setdefault(name, {}))

    be("one")
    return be


def left(store: RemoteStore, name: str = "") -> bool:
    return store.exists(lock_path(name))


def test_the_second_machine_is_refused_and_told_how_to_go_on(s3_bucket, machines):
    store = open_store(f"{s3_bucket}/d")
    first = ObjectLock(store)
    machines("two")
    with pytest.raises(StorageError, match=r"another process is writing here: process \d+ on ") as caught:
        ObjectLock(open_store(f"{s3_bucket}/d"))
    assert caught.value.kind == "busy" and f"{store.url}/.feedmill/lock" in caught.value.fix
    ObjectLock(open_store(f"{s3_bucket}/other")).close()
    ObjectLock(store, "x.jsonl").close()
    machines("one")
    first.close()
    machines("two")
    ObjectLock(store).close()
    assert not left(store)


def test_a_lock_that_was_removed_meanwhile_is_warned_about_and_that_of_another_stays(s3_bucket, machines, caplog):
    store = open_store(f"{s3_bucket}/d")
    first = ObjectLock(store)
    store.delete(lock_path())
    machines("two")
    second = ObjectLock(open_store(f"{s3_bucket}/d"))
    machines("one")
    with caplog.at_level(logging.WARNING, "feedmill"):
        first.close()
    assert "was removed while it was writing" in caplog.text and left(store)
    caplog.clear()
    machines("two")
    second.close()
    assert not caplog.text and not left(store)


def test_of_two_that_ask_at_once_one_gets_it(s3_bucket, machines, monkeypatch):
    """Both find no lock; the server decides."""
    store = open_store(f"{s3_bucket}/d")
    both, one = threading.Barrier(2), threading.Lock()  # the stand-in's own condition is not atomic
    new = RemoteStore.put_new

    def together(self, path, data):
        both.wait(120)
        with one:
            return new(self, path, data)

    monkeypatch.setattr(RemoteStore, "put_new", together)
    got: list[str] = []

    def ask(owner: str) -> None:
        monkeypatch.setattr(locks, "_owner", lambda: threading.current_thread().name)
        try:
            locks._take(open_store(store.url), lock_path(), "")
            got.append(owner)
        except StorageError as error:
            assert error.kind == "busy"

    threads = [threading.Thread(target=ask, args=(name,), name=name) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1 and orjson.loads(store.read(lock_path()))["owner"] == got[0]


def test_a_lock_that_a_killed_process_left_is_taken_over_on_its_machine(s3_bucket, machines):
    code = (
        "import os, sys; from feedmill.storage import open_store; from feedmill.storage.remote.locks import ObjectLock;"
        "ObjectLock(open_store(sys.argv[1])); os._exit(9)"
    )
    warm.run([sys.executable, "-c", code, f"{s3_bucket}/d"], check=False)
    store = open_store(f"{s3_bucket}/d")
    assert left(store)
    machines("two")
    with pytest.raises(StorageError):
        ObjectLock(store)
    machines("one")
    ObjectLock(store).close()
    assert not left(store)


def test_another_process_of_the_same_machine_is_refused_while_this_one_lives(s3_bucket, machines):
    code = (
        "import sys; from feedmill.storage import open_store; from feedmill.storage.remote.locks import ObjectLock\n"
        "try: ObjectLock(open_store(sys.argv[1]))\n"
        "except Exception as e: print(e)"
    )
    with ObjectLock(open_store(f"{s3_bucket}/d")):
        run = warm.run([sys.executable, "-c", code, f"{s3_bucket}/d"], check=True, capture_output=True, text=True)
    assert "another process is writing here" in run.stdout


def test_work_inside_of_work_has_the_lock_already(s3_bucket, machines):
    store = open_store(f"{s3_bucket}/d")
    with ObjectLock(store):
        with ObjectLock(open_store(store.url), inside=True):
            assert left(store)
        with pytest.raises(StorageError, match="another process is writing here"):
            ObjectLock(open_store(store.url))
        assert left(store)
    assert not left(store)


def test_the_answer_to_the_first_try_may_be_lost(s3_bucket, machines, monkeypatch):
    new = RemoteStore.put_new

    def lost(self, path, data):
        assert new(self, path, data)
        return new(self, path, data)  # tried again by the client, which the server refuses

    monkeypatch.setattr(RemoteStore, "put_new", lost)
    with ObjectLock(open_store(f"{s3_bucket}/d")):
        pass


def test_a_server_without_conditional_writes_is_warned_about(s3_bucket, machines, monkeypatch, caplog):
    def unknown(self, path, data):
        raise StorageError("this server cannot", kind="unsupported")

    monkeypatch.setattr(RemoteStore, "put_new", unknown)
    store = open_store(f"{s3_bucket}/d")
    with caplog.at_level(logging.WARNING, "feedmill"), ObjectLock(store):
        machines("two")
        with pytest.raises(StorageError, match="another process is writing"):
            ObjectLock(store)
        machines("one")
    assert "does not support conditional writes" in caplog.text


def test_local_places_need_none(tmp_path):
    with ObjectLock(open_store(tmp_path)), ObjectLock(open_store(tmp_path)):
        assert not list(tmp_path.iterdir())


def verbs(bucket: str, source: Path) -> list[tuple[str, str, list[str]]]:
    """Verbs that write more than one object: the folder that each writes to, or the file in it."""
    return [
        (
            f"{bucket}/reshard",
            "",
            ["edit", "reshard", f"{source}/tars", f"{bucket}/reshard", "--max-shard-samples", "3"],
        ),
        (f"{bucket}/wds", "", ["convert", f"{source}/x.jsonl", f"{bucket}/wds", "--to", "wds"]),
        (bucket, "c.jsonl", ["convert", f"{source}/tars", f"{bucket}/c.jsonl", "--to", "jsonl"]),
        (bucket, "m.jsonl", ["tokens", "merge", f"{source}/x.jsonl", f"{source}/x.jsonl", f"{bucket}/m.jsonl"]),
    ]


def test_the_verbs_that_write_several_objects_take_it_and_leave_nothing(s3_bucket, machines, tmp_path):
    samples = [{"__key__": f"k{i}", "json": {"text": f"t {i}"}} for i in range(6)]
    fm.write(str(tmp_path / "tars"), samples, progress=False)
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    for folder, name, verb in verbs(s3_bucket, tmp_path):
        machines("two")
        with ObjectLock(open_store(folder), name):
            machines("one")
            refused = CliRunner().invoke(app, verb)
            assert refused.exit_code == 1, refused.output
            assert "another process is writing here" in " ".join(refused.output.split()), verb
            machines("two")
        machines("one")
        done = CliRunner().invoke(app, verb)
        assert done.exit_code == 0, done.output
        assert not left(open_store(folder), name)
    machines("two")
    with ObjectLock(open_store(f"{s3_bucket}/wds")):
        machines("one")
        with pytest.raises(FeedmillError, match="another process is writing here"):
            fm.write(f"{s3_bucket}/wds", samples, overwrite=True, progress=False)
        with pytest.raises(FeedmillError, match="another process is writing here"):
            fm.prepare(f"{s3_bucket}/wds", progress=False)
        machines("two")


def test_parts_share_a_place_and_exclude_all_others(s3_bucket, machines):
    store = open_store(f"{s3_bucket}/d")
    one = ObjectLock(store, part=1)
    machines("two")
    two = ObjectLock(open_store(store.url), part=2)
    machines("three")
    with pytest.raises(StorageError, match="this part is already running: process"):
        ObjectLock(open_store(store.url), part=2)
    with pytest.raises(StorageError, match="part 1 of a job array is running") as caught:
        ObjectLock(open_store(store.url))
    assert caught.value.kind == "busy" and not left(store)
    machines("two")
    two.close()
    machines("one")
    one.close()
    machines("three")
    with ObjectLock(open_store(store.url)):
        machines("one")
        with pytest.raises(StorageError, match="another process is writing here"):
            ObjectLock(store, part=1)
        machines("three")
    assert not objects(s3_bucket)


def objects(bucket: str) -> list[str]:
    import boto3

    answer = boto3.client("s3").list_objects_v2(Bucket=bucket.removeprefix("s3://"))
    return [found["Key"] for found in answer.get("Contents", [])]


KILLED = (
    "import os, sys; from feedmill.storage import open_store; from feedmill.storage.remote.locks import ObjectLock;"
    "ObjectLock(open_store(sys.argv[1]), part=int(sys.argv[2]) or None, lease=True); os._exit(9)"
)


@pytest.mark.parametrize("part", [0, 4])
def test_a_lease_ends_with_its_process_on_the_same_machine(part, s3_bucket, machines):
    warm.run([sys.executable, "-c", KILLED, f"{s3_bucket}/d", str(part)], check=False)
    machines("two")  # another cache folder
    for wanted in (part or None, 9, None):
        ObjectLock(open_store(f"{s3_bucket}/d"), part=wanted, lease=True).close()
    assert not objects(s3_bucket)


@pytest.mark.parametrize("part", [0, 4])
def test_a_lease_ends_after_a_while_on_another_machine(part, s3_bucket, machines, monkeypatch):
    warm.run([sys.executable, "-c", KILLED, f"{s3_bucket}/d", str(part)], check=False)
    machines("two")
    monkeypatch.setattr(locks, "_machine", lambda: "another")
    with pytest.raises(StorageError) as caught:
        ObjectLock(open_store(f"{s3_bucket}/d"))  # a run without an engine does not wait
    assert caught.value.kind == "busy" and "wait 90 seconds" in caught.value.fix
    monkeypatch.setattr(locks, "EXPIRY", 0.3)
    monkeypatch.setattr(locks, "_LOOK", 0.1)
    for wanted in (part or None, 9, None):
        ObjectLock(open_store(f"{s3_bucket}/d"), part=wanted, lease=True).close()
    assert not objects(s3_bucket)


def test_who_waits_for_a_lease_gives_up_when_it_is_renewed(s3_bucket, machines, monkeypatch):
    monkeypatch.setattr(locks, "_BEAT", 0.3)
    monkeypatch.setattr(locks, "_LOOK", 0.1)
    monkeypatch.setattr(locks, "_machine", lambda: "one")
    with ObjectLock(open_store(f"{s3_bucket}/d"), part=1):
        monkeypatch.setattr(locks, "_machine", lambda: "two")
        machines("two")
        for part in (1, None):
            with pytest.raises(StorageError, match=r"already running|part 1 of a job array is running"):
                ObjectLock(open_store(f"{s3_bucket}/d"), part=part, lease=True)
        machines("one")
    assert not objects(s3_bucket)


def test_a_lease_is_renewed_and_its_loss_is_noticed(s3_bucket, machines, monkeypatch):
    monkeypatch.setattr(locks, "_BEAT", 0.05)
    store = open_store(f"{s3_bucket}/d")
    with ObjectLock(store, lease=True) as held:
        seen = store.examine(lock_path())
        until = time.monotonic() + 120
        while store.examine(lock_path()).modified == seen.modified:  # in whole seconds
            assert time.monotonic() < until
            time.sleep(0.1)
        held.check()
        store.write_bytes(lock_path(), b'{"run": "of another"}')
        with pytest.raises(StorageError, match="has taken over this work"):
            while time.monotonic() < until:
                held.check()
                time.sleep(0.05)
    assert left(store)  # that of the other


def test_a_lease_survives_any_error_and_a_late_process_looks_for_itself(s3_bucket, machines, monkeypatch):
    monkeypatch.setattr(locks, "_BEAT", 0.05)
    store, failed, original = open_store(f"{s3_bucket}/d"), threading.Event(), RemoteStore.put_over

    def failing(self, path, data, seen):
        if not failed.is_set():
            failed.set()
            raise ValueError("of a library")
        return original(self, path, data, seen)

    monkeypatch.setattr(RemoteStore, "put_over", failing)
    with ObjectLock(store, lease=True) as held:
        lock = locks._held[store.request_url(lock_path())]
        begin = lock._renewed
        until = time.monotonic() + 120
        while lock._renewed == begin:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert failed.is_set()
        asleep, wait = threading.Event(), lock._ended.wait
        monkeypatch.setattr(lock._ended, "wait", lambda seconds: (seconds == 600 and asleep.set()) or wait(seconds))
        monkeypatch.setattr(locks, "_BEAT", 600)  # stopped for long: the thread sleeps when the process is continued
        assert asleep.wait(120)
        held.check()
        store.write_bytes(lock_path(), b'{"run": "of another"}')
        held.check()
        monkeypatch.setattr(locks, "EXPIRY", -1.0)
        with pytest.raises(StorageError, match="has taken over this work"):
            held.check()
    assert left(store)  # that of the other


def test_the_clock_of_the_server_may_be_removed_by_others(s3_bucket, monkeypatch):
    store, original = open_store(f"{s3_bucket}/d"), RemoteStore.examine
    assert locks._now(store, ".feedmill/parts") is not None
    monkeypatch.setattr(RemoteStore, "examine", lambda self, path: self.delete(path) or original(self, path))
    assert locks._now(store, ".feedmill/parts") is None
    assert not objects(s3_bucket)


def test_parts_begin_one_after_another(s3_bucket, machines):
    """Also if one was killed while it began."""
    store, inside, most = open_store(f"{s3_bucket}/d"), [0], []
    code = (
        "import os, sys; from feedmill.storage import open_store;"
        "from feedmill.storage.remote.locks import turn;"
        "block = turn(open_store(sys.argv[1])); block.__enter__(); os._exit(9)"
    )
    assert warm.run([sys.executable, "-c", code, store.url], check=False).returncode == 9
    assert objects(s3_bucket)

    def begin() -> None:
        with turn(store):
            inside[0] += 1
            most.append(inside[0])
            time.sleep(0.1)
            inside[0] -= 1

    threads = [threading.Thread(target=begin) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1] and not objects(s3_bucket)
