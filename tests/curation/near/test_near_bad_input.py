"""What near-deduplication refuses, and that it leaves nothing half-written."""

from __future__ import annotations

import fcntl
import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.curation.dedupe.job import dedupe
from feedmill.errors import FeedmillError
from feedmill.formats.arrays import write_arrays
from feedmill.formats.signatures import read_arrays, read_marker, write_marker
from feedmill.storage import LocalStore
from helpers.near_copies import make_texts, marked, write_documents


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_documents(tmp_path, {"a.jsonl": make_texts(40, 1), "b.jsonl.gz": make_texts(40, 1)})
    return tmp_path


def find(signatures: str | None = "s", workers: int = 1, **options: Any) -> None:
    dedupe(["documents"], near=True, signatures=signatures, workers=workers, progress=False, **options)


def refused(signatures: str | None = "s", **options: object) -> FeedmillError:
    with pytest.raises(FeedmillError) as caught:
        find(signatures, **options)
    assert caught.value.fix
    return caught.value


GOOD = b'{"id":"1","text":"a b c d e f g"}\n'


@pytest.mark.parametrize(
    ("rows", "line", "said"),
    [
        (GOOD + b'{"id":"2","text":"a', "line 2", "truncated"),
        (GOOD + b"\n" + GOOD, "line 2", "blank"),
        (GOOD + b'{"text":"a"}\n', "line 2", "no 'id'"),
        (GOOD * 3 + b'{"id":"2"}\n', "line 4", "text"),
        (GOOD + b'{"id":"2","text":7}\n', "line 2", "expected `str`"),
        (GOOD + b'{"id":"2","text":"\xff"}\n', "line 2", "utf"),
        (GOOD + b"[]\n", "line 2", "object"),
        (GOOD + b'{"id":"2","text":"\\ud800"}\n', "line 2", "lone surrogate"),
    ],
)
@pytest.mark.parametrize("signatures", [None, "s"])
def test_bad_rows(folder: Path, rows: bytes, line: str, said: str, signatures: str | None) -> None:
    (folder / "documents/c.jsonl").write_bytes(rows)
    error = refused(signatures)
    assert (error.kind, error.file, error.record) == ("bad-document", "documents/c.jsonl", line)
    assert said.lower() in str(error).lower()
    assert not list(folder.glob("attributes/dup_near/*.jsonl*")) and not list(folder.rglob("dump-*"))
    (folder / "documents/c.jsonl").write_bytes(GOOD)
    find(signatures)
    assert len(marked(folder)) >= 40


def test_finished_files_are_not_read_again_after_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "documents/c.jsonl").write_bytes(b"{")
    refused(None)
    (folder / "documents/c.jsonl").write_bytes(GOOD)
    read: list[str] = []
    from feedmill.curation.near import sketch

    of = sketch.read_blocks
    monkeypatch.setattr(sketch, "read_blocks", lambda file, **kw: read.append(file.path) or of(file, **kw))
    find(None)
    assert read == ["documents/c.jsonl"]


def test_cut_compression(folder: Path) -> None:
    whole = gzip.compress(GOOD * 1000)
    (folder / "documents/c.jsonl.gz").write_bytes(whole[:-20])
    error = refused()
    assert error.kind == "bad-compression" and error.file and error.file.endswith("c.jsonl.gz")
    assert not list(folder.glob("attributes/dup_near/*.jsonl*"))


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0.0}, {"threshold": 1.5}, {"threshold": float("nan")}, {"ngram": 0}, {"bands": 4},
        {"bands": -1, "rows": -1}, {"bands": 10**6, "rows": 10}, {"keep": "last"}, {"name": ""}, {"name": "a/b"},
    ],
)  # fmt: skip
def test_options_that_make_no_sense(options: dict[str, object]) -> None:
    assert refused(**options).kind == "bad-option"


def test_other_options_than_those_of_the_signatures(folder: Path) -> None:
    find()
    error = refused(threshold=0.7, ngram=4)
    assert error.kind == "settings-differ"
    assert "threshold 0.8 instead of 0.7" in str(error) and "ngram 5" in str(error)
    find(name="other")


def test_a_file_that_changed(folder: Path) -> None:
    find()
    with open("documents/a.jsonl", "ab") as f:
        f.write(GOOD)
    error = refused()
    assert (error.kind, error.file) == ("changed", "documents/a.jsonl")
    find(None)


