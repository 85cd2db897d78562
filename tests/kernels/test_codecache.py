"""Where compiled code is kept."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numba
import pytest

import feedmill
from feedmill.kernels import codecache

OURS = stat.S_IFDIR | 0o700


def about(mode: int, owner: int) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, owner, 1, 1, 1, 1, 1))


@pytest.mark.parametrize(
    ("mode", "owner", "trusted"),
    [
        (OURS, 1000, True),
        (OURS | 0o055, 1000, True),
        (OURS | 0o055, 0, True),  # installed by root
        (OURS, 1001, False),
        (OURS | 0o002, 1000, False),
        (OURS | 0o020, 1000, False),
        (stat.S_IFDIR | 0o1777, 0, False),
        (stat.S_IFLNK | 0o777, 1000, False),
    ],
)
def test_trust(mode, owner, trusted, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert codecache.trusted(about(mode, owner)) == trusted


def test_the_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", "/scratch")
    beside, own, temporary = codecache.folders()
    assert beside == Path(codecache.__file__).parent / "__pycache__"
    assert own == tmp_path / "feedmill/kernels"
    assert temporary == Path(f"/scratch/feedmill-{os.geteuid()}")
    monkeypatch.setenv("XDG_CACHE_HOME", "~/.cache")  # as expanduser leaves it for a user without a home
    assert list(codecache.folders()) == [beside, temporary]


def test_a_folder_is_made_for_this_user_and_a_link_is_not_followed(tmp_path):
    assert codecache.writable(tmp_path / "a/b") and (tmp_path / "a/b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "a/b")
    assert not codecache.writable(tmp_path / "link")
    (tmp_path / "file").touch()
    assert not codecache.writable(tmp_path / "file/b")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert not codecache.writable(tmp_path / "open")


def test_the_users_own_choice_for_numba_holds(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    one = codecache.njit(lambda x: x + 1)
    assert one(1) == 2 and list(tmp_path.rglob("*.nbi"))
    assert str(tmp_path) == numba.config.CACHE_DIR


PROGRAM = """
import json, sys
import numpy as np
from feedmill.kernels.text.lengths import byte_lengths

assert byte_lengths(np.frombuffer("aé".encode("utf-32-le"), "<u4"), np.array([0, 2])).tolist() == [3]
early = "numba" in sys.modules
from feedmill.kernels.files.btree import varint_width

assert varint_width(5) == 1
print(json.dumps([early, sum(varint_width.made.stats.cache_hits.values())]))
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package where nothing can be written beside it, for a user without a home."""
    package = tmp_path / "package/feedmill"
    shutil.copytree(Path(feedmill.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "kernels/__pycache__").touch()
    (tmp_path / "work").mkdir()
    nowhere = str(package / "kernels/__pycache__/none")
    for name, value in {"PYTHONPATH": package.parent, "XDG_CACHE_HOME": nowhere, "HOME": nowhere}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    return tmp_path / "work"


def run(folder: Path) -> list[object]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_package_that_is_read_only_and_no_home(installed, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(installed))
    assert run(installed) == [True, 0]
    assert run(installed) == [False, 1]  # what the first process compiled
    assert [path.name for path in installed.iterdir()] == [f"feedmill-{os.geteuid()}"]


def test_no_folder_at_all(installed, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(installed))
    (installed / f"feedmill-{os.geteuid()}").mkdir()
    (installed / f"feedmill-{os.geteuid()}").chmod(0o777)  # as someone else could have left it there
    assert run(installed) == [True, 0]
    assert run(installed) == [True, 0]
    assert list(installed.rglob("*")) == [installed / f"feedmill-{os.geteuid()}"]
