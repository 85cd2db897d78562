"""Windows of LeRobot episodes: steps, padding, masks, images, and a run of VLA Foundry over them."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from feedmill.converting.windows import Cut, write_windows
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.samples.open import open as open_dataset
from helpers import foreign_datasets as sourcedata
from helpers.kills import contents, finish, moments, run_until_killed

COUNTS = [14, 9, 11, 3]
CAMERA = "observation.images.top"
FIELDS = ["observation.state", "n"]


@pytest.fixture(scope="module", params=["v2", "v3"])
def robot(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make = sourcedata.lerobot_v2 if request.param == "v2" else sourcedata.lerobot_v3
    return make(tmp_path_factory.mktemp(request.param), COUNTS, CAMERA)


def read(folder: Path) -> dict[tuple[int, int], Any]:
    """Return episode and frame -> the sample's fields of lowdim.npz, metadata, and mean grey of each image."""
    dataset = open_dataset(folder / "manifest.jsonl", decode=None)
    found = {}
    for sample in dataset:
        about = json.loads(sample.raw("metadata.json"))
        with np.load(io.BytesIO(sample.raw("lowdim.npz"))) as arrays:
            lowdim = {name: arrays[name] for name in arrays}
        greys = {
            name: float(np.asarray(Image.open(io.BytesIO(sample.raw(name)))).mean())
            for name in sample
            if name.endswith(".jpg")
        }
        found[about["episode_index"], about["frame_index"]] = lowdim, about, greys
        assert json.loads(sample.raw("language_instructions.json"))["original"][0].startswith("task ")
    return found


