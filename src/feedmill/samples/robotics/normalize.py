"""Normalize and denormalize robotics fields by their statistics, with VLA Foundry's settings and results.

``value = (x - center) / max(scale, epsilon)`` in float32. The methods are:

- ``std``: center is the mean, scale the standard deviation.
- ``min_max``, ``percentile_5_95``, ``percentile_1_99``: center is the low bound, scale is high - low, so values are
  about 0 to 1. With `centered`, center is the middle of the range and scale half of it, so values are about -1 to 1.

The scope ``global`` has one center for all steps. With ``per_timestep`` each step has its own center, aligned at the
anchor: step `past` of the statistics is the anchor's step of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, did_you_mean

Float32s = npt.NDArray[np.float32]

METHODS = ("std", "min_max", "percentile_5_95", "percentile_1_99")
SCOPES = ("global", "per_timestep")
_BOUNDS = {
    "min_max": ("min", "max"),
    "percentile_5_95": ("percentile_5", "percentile_95"),
    "percentile_1_99": ("percentile_1", "percentile_99"),
}
_NEVER = ("text", "language", "instruction", "mask", "valid")
_OWN = ("method", "scope", "epsilon", "enabled")
_DEFAULTS = {"method": "std", "scope": "global", "epsilon": 1e-8, "enabled": True}
_SETTINGS: Mapping[str, str] = {
    "enabled": "enabled",
    "method": "method",
    "scope": "scope",
    "epsilon": "epsilon",
    "centered_norm": "centered",
    "field_configs": "fields",
    "lowdim_past_timesteps": "past",
    "include_fields": "",
    "lowdim_future_timesteps": "",
}
"""VLA Foundry's setting -> attribute of `Normalization`; empty for settings that `Normalization` does not have."""


@dataclass(frozen=True, slots=True)
class Normalization:
    """Settings of the normalization of fields.

    Attributes:
        enabled: Whether to normalize.
        method, scope, epsilon: See the module docstring.
        centered: Normalize to about -1 to 1 instead of 0 to 1 (``centered_norm``); ``std`` is always centered.
        include: The fields to normalize; None for all fields that have statistics.
        fields: A field, or a substring of its name -> its own ``method``, ``scope``, ``epsilon`` and ``enabled``
            (``field_configs``).
        past: Number of steps before the anchor in the statistics (``lowdim_past_timesteps``), for ``per_timestep``.

    Raises:
        ConfigError: A method, scope or setting is unknown.
    """

    enabled: bool = True
    method: str = "std"
    scope: str = "global"
    epsilon: float = 1e-8
    centered: bool = False
    include: tuple[str, ...] | None = None
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    past: int | None = None

    def __post_init__(self) -> None:
        for settings in ({name: getattr(self, name) for name in _OWN}, *self.fields.values()):
            unknown = [name for name in settings if name not in _OWN]
            if unknown:
                raise ConfigError(f"unknown normalization setting {unknown[0]!r}", fix=f"Use {', '.join(_OWN)}.")
            _one_of("method", settings.get("method", "std"), METHODS)
            _one_of("scope", settings.get("scope", "global"), SCOPES)

    @property
    def per_timestep(self) -> bool:
        """Whether any field uses separate statistics for each step."""
        scopes = {self.scope, *(settings.get("scope", "global") for settings in self.fields.values())}
        return self.enabled and "per_timestep" in scopes

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Normalization:
        """Return the normalization for VLA Foundry's ``normalization`` settings, with its names and defaults.

        As in VLA Foundry:

        - All fields of a run are included; ``include_fields`` is ignored.
        - ``std`` sets ``centered_norm`` to true, even for fields with another method.
        - Settings missing from an entry of ``field_configs`` are ``std``, ``global``, 1e-8 and enabled, whatever the
          settings outside the entry are.

        Raises:
            ConfigError: A setting is unknown or has an invalid value.
        """
        known = f"Use {', '.join(_SETTINGS)}."
        if not isinstance(config, Mapping):
            raise ConfigError(f"normalization must be a mapping of settings: found {config!r}", fix=known)
        unknown = [key for key in config if key not in _SETTINGS]
        if unknown:
            raise ConfigError(f"unknown normalization setting {unknown[0]!r}", fix=known)
        given = {_SETTINGS[key]: value for key, value in config.items() if _SETTINGS[key]}
        given["fields"] = {name: _DEFAULTS | dict(own) for name, own in (given.get("fields") or {}).items()}
        given["centered"] = bool(given.get("centered")) or given.get("method", "std") == "std"
        return cls(**given)


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"unknown normalization {name} {value!r}", kind="bad-option", fix=f"Use {', '.join(known)}.")


