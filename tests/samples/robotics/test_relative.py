"""Relative fields: computed when samples are read, with statistics of the relative values, and made absolute again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.compat.vla import VlaRun
from feedmill.errors import ConfigError, DataError
from feedmill.formats.npz.arrays import npz
from feedmill.samples.robotics import poses
from feedmill.samples.robotics.job import compute_statistics
from feedmill.samples.robotics.relative import absolute, pose_groups, sources
from helpers.tars import write_tar

XYZ, SIX, JOINTS = "robot__action__hand__xyz", "robot__action__hand__rot_6d", "robot__action__joint_position__arm"
STATE = {name: name.replace("action", "actual") for name in (XYZ, SIX, JOINTS)}
GROUP = {"name": "hand", "position_key": XYZ, "rotation_key": SIX}
PAST, STEPS = 1, 4


def make(folder: Path, samples: int = 6, **more: Any) -> list[dict[str, Any]]:
    """A robotics dataset; returns the fields of its samples."""
    rng, fields, files = np.random.default_rng(3), [], []
    for number in range(samples):
        lowdim: dict[str, Any] = {name: rng.normal(0, 1, (STEPS, 6 if "rot" in name else 3)) for name in (XYZ, SIX)}
        lowdim |= {STATE[name]: value + rng.normal(0, 0.1, value.shape) for name, value in lowdim.items()}
        lowdim[JOINTS] = rng.uniform(-np.pi, np.pi, (STEPS, 2))
        lowdim[STATE[JOINTS]] = rng.uniform(-np.pi, np.pi, (STEPS, 2))
        lowdim["past_mask"], lowdim["future_mask"] = np.arange(STEPS) < PAST, np.arange(STEPS) >= PAST
        lowdim = {name: value for name, value in {**lowdim, **more}.items() if value is not None}
        fields.append(lowdim)
        files += [
            (f"{number:03d}.lowdim.npz", npz(lowdim)),
            (f"{number:03d}.metadata.json", json.dumps({"anchor_relative_idx": PAST}).encode()),
        ]
    write_tar(folder / "a.tar", files)
    (folder / "manifest.jsonl").write_text(json.dumps({"shard": "a.tar", "num_sequences": samples}) + "\n")
    return fields


def expected(lowdim: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Position and six numbers in the frame of the actual hand at the anchor, by matrices and NumPy's inverse."""
    state = poses.pose_matrix(lowdim[STATE[XYZ]], poses.rotation_matrix(lowdim[STATE[SIX]]))[PAST]
    seen = np.linalg.inv(state) @ poses.pose_matrix(lowdim[XYZ], poses.rotation_matrix(lowdim[SIX]))
    return seen[:, :3, 3], seen[:, :2, :3].reshape(STEPS, 6)


def batch(folder: Path, fields: list[str], **data: Any) -> dict[str, Any]:
    settings = {
        "type": "robotics",
        "dataset_manifest": [f"{folder}/manifest.jsonl"],
        "dataset_weighting": [1],
        "dataset_modality": ["robotics"],
        "action_fields": fields,
        "pose_groups": [GROUP],
        "normalization": {"enabled": False},
        "shuffle": False,
        "num_workers": 0,
        **data,
    }
    run = VlaRun({"data": settings, "hparams": {"global_batch_size": 6}, "total_train_samples": 6})
    return next(iter(run.loader()))


def feedmill(*words: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, words)], prog_name="feedmill")
    assert done.exit_code == status, done.output
    return done.output


def test_poses_are_relative_to_the_actual_pose_at_the_anchor(tmp_path: Path) -> None:
    fields = make(tmp_path)
    found = batch(tmp_path, [f"{XYZ}_relative", f"{SIX}_relative", f"{JOINTS}_relative"])["actions"]
    assert found.shape == (6, STEPS, 11) and found.dtype == np.float32
    for row, lowdim in zip(found, fields, strict=True):
        xyz, six = expected(lowdim)
        moved = lowdim[JOINTS] - lowdim[STATE[JOINTS]][PAST]
        np.testing.assert_allclose(row[:, :9], np.hstack((xyz, six)), atol=1e-6)
        np.testing.assert_allclose(np.exp(1j * row[:, 9:]), np.exp(1j * moved), atol=1e-6)
        assert (np.abs(row[:, 9:]) <= np.pi + 1e-6).all()
    window = batch(tmp_path, [f"{XYZ}_relative"], lowdim_past_timesteps=0, lowdim_future_timesteps=1)
    np.testing.assert_array_equal(window["actions"], found[:, PAST : PAST + 2, :3])


def test_the_peers_own_relative_fields_are_used_as_they_are(tmp_path: Path) -> None:
    make(tmp_path, **{f"{XYZ}_relative": np.full((STEPS, 3), 7.0)})
    found = batch(tmp_path, [f"{XYZ}_relative", f"{SIX}_relative"])["actions"]
    assert (found[..., :3] == 7).all() and not (found[..., 3:] == 7).any()


