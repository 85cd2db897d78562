"""Which weights are allowed: a smallest and a largest share of each source, and how often it may be repeated.

The limits on repeats hold for the whole target run, over all of its stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, suggestion
from feedmill.mixture.base import BaseRecipe, Floats
from feedmill.mixture.options import Limits as LimitOptions
from feedmill.planning.mixing.blend import exact_weight

_TOLERANCE = 1e-9
_COARSE, _FINE, _SMALL = 10_000, 10_000_000, 1e-3


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the weights of a recipe.

    Attributes:
        names: the sources.
        low, high: smallest and largest share in each stage, float64[sources].
        caps: largest share of the whole run that does not repeat a source too often, float64[sources]; above 1 if any
            share does not.
        parts: part of the run of each stage, float64[stages].
        ramps: whether each stage moves to its weights from those of the stage before.
        repeats: the largest number of repeats of each source, float64[sources]; infinite without a limit.
        target: units of the target run; None if unknown.
    """

    names: Sequence[str]
    low: Floats
    high: Floats
    caps: Floats
    parts: Floats
    ramps: Sequence[bool]
    repeats: Floats
    target: int | None

    @classmethod
    def of(cls, base: BaseRecipe, options: LimitOptions) -> Limits:
        """Return the limits of a recipe and of the command line.

        Raises:
            ConfigError: a share is invalid, names no source, or no weights keep all limits.
        """
        low = _shares(base, options.min_share, "min-share", 0.0)
        high = _shares(base, options.max_share, "max-share", 1.0)
        model = base.recipe.model
        target = options.target
        if target is None and model.proxy is not None and model.proxy.unit == base.unit:
            target = model.proxy.of
        if target is None and base.unit == "samples":
            target = model.samples
        own = base.max_repeats
        if options.max_repeats is not None:
            if options.max_repeats <= 0:
                raise ConfigError(
                    f"--max-repeats is {options.max_repeats:g}", kind="bad-option", fix="Pass a number above 0."
                )
            repeats = np.full(len(own), options.max_repeats)
        else:
            repeats = np.array([np.inf if most is None else float(most) for most in own])
        if target is None and np.isfinite(repeats).any():
            raise ConfigError(
                "sources have a limit on repeats, and the size of the target run is unknown",
                file=base.file,
                kind="bad-option",
                fix=f"Pass --target N: its size in {base.unit}.",
            )
        stages = len(base.weights)
        parts = np.full(stages, 1 / stages) if target is None else base.parts(target)
        caps = np.full(len(own), np.inf) if target is None else repeats * base.at_hand / target
        limits = cls(base.names, low, high, caps, parts, base.ramps, repeats, target)
        limits._check(base)
        return limits

    @property
    def bound(self) -> Floats:
        """Largest share that keeps all limits in every stage, float64[sources]."""
        bound: Floats = np.minimum(self.high, self.caps)
        return bound

    def mean(self, weights: Floats) -> Floats:
        """Return the mean weights over each stage, float64[..., stages, sources]: of a ramp those of its middle."""
        mean = weights.copy()
        for stage, ramp in enumerate(self.ramps):
            if ramp:
                mean[..., stage, :] = (weights[..., stage - 1, :] + weights[..., stage, :]) / 2
        return mean

    def drawn(self, weights: Floats) -> Floats:
        """Return the share of each source in the whole run, float64[..., sources]."""
        drawn: Floats = np.einsum("s,...sd->...d", self.parts, self.mean(weights))
        return drawn

    def keep(self, weights: Floats) -> npt.NDArray[np.bool_]:
        """Return whether weights keep all limits: shares in each stage, and repeats over the whole run.

        Args:
            weights: float64[..., stages, sources].

        Returns:
            bool[...].
        """
        inside = (weights >= self.low - _TOLERANCE) & (weights <= self.high + _TOLERANCE)
        kept: npt.NDArray[np.bool_] = np.asarray(
            inside.all((-2, -1)) & (self.drawn(weights) <= self.caps + _TOLERANCE).all(-1)
        )
        return kept

    def clipped(self, weights: Floats) -> Floats:
        """Return the weights of stages within the limits: what is beyond a limit is set to it, others are scaled.

        The result is ``clip(t * weights, low, bound)`` with the number ``t`` for which it adds up to 1. If every stage
        is clipped, the run keeps the limits on repeats too.

        Args:
            weights: float64[..., sources], not negative.
        """
        low, high = self.low, self.bound
        weights = weights + 1e-12  # a share of exactly 0 could not grow
        begin, end = np.zeros((*weights.shape[:-1], 1)), 2.0 / weights.min(-1, keepdims=True)
        for _ in range(110):
            middle = (begin + end) / 2
            less = np.clip(middle * weights, low, high).sum(-1, keepdims=True) < 1
            begin, end = np.where(less, middle, begin), np.where(less, end, middle)
        result: Floats = np.clip(end * weights, low, high)
        return result

    def grid(self, center: Floats) -> int:
        """Return how many steps a share of 1 has: 10,000, or 10 million where sources have less than a thousandth.

        Args:
            center: float64[stages, sources].
        """
        bound = np.minimum(self.bound, 1)
        coarse = center.min() >= _SMALL and np.floor(bound * _COARSE).sum() >= _COARSE + len(bound)
        return _COARSE if coarse else _FINE

    def in_steps(self, weights: Floats, grid: int, *, clipped: bool = False) -> npt.NDArray[np.int64]:
        """Return the shares of one stage in steps that add up to the grid: rounded down, the rest to the largest rests.

        Args:
            weights: float64[sources], within the limits.
            grid: steps of a share of 1.
            clipped: keep the limits on repeats in this stage alone.
        """
        low = np.ceil(self.low * grid - 1e-6)
        high = np.floor(np.minimum(self.bound if clipped else self.high, 1) * grid + 1e-6)
        exact = weights * grid
        steps = np.clip(np.floor(exact + 1e-6), low, high)
        while missing := int(grid - steps.sum()):
            room = np.flatnonzero(steps < high) if missing > 0 else np.flatnonzero(steps > low)
            order = np.argsort(-(exact - steps)[room] * np.sign(missing), kind="stable")
            if not len(room):
                break
            steps[room[order[: abs(missing)]]] += np.sign(missing)
        return steps.astype(np.int64)

    def _check(self, base: BaseRecipe) -> None:
        bad = np.flatnonzero(self.low > self.bound)
        if len(bad):
            name, most = self.names[bad[0]], float(self.bound[bad[0]])
            raise ConfigError(
                f"the smallest share of {name!r} is {self.low[bad[0]]:.4%}, the largest {most:.4%}"
                + (f" ({self._arithmetic(base, int(bad[0]))})" if self.caps[bad[0]] == most else ""),
                file=base.file,
                kind="bad-option",
                fix="Lower --min-share, or allow more repeats.",
            )
        if self.low.sum() > 1 + _TOLERANCE:
            raise ConfigError(
                f"the smallest shares add up to {self.low.sum():.4%}",
                file=base.file,
                kind="bad-option",
                fix="Lower --min-share, so that they add up to less than 100 %.",
            )
        if np.minimum(self.bound, 1).sum() < 1 - _TOLERANCE:
            scarce = int(np.argmin(self.caps))
            whole = float((self.repeats * base.at_hand).sum())
            raise ConfigError(
                f"no weights keep all limits: the largest shares add up to {self.bound.sum():.4%}"
                + ("" if self.target is None else f" of {self.target:,} {base.unit}")
                + (f" ({self._arithmetic(base, scarce)})" if np.isfinite(self.caps[scarce]) else ""),
                file=base.file,
                kind="too-many-repeats" if np.isfinite(whole) else "bad-option",
                fix=(f"Pass a --target of at most {int(whole):,}, or allow" if np.isfinite(whole) else "Allow")
                + " more repeats or larger shares.",
            )

    def _arithmetic(self, base: BaseRecipe, source: int) -> str:
        return (
            f"{self.repeats[source]:g} x {base.at_hand[source]:,.0f} {base.unit} of {self.names[source]!r} are"
            f" {self.caps[source]:.4%} of the target"
        )


def _shares(base: BaseRecipe, given: Sequence[str], option: str, default: float) -> Floats:
    """Return a share of each source from texts such as ``0.01`` for all and ``code=10%`` for one."""
    shares = np.full(len(base.names), default)
    for text in sorted(given, key=lambda each: "=" in each):  # that of one source overrides that of all
        name, _, value = text.rpartition("=")
        share = float(exact_weight(value))
        if not 0 <= share <= 1:
            raise ConfigError(
                f"--{option} is {value!r}, which is not a share", kind="bad-option", fix="Use 0.1, 10% or 1/10."
            )
        if not name:
            shares[:] = share
        elif name in base.names:
            shares[base.names.index(name)] = share
        else:
            raise ConfigError(
                f"--{option} names {name!r}, which is not a source of the blend",
                file=base.file,
                kind="no-such-source",
                fix=suggestion(name, base.names, f"Its sources are: {', '.join(base.names[:20])}."),
            )
    return shares
