"""The proof: what is compared, what a difference gives, what may be replaced, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.converting import engine
from feedmill.converting.job import ConvertWork, find_proof, write_hashes
from feedmill.errors import ConfigError, DataError, FeedmillError, StorageError
from feedmill.indexing.check import check
from feedmill.storage import open_store
from helpers.conversion_sources import files, parts, rot, sample_set, tokens, tree
from helpers.durations import slow_but


def convert(source: Path, destination: Path, to: str, **options: Any) -> Any:
    return fm.convert(source, destination, to, **{"workers": 1, "progress": False, "max_shard_samples": 30, **options})


def test_what_the_proof_says(tmp_path: Path) -> None:
    report = convert(sample_set(tmp_path / "source"), tmp_path / "d", "wds")
    proof = find_proof(str(tmp_path / "d"))
    assert proof is not None and proof.verified and proof.digest == report.digest
    assert proof.outputs == [(f"shard-{n:06d}.tar", 30) for n in range(3)] and len(proof.digests) == 3
    assert proof.files == [name for name, _ in proof.outputs]
    assert report.proof == str(tmp_path / "d/.feedmill/convert.json")
    again = convert(tmp_path / "d", tmp_path / "e", "webdataset", verify=False)
    unproved = find_proof(str(tmp_path / "e"))
    assert unproved is not None and not unproved.verified and unproved.digest == report.digest and again.digest is None
    assert find_proof(str(tmp_path / "source")) is None and find_proof(str(tmp_path / "nowhere")) is None


FLIPPED = {
    "wds": "shard-000001.tar",
    "mds": "shard.00001.mds",
    "npz": "shard-000001.npz",
    "vla": "shards/shard-000001.tar",
    "webdataset": "shards/000001.tar",
}


@pytest.mark.parametrize("to", FLIPPED)
def test_a_single_changed_byte_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    source = sample_set(tmp_path / "source")
    verify = engine._verify

    def spoil(*arguments: Any) -> None:
        path = tmp_path / "d" / FLIPPED[to]
        data = path.read_bytes()
        at = data.index(b"words 44")
        rot(path, data[:at] + b"W" + data[at + 1 :])
        verify(*arguments)

    monkeypatch.setattr(engine, "_verify", spoil)
    with pytest.raises(DataError) as error:
        convert(source, tmp_path / "d", to)
    assert error.value.kind == "verification-failed" and "44" in str(error.value)
    assert find_proof(str(tmp_path / "d")) is None


def test_only_what_a_conversion_has_written_is_replaced(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source")
    convert(source, tmp_path / "d", "webdataset", max_shard_samples=10)
    with pytest.raises(ConfigError, match="--overwrite"):
        convert(source, tmp_path / "d", "webdataset")
    before = files(tmp_path / "d")
    again = convert(source, tmp_path / "d", "webdataset", max_shard_samples=10)  # the same command: it is done
    assert again.samples == 90 and again.resumed == 9 and files(tmp_path / "d") == before
    convert(source, tmp_path / "d", "webdataset", overwrite=True)
    convert(source, tmp_path / "e", "webdataset")
    assert files(tmp_path / "d") == files(tmp_path / "e")
    convert(source, tmp_path / "d", "mds", overwrite=True)
    convert(source, tmp_path / "f", "mds")
    assert files(tmp_path / "d") == files(tmp_path / "f") and not (tmp_path / "d/.nv-meta/.info.json").exists()
    (tmp_path / "d/mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"mine\.txt"):
        convert(source, tmp_path / "d", "wds", overwrite=True)
    assert files(tmp_path / "d").keys() - {"mine.txt"} == files(tmp_path / "f").keys()


def test_a_file_is_replaced_where_that_is_said(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    (tmp_path / "d.jsonl").write_text("mine")
    with pytest.raises(ConfigError):
        convert(source, tmp_path / "d.jsonl", "jsonl")
    assert (tmp_path / "d.jsonl").read_text() == "mine"
    convert(source, tmp_path / "d.jsonl", "jsonl", overwrite=True)
    assert len(fm.open(tmp_path / "d.jsonl")) == 120
    assert {path.name for path in tmp_path.iterdir()} == {
        "source",
        "d.jsonl",
        "d.jsonl.idx",
        ".feedmill",
    }
    beside = sorted(path.name for path in (tmp_path / ".feedmill").iterdir())
    assert beside == ["convert.d.jsonl.json", "d.jsonl.lineage"]


def test_a_source_is_not_replaced_by_itself(tmp_path: Path) -> None:
    convert(sample_set(tmp_path / "source"), tmp_path / "d", "wds")
    before = files(tmp_path)
    for source in (f"file://{tmp_path}/d", f"file://{tmp_path}/d/shard-000000.tar", f"file://localhost{tmp_path}"):
        with pytest.raises(ConfigError) as error:
            fm.convert(source, tmp_path / "d", "mds", overwrite=True, progress=False)
        assert error.value.kind == "input-is-output" and files(tmp_path) == before


def test_places_that_cannot_be(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source")
    before = files(tmp_path)
    for destination in (source, source / "in", tmp_path, Path(f"{source}/../source")):
        with pytest.raises(ConfigError) as error:
            convert(source, destination, "wds")
        assert error.value.kind == "input-is-output"
    with pytest.raises(ConfigError, match="Did you mean 'webdataset'"):
        convert(source, tmp_path / "d", "webdatset")
    with pytest.raises(ConfigError, match="file that ends in"):
        convert(source, tmp_path / "d", "jsonl", fields=["txt"])
    with pytest.raises(FeedmillError, match="no such folder"):
        convert(tmp_path / "nowhere", tmp_path / "d", "wds")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FeedmillError) as found:
        convert(tmp_path / "empty", tmp_path / "d", "wds")
    assert found.value.kind == "unknown-format"
    (tmp_path / "empty").rmdir()
    assert files(tmp_path) == before and not (tmp_path / "d").exists()


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source")
    notes = ConvertWork(str(tmp_path / "d"), is_file=False)
    with pytest.raises(StorageError) as error:
        convert(source, tmp_path / "d", "wds")
    assert error.value.kind == "busy"
    notes.close()
    assert convert(source, tmp_path / "d", "wds").samples == 90


def test_a_plan_writes_nothing(tmp_path: Path) -> None:
    source = tokens(tmp_path / "source", loss=True)
    said = []
    how = {"dry_run": True, "seq_len": 4, "allow_loss": True}
    with pytest.raises(ConfigError, match="loss masks"):
        convert(source, tmp_path / "d", "vla-text", dry_run=True, seq_len=4)
    report = convert(source, tmp_path / "d", "vla-text", on_preview=said.append, **how)
    assert said == [report.plan] and report.plan.count == 180 and report.plan.outputs == 1
    assert [loss.content for loss in report.plan.losses] == [True, True] and not (tmp_path / "d").exists()


@pytest.mark.parametrize("to", slow_but(["webdataset", "wds", "mds", "parquet", "jsonl"], "webdataset", "jsonl"))
def test_object_stores(tmp_path: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    source = sample_set(tmp_path / "source", 20, binary=to != "jsonl")
    there = f"{s3_bucket}/d.jsonl" if to == "jsonl" else f"{s3_bucket}/d"
    report = fm.convert(source, there, to, max_shard_samples=8, workers=1, progress=False)
    assert report.digest is not None and find_proof(there) is not None
    fm.convert(there, tmp_path / "back", "wds", workers=1, progress=False)
    assert [key for key, _ in parts(tmp_path / "back")] == [key for key, _ in parts(source)]
    with pytest.raises(ConfigError):
        fm.convert(source, there, to, workers=1, progress=False)


@pytest.mark.parametrize("to", ["wds", "mds", "jsonl"])
def test_another_machine_finishes_a_conversion_to_an_object_store(
    tmp_path: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    source = sample_set(tmp_path / "source", 20, binary=to != "jsonl")
    there, calm = (f"{top}/d.jsonl" if to == "jsonl" else f"{top}/d" for top in (s3_bucket, f"{tmp_path}/calm"))
    written: list[int] = []

    def two(notes: str, number: int, hashes: bytes) -> str:
        written.append(number)
        if len(written) == 3:
            raise KeyboardInterrupt
        return write_hashes(notes, number, hashes)

    with monkeypatch.context() as patch:
        patch.setattr("feedmill.converting.units.write_hashes", two)
        with pytest.raises(KeyboardInterrupt):
            fm.convert(source, there, to, max_shard_samples=4, workers=1, progress=False)
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache of another machine"))
    report = fm.convert(source, there, to, max_shard_samples=4, workers=1, progress=False)
    assert report.digest == fm.convert(source, calm, to, max_shard_samples=4, workers=1, progress=False).digest
    assert report.resumed == (0 if to == "jsonl" else 2)  # pieces of one file lie on the disk of a machine
    assert not [name for name in open_store(s3_bucket).files() if "feedmill-work" in name.path]


def test_what_info_shows(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from feedmill.cli.app import app

    convert(sample_set(tmp_path / "source"), tmp_path / "d", "parquet")
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "d")]).output
    assert "90 samples, each equal to the source's" in shown
    data = json.loads(CliRunner().invoke(app, ["show", str(tmp_path / "d"), "--json"]).output)
    assert data["conversion"]["source_format"] == "energon" and data["conversion"]["verified"] is True


@pytest.mark.parametrize("to", ["parquet", "npz", "mds", "wds"])
def test_check_compares_the_output_with_the_proof(to: str, tmp_path: Path) -> None:
    fm.convert(sample_set(tmp_path / "s"), tmp_path / "o", to, max_shard_samples=10, workers=1, progress=False)
    report = check(str(tmp_path / "o"), progress=False)
    assert not report.findings
    shards = sorted(path for path in (tmp_path / "o").iterdir() if path.suffix in (".parquet", ".npz", ".mds", ".tar"))
    kept = shards[-1].read_bytes()
    shards[-1].unlink()
    found = check(str(tmp_path / "o"), progress=False).findings
    assert found[-1].kind == "missing-shard" and found[-1].file == str(shards[-1])
    if to in ("parquet", "npz"):
        shards[-1].write_bytes(kept)
        (tmp_path / f"o/zz.{to}").write_bytes(kept)
        *twice, found = check(str(tmp_path / "o"), progress=False).findings
        assert found.kind == "wrong-count" and f"expected {report.samples} samples" in str(found)
        assert twice and {error.kind for error in twice} == {"duplicate-key"}
