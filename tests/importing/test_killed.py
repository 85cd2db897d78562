"""An import that is killed: the same command again gives the bytes of an undisturbed run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.demo.sample_data import card
from helpers import warm
from helpers.kills import command, finish, moments, run_until_killed

_FILES = {
    "documents": {f"{i:02}.txt": f"text {i} ".encode() * 400 for i in range(12)} | {"bad.txt": b"\xff", "x.pdf": b"x"},
    "media": {f"{i:02}.jpg": card(i) for i in range(24)} | {"05.jpg": b"no image", "x.pdf": b"x"},
    "boxes": {f"images/{i:02}.jpg": card(i) for i in range(24)}
    | {f"labels/{i:02}.txt": f"{i % 2} 0.5 0.5 0.2 0.{i + 10}\n0 1 2\n".encode() for i in range(20)}
    | {"data.yaml": b"names: [card, table]\n", "images/05.jpg": b"no image"},
}
_LIMITS = {
    "documents": ["--max-shard-size", "9kB"],
    "media": ["--max-shard-samples", "5"],
    "boxes": ["--max-shard-samples", "5"],
}


def make(root: Path, kind: str) -> list[str]:
    """Write the files of an import, and return the words of its command."""
    (root / "raw").mkdir(parents=True)
    for name, data in _FILES[kind].items():
        (root / "raw" / name).parent.mkdir(exist_ok=True)
        (root / "raw" / name).write_bytes(data)
    return ["import", "raw", "out", *_LIMITS[kind], "--workers", "1", "--json"]


def contents(out: Path) -> dict[str, bytes]:
    """The files of an output, without those that hold times of files or random words."""
    named = {path.relative_to(out).as_posix(): path for path in sorted(out.rglob("*")) if path.is_file()}
    volatile = (".nv-meta/index.uuid", ".nv-meta/feedmill.")
    assert not any(name.startswith(".feedmill-work") for name in named), sorted(named)
    kept = {name: path for name, path in named.items() if not name.startswith(volatile) and ".sqlite" not in name}
    return {name: path.read_bytes() for name, path in kept.items()}


def finish_or_exists(words: list[str], root: Path) -> str | None:
    """Run the command; what it prints, or None if the killed run had written everything."""
    again = warm.run(command(*words), cwd=root, capture_output=True, text=True, check=False)
    if again.returncode:
        assert json.loads(again.stdout)["error"]["kind"] == "exists", again.stderr
        return None
    return again.stdout


def summary(printed: str) -> dict[str, object]:
    report = json.loads(printed)
    return {name: report[name] for name in ("samples", "outputs", "left_out", "splits", "files")}


@pytest.mark.parametrize("kind", _FILES)
@moments(6, (0, 3, 6, 9, 14, 20), least=4)
def test_a_killed_import_is_finished(tmp_path: Path, kind: str, moments: Sequence[int], least: int) -> None:
    words = make(tmp_path / "calm", kind)
    wanted = summary(finish(words, tmp_path / "calm"))
    calm = contents(tmp_path / "calm/out")
    killed = reused = 0
    for moment in moments:
        root = tmp_path / f"at{moment}"
        make(root, kind)
        if not run_until_killed(moment, words, root):
            break
        killed += 1
        if kind == "documents" and (root / "out/documents").exists():  # being published
            assert (root / "out/.feedmill-work/job.json").exists()
        printed = finish_or_exists(words, root)
        if printed is not None:
            assert summary(printed) == wanted, moment
            reused += json.loads(printed)["reused"]
        assert contents(root / "out") == calm, moment
    assert killed >= least and reused > 0


def test_changed_files_start_again(tmp_path: Path) -> None:
    words = make(tmp_path, "media")
    assert run_until_killed(9, words, tmp_path)
    (tmp_path / "raw/00.jpg").write_bytes(card(1))
    assert json.loads(finish(words, tmp_path))["reused"] == 0
    assert fm.open(tmp_path / "out", raw=True)["00"].raw("jpg") == card(1)