class Normalizer:
    """Normalizer of batches of fields.

    Args:
        statistics: Entries of ``stats.json`` by field; see `feedmill.samples.robotics.statistics`.
        how: The settings.

    Raises:
        ConfigError: A field has no statistics, or lacks those that its method needs.
    """

    def __init__(self, statistics: Mapping[str, Mapping[str, Any]], how: Normalization) -> None:
        self.how = how
        self._tables: dict[str, tuple[Float32s, Float32s, bool]] = {}
        fields = how.include if how.include is not None else tuple(statistics)
        for name in fields if how.enabled else ():
            own = self._settings(name)
            if own["enabled"] and not any(word in name for word in _NEVER):
                if name not in statistics:
                    raise ConfigError(
                        f"the field {name!r} has no statistics{did_you_mean(name, list(statistics))}",
                        kind="bad-statistics",
                        fix="Compute them with 'feedmill compat vla stats'. The fields with statistics are:"
                        f" {', '.join(statistics) or 'none'}.",
                    )
                self._tables[name] = self._table(name, statistics[name], own)

    def _settings(self, name: str) -> dict[str, Any]:
        own = {key: getattr(self.how, key) for key in _OWN} | {"enabled": True}
        for part, settings in self.how.fields.items():
            if part in name:
                own |= settings
        return own | dict(self.how.fields.get(name, {}))

    def _table(self, name: str, entry: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[Float32s, Float32s, bool]:
        per_step = own["scope"] == "per_timestep"
        suffix = "_per_timestep" if per_step else ""
        first, second = ("mean", "std") if own["method"] == "std" else _BOUNDS[own["method"]]
        try:
            low = np.asarray(entry[first + suffix], np.float32)
            high = np.asarray(entry[second + suffix], np.float32)
        except (KeyError, ValueError, TypeError):
            raise ConfigError(
                f"the statistics of {name!r} have no {first}{suffix} and {second}{suffix}",
                kind="bad-statistics",
                fix="Compute them again with 'feedmill compat vla stats'.",
            ) from None
        if per_step and self.how.past is None:
            raise ConfigError(
                "the scope per_timestep requires the number of steps before the anchor in the statistics",
                kind="bad-option",
                fix="Set 'past' (lowdim_past_timesteps) to past_lowdim_steps of preprocessing_config.yaml.",
            )
        if own["method"] == "std":
            return low, np.maximum(high, np.float32(own["epsilon"])), per_step
        scale = high - low
        if self.how.centered:
            low, scale = low + scale / np.float32(2), scale / np.float32(2)
        return low, np.maximum(scale, np.float32(own["epsilon"])), per_step

    def apply(self, name: str, values: Float32s, anchor: int) -> Float32s:
        """Return the normalized field. Fields without statistics are returned unchanged.

        Args:
            name: Name of the field.
            values: float32[..., T, C].
            anchor: The step of `values` that is the anchor.

        Raises:
            DataError: The scope is ``per_timestep`` and a step is outside the statistics.
        """
        if name not in self._tables:
            return values
        center, scale = self._aligned(name, values.shape[-2], anchor, clamp=False)
        return (values - center) / scale

    def invert(self, name: str, values: Float32s, anchor: int) -> Float32s:
        """Return the field in its own units: the inverse of `apply`.

        Steps outside the statistics use those of the nearest step.
        """
        if name not in self._tables:
            return values
        center, scale = self._aligned(name, values.shape[-2], anchor, clamp=True)
        return values * scale + center

    def _aligned(self, name: str, steps: int, anchor: int, *, clamp: bool) -> tuple[Float32s, Float32s]:
        center, scale, per_step = self._tables[name]
        if not per_step:
            return center, scale
        assert self.how.past is not None
        wanted = np.arange(steps) - anchor + self.how.past
        if clamp:
            wanted = np.clip(wanted, 0, len(center) - 1)
        elif steps and (wanted[0] < 0 or wanted[-1] >= len(center)):
            raise DataError(
                f"the window is outside the statistics of {name!r}: it has {anchor} steps before the anchor and"
                f" {steps - anchor - 1} after it, the statistics have {self.how.past} and"
                f" {len(center) - self.how.past - 1}",
                kind="bad-statistics",
                fix="Use a shorter window, or compute the statistics of a longer one.",
            )
        return center[wanted], scale[wanted]
