"""reshard, append, delete, add-parts, mount on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from helpers.written_datasets import samples


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    fm.write("d", samples(30), max_shard_samples=10)
    return tmp_path


def run(*words: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == status, done.output
    assert "Traceback" not in done.output
    return done.output


def test_reshard(root: Path) -> None:
    assert "shards   5" in run("edit", "reshard", "d", "e", "--max-shard-samples", "6", "--workers", "1")
    assert len(fm.open("e")) == 30
    assert "a dataset already exists here" in run("edit", "reshard", "d", "e", "--max-shard-samples", "6", status=1)
    found = json.loads(
        run("edit", "reshard", "d", "e", "--max-shard-size", "10kB", "--overwrite", "--json", "--workers", "1")
    )
    assert found["samples"] == 30
    assert "limit" in run("edit", "reshard", "d", "f", status=1)


def test_append(root: Path) -> None:
    fm.write("more", samples(5, 100))
    assert "samples  5" in run("edit", "append", "d", "more", "--workers", "1")
    assert "occurs" in run("edit", "append", "d", "more", "--workers", "1", status=1)
    assert json.loads(run("edit", "append", "d", "more", "--prefix", "x/", "--json", "--workers", "1"))["shards"] == 1
    assert len(fm.open("d")) == 40


def test_delete(root: Path) -> None:
    shown = run("edit", "delete", "d", "s00001", "--dry-run")  # needs no confirmation
    assert "samples to delete  1" in shown and "would replace      d/shards/000000.tar" in shown
    assert len(fm.open("d")) == 30
    Path("gone.txt").write_text("s00002\n\ns00029\nnope\n")
    assert "no sample with this key" in run("edit", "delete", "d", "--yes", "--keys-from", "gone.txt", status=1)
    text = run(
        "edit", "delete", "d", "--yes", "s00001", "--keys-from", "gone.txt", "--on-error", "skip", "--workers", "1"
    )
    assert "3 samples" in text and "2 of 3" in text and "nope" in text
    assert len(fm.open("d")) == 27
    assert "nothing to delete" in run("edit", "delete", "d", "--yes", status=1)
    Path("bad.txt").write_bytes(b"\xff\xfe")
    assert "UTF-8" in run("edit", "delete", "d", "--yes", "--keys-from", "bad.txt", status=1)
    run("edit", "delete", "d", "--yes", "--keys-from", "none.txt", status=1)


def test_add_parts(root: Path) -> None:
    fm.write("extra", [{"__key__": f"s{i:05d}", "cls": i, "txt": "x"} for i in range(29)])
    assert "has no sample" in run("edit", "add-parts", "d", "extra", "--workers", "1", status=1)
    run("edit", "add-parts", "d", "extra", "--on-error", "skip", "--part-name", "cls", "--workers", "1")
    assert fm.open("d", raw=True)["s00004"]["cls"] == 4 and "txt" not in fm.open("d", raw=True)["s00004"]
    found = json.loads(
        run("edit", "add-parts", "d", "extra", "--on-error", "skip", "--into", "aux", "--json", "--workers", "1")
    )
    assert found["samples"] == 29 and found["path"] == "aux"


def test_mount_says_what_is_missing(root: Path) -> None:
    assert "not a folder" in run("edit", "mount", "d", "nowhere", status=1)
    assert "not empty" in run("edit", "mount", "d", "d", status=1)


def test_a_list_of_keys_from_another_system(root: Path) -> None:
    (root / "keys.txt").write_bytes(b"\xef\xbb\xbfs00000\r\ns00001\r\n\r\n")
    assert "deleted           2 samples" in run(
        "edit", "delete", "d", "--yes", "--keys-from", "keys.txt", "--workers", "1"
    )


def test_numbers_beyond_64_bits_are_one_message(root: Path) -> None:
    shown = run(
        "edit", "reshard", "d", "e", "--max-shard-samples", "5", "--shuffle", "9" * 20, "--workers", "1", status=1
    )
    assert "at most 64 bits" in shown and not Path("e").exists()
    assert "at most 64 bits" in run(
        "edit", "append", "d", "d", "--max-shard-samples", "9" * 20, "--prefix", "x/", status=1
    )
    assert len(fm.open("d")) == 30
    run("edit", "reshard", "d", "e", "--max-shard-samples", "5", "--workers", "1")
