"""Windows of frames of robot episodes, beside what LeRobot 0.6.1 returned for the same data set and settings."""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.formats.avvideo import as_png
from feedmill.formats.episodes import offsets_of
from feedmill.samples.images import IMAGE_SPECS, decode_image
from helpers import foreign_datasets as sourcedata
from helpers.robots import write_robot

pytest.importorskip("av")
FOLDER = Path(__file__).parents[1] / "golden" / "sources" / "lerobot"
EXPECTED = json.loads((FOLDER / "windows_expected.json").read_text())
DELTAS: dict[str, list[float]] = EXPECTED["delta_timestamps"]


def check(name: str, value: Any, expected: dict[str, Any]) -> None:
    """A part is what LeRobot gives, but for channels: pictures have them last, LeRobot's first."""
    if "type" in expected:
        assert value == expected["value"], name
        return
    array = np.asarray(value)
    if "sha256" in expected:
        array = np.ascontiguousarray(np.moveaxis(array, -1, -3))
        if expected["dtype"] == "torch.float32":
            array = array.astype(np.float32) / np.float32(255)
        assert hashlib.sha256(array.tobytes()).hexdigest() == expected["sha256"], name
    else:
        assert array.tolist() == expected["values"], name
        assert expected["shape"] == [] or f"torch.{array.dtype}" == expected["dtype"], name
    assert list(array.shape) == expected["shape"], name


@pytest.mark.parametrize("tag", EXPECTED["windows"])
def test_windows_are_those_of_lerobot(tag: str) -> None:
    golden = EXPECTED["windows"][tag]
    options = golden["options"]
    dataset = fm.open(FOLDER / "windows", windows=options.get("delta_timestamps"))
    first = {0: 0, 1: 7, 2: 19}[options.get("episodes", [0])[0]]
    index = first + golden["index"]
    sample = dataset[index]
    assert set(sample) == set(golden["item"])
    for name, expected in golden["item"].items():
        check(name, sample[name], expected)


@pytest.mark.parametrize("tag", EXPECTED["windows"])
def test_pictures_of_torchrgb_are_the_tensors_of_lerobot(tag: str) -> None:
    pytest.importorskip("torch")
    golden = EXPECTED["windows"][tag]
    options = golden["options"]
    dtypes = {one["dtype"] for one in golden["item"].values() if "sha256" in one}
    decode = "torchrgb" if dtypes == {"torch.float32"} else "torchrgb8"
    dataset = fm.open(FOLDER / "windows", windows=options.get("delta_timestamps"), decode=decode)
    index = {0: 0, 1: 7, 2: 19}[options.get("episodes", [0])[0]] + golden["index"]
    batch = next(iter(fm.Loader(fm.Plan.over(dataset.select([index]), shuffle="none"), 1)))
    for name, expected in golden["item"].items():
        if "sha256" in expected:
            for picture in (dataset[index][name], batch[name][0]):
                assert str(picture.dtype) == expected["dtype"] and list(picture.shape) == expected["shape"], name
                assert hashlib.sha256(picture.numpy().tobytes()).hexdigest() == expected["sha256"], name


@pytest.mark.parametrize("windows", [None, {"observation.images.top": [-2, 0]}])
@pytest.mark.parametrize("spec", IMAGE_SPECS)
def test_frames_have_the_form_of_the_image_spec(spec: str, windows: Any) -> None:
    """Each is what the same picture gives as a PNG; batches are filled with the same values."""
    pytest.importorskip("torch")
    plain = fm.open(FOLDER / "windows", windows=windows)
    dataset = fm.open(FOLDER / "windows", windows=windows, decode=spec)
    name, indices = "observation.images.top", [3, 9, 20]
    batch = next(iter(fm.Loader(fm.Plan.over(dataset.select(indices), shuffle="none"), 3)))[name]
    for number, index in enumerate(indices):
        frames = plain[index][name]
        expected = [decode_image(as_png(frame), spec) for frame in frames.reshape(-1, *frames.shape[-3:])]
        found = dataset[index][name]
        for value in (found, batch[number]):
            each = list(value) if windows else [value]
            assert len(each) == len(expected) == (3 if windows else 1)
            for left, right in zip(each, expected, strict=True):
                assert type(left) is type(right) and np.array_equal(np.asarray(left), np.asarray(right))
                assert getattr(left, "dtype", None) == getattr(right, "dtype", None)


