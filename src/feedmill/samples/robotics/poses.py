"""Compute with poses: rotations as six numbers or matrices, and poses relative to another pose.

- A rotation is a matrix ``[3, 3]``, or six numbers: its first two *rows*, one after the other, as in VLA Foundry. (Zhou
  et al., "On the Continuity of Rotation Representations in Neural Networks", take the first two columns.)
- A pose is a position and a rotation, or a matrix ``[4, 4]`` that maps points of its frame to the frame of the world.

All functions compute in float64, on any number of poses at once: the axes before those of one pose are broadcast.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]

_TINY = 1e-12
"""Rows shorter than this have no direction: they are not scaled to length 1."""


def rotation_matrix(six: npt.ArrayLike) -> Floats:
    """Return the rotations ``[..., 3, 3]`` of six numbers each, ``[..., 6]``, of any length and angle (Gram-Schmidt).

    Two parallel rows, or a row of zeros, are no rotation: the result then has rows of zeros.
    """
    rows = np.asarray(six, np.float64)
    first = unit(rows[..., :3])
    second = rows[..., 3:] - (first * rows[..., 3:]).sum(-1, keepdims=True) * first
    second = unit(second)
    return np.stack((first, second, np.cross(first, second)), axis=-2)


def rotation_six(matrix: npt.ArrayLike) -> Floats:
    """Return the six numbers ``[..., 6]`` of rotations ``[..., 3, 3]``: the inverse of `rotation_matrix`."""
    rows = np.asarray(matrix, np.float64)[..., :2, :]
    return rows.reshape(*rows.shape[:-2], 6)


def euler_matrix(angles: npt.ArrayLike) -> Floats:
    """Return the rotations ``[..., 3, 3]`` of roll, pitch, yaw ``[..., 3]`` in radians: about x, then y, then z."""
    (cr, cp, cy), (sr, sp, sy) = (np.moveaxis(f(np.asarray(angles, np.float64)), -1, 0) for f in (np.cos, np.sin))
    rows = (
        (cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr),
        (sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr),
        (-sp, cp * sr, cp * cr),
    )
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def matrix_euler(matrix: npt.ArrayLike) -> Floats:
    """Return roll, pitch, yaw ``[..., 3]`` of rotations ``[..., 3, 3]``: the inverse of `euler_matrix`."""
    m = np.asarray(matrix, np.float64)
    roll, yaw = np.arctan2(m[..., 2, 1], m[..., 2, 2]), np.arctan2(m[..., 1, 0], m[..., 0, 0])
    return np.stack((roll, np.arcsin(np.clip(-m[..., 2, 0], -1, 1)), yaw), axis=-1)


def quaternion_matrix(quaternion: npt.ArrayLike) -> Floats:
    """Return the rotations ``[..., 3, 3]`` of quaternions x, y, z, w ``[..., 4]`` of any length but 0."""
    x, y, z, w = np.moveaxis(unit(np.asarray(quaternion, np.float64)), -1, 0)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    )
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def matrix_quaternion(matrix: npt.ArrayLike) -> Floats:
    """Return quaternions x, y, z, w ``[..., 4]`` of rotations ``[..., 3, 3]``, with w of 0 or more.

    Source: the eigenvector of K. Shoemake's symmetric matrix (I. Bar-Itzhack, "New Method for Extracting the
    Quaternion from a Rotation Matrix", 2000), which is stable for every angle.
    """
    m = np.asarray(matrix, np.float64)
    a, b, c = m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]
    xy, xz, yz = m[..., 0, 1] + m[..., 1, 0], m[..., 0, 2] + m[..., 2, 0], m[..., 1, 2] + m[..., 2, 1]
    xw, yw, zw = m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]
    rows = ((a - b - c, xy, xz, xw), (xy, b - a - c, yz, yw), (xz, yz, c - a - b, zw), (xw, yw, zw, a + b + c))
    _, vectors = np.linalg.eigh(np.stack([np.stack(row, axis=-1) for row in rows], axis=-2))
    found = vectors[..., -1]
    signed: Floats = np.where(found[..., 3:] < 0, -found, found)
    return signed


def axis_matrix(turn: npt.ArrayLike) -> Floats:
    """Return the rotations ``[..., 3, 3]`` of axes times angles in radians, ``[..., 3]``."""
    given = np.asarray(turn, np.float64)
    half = np.linalg.norm(given, axis=-1, keepdims=True) / 2
    sine = np.sinc(half / np.pi) / 2  # sin(half) / angle
    return quaternion_matrix(np.concatenate((given * sine, np.cos(half)), axis=-1))


def matrix_axis(matrix: npt.ArrayLike) -> Floats:
    """Return axes times angles, up to pi, ``[..., 3]`` of rotations ``[..., 3, 3]``: the inverse of `axis_matrix`."""
    found = matrix_quaternion(matrix)
    length = np.linalg.norm(found[..., :3], axis=-1, keepdims=True)
    angle = 2 * np.arctan2(length, found[..., 3:])
    scaled: Floats = found[..., :3] * np.where(length > _TINY, angle / np.maximum(length, _TINY), 2.0)
    return scaled


def pose_matrix(position: npt.ArrayLike, rotation: npt.ArrayLike) -> Floats:
    """Return poses ``[..., 4, 4]`` of positions ``[..., 3]`` and rotations ``[..., 3, 3]``.

    Raises:
        ValueError: There is neither one rotation nor one for each position.
    """
    at, turn = np.asarray(position, np.float64), np.asarray(rotation, np.float64)
    out = np.zeros((*at.shape[:-1], 4, 4))
    out[..., :3, :3], out[..., :3, 3], out[..., 3, 3] = turn, at, 1
    return out


def inverse(poses: npt.ArrayLike) -> Floats:
    """Return the inverses of poses ``[..., 4, 4]``."""
    given = np.asarray(poses, np.float64)
    turn = given[..., :3, :3].swapaxes(-1, -2)
    return pose_matrix(-(turn @ given[..., :3, 3:])[..., 0], turn)


def relative(poses: npt.ArrayLike, reference: npt.ArrayLike) -> Floats:
    """Return poses ``[..., 4, 4]`` as seen from the frame of the reference ``[..., 4, 4]``."""
    return inverse(reference) @ np.asarray(poses, np.float64)


def absolute(poses: npt.ArrayLike, reference: npt.ArrayLike) -> Floats:
    """Return poses of the world from poses relative to a reference ``[..., 4, 4]``: the inverse of `relative`."""
    return np.asarray(reference, np.float64) @ np.asarray(poses, np.float64)


def between(low: npt.ArrayLike, high: npt.ArrayLike, share: npt.ArrayLike) -> Floats:
    """Return the rotations ``[..., 3, 3]`` that lie between two on the shortest way, at a share ``[...]`` from 0 to 1.

    Source: K. Shoemake, "Animating Rotation with Quaternion Curves" (1985); here by axis and angle.
    """
    first = np.asarray(low, np.float64)
    turn = matrix_axis(first.swapaxes(-1, -2) @ np.asarray(high, np.float64))
    moved: Floats = first @ axis_matrix(turn * np.asarray(share, np.float64)[..., None])
    return moved


def wrapped(angles: npt.ArrayLike) -> Floats:
    """Return angles in radians between -pi (included) and pi."""
    return (np.asarray(angles, np.float64) + np.pi) % (2 * np.pi) - np.pi


def unit(vectors: npt.ArrayLike, shortest: float = _TINY) -> Floats:
    """Return vectors ``[..., C]`` scaled to length 1; shorter ones than `shortest` are divided by `shortest`."""
    given = np.asarray(vectors)
    scaled: Floats = given / np.maximum(np.linalg.norm(given, axis=-1, keepdims=True), shortest)
    return scaled


FORMS = {
    "euler": (3, euler_matrix, matrix_euler),
    "quaternion": (4, quaternion_matrix, matrix_quaternion),
    "axis_angle": (3, axis_matrix, matrix_axis),
    "6d": (6, rotation_matrix, rotation_six),
}
"""Form of a rotation -> how many numbers it has, and the conversions to and from matrices."""
