"""Runs of robots: VLA Foundry's defaults and sizes of images, and what is ignored is said."""

from __future__ import annotations

import io
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.compat.vla import VlaRun
from feedmill.errors import ConfigError, DataError
from feedmill.formats.pth import dump
from helpers.foreign_datasets import lerobot_v3
from helpers.tars import write_tar
from helpers.vla_golden import ROOT, expected, facts

ACTIONS = ["robot__action__poses__left::panda__xyz", "robot__action__grippers__left::panda_hand"]
STATE = ["robot__actual__poses__left::panda__xyz", "robot__actual__grippers__left::panda_hand"]


def config(*folders: Path | str, **data: Any) -> dict[str, Any]:
    places = folders or (ROOT / "robotics",)
    settings = {
        "type": "robotics",
        "dataset_manifest": [f"{place}/manifest.jsonl" for place in places],
        "dataset_weighting": [1] * len(places),
        "dataset_modality": ["robotics"] * len(places),
        "dataset_statistics": [f"{places[0]}/stats.json"],
        "action_fields": ACTIONS,
        "proprioception_fields": STATE,
        "shuffle": False,
        "num_workers": 0,
        **data,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    return {"data": settings, "hparams": {"global_batch_size": 4}, "total_train_samples": 4, "num_checkpoints": 1}


def first(*folders: Path | str, **data: Any) -> dict[str, Any]:
    return next(iter(VlaRun(config(*folders, **data)).loader()))


def feedmill(*words: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, words)], prog_name="feedmill")
    assert done.exit_code == status, done.output
    return done.output


@pytest.fixture
def robots(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "robotics", tmp_path / "robotics"))


@pytest.mark.parametrize("normalization", [None, {}, {"include_fields": ACTIONS[:1]}, {"enabled": True}])
def test_a_run_is_normalized_by_default_as_in_the_original(normalization: Any) -> None:
    batch = first(normalization=normalization)
    wanted = expected("robotics")["vla_pipeline"]["std_global"]["batches"][0]
    assert batch["__key__"] == wanted["keys"]
    for field in ("actions", "proprioception"):
        assert facts(batch[field]) == wanted[field]
    raw = first(normalization={"enabled": False})
    assert not np.allclose(raw["actions"], batch["actions"])


def test_a_run_without_statistics_or_fields_is_an_error_before_it_begins() -> None:
    with pytest.raises(ConfigError, match="normalization requires statistics"):
        first(dataset_statistics=None)
    with pytest.raises(ConfigError, match="no fields to normalize"):
        first(action_fields=None, proprioception_fields=None)
    assert first(dataset_statistics=None, normalization={"enabled": False})["actions"].shape == (4, 8, 4)


def test_tensors_that_would_not_be_normalized_are_an_error(tmp_path: Path) -> None:
    for name in ("actions", "state"):
        body = [
            (f"{i}.{part}.pth", dump(np.ones((3, 2), np.float32))) for i in range(4) for part in ("actions", "state")
        ]
        write_tar(tmp_path / "a.tar", body)
        (tmp_path / "manifest.jsonl").write_text('{"shard": "a.tar", "num_sequences": 4}\n')
        entry = {"mean": [1.0, 1.0], "std": [2.0, 2.0]}
        (tmp_path / "stats.json").write_text(json.dumps({"actions": entry, "state": entry}))
        with pytest.raises(DataError, match=rf"{name}\.pth would not be normalized"):
            first(tmp_path, action_fields=[{"actions": "state", "state": "actions"}[name]], proprioception_fields=None)
    assert not first(tmp_path, action_fields=["actions"], proprioception_fields=["state"])["actions"].any()


def test_entries_of_fields_have_the_originals_defaults() -> None:
    """Its FieldNormalizationParams: std, global, and centred where the outer method is std."""
    xyz = ACTIONS[0]
    per_step = first(normalization={"scope": "per_timestep", "field_configs": {xyz: {"epsilon": 1e-8}}})
    assert np.array_equal(per_step["actions"][..., :3], first()["actions"][..., :3])
    assert not np.array_equal(per_step["actions"][..., 3:], first()["actions"][..., 3:])
    centred = first(normalization={"field_configs": {xyz: {"method": "min_max"}}})["actions"]
    explicit = first(normalization={"method": "min_max", "centered_norm": True})["actions"]
    assert np.array_equal(centred[..., :3], explicit[..., :3]) and not np.array_equal(centred, explicit)


def test_what_is_ignored_of_the_settings_is_said(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"include_fields": ACTIONS[:1], "field_configs": {"xyz": {"method": "min_max"}}}
    run = VlaRun(config(normalization=settings))
    assert [note.split(":")[0] for note in run.notes] == [
        "normalization.include_fields is ignored, as in VLA Foundry",
        "normalization.field_configs is ignored for xyz",
    ]
    with caplog.at_level(logging.WARNING, logger="feedmill"):
        loaders = [run.loader(rank, 2) for rank in range(2)]
    assert [record.getMessage() for record in caplog.records] == run.notes  # once, and not by every rank
    assert np.array_equal(next(iter(loaders[0]))["actions"], first()["actions"][:2])
    assert VlaRun(config()).notes == []


def test_a_run_without_cameras_says_so(robots: Path, caplog: pytest.LogCaptureFixture) -> None:
    (robots / "preprocessing_config.yaml").unlink()
    run = VlaRun(config(robots))
    (note,) = run.notes
    assert "no cameras" in note
    with caplog.at_level(logging.WARNING, logger="feedmill"):
        assert "pixel_values" not in next(iter(run.loader()))
    assert note in caplog.text
    named = VlaRun(config(robots, camera_names=["scene_left_0"], image_indices=[0]))
    assert named.notes == [] and next(iter(named.loader()))["pixel_values"].shape == (4, 1, 24, 32, 3)


