"""The notes of a conversion: who may write them."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from feedmill.converting.notes import Notes
from feedmill.errors import StorageError


def test_one_conversion_at_a_time(tmp_path: Path) -> None:
    first = Notes(str(tmp_path / "x"), is_file=False)
    with pytest.raises(StorageError, match="another process is converting to this place"):
        Notes(str(tmp_path / "x"), is_file=False)
    first.write_job({"identity": 1})
    first.close()
    second = Notes(str(tmp_path / "x"), is_file=False)
    assert second.read_job() == {"identity": 1}
    second.finish()
    second.close()
    second.close()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    notes = Notes(str(tmp_path / "x"), is_file=False)
    notes.close()
    assert not (tmp_path / "x").exists()
