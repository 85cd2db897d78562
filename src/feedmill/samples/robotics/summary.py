"""Summaries of numbers: mean, deviation, extremes and quantiles of each dimension, which add up without an order.

A `Summary` holds the distribution of each dimension as counts of values. Up to `MOST` distinct values per dimension
(float32) are counted as they are, and quantiles are exact. Beyond that, values that share their leading bits are
counted together, as many bits as leave at most `MOST` counts: quantiles are then off by at most half such a step,
``2 ** (level - 24)`` of the value, where `level` is the number of bits left out (of 23). The level depends on the
values alone, so the result is the same in any order and division, and summaries of sources are added for any mixture.

A quantile q of a mixture is the smallest value at or below which lies a share of at least q of it, each source counted
by its share (NumPy's ``inverted_cdf`` with weights). Deviations divide by n.

`Scaling` normalizes numbers by these, and converts them back: ``value = (x - center) / scale``, in float64, which gives
float32:

| method | center | scale | gives |
|---|---|---|---|
| `mean_std` | mean | std | mean 0, deviation 1 |
| `min_max` | middle of min and max | half of max - min | -1 to 1 |
| `quantile` | middle of q01 and q99 | half of q99 - q01 | about -1 to 1 |
| `quantile10` | middle of q10 and q90 | half of q90 - q10 | about -1 to 1 |

A dimension whose scale is at most `EPSILON` is constant: it is centered and not scaled. Nothing is clipped.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError

Float64s = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]

MOST = 1 << 16
"""Most counts of a dimension."""
QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
"""LeRobot's names of quantiles."""
NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)
_AT_ONCE = 1 << 18
_SLACK = 1e-12
"""Relative rounding of sums of shares, which must not push a quantile to the next value."""
_DEEPEST = 23


