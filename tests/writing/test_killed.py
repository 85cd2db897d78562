"""Writing that is killed: the old state is valid, and the same command again gives the bytes of an undisturbed run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import FeedmillError
from feedmill.formats.energon.prepared import read_info
from feedmill.formats.tar.finished import left_shards
from feedmill.indexing.check import check
from feedmill.indexing.prepare import prepare
from feedmill.storage import LocalStore
from feedmill.storage.locks import FileLock
from feedmill.writing.append import append
from helpers import warm
from helpers.kills import command, finish, moments, run_until_killed
from helpers.tars import write_tar
from helpers.written_datasets import contents, files, samples

MOMENTS = range(1, 40, 6)

_WRITE = """
import os, signal, sys
left, replace = int(sys.argv[1]), os.replace

def dying(*arguments, **options):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(*arguments, **options)

os.replace = dying
import feedmill as fm
from helpers.written_datasets import samples
fm.write(sys.argv[2], samples(int(sys.argv[3])), max_shard_samples=40, append=sys.argv[4] == "append")
"""
TESTS = str(Path(__file__).parents[1])


def write(moment: int, url: Path, count: int, how: str = "new") -> int:
    """Run a program that writes, killed before it puts its file number `moment` in place (0: not at all)."""
    words = [sys.executable, "-c", _WRITE, str(moment), str(url), str(count), how]
    paths = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    done = warm.run(words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@moments(9, range(1, 25, 4), least=3)
def test_a_killed_write_is_finished(tmp_path: Path, moments: Sequence[int], least: int) -> None:
    write(0, tmp_path / "calm", 150)
    wanted = files(tmp_path / "calm")
    killed = 0
    for moment in moments:
        url = tmp_path / f"at{moment}"
        if write(moment, url, 150) == 0:
            break
        killed += 1
        if (url / ".nv-meta/.info.json").exists():  # it is there only when it is whole
            assert len(contents(url)) == 150
        write(0, url, 150)
        assert files(url) == wanted, f"killed before file {moment}"
    assert killed >= least


def test_one_run_killed_again_and_again_comes_to_its_end(tmp_path: Path) -> None:
    write(0, tmp_path / "calm", 150)
    for moment in range(3, 20):
        if write(moment, tmp_path / "d", 150) == 0:
            break
    assert 3 < moment < 15
    assert files(tmp_path / "d") == files(tmp_path / "calm")


def killed_at_each_file(
    words: list[str], start: Path, folder: Path, valid: list[dict[str, dict[str, bytes]]], moments: Sequence[int]
) -> int:
    """Kill the command before its files in turn, and tell how often that was done.

    Every sample that can be read is of a valid state, and the same command gives the state that it gives undisturbed.
    """
    shutil.copytree(start, folder / "calm/d")
    finish(words, folder / "calm")
    wanted, last = files(folder / "calm/d"), contents(folder / "calm/d")
    killed = 0
    for moment in moments:
        place = folder / f"at{moment}"
        shutil.copytree(start, place / "d")
        if not run_until_killed(moment, words, place):
            break
        killed += 1
        _look(place / "d", [*valid, last])
        finish(words, place)
        assert files(place / "d") == wanted, f"killed before file {moment}"
    return killed


def _look(url: Path, valid: list[dict[str, dict[str, bytes]]]) -> None:
    """What can be read is right: a whole state, or an error that says what is wrong. Never other bytes."""
    try:
        seen = contents(url)
    except FeedmillError as error:
        assert error.fix
        return
    known: dict[str, list[dict[str, bytes]]] = {}
    for state in valid:
        for key, parts in state.items():
            known.setdefault(key, []).append(parts)
    assert all(parts in known[key] for key, parts in seen.items())


@pytest.fixture
def start(tmp_path: Path) -> Path:
    fm.write(str(tmp_path / "start"), samples(120), max_shard_samples=30, sample_type="CrudeWebdataset")
    fm.write(str(tmp_path / "more"), samples(50, 500), max_shard_samples=30)
    fm.write(str(tmp_path / "extra"), ({"__key__": f"s{i:05d}", "cls": i} for i in range(120)))
    return tmp_path / "start"


@moments(4, MOMENTS, least=2)
def test_a_killed_delete(start: Path, tmp_path: Path, moments: Sequence[int], least: int) -> None:
    gone = ["s00001", "s00031", "s00032", *(f"s{i:05d}" for i in range(90, 120))]
    assert (
        killed_at_each_file(
            ["edit", "delete", "d", "--yes", *gone, "--workers", "1"], start, tmp_path / "k", [contents(start)], moments
        )
        >= least
    )


@moments(4, MOMENTS, least=2)
def test_a_killed_append(start: Path, tmp_path: Path, moments: Sequence[int], least: int) -> None:
    words = ["edit", "append", "d", str(tmp_path / "more"), "--max-shard-samples", "20", "--workers", "1"]
    assert killed_at_each_file(words, start, tmp_path / "k", [contents(start)], moments) >= least


@moments(4, MOMENTS, least=2)
def test_killed_adding_of_parts(start: Path, tmp_path: Path, moments: Sequence[int], least: int) -> None:
    words = ["edit", "add-parts", "d", str(tmp_path / "extra"), "--workers", "1"]
    assert killed_at_each_file(words, start, tmp_path / "k", [contents(start)], moments) >= least


@moments(4, MOMENTS)
def test_a_killed_reshard(start: Path, tmp_path: Path, moments: Sequence[int], least: int) -> None:
    words = ["edit", "reshard", str(start), "e", "--max-shard-samples", "25", "--shuffle", "3", "--workers", "1"]
    (tmp_path / "calm").mkdir()
    finish(words, tmp_path / "calm")
    killed = 0
    for moment in moments:
        place = tmp_path / f"at{moment}"
        place.mkdir()
        if not run_until_killed(moment, words, place):
            break
        killed += 1
        finish(words, place)
        assert files(place / "e") == files(tmp_path / "calm/e")
    assert killed >= least


def test_processes_killed_at_random_moments(tmp_path: Path) -> None:
    fm.write(str(tmp_path / "s"), samples(900), max_shard_samples=100)
    words = ["edit", "reshard", str(tmp_path / "s"), "e", "--max-shard-samples", "30", "--workers", "2"]
    (tmp_path / "calm").mkdir()
    begun = time.monotonic()
    finish(words, tmp_path / "calm")
    whole = time.monotonic() - begun
    chance = random.Random(7)
    (tmp_path / "x").mkdir()
    for _ in range(5):
        child = warm.Popen(command(*words), cwd=tmp_path / "x", stderr=subprocess.PIPE, start_new_session=True)
        time.sleep(chance.uniform(0.2, 1.0) * whole)
        os.killpg(child.pid, signal.SIGKILL)
        if child.wait() == 0:
            shutil.rmtree(tmp_path / "x/e")
        child.stderr.close()
    again = warm.run(command(*words), cwd=tmp_path / "x", capture_output=True, text=True)
    # The last one may have been killed after its last write.
    assert again.returncode == 0 or "a dataset already exists here" in again.stderr, again.stderr
    assert files(tmp_path / "x/e") == files(tmp_path / "calm/e")


HALF, LISTED = 12, 24
"""At which of its files a command is in the state that a test needs: where it is looked for first."""


def nearest(moment: int, moments: range) -> list[int]:
    """Moments, those near the first one before others."""
    return sorted(moments, key=lambda each: abs(each - moment))


def half_in_place(start: Path, tmp_path: Path) -> Path:
    """A dataset of which a killed `delete` had put some files in place."""
    for moment in nearest(HALF, range(20)):
        place = tmp_path / f"at{moment}"
        shutil.copytree(start, place / "d")
        run_until_killed(moment, DELETE, place)
        left = place / "d/.feedmill-work/job.json"
        if left.exists() and b'"half":true' in left.read_bytes():
            return place
    raise AssertionError("no such moment")


DELETE = ["edit", "delete", "d", "--yes", "s00001", "s00031", "--workers", "1"]


@pytest.mark.parametrize("who", ["the same command", "a reader", "a writer", "prepare"])
def test_a_change_that_is_half_in_place_is_finished_by_whoever_comes_next(
    start: Path, tmp_path: Path, who: str
) -> None:
    place = half_in_place(start, tmp_path)
    if who == "a reader":
        assert len(fm.open(place / "d")) == 118
    elif who == "a writer":
        fm.write(str(place / "d"), samples(3, 900), append=True)
        assert len(fm.open(place / "d")) == 121
        return
    elif who == "prepare":
        prepare(str(place / "d"), progress=False)
    finish(DELETE, place)  # it is done, and says so
    assert len(fm.open(place / "d")) == 118 and not (place / "d/.feedmill-work").exists()
    assert check(str(place / "d"), progress=False).findings == []


def test_a_change_that_is_half_in_place_is_an_error_where_it_cannot_be_finished(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = half_in_place(start, tmp_path)
    monkeypatch.setattr("feedmill.jobs.work._PATIENCE", 0.1)
    with (
        FileLock(place / "d/.feedmill-work/lock"),
        pytest.raises(FeedmillError, match="'delete' is publishing") as error,
    ):
        fm.open(place / "d")
    assert error.value.kind == "unfinished-job"


def test_other_work_clears_up_after_a_killed_append(start: Path, tmp_path: Path) -> None:
    place = tmp_path / "x"
    shutil.copytree(start, place / "d")
    words = ["edit", "append", "d", str(tmp_path / "more"), "--max-shard-samples", "10", "--workers", "1"]
    assert run_until_killed(6, words, place)
    assert len(list((place / "d/shards").glob("*.tar"))) > 4
    finish(["edit", "delete", "d", "--yes", "s00001", "--workers", "1"], place)
    assert len(list((place / "d/shards").glob("*.tar"))) == 4 and len(contents(place / "d")) == 119


def killed_once_listed(start: Path, words: list[str]) -> None:
    """Run an append to a copy of a dataset, and kill it when the index has the new shards."""
    copy = start.parent / "d"
    for moment in nearest(LISTED, range(40)):
        shutil.copytree(start, copy)
        if run_until_killed(moment, words, start.parent) and len(read_info(LocalStore(copy))) == 9:
            return
        shutil.rmtree(copy)
    raise AssertionError("no such moment")


@pytest.mark.parametrize("split", ["val", None])
@pytest.mark.parametrize("other", ["append", "delete", "write"])
def test_shards_that_a_killed_append_has_listed_join_their_split(start: Path, split: str | None, other: str) -> None:
    """Killed when the index had the new shards and the split file not yet: other work must not leave them in none."""
    place = start.parent
    (start / ".nv-meta/split.yaml").write_text(
        "split_parts:\n  train: ['shards/{000000..000001}.tar']\n  val: [shards/000002.tar]\n"
        "exclude: [shards/000003.tar]\n"
    )
    words = ["edit", "append", "start", "more", "--max-shard-samples", "10", "--workers", "1"]
    words += [] if split is None else ["--split", split]
    killed_once_listed(start, ["edit", "append", "d", *words[3:]])
    assert len(fm.open(place / "d", split=split or "train")) == (30 if split else 60)
    if other == "append":
        fm.write(str(place / "again"), samples(5, 900))
        append(str(place / "d"), [str(place / "again")], split="test", progress=False)
    elif other == "delete":
        finish(["edit", "delete", "d", "--yes", "s00001", "--workers", "1"], place)
    else:
        fm.write(str(place / "d"), samples(5, 900), split="test", append=True)
    assert len(fm.open(place / "d", split=split or "train")) == (
        (80 if split else 110) - (other == "delete" and split is None)
    )
    assert check(str(place / "d")).findings == []
    assert fm.open(place / "d", split="train")[0].key == "s00000"
    if other != "delete":
        assert len(fm.open(place / "d", split="test")) == 5


def test_splits_that_were_made_after_a_killed_append_stay(start: Path) -> None:
    place = start.parent
    killed_once_listed(start, ["edit", "append", "d", "more", "--max-shard-samples", "10", "--workers", "1"])
    prepare(str(place / "d"), split_ratio="1,8,0", progress=False)
    splits = fm.open(place / "d").splits
    finish(["edit", "delete", "d", "--yes", "s00119", "--workers", "1"], place)
    assert sum(splits.values()) == sum(fm.open(place / "d").splits.values()) + 1
    assert fm.open(place / "d").splits["train"] == splits["train"]


class TestTarsOfOthers:
    """A killed append has left shards 4 and 5 of five when the user adds tars of his own."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        fm.write(str(tmp_path / "d"), samples(20), max_shard_samples=5)
        fm.write(str(tmp_path / "more"), samples(25, 500))
        assert run_until_killed(7, self.WORDS, tmp_path)
        assert self.tars(tmp_path) == [f"{n:06d}" for n in range(6)] and len(contents(tmp_path / "d")) == 20
        write_tar(tmp_path / "d/shards/000500.tar", [("mine.txt", b"precious")])
        return tmp_path

    WORDS = ("edit", "append", "d", "more", "--max-shard-samples", "5", "--workers", "1")

    @staticmethod
    def tars(place: Path) -> list[str]:
        return sorted(path.stem for path in (place / "d/shards").glob("*.tar"))

    def test_other_work_deletes_only_what_the_append_wrote(self, place: Path) -> None:
        (place / "d/shards/000006.tar").write_bytes((place / "d/shards/000500.tar").read_bytes())
        fm.write(str(place / "d"), samples(3, 900), append=True)
        assert self.tars(place) == [*(f"{n:06d}" for n in range(4)), "000006", "000500", "000501"]

    def test_check_and_prepare_name_the_append_and_its_shards_are_not_indexed(self, place: Path) -> None:
        notes = check(str(place / "d"), progress=False).notes
        assert ["interrupted 'append' wrote it" in note for note in notes] == [True, True, False]
        report = prepare(str(place / "d"), progress=False)
        assert report.samples == 21 and len(report.warnings) == 1
        assert "000004.tar: not indexed, like 1 more shards: an interrupted 'append'" in report.warnings[0]
        finish(self.WORDS, place)
        assert len(contents(place / "d")) == 46 and fm.open(place / "d")["mine"]["txt"] == "precious"
        assert check(str(place / "d"), progress=False).notes == []

    def test_shards_that_were_indexed_half_way_are_not_indexed_twice(self, place: Path) -> None:
        prepare(str(place / "d"), shards=[f"shards/{name}.tar" for name in self.tars(place)], progress=False)
        assert len(contents(place / "d")) == 31
        finish(self.WORDS, place)
        assert len(contents(place / "d")) == 46
        assert check(str(place / "d"), progress=False).findings == []

    def test_a_tar_of_others_is_not_replaced(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(place)
        mine = place / "d/shards/000006.tar"
        (place / "d/shards/000500.tar").rename(mine)
        before = mine.read_bytes()
        with pytest.raises(FeedmillError, match=r"000006\.tar.*was added since it was interrupted") as caught:
            append("d", ["more"], max_shard_samples=5, workers=1, progress=False)
        assert caught.value.kind == "changed" and mine.read_bytes() == before
        mine.unlink()
        append("d", ["more"], max_shard_samples=5, workers=1, progress=False)
        assert len(contents(place / "d")) == 45


@pytest.mark.parametrize("emptied", ["000001.tar", "000001.tar.idx"])
def test_a_shard_that_a_loss_of_power_emptied_is_the_jobs(emptied: str, tmp_path: Path) -> None:
    samples = [{"__key__": f"{n}", "txt": "a"} for n in range(4)]
    fm.write(str(tmp_path / "d"), samples, pattern="shards/%06d.tar", max_shard_samples=2, progress=False)
    job = {"identity": {"layout": {"pattern": "shards/%06d.tar", "first": 0}}, "units": 2}
    both = ["shards/000000.tar", "shards/000001.tar"]
    assert left_shards(LocalStore(tmp_path / "d"), job) == both
    (tmp_path / "d/shards" / emptied).write_bytes(b"")
    assert left_shards(LocalStore(tmp_path / "d"), job) == both
    (tmp_path / "d/shards/000001.tar").write_bytes(b"a tar of others" * 1000)
    (tmp_path / "d/shards/000001.tar.idx").write_bytes(bytes(24))
    assert left_shards(LocalStore(tmp_path / "d"), job) == both[:1]