def test_signatures_in_use(folder: Path) -> None:
    find()
    (folder / "documents/c.jsonl").write_bytes(GOOD)
    with open("s/lock", "rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert refused().kind == "busy"
    find()


def test_signatures_are_local() -> None:
    assert "local" in str(refused("s3://bucket/s"))


def test_nothing_to_read(folder: Path) -> None:
    with pytest.raises(FeedmillError) as caught:
        dedupe(["documents/*.zst"], near=True, progress=False)
    assert caught.value.kind == "no-documents"


@pytest.mark.parametrize("where", ["near.json", "dump-00000.json"])
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}"])
def test_damaged_records(folder: Path, where: str, data: bytes) -> None:
    find()
    (folder / "s" / where).write_bytes(data)
    (folder / "documents/c.jsonl").write_bytes(GOOD)
    error = refused()
    assert error.kind == "bad-data" and error.file == str(folder / "s" / where)


def test_damaged_arrays(folder: Path) -> None:
    find()
    (folder / "documents/c.jsonl").write_bytes((folder / "documents/a.jsonl").read_bytes())
    before = {path: path.read_bytes() for path in (folder / "attributes").rglob("*.jsonl*")}
    for path in [*(folder / "s/segments").glob("*-00000"), *(folder / "s/dumps").rglob("clusters")]:
        whole = path.read_bytes()
        for data in (b"", whole[:40], whole[:-64], b"X" + whole[1:], whole + bytes(64)):
            path.write_bytes(data)
            error = refused()
            assert error.kind == "bad-data" and error.file == str(path)
        path.unlink()
        error = refused()
        assert error.kind == "bad-data" and error.file == str(path) and "missing" in str(error)
        path.write_bytes(whole)
    assert {path: path.read_bytes() for path in (folder / "attributes").rglob("*.jsonl*")} == before
    find()


def test_array_files(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    arrays = {
        "a": np.arange(6, dtype=np.uint64).reshape(2, 3),
        "b": np.zeros(0, np.int64),
        "c": np.frombuffer(b"xyz", np.uint8),
        "d": np.zeros((4, 0), np.uint32),
    }
    write_arrays(store, "x", arrays)
    found = read_arrays(store, "x")
    assert list(found) == list(arrays)
    assert all(
        (found[n] == a).all() and found[n].dtype == a.dtype and found[n].shape == a.shape for n, a in arrays.items()
    )
    assert not found["a"].flags.writeable
    raw = (tmp_path / "x").read_bytes()
    length = struct.unpack("<Q", raw[8:16])[0]
    header = json.loads(raw[16 : 16 + length])
    for entry in (["|O8", [1], 64], ["<u8", [-1], 64], ["<u8", [10**9], 64], ["<u8", [1], 8], ["<u8", [], 64], [], 7):
        changed = json.dumps({**header, "a": entry}).encode().ljust(length)
        assert len(changed) == length
        (tmp_path / "x").write_bytes(raw[:16] + changed + raw[16 + length :])
        with pytest.raises(FeedmillError) as caught:
            read_arrays(LocalStore(tmp_path), "x")
        assert caught.value.kind == "bad-data"


@pytest.mark.parametrize("there", ["dumps/2024.jsonl", "segments/a.jsonl", "notes.jsonl"])
def test_a_folder_with_other_files_is_no_place_for_signatures(folder: Path, there: str) -> None:
    (folder / "documents" / there).parent.mkdir(exist_ok=True)
    (folder / "documents" / there).write_bytes(GOOD)
    before = sorted(folder.rglob("*"))
    error = refused("documents")
    assert error.kind == "other-format" and error.file == str(folder / "documents")
    assert sorted(folder.rglob("*")) == before and (folder / "documents" / there).read_bytes() == GOOD


def test_a_folder_of_which_a_killed_run_left_the_lock_only_is_used(folder: Path) -> None:
    (folder / "s").mkdir()
    (folder / "s/lock").touch()
    (folder / "s/near.json.0.feedmill-tmp").touch()
    find("s")
    assert len(marked(folder)) >= 40


@pytest.mark.parametrize("left", [b"", bytes(40), b'{"rows": 3}', b'{"":"0","rows":3}'])
def test_a_marker_that_a_power_failure_damaged_is_none(left: bytes, tmp_path: Path) -> None:
    """It is not synced."""
    store = LocalStore(tmp_path)
    assert read_marker(store, "x") is None
    write_marker(store, "x", {"rows": 3})
    assert read_marker(store, "x") == {"rows": 3}
    (tmp_path / "x").write_bytes(left)
    assert read_marker(store, "x") is None
