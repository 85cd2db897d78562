"""What a run has written, in manifests: found again only while it is as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feedmill.curation.attribute_set import record, recorded
from feedmill.documents.file import DocumentFile
from feedmill.documents.find import find_in_datasets


def made(tmp_path: Path, root: str, names: list[str]) -> list[DocumentFile]:
    for name in names:
        for path in (tmp_path / root / "documents" / name, tmp_path / root / "attributes/set" / name):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('{"id": "a", "text": "b", "attributes": {}}\n')
    return find_in_datasets([f"{tmp_path}/{root}/documents/{name}" for name in names], [])


def entry(size: int, flagged: int = 0) -> dict[str, Any]:
    return {"rows": 1, "ids": "x", "size": size, "flagged": flagged, "units": 0}


def test_what_was_recorded_is_found_while_it_is_the_same(tmp_path: Path) -> None:
    files = made(tmp_path, "a", ["0.jsonl", "deep/1.jsonl"]) + made(tmp_path, "b", ["0.jsonl"])
    size = (tmp_path / "a/attributes/set/0.jsonl").stat().st_size
    assert recorded(files, "set", "documents", run="r") is None
    record(files, [entry(size, n) for n in range(3)], "set", "documents", {"verb": "test", "run": "r"})
    found = recorded(files, "set", "documents", run="r")
    assert found is not None
    assert [one["verb"] for one in found[0]] == ["test", "test"] and [one["flagged"] for one in found[1]] == [0, 1, 2]
    assert found[1][1]["documents"]["path"] == "documents/deep/1.jsonl"
    assert recorded(files, "set", "documents", run="another") is None
    (tmp_path / "b/attributes/set/0.jsonl").write_text("longer than it was, and so another file\n" * 9)
    assert recorded(files, "set", "documents", run="r") is None
    assert recorded(files[:2], "set", "documents", run="r") is not None


@pytest.mark.parametrize("how", ["gone", "not listed"])
def test_a_file_that_is_not_there_was_not_done(tmp_path: Path, how: str) -> None:
    files = made(tmp_path, "a", ["0.jsonl", "1.jsonl"])
    size = (tmp_path / "a/attributes/set/0.jsonl").stat().st_size
    record(files if how == "gone" else files[:1], [entry(size)] * (2 if how == "gone" else 1), "set", "documents", {})
    if how == "gone":
        (tmp_path / "a/attributes/set/1.jsonl").unlink()
    assert recorded(files, "set", "documents") is None


def test_entries_of_an_earlier_run_are_kept(tmp_path: Path) -> None:
    files = made(tmp_path, "a", ["0.jsonl", "1.jsonl"])
    size = (tmp_path / "a/attributes/set/0.jsonl").stat().st_size
    record(files[:1], [entry(size)], "set", "documents", {"run": "first"})
    record(files[1:], [entry(size)], "set", "documents", {"run": "second"})
    manifest = json.loads((tmp_path / "a/.feedmill/mix-attributes/set/manifest.json").read_bytes())
    assert (sorted(manifest["files"]), manifest["run"]) == (["0.jsonl", "1.jsonl"], "second")


@pytest.mark.parametrize("wrong", [7, [], {}, {"size": "x"}, {"size": 43, "rows": None}])
def test_an_entry_that_makes_no_sense_was_not_done(tmp_path: Path, wrong: Any) -> None:
    files = made(tmp_path, "a", ["0.jsonl"])
    size = (tmp_path / "a/attributes/set/0.jsonl").stat().st_size
    record(files, [entry(size)], "set", "documents", {"verb": "test", "run": "r"})
    manifest = tmp_path / "a/.feedmill/mix-attributes/set/manifest.json"
    tree = json.loads(manifest.read_text())
    tree["files"] = dict.fromkeys(tree["files"], wrong)
    manifest.write_text(json.dumps(tree))
    assert recorded(files, "set", "documents", run="r") is None
