"""Costs from media metadata and from fields: every sample's own, and bad input."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedmill.errors import ConfigError, DataError
from feedmill.formats import kept as kept_arrays
from feedmill.formats.base import Dataset
from feedmill.formats.costs import LARGEST, checked_costs, field_costs
from feedmill.formats.energon import costs as energon_costs
from feedmill.formats.sample import split_name
from feedmill.indexing.prepare import prepare
from feedmill.indexing.prepare_media import prepare_media
from feedmill.samples.joined import JoinedDataset
from feedmill.samples.media import MediaFilter
from feedmill.samples.open import open as open_dataset
from helpers import foreign_datasets as sourcedata
from helpers.number_dataset import Numbered
from helpers.tars import make_shards, write_tar

Image = pytest.importorskip("PIL.Image")
EXTENSION = MediaFilter.parse(extension=True)
KEYS = ["plain", "a/b.c/0007", "a.d/x/0008", "x", "with space", "ü/é"]


def picture(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, height)).save(stream, "PNG")
    return stream.getvalue()


def media(root: Path, *, video: bool = True) -> Path:
    """Samples without media, with one to three pictures, and with a video, in three shards."""
    clip = sourcedata.write_video(root / "clip.mp4", range(5)).read_bytes()
    (root / "clip.mp4").unlink()
    number = 0
    for shard in range(3):
        files = []
        for key in KEYS:
            name = f"{key}-{shard}"
            files.append((f"{name}.txt", b"text"))
            files += [(f"{name}.{n}.png", picture(3 + number, 2 + n)) for n in range(number % 4)]
            files += [(f"{name}.mp4", clip)] if video and number % 5 == 0 else []
            number += 1
        write_tar(root / f"s/{shard}.tar", files)
    prepare(str(root), split_parts=["train:s/[12].tar", "val:s/0.tar"], progress=False)
    return root


def shown(dataset: object, by: str) -> list[int]:
    """Pixels or frames, by decoding the media of each sample."""
    out = []
    for sample in dataset:  # type: ignore[attr-defined]
        cost = 0
        for name in sample:
            if name.endswith("png"):
                cost += np.prod(Image.open(io.BytesIO(sample.raw(name))).size) if by == "pixels" else 1
            elif name == "mp4":
                (clip,) = sample[name].get_video().video_clips
                cost += clip.shape[0] * (clip.shape[2] * clip.shape[3] if by == "pixels" else 1)
        out.append(int(cost))
    return out


def known(dataset: Dataset, by: str) -> np.ndarray:
    costs = dataset.costs(by)
    assert costs is not None
    return costs


def execute(root: Path, statement: str) -> None:
    with sqlite3.connect(root / ".nv-meta/index.sqlite") as connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("by", ["pixels", "frames"])
@pytest.mark.parametrize("split", [None, "train", "val"])
def test_media_costs_are_what_decoding_shows(tmp_path: Path, by: str, split: str | None) -> None:
    root = media(tmp_path)
    assert open_dataset(root).costs(by) is None
    prepare_media(str(root), EXTENSION, progress=False)
    path = root / ".nv-meta/split.yaml"
    path.write_text(path.read_text().replace("exclude: []", "exclude: [s/1.tar/x-1, s/0.tar/plain-0]"))
    dataset = open_dataset(root, split=split, raw=True)
    assert len(dataset) == {None: 16, "train": 11, "val": 5}[split]
    costs = dataset.costs(by)
    assert costs is not None and costs.tolist() == shown(dataset, by) and len(set(costs.tolist())) > 3
    sizes = dataset.costs("bytes")
    assert sizes is not None and sizes.tolist() == [s.source.length for s in dataset.read_raw(range(len(dataset)))]


def test_every_key_is_cut_as_samples_are(tmp_path: Path) -> None:
    keys = ["0", "a/0", "a.b/0", "a/b.c/d", "a//0", "ü.x/é", "a/.b/c"]
    names = [f"{key}.{part}" for key in keys for part in ("jpg", "x.jpg", "1.2.png")]
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (entry_key TEXT)")
    connection.executemany("INSERT INTO t VALUES (?)", [(name,) for name in names])
    found = [key for (key,) in connection.execute(f"SELECT {energon_costs._KEY} FROM t")]
    assert found == [split_name(name)[0] for name in names]


def test_large_datasets_keep_their_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept_arrays, "KEPT_FROM", 0)
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    root = media(tmp_path / "ds", video=False)
    prepare_media(str(root), EXTENSION, progress=False)
    first = open_dataset(root).costs("pixels")
    assert first is not None
    (kept,) = (tmp_path / "cache/costs").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(energon_costs, "_queried", lambda *_: pytest.fail("read again"))
        assert np.array_equal(known(open_dataset(root), "pixels"), first)
    data = bytearray(kept.read_bytes())
    data[data.index(first.tobytes()[:16])] ^= 1
    for damage in (bytes(data), b"", data[:100]):
        kept.write_bytes(damage)
        assert np.array_equal(known(open_dataset(root), "pixels"), first)
    assert caplog.text.count("are computed again:") == 3
    execute(root, """UPDATE media_metadata SET metadata_json = '{"width":10,"height":10}'""")
    again = open_dataset(root).costs("pixels")
    assert again is not None and not np.array_equal(again, first) and set((again % 100).tolist()) == {0}
    blocked = tmp_path / "blocked"
    blocked.write_bytes(b"")
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(blocked))
    assert np.array_equal(known(open_dataset(root), "pixels"), again)
    assert "each start computes them again" in caplog.text


def test_metadata_that_does_not_say_it_is_an_error_that_names_the_sample(tmp_path: Path) -> None:
    root = media(tmp_path)
    prepare_media(str(root), EXTENSION, progress=False)
    execute(root, """UPDATE media_metadata SET metadata_json = '{"audio_duration":1.5}' WHERE entry_key = 'x-1.mp4'""")
    assert open_dataset(root).costs("frames") is not None  # sound has no frames
    for odd in ('{"video_width":3}', '{"video_width":4,"video_height":4,"video_num_frames":-3}'):
        execute(root, f"UPDATE media_metadata SET metadata_json = '{odd}' WHERE entry_key = 'plain-0.mp4'")
        with pytest.raises(DataError, match=r"'sample 0': 'pixels' of this sample is not in the index.*prepare-media"):
            open_dataset(root).costs("pixels")
        assert open_dataset(root, split="train").costs("pixels") is not None  # it has not got that sample
    execute(
        root,
        """UPDATE media_metadata SET metadata_json = '{"video_width":4,"video_height":4,"video_duration":2.0,"""
        """"video_fps":2.5}' WHERE entry_key = 'plain-0.mp4'""",
    )
    costs = open_dataset(root).costs("pixels")
    assert costs is not None and costs[0] == 4 * 4 * 5
    for odd in ('{"width":"wide","height":4}', '{"height":4}', '{"width":-4,"height":4}'):
        execute(root, f"UPDATE media_metadata SET metadata_json = '{odd}' WHERE entry_key = 'x-0.0.png'")
        with pytest.raises(DataError, match="'sample 3'"):
            open_dataset(root).costs("pixels")
    execute(root, "UPDATE media_metadata SET metadata_json = '{width' WHERE entry_key = 'x-0.0.png'")
    with pytest.raises(DataError, match=r"'x-0\.0\.png': the index cannot be read \(media metadata: malformed JSON"):
        open_dataset(root).costs("pixels")
    execute(root, "UPDATE samples SET sample_index = 99 WHERE sample_key = 'x-0'")
    with pytest.raises(DataError, match="does not count"):
        open_dataset(root).costs("frames")


