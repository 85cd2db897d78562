"""Compute relative fields of robotics samples: ``X_relative`` is the field ``X`` as seen from the state at the anchor.

The reference of ``robot__action__poses__left__xyz`` is ``robot__actual__poses__left__xyz`` at the anchor's step, as in
VLA Foundry's preprocessing. A group may name other fields for it. There are three kinds of relative fields:

- poses, a position ``[T, 3]`` and a rotation ``[T, 6]`` of one group: the pose in the frame of the reference;
- a group without a rotation: the difference from the reference, for any field ``[T, C]``;
- a field with ``joint_position`` in its name, without a group: the difference in radians, between -pi and pi.

A field that is stored in the sample is used as it is, and not computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, did_you_mean
from feedmill.samples.robotics import poses

SUFFIX = "_relative"
_ANGLES = "joint_position"
_KEYS: Mapping[str, str] = {
    "name": "name",
    "position_key": "position",
    "rotation_key": "rotation",
    "reference_position_key": "reference_position",
    "reference_rotation_key": "reference_rotation",
}
"""VLA Foundry's setting (the last two are Feedmill's own) -> attribute of `PoseGroup`."""

Lowdim = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PoseGroup:
    """Fields that are one pose, and those of their reference.

    Attributes:
        name: Name, for messages.
        position, rotation: Fields; without a rotation, `position` may be any field, and differences are computed.
        reference_position, reference_rotation: Fields of the reference; None for the actual state of the same part.
    """

    name: str
    position: str
    rotation: str | None = None
    reference_position: str | None = None
    reference_rotation: str | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields that are read to compute the relative ones."""
        both = [(self.position, self.reference_position), (self.rotation, self.reference_rotation)]
        return tuple(name for field, own in both if field is not None for name in (field, own or actual(field)))


def actual(field: str) -> str:
    """Return the name of the measured state of a field: ``robot__action__x`` -> ``robot__actual__x``."""
    first, *rest = field.split("__")
    return "__".join((first, "actual", *rest[1:])) if len(rest) > 1 else field


def pose_groups(config: object) -> tuple[PoseGroup, ...]:
    """Return the groups of VLA Foundry's setting ``pose_groups``.

    Raises:
        ConfigError: The setting is not a list of groups, or two groups have the same field.
    """
    fix = f"Write a list of groups with {', '.join(list(_KEYS)[:3])}."
    if not isinstance(config, list | tuple) or not all(isinstance(item, Mapping) for item in config):
        raise ConfigError(f"pose_groups must be a list of groups: found {config!r:.80}", fix=fix)
    out = []
    for number, given in enumerate(config):
        for key in given:
            if key not in _KEYS:
                raise ConfigError(
                    f"unknown setting {key!r} of pose group {number}{did_you_mean(key, list(_KEYS))}", fix=fix
                )
        missing = [key for key in ("name", "position_key") if not isinstance(given.get(key), str)]
        if missing:
            raise ConfigError(f"pose group {number} has no {missing[0]}", fix=fix)
        wrong = next((key for key, value in given.items() if value is not None and not isinstance(value, str)), None)
        if wrong is not None:
            raise ConfigError(f"{wrong!r} of pose group {number} must be a name: found {given[wrong]!r:.80}", fix=fix)
        out.append(PoseGroup(**{_KEYS[key]: value for key, value in given.items()}))
    fields = [field for group in out for field in (group.position, group.rotation) if field is not None]
    twice = [field for field in fields if fields.count(field) > 1]
    if twice:
        raise ConfigError(f"the field {twice[0]!r} is in two pose groups", fix="Remove it from one of them.")
    return tuple(out)


def sources(names: Iterable[str], groups: Sequence[PoseGroup]) -> list[str]:
    """Return the fields that must be read to compute the relative ones of `names`."""
    out: list[str] = []
    for name in names:
        if name.endswith(SUFFIX):
            field = name.removesuffix(SUFFIX)
            group = _group(field, groups)
            out += (field, actual(field)) if group is None else group.fields
    return list(dict.fromkeys(out))


