"""Compute, merge, read and write the statistics of robotics fields (``stats.json``).

Each field ``[T, C]`` (steps of the window, channels) has these entries:

- ``mean, std, min, max, percentile_{1,2,5,95,98,99}`` over all steps ``[C]``, and per step ``[T][C]``
  (``..._per_timestep``);
- ``count`` and ``percentile_sample_count`` ``[T]``;
- ``tdigest_state`` with the values or clusters from which percentiles are computed.

Only steps where ``past_mask`` or ``future_mask`` is true count. Standard deviations per step divide by n - 1. Over all
steps the variance is the count-weighted mean of the steps' variances plus the count-weighted variance of their means,
as in VLA Foundry.

Means, deviations, extremes and counts are exact up to rounding for any order and division of the data. Percentiles are
exact up to a thousand values per channel and step, and accurate to about a hundredth of a rank beyond that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.storage import open_store, split_url

Float64s = npt.NDArray[np.float64]

MAX_BUFFER, COMPRESSION = 1000, 100


class Digest:
    """Percentiles of a stream: exact while it has few values, estimated from clusters of values afterwards.

    Source: T. Dunning and O. Ertl, "Computing Extremely Accurate Quantiles Using t-Digests" (2019). Clusters are small
    at both ends of the distribution. Here the scale function k1 divides [0, 1] into cells, and the values of one cell
    form a cluster, so the result does not depend on a random order.

    Attributes:
        means, weights: float64[n], values or clusters in ascending order.
        pending: Number of values added but not yet merged.
    """

    __slots__ = ("_pending", "compression", "max_buffer", "means", "pending", "weights")

    def __init__(self, max_buffer: int = MAX_BUFFER, compression: int = COMPRESSION) -> None:
        self.max_buffer, self.compression = max_buffer, compression
        self.means, self.weights = np.zeros(0), np.zeros(0)
        self._pending: list[Float64s] = []
        self.pending = 0

    def add(self, values: Float64s) -> None:
        """Add values, float64[n], in any order."""
        if len(values):
            self._pending.append(values)
            self.pending += len(values)
            if self.pending > 4 * self.max_buffer:
                self.settle()

    def merge(self, means: Float64s, weights: Float64s) -> None:
        """Merge the values or clusters of another digest."""
        self.settle()
        order = np.argsort(np.concatenate((self.means, means)), kind="stable")
        self.means = np.concatenate((self.means, means))[order]
        self.weights = np.concatenate((self.weights, weights))[order]
        self._compress()

    def settle(self) -> None:
        """Merge the pending values."""
        if self._pending:
            values = np.concatenate(self._pending)
            self._pending, self.pending = [], 0
            self.merge(values, np.ones(len(values)))

    def _compress(self) -> None:
        if len(self.means) <= self.max_buffer:
            return
        ends = np.cumsum(self.weights)
        middle = (ends - self.weights / 2) / ends[-1]
        cell = np.floor(self.compression / np.pi * np.arcsin(2 * middle - 1)).astype(np.int64)
        first = np.flatnonzero(np.diff(cell, prepend=cell[0] - 1))
        weights = np.add.reduceat(self.weights, first)
        self.means = np.add.reduceat(self.means * self.weights, first) / weights
        self.weights = weights

    @property
    def exact(self) -> bool:
        """Whether no values have been clustered."""
        self.settle()
        return bool((self.weights == 1).all())

    def percentiles(self, wanted: Sequence[float], low: float, high: float) -> list[float]:
        """Return percentiles by linear interpolation between the values or the middles of clusters.

        Args:
            wanted: Percentages from 0 to 100.
            low, high: The smallest and the largest value added.
        """
        self.settle()
        if not len(self.means):
            return [float("nan")] * len(wanted)
        if self.exact:
            return [float(value) for value in np.percentile(self.means, wanted)]
        ends = np.cumsum(self.weights)
        at = np.concatenate(([0.0], ends - self.weights / 2, [ends[-1]]))
        values = np.concatenate(([low], self.means, [high]))
        return [float(value) for value in np.interp(np.asarray(wanted) / 100 * ends[-1], at, values)]


PERCENTILES = (1, 2, 5, 95, 98, 99)
_NAMES = tuple(f"percentile_{p}" for p in PERCENTILES)


class FieldStatistics:
    """Accumulator of the statistics of one field.

    Attributes:
        count: int64[T], number of values per step.
        mean, m2, low, high: float64[T, C]; `m2` is the sum of squared deviations.
        digests, step_digests: Percentile digests of each channel, and of each step and channel.
    """

    def __init__(self, steps: int, channels: int) -> None:
        self.count = np.zeros(steps, np.int64)
        self.mean, self.m2 = np.zeros((steps, channels)), np.zeros((steps, channels))
        self.low, self.high = np.full((steps, channels), np.inf), np.full((steps, channels), -np.inf)
        self.digests = [Digest() for _ in range(channels)]
        self.step_digests = [Digest() for _ in range(steps * channels)]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of steps and of channels."""
        return self.mean.shape

    def add(self, values: Float64s, mask: npt.NDArray[np.bool_]) -> None:
        """Add samples of the field.

        Args:
            values: float64[N, T, C].
            mask: bool[N, T], true for steps that count.
        """
        there = mask[:, :, None]
        count = mask.sum(0)
        mean = np.where(there, values, 0).sum(0) / np.maximum(count, 1)[:, None]
        m2 = (np.where(there, values - mean, 0) ** 2).sum(0)
        low, high = np.where(there, values, np.inf).min(0), np.where(there, values, -np.inf).max(0)
        self._combine(count, mean, m2, low, high)
        channels = values.shape[2]
        for channel in range(channels):
            column = np.ascontiguousarray(values[:, :, channel])
            self.digests[channel].add(column[mask])
            for step in range(values.shape[1]):
                self.step_digests[step * channels + channel].add(column[mask[:, step], step])

    def merge(self, other: FieldStatistics) -> None:
        """Merge the statistics of another accumulator."""
        self._combine(other.count, other.mean, other.m2, other.low, other.high)
        pairs = zip([*self.digests, *self.step_digests], [*other.digests, *other.step_digests], strict=True)
        for mine, theirs in pairs:
            theirs.settle()
            mine.merge(theirs.means, theirs.weights)

    def _combine(
        self, count: npt.NDArray[np.int64], mean: Float64s, m2: Float64s, low: Float64s, high: Float64s
    ) -> None:
        # T. Chan, G. Golub and R. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances"
        total = self.count + count
        share = (count / np.maximum(total, 1))[:, None]
        gap = mean - self.mean
        self.m2 = self.m2 + m2 + gap**2 * (self.count[:, None] * share)
        self.mean = self.mean + gap * share
        self.count = total
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)

    def as_dict(self) -> dict[str, Any]:
        """Return the field's entry of ``stats.json``."""
        weights = self.count / max(int(self.count.sum()), 1)
        variance = self.m2 / np.maximum(self.count - 1, 1)[:, None]
        mean = (weights[:, None] * self.mean).sum(0)
        spread = (weights[:, None] * (variance + (self.mean - mean) ** 2)).sum(0)
        low, high = self.low.min(0), self.high.max(0)
        overall = [d.percentiles(PERCENTILES, low[c], high[c]) for c, d in enumerate(self.digests)]
        flat_low, flat_high = self.low.ravel(), self.high.ravel()
        steps = [d.percentiles(PERCENTILES, flat_low[i], flat_high[i]) for i, d in enumerate(self.step_digests)]
        per_step = np.asarray(steps).reshape(*self.shape, len(PERCENTILES))
        values: dict[str, Any] = {"mean": mean, "std": np.sqrt(spread), "min": low, "max": high}
        per: dict[str, Any] = {"mean": self.mean, "std": np.sqrt(variance), "min": self.low, "max": self.high}
        out: dict[str, Any] = {name: _finite(value) for name, value in values.items()}
        out |= {f"{name}_per_timestep": _finite(value) for name, value in per.items()}
        for number, name in enumerate(_NAMES):
            out[name] = _finite(np.asarray([row[number] for row in overall]))
            out[f"{name}_per_timestep"] = _finite(per_step[:, :, number])
        out["tdigest_state"] = _state(self.digests, (self.shape[1],))
        out["tdigest_state_per_timestep"] = _state(self.step_digests, self.shape)
        out["count"] = out["percentile_sample_count"] = self.count.tolist()
        return out

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> FieldStatistics:
        """Return the statistics of an entry. Raises `KeyError`, `ValueError` or `TypeError` if it is invalid."""
        count = np.asarray(entry["count"], np.int64)
        mean = np.asarray(entry["mean_per_timestep"], np.float64)
        if mean.ndim != 2 or count.shape != mean.shape[:1] or (count < 0).any():
            raise ValueError("count and mean_per_timestep have inconsistent shapes or negative counts")
        found = cls(*mean.shape)
        std = np.broadcast_to(np.asarray(entry["std_per_timestep"], np.float64), mean.shape)
        found._combine(
            count,
            np.where(count[:, None] > 0, mean, 0),
            np.where(count[:, None] > 1, std**2 * (count[:, None] - 1), 0),
            np.where(count[:, None] > 0, np.asarray(entry["min_per_timestep"], np.float64), np.inf),
            np.where(count[:, None] > 0, np.asarray(entry["max_per_timestep"], np.float64), -np.inf),
        )
        _restore(found.digests, entry["tdigest_state"], (mean.shape[1],))
        _restore(found.step_digests, entry["tdigest_state_per_timestep"], mean.shape)
        return found