def test_frames_that_cannot_be_batched_together(tmp_path: Path) -> None:
    """Cameras of two sizes make a list, and a broken video is blamed on its sample, as without batches."""
    write_robot(tmp_path / "a", lengths=(4,), cameras={"front": (16, 24)}, video=True)
    write_robot(tmp_path / "b", lengths=(4,), cameras={"front": (32, 24)}, video=True)
    blend = [{"path": str(tmp_path / name), "weight": 1.0} for name in "ab"]
    plan = fm.Recipe.parse({"blend": blend, "decode": "rgb", "seed": 1, "samples": 8}).plan()
    batch = next(iter(fm.Loader(plan, 8)))
    assert {one.shape for one in batch["front"]} == {(16, 24, 3), (32, 24, 3)}
    assert {one.dtype for one in batch["front"]} == {np.dtype(np.float32)}

    video = next((tmp_path / "a").glob("videos/**/*.mp4"))
    data = bytearray(video.read_bytes())
    at = data.index(b"mdat") + 4
    size = int.from_bytes(data[at - 8 : at - 4], "big") - 8
    data[at : at + size] = bytes(size)
    video.write_bytes(data)
    dataset = fm.open(tmp_path / "a", decode="torchrgb")
    with pytest.raises(DataError, match="sample 0"):
        next(iter(fm.Loader(fm.Plan.over(dataset, shuffle="none"), 4)))


def test_batches_hold_arrays() -> None:
    windows = {"observation.images.top": [-2, 0], "action": [0, 15], "task_index": [-1, 0]}
    dataset = fm.open(FOLDER / "windows", windows=windows)
    batch = next(iter(fm.Loader(fm.Plan.over(dataset, shuffle="global"), 6)))
    assert batch["action"].shape == (6, 16, 2) and batch["action_is_pad"].shape == (6, 16)
    assert batch["observation.images.top"].shape == (6, 3, 64, 96, 3)
    assert batch["task_index"].shape == (6, 2) and batch["observation.images.wrist"].shape == (6, 64, 96, 3)
    assert dataset.costs("frames").tolist() == [4] * 24