def test_a_download_of_files_and_one_of_rows(tmp_path: Path) -> None:
    root = sourcedata.images(tmp_path, [2, 3], "files")
    for n, path in enumerate(sorted(root.rglob("*.jpg"))):
        path.write_bytes(picture(4 + n, 2))
    dataset = open_dataset(root)
    assert dataset.costs("pixels") is None and "prepare-media" in dataset.costs_advice("pixels")
    prepare_media(str(root), EXTENSION, progress=False)
    dataset = open_dataset(root)
    assert dataset.format == "img2dataset"
    order = [int(sample["json"]["n"]) for sample in dataset]
    pixels, frames = dataset.costs("pixels"), dataset.costs("frames")
    assert pixels is not None and pixels.tolist() == [2 * (4 + n) for n in order]
    assert frames is not None and frames.tolist() == [1] * 5


def test_sizes_that_a_download_notes(tmp_path: Path) -> None:
    sourcedata.images(tmp_path, [2, 3], "parquet")
    for path in tmp_path.glob("*.parquet"):
        table = pq.read_table(path)
        sizes = [None if n is None else n + 2 for n in table["n"].to_pylist()]
        pq.write_table(table.append_column("width", [sizes]).append_column("height", [sizes]), path)
    pixels = open_dataset(tmp_path).costs("pixels")
    assert pixels is not None and pixels.tolist() == [(n + 2) ** 2 for n in range(5)]


