"""LeRobot datasets are imported as one sample per episode: arrays, tasks, and videos that are not encoded again."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.importing.report import ImportReport
from helpers import foreign_datasets as sourcedata
from helpers.kills import contents, finish, moments, run_until_killed

COUNTS = [14, 9, 11, 3]
STARTS = [0, 14, 23, 34]
CAMERA = "observation.images.top"
VIDEO = f"{CAMERA}.mp4"
GOLDEN = Path(__file__).parents[1] / "golden/sources/lerobot"
MAKE = {"v2": sourcedata.lerobot_v2, "v3": sourcedata.lerobot_v3}


@pytest.fixture(params=["v2", "v3"])
def robot(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return MAKE[request.param](tmp_path / "robot", COUNTS, CAMERA)


def run(source: Path, out: Path, **options: Any) -> ImportReport:
    return fm.import_data(source, out, progress=False, workers=1, **options)


def reasons(report: ImportReport) -> dict[str, str]:
    return {name: reason for reason, names in report.left_out.names.items() for name in names}


def frames(video: bytes | Path) -> list[npt.NDArray[np.uint8]]:
    with av.open(io.BytesIO(video) if isinstance(video, bytes) else str(video)) as file:
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]


def change(root: Path, **facts: Any) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps(info | facts))


def test_an_episode_is_a_sample(robot: Path, tmp_path: Path) -> None:
    report = run(robot, tmp_path / "out")
    assert (report.type, report.sample_type, report.samples) == ("episodes", "CrudeWebdataset", 4)
    assert report.splits == {"train": 2, "test": 2} and not report.left_out
    assert fm.check(tmp_path / "out").findings == []
    found = [*fm.open(tmp_path / "out", split="train"), *fm.open(tmp_path / "out", split="test")]
    assert [sample.key for sample in found] == [f"{number:06d}" for number in range(4)]
    for number, sample in enumerate(found):
        rows = np.arange(STARTS[number], STARTS[number] + COUNTS[number])
        state = sample["observation.state.npy"]
        assert state.dtype == np.float32 and np.array_equal(state, np.stack([rows, rows + 0.5], 1))
        assert sample["grid.npy"].dtype == np.int16 and sample["grid.npy"].shape == (len(rows), 2, 2)
        assert sample["n.npy"].tolist() == rows.tolist() and len(sample["text.json"]) == len(rows)
        about = sample["json"]
        assert (about["episode_index"], about["length"], about["fps"]) == (number, len(rows), 10)
        assert about["task"] == f"task {number % 2}" and about["robot_type"] == "arm"
        assert about["tasks"] == [{"task_index": number % 2, "task": f"task {number % 2}"}]
        assert about["features"] == json.loads((robot / "meta/info.json").read_text())["features"]
        pixels = frames(sample.raw(VIDEO))
        assert len(pixels) == len(rows)
        assert all(abs(one.mean() - sourcedata.grey(n)) < 2.2 for one, n in zip(pixels, rows, strict=True))


def test_videos_of_one_episode_are_copied_byte_for_byte(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path / "r", COUNTS, CAMERA)
    run(root, tmp_path / "out")
    for number, sample in enumerate(fm.open(tmp_path / "out")):
        assert sample.raw(VIDEO) == (root / f"videos/chunk-000/{CAMERA}/episode_{number:06d}.mp4").read_bytes()


def test_what_lerobot_wrote(tmp_path: Path) -> None:
    report = run(GOLDEN / "v3", tmp_path / "out", decode=True)
    assert report.samples == 3 and reasons(report).keys() == {"meta/stats.json"}
    rows = json.loads((GOLDEN / "expected.json").read_text())
    whole = frames(GOLDEN / f"v3/videos/{CAMERA}/chunk-000/file-000.mp4")
    assert len(rows) == len(whole) == 26
    dataset = fm.open(tmp_path / "out")
    for number, sample in enumerate(dataset):
        own = [row for row in rows if row["episode_index"] == number]
        for name in ("observation.state", "action", "timestamp", "index", "task_index"):
            assert sample[f"{name}.npy"].tolist() == [row[name] for row in own], name
        assert {row["task"] for row in own} == {sample["json"]["task"]}
        wrist = [sample[f"observation.images.wrist.{place:06d}.png"].mean() for place in range(len(own))]
        assert wrist == [round(row["observation.images.wrist"], 3) for row in own]
        pixels = frames(sample.raw(VIDEO))
        assert [one.tolist() for one in pixels] == [whole[row["index"]].tolist() for row in own]
    assert sum(sample["json"]["length"] for sample in dataset) == 26


def test_frames_that_depend_on_each_other_are_cut_at_key_frames(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v3(tmp_path / "r", COUNTS, CAMERA)
    video = root / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    options = {"codec": "libx264", "bf": "2", "sc_threshold": "0", "forced-idr": "1"}
    sourcedata.write_video(video, range(sum(COUNTS)), keys=STARTS, **options)
    with av.open(str(video)) as file:
        times = [packet.pts for packet in file.demux(video=0) if packet.pts is not None]
    assert times != sorted(times)  # some frames are stored before those that they depend on
    whole = frames(video)
    report = run(root, tmp_path / "out", decode=True)
    assert not report.left_out
    found = [one.tolist() for sample in fm.open(tmp_path / "out") for one in frames(sample.raw(VIDEO))]
    assert found == [one.tolist() for one in whole]
    sourcedata.write_video(video, range(sum(COUNTS)), keys=STARTS[:2], **options)
    report = run(root, tmp_path / "next")
    left = reasons(report)
    start = f"the video of {CAMERA}: it cannot be cut without encoding it again ("
    assert report.samples == 1 and fm.open(tmp_path / "next")[0].key == "000000"
    assert left["000001"] == start + "its last frames depend on the next episode)"
    assert left["000002"] == left["000003"] == start + "it does not begin with a key frame)"


def test_bad_episodes_are_left_out_with_the_reason(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path / "r", [6] * 10, CAMERA)
    videos, data = root / f"videos/chunk-000/{CAMERA}", root / "data/chunk-000"
    (data / "episode_000000.parquet").write_bytes(b"PAR1")  # also the first file is not needed to open the dataset
    (videos / "episode_000001.mp4").unlink()
    sourcedata.write_video(videos / "episode_000002.mp4", range(4))
    sourcedata.write_video(videos / "episode_000003.mp4", range(8))
    (videos / "episode_000004.mp4").write_bytes((videos / "episode_000004.mp4").read_bytes()[:900])
    damaged = bytearray((data / "episode_000005.parquet").read_bytes())
    damaged[-9] ^= 0xFF
    (data / "episode_000005.parquet").write_bytes(damaged[:-200])
    table = pq.read_table(data / "episode_000006.parquet")
    pq.write_table(table.slice(0, 5), data / "episode_000006.parquet")
    shutil.copy(data / "episode_000006.parquet", data / "episode_000099.parquet")
    shutil.copy(data / "episode_000009.parquet", data / "episode_000007.parquet")
    (root / "notes.pdf").write_bytes(b"%PDF")
    report = run(root, tmp_path / "out")
    left = reasons(report)
    assert report.samples == 2 and [s.key for s in fm.open(tmp_path / "out")] == ["000008", "000009"]
    assert left["000000"].startswith("cannot be read: ")
    assert left[f"000001 (videos/chunk-000/{CAMERA}/episode_000001.mp4)"] == "an episode whose file is missing"
    assert left["000002"] == f"the video of {CAMERA}: it has fewer frames than the table"
    assert left["000003"] == f"the video of {CAMERA}: it has more frames than the table"
    assert left["000004"].startswith(f"the video of {CAMERA}: it cannot be read (")
    assert left["000005"].startswith("cannot be read: the file is truncated: it begins like Parquet")
    assert left["000006"] == "cannot be read: the file has 5 frames, but its episodes have 6"
    assert left["000007"] == "cannot be read: column 'episode_index': there are rows of another episode"
    assert left["data/chunk-000/episode_000099.parquet"] == "a file of no episode that the LeRobot dataset lists"
    assert left["notes.pdf"] == "beside a LeRobot dataset"
    listed = [json.loads(line) for line in (tmp_path / "out/.feedmill/left_out.jsonl").read_text().splitlines()]
    assert len(listed) == len(report.left_out)


def test_pictures_that_do_not_decode_are_found_with_decode(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path / "r", [6, 6], CAMERA)
    path = root / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
    with av.open(str(path)) as file:
        places = [(packet.pos, packet.size) for packet in file.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    for begin, size in places:
        data[begin : begin + size] = bytes(size)
    path.write_bytes(data)
    assert run(root, tmp_path / "quick").samples == 2
    report = run(root, tmp_path / "out", decode=True)
    assert report.samples == 1 and reasons(report)["000001"].startswith(f"the video of {CAMERA}: ")


def test_values_that_are_missing_or_of_other_shapes(tmp_path: Path) -> None:
    import pyarrow as pa

    root = sourcedata.lerobot_v2(tmp_path / "r", [3, 3, 3, 3])
    for number, cells in ((1, [[1.0, 2.0], None, [3.0, 4.0]]), (2, [[1.0, 2.0, 3.0]] * 3)):
        path = root / f"data/chunk-000/episode_{number:06d}.parquet"
        table = pq.read_table(path)
        place = table.schema.names.index("observation.state")
        pq.write_table(table.set_column(place, "observation.state", pa.array(cells, pa.list_(pa.float32()))), path)
    path = root / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    text = pa.Array.from_buffers(
        pa.string(), 3, [*pa.array(["ab", "cd", "ef"]).buffers()[:2], pa.py_buffer(b"ab\xf8def")]
    )
    pq.write_table(table.set_column(table.schema.names.index("text"), "text", text), path)
    left = reasons(run(root, tmp_path / "out"))
    assert left["000000"].startswith("cannot be read: the column 'text' holds text that is not UTF-8 (b'\\xf8d')")
    start = "cannot be read: column 'observation.state': "
    assert left["000001"] == start + "1 of its 3 values are missing"
    assert "'observation.state' does not fit fixed_size_list<element: float>[2]" in left["000002"]


def test_damaged_descriptions_are_errors(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path / "r", [3])
    (root / "meta/tasks.jsonl").unlink()
    with pytest.raises(NotFound, match=r"tasks\.jsonl: this file of the dataset is missing"):
        run(root, tmp_path / "out")
    (root / "meta/tasks.jsonl").write_text("{")
    with pytest.raises(DataError, match=r"tasks\.jsonl: line 1 is not JSON"):
        run(root, tmp_path / "out")
    change(root, features={"n": {"dtype": "int64", "shape": ["a"]}})
    with pytest.raises(DataError, match=r"the feature 'n' has no valid 'shape'"):
        run(root, tmp_path / "out")
    change(root, codebase_version="v4.0")
    with pytest.raises(ConfigError, match=r"unsupported version 'v4\.0': expected v2 or v3"):
        run(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_claims_of_many_frames_use_no_memory(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path / "r", [3, 4])
    lines = [json.loads(line) for line in (root / "meta/episodes.jsonl").read_text().splitlines()]
    lines[0]["length"] = 1 << 40
    (root / "meta/episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    change(root, total_frames=(1 << 40) + 4)
    left = reasons(run(root, tmp_path / "out"))
    assert left["000000"] == f"cannot be read: the file has 3 frames, but its episodes have {1 << 40}"
    assert [sample.key for sample in fm.open(tmp_path / "out")] == ["000001"]


def test_version_1_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "r/meta_data").mkdir(parents=True)
    (tmp_path / "r/meta_data/info.json").write_text('{"codebase_version": "v1.6", "fps": 10, "video": false}')
    with pytest.raises(
        ConfigError, match=r"meta_data/info\.json: this is a LeRobot dataset of version 1, which is not"
    ):
        run(tmp_path / "r", tmp_path / "out")


def test_nothing_to_import_is_an_error(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path / "r", [3], CAMERA)
    next(root.glob("videos/*/*/*.mp4")).unlink()
    with pytest.raises(DataError, match="nothing to import: left out 1 x an episode whose file is missing"):
        run(root, tmp_path / "out")


def test_several_datasets_and_other_files(tmp_path: Path) -> None:
    sourcedata.lerobot_v2(tmp_path / "all/arm.v1", [3, 4])
    sourcedata.lerobot_v3(tmp_path / "all/hand", [2])
    (tmp_path / "all/README.md").write_text("about")
    report = run(tmp_path / "all", tmp_path / "out")
    keys = ["arm.v1/000000", "arm.v1/000001", "hand/000000"]
    assert sorted(sample.key for sample in fm.open(tmp_path / "out")) == keys
    assert reasons(report) == {"README.md": "beside a LeRobot dataset"}
    (tmp_path / "all/notes.txt").write_text("text")
    with pytest.raises(ConfigError, match=r"several kinds: 2 LeRobot datasets, and 'notes.txt' outside of them"):
        run(tmp_path / "all", tmp_path / "two")
    report = run(tmp_path / "all", tmp_path / "two", type="episodes")
    assert report.samples == 3 and set(reasons(report)) == {"README.md", "notes.txt"}
    two = fm.import_data(
        [tmp_path / "all/hand", tmp_path / "all/arm.v1"], tmp_path / "three", progress=False, workers=2
    )
    assert two.samples == 3 and sorted(sample.key for sample in fm.open(tmp_path / "three")) == keys
    with pytest.raises(ConfigError, match="there is no LeRobot dataset for the type 'episodes'"):
        run(tmp_path / "all/hand/data", tmp_path / "four", type="episodes")


def test_cameras_can_be_excluded(robot: Path, tmp_path: Path) -> None:
    report = run(robot, tmp_path / "out", exclude=["videos/*"])
    assert report.samples == 4 and f"warning: videos of {CAMERA} are excluded" in report.recognized
    assert all(VIDEO not in sample and "n.npy" in sample for sample in fm.open(tmp_path / "out"))


def test_splits(robot: Path, tmp_path: Path) -> None:
    change(robot, splits={"train": "0:2", "validation": "1:3"})
    report = run(robot, tmp_path / "out")
    assert report.splits == {"train": 2, "val": 1}
    assert reasons(report)["000003"] == "an episode of no split of meta/info.json (use --split-ratio)"
    assert "warning: 1 episodes are in two splits, and imported in the first one" in report.recognized
    divided = run(robot, tmp_path / "ratio", split_ratio="1,1")
    assert divided.samples == 4 and sorted(divided.splits.values()) == [2, 2] and not divided.left_out


def test_a_dry_run_writes_nothing(robot: Path, tmp_path: Path) -> None:
    report = run(robot, tmp_path / "out", dry_run=True)
    assert report.samples == 4 and report.dry_run is not None and not (tmp_path / "out").exists()
    assert report.recognized[0].startswith("LeRobot dataset v") and report.recognized[-1] == f"videos of {CAMERA}"


@moments(10, (2, 6, 10, 14), least=2)
def test_a_killed_import_is_finished(robot: Path, tmp_path: Path, moments: Sequence[int], least: int) -> None:
    words = ["import", robot, "out", "--max-shard-samples", "1", "--workers", "1", "--json"]
    (tmp_path / "calm").mkdir()
    finish(words, tmp_path / "calm")
    killed = reused = 0
    for moment in moments:
        root = tmp_path / f"at{moment}"
        root.mkdir()
        if run_until_killed(moment, words, root):
            killed += 1
            reused += json.loads(finish(words, root))["reused"]
        kept = [contents(one / "out", leave_out=(".nv-meta/index",)) for one in (root, tmp_path / "calm")]
        assert kept[0] == kept[1] and len(kept[0]) >= 4, moment
    assert killed >= least and reused > 0


@pytest.mark.parametrize("kind", ["hevc", "h264-open", "hevc-open", "av1", "mp4"])
def test_open_groups_are_not_cut(kind: str, tmp_path: Path) -> None:
    """Between two key frames there are as many packets as frames, but not those of the same frames."""
    from feedmill.formats.videocut import cut_video
    from feedmill.storage import open_store
    from helpers import media_files as clips

    data = clips.movie(kind, audio=False)
    (tmp_path / "v.mp4").write_bytes(data)
    frames, _ = clips.all_frames(data)
    with av.open(str(tmp_path / "v.mp4")) as container:
        keys = sorted(round(25 * p.pts * p.time_base) for p in container.demux(video=0) if p.is_keyframe and p.size)
    assert len(keys) > 2
    for first, end in zip(keys, [*keys[1:], 100], strict=True):
        cut = (open_store(str(tmp_path)), "v.mp4", first / 25, end - first, 25.0)
        if kind.endswith("open"):
            with pytest.raises(DataError) as caught:
                cut_video(*cut, last=end == 100)
            assert caught.value.kind == "bad-media"
        else:
            assert np.array_equal(clips.all_frames(cut_video(*cut, last=end == 100))[0], frames[first:end])
