"""Changes in place that are killed in their last moments, or lose their units: the same command finishes them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import DataError, FeedmillError
from feedmill.indexing.check import check
from feedmill.indexing.prepare import prepare
from feedmill.jobs.journal import UNITS
from feedmill.jobs.work_folder import FOLDER
from feedmill.storage import LocalStore
from feedmill.writing.add_parts import add_parts
from feedmill.writing.append import append
from feedmill.writing.delete import delete
from feedmill.writing.reshard import reshard
from helpers import warm
from helpers.kills import run_until_killed
from helpers.tars import make_shards
from helpers.written_datasets import contents, files, samples

GONE = ["s00001", "s00011"]
WORDS = {
    "delete": ["edit", "delete", "d", "--yes", *GONE, "--workers", "1"],
    "add-parts": ["edit", "add-parts", "d", "extra", "--workers", "1"],
}

# Killed before the n-th thing that the end of a change removes.
_AT_THE_END = """
import os, signal, sys
from feedmill.storage import LocalStore
from feedmill.jobs.work import Work
left, finish = int(sys.argv[1]), Work.finish

def counted(method):
    def call(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments, **options)
    return call

def finishing(self):
    for name in ("delete", "remove_folder"):
        setattr(LocalStore, name, counted(getattr(LocalStore, name)))
    finish(self)

