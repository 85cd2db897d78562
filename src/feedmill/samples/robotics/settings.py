"""Settings of robotics samples: VLA Foundry's settings, completed from the datasets' own files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from feedmill.errors import ConfigError, did_you_mean
from feedmill.formats.yamls import read_settings
from feedmill.samples.robotics.normalize import Normalization
from feedmill.samples.robotics.relative import PoseGroup, pose_groups
from feedmill.storage import Store, open_store

PREPROCESSING = "preprocessing_config.yaml"
INSTRUCTIONS = ("original", "randomized", "verbose", "alternative")


@dataclass(frozen=True, slots=True)
class RoboticsSettings:
    """Settings that select the images, fields and steps of a sample.

    Attributes:
        camera_names, image_indices: Cameras and time indices whose images are read if `image_names` is empty.
        image_names: ``<camera>_t<index>``; if empty, all combinations of `camera_names` and `image_indices`.
        proprioception_fields, action_fields: Fields to concatenate, in this order.
        extra_fields: Further fields, kept separate (``intrinsics_fields``, ``extrinsics_fields``).
        pose_groups: Fields that are poses, from which relative fields (``X_relative``) are computed.
        past, future: Steps to read before and after the anchor; None for all (``lowdim_past_timesteps``, ...).
        language_instruction_types: Types of instructions; one instruction is drawn from those of all these types.
        pad_missing_images: Replace a missing image by a black one, with False in ``image_mask``. Otherwise a missing
            image is an error.
        image_size: Resize images to this height and width. None keeps their size, which must be the same for all.
        normalization: See `feedmill.samples.robotics.normalize`.
    """

    camera_names: tuple[str, ...] = ()
    image_indices: tuple[int, ...] = ()
    image_names: tuple[str, ...] = ()
    proprioception_fields: tuple[str, ...] = ()
    action_fields: tuple[str, ...] = ()
    extra_fields: tuple[str, ...] = ()
    pose_groups: tuple[PoseGroup, ...] = ()
    past: int | None = None
    future: int | None = None
    language_instruction_types: tuple[str, ...] = ("original",)
    pad_missing_images: bool = False
    image_size: int | None = None
    normalization: Normalization = field(default_factory=lambda: Normalization(enabled=False))

    @property
    def images(self) -> tuple[str, ...]:
        """The names of the images, in the order in which they are stacked."""
        if self.image_names:
            return self.image_names
        return tuple(f"{camera}_t{index}" for index in self.image_indices for camera in self.camera_names)

    @classmethod
    def of(cls, config: Mapping[str, Any], folders: Sequence[str]) -> RoboticsSettings:
        """Return the settings for VLA Foundry's settings, completed by ``preprocessing_config.yaml`` of each dataset.

        As in VLA Foundry, ``normalization`` has defaults (enabled, ``std``), and the window is that of the shortest
        dataset.

        Args:
            config: VLA Foundry's ``data`` settings.
            folders: Folders of the manifests.

        Raises:
            ConfigError: A setting is invalid, or the datasets differ in a setting that is not given.
        """
        given = {"past": config.get("lowdim_past_timesteps"), "future": config.get("lowdim_future_timesteps")}
        names = {one.name for one in fields(cls)} - {"normalization", "extra_fields", "pose_groups", *given}
        for name in names & set(config):
            value = config[name]
            given[name] = tuple(value) if isinstance(value, list | tuple) else value
        extra = [config.get(name) or () for name in ("intrinsics_fields", "extrinsics_fields")]
        given["extra_fields"] = tuple(name for group in extra for name in group)
        given["pose_groups"] = pose_groups(config.get("pose_groups") or ())
        found = [_preprocessing(open_store(folder)) for folder in folders]
        if not given.get("image_names"):
            for name in ("camera_names", "image_indices"):
                if not given.get(name):
                    given[name] = tuple(_agreed(found, name, folders) or ())
        normalization = Normalization.from_config(config.get("normalization") or {})
        if normalization.per_timestep and normalization.past is None:
            anchor = _agreed(found, "past_lowdim_steps", folders, "normalization.lowdim_past_timesteps")
            normalization = replace(normalization, past=anchor)
        for name, steps, own in (
            ("past", "past_lowdim_steps", normalization.past),
            ("future", "future_lowdim_steps", (config.get("normalization") or {}).get("lowdim_future_timesteps")),
        ):
            if given[name] is None:
                given[name] = own if own is not None else _shortest(found, steps, folders)
        given["normalization"] = normalization
        return cls(**{name: value for name, value in given.items() if value is not None})

    def __post_init__(self) -> None:
        for kind in self.language_instruction_types:
            if kind not in INSTRUCTIONS:
                raise ConfigError(
                    f"unknown language instruction type {kind!r}{did_you_mean(kind, list(INSTRUCTIONS))}",
                    fix=f"Use {', '.join(INSTRUCTIONS)}.",
                )
        for name in ("past", "future"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise ConfigError(
                    f"invalid window of {value!r} steps: expected an integer of 0 or more",
                    fix="Set lowdim_past_timesteps and lowdim_future_timesteps to a number of steps, or remove them.",
                )


def _preprocessing(store: Store) -> Mapping[str, Any]:
    if not store.exists(PREPROCESSING):
        return {}
    settings = read_settings(store.read(PREPROCESSING), store.locate(PREPROCESSING))
    if not isinstance(settings, dict):
        raise ConfigError("expected a mapping of settings", file=store.locate(PREPROCESSING))
    return settings


def _shortest(found: Sequence[Mapping[str, Any]], name: str, folders: Sequence[str]) -> int | None:
    """Return the smallest number of steps of any dataset; None if no dataset has the setting."""
    steps = [(one[name], folder) for one, folder in zip(found, folders, strict=True) if one.get(name) is not None]
    for value, folder in steps:
        if type(value) is not int or value < 0:
            raise ConfigError(
                f"{name!r} must be a number of steps: found {value!r}", file=f"{folder.rstrip('/')}/{PREPROCESSING}"
            )
    return min((value for value, _ in steps), default=None)


def _agreed(found: Sequence[Mapping[str, Any]], name: str, folders: Sequence[str], setting: str = "") -> Any:
    values = [(one[name], folder) for one, folder in zip(found, folders, strict=True) if one.get(name) is not None]
    for value, folder in values[1:]:
        if value != values[0][0]:
            raise ConfigError(
                f"the datasets differ in {name!r}: {values[0][0]} in {values[0][1]}, {value} here",
                file=f"{folder.rstrip('/')}/{PREPROCESSING}",
                kind="settings-differ",
                fix=f"Set data.{setting or name} in the run's configuration.",
            )
    return values[0][0] if values else None
