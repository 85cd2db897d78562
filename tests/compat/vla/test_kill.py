"""Manifests and statistics are whole or absent, wherever their writer was killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import feedmill as fm
from helpers.kills import finish, run_until_killed
from helpers.vla_golden import ROOT


@pytest.mark.parametrize(
    "words, name",
    [
        (("compat", "vla", "manifest", "r"), "manifest.jsonl"),
        (("compat", "vla", "stats", "r"), "stats.json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_killed_before_it_is_there_and_run_again(tmp_path: Path, words: tuple[str, ...], name: str) -> None:
    folder = tmp_path / "r"
    shutil.copytree(ROOT / "robotics", folder, ignore=shutil.ignore_patterns("expected.json"))
    target = folder / name
    target.unlink(missing_ok=True)
    assert run_until_killed(0, words, tmp_path)
    assert not target.exists()
    finish(words, tmp_path)
    whole = target.read_bytes()
    assert run_until_killed(0, words, tmp_path) and target.read_bytes() == whole  # the old one stays
    finish(words, tmp_path)
    assert target.read_bytes() == whole
    assert len(fm.open(folder)) == 11
