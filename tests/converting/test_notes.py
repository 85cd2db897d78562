"""The notes of a conversion: who may write them."""

from __future__ import annotations

import errno
import fcntl
import json
from pathlib import Path

import pytest

import feedmill as fm
from converted import sample_set
from feedmill.converting.notes import Notes
from feedmill.errors import DataError, StorageError


def test_one_conversion_at_a_time(tmp_path: Path) -> None:
    first = Notes(str(tmp_path / "x"), is_file=False)
    with pytest.raises(StorageError, match="another process is converting to this place"):
        Notes(str(tmp_path / "x"), is_file=False)
    first.write_job({"identity": {"a": 1}})
    first.close()
    second = Notes(str(tmp_path / "x"), is_file=False)
    assert second.read_job() == {"identity": {"a": 1}}
    second.finish()
    second.close()
    second.close()


@pytest.mark.parametrize(
    "job",
    [
        {"proof": {"source": 5}, "replace": []},
        {"proof": "x", "replace": []},
        {"identity": 5},
        {"replace": [5]},
        {"staged": True, "writes": "x"},
    ],
)
def test_a_foreign_note_is_told_and_nothing_is_removed(job: object, tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source", 3)
    (tmp_path / "out/.feedmill-convert").mkdir(parents=True)
    (tmp_path / "out/mine").write_bytes(b"mine")
    (tmp_path / "out/.feedmill-convert/job.json").write_text(json.dumps(job))
    with pytest.raises(DataError, match="this is no note of a conversion") as caught:
        fm.convert(source, tmp_path / "out", "mds", overwrite=True, workers=1, progress=False)
    assert caught.value.kind == "bad-notes" and "Remove the folder" in str(caught.value)
    assert (tmp_path / "out/mine").read_bytes() == b"mine"


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    notes = Notes(str(tmp_path / "x"), is_file=False)
    notes.close()
    assert not (tmp_path / "x").exists()
