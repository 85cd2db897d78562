"""LeRobot datasets: frames of videos by time, tasks, splits, keys."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from feedmill.errors import ConfigError, DataError
from feedmill.formats import avvideo
from feedmill.formats.base import Dataset
from feedmill.formats.lerobot.dataset import open_lerobot
from feedmill.loading.loader import Loader
from feedmill.planning.plan import Plan
from feedmill.samples.open import open as open_dataset
from feedmill.storage.local import LocalStore
from feedmill.storage.remote.object_store import RemoteStore
from helpers import foreign_datasets as sourcedata
from helpers.range_server import range_server
from helpers.robots import write_robot

COUNTS = [14, 9, 11, 3]
TOTAL = sum(COUNTS)
CAMERA = "observation.images.top"


@pytest.fixture(scope="module", params=["v2", "v3"])
def robot(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make = sourcedata.lerobot_v2 if request.param == "v2" else sourcedata.lerobot_v3
    return make(tmp_path_factory.mktemp(request.param), COUNTS, CAMERA)


def as_is(name: str, data: bytes) -> bytes:
    return data


def seen(dataset: Dataset, index: int) -> bool:
    """Whether a sample's frame is the one of its number; the codec loses a little."""
    sample = dataset[index]
    pixels = sample[CAMERA]
    assert pixels.shape == (48, 64, 3) and pixels.dtype == np.uint8
    return abs(float(pixels.mean()) - sourcedata.grey(sample["n"])) < 2.2


def test_frames_in_order_and_at_random(robot: Path) -> None:
    dataset = open_dataset(robot)
    assert all(seen(dataset, index) for index in range(TOTAL))
    order = np.random.default_rng(1).permutation(TOTAL).tolist()
    assert all(seen(dataset, index) for index in order)
    assert all(seen(dataset, index) for index in (5, 5, 4, 5))


def test_threads_have_decoders_of_their_own(robot: Path) -> None:
    dataset = open_dataset(robot)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda index: seen(dataset, index), list(range(TOTAL)) * 3))


def test_columns_tasks_and_keys(robot: Path) -> None:
    dataset = open_dataset(robot)
    sample = dataset[15]
    assert sample.key == "000001/000001" and dataset.find(sample.key) == 15
    assert sample["task"] == "task 1" and dataset[0]["task"] == "task 0"
    assert sample["observation.state"].tolist() == [15.0, 15.5] and sample["observation.state"].dtype == np.float32
    assert sample["frame_index"] == 1
    assert sample["grid"].dtype == np.int16 and sample["grid"].tolist() == [[15, 1], [2, 3]]
    facts = dataset.describe()
    assert (facts["episodes"], facts["fps"], facts["cameras"], facts["tasks"]) == (4, 10, [CAMERA], 2)


def test_a_folder_above_is_no_table(robot: Path, tmp_path: Path) -> None:
    """Its Parquet files were one table with a hundred columns, most of them null."""
    shutil.copytree(robot, tmp_path / "all" / "arm")
    with pytest.raises(ConfigError, match=r"1 LeRobot datasets lie below .*'arm'.*Open .*all/arm"):
        open_dataset(tmp_path / "all")


def test_raw_frames_are_png(robot: Path) -> None:
    sample = open_dataset(robot)[20]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(sample.raw(CAMERA)))), sample[CAMERA])


def test_splits_are_ranges_of_episodes(robot: Path) -> None:
    train, test = open_dataset(robot, split="train"), open_dataset(robot, split="test")
    assert dict(test.splits) == {"train": 23, "test": 14} and (len(train), len(test)) == (23, 14)
    assert [s["n"] for s in test] == list(range(23, TOTAL))
    assert test[0].key == "000002/000000" and test.find("000003/000002") == 13
    assert all(seen(test, index) for index in range(14))
    assert train.fingerprint() != test.fingerprint()


def test_an_odd_split_in_the_middle_of_a_file(tmp_path: Path) -> None:
    import json

    root = sourcedata.lerobot_v3(tmp_path, COUNTS, CAMERA)
    info = json.loads((root / "meta/info.json").read_text())
    info["splits"] = {"middle": "1:3"}
    (root / "meta/info.json").write_text(json.dumps(info))
    dataset = open_dataset(root, split="middle")
    assert [s["n"] for s in dataset] == list(range(14, 34))
    assert dataset[0].key == "000001/000000" and all(seen(dataset, index) for index in range(20))


