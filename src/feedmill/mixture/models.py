"""Two models of the loss of a mixture, their held-out errors, and how far off the loss of the best mixture may be.

- `Law`: ``loss = c + exp(t . w)``, the data mixing law (Ye et al. 2024, arXiv:2403.16952) that Olmix fits too; the
  weights of all stages are in ``w``. It is fitted by the Levenberg-Marquardt method of SciPy.
- trees: gradient-boosted regression trees of scikit-learn, as RegMix uses those of LightGBM (Liu et al. 2024,
  arXiv:2407.01492).

Both are estimators of scikit-learn, fitted to folds of its cross-validation for the held-out errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedmill.errors import MissingExtra
from feedmill.mixture.base import Floats

try:
    from scipy.optimize import least_squares
    from scipy.stats import bootstrap, spearmanr, t
    from sklearn import config_context
    from sklearn.base import BaseEstimator, RegressorMixin, clone
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.model_selection import KFold, LeaveOneOut
except ImportError as error:
    raise MissingExtra(f"fitting losses needs {error.name}", extra="lab") from None

LEVEL = 0.95
"""Level of all intervals."""
_ALONE, _FOLDS = 20, 10  # runs up to which each is held out alone; folds for more
_STARTS = (0.1, 1.0, 10.0)
_RIDGE = 1e-4
_RESAMPLES = 2000
_REFITS = 200
_TREES = 100
_TAIL = (1 - LEVEL) / 4
"""Half of a tail of an interval, see `interval_of_best`."""
_CHECKED = {"skip_parameter_validation": True, "assume_finite": True}
"""Settings of scikit-learn for arrays that are checked already: its own checks take half the time of small trees."""


class Law(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """``loss = c + exp(t . w)`` for each column of losses.

    Attributes:
        coef_: t, float64[losses, features].
        floor_: c, float64[losses].
    """

    def __init__(self, start: Any = None) -> None:
        self.start = start

    def fit(self, x: Floats, y: Floats) -> Law:
        """Fit the law.

        Args:
            x: float64[runs, features], weights.
            y: float64[runs] or float64[runs, losses].
        """
        columns = y.reshape(len(y), -1)
        starts = [None] * columns.shape[1] if self.start is None else self.start
        fitted = [_fit_law(x, column, start) for column, start in zip(columns.T, starts, strict=True)]
        self.floor_ = np.array([floor for floor, _ in fitted])
        self.coef_ = np.array([coefficients for _, coefficients in fitted])
        self.flat_ = y.ndim == 1
        return self

    def predict(self, x: Floats) -> Floats:
        """Return the losses of mixtures, as `fit` takes them."""
        values: Floats = self.floor_ + np.exp(np.minimum(x @ self.coef_.T, 700.0))
        return values[:, 0] if self.flat_ else values


def _fit_law(x: Floats, y: Floats, start: tuple[float, Floats] | None) -> tuple[float, Floats]:
    """Return c and t for one column. The floor is below all losses: ``c = min(y) - range(y) * exp(u)``."""
    low, span = float(y.min()), float(y.max() - y.min())
    runs, features = x.shape
    if span <= 1e-12 * max(abs(low), abs(low + span)):
        return low, np.full(features, -700.0)  # all the same: exp(t . w) is 0
    scale = span / max(np.sqrt(runs), 1)

    def split(parameters: Floats) -> tuple[float, Floats, Floats]:
        depth = span * np.exp(np.clip(parameters[0], -8.0, 6.0))
        return low - depth, np.exp(np.minimum(x @ parameters[1:], 700.0)), parameters[1:]

    center: Floats

    def residuals(parameters: Floats) -> Floats:
        floor, part, slopes = split(parameters)
        kept = _RIDGE * scale * np.concatenate([[parameters[0]], slopes - center])
        return np.concatenate([floor + part - y, kept])

    def jacobian(parameters: Floats) -> Floats:
        floor, part, _ = split(parameters)
        inside = -8.0 < parameters[0] < 6.0
        of_floor = np.full((runs, 1), (floor - low) if inside else 0.0)
        top = np.hstack([of_floor, part[:, None] * x])
        return np.vstack([top, _RIDGE * scale * np.eye(features + 1)])

    best: Any = None
    if start is None:
        begins = []
        for factor in _STARTS:
            logs = np.log(y - low + factor * span)
            slopes, *_ = np.linalg.lstsq(x, logs, rcond=1e-8)
            begins.append(np.concatenate([[np.log(factor)], slopes]))
    else:
        floor, slopes = start
        begins = [np.concatenate([[np.log(max(low - floor, 1e-3 * span) / span)], slopes])]
    for begin in begins:
        center = begin[1:]
        with np.errstate(over="ignore"):
            found = least_squares(residuals, begin, jacobian, method="lm", max_nfev=200)
        if best is None or found.cost < best.cost:
            best = found
    floor, _, slopes = split(best.x)
    return floor, slopes


def trees(seed: int) -> Any:
    """Return the estimator of gradient-boosted trees for one column of losses."""
    return GradientBoostingRegressor(
        n_estimators=_TREES, learning_rate=0.08, max_depth=3, subsample=0.8, random_state=seed
    )


def law_parameters(stages: int, sources: int) -> int:
    """Return how many numbers the law has for each column of losses; the weights of a stage add up to 1."""
    return stages * (sources - 1) + 2


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted model.

    Attributes:
        name: ``law`` or ``trees``.
        model: the estimator; of the trees, one for the weighted mean of the losses.
        weights: weight of each loss that it predicts, float64[losses].
        folds: the runs of each fold, and the estimator that was fitted without them.
        held_out: float64[runs], the weighted mean loss of each run, predicted by a fit without it.
        residuals: float64[runs, losses], losses less those predictions.
        error: root mean square error of `held_out`.
        interval: 95 % interval of `error` over the runs.
        rank_correlation: Spearman's correlation of `held_out` and the losses.
        explained: 1 - squared error / that of a constant, held out too.
    """

    name: str
    model: Any
    weights: Floats
    folds: Sequence[tuple[Any, Any]]
    held_out: Floats
    residuals: Floats
    error: float
    interval: tuple[float, float]
    rank_correlation: float
    explained: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "held_out_error": self.error,
            "interval": list(self.interval),
            "rank_correlation": self.rank_correlation,
            "explained": self.explained,
        }