def test_a_group_without_rotation_is_a_difference_from_any_state(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    action, state = rng.normal(0, 1, (STEPS, 5)), rng.normal(0, 1, (STEPS, 5))
    make(tmp_path, **{"action": action, "observation.state": state})
    group = {"name": "all", "position_key": "action", "reference_position_key": "observation.state"}
    found = batch(tmp_path, ["action_relative"], pose_groups=[group])["actions"]
    np.testing.assert_allclose(found[0], action - state[PAST], atol=1e-6)


def test_statistics_are_those_of_the_relative_values(tmp_path: Path) -> None:
    fields = make(tmp_path)
    (tmp_path / "groups.yaml").write_text(yaml.safe_dump({"data": {"pose_groups": [GROUP]}}))
    out = feedmill("compat", "vla", "stats", tmp_path, "--pose-groups", tmp_path / "groups.yaml")
    assert f"{XYZ}_relative" in out and f"{XYZ} " in out
    stats = json.loads((tmp_path / "stats.json").read_text())
    values = np.stack([np.hstack(expected(lowdim)) for lowdim in fields])
    for name, part in ((f"{XYZ}_relative", values[..., :3]), (f"{SIX}_relative", values[..., 3:])):
        np.testing.assert_allclose(stats[name]["mean_per_timestep"], part.mean(0), atol=1e-9)
        np.testing.assert_allclose(stats[name]["std_per_timestep"], part.std(0, ddof=1), atol=1e-9)
        np.testing.assert_allclose(stats[name]["max"], part.max((0, 1)), atol=1e-9)
    names = [f"{XYZ}_relative", f"{SIX}_relative"]
    settings = {"dataset_statistics": [f"{tmp_path}/stats.json"], "normalization": {}}
    found = batch(tmp_path, names, **settings)["actions"]
    mean, std = (np.concatenate([stats[name][kind] for name in names]) for kind in ("mean", "std"))
    np.testing.assert_allclose(found, (values - mean) / std, atol=1e-5)
    one = compute_statistics(str(tmp_path), fields=[f"{JOINTS}_relative"], progress=False)  # needs no group
    assert list(one) == [f"{JOINTS}_relative"] and one[f"{JOINTS}_relative"].shape == (STEPS, 2)
    with pytest.raises(DataError, match=r"has no field .*xyz_relative.*--pose-groups FILE"):
        compute_statistics(str(tmp_path), fields=[f"{XYZ}_relative"], progress=False)


def test_relative_actions_are_made_absolute_again(tmp_path: Path) -> None:
    fields = make(tmp_path)
    names = [f"{XYZ}_relative", f"{SIX}_relative", f"{JOINTS}_relative"]
    parts = np.split(batch(tmp_path, names)["actions"], [3, 9], axis=-1)
    state = {STATE[name]: np.stack([one[STATE[name]][PAST] for one in fields]) for name in STATE}
    groups = pose_groups([GROUP])
    found = absolute({**dict(zip(names, parts, strict=True)), "grip": parts[0]}, state, groups)
    assert set(found) == {XYZ, SIX, JOINTS, "grip"} and found["grip"] is parts[0]
    for number, lowdim in enumerate(fields):
        np.testing.assert_allclose(found[XYZ][number], lowdim[XYZ], atol=1e-5)
        rotations = [poses.rotation_matrix(one) for one in (found[SIX][number], lowdim[SIX])]
        np.testing.assert_allclose(*rotations, atol=1e-5)
        np.testing.assert_allclose(np.exp(1j * found[JOINTS][number]), np.exp(1j * lowdim[JOINTS]), atol=1e-5)
    with pytest.raises(ConfigError, match="'robot__actual__hand__xyz' is missing"):
        absolute(dict(zip(names[:2], parts[:2], strict=True)), {}, groups)
    with pytest.raises(ConfigError, match="'x_relative' cannot be made absolute"):
        absolute({"x_relative": parts[0]}, state, groups)


@pytest.mark.parametrize(
    ("groups", "wrong"),
    [
        ("hand", "must be a list of groups: found 'hand'"),
        ([{"name": "hand"}], "pose group 0 has no position_key"),
        ([{**GROUP, "position_keys": XYZ}], "unknown setting 'position_keys'.*position_key"),
        ([GROUP, {**GROUP, "name": "b"}], "is in two pose groups"),
        ([{**GROUP, "rotation_key": [SIX]}], "'rotation_key' of pose group 0 must be a name"),
    ],
)
def test_groups_that_are_wrong(groups: Any, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        pose_groups(groups)


def test_samples_and_fields_that_are_no_poses_are_named(tmp_path: Path) -> None:
    make(tmp_path / "a")
    with pytest.raises(DataError, match=r"has no field .*To compute it from .*pose_groups"):
        batch(tmp_path / "a", [f"{XYZ}_relative"], pose_groups=[])
    make(tmp_path / "b", **{STATE[SIX]: np.ones((STEPS, 6))})
    with pytest.raises(DataError, match=r"000.*actual__hand__rot_6d' is not a rotation at step 1: its two rows"):
        batch(tmp_path / "b", [f"{XYZ}_relative"])
    make(tmp_path / "c", **{XYZ: np.ones((STEPS, 2))})
    with pytest.raises(DataError, match=r"must be \[4, 3\] for positions .* xyz. \[4, 2\]|found .*\[4, 2\]"):
        batch(tmp_path / "c", [f"{SIX}_relative"])
    make(tmp_path / "d", **{STATE[XYZ]: None})
    with pytest.raises(DataError, match="has no field"):
        batch(tmp_path / "d", [f"{SIX}_relative"])
    (tmp_path / "no.yaml").write_text("a: 1\n")
    assert "the file has no pose_groups" in feedmill(
        "compat", "vla", "stats", tmp_path / "a", "--pose-groups", tmp_path / "no.yaml", status=1
    )
    assert sources([XYZ, f"{SIX}_relative"], pose_groups([GROUP])) == [XYZ, STATE[XYZ], SIX, STATE[SIX]]
