"""What of a robotics sample is taken, and how: VLA Foundry's settings, completed from the datasets' own files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from feedmill.errors import ConfigError
from feedmill.formats.yamls import read_settings
from feedmill.samples.robotics.normalize import Normalization
from feedmill.samples.types import did_you_mean
from feedmill.storage import Store, open_store

PREPROCESSING = "preprocessing_config.yaml"
INSTRUCTIONS = ("original", "randomized", "verbose", "alternative")


@dataclass(frozen=True, slots=True)
class RoboticsSettings:
    """What is taken of a sample.

    Attributes:
        image_names: ``<camera>_t<index>``; `camera_names` times `image_indices` where it is empty.
        proprioception_fields, action_fields: fields put side by side, in this order.
        extra_fields: further fields, each by itself (``intrinsics_fields``, ``extrinsics_fields``, ``pose_groups``).
        past, future: steps around the anchor that are taken; None for all (``lowdim_past_timesteps``, ...).
        language_instruction_types: one instruction is drawn from all of these types.
        pad_missing_images: a black image where one is missing, with False in ``image_mask``; else it is an error.
        image_size: resize images to this height and width; None keeps them as they are, all of one size.
        normalization: see `feedmill.samples.robotics.normalize`.
    """

    camera_names: tuple[str, ...] = ()
    image_indices: tuple[int, ...] = ()
    image_names: tuple[str, ...] = ()
    proprioception_fields: tuple[str, ...] = ()
    action_fields: tuple[str, ...] = ()
    extra_fields: tuple[str, ...] = ()
    past: int | None = None
    future: int | None = None
    language_instruction_types: tuple[str, ...] = ("original",)
    pad_missing_images: bool = False
    image_size: int | None = None
    normalization: Normalization = field(default_factory=lambda: Normalization(enabled=False))

    @property
    def images(self) -> tuple[str, ...]:
        """The images' names, in the order in which they are stacked."""
        if self.image_names:
            return self.image_names
        return tuple(f"{camera}_t{index}" for index in self.image_indices for camera in self.camera_names)

    @classmethod
    def of(cls, config: Mapping[str, Any], folders: Sequence[str]) -> RoboticsSettings:
        """From VLA Foundry's settings, completed by ``preprocessing_config.yaml`` beside each manifest.

        As there, ``normalization`` has defaults (enabled, ``std``), and the window is that of the shortest dataset.

        Raises:
            ConfigError: a setting is wrong, or the datasets do not agree in one that is not given.
        """
        given = {"past": config.get("lowdim_past_timesteps"), "future": config.get("lowdim_future_timesteps")}
        names = {one.name for one in fields(cls)} - {"normalization", "extra_fields", *given}
        for name in names & set(config):
            value = config[name]
            given[name] = tuple(value) if isinstance(value, list | tuple) else value
        extra = [config.get(name) or () for name in ("intrinsics_fields", "extrinsics_fields")]
        given["extra_fields"] = tuple(name for some in extra for name in some)
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
                    f"there are no language instructions of type {kind!r}{did_you_mean(kind, list(INSTRUCTIONS))}",
                    fix=f"Use {', '.join(INSTRUCTIONS)}.",
                )
        for name in ("past", "future"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise ConfigError(f"a window of {value!r} steps cannot be", fix="Give a number of steps, or none.")


def _preprocessing(store: Store) -> Mapping[str, Any]:
    if not store.exists(PREPROCESSING):
        return {}
    found = read_settings(store.read(PREPROCESSING), store.locate(PREPROCESSING))
    if not isinstance(found, dict):
        raise ConfigError("this is no mapping", file=store.locate(PREPROCESSING))
    return found


def _shortest(found: Sequence[Mapping[str, Any]], name: str, folders: Sequence[str]) -> int | None:
    """Return the least number of steps that a dataset has; None if none says it."""
    steps = [(one[name], folder) for one, folder in zip(found, folders, strict=True) if one.get(name) is not None]
    for value, folder in steps:
        if type(value) is not int or value < 0:
            raise ConfigError(
                f"{name!r} is {value!r}, a number of steps was expected", file=f"{folder.rstrip('/')}/{PREPROCESSING}"
            )
    return min((value for value, _ in steps), default=None)


def _agreed(found: Sequence[Mapping[str, Any]], name: str, folders: Sequence[str], setting: str = "") -> Any:
    values = [(one[name], folder) for one, folder in zip(found, folders, strict=True) if one.get(name) is not None]
    for value, folder in values[1:]:
        if value != values[0][0]:
            raise ConfigError(
                f"the datasets do not agree in {name!r}: {values[0][0]} in {values[0][1]}, {value} here",
                file=f"{folder.rstrip('/')}/{PREPROCESSING}",
                kind="settings-differ",
                fix=f"Set data.{setting or name} in the run's configuration.",
            )
    return values[0][0] if values else None