def test_windows_have_the_steps_of_their_episode_and_masks(robot: Path, tmp_path: Path) -> None:
    report = write_windows(str(robot), str(tmp_path / "w"), Cut(2, 4, 3, (-1, 0)), shard_samples=5, progress=False)
    found = read(tmp_path / "w")
    assert report.samples == len(found) == sum(-(-count // 3) for count in COUNTS) and report.shards == 3
    assert set(FIELDS) <= set(report.fields) and "grid" in report.skipped and report.cameras == [CAMERA]
    starts = np.cumsum([0, *COUNTS])
    for (episode, frame), (lowdim, about, greys) in found.items():
        steps = np.arange(frame - 2, frame + 5)
        real = (steps >= 0) & (steps < COUNTS[episode])
        numbers = starts[episode] + steps.clip(0, COUNTS[episode] - 1)
        assert lowdim["n"][:, 0].tolist() == numbers.tolist()
        assert np.array_equal(lowdim["observation.state"], np.stack([numbers, numbers + 0.5], 1).astype(np.float32))
        assert lowdim["past_mask"].tolist() == (real & (np.arange(7) < 2)).tolist()
        assert lowdim["future_mask"].tolist() == (real & (np.arange(7) >= 2)).tolist()
        assert about["anchor_relative_idx"] == 2 and about["original_image_sizes"] == {
            "observation_images_top": [64, 48]
        }
        for step in (-1, 0):
            number = starts[episode] + max(frame + step, 0)
            assert abs(greys[f"observation_images_top_t{step}.jpg"] - sourcedata.grey(int(number))) < 3


def test_the_output_does_not_depend_on_workers(robot: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        write_windows(
            str(robot), str(tmp_path / str(workers)), Cut(1, 2), shard_samples=10, workers=workers, progress=False
        )
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("*") if path.is_file()} for name in ("1", "2")
    ]
    assert files[0] == files[1] and {"shard_000003.tar", "manifest.jsonl", "stats.json"} <= files[0].keys()


def test_a_run_trains_on_them(robot: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from feedmill.compat.vla.run import VlaRun

    write_windows(str(robot), str(tmp_path / "w"), Cut(1, 3), progress=False)
    data = {
        "type": "robotics",
        "dataset_manifest": [str(tmp_path / "w/manifest.jsonl")],
        "dataset_statistics": [str(tmp_path / "w/stats.json")],
        "dataset_weighting": [1],
        "dataset_modality": ["robotics"],
        "action_fields": ["observation.state"],
        "proprioception_fields": ["n"],
        "shuffle": False,
        "num_workers": 0,
    }
    run = VlaRun({"data": data, "hparams": {"global_batch_size": 4}, "total_train_samples": 12})
    batch = next(iter(run.loader()))
    assert tuple(batch["actions"].shape) == (4, 5, 2) and tuple(batch["proprioception"].shape) == (4, 2, 1)
    assert tuple(batch["pixel_values"].shape)[:2] == (4, 1)


def test_an_unfinished_dataset_is_finished_and_a_finished_one_is_not_replaced(robot: Path, tmp_path: Path) -> None:
    target, cut = tmp_path / "w", Cut(1, 2)
    write_windows(str(robot), str(target), cut, progress=False)
    for name in ("manifest.jsonl", "stats.json"):  # as after a kill between the shards and the manifest
        (target / name).unlink()
    tar = (target / "shard_000000.tar").stat().st_mtime_ns
    write_windows(str(robot), str(target), cut, progress=False)
    assert (target / "manifest.jsonl").exists() and (target / "shard_000000.tar").stat().st_mtime_ns == tar
    assert write_windows(str(robot), str(target), cut, progress=False).samples == sum(COUNTS)
    assert (target / "shard_000000.tar").stat().st_mtime_ns == tar
    with pytest.raises(ConfigError, match="exist"):
        write_windows(str(robot), str(target), Cut(1, 3), progress=False)
    write_windows(str(robot), str(target), Cut(0, 0), overwrite=True, progress=False)
    assert all(len(lowdim["n"]) == 1 for lowdim, _, _ in read(target).values())


def windows(root: Path, *more: str) -> list[str]:
    return ["compat", "vla", "windows", str(root), "-o", "w", "--shard-samples", "5", "--workers", "1", *more]


@moments(4, (0, 2, 4, 7, 10, 13), least=4)
def test_a_killed_run_is_finished(robot: Path, tmp_path: Path, moments: Sequence[int], least: int) -> None:
    (tmp_path / "calm").mkdir()
    finish(windows(robot), tmp_path / "calm")
    killed = 0
    for moment in moments:
        root = tmp_path / f"at{moment}"
        root.mkdir()
        killed += run_until_killed(moment, windows(robot), root)
        finish(windows(robot), root)
        assert contents(root / "w") == contents(tmp_path / "calm/w"), moment
    assert killed >= least


def test_a_source_that_was_changed_after_a_kill_starts_again(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path / "r", [6, 6], CAMERA)
    assert run_until_killed(6, windows(root), tmp_path) and (tmp_path / "w/shard_000000.tar").exists()
    path = root / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("n")
    pq.write_table(table.set_column(place, "n", [[70, 71, 72, 73, 74, 75]]), path)
    finish(windows(root), tmp_path)
    assert read(tmp_path / "w")[0, 0][0]["n"][:, 0].tolist() == [70, 70, *range(71, 76), *[75] * 10]
    shutil.rmtree(tmp_path / "w")
    assert run_until_killed(6, windows(root), tmp_path) and (tmp_path / "w/shard_000000.tar").exists()
    sourcedata.write_video(root / f"videos/chunk-000/{CAMERA}/episode_000000.mp4", range(30, 36))
    finish(windows(root), tmp_path)
    greys = read(tmp_path / "w")[0, 0][2]
    assert abs(greys["observation_images_top_t0.jpg"] - sourcedata.grey(30)) < 3


def test_finished_windows_of_other_settings_or_data_are_named(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path / "r", [6, 6], CAMERA)
    target = tmp_path / "w"
    write_windows(str(root), str(target), Cut(1, 2), progress=False)
    with pytest.raises(
        ConfigError, match=r"windows with future_lowdim_steps 2, not 3, stride 1, not 2 exist here already"
    ):
        write_windows(str(root), str(target), Cut(1, 3, 2), progress=False)
    sourcedata.write_video(root / f"videos/chunk-000/{CAMERA}/episode_000000.mp4", range(30, 36))
    with pytest.raises(ConfigError, match="windows of other data exist here already"):
        write_windows(str(root), str(target), Cut(1, 2), progress=False)


def test_claims_of_many_frames_are_an_error(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path / "r", [3, 4])
    path = root / "meta/episodes.jsonl"
    path.write_text(path.read_text().replace('"length": 4', f'"length": {1 << 40}'))
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps(info | {"total_frames": (1 << 40) + 3}))
    with pytest.raises(DataError, match=r"episode_000001\.parquet: the file has 4 frames, but its episodes have 10995"):
        write_windows(str(root), str(tmp_path / "w"), Cut(), progress=False)


def test_the_source_is_not_the_output(robot: Path) -> None:
    before = contents(robot)
    for output in (robot, f"{robot}/", robot / "meta/.."):
        with pytest.raises(ConfigError, match="the output is the dataset itself"):
            write_windows(str(robot), str(output), Cut(), overwrite=True, progress=False)
    assert contents(robot) == before


def test_a_video_that_is_cut_off_or_missing_names_the_file(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path / "r", [6, 6], CAMERA)
    path = root / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
    whole = path.read_bytes()
    path.write_bytes(whole[:-300])
    with pytest.raises(
        DataError, match=r"episode_000001\.mp4: the video cannot be read: the file is truncated"
    ) as error:
        write_windows(str(root), str(tmp_path / "w"), Cut(), workers=1, progress=False)
    assert "Copy it again" in str(error.value)
    path.unlink()
    with pytest.raises(NotFound, match=r"episode_000001\.mp4: there is no such file"):
        write_windows(str(root), str(tmp_path / "w"), Cut(), workers=1, progress=False)
    path.write_bytes(whole)
    assert write_windows(str(root), str(tmp_path / "w"), Cut(), workers=1, progress=False).samples == 12


def test_invalid_input_is_an_error(robot: Path, tmp_path: Path) -> None:
    for values in ((-1, 2), (1, 2, 0), (1, 2, 1, ()), (1, 2, 1, (0,), 96)):
        with pytest.raises(ConfigError, match="are impossible"):
            Cut(*values)
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(ConfigError, match="expected episodes, such as a LeRobot dataset, found jsonl"):
        write_windows(str(tmp_path / "a.jsonl"), str(tmp_path / "o"), Cut(), progress=False)


def test_a_missing_value_names_the_frame(tmp_path: Path) -> None:
    root = sourcedata.lerobot_v2(tmp_path / "r", [5])
    path = root / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("n")
    pq.write_table(table.set_column(place, "n", [[0, 1, None, 3, 4]]), path)
    with pytest.raises(DataError, match=r"000000/000002.*no value of 'n'"):
        write_windows(str(root), str(tmp_path / "w"), Cut(1, 1), workers=1, progress=False)


def test_windows_that_cannot_be_replaced_stay_as_they_are(tmp_path: Path) -> None:
    root, target = sourcedata.lerobot_v2(tmp_path / "r", [5]), tmp_path / "w"
    write_windows(str(root), str(target), Cut(1, 1), progress=False)
    before = {path: data for path, data in contents(target).items() if not path.startswith(".feedmill")}
    path = root / "data/chunk-000/episode_000000.parquet"
    good = path.read_bytes()
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index("n"), "n", [[0, 1, None, 3, 4]]), path)
    for _ in range(2):
        with pytest.raises(DataError, match="no value of 'n'"):
            write_windows(str(root), str(target), Cut(1, 2), workers=1, overwrite=True, progress=False)
        after = contents(target)
        assert {name: after.get(name) for name in before} == before and len(read(target)) == 5
    path.write_bytes(good)
    assert write_windows(str(root), str(target), Cut(1, 1), progress=False).samples == 5  # nothing to do
    write_windows(str(root), str(target), Cut(0, 2), overwrite=True, progress=False)
    assert all(len(lowdim["n"]) == 3 for lowdim, _, _ in read(target).values())


@moments(9, range(0, 24, 3), least=4)
def test_a_killed_run_with_overwrite_is_finished(
    robot: Path, tmp_path: Path, moments: Sequence[int], least: int
) -> None:
    (tmp_path / "calm").mkdir()
    finish(windows(robot), tmp_path / "calm")
    first, second = tmp_path / "first", [*windows(robot), "--future", "3", "--overwrite"]
    shutil.copytree(tmp_path / "calm", first)
    finish(second, tmp_path / "calm")
    killed = 0
    for moment in moments:
        root = tmp_path / f"at{moment}"
        shutil.copytree(first, root)
        killed += run_until_killed(moment, second, root)
        if (root / "w/manifest.jsonl").exists():
            read(root / "w")
        finish(second, root)
        assert contents(root / "w") == contents(tmp_path / "calm/w"), moment
    assert killed >= least