@config_context(**_CHECKED)  # type: ignore[untyped-decorator]
def fitted(name: str, x: Floats, y: Floats, weights: Floats, seed: int) -> Fitted:
    """Fit a model to losses, and hold out each run, or a tenth of more than 20, to see its error.

    Args:
        name: ``law`` or ``trees``.
        x: float64[runs, features], weights of the mixtures.
        y: float64[runs, losses].
        weights: weight of each loss, float64[losses].
        seed: of the folds and the trees.
    """
    estimator = Law() if name == "law" else trees(seed)
    if name == "trees":
        y, weights = (y @ weights)[:, None], np.ones(1)
    target = y if name == "law" else y[:, 0]
    splits = LeaveOneOut() if len(x) <= _ALONE else KFold(_FOLDS, shuffle=True, random_state=seed)
    folds: list[tuple[Any, Any]] = []
    predicted, baseline = np.empty_like(y), np.empty(len(x))
    for train, test in splits.split(x):
        folds.append((test, clone(estimator).fit(x[train], target[train])))
        predicted[test] = folds[-1][1].predict(x[test]).reshape(len(test), -1)
        baseline[test] = y[train].mean(axis=0) @ weights
    residuals = y - predicted
    errors = residuals @ weights
    losses = y @ weights
    return Fitted(
        name,
        clone(estimator).fit(x, target),
        weights,
        folds,
        predicted @ weights,
        residuals,
        _rms(errors),
        _interval(errors, seed),
        _correlation(losses, predicted @ weights),
        1 - float((errors**2).sum() / ((losses - baseline) ** 2).sum()),
    )


def _rms(errors: Floats, axis: int = -1) -> Any:
    found = np.sqrt(np.mean(np.square(errors), axis=axis))
    return float(found) if np.ndim(found) == 0 else found


