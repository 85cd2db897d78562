"""Poses: rotations of six numbers, matrices, angles; poses relative to others. Properties over any numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.compat.vla import robotics_utils
from feedmill.samples.robotics import poses

SEEDS = st.integers(0, 2**32 - 1)
SHAPES = st.sampled_from([(), (1,), (7,), (2, 5)])


def some(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, shape)


def some_poses(seed: int, *shape: int) -> np.ndarray:
    return poses.pose_matrix(some(seed, *shape, 3, scale=5), poses.rotation_matrix(some(seed + 1, *shape, 6)))


@given(SEEDS, SHAPES, st.floats(1e-6, 1e6))
def test_six_numbers_of_any_length_are_a_rotation(seed: int, shape: tuple[int, ...], scale: float) -> None:
    six = some(seed, *shape, 6)
    found = poses.rotation_matrix(six * scale)
    assert found.shape == (*shape, 3, 3)
    np.testing.assert_allclose(found @ found.swapaxes(-1, -2), np.broadcast_to(np.eye(3), found.shape), atol=1e-9)
    np.testing.assert_allclose(np.linalg.det(found), 1, atol=1e-9)
    np.testing.assert_allclose(found, poses.rotation_matrix(six), atol=1e-9)
    np.testing.assert_allclose(poses.rotation_matrix(poses.rotation_six(found)), found, atol=1e-12)


@given(st.tuples(*[st.floats(-7, 7)] * 3))
def test_angles_turn_about_x_then_y_then_z(angles: tuple[float, float, float]) -> None:
    def about(axis: int, angle: float) -> np.ndarray:
        out, (i, j) = np.eye(3), ((1, 2), (2, 0), (0, 1))[axis]
        out[i, i] = out[j, j] = np.cos(angle)
        out[j, i], out[i, j] = np.sin(angle), -np.sin(angle)
        return out

    expected = about(2, angles[2]) @ about(1, angles[1]) @ about(0, angles[0])
    np.testing.assert_allclose(poses.euler_matrix(angles), expected, atol=1e-12)
    np.testing.assert_allclose(poses.euler_matrix([angles, (0, 0, 0)]), [expected, np.eye(3)], atol=1e-12)


@given(SEEDS, SHAPES)
def test_relative_and_absolute_are_inverse(seed: int, shape: tuple[int, ...]) -> None:
    seen, reference = some_poses(seed, *shape), some_poses(seed + 7)
    moved = poses.relative(seen, reference)
    np.testing.assert_allclose(moved, np.linalg.inv(reference) @ seen, atol=1e-9)
    np.testing.assert_allclose(poses.absolute(moved, reference), seen, atol=1e-9)
    np.testing.assert_allclose(poses.relative(reference, reference), np.eye(4), atol=1e-9)
    np.testing.assert_allclose(poses.inverse(seen) @ seen, np.broadcast_to(np.eye(4), seen.shape), atol=1e-9)


@given(SEEDS)
def test_a_batch_of_references_is_one_for_each_pose(seed: int) -> None:
    seen, references = some_poses(seed, 4, 3), some_poses(seed + 3, 4, 1)
    moved = poses.relative(seen, references)
    for row in range(4):
        np.testing.assert_array_equal(moved[row], poses.relative(seen[row], references[row, 0]))


@given(st.floats(-1e3, 1e3))
def test_angles_are_wrapped_around_zero(angle: float) -> None:
    found = float(poses.wrapped(angle))
    assert -np.pi <= found < np.pi + 1e-9
    np.testing.assert_allclose([np.sin(found), np.cos(found)], [np.sin(angle), np.cos(angle)], atol=1e-9)


def test_what_is_no_rotation_has_rows_of_zeros_and_other_sizes_are_errors() -> None:
    assert not poses.rotation_matrix(np.zeros(6)).any()
    with pytest.raises(ValueError, match="could not broadcast"):
        poses.pose_matrix(np.zeros((3, 3)), np.zeros((5, 3, 3)))


def test_the_functions_of_the_original_have_its_shapes_and_errors() -> None:
    u = robotics_utils
    assert u.any_to_actual_key("robot__action__poses__xyz") == "robot__actual__poses__xyz"
    assert u.any_to_actual_key("robot__action") is None
    assert u.xyzrpy_to_T([1, 2, 3, 0, 0, 0]).shape == (1, 4, 4)
    with pytest.raises(ValueError, match="shape"):
        u.xyzrpy_to_T([1, 2, 3])
    for function in (u.calculate_relative_pose, u.apply_relative_pose):
        with pytest.raises(ValueError, match=r"must be shape \(4, 4\), got \(2, 4, 4\)"):
            function(np.eye(4), np.tile(np.eye(4), (2, 1, 1)))
    assert u.crop_sequence(np.arange(10), 5, 2, 3).tolist() == [3, 4, 5, 6, 7, 8]
    with pytest.raises(AssertionError, match="exceeds the 5 steps"):
        u.crop_sequence(np.arange(5), 1, 2, 1)
    xyz, six = u.pose_to_9d(u.to_pose_matrix(np.ones((2, 3)), [0, 1, 0, -1, 0, 0]))
    assert xyz.tolist() == [[1, 1, 1]] * 2 and six.tolist() == [[0, 1, 0, -1, 0, 0]] * 2
    np.testing.assert_allclose(u.normalize([[3.0, 4.0], [0.0, 2.0]]), [[0.6, 0.8], [0, 1]])


@pytest.mark.parametrize("form", poses.FORMS)
def test_every_form_of_a_rotation_is_converted_and_back(form: str) -> None:
    count, to_matrix, from_matrix = poses.FORMS[form]
    given = np.random.default_rng(3).normal(size=(4, 50, count))
    turns = to_matrix(given)
    np.testing.assert_allclose(turns @ turns.swapaxes(-1, -2), np.broadcast_to(np.eye(3), turns.shape), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(turns), 1, atol=1e-12)
    np.testing.assert_allclose(to_matrix(from_matrix(turns)), turns, atol=1e-9)
    half = poses.axis_matrix([[np.pi, 0, 0], [0, -np.pi, 0], [0, 0, 0], [0, 1e-9, 0]])
    np.testing.assert_allclose(to_matrix(from_matrix(half)), half, atol=1e-8)
