"""Functions of ``vla_foundry.data.robotics.utils`` under their names: poses and windows.

Statistics of several datasets are merged by ``feedmill compat vla merge-stats``.

The results are those of `feedmill.samples.robotics`, which works on any number of poses at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.formats.yamls import read_settings
from feedmill.samples.robotics import poses
from feedmill.samples.robotics.relative import actual
from feedmill.storage import open_store, split_url

Floats = npt.NDArray[np.floating]

rot_6d_to_matrix = poses.rotation_matrix
matrix_to_rot_6d = poses.rotation_six
invert_homogeneous_transform = poses.inverse


def any_to_actual_key(field: str) -> str | None:
    """Return the name of a field's measured state; None for names without three parts."""
    return actual(field) if field.count("__") > 1 else None


def normalize(x: npt.ArrayLike, eps: float = 1e-12) -> Floats:
    """Return vectors ``[..., C]`` scaled to length 1; shorter ones than `eps` are divided by `eps`."""
    return poses.unit(x, eps)


def load_action_field_config(config_path: str) -> dict[str, list[Any]]:
    """Return the lists of a YAML file of action fields; lists that it does not have are empty."""
    folder, name = split_url(config_path)
    found = read_settings(open_store(folder).read(name), config_path) or {}
    return {key: found.get(key, []) for key in ("action_key_fields", "action_index_fields", "pose_groups")}


def to_pose_matrix(xyz: npt.ArrayLike, rot_6d: npt.ArrayLike) -> Floats:
    """Return poses ``[..., 4, 4]`` of positions ``[..., 3]`` and rotations of six numbers: one, or one each."""
    return poses.pose_matrix(xyz, poses.rotation_matrix(rot_6d))


def pose_to_9d(pose_matrix: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return the positions ``[..., 3]`` and the six numbers ``[..., 6]`` of poses ``[..., 4, 4]``."""
    given = np.asarray(pose_matrix)
    return given[..., :3, 3], poses.rotation_six(given[..., :3, :3])


def calculate_relative_pose(pose_matrix: npt.ArrayLike, reference_pose_matrix: npt.ArrayLike) -> Floats:
    """Return poses ``[..., 4, 4]`` as seen from one reference ``[4, 4]``."""
    return poses.relative(pose_matrix, _one(reference_pose_matrix))


def apply_relative_pose(relative_pose_matrix: npt.ArrayLike, reference_pose_matrix: npt.ArrayLike) -> Floats:
    """Return poses of the world from poses ``[..., 4, 4]`` relative to one reference ``[4, 4]``."""
    return poses.absolute(relative_pose_matrix, _one(reference_pose_matrix))


def _one(reference: npt.ArrayLike) -> Floats:
    found = np.asarray(reference, np.float64)
    if found.shape != (4, 4):
        raise ValueError(f"reference_pose_matrix must be shape (4, 4), got {found.shape}")
    return found


def rpy_to_R(roll: float, pitch: float, yaw: float) -> Floats:
    """Return the rotation ``[3, 3]`` of three angles in radians."""
    return poses.euler_matrix((roll, pitch, yaw))


def xyzrpy_to_T(pose: npt.ArrayLike) -> Floats:
    """Return poses ``[N, 4, 4]`` of rows of position and angles, ``[6]`` or ``[N, 6]``."""
    rows = np.atleast_2d(np.asarray(pose, np.float64))
    if rows.ndim != 2 or rows.shape[1] != 6:
        raise ValueError(f"Pose must have shape (n, 6) or length 6, got {np.shape(pose)}")
    return poses.pose_matrix(rows[:, :3], poses.euler_matrix(rows[:, 3:]))


def crop_sequence(data: Any, anchor_idx: int, past_timesteps: int, future_timesteps: int) -> Any:
    """Return the steps of ``data[T, ...]`` from `past_timesteps` before the anchor to `future_timesteps` after it.

    Raises:
        AssertionError: the data has too few steps, as in VLA Foundry.
    """
    if anchor_idx < past_timesteps or len(data) < anchor_idx + future_timesteps + 1:
        raise AssertionError(
            f"the window of {past_timesteps} steps before and {future_timesteps} after step {anchor_idx} exceeds the"
            f" {len(data)} steps"
        )
    return data[anchor_idx - past_timesteps : anchor_idx + future_timesteps + 1]