Statistics = dict[str, FieldStatistics]


def _finite(values: Float64s) -> list[Any]:
    """Return a list with 0 for values that are not finite (steps without samples), since JSON has no infinity."""
    found: list[Any] = np.where(np.isfinite(values), values, 0.0).tolist()
    return found


def _state(digests: Sequence[Digest], shape: tuple[int, ...]) -> dict[str, Any]:
    buffers: dict[str, list[Any]] = {"indices": [], "data": []}
    clusters: dict[str, list[Any]] = {"indices": [], "means": [], "weights": []}
    counts = np.zeros(len(digests), np.int64)
    for number, digest in enumerate(digests):
        index = [int(i) for i in np.unravel_index(number, shape)]
        exact = digest.exact
        counts[number] = int(digest.weights.sum())
        if exact and len(digest.means):
            buffers["indices"].append(index)
            buffers["data"].append(digest.means.tolist())
        elif not exact:
            clusters["indices"].append(index)
            clusters["means"].append(digest.means.tolist())
            clusters["weights"].append(digest.weights.tolist())
    return {
        "shape": list(shape),
        "counts": counts.reshape(shape).tolist(),
        "max_buffer": MAX_BUFFER,
        "compression": COMPRESSION,
        "buffers": buffers,
        "digests": clusters,
    }