def computed(lowdim: Lowdim, names: Iterable[str], groups: Sequence[PoseGroup], anchor: int) -> dict[str, Any]:
    """Return the relative fields of `names` that a sample does not store, float64[T, C].

    Fields that cannot be computed, because the sample lacks what they come from, are not in the result.

    Args:
        lowdim: The sample's fields ``[T, C]``.
        anchor: The step of the reference.

    Raises:
        ValueError: A field is no pose or differs from its reference in shape, the anchor is outside, or a rotation is
            degenerate.
    """
    out: dict[str, Any] = {}
    for name in names:
        field = name.removesuffix(SUFFIX)
        if name in lowdim or name in out or field == name:
            continue
        group = _group(field, groups)
        needed = (field, actual(field)) if group is None else group.fields
        if any(name not in lowdim for name in needed) or (group is None and _ANGLES not in field):
            continue
        values = [_columns(np.asarray(lowdim[name], np.float64)) for name in needed]
        if any(len(value) != len(values[0]) for value in values) or not 0 <= anchor < len(values[0]):
            lengths = ", ".join(f"{name!r} {len(value)}" for name, value in zip(needed, values, strict=True))
            raise ValueError(f"fields of a pose must have one length and the anchor's step {anchor}: found {lengths}")
        if group is None or group.rotation is None:
            if values[0].shape != values[1].shape:
                raise ValueError(
                    f"{needed[0]!r} and its reference {needed[1]!r} must have one shape: found {values[0].shape},"
                    f" {values[1].shape}"
                )
            moved = values[0] - values[1][anchor]
            out[name] = poses.wrapped(moved) if group is None else moved
        else:
            computed_values = _relative_pose(group, values, anchor)
            both = (f"{group.position}{SUFFIX}", f"{group.rotation}{SUFFIX}")
            out |= {name: value for name, value in zip(both, computed_values, strict=True) if name not in lowdim}
    return out


def absolute(fields: Lowdim, reference: Lowdim, groups: Sequence[PoseGroup]) -> dict[str, Any]:
    """Return fields with the relative ones replaced by absolute ones, float64, under the names without ``_relative``.

    Args:
        fields: The fields in their own units, ``[..., T, C]``, such as a model's actions after `Robotics.denormalized`.
        reference: The state at the anchor, ``[..., C]`` by field.

    Raises:
        ConfigError: The reference or the other half of a pose is missing, or a field has no group.
    """
    out: dict[str, Any] = {}
    for name, values in fields.items():
        field = name.removesuffix(SUFFIX)
        group = _group(field, groups)
        if field == name:
            out[name] = values
            continue
        if group is None and _ANGLES not in field:
            raise ConfigError(f"{name!r} cannot be made absolute", fix=advice(name, groups))
        if group is None or group.rotation is None:
            own = actual(field) if group is None else group.fields[1]
            moved = np.asarray(values, np.float64) + _known(reference, own)[..., None, :]
            out[field] = poses.wrapped(moved) if group is None else moved
        elif field not in out:
            both = [_known(fields, f"{name}{SUFFIX}") for name in (group.position, group.rotation)]
            state = [_known(reference, name)[..., None, :] for name in (group.fields[1], group.fields[3])]
            seen, origin = (poses.pose_matrix(at, poses.rotation_matrix(six)) for at, six in (both, state))
            pose = poses.absolute(seen, origin)
            out[group.position], out[group.rotation] = pose[..., :3, 3], poses.rotation_six(pose[..., :3, :3])
    return out


def _known(fields: Lowdim, name: str) -> npt.NDArray[Any]:
    if name not in fields:
        raise ConfigError(f"the field {name!r} is missing", fix=f"Pass it; the fields given are {', '.join(fields)}.")
    return np.asarray(fields[name], np.float64)


def advice(name: str, groups: Sequence[PoseGroup]) -> str | None:
    """Return why a relative field cannot be computed from any sample; None if it can, or is not a relative field."""
    field = name.removesuffix(SUFFIX)
    if field == name or _ANGLES in field or _group(field, groups) is not None:
        return None
    return f"To compute it from {field!r}, add a group with this field to pose_groups (stats: --pose-groups FILE)."


def _group(field: str, groups: Sequence[PoseGroup]) -> PoseGroup | None:
    return next((group for group in groups if field in (group.position, group.rotation)), None)


def _columns(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values[:, None] if values.ndim == 1 else values


def _relative_pose(group: PoseGroup, values: Sequence[npt.NDArray[Any]], anchor: int) -> tuple[Any, Any]:
    position, reference_position, rotation, reference_rotation = values
    shapes = [value.shape for value in values]
    steps = len(position)
    if shapes != [(steps, 3), (steps, 3), (steps, 6), (steps, 6)]:
        sizes = ", ".join(f"{field!r} {list(shape)}" for field, shape in zip(group.fields, shapes, strict=True))
        raise ValueError(
            f"the fields of the pose group {group.name!r} must be [{steps}, 3] for positions and [{steps}, 6] for"
            f" rotations: found {sizes}"
        )
    turns = poses.rotation_matrix(np.concatenate((rotation, reference_rotation[anchor : anchor + 1])))
    degenerate = np.flatnonzero((np.linalg.norm(turns, axis=-1) < 0.5).any(axis=-1))
    if len(degenerate):
        step = int(degenerate[0])
        field, step = (group.fields[2], step) if step < steps else (group.fields[3], anchor)
        raise ValueError(f"{field!r} is not a rotation at step {step}: its two rows are zero or parallel")
    seen = poses.relative(
        poses.pose_matrix(position, turns[:-1]), poses.pose_matrix(reference_position[anchor], turns[-1])
    )
    return seen[:, :3, 3], poses.rotation_six(seen[:, :3, :3])
