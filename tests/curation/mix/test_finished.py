"""Where a mix records what is finished: never where another program's patterns take it for documents."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from feedmill.curation.attribute_set import read_manifest
from feedmill.curation.dedupe.job import dedupe
from feedmill.curation.mix.config import read_config
from feedmill.curation.mix.job import mix
from feedmill.curation.mix.report import MixReport
from feedmill.curation.mix.shard import Finished
from feedmill.curation.tag import tag
from feedmill.storage import open_store
from helpers.document_folders import write_documents


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_documents(tmp_path / "d", ["one", "two"], ["three"])


def run(path: str, name: str = "m") -> MixReport:
    stream: dict[str, Any] = {"name": name, "documents": ["d/documents/*"], "output": {"path": path}}
    stream["output"]["max_size_in_bytes"] = 1
    return mix(read_config({"streams": [stream]}), workers=1, progress=False)


def records_in(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lineage"))


def glob_as_dolma(pattern: str) -> list[str]:
    """What the patterns of Dolma's `dedupe` and `mix` match: hidden files and folders as well."""
    matches = re.compile(re.escape(pattern).replace(r"\*", "[^/]*")).fullmatch
    names = [os.path.join(top, name) for top, folders, files in os.walk(".") for name in (*folders, *files)]
    return sorted(name for name in (one.removeprefix("./") for one in names) if matches(name))


@pytest.mark.parametrize(
    ("path", "records"),
    [
        ("x/documents", "x/.feedmill/mix-documents"),
        ("x/documents/en/good", "x/.feedmill/mix-documents/en/good"),
        ("mixed", ".feedmill/mix-mixed"),
        ("runs/7/out/", "runs/7/.feedmill/mix-out"),
    ],
)
def test_patterns_that_match_hidden_names_find_outputs_only(path: str, records: str) -> None:
    run(path)
    wanted = [f"{path.rstrip('/')}/m-000{n}.jsonl.gz" for n in range(2)]
    for pattern in ("x/documents/*", "x/documents/*/*", "x/documents/*/*/*", "x/doc*/*", "*/*", "runs/7/out/*"):
        found = [name for name in glob_as_dolma(pattern) if not name.startswith((".feedmill/", "d/"))]
        assert {name for name in found if os.path.isfile(name)} <= set(wanted)
        assert not any(".feedmill" in name for name in found if name.startswith(("x/doc", "mixed", "runs/7/out")))
    assert records_in(records) == [f"m-000{n}.jsonl.gz.json" for n in range(2)]
    assert len(os.listdir(records)) == 4  # each with a lineage
    assert run(path).streams[0].finished_before == 2


def test_an_output_whose_lineage_was_lost_is_written_again() -> None:
    run("x/documents")
    Path("x/.feedmill/mix-documents/m-0000.jsonl.gz.lineage").unlink()
    assert run("x/documents").streams[0].finished_before == 1
    assert Path("x/.feedmill/mix-documents/m-0000.jsonl.gz.lineage").exists()


def test_a_folder_that_is_mounted_by_itself_keeps_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkdir("out")
    stat = os.stat

    def other_device(path: Any, *more: Any, **options: Any) -> os.stat_result:
        found = stat(path, *more, **options)
        if os.fspath(path) == os.path.realpath("out"):
            fields = list(found)
            fields[2] = found.st_dev + 1
            return os.stat_result(fields)
        return found

    monkeypatch.setattr(os, "stat", other_device)
    run("out")
    assert len(records_in("out/.feedmill")) == 2 and not Path(".feedmill").exists()
    assert run("out").streams[0].finished_before == 2


def test_the_root_of_a_bucket_keeps_its_records(s3_bucket: str) -> None:
    records = Finished(s3_bucket)
    records.record("m-0000.jsonl.gz", {"size": 3})
    assert Finished(s3_bucket).read("m-0000.jsonl.gz") == {"size": 3}
    below = Finished(f"{s3_bucket}/x/documents")
    below.record("m-0000.jsonl.gz", {"size": 4})
    assert below.outputs() == ["m-0000.jsonl.gz"] and records.read("m-0000.jsonl.gz") == {"size": 3}


def test_what_dolma_leaves_in_an_attribute_set_is_in_nobodys_way() -> None:
    """It takes a hidden folder that its pattern matches for documents, and writes an empty file of its name."""
    left = Path("d/attributes/dp/.feedmill")
    left.parent.mkdir(parents=True)
    left.touch()
    dedupe(["d/documents"], name="dp", keep_empty=True, workers=1)
    tag(["d/documents"], ["char_length_v1"], name="dp", overwrite=True, progress=False)
    manifest = read_manifest(open_store("d"), "dp")
    assert manifest is not None and manifest["files"]
    assert Path("d/.feedmill/mix-attributes/dp/part-0.jsonl.gz.json").exists() and left.read_bytes() == b""


def test_folders_of_attributes_contain_attributes_only() -> None:
    """Programs list ``attributes`` for the names of the sets, and a set for its files."""
    tag(["d/documents"], ["char_length_v1"], progress=False)
    dedupe(["d/documents"], "paragraphs", name="dp", keep_empty=True, workers=1)
    assert sorted(os.listdir("d/attributes")) == ["char_length_v1", "dp"]
    for name in ("char_length_v1", "dp"):
        assert sorted(os.listdir(f"d/attributes/{name}")) == ["part-0.jsonl.gz", "part-1.jsonl.gz"]


def test_records_of_a_run_that_could_write_inside_the_folder_only_are_found() -> None:
    def reused() -> int:
        return tag(["d/documents"], ["char_length_v1"], name="q", progress=False).reused

    assert reused() == 0
    os.rename("d/.feedmill/mix-attributes/q", "d/attributes/q/.feedmill")
    assert reused() == 2 and not Path("d/.feedmill/mix-attributes/q").exists()