def test_a_video_that_was_cut_is_told(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path, [12, 12], CAMERA)
    short = root / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
    sourcedata.write_video(short, range(12, 16))
    dataset = open_dataset(root)
    assert seen(dataset, 13)
    with pytest.raises(DataError, match=r"episode_000001.mp4: the video has no frame within 0\.05 s of 0\.9000 s"):
        dataset[21][CAMERA]
    assert dataset[21]["n"] == 21  # the rest of the sample can be read
    short.write_bytes(b"no video at all")
    with pytest.raises(DataError, match=r"episode_000001.mp4: the video cannot be decoded"):
        open_dataset(root)[13][CAMERA]
    short.unlink()
    assert [error.kind for error in open_dataset(root).verify()] == ["missing-shard"]


def test_a_file_that_lacks_a_feature_is_told_when_it_is_read(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path / "r", COUNTS)
    path = root / "data/chunk-000/episode_000001.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["n"]), path)
    dataset = open_dataset(root)
    assert dataset[0]["n"] == 0
    with pytest.raises(DataError, match="no such column") as error:
        dataset[COUNTS[0]]
    assert error.value.kind == "no-column" and "episode_000001" in str(error.value)
    assert len(dataset.verify()) == 1


def test_rows_in_another_order_than_meta_says_are_told_by_check(tmp_path: Path) -> None:
    write_robot(tmp_path / "r", lengths=(4, 5))
    assert not open_lerobot(LocalStore(tmp_path / "r"), "r").verify()
    path = tmp_path / "r/data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.take([1, 0, *range(2, 9)]), path)
    (error,) = open_lerobot(LocalStore(tmp_path / "r"), "r").verify()
    assert "2 of 9 rows have another frame_index than meta says: the row 0 has 1, expected 0" in str(error)


def test_files_of_other_types_are_one_table(tmp_path: Path) -> None:
    sourcedata.lerobot_v2(tmp_path, [3, 2])
    path = sorted(tmp_path.glob("data/**/*.parquet"))[1]
    table = pq.read_table(path)
    number, text = table.schema.names.index("n"), table.schema.names.index("text")
    table = table.set_column(number, "n", table["n"].cast("int32"))
    table = table.set_column(text, "text", table["text"].cast("large_string"))
    pq.write_table(table, path)
    dataset = open_dataset(tmp_path)
    assert dataset.to_arrow(["n", "text"]).to_pylist() == [{"n": s["n"], "text": s["text"]} for s in dataset]


def test_other_words_of_a_task_are_another_data_set(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path / "r", COUNTS)
    before = open_dataset(root).fingerprint()
    (root / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "fold"}\n{"task_index": 1, "task": "lift"}\n')
    assert open_dataset(root).fingerprint() != before


GOLDEN = Path(__file__).parents[1] / "golden" / "sources" / "lerobot"
DEPTH = "observation.images.depth"


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (3, 0, 5, 1, 4, 2)])
def test_depth_maps_are_those_of_lerobot(order: tuple[int, ...]) -> None:
    expected = json.loads((GOLDEN / "depth_expected.json").read_text())
    dataset = open_dataset(GOLDEN / "depth")
    for number in order:
        depth = dataset[number][DEPTH]
        assert (depth.dtype, depth.shape) == (np.float32, (64, 96, 1))
        assert depth[10, 20, 0] == expected[str(number)]["at_10_20"]
        assert hashlib.sha256(depth.tobytes()).hexdigest() == expected[str(number)]["sha256"]
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(dataset[number].raw(DEPTH)))), depth[..., 0])
        assert np.array_equal(open_dataset(GOLDEN / "depth")[number][DEPTH], depth)  # by a new decoder


def with_feature(root: Path, change: dict[str, object]) -> Path:
    """A copy of the golden depth maps, with changed `info`."""
    shutil.copytree(GOLDEN / "depth", root)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][DEPTH]["info"].update(change)
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