class Summary:
    """Distribution of each dimension of vectors.

    Attributes:
        count: int64[D], vectors that have the dimension.
        mean, m2, low, high: float64[D]; `m2` is the sum of squared deviations.
    """

    def __init__(self, width: int) -> None:
        self.count = np.zeros(width, np.int64)
        self.mean, self.m2 = np.zeros(width), np.zeros(width)
        self.low, self.high = np.full(width, np.inf), np.full(width, -np.inf)
        self._keys: list[Int64s] = [np.zeros(0, np.int64) for _ in range(width)]
        self._counts: list[Int64s] = [np.zeros(0, np.int64) for _ in range(width)]
        self._levels = [0] * width

    @property
    def width(self) -> int:
        """Number of dimensions."""
        return len(self.count)

    @property
    def exact(self) -> bool:
        """Whether every value is counted as it is."""
        return not any(self._levels)

    def add(self, values: npt.NDArray[np.floating], times: Int64s | None = None) -> None:
        """Add vectors.

        Args:
            values: [n, D], finite.
            times: int64[n], how often each counts; by default once.
        """
        for start in range(0, len(values), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            self._add(values[part], np.ones(len(values[part]), np.int64) if times is None else times[part])

    def _add(self, values: npt.NDArray[np.floating], times: Int64s) -> None:
        chosen = times > 0
        wide, times = np.asarray(values[chosen], np.float64), times[chosen]
        if not len(wide):
            return
        values, total = wide.astype(np.float32), int(times.sum())
        mean = times @ wide / total
        m2 = times @ (wide - mean) ** 2
        self._combine(np.full(self.width, total), mean, m2, wide.min(0), wide.max(0))
        for dimension in range(self.width):
            keys, places = np.unique(_keys_of(values[:, dimension]), return_inverse=True)
            counts = np.bincount(places, times, len(keys)).astype(np.int64)
            self._merge(dimension, keys, counts, 0)

    def merge(self, other: Summary) -> None:
        """Add what another summary of the same width counted."""
        self._combine(other.count, other.mean, other.m2, other.low, other.high)
        for dimension in range(self.width):
            self._merge(dimension, other._keys[dimension], other._counts[dimension], other._levels[dimension])

    def _combine(self, count: Int64s, mean: Float64s, m2: Float64s, low: Float64s, high: Float64s) -> None:
        """Add moments. Source: T. Chan, G. Golub and R. LeVeque, "Updating Formulae" (1979)."""
        total = self.count + count
        safe, delta = np.maximum(total, 1), mean - self.mean
        self.mean = self.mean + delta * count / safe
        self.m2 = self.m2 + m2 + delta**2 * self.count * count / safe
        self.low, self.high, self.count = np.minimum(self.low, low), np.maximum(self.high, high), total

    def _merge(self, dimension: int, keys: Int64s, counts: Int64s, level: int) -> None:
        mine = self._levels[dimension]
        deep = max(mine, level)
        joined = np.concatenate((self._keys[dimension] >> (deep - mine), keys >> (deep - level)))
        every = np.concatenate((self._counts[dimension], counts))
        while True:
            joined, places = np.unique(joined, return_inverse=True)
            every = np.bincount(places, every, len(joined)).astype(np.int64)
            if len(joined) <= MOST or deep == _DEEPEST:
                break
            joined, deep = joined >> 1, deep + 1
        self._keys[dimension], self._counts[dimension], self._levels[dimension] = joined, every, deep

    def distribution(self, dimension: int) -> tuple[Float64s, Int64s]:
        """Return the values of a dimension in ascending order, and how often each occurred; float64[n] and int64[n]."""
        level = self._levels[dimension]
        keys = self._keys[dimension] << level
        low, high = _values_of(keys), _values_of(keys + ((1 << level) - 1))
        middle = low if not level else (low + high) / 2
        return middle.clip(self.low[dimension], self.high[dimension]), self._counts[dimension]

    def to_bytes(self) -> bytes:
        """Return the summary as an ``.npz`` file; equal summaries have equal bytes."""
        sizes = np.asarray([len(keys) for keys in self._keys], np.int64)
        out = io.BytesIO()
        np.savez_compressed(
            out,
            count=self.count, mean=self.mean, m2=self.m2, low=self.low, high=self.high,
            levels=np.asarray(self._levels, np.int64), sizes=sizes,
            keys=np.concatenate([*self._keys, np.zeros(0, np.int64)]),
            counts=np.concatenate([*self._counts, np.zeros(0, np.int64)]),
        )  # fmt: skip
        return out.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Summary:
        """Return the summary of `to_bytes`. Raises `ValueError`, `OSError` or `KeyError` for other bytes."""
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            parts = {name: file[name] for name in file.files}
        made = cls(len(parts["count"]))
        made.count, made.mean, made.m2 = parts["count"], parts["mean"], parts["m2"]
        made.low, made.high = parts["low"], parts["high"]
        ends = np.cumsum(parts["sizes"])
        made._levels = parts["levels"].tolist()
        made._keys, made._counts = (np.split(parts[name], ends[:-1]) for name in ("keys", "counts"))
        return made


def _keys_of(values: Float32s) -> Int64s:
    """Return whole numbers in the order of float32 values, of 32 bits."""
    bits = np.ascontiguousarray(values + np.float32(0)).view(np.uint32).astype(np.int64)  # -0 is 0
    return np.where(bits >> 31, 0xFFFFFFFF - bits, bits | 0x80000000)


def _values_of(keys: Int64s) -> Float64s:
    bits = np.where(keys >> 31, keys & 0x7FFFFFFF, 0xFFFFFFFF - keys).astype(np.uint32)
    return bits.view(np.float32).astype(np.float64)


def mixed(parts: Sequence[Summary], shares: Sequence[float], where: str = "") -> dict[str, Float64s]:
    """Return the statistics of a mixture by LeRobot's names, float64[D] each; `count` is int64[1].

    Args:
        parts: summaries of the sources; narrower ones lack the last dimensions, which the others then make up alone.
        shares: the share of each source in what is drawn, in any unit; 0 leaves a source out.
        where: what it is, for errors.

    Raises:
        DataError: a dimension has no values.
    """
    width = max((part.width for part in parts), default=0)
    known = [(part, share) for part, share in zip(parts, shares, strict=True) if share > 0]
    out = {name: np.zeros(width) for name in ("min", "max", "mean", "std", *QUANTILES)}
    for at in range(width):
        having = [(part, share) for part, share in known if part.width > at and part.count[at]]
        if not having:
            raise DataError(
                f"{where}: no source has a value of dimension {at}",
                kind="bad-statistics",
                fix="Leave the feature out of 'normalize', or give its sources a weight.",
            )
        total = sum(share for _, share in having)
        weights = [share / total for _, share in having]
        mean = sum(weight * part.mean[at] for (part, _), weight in zip(having, weights, strict=True))
        square = sum(
            weight * (part.m2[at] / part.count[at] + (part.mean[at] - mean) ** 2)
            for (part, _), weight in zip(having, weights, strict=True)
        )
        out["mean"][at], out["std"][at] = mean, np.sqrt(square)
        out["min"][at] = min(part.low[at] for part, _ in having)
        out["max"][at] = max(part.high[at] for part, _ in having)
        pairs = [part.distribution(at) for part, _ in having]
        values = np.concatenate([values for values, _ in pairs])
        scales = [weight / part.count[at] for (part, _), weight in zip(having, weights, strict=True)]
        mass = np.concatenate([counts * scale for (_, counts), scale in zip(pairs, scales, strict=True)])
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(mass[order])
        for name, share in QUANTILES.items():
            place = int(np.searchsorted(reached, share * reached[-1] * (1 - _SLACK)))
            out[name][at] = values[order[min(place, len(order) - 1)]]
    count = sum(int(part.count.max(initial=0)) for part, _ in known)
    return {name: np.asarray([count]) if name == "count" else out[name] for name in NAMES}


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