def test_a_recipe_has_windows_too(tmp_path: Path) -> None:
    recipe = {
        "blend": [{"path": str(FOLDER / "windows"), "windows": {"action": [0, 3], "observation.state": [-0.1, 0.0]}}]
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    plan = fm.Recipe.load(path).plan()
    assert "windows of action, observation.state" in str(fm.Recipe.load(path))
    loader = fm.Loader(plan, 4, workers=2)
    batches = list(islice(loader, 3))
    state = loader.state_dict()
    loader.close()
    assert all(
        batch["action"].shape == (4, 4, 2) and batch["observation.state"].shape == (4, 2, 3) for batch in batches
    )
    resumed = fm.Loader(fm.Recipe.load(path).plan(), 4)
    resumed.load_state_dict(state)
    assert next(iter(resumed))["index"].shape == (4,)


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_windows_equal_slices_of_the_episodes(version: str, tmp_path: Path) -> None:
    counts = [14, 9, 11, 3]
    make = sourcedata.lerobot_v2 if version == "v2" else sourcedata.lerobot_v3
    root = make(tmp_path, counts)
    windows = {"n": [-3, 2], "observation.state": [1, 1], "grid": [-40, 40], "text": [0, 1]}
    for split, episodes in ((None, range(4)), ("test", range(2, 4))):
        dataset = fm.open(root, split=split, windows=windows)
        samples = iter(dataset.read(range(len(dataset))))
        for episode in episodes:
            first, last = sum(counts[:episode]), sum(counts[: episode + 1]) - 1
            for frame in range(first, last + 1):
                sample = next(samples)
                wanted = np.arange(frame - 3, frame + 3)
                assert sample["n"].tolist() == wanted.clip(first, last).tolist()
                assert sample["n_is_pad"].tolist() == ((wanted < first) | (wanted > last)).tolist()
                after = min(frame + 1, last)
                assert sample["observation.state"].tolist() == [[after, after + 0.5]]
                assert sample["grid"].shape == (81, 2, 2) and sample["grid"].dtype == np.int16
                assert sample["text"] == [f"text {frame} ü", f"text {after} ü"]


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ({"nothing": [0, 1]}, "there is no column or camera 'nothing'"),
        ({"actoin": [0, 1]}, "did you mean 'action'"),
        ({"action": [0.0, 0.15]}, "0.15 s lies between two frames"),
        ({"action": [float("nan")]}, "lies between two frames"),
        ({"action": [3, 1]}, "not a first and a last frame"),
        ({"action": [0, 1, 2]}, "not a first and a last frame"),
        ({"action": []}, "is not a window"),
        ({"action": [0, True]}, "is not a window"),
        ({"action": "ab"}, "is not a window"),
        ({"action": {0, 1}}, "is not a window"),
        (["action"], "expected feature -> window"),
        ({3: [0, 1]}, "expected feature -> window"),
        ({"action": [0, 10**12]}, "expected at most 65536"),
        ({"action": [0, 10**30]}, "expected at most 65536"),
        ({"action": [10**20, 10**20 + 1]}, "none beyond 4294967296"),
        ({"action": [-(2**63), 1 - 2**63]}, "none beyond 4294967296"),
        ({"action": [1e300]}, "none beyond 4294967296"),
        ({"action": 3}, "is not a window"),
        ({"action": None}, "is not a window"),
    ],
)
def test_settings_that_cannot_be(windows: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fm.open(FOLDER / "windows", windows=windows)


def test_offsets() -> None:
    found = offsets_of({"a": [-2, 1], "b": [0.10005], "c": [0.0, -0.3]}, "abc", 10, "x")
    assert {name: one.tolist() for name, one in found.items()} == {"a": [-2, -1, 0, 1], "b": [1], "c": [0, -3]}
    with pytest.raises(ConfigError, match="would hide the column"):
        offsets_of({"a": [0, 1]}, ["a", "a_is_pad"], 10, "x")


def test_windows_are_of_episodes_only(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(ConfigError, match="cut from robot episodes, found the format jsonl"):
        fm.open(tmp_path / "a.jsonl", windows={"action": [0, 1]})


def test_a_video_that_ends_early_is_told_for_the_window(tmp_path: Path) -> None:
    camera = "observation.images.top"
    root = sourcedata.lerobot_v2(tmp_path, [12], camera)
    video = root / f"videos/chunk-000/{camera}/episode_000000.mp4"
    sourcedata.write_video(video, range(8), codec="libx264", crf="8")
    dataset = fm.open(root, windows={camera: [-1, 1]})
    assert dataset[3][camera].shape == (3, 48, 64, 3)
    with pytest.raises(DataError, match=r"no frame within 0\.05 s of 0\.8000 s"):
        dataset[7][camera]


def test_rows_without_a_time_have_that_of_the_rate(tmp_path: Path) -> None:
    camera = "observation.images.top"
    root = sourcedata.lerobot_v2(tmp_path, [12], camera)
    path = root / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    times = [None if number == 4 else number / sourcedata.FPS for number in range(12)]
    table = table.drop_columns([n for n in table.column_names if n == "timestamp"])
    pq.write_table(table.append_column("timestamp", pa.array(times, pa.float32())), path)
    plain, windows = fm.open(root), fm.open(root, windows={camera: [-1, 1]})
    for number in (3, 4, 5):
        alone = [plain[of][camera] for of in range(number - 1, number + 2)]
        assert np.array_equal(windows[number][camera], np.stack(alone))


def test_a_state_does_not_resume_with_other_windows() -> None:
    one, other = (fm.open(FOLDER / "windows", windows={"action": [0, last]}) for last in (1, 2))
    bare = fm.open(FOLDER / "windows")
    assert one.fingerprint() == fm.open(FOLDER / "windows", windows={"action": [0, 1]}).fingerprint()
    assert len({one.fingerprint(), other.fingerprint(), bare.fingerprint()}) == 3
    state = fm.Loader(fm.Plan.over(one), 2).state_dict()
    with pytest.raises(fm.FeedmillError):
        fm.Loader(fm.Plan.over(other), 2).load_state_dict(state)


def test_windows_of_depth_are_those_of_lerobot_in_batches_too(tmp_path: Path) -> None:
    expected = json.loads((FOLDER / "depth_expected.json").read_text())
    camera = "observation.images.depth"
    settings = {"windows": {camera: [-2, 0]}, "parts": [camera]}
    recipe = {"shuffle": "none", "source": {"path": str(FOLDER / "depth"), "episodes": settings}, "samples": 6}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    batch = next(iter(fm.Loader(fm.Recipe.load(tmp_path / "recipe.yaml").plan(), 6)))
    assert batch[camera].shape == (6, 3, 64, 96, 1) and batch[camera].dtype == np.float32
    for number in range(6):
        for step, offset in enumerate((-2, -1, 0)):
            pixels = np.ascontiguousarray(np.moveaxis(batch[camera][number, step], -1, 0))
            wanted = expected[str(max(0, number + offset))]
            assert hashlib.sha256(pixels.tobytes()).hexdigest() == wanted["sha256"]
    small = fm.open(FOLDER / "depth", episodes={**settings, "sizes": {camera: [32, 48]}})[3][camera]
    assert np.array_equal(small, batch[camera][3][:, ::2, ::2])
