"""Normalize numbers by statistics of their features, and convert them back.

``value = (x - center) / scale``, in float64, which gives float32:

| method | center | scale | gives |
|---|---|---|---|
| `mean_std` | mean | std | mean 0, deviation 1 |
| `min_max` | middle of min and max | half of max - min | -1 to 1 |
| `quantile` | middle of q01 and q99 | half of q99 - q01 | about -1 to 1 |
| `quantile10` | middle of q10 and q90 | half of q90 - q10 | about -1 to 1 |

A dimension whose scale is at most `EPSILON` is constant: it is centered and not scaled. Nothing is clipped.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Entries = Mapping[str, Mapping[str, npt.ArrayLike]]
"""Feature -> name of a statistic -> its values, as in ``stats.json``."""

EPSILON = 1e-8
METHODS: Mapping[str, tuple[str, str]] = {
    "mean_std": ("mean", "std"),
    "min_max": ("min", "max"),
    "quantile": ("q01", "q99"),
    "quantile10": ("q10", "q90"),
}
"""Method -> the two statistics that it needs."""


class Scaling:
    """Normalization of features and its inverse.

    Args:
        entries: statistics of the features.
        methods: feature -> method.
        widths: feature -> its number of dimensions in the data.
        where: the file or mixture of the statistics, for errors.
        wider: whether the statistics may have more dimensions, as those of a mixture with wider sources.

    Raises:
        ConfigError: a feature has no statistics, lacks those of its method, or has another width in them.
    """

    def __init__(
        self,
        entries: Entries,
        methods: Mapping[str, str],
        widths: Mapping[str, int],
        where: str,
        *,
        wider: bool = False,
    ) -> None:
        self.methods, self.where = dict(methods), where
        self.tables: dict[str, tuple[Float64s, Float64s]] = {}
        for name, method in methods.items():
            if name not in entries:
                raise ConfigError(
                    f"there are no statistics of {name!r}: these are of {', '.join(sorted(entries)) or 'nothing'}",
                    file=where,
                    kind="bad-statistics",
                    fix="Use statistics of this robot, or rename its features.",
                )
            first, second = METHODS[method]
            try:
                low, high = (np.asarray(entries[name][each], np.float64).ravel() for each in (first, second))
            except (KeyError, TypeError, ValueError):
                raise ConfigError(
                    f"the statistics of {name!r} have no {first} and {second}, which {method!r} needs",
                    file=where,
                    kind="bad-statistics",
                    fix="Use another method, or statistics that 'feedmill documents stat' wrote.",
                ) from None
            width = widths[name]
            if len(low) != len(high) or len(low) < width or (len(low) != width and not wider):
                raise ConfigError(
                    f"the statistics of {name!r} have {len(low)} dimensions, the data {width}: they are of another"
                    " robot",
                    file=where,
                    kind="bad-statistics",
                    fix="Use statistics of this robot: 'statistics: source' uses those of each source alone.",
                )
            center, scale = (low, high) if method == "mean_std" else ((low + high) / 2, (high - low) / 2)
            if not (np.isfinite(center).all() and np.isfinite(scale).all()):
                raise ConfigError(
                    f"the statistics of {name!r} are not finite",
                    file=where,
                    kind="bad-statistics",
                    fix="Compute them again with 'feedmill documents stat'.",
                )
            scale = np.where(scale > EPSILON, scale, 1.0)
            self.tables[name] = center, scale

    def __contains__(self, name: str) -> bool:
        return name in self.tables

    def apply(self, name: str, values: npt.NDArray[np.floating]) -> Float32s:
        """Return a feature ``[..., D]`` normalized, float32; D may be less than the dimensions of the statistics."""
        center, scale = (table[: values.shape[-1]] for table in self.tables[name])
        return ((values - center) / scale).astype(np.float32)

    def invert(self, name: str, values: npt.NDArray[np.floating]) -> Float64s:
        """Return a feature in its own units, float64: the inverse of `apply`."""
        center, scale = (table[: values.shape[-1]] for table in self.tables[name])
        return values * scale + center

    @property
    def identity(self) -> str:
        """Everything that determines the results."""
        parts = [f"{name} {c.tobytes().hex()} {s.tobytes().hex()}" for name, (c, s) in sorted(self.tables.items())]
        return "\n".join(parts)
