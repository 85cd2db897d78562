"""The job of a conversion: who may write to its place."""

from __future__ import annotations

import errno
import fcntl
import json
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.converting.job import ConvertWork, Done, write_hashes
from feedmill.errors import DataError, StorageError
from feedmill.storage import LocalStore
from helpers.conversion_sources import sample_set


def test_one_conversion_at_a_time(tmp_path: Path) -> None:
    first = ConvertWork(str(tmp_path / "x"), is_file=False)
    with pytest.raises(StorageError, match="another process is writing here"):
        ConvertWork(str(tmp_path / "x"), is_file=False)
    first.begin({"a": 1})
    first.close()
    second = ConvertWork(str(tmp_path / "x"), is_file=False)
    assert second.is_of({"a": 1})
    second.finish()
    second.close()
    second.close()


@pytest.mark.parametrize("left", [None, b"", bytes(32)])
def test_an_output_whose_hashes_were_lost_is_not_finished(left: bytes | None, tmp_path: Path) -> None:
    """They are not synced: a power failure may leave the file missing, empty or full of zeros."""
    work, store = ConvertWork(str(tmp_path), is_file=False), LocalStore(tmp_path)
    work.begin({"a": 1})
    notes = work.place.url
    for number in range(2):
        work.add(Done(number, "", 0, "", 2, hashes=write_hashes(notes, number, bytes(range(32)))))
    assert set(work.done(store)) == {0, 1}
    lost = next(Path(notes).glob("000001.hashes"))
    lost.unlink() if left is None else lost.write_bytes(left)
    assert set(work.done(store)) == {0}
    work.close()


@pytest.mark.parametrize(
    "job",
    [
        {"version": 1, "identity": {}, "half": True, "replaced": []},
        {"version": 1, "identity": {}, "half": True, "moves": [["a"]], "deletes": []},
        {"version": 1, "identity": 5},
        {"identity": {}},
        {"version": 1, "identity": {}, "replaced": [5]},
        {"version": 1, "identity": {}, "staged": True, "writes": "x"},
    ],
)
def test_a_damaged_job_is_an_error_and_nothing_is_removed(job: object, tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source", 3)
    (tmp_path / "out/.feedmill-work").mkdir(parents=True)
    (tmp_path / "out/mine").write_bytes(b"mine")
    (tmp_path / "out/.feedmill-work/job.json").write_text(json.dumps(job))
    with pytest.raises(DataError, match="journal of an interrupted run is corrupt") as caught:
        fm.convert(source, tmp_path / "out", "mds", overwrite=True, workers=1, progress=False)
    assert caught.value.kind == "bad-job" and "remove" in str(caught.value)
    assert (tmp_path / "out/mine").read_bytes() == b"mine"


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    work = ConvertWork(str(tmp_path / "x"), is_file=False)
    work.close()
    assert not (tmp_path / "x").exists()