def _restore(digests: Sequence[Digest], state: Mapping[str, Any], shape: tuple[int, ...]) -> None:
    if tuple(state["shape"]) != tuple(shape):
        raise ValueError("the shape of tdigest_state differs from that of the means")
    buffers, clusters = state["buffers"], state["digests"]
    for index, data in zip(buffers["indices"], buffers["data"], strict=True):
        values = np.sort(np.asarray(data, np.float64))
        digests[np.ravel_multi_index(tuple(index), shape)].merge(values, np.ones(len(values)))
    for index, means, weights in zip(clusters["indices"], clusters["means"], clusters["weights"], strict=True):
        place = digests[np.ravel_multi_index(tuple(index), shape)]
        place.merge(np.asarray(means, np.float64), np.asarray(weights, np.float64))


def collect(
    samples: Iterable[tuple[str, Mapping[str, npt.NDArray[Any]]]], fields: Sequence[str] | None = None
) -> Statistics:
    """Return the statistics of samples.

    Args:
        samples: Pairs (name, low-dimensional fields).
        fields: Names of the fields; by default all numeric fields ``[T, C]`` or ``[T]`` of the first sample.

    Raises:
        DataError: A field is missing, differs in shape between samples, or is not finite. The error names the sample.
    """
    statistics: Statistics = {}
    waiting: dict[str, list[tuple[Float64s, npt.NDArray[np.bool_]]]] = {}
    for name, lowdim in samples:
        mask = window_mask(lowdim, name)
        if fields is None:
            fields = [field for field, value in lowdim.items() if _counts(field, value, len(mask))]
        for field in fields:
            values = _values(lowdim, field, name, len(mask))
            known = waiting.setdefault(field, [])
            if known and known[0][0].shape != values.shape:
                raise _bad(name, f"{field!r} has the shape {values.shape}, earlier samples have {known[0][0].shape}")
            known.append((values, mask))
            if len(known) == 256:
                _flush(statistics, field, known)
    for field, known in waiting.items():
        _flush(statistics, field, known, keep=False)
    return statistics


