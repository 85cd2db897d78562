"""Episodes of recordings as LeRobot datasets of version 3, and as windows of VLA Foundry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import feedmill as fm
from feedmill.converting.episodes import Statistics, names_of
from feedmill.converting.windows import Cut, write_windows
from feedmill.errors import ConfigError, DataError
from helpers import foreign_datasets as sourcedata
from helpers.recordings import aloha, robomimic

GOLDEN = Path(__file__).parents[1] / "golden" / "sources" / "lerobot" / "windows"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / ".cache"))


def episodes(root: Path) -> Path:
    folder = root / "episodes"
    folder.mkdir()
    for number in range(3):
        aloha(folder / f"episode_{number}.hdf5", 4 + number, seed=number)
    return folder


def convert(source: Path, out: Path, **options: Any) -> Any:
    return fm.convert(source, out, "lerobot", progress=False, workers=1, **options)


def test_every_value_is_that_of_the_recording(tmp_path: Path) -> None:
    source, out = episodes(tmp_path), tmp_path / "out"
    report = convert(source, out, fps=50, max_shard_samples=9)
    assert report.digest and report.samples == 15
    before, after = fm.open(source, decode=None), fm.open(out, decode=None)
    assert after.format == "lerobot" and len(after) == 15 and after.episode_lengths.tolist() == [4, 5, 6]
    assert [path.name for path in sorted(out.glob("data/*/*.parquet"))] == ["file-000.parquet", "file-001.parquet"]
    for step in range(15):
        a, b = before[step], after[step]
        assert np.array_equal(a.row["action"], b.row["action"]) and b.row["action"].dtype == np.float32
        assert np.array_equal(a.row["observations.qpos"], b.row["observation.state"])
        for camera in ("cam_high", "cam_low"):
            assert a.raw(f"observations.images.{camera}") == b.raw(f"observation.images.{camera}")
        assert b.row["index"] == step and b.key == a.key
        assert b.row["timestamp"] == np.float32(b.row["frame_index"] / 50)


def test_the_layout_is_that_of_lerobots_own_writer(tmp_path: Path) -> None:
    convert(episodes(tmp_path), tmp_path / "out", fps=50)
    out = tmp_path / "out"
    for name in ("meta/tasks.parquet", "meta/episodes/chunk-000/file-000.parquet"):
        ours, theirs = pq.read_schema(out / name), pq.read_schema(GOLDEN / name)
        types = {f.name: f.type for f in theirs if not f.name.startswith(("stats/", "videos/"))}
        assert {f.name: f.type for f in ours} == types
    pandas = [json.loads(pq.read_schema(r / "meta/tasks.parquet").metadata[b"pandas"]) for r in (out, GOLDEN)]
    assert pandas[0]["index_columns"] == pandas[1]["index_columns"] == ["task"]
    info, theirs = (json.loads((root / "meta/info.json").read_text()) for root in (out, GOLDEN))
    assert info.keys() == theirs.keys()
    counters = ("timestamp", "frame_index", "episode_index", "index", "task_index")
    assert {name: info["features"][name] for name in counters} == {name: theirs["features"][name] for name in counters}
    assert info["features"]["action"] == {"dtype": "float32", "shape": [4], "names": None}
    assert info["features"]["observation.images.cam_high"]["shape"] == [16, 24, 3]
    data, golden = (pq.read_schema(root / "data/chunk-000/file-000.parquet") for root in (out, GOLDEN))
    assert str(data.field("action").type).replace("[4]", "[2]") == str(golden.field("action").type)
    described = [json.loads(one.metadata[b"huggingface"])["info"]["features"] for one in (data, golden)]
    assert described[0]["action"] == {**described[1]["action"], "length": 4}
    assert described[0]["observation.images.cam_low"] == {"_type": "Image"}


def test_statistics_are_those_of_all_steps(tmp_path: Path) -> None:
    source, out = episodes(tmp_path), tmp_path / "out"
    convert(source, out, fps=50, max_shard_samples=6)
    stats = json.loads((out / "meta/stats.json").read_text())
    actions = np.stack([sample["action"] for sample in fm.open(source)]).astype(np.float64)
    for name, expected in (("mean", actions.mean(0)), ("std", actions.std(0)), ("max", actions.max(0))):
        assert np.allclose(stats["action"][name], expected, rtol=1e-12), name
    assert stats["action"]["count"] == [15] and stats["frame_index"]["max"] == [5.0]
    pixels = np.stack([sample["observations.images.cam_low"] for sample in fm.open(source)]) / 255
    camera = stats["observation.images.cam_low"]
    assert np.allclose(np.squeeze(camera["mean"]), pixels.mean((0, 1, 2))) and np.shape(camera["std"]) == (3, 1, 1)
    golden = json.loads((GOLDEN / "meta/stats.json").read_text())
    assert golden["action"].keys() - stats["action"].keys() == {"q01", "q10", "q50", "q90", "q99"}


def test_statistics_merge() -> None:
    values = np.random.default_rng(0).normal(1e6, 1, (100, 3))
    whole, parts = Statistics(), Statistics()
    whole.add(values, 100)
    for low in (0, 1, 40, 99):
        part = Statistics()
        part.add(values[low : {0: 1, 1: 40, 40: 99, 99: 100}[low]], 1)
        parts.merge(Statistics.of(json.loads(json.dumps(part.plain()))))
    assert np.allclose(parts.squares, whole.squares) and np.allclose(whole.squares / 100, values.var(0))


def test_cameras_as_videos(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = robomimic(tmp_path / "demo.hdf5", [3, 4, 2])
    report = convert(path, tmp_path / "out", videos=True, max_shard_samples=7)
    assert any("encoded as H.264" in loss.what for loss in report.plan.losses)
    before, after = fm.open(path), fm.open(tmp_path / "out")
    camera = "observation.images.agentview_image"
    assert after.info["features"][camera]["dtype"] == "video" and after.fps == 20
    for step in range(9):
        close = np.abs(before[step]["obs.agentview_image"].astype(int) - after[step][camera])
        others = [np.abs(before[n]["obs.agentview_image"].astype(int) - after[step][camera]).mean() for n in range(9)]
        assert int(np.argmin(others)) == step, close.mean()
        assert np.array_equal(before[step]["actions"], after[step]["action"])
        assert after[step]["next.done"] == before[step]["dones"]
    with av.open(str(tmp_path / f"out/videos/{camera}/chunk-000/file-000.mp4")) as container:
        assert container.streams.video[0].codec_context.name == "h264" and container.streams.video[0].frames == 7
    table = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet").to_pydict()
    assert table[f"videos/{camera}/from_timestamp"] == [0.0, 3 / 20, 0.0]
    assert table[f"videos/{camera}/file_index"] == table["data/file_index"] == [0, 0, 1]


def test_a_lerobot_dataset_of_version_2_becomes_version_3(tmp_path: Path) -> None:
    pytest.importorskip("av")
    (tmp_path / "v2").mkdir()
    sourcedata.lerobot_v2(tmp_path / "v2", [5, 1, 9], "observation.images.top")
    convert(tmp_path / "v2", tmp_path / "out")
    before, after = fm.open(tmp_path / "v2"), fm.open(tmp_path / "out")
    assert [s["task"] for s in after] == [s["task"] for s in before]
    for a, b in zip(before, after, strict=True):
        assert np.array_equal(a["observation.images.top"], b["observation.images.top"])
        assert np.array_equal(a["observation.state"], b["observation.state"]) and a.key == b.key


def test_a_run_that_was_interrupted_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from feedmill.converting import episodes as target

    source, out = episodes(tmp_path), tmp_path / "out"
    row, failing = target.LeRobotEpisodes._row, [True]

    def fails(self: Any, taken: Any) -> Any:
        if failing[0] and taken.key == "000002/000003":
            raise OSError(5, "no")
        return row(self, taken)

    monkeypatch.setattr(target.LeRobotEpisodes, "_row", fails)
    with pytest.raises(fm.FeedmillError):
        convert(source, out, fps=50, max_shard_samples=5)
    failing[0] = False
    report = convert(source, out, fps=50, max_shard_samples=5)
    assert report.resumed == 2 and len(fm.open(out)) == 15
    assert convert(source, out, fps=50, max_shard_samples=5).resumed == 3


def test_names() -> None:
    kinds = {"obs.a.b": "float32", "observation.c": "float32", "x/y": "float32", "cam": "image", "rewards": "float32"}
    assert names_of({name: {"dtype": kind} for name, kind in kinds.items()}, "") == {
        "obs.a.b": "observation.a.b",
        "observation.c": "observation.c",
        "x/y": "x.y",
        "cam": "observation.images.cam",
        "rewards": "next.reward",
    }
    with pytest.raises(ConfigError, match="'action' would become 'action', which 'actions' becomes too"):
        names_of({"actions": {"dtype": "float32"}, "action": {"dtype": "float32"}}, "")


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    source = episodes(tmp_path)
    with pytest.raises(ConfigError, match=r"does not say how many steps a second.*--fps 50"):
        convert(source, tmp_path / "out")
    with pytest.raises(ConfigError, match="cannot lack steps"):
        convert(source, tmp_path / "out", fps=50, on_error="skip")
    path = robomimic(tmp_path / "demo.hdf5")
    with pytest.raises(ConfigError, match="the source says 20 steps"):
        convert(path, tmp_path / "out", fps=30)
    with h5py.File(path, "r+") as file:
        for number in range(3):
            values = file.create_dataset(f"data/demo_{number}/packed", ([7, 12, 5][number],), h5py.vlen_dtype("i4"))
            values[:] = [np.arange(n) for n in range(len(values))]
    with pytest.raises(ConfigError, match="cannot store bytes and lists of different lengths: 'packed'"):
        convert(path, tmp_path / "out")
    convert(path, tmp_path / "out", allow_loss=True, fields="[!p]*")
    with pytest.raises(ConfigError, match=r"FPS|lerobot"):
        fm.convert(path, tmp_path / "tars", "webdataset", fps=20, progress=False)
    (tmp_path / "npz").mkdir()
    with pytest.raises(ConfigError, match="cannot be converted to lerobot"):
        convert(sourcedata.npz(tmp_path / "npz", [3]), tmp_path / "other")


def test_images_of_different_sizes_are_an_error(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    from helpers.recordings import picture

    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["action"] = np.zeros((3, 2))
        values = file.create_dataset("cam", (3,), h5py.vlen_dtype("u1"))
        for n in range(3):
            values[n] = np.frombuffer(picture(n, 16 if n < 2 else 32), "u1")
    with pytest.raises(DataError, match=r"'cam' has the shape \[32, 24, 3\], expected \[16, 24, 3\]"):
        convert(tmp_path / "x.hdf5", tmp_path / "out", fps=10)


def test_windows_of_vla_foundry(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "demo.hdf5")
    report = write_windows(str(path), str(tmp_path / "out"), Cut(1, 3), workers=1, progress=False)
    assert report.samples == 24 and report.cameras == ["obs.agentview_image"] and report.fields[0] == "actions"
    sample = fm.open(tmp_path / "out")[8]
    assert sample["lowdim.npz"]["actions"].shape == (5, 7)