def test_depth_settings(tmp_path: Path) -> None:
    even = {"video.use_log": False, "video.depth_min": 0, "video.depth_max": 4.095}
    depth = open_dataset(with_feature(tmp_path / "even", even))[0][DEPTH]
    codes = open_dataset(with_feature(tmp_path / "codes", {"is_depth_map": False}))[0][DEPTH]
    assert codes.dtype == np.uint16 and codes.max() > 255  # not depth, but no bit is lost
    assert np.array_equal(depth, codes.astype(np.float32))  # a millimeter a code
    for bad in ({"video.depth_max": 0}, {"video.shift": "x"}, {"video.shift": -1}):
        with pytest.raises(DataError, match=r"depth range of 'observation\.images\.depth'"):
            open_dataset(with_feature(tmp_path / f"bad {bad}", bad))


def test_windows_leave_depth_maps_out_and_say_so(tmp_path: Path) -> None:
    from feedmill.converting.windows import Cut, write_windows

    report = write_windows(str(GOLDEN / "depth"), str(tmp_path / "out"), Cut(past=1, future=1), workers=1)
    assert report.cameras == [] and DEPTH in report.skipped


@pytest.mark.parametrize(("unit", "scale"), [("mm", 1), ("m", 1000), (None, 1)])
def test_depth_images_keep_their_values(unit: str | None, scale: int, tmp_path: Path) -> None:
    import pyarrow as pa

    root = tmp_path / "set"
    shutil.copytree(GOLDEN / "depth", root)
    info = json.loads((root / "meta/info.json").read_text())
    feature = {"dtype": "image", "shape": [8, 9, 1], "names": None, "info": {"is_depth_map": True, "depth_unit": unit}}
    info["features"] = {**info["features"], DEPTH: feature}
    (root / "meta/info.json").write_text(json.dumps(info))
    deep = (np.arange(72).reshape(8, 9) * 900 + 7).astype(np.uint16)
    stored = []
    for number in range(6):
        out = io.BytesIO()
        Image.fromarray(deep + number).save(out, "PNG" if number % 2 else "TIFF")
        stored.append({"bytes": out.getvalue(), "path": None})
    path = next(root.glob("data/*/*.parquet"))
    pq.write_table(pq.read_table(path).append_column(DEPTH, pa.array(stored)), path)
    dataset = open_dataset(root)
    for number in range(6):
        found = dataset[number][DEPTH]
        assert found.dtype == np.float32 and found.shape == (8, 9, 1)
        assert np.array_equal(found[..., 0], (deep + number).astype(np.float32) * scale)
        assert dataset[number].raw(DEPTH) == stored[number]["bytes"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_frames_of_a_bucket_by_ranges(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No video is copied; frames that are read ahead and those of a local dataset are equal."""
    root = sourcedata.lerobot_v3(tmp_path / "data", COUNTS, CAMERA)
    video = next(root.rglob("*.mp4"))
    sourcedata.write_video(video, range(TOTAL), codec="libx264", crf="8", g="6", bf="2", preset="ultrafast")
    local = open_dataset(root)
    monkeypatch.setattr(avvideo, "held_copy", lambda *_: pytest.fail("the video was copied"))
    with range_server() as server:
        for path in filter(Path.is_file, root.rglob("*")):
            server.objects[f"data/{path.relative_to(root)}"] = path.read_bytes()
        remote = open_lerobot(RemoteStore("s3://bkt/data", **server.options), "s3://bkt/data").opened_as(decode=as_is)
        loader = Loader(Plan.over(remote, shuffle="block"), 5, workers=workers, collate=list)
        found = [sample for batch in islice(loader, 9) for sample in batch]
        assert len({sample["n"] for sample in found}) > 30
        assert all(np.array_equal(sample[CAMERA], local[sample["n"]][CAMERA]) for sample in found)
        loader.close()


def test_what_a_camera_needs_is_found_without_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = sourcedata.lerobot_v3(tmp_path, COUNTS, CAMERA)
    sourcedata.write_video(next(root.rglob("*.mp4")), range(TOTAL), codec="libx264", g="6", bf="2")
    dataset = open_dataset(root, windows={CAMERA: [-1, 0], "n": [0, 3]})
    monkeypatch.setattr(LocalStore, "is_local", False)

    def calls(count: int) -> int:
        seen = 0

        def counted(*_: object) -> None:
            nonlocal seen
            seen += 1

        sys.setprofile(counted)
        try:
            found = dataset.extents(np.arange(count) % TOTAL)
        finally:
            sys.setprofile(None)
        assert {*found[1].sample.tolist()} == set(range(count)) and len(found[1].begins) >= count
        return seen

    calls(TOTAL)
    assert calls(50 * TOTAL) <= calls(TOTAL) + 10