def _interval(errors: Floats, seed: int) -> tuple[float, float]:
    found = bootstrap(
        (errors,),
        _rms,
        confidence_level=LEVEL,
        n_resamples=_RESAMPLES,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def _correlation(a: Floats, b: Floats) -> float:
    """Return Spearman's rank correlation; 0 if one of them is constant."""
    return 0.0 if np.ptp(a) == 0 or np.ptp(b) == 0 else float(spearmanr(a, b).statistic)


@config_context(**_CHECKED)  # type: ignore[untyped-decorator]
def interval_of_best(
    found: Fitted, x: Floats, candidates: Floats, best: Floats, seed: int
) -> tuple[float, float, float]:
    """Return the predicted loss of the best mixture, and the interval in which the loss of a further run with it lies.

    Of the law, by a bootstrap of the held-out residuals: losses are drawn as the prediction plus the residual of some
    run, the model is fitted to them, and the best of the candidates is chosen again. How far its prediction is from
    what the first model says, plus a residual, is one error of the whole procedure. So the interval covers the noise of
    a run, the uncertainty of the fit, and that the lowest of many predictions is too low on average (Efron and
    Tibshirani 1993, chapters 9 and 12). That the model has the right form is assumed.

    Trees have no form that could be right, so that a bootstrap from them is blind to what they cannot follow. Theirs is
    the interval CV+ (Barber et al. 2021, "Predictive inference with the jackknife+", Annals of Statistics 49): what
    each fold's fit predicts, less and plus the absolute held-out error of each of its runs. It holds in ``1 - 2 a`` of
    cases at the level ``a``, whatever the law of the losses, for a mixture that comes like those of the runs. The best
    one does not: the half tails that ``2 a`` asks for leave room for that. Fewer than 39 runs have no such rank, and
    Student's t of their errors then is the least width.

    Args:
        found: the model.
        x: float64[runs, features], the mixtures of the runs.
        candidates: float64[n, features], mixtures within the limits.
        best: float64[features], the best one.
        seed: of the draws.
    """
    if found.name == "trees":
        return _held_out_interval(found, best)
    generator = np.random.default_rng([seed, 1])
    residuals = found.residuals - found.residuals.mean(axis=0)
    runs = len(x)
    weights = found.weights
    fit_of = np.asarray(found.model.predict(x)).reshape(residuals.shape)
    near = np.vstack([best, candidates, (candidates[: len(candidates) // 2] + best) / 2])
    truth = predict(found, near)
    model = Law(start=list(zip(found.model.floor_, found.model.coef_, strict=True)))
    errors = np.empty(_REFITS)
    for number in range(_REFITS):
        drawn = fit_of + residuals[generator.integers(runs, size=runs)]
        predicted = clone(model).fit(x, drawn).predict(near) @ weights
        chosen = int(np.argmin(predicted))
        errors[number] = truth[chosen] - predicted[chosen] + residuals[generator.integers(runs)] @ weights
    # As the ranks of conformal intervals, at half the tails: some dozens of residuals have shorter ones than their
    # distribution. At the tails themselves 93 of 100 intervals held. With 200 errors, the 2nd from each end.
    ranks = np.sort(errors)
    low = ranks[max(int(np.floor(_TAIL * (_REFITS + 1))) - 1, 0)]
    high = ranks[min(int(np.ceil((1 - _TAIL) * (_REFITS + 1))) - 1, _REFITS - 1)]
    return float(truth[0]), float(truth[0] + low), float(truth[0] + high)


def _held_out_interval(found: Fitted, best: Floats) -> tuple[float, float, float]:
    truth = float(predict(found, best[None])[0])
    errors = np.abs(found.residuals @ found.weights)
    runs = len(errors)
    center = np.empty(runs)
    for test, model in found.folds:
        center[test] = np.asarray(model.predict(best[None])).reshape(1, -1) @ found.weights
    rank = min(int(np.ceil((1 - 2 * _TAIL) * (runs + 1))), runs)
    low, high = -np.sort(errors - center)[rank - 1], np.sort(center + errors)[rank - 1]
    least = float(t.ppf(1 - _TAIL, runs - 1)) * found.error
    return truth, float(min(low, truth - least)), float(max(high, truth + least))


def predict(found: Fitted, x: Floats) -> Floats:
    """Return the weighted mean loss of mixtures, float64[n], of float64[n, features]."""
    values: Floats = np.asarray(found.model.predict(x)).reshape(len(x), -1) @ found.weights
    return values