Work.finish = finishing
from feedmill.cli.app import main
sys.argv = ["feedmill", *sys.argv[2:]]
main()
"""


def run(verb: str, folder: Path) -> None:
    with contextlib.chdir(folder):
        if verb == "delete":
            delete("d", GONE, workers=1, progress=False)
        else:
            add_parts("d", "extra", workers=1, progress=False)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    fm.write(str(tmp_path / "start/d"), samples(30), max_shard_samples=10, sample_type="CrudeWebdataset")
    fm.write(str(tmp_path / "start/extra"), ({"__key__": f"s{i:05d}", "cls": i} for i in range(30)))
    return tmp_path / "start"


def changed(start: Path, verb: str) -> tuple[Path, dict[str, Any]]:
    """A folder in which the verb has come to its end, and what it holds."""
    calm = start.parent / "calm"
    shutil.copytree(start, calm)
    run(verb, calm)
    return calm, files(calm / "d")


@pytest.mark.parametrize("moment", [0, 1, 2])
@pytest.mark.parametrize("verb", WORDS)
def test_a_change_that_is_killed_while_it_clears_up_is_finished_by_the_same_command_or_done(
    start: Path, tmp_path: Path, verb: str, moment: int
) -> None:
    _, wanted = changed(start, verb)
    place = tmp_path / "killed"
    shutil.copytree(start, place)
    child = [sys.executable, "-c", _AT_THE_END, str(moment), *WORDS[verb]]
    assert warm.run(child, cwd=place, check=False, capture_output=True).returncode == -signal.SIGKILL
    if (place / "d" / FOLDER / "job.json").exists():
        run(verb, place)
    assert {name: data for name, data in files(place / "d").items() if FOLDER not in name} == wanted
    assert check(str(place / "d"), progress=False).findings == []
    fm.write(str(place / "d"), samples(3, 900), append=True)
    assert not (place / "d" / FOLDER).exists()


_SWAPS = {("delete", 1): 12, ("add-parts", 1): 14}
"""By verb and shards: the first moment to try, and then the one that was found."""


def killed_while_swapping(verb: str, place: Path, shards: int = 1) -> None:
    """Run the verb until it has put that many of its shards in place, and kill it."""
    before = {path.name: path.stat().st_mtime_ns for path in (place / "d/shards").glob("*.tar")}
    for moment in range(_SWAPS.get((verb, shards), 0), 40):
        again = place.parent / "again"
        shutil.rmtree(again, ignore_errors=True)
        shutil.copytree(place, again)
        assert run_until_killed(moment, WORDS[verb], again)
        now = {path.name: path.stat().st_mtime_ns for path in (again / "d/shards").glob("*.tar")}
        if sum(now[name] != before[name] for name in before) >= shards:
            shutil.rmtree(place)
            shutil.move(again, place)
            _SWAPS[verb, shards] = moment
            return
    raise AssertionError("no such moment")


@pytest.mark.parametrize("part", [0, 0.5])
@pytest.mark.parametrize("verb", WORDS)
def test_units_that_the_machine_lost_make_no_mixture(start: Path, tmp_path: Path, verb: str, part: float) -> None:
    calm, wanted = changed(start, verb)
    place = tmp_path / "killed"
    shutil.copytree(start, place)
    killed_while_swapping(verb, place)
    units = place / "d" / FOLDER / UNITS
    os.truncate(units, int(part * units.stat().st_size))
    assert contents(place / "d") == contents(calm / "d")
    run(verb, place)
    assert files(place / "d") == wanted and not (place / "d" / FOLDER).exists()


def test_units_are_on_the_disk_before_anything_is_put_in_place(start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, sync, replace = [], os.fsync, os.replace

    def synced(descriptor: int) -> None:
        found = os.fstat(descriptor)
        units = start / "d" / FOLDER / UNITS
        if units.exists() and found.st_ino == units.stat().st_ino:
            events.append("units")
        sync(descriptor)

    def renamed(old: str, new: str) -> None:
        events.append(new.rpartition("/")[2])
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    run("delete", start)
    at = events.index("units")
    assert events[at + 1] == "job.json"
    assert not any(name.startswith("00000") for name in events[:at])


def test_an_interrupted_change_of_a_copied_dataset_is_finished(start: Path, tmp_path: Path) -> None:
    """Copying gives other times, so the shards that are in place are known by their hashes."""
    _, wanted = changed(start, "delete")
    place, copy = tmp_path / "killed", tmp_path / "copy"
    shutil.copytree(start, place)
    killed_while_swapping("delete", place)
    shutil.copytree(place, copy, copy_function=shutil.copyfile)
    run("delete", copy)
    assert contents(copy / "d") == contents(start.parent / "calm/d")
    timed = (".nv-meta/index.uuid", ".nv-meta/feedmill.members", ".nv-meta/feedmill.offsets")
    assert {name: data for name, data in files(copy / "d").items() if name not in timed} == {
        name: data for name, data in wanted.items() if name not in timed
    }


@pytest.mark.parametrize("part", [0, 0.5])
@pytest.mark.parametrize("verb", ["append", "reshard"])
def test_new_shards_whose_units_the_machine_lost_are_written_again(
    start: Path, tmp_path: Path, verb: str, part: float
) -> None:
    fm.write(str(start / "more"), samples(20, 500))
    calm, place = tmp_path / "calm", tmp_path / "killed"
    words = {
        "append": ["edit", "append", "d", "more", "--max-shard-samples", "4", "--workers", "1"],
        "reshard": ["edit", "reshard", "d", "e", "--max-shard-samples", "4", "--workers", "1"],
    }[verb]

    def act(folder: Path) -> Path:
        with contextlib.chdir(folder):
            if verb == "append":
                append("d", ["more"], max_shard_samples=4, workers=1, progress=False)
                return folder / "d"
            reshard("d", "e", max_shard_samples=4, workers=1, progress=False)
            return folder / "e"

    shutil.copytree(start, calm)
    wanted = files(act(calm))
    shutil.copytree(start, place)
    assert run_until_killed(7, words, place)
    units = place / ("d" if verb == "append" else "e") / FOLDER / UNITS
    assert units.stat().st_size
    os.truncate(units, int(part * units.stat().st_size))
    assert files(act(place)) == wanted


@pytest.mark.parametrize(
    "job",
    [
        b"",
        b"[]",
        b'{"version": 1}',
        b'{"version": 2, "identity": {"verb": "append"}}',
        b'{"version": 1, "identity": "append"}',
        b'{"version": 1, "identity": {"verb": "append", "layout": {"pattern": 5}}}',
        b'{"version": 1, "identity": {"verb": "append", "layout": {"pattern": "../%d.tar"}}}',
        b'{"version": 1, "identity": {"verb": "append", "layout": {"other": 5}}}',
        b'{"version": 1, "identity": {"verb": "append"}, "joins": {"train": 5}}',
        b'{"version": 1, "identity": {"verb": "delete"}, "half": true}',
        b'{"version": 1, "identity": {"verb": "delete"}, "half": true, "changed": [], "removed": []}',
        b"\xff",
    ],
)
def test_a_damaged_job_file_is_a_message(start: Path, job: bytes) -> None:
    before = files(start / "d")
    work = LocalStore(start / "d" / FOLDER)
    work.write_bytes("job.json", job)
    for act in (
        lambda: run("delete", start),
        lambda: run("add-parts", start),
        lambda: fm.write(str(start / "d"), samples(3, 900), append=True),
        lambda: fm.write(str(start / "d"), samples(3, 900), overwrite=True),
    ):
        with pytest.raises(DataError, match="interrupted run") as caught:
            act()
        assert caught.value.kind == "bad-job" and caught.value.fix
    work.delete("job.json")
    work.remove_folder()
    assert files(start / "d") == before


def test_deleting_again_says_that_it_may_be_done(start: Path) -> None:
    run("delete", start)
    with pytest.raises(FeedmillError, match="If this command ran before") as caught:
        run("delete", start)
    assert caught.value.kind == "no-such-sample"
    with contextlib.chdir(start), pytest.raises(FeedmillError, match="Nothing was deleted"):
        delete("d", [*GONE, "s00002"], workers=1, progress=False)


def test_a_reader_that_meets_a_change_is_told_of_it_and_not_to_prepare_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset was opened before the change; its shards and their indices are first read while it is published."""
    make_shards(tmp_path / "d", [4, 3, 5], parts=("json",))
    prepare(str(tmp_path / "d"), split_ratio="1,0,0", progress=False)
    opened = [fm.open(tmp_path / "d") for _ in range(32)]
    late = fm.open(tmp_path / "d")
    keys = [late.locate(number).key for number in range(12)]
    before = [fm.open(tmp_path / "d") for _ in range(2)]
    errors: list[DataError] = []
    rename = LocalStore.rename

    def renamed(store: LocalStore, *arguments: Any) -> None:
        rename(store, *arguments)
        for number in (5, 0):
            try:
                opened.pop()[number]
            except DataError as error:
                errors.append(error)

    monkeypatch.setattr(LocalStore, "rename", renamed)
    delete(str(tmp_path / "d"), [*keys[:4], keys[5]], progress=False)
    monkeypatch.undo()
    assert errors and all("prepare" not in str(error) for error in errors)
    assert {error.kind for error in errors} == {"unfinished-job"}
    assert "a 'delete' is publishing changed files" in str(errors[0])
    for dataset, number in zip(before, (5, 0), strict=True):
        with pytest.raises(DataError, match=r"was changed by Feedmill after it was opened here.* Open it again"):
            dataset[number]
    assert [sample.key for sample in fm.open(tmp_path / "d")] == [key for key in keys[4:] if key != keys[5]]
