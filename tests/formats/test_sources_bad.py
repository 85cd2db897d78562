"""Bad input of the sources: one message each, with the file and what to do."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.lerobot.meta import fill, read_info
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore, open_store
from helpers import foreign_datasets as sourcedata

COUNTS = [5, 4, 3]


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content) or content))


def refused(url: Path, kind: str, *words: str) -> FeedmillError:
    """Opening says what is wrong, naming words; so does the command, without a traceback."""
    with pytest.raises(FeedmillError) as caught:
        open_dataset(url)
    error = caught.value
    assert error.kind == kind and error.file and error.fix, error
    for word in words:
        assert word in str(error), (word, str(error))
    shown = CliRunner().invoke(app, ["show", str(url)])
    assert shown.exit_code != 0 and "Traceback" not in shown.output
    return error


def cut(path: Path, keep: int) -> None:
    os.truncate(path, keep)


# MDS


def mds(root: Path) -> Path:
    return sourcedata.mds(root, COUNTS)


def test_mds_without_a_shard(tmp_path: Path) -> None:
    (mds(tmp_path) / "shard.00001.mds").unlink()
    assert isinstance(refused(tmp_path, "missing-shard", "shard.00001.mds", "it is missing"), NotFound)


def test_mds_with_a_cut_shard(tmp_path: Path) -> None:
    cut(mds(tmp_path) / "shard.00001.mds", 40)
    refused(tmp_path, "wrong-count", "shard.00001.mds", "40 bytes")


def test_mds_with_wrong_counts(tmp_path: Path) -> None:
    edit(mds(tmp_path) / "index.json", lambda c: c["shards"][1].update(samples=9))
    dataset = open_dataset(tmp_path)
    with pytest.raises(DataError, match=r"shard.00001.mds: the shard has 4 samples, but index.json has 9"):
        dataset[5]
    found = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert found.exit_code == 1 and "index.json has 9" in found.output


@pytest.mark.parametrize("name", ["/etc/passwd", "../other.mds"])
def test_mds_that_leads_outside(tmp_path: Path, name: str) -> None:
    edit(mds(tmp_path) / "index.json", lambda c: c["shards"][0]["raw_data"].update(basename=name))
    refused(tmp_path, "unsafe-name", name)


@pytest.mark.parametrize(
    ("change", "kind", "word"),
    [
        (lambda c: c.update(version=3), "unsupported", "version 2"),
        (lambda c: c.update(shards={"0": c["shards"][0]}), "bad-index", "shards"),
        (lambda c: c["shards"][0].pop("samples"), "bad-index", "samples"),
        (lambda c: c["shards"][0].update(samples=-1), "bad-index", "-1 samples"),
        (lambda c: c["shards"][0]["raw_data"].update(bytes=10**19), "bad-index", "10000000000000000000 bytes"),
        (lambda c: c["shards"][0].update(format="csv"), "unsupported", "csv"),
        (lambda c: c["shards"][0].update(column_encodings=["int", "fancy"]), "unsupported", "fancy"),
        (lambda c: c["shards"][0].update(column_sizes=[8]), "bad-index", "shard 0"),
    ],
)
def test_mds_with_a_bad_index(tmp_path: Path, change: Callable[[Any], Any], kind: str, word: str) -> None:
    edit(mds(tmp_path) / "index.json", lambda c: change(c) and None)
    refused(tmp_path, kind, word)


def test_mds_with_damaged_bytes(tmp_path: Path) -> None:
    path = mds(tmp_path) / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    data[8] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DataError, match="invalid offsets in the shard's header"):
        open_dataset(tmp_path)[6]
    data = bytearray((tmp_path / "shard.00000.mds").read_bytes())
    data[-20:-18] = b"\xff\xff"  # in the text of the last sample
    (tmp_path / "shard.00000.mds").write_bytes(data)
    dataset = open_dataset(tmp_path)
    assert dataset[3]["n"] == 3
    with pytest.raises(DataError, match=r"shard.00000.mds at byte \d+: the sample cannot be read"):
        dataset[4]


def test_mds_with_json_too_deep_to_read(tmp_path: Path) -> None:
    text = b"[" * 100_000 + b"]" * 100_000
    shard = sourcedata.mds_shard([[text]], [None])
    (tmp_path / "0.mds").write_bytes(shard)
    facts = {"format": "mds", "column_names": ["x"], "column_encodings": ["json"], "column_sizes": [None]}
    raw = {"basename": "0.mds", "bytes": len(shard), "hashes": {}}
    shards = [{**facts, "samples": 1, "compression": None, "raw_data": raw}]
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    with pytest.raises(DataError, match="the sample cannot be read"):
        open_dataset(tmp_path)[0]


def test_mds_in_folders_by_split_names_one(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    mds(tmp_path / "train")
    with pytest.raises(NotFound, match=r"Open the folder itself, e\.g\. .*/train/\."):
        open_dataset(tmp_path)


def test_mds_hashes_are_compared(tmp_path: Path) -> None:
    edit(mds(tmp_path) / "index.json", lambda c: c["shards"][2]["raw_data"].update(hashes={"sha1": "00", "odd": "x"}))
    found = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert found.exit_code == 1 and "its sha1 differs from index.json" in found.output


def test_mds_with_a_damaged_compressed_shard(tmp_path: Path) -> None:
    import gzip

    path = sourcedata.mds(tmp_path, COUNTS, gzip.compress, "gz") / "shard.00001.mds.gz"
    data = bytearray(path.read_bytes())
    data[12:20] = b"\xff" * 8
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"shard.00001.mds.gz: the compressed file is corrupt"):
        open_dataset(tmp_path)[5]


# Parquet and Arrow


def test_parquet_with_a_corrupt_page(tmp_path: Path) -> None:
    path = tmp_path / "0.parquet"
    pq.write_table(sourcedata.table(0, 1000), path, row_group_size=500, write_page_checksum=True, compression="none")
    data = bytearray(path.read_bytes())
    dataset = open_dataset(path)
    offset = dataset.locate(700).offset
    data[offset + 600] ^= 0xFF
    path.write_bytes(data)
    dataset = open_dataset(path)
    assert dataset[3]["n"] == 3
    with pytest.raises(DataError, match=r"0.parquet 'row group 1' at byte \d+: the file cannot be read"):
        dataset[700]
    found = CliRunner().invoke(app, ["check", str(path)])
    assert found.exit_code == 1 and "row group 1" in found.output


def test_parquet_with_keys_that_are_not_utf8(tmp_path: Path) -> None:
    keys = pa.array([b"a", b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"__key__": keys, "n": [1, 2]}), tmp_path / "0.parquet")
    dataset = open_dataset(tmp_path / "0.parquet")
    with pytest.raises(DataError, match=r"0.parquet \"column '__key__'\" at byte \d+: the file cannot be read"):
        dataset.find("a")


def test_parquet_that_was_cut(tmp_path: Path) -> None:
    sourcedata.parquet(tmp_path, COUNTS)
    cut(tmp_path / "1.parquet", 300)
    refused(tmp_path, "bad-data", "1.parquet", "is truncated")
    (tmp_path / "1.parquet").write_bytes(b"")
    refused(tmp_path, "empty-file", "1.parquet")


def test_parquet_with_other_columns(tmp_path: Path) -> None:
    sourcedata.parquet(tmp_path, COUNTS)
    pq.write_table(pa.table({"m": [1]}), tmp_path / "1.parquet")
    refused(tmp_path, "other-columns", "1.parquet", "its columns are 'm', and those of '0.parquet' are 'n', 'text'")
    pq.write_table(pa.table({"n": ["1"], "text": ["a"]}), tmp_path / "1.parquet")
    refused(tmp_path, "other-columns", "'n' is string here and int64 in '0.parquet'")


def test_arrow_that_was_cut(tmp_path: Path) -> None:
    sourcedata.huggingface(tmp_path, COUNTS)
    path = tmp_path / "data-00001-of-00003.arrow"
    cut(path, path.stat().st_size - 40)
    refused(tmp_path, "bad-data", path.name)
    path.write_bytes(b"")
    refused(tmp_path, "empty-file", path.name)
    path.unlink()
    refused(tmp_path, "missing-shard", path.name)


def test_arrow_with_damaged_offsets(tmp_path: Path) -> None:
    path = sourcedata.write_arrow(tmp_path / "x.arrow", sourcedata.table(0, 7))
    path.write_bytes(sourcedata.with_a_wrong_offset(path.read_bytes(), [9, 18]))
    dataset = open_dataset(path)
    with pytest.raises(DataError, match=r"x.arrow 'record batch 0' at byte \d+: the file cannot be read \(.*offset"):
        dataset[1]
    found = CliRunner().invoke(app, ["check", str(path)])
    assert found.exit_code == 1 and "record batch 0" in found.output


def test_parquet_with_damaged_names(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "x.parquet", store_schema=False)
    path = tmp_path / "x.parquet"
    path.write_bytes(path.read_bytes().replace(b"text", b"te\xfft"))
    refused(path, "bad-data", "x.parquet")


def test_arrow_with_damaged_names(tmp_path: Path) -> None:
    path = sourcedata.write_arrow(tmp_path / "x.arrow", sourcedata.table(0, 7))
    path.write_bytes(path.read_bytes().replace(b"text", b"te\xfft"))
    refused(path, "bad-data", "x.arrow")


@pytest.mark.parametrize(
    "column", [pa.array([b"a", b"\xff"]).view(pa.string()), pa.array([0, 2**62], pa.timestamp("ms"))]
)
def test_values_that_python_does_not_have(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
    dataset = open_dataset(tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x.parquet '1.x' at byte \d+: the column 'x' holds (text that is not|a time)"):
        dataset[1]["x"]
    assert next(iter(dataset))["x"] is not None


def test_hugging_face_states_that_make_no_sense(tmp_path: Path) -> None:
    state = sourcedata.huggingface(tmp_path, COUNTS) / "state.json"
    whole = state.read_text()
    edit(state, lambda c: {**c, "_data_files": [{"filename": "../x.arrow"}]})
    refused(tmp_path, "unsafe-name", "../x.arrow")
    state.write_text(json.dumps({**json.loads(whole), "_indices_data_files": [{"filename": "i.arrow"}]}))
    refused(tmp_path, "unsupported", "_indices_data_files")
    state.write_text("{")
    refused(tmp_path, "bad-index", "state.json")
    state.unlink()
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    refused(tmp_path, "missing-shard", "train/state.json")


def test_files_that_are_only_named(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": None, "path": "/etc/passwd"}, None], kind)
    pq.write_table(pa.table({"image": images}), tmp_path / "0.parquet")
    dataset = open_dataset(tmp_path)
    assert dataset[1]["image"] is None
    with pytest.raises(DataError, match="does not contain the bytes of this file, only its path '/etc/passwd'"):
        dataset[0]["image"]


# LeRobot


@pytest.fixture(params=["v2", "v3"])
def robot(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return (sourcedata.lerobot_v2 if request.param == "v2" else sourcedata.lerobot_v3)(tmp_path, COUNTS)


def test_lerobot_with_wrong_totals(robot: Path) -> None:
    edit(robot / "meta/info.json", lambda c: c.update(total_frames=99))
    refused(robot, "wrong-count", "meta/info.json", "'total_frames' is 99, but the episodes have 12")


def test_a_template_is_not_filled_to_any_width(tmp_path: Path) -> None:
    template = "data/{episode_index:99999999999d}.parquet"
    assert fill(open_store(tmp_path), template, episode_index=1) == template


def test_lerobot_without_a_data_file(robot: Path) -> None:
    last = sorted(robot.glob("data/**/*.parquet"))[-1]
    last.unlink()
    dataset = open_dataset(robot)
    with pytest.raises(NotFound, match=last.name):
        dataset[11]
    found = CliRunner().invoke(app, ["check", str(robot)])
    assert found.exit_code == 1 and last.name in found.output


def test_lerobot_with_frames_missing(robot: Path) -> None:
    last = sorted(robot.glob("data/**/*.parquet"))[-1]
    pq.write_table(pq.read_table(last).slice(0, 1), last)
    with pytest.raises(DataError, match="has 1 frames, but its episodes have 3"):
        open_dataset(robot)[11]


@pytest.mark.parametrize(("data", "why"), [("[]", "it is not a JSON object"), ('{"fps": 1', "data was truncated")])
def test_lerobot_with_facts_that_are_no_object(robot: Path, data: str, why: str) -> None:
    (robot / "meta/info.json").write_text(data)
    with pytest.raises(DataError, match=rf"info.json: invalid file \(.*{why}") as error:
        read_info(LocalStore(robot))
    assert error.value.kind == "bad-index"


@pytest.mark.parametrize(
    ("change", "kind", "word"),
    [
        ({"data_path": "../data.parquet"}, "unsafe-name", "leaves its folder"),
        ({"data_path": "/etc/passwd"}, "unsafe-name", "leaves its folder"),
        ({"data_path": "data/{secret}.parquet"}, "bad-index", "unknown field 'secret'"),
        ({"codebase_version": "v1.6"}, "unsupported", "v1.6"),
        ({"fps": 0}, "bad-index", "fps"),
        ({"features": []}, "bad-index", "features"),
        ({"features": {"a": functools.reduce(lambda inner, _: [inner], range(300), [])}}, "bad-index", "too deeply"),
        ({"splits": {"train": "5:900"}}, "bad-index", "'5:900'"),
        ({"splits": ["train"]}, "bad-index", "is malformed"),
        ({"splits": {"train": f"0:{'9' * 5000}"}}, "bad-index", "is malformed"),
        ({"features": {"torque": {"dtype": "float32"}}}, "no-column", "'torque'"),
    ],
)
def test_lerobot_with_bad_facts(robot: Path, change: dict[str, Any], kind: str, word: str) -> None:
    edit(robot / "meta/info.json", lambda c: c.update(change))
    refused(robot, kind, word)


# img2dataset


@pytest.mark.parametrize("kind", ["webdataset", "files", "parquet"])
def test_downloads_with_wrong_counts(tmp_path: Path, kind: str) -> None:
    sourcedata.images(tmp_path, COUNTS, kind)
    edit(tmp_path / "00001_stats.json", lambda c: c.update(successes=8))
    refused(tmp_path, "wrong-count", "00001", "has 4 images, but 00001_stats.json has 8")


@pytest.mark.parametrize("kind", ["webdataset", "files", "parquet"])
def test_unfinished_downloads_are_left_out_and_said(tmp_path: Path, kind: str) -> None:
    sourcedata.images(tmp_path, COUNTS, kind)
    (tmp_path / "00002_stats.json").unlink()
    dataset = open_dataset(tmp_path)
    assert len(dataset) == 9
    assert dataset.describe()["remarks"] == ["00002: skipped, its download is incomplete"]
    assert "skipped" in CliRunner().invoke(app, ["show", str(tmp_path)]).output
    checked = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert checked.exit_code == 0 and "skipped" in checked.output


def test_a_status_that_is_no_text(tmp_path: Path) -> None:
    sourcedata.images(tmp_path, COUNTS, "parquet")
    path = tmp_path / "00001.parquet"
    table = pq.read_table(path)
    words = pa.array([b"succes\xff"] * len(table), pa.binary()).view(pa.string())
    pq.write_table(table.set_column(table.column_names.index("status"), "status", words), path)
    with pytest.raises(DataError, match=r"00001\.parquet .*column 'status'.*cannot be read"):
        open_dataset(tmp_path)


def test_downloads_without_a_shard_or_a_column(tmp_path: Path) -> None:
    (sourcedata.images(tmp_path, COUNTS, "webdataset") / "00001.tar").unlink()
    refused(tmp_path, "missing-shard", "00001.tar")
    other = tmp_path / "other"
    other.mkdir()
    sourcedata.images(other, [2], "parquet")
    pq.write_table(pa.table({"key": ["0"], "status": ["success"]}), other / "00000.parquet")
    refused(other, "no-column", "jpg or png or webp")


def test_config_errors_are_config_errors(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(NotFound, match="not an index of shards"):
        open_dataset(tmp_path / "x.json")
    with pytest.raises(ConfigError, match=r"expected one of \.tar, \.tar\.gz, .*\.pbin"):
        open_dataset([tmp_path / "a.tar", tmp_path / "b.parquet"])