@pytest.mark.parametrize("make", [sourcedata.lerobot_v2, sourcedata.lerobot_v3])
def test_a_robots_sample_is_a_frame_of_each_camera(tmp_path: Path, make: object) -> None:
    dataset = open_dataset(make(tmp_path, [5, 3], "observation.image"), split="test")  # type: ignore[operator]
    pixels, frames = dataset.costs("pixels"), dataset.costs("frames")
    assert pixels is not None and frames is not None
    assert pixels.tolist() == [s["observation.image"].shape[0] * s["observation.image"].shape[1] for s in dataset]
    assert frames.tolist() == [1] * 3


def column(root: Path, values: list[object], type: object = None) -> Path:
    pq.write_table(pa.table({"v": pa.array(values, type), "text": ["x"] * len(values)}), root / "0.parquet")
    return root


@pytest.mark.parametrize(
    ("values", "sample", "said"),
    [
        ([1, None, 3], 1, "missing"),
        ([1.0, 2.0, float("nan")], 2, "nan"),
        ([1.0, float("inf")], 1, "inf"),
        ([5, 4, -3, -4], 2, "-3"),
        ([1, LARGEST + 1], 1, str(LARGEST + 1)),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, values: list[object], sample: int, said: str) -> None:
    with pytest.raises(DataError, match=rf"'sample {sample}': 'v' of this sample is {said}, expected") as caught:
        open_dataset(column(tmp_path, values)).costs("v")
    assert caught.value.kind == "bad-costs" and str(tmp_path) in str(caught.value)


def test_values_are_whole_numbers_and_fractions_round_up(tmp_path: Path) -> None:
    costs = open_dataset(column(tmp_path, [0.0, 12.5, 100.0, 99.25])).costs("v")
    assert costs is not None and costs.tolist() == [0, 13, 100, 100]
    with pytest.raises(ConfigError, match=r"'v' are too small for costs.*by 100%.*milliseconds") as caught:
        open_dataset(column(tmp_path, [0.5, 0.5])).costs("v")
    assert caught.value.kind == "bad-costs"
    for type in (pa.int8(), pa.uint64(), pa.float16(), pa.float32()):
        found = open_dataset(column(tmp_path, [0, 7, 100], type)).costs("v")
        assert found is not None and found.tolist() == [0, 7, 100]
    assert open_dataset(column(tmp_path, [0.0, 0.0])).costs("v") is not None
    with pytest.raises(DataError, match="18446744073709551615"):
        open_dataset(column(tmp_path, [2**64 - 1], pa.uint64())).costs("v")
    assert open_dataset(column(tmp_path, [True])).costs("v") is None


def test_a_field_may_have_a_costs_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"tokens": [4, 5], "bytes": [6, 7]}), tmp_path / "0.parquet")
    dataset = open_dataset(tmp_path)
    assert [dataset.costs(by).tolist() for by in ("tokens", "bytes")] == [[4, 5], [6, 7]]  # type: ignore[union-attr]


