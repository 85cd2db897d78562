"""Draw the groups of a step: a pure function of the settings, seed, step, version, and groups drawn before."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError
from feedmill.formats.offsets import Int64s
from feedmill.formats.rollouts.commits import Rollouts

_F1, _F2, _SEED = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)


class Settings(NamedTuple):
    """How groups are drawn.

    Attributes:
        groups: number of groups of a step.
        seed: of draws by priority.
        max_age: versions by which the policy may be newer than a group; None for any.
        reuse: how often a group is drawn.
        by, of, power: draw by weight, the ``mean`` or ``spread`` of a column to a power; the oldest first without `by`.
    """

    groups: int
    seed: int = 0
    max_age: int | None = None
    reuse: int = 1
    by: str | None = None
    of: str = "mean"
    power: float = 1.0


class Drawn(NamedTuple):
    """Groups of a step.

    Attributes:
        groups: int64[n], at most as many as the settings say.
        left_out: number of other groups, by reason.
    """

    groups: Int64s
    left_out: dict[str, int]


def draw(rollouts: Rollouts, settings: Settings, step: int, version: int, end: int, times: Int64s) -> Drawn:
    """Return the groups of a step.

    By priority, groups are drawn without replacement by weights: those with the least `E / weight`, where E are
    exponential random numbers (Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir").

    Args:
        version: of the policy at this step.
        end: number of groups that are seen.
        times: int64[end], how often each was drawn before.

    Raises:
        ConfigError: no group has the column, or a weight is negative.
    """
    kept = times[:end] < settings.reuse
    left_out = {"drawn before": end - int(np.count_nonzero(kept))}
    versions = rollouts.versions[:end]
    if settings.max_age is not None:
        for reason, wrong in (
            (f"older than {settings.max_age} versions", versions < version - settings.max_age),
            ("of a later version", versions > version),
        ):
            left_out[reason] = int(np.count_nonzero(kept & wrong))
            kept &= ~wrong
    groups = np.flatnonzero(kept)
    if settings.by is not None:
        found, more = _by_priority(rollouts, settings, step, groups)
        left_out |= more
    elif settings.reuse > 1:
        found = groups[np.argsort(times[groups], kind="stable")][: settings.groups]
    else:
        found = groups[: settings.groups]
    left = len(groups) - sum(more.values()) if settings.by is not None else len(groups)
    left_out["later in line"] = left - len(found)
    return Drawn(found, {reason: count for reason, count in left_out.items() if count})


def _by_priority(rollouts: Rollouts, settings: Settings, step: int, groups: Int64s) -> tuple[Int64s, dict[str, int]]:
    assert settings.by is not None
    values = rollouts.numbers(settings.by, settings.of)
    if values is None:
        if not len(groups):
            return groups, {}
        raise ConfigError(
            f"no group has the column {settings.by!r} (columns of numbers: {', '.join(rollouts.columns())})",
            file=rollouts.path,
            kind="no-column",
            fix="Set 'by' of the recipe's priority to one of these.",
        )
    weights = values[groups]
    if np.fmin.reduce(weights, initial=0.0) < 0:
        group = int(groups[np.nanargmin(weights)])
        raise ConfigError(
            f"the {settings.of} of {settings.by!r} is {values[group]:g} for the group {rollouts.names([group])[0]!r}",
            file=rollouts.path,
            kind="bad-recipe",
            fix="A priority is not negative: use another column, or 'of: spread'.",
        )
    missing, zero = int(np.count_nonzero(np.isnan(weights))), int(np.count_nonzero(weights == 0))
    counts = {f"without a value of {settings.by!r}": missing, "of priority 0": zero}
    if missing or zero:
        kept = weights > 0
        groups, weights = groups[kept], weights[kept]
    keys = _uniform(settings.seed, step, groups)
    np.log(keys, out=keys)
    keys /= -(weights if settings.power == 1 else weights**settings.power)
    few = np.arange(len(keys))
    if len(keys) > settings.groups:
        few = np.argpartition(keys, settings.groups - 1)[: settings.groups]
    return groups[few[np.lexsort((groups[few], keys[few]))]], counts


def _uniform(seed: int, step: int, groups: Int64s) -> npt.NDArray[np.float64]:
    """Return a random number in (0, 1) for each group: SplitMix64 (Steele, Lea and Flood 2014) of its number."""
    base = np.uint64(xxhash.xxh3_64_intdigest(b"%d %d" % (seed, step)))
    value: npt.NDArray[Any] = groups.astype(np.uint64)
    value += np.uint64(1)
    value *= _SEED
    value += base
    for shift, factor in ((30, _F1), (27, _F2)):
        value ^= value >> np.uint64(shift)
        value *= factor
    value ^= value >> np.uint64(31)
    value >>= np.uint64(11)
    found = value.astype(np.float64)
    found += 0.5
    found /= 1 << 53
    return found
