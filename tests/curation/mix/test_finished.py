"""Where a mix records what is finished: never where another program's patterns take it for documents."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from feedmill.curation.dedupe.job import find_duplicates
from feedmill.curation.dedupe.options import DedupeOptions
from feedmill.curation.mix.config import read_config
from feedmill.curation.mix.finished import Finished
from feedmill.curation.mix.job import MixReport, mix
from feedmill.curation.tag import tag
from feedmill.errors import ConfigError
from helpers.document_folders import write_documents


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_documents(tmp_path / "d", ["one", "two"], ["three"])


def run(path: str, name: str = "m") -> MixReport:
    stream: dict[str, Any] = {"name": name, "documents": ["d/documents/*"], "output": {"path": path}}
    stream["output"]["max_size_in_bytes"] = 1
    return mix(read_config({"streams": [stream]}), workers=1, progress=False)


def as_before(records: str) -> None:
    """Make the records those of a version that wrote no lineage, inside the folder of the outputs."""
    for path in Path(records).iterdir():
        if path.suffix == ".lineage":
            path.unlink()
        else:
            path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "lineage"}))
    shutil.move(records, "x/documents/.feedmill")


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


def test_records_of_earlier_versions_are_found_and_moved() -> None:
    run("x/documents")
    before = Path("x/documents/.feedmill")
    as_before("x/.feedmill/mix-documents")
    assert run("x/documents").streams[0].finished_before == 2
    assert not before.exists() and len(records_in("x/.feedmill/mix-documents")) == 2
    as_before("x/.feedmill/mix-documents")
    Path("x/documents/m-0001.jsonl.gz").unlink()
    assert run("x/documents").streams[0].finished_before == 1
    assert not before.exists() and len(records_in("x/.feedmill/mix-documents")) == 2


def test_outputs_of_earlier_mixes_are_found_by_old_records_too() -> None:
    run("x/documents", "m")
    as_before("x/.feedmill/mix-documents")
    assert Finished("x/documents").outputs() == ["m-0000.jsonl.gz", "m-0001.jsonl.gz"]


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
    records.write("m-0000.jsonl.gz", {"size": 3})
    assert Finished(s3_bucket).read("m-0000.jsonl.gz") == {"size": 3}
    below = Finished(f"{s3_bucket}/x/documents")
    below.write("m-0000.jsonl.gz", {"size": 4})
    assert below.outputs() == ["m-0000.jsonl.gz"] and records.read("m-0000.jsonl.gz") == {"size": 3}


def test_what_dolma_leaves_in_the_place_of_records_is_named() -> None:
    """It takes a folder that its pattern matches for documents, and writes an empty attribute file of its name."""
    left = Path("d/attributes/dp/.feedmill")
    left.parent.mkdir(parents=True)
    left.touch()
    options = DedupeOptions(name="dp", attribute="dp", unit="documents")
    for go in (
        lambda: find_duplicates(["d/documents"], options, workers=1),
        lambda: tag(["d/documents"], ["char_length_v1"], name="dp", progress=False),
    ):
        with pytest.raises(ConfigError, match=r"attributes/dp/\.feedmill: this is a file.*Delete the file") as caught:
            go()
        assert caught.value.kind == "blocked-records"
    left.unlink()
    find_duplicates(["d/documents"], options, workers=1)
    assert json.loads(Path("d/attributes/dp/.feedmill/manifest.json").read_text())["files"]