def test_a_join_costs_what_its_parts_do(tmp_path: Path) -> None:
    docs, code = Numbered("docs", 9, tokens=5), Numbered("code", 5, tokens=100)
    rows = np.asarray([[8, 0], [2, -1], [3, 4]], np.int64)
    costs = JoinedDataset([docs, code], rows).costs("tokens")
    assert costs is not None and costs.tolist() == [5 + 1 + 100, 5 + 2, 5 + 3 + 104]
    join = JoinedDataset([docs, Numbered("images", 5)], rows)
    assert join.costs("tokens") is None and "images" in join.costs_advice("tokens")
    folder = make_shards(tmp_path, [3])
    prepare(str(folder), split_ratio="1,0,0", progress=False)
    part = open_dataset(folder, raw=True)
    sizes = JoinedDataset([part, part], np.asarray([[0, 2], [1, -1]], np.int64)).costs("bytes")
    assert sizes is not None and sizes.tolist() == [2 * 2048, 2048]
    for path, values in (("a", [LARGEST]), ("b", [LARGEST])):
        (tmp_path / path).mkdir()
        column(tmp_path / path, list(values))
    both = [open_dataset(tmp_path / path) for path in "ab"]
    assert JoinedDataset(both, np.zeros((1, 2), np.int64)).cost_fields == ["v"]
    with pytest.raises(DataError, match="'sample 0'"):
        JoinedDataset(both, np.zeros((1, 2), np.int64)).costs("v")


def test_what_is_no_list_of_costs_is_refused() -> None:
    for values in (np.zeros(3, np.int64), np.zeros(2), np.zeros((2, 1), np.int64)):
        with pytest.raises(DataError, match="expected 2 integers, found shape"):
            checked_costs(values, "tokens", file="docs", count=2)
    assert field_costs(np.zeros(0), None, "v", file="docs").dtype == np.int64


def lines(path: Path, *records: str) -> Dataset:
    path.write_text("".join(record + "\n" for record in records))
    return open_dataset(path)


def test_a_field_of_json_lines_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_arrays, "KEPT_FROM", 0)
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "a.jsonl"
    records = [f'{{"v": {n % 50}, "w": {n}.5, "on": true, "s": "x", "deep": {{"v": -1}}}}' for n in range(10_000)]
    dataset = lines(path, *records)
    assert list(dataset.cost_fields) == ["v", "w"]
    assert known(dataset, "v").tolist() == [n % 50 for n in range(10_000)]
    assert known(dataset, "w").tolist() == [n + 1 for n in range(10_000)]
    assert dataset.costs("s") is dataset.costs("on") is dataset.costs("deep") is None
    prepare(str(path), split_ratio="8,1,1", progress=False)
    assert known(open_dataset(path, split="val"), "v").tolist() == [n % 50 for n in range(8000, 9000)]
    with monkeypatch.context() as patch:
        patch.setattr("feedmill.formats.jsonl.dataset.line_values", lambda *_, **__: pytest.fail("read again"))
        assert known(open_dataset(path), "v").tolist() == [n % 50 for n in range(10_000)]
    (tmp_path / "a.jsonl.idx").unlink()
    (tmp_path / "a.jsonl.split.yaml").unlink()
    assert known(lines(path, *records[1:]), "v").tolist() == [n % 50 for n in range(1, 10_000)]


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ("{}", "missing"),
        ('{"v": null}', "missing"),
        ('{"v": NaN}', "nan"),
        ('{"v": -0.5}', "-0.5"),
        ('{"v": "12"}', '"12"'),
        ('{"v": true}', "true"),
        ('{"v": 99999999999999999999}', "99999999999999999999|1e\\+20"),
        ('{"v": 1e300}', "1e\\+300"),
        ('{"v": 4611686018427387904}', "4611686018427387904"),
        ('{"v": }', "in a line that is not JSON .*"),
    ],
)
def test_a_bad_value_in_json_lines_is_named(tmp_path: Path, odd: str, said: str) -> None:
    dataset = lines(tmp_path / "a.jsonl", *['{"v": 1}'] * 5000, odd, '{"v": -7}')
    with pytest.raises(DataError, match=rf"a.jsonl 'sample 5000': 'v' of this sample is ({said}), expected") as caught:
        dataset.costs("v")
    assert caught.value.kind == "bad-costs"


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "é", "<b>"])
def test_a_field_of_lines_has_any_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({name: n}) + "\n" for n in range(3)))
    dataset = open_dataset(tmp_path / "x.jsonl")
    assert list(dataset.cost_fields) == [name] and dataset.costs(name).tolist() == [0, 1, 2]