def bilinear(image: np.ndarray, size: int) -> np.ndarray:
    """Pixels' middles, no antialiasing, in float64, pixel by pixel."""
    height, width = image.shape[:2]
    out = np.zeros((3, size, size))
    for y in range(size):
        for x in range(size):
            v = min(max((y + 0.5) * height / size - 0.5, 0), height - 1)
            u = min(max((x + 0.5) * width / size - 0.5, 0), width - 1)
            top, left = int(v), int(u)
            bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
            b, a = v - top, u - left
            above = image[top, left] * (1 - a) + image[top, right] * a
            below = image[bottom, left] * (1 - a) + image[bottom, right] * a
            out[:, y, x] = above * (1 - b) + below * b
    return out


@pytest.mark.parametrize("size", [16, 40])
def test_images_are_resized_as_the_original_resizes_them(size: int) -> None:
    plain, batch = first()["pixel_values"], first(image_size=size)["pixel_values"]
    assert plain.shape == (4, 4, 24, 32, 3) and plain.dtype == np.uint8
    assert batch.shape == (4, 4, 3, size, size) and batch.dtype == np.float32
    assert np.abs(batch[1, 2] - bilinear(plain[1, 2], size)).max() < 1e-3
    torch = pytest.importorskip("torch")
    planes = torch.from_numpy(plain.reshape(16, 24, 32, 3)).permute(0, 3, 1, 2).float()
    theirs = torch.nn.functional.interpolate(planes, size=(size, size), mode="bilinear")  # of processor "none"
    assert np.abs(batch.reshape(16, 3, size, size) - theirs.numpy()).max() < 1e-3


def with_a_second_size(folder: Path) -> Path:
    """A dataset whose second sample has a larger image."""
    samples = list(fm.open(ROOT / "robotics").read_raw(range(4)))
    out = io.BytesIO()
    Image.fromarray(np.full((48, 64, 3), 200, np.uint8)).save(out, "JPEG")
    members = [
        (f"{sample.key}.{part}", out.getvalue() if number == 1 and part == "scene_left_0_t0.jpg" else sample.raw(part))
        for number, sample in enumerate(samples)
        for part in sample
    ]
    folder.mkdir()
    write_tar(folder / "a.tar", members)
    (folder / "manifest.jsonl").write_text('{"shard": "a.tar", "num_sequences": 4}\n')
    for name in ("stats.json", "preprocessing_config.yaml"):
        shutil.copy(ROOT / "robotics" / name, folder)
    return folder


def test_images_of_unlike_sizes_need_a_size(tmp_path: Path) -> None:
    folder = with_a_second_size(tmp_path / "d")
    with pytest.raises(DataError, match=r"differ in size or dtype: uint8\[48, 64, 3\] here, .*Set image_size"):
        first(folder)
    batch = first(folder, image_size=20)["pixel_values"]
    assert batch.shape == (4, 4, 3, 20, 20) and np.abs(batch[1, 2] - 200).max() <= 2


def test_a_size_is_a_number_of_pixels() -> None:
    with pytest.raises(ConfigError, match=r"data\.image_size must be a whole number of at least 1, found 0"):
        VlaRun(config(image_size=0))


def test_data_sets_of_unlike_windows_are_mixed_in_the_shorter_one(robots: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(robots, tmp_path / "other"))
    settings = yaml.safe_load((other / "preprocessing_config.yaml").read_text())
    (other / "preprocessing_config.yaml").write_text(yaml.safe_dump({**settings, "past_lowdim_steps": 1}))
    assert first(robots)["actions"].shape == (4, 8, 4)
    mixed = first(robots, other)
    assert mixed["actions"].shape == (4, 7, 4) and set(mixed["anchor_relative_idx"]) == {1}
    assert first(robots, other, lowdim_past_timesteps=2)["actions"].shape == (4, 8, 4)
    with pytest.raises(ConfigError, match=r"'past_lowdim_steps'.*Set data\.normalization\.lowdim_past_timesteps"):
        first(robots, other, normalization={"scope": "per_timestep"})
    per_step = {"scope": "per_timestep", "lowdim_past_timesteps": 2}
    assert first(robots, other, normalization=per_step)["actions"].shape == (4, 8, 4)


def test_an_unknown_field_is_found_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(json.dumps(config(action_fields=[ACTIONS[0] + "z"])))
    shown = feedmill("compat", "vla", "plan", tmp_path / "run.yaml", status=1)
    assert f"did you mean '{ACTIONS[0]}'?" in shown
    with pytest.raises(DataError, match=f"no field '{ACTIONS[0]}z'.*did you mean '{ACTIONS[0]}'.*Use the fields"):
        first(action_fields=[ACTIONS[0] + "z"], normalization={"enabled": False})


def test_statistics_are_of_vla_foundrys_data_sets(tmp_path: Path) -> None:
    shown = feedmill("compat", "vla", "stats", lerobot_v3(tmp_path / "lerobot", [3, 2]), status=1)
    assert "the samples have no lowdim.npz" in shown and "this is a LeRobot dataset" in shown


def test_statistics_without_clusters_of_values_name_the_key(robots: Path, tmp_path: Path) -> None:
    entries = json.loads((robots / "stats.json").read_text())
    for entry in entries.values():
        del entry["tdigest_state"]
    (tmp_path / "old.json").write_text(json.dumps(entries))
    shown = feedmill(
        "compat",
        "vla",
        "merge-stats",
        tmp_path / "old.json",
        robots / "stats.json",
        "--output",
        tmp_path / "m",
        status=1,
    )
    assert "tdigest_state" in shown and "feedmill compat vla stats" in shown and "KeyError" not in shown