def _flush(
    found: Statistics, field: str, known: list[tuple[Float64s, npt.NDArray[np.bool_]]], *, keep: bool = True
) -> None:
    values, masks = np.stack([v for v, _ in known]), np.stack([m for _, m in known])
    place = found.setdefault(field, FieldStatistics(*values.shape[1:]))
    place.add(values, masks)
    del known[1 if keep else 0 :]
    if keep:
        known[0] = (known[0][0], np.zeros_like(known[0][1]))  # kept, fully masked, to check later samples' shapes


def window_mask(lowdim: Mapping[str, npt.NDArray[Any]], name: str) -> npt.NDArray[np.bool_]:
    """Return bool[T], true for steps that are data rather than padding. Raises `DataError`."""
    past, future = lowdim.get("past_mask"), lowdim.get("future_mask")
    if past is None or future is None or past.shape != future.shape or past.ndim != 1:
        raise _bad(name, "past_mask and future_mask are required, both bool[T]")
    found: npt.NDArray[np.bool_] = np.logical_or(past, future)
    return found


def _counts(field: str, value: npt.NDArray[Any], steps: int) -> bool:
    return (
        field not in ("past_mask", "future_mask")
        and value.dtype.kind in "fiu"
        and value.ndim in (1, 2)
        and len(value) == steps
    )


def _values(lowdim: Mapping[str, npt.NDArray[Any]], field: str, name: str, steps: int) -> Float64s:
    value = lowdim.get(field)
    if value is None:
        raise _bad(name, f"the sample has no field {field!r} (it has: {', '.join(lowdim)})", "missing-field")
    values = np.asarray(value, np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or len(values) != steps:
        raise _bad(name, f"{field!r} has the shape {value.shape}, expected [{steps}, channels]")
    if not np.isfinite(values).all():
        raise _bad(name, f"{field!r} has values that are not finite")
    return values


def _bad(name: str, what: str, kind: str = "bad-statistics") -> DataError:
    return DataError(what, record=name, kind=kind, fix="Fix or remove the sample.")


def merge_statistics(parts: Sequence[Statistics]) -> Statistics:
    """Merge the statistics of several datasets.

    Raises:
        ConfigError: The datasets have different fields, or a field differs in shape.
    """
    out: Statistics = {}
    for number, part in enumerate(parts):
        if number and set(part) != set(out):
            odd = sorted(set(part) ^ set(out))[0]
            raise ConfigError(
                f"the field {odd!r} is not in the statistics of all datasets",
                kind="settings-differ",
                fix="Merge only datasets with the same robot fields.",
            )
        for field, one in part.items():
            if field not in out:
                out[field] = FieldStatistics(*one.shape)
            if out[field].shape != one.shape:
                raise ConfigError(
                    f"the field {field!r} has {one.shape} steps and channels in one dataset, {out[field].shape} in"
                    " another",
                    kind="settings-differ",
                    fix="Merge only datasets with the same window and the same robot fields.",
                )
            out[field].merge(one)
    return out


def read_entries(url: str) -> dict[str, dict[str, Any]]:
    """Return the content of a ``stats.json``: field -> its entry. Raises the errors of `read_statistics`."""
    folder, name = split_url(url)
    try:
        entries = orjson.loads(open_store(folder).read(name))
    except orjson.JSONDecodeError as error:
        raise _no_statistics(url, error) from None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise _no_statistics(url, "expected a mapping of fields to entries")
    return entries


def read_statistics(url: str) -> Statistics:
    """Return the statistics of a ``stats.json``.

    Raises:
        NotFound: The file does not exist.
        ConfigError: The file is not a valid ``stats.json``.
    """
    try:
        return {field: FieldStatistics.from_dict(entry) for field, entry in read_entries(url).items()}
    except FeedmillError:
        raise
    except KeyError as error:
        raise _no_statistics(url, f"{error} is missing") from None
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise _no_statistics(url, error) from None


def _no_statistics(url: str, why: object) -> ConfigError:
    return ConfigError(
        f"the file is not a valid stats.json of robotics data: {why}",
        file=url,
        kind="bad-statistics",
        fix="Compute them again with 'feedmill compat vla stats'.",
    )


def write_statistics(url: str, statistics: Statistics) -> None:
    """Write a ``stats.json`` atomically."""
    folder, name = split_url(url)
    entries = {field: one.as_dict() for field, one in statistics.items()}
    open_store(folder).write_bytes(name, orjson.dumps(entries))
