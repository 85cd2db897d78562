"""The mixture with the lowest predicted loss within the limits.

For the law it is found by SciPy: by linear programming (HiGHS) where there is one loss, as ``exp`` is monotone, else by
sequential quadratic programming, as the weighted mean of several laws is convex. For trees, which are steps, many
mixtures are drawn, and the mean of the best hundred is taken, as RegMix does (Liu et al. 2024); the limits are convex,
so that the mean keeps them too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from feedmill.errors import FeedmillError
from feedmill.mixture.base import Floats
from feedmill.mixture.limits import Limits
from feedmill.mixture.models import Fitted, predict

_BEST = 100
_CONCENTRATIONS = (0.5, 100.0)


def candidates(limits: Limits, centers: Floats, count: int, seed: int) -> Floats:
    """Return mixtures within the limits, float64[count, stages, sources].

    They are drawn around the centers in turn; what breaks a limit is clipped, see `Limits.clipped`.

    Args:
        limits: the limits.
        centers: float64[n, stages, sources].
        count: number of mixtures.
        seed: of the draws.
    """
    generator = np.random.default_rng([seed, 2])
    around = centers[np.arange(count) % len(centers)]
    low, high = np.log(_CONCENTRATIONS)
    strength = np.exp(generator.uniform(low, high, (count, 1, 1)))
    drawn = generator.standard_gamma(np.maximum(strength * around, 1e-3))
    drawn = np.maximum(drawn, 1e-300)
    drawn /= drawn.sum(axis=-1, keepdims=True)
    beyond = ~limits.keep(drawn)
    drawn[beyond] = limits.clipped(drawn[beyond])
    mixtures: Floats = drawn
    return mixtures


def best(found: Fitted, limits: Limits, pool: Floats) -> Floats:
    """Return the mixture with the lowest predicted loss, float64[stages, sources].

    Args:
        found: the model.
        limits: the limits.
        pool: float64[n, stages, sources], mixtures within the limits.

    Raises:
        FeedmillError: the method of SciPy found no mixture.
    """
    shape = pool.shape[1:]
    losses = predict(found, features(limits, pool))
    if found.name == "law":
        used = found.weights > 0
        slopes, floors, shares = found.model.coef_[used], found.model.floor_[used], found.weights[used]
        start = pool[int(np.argmin(losses))]
        return _programmed(slopes, floors, shares, limits, start).reshape(shape)
    order = np.argsort(losses, kind="stable")[: min(_BEST, len(losses))]
    mean: Floats = pool[order].mean(axis=0)
    return mean


def features(limits: Limits, mixtures: Floats) -> Floats:
    """Return what models see of mixtures, float64[n, stages * sources]: the mean weights of each stage."""
    x: Floats = limits.mean(mixtures).reshape(len(mixtures), -1)
    return x


def _programmed(slopes: Floats, floors: Floats, shares: Floats, limits: Limits, start: Floats) -> Floats:
    """Return the best weights of the law, float64[stages * sources]."""
    from scipy.optimize import linprog, minimize

    stages, sources = start.shape
    basis = np.eye(stages * sources).reshape(-1, stages, sources)
    seen = limits.mean(basis).reshape(len(basis), -1)  # row i: what the models see of weight i
    totals = np.kron(np.eye(stages), np.ones(sources))
    capped = np.flatnonzero(np.isfinite(limits.caps) & (limits.caps < 1))
    drawn = limits.drawn(basis).T[capped]
    bounds = list(zip(np.tile(limits.low, stages), np.tile(np.minimum(limits.high, 1), stages), strict=True))
    if len(slopes) == 1:
        found: Any = linprog(
            seen @ slopes[0],
            A_ub=drawn if len(capped) else None,
            b_ub=limits.caps[capped] if len(capped) else None,
            A_eq=totals,
            b_eq=np.ones(stages),
            bounds=bounds,
            method="highs",
        )
    else:

        def loss(flat: Floats) -> tuple[float, Floats]:
            parts = shares * np.exp(np.minimum(slopes @ (flat @ seen), 700.0))
            return float(shares @ floors + parts.sum()), seen @ (parts @ slopes)

        constraints: list[dict[str, Any]] = [
            {"type": "eq", "fun": lambda flat: totals @ flat - 1, "jac": lambda _: totals}
        ]
        if len(capped):
            caps = limits.caps[capped]
            constraints.append({"type": "ineq", "fun": lambda flat: caps - drawn @ flat, "jac": lambda _: -drawn})
        found = minimize(
            loss,
            start.ravel(),
            jac=True,
            bounds=bounds,
            constraints=constraints,
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-10},
        )
    if found.x is None or not np.isfinite(found.x).all():
        raise FeedmillError(f"SciPy found no best mixture: {found.message}")
    weights = np.clip(found.x.reshape(stages, sources), limits.low, np.minimum(limits.high, 1))
    result: Floats = weights / weights.sum(axis=1, keepdims=True)
    return result
