"""Mathematical functions of jq, as jaq has them: those of C, and what kind of number a number is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from feedmill.documents.expressions.registry import need, number, plain


def _rounded(function: Callable[[float], int]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        return value if type(number(value)) is int or not math.isfinite(value) else function(value)

    return run


def _half_up(value: float) -> int:
    """Return the nearest integer; halves are rounded away from zero."""
    return math.floor(abs(value) + 0.5) * (1 if value >= 0 else -1)


plain("floor")(lambda value: _rounded(math.floor)(value))
plain("ceil")(lambda value: _rounded(math.ceil)(value))
plain("round")(lambda value: _rounded(_half_up)(value))
plain("fabs")(lambda value: float(abs(number(value))))
plain("abs")(lambda value: abs(number(value)))
plain("infinite")(lambda value: math.inf)  # noqa: ARG005
plain("nan")(lambda value: math.nan)  # noqa: ARG005
plain("isnan")(lambda value: number(value) != value)
plain("isinfinite")(lambda value: type(value) is float and math.isinf(value))
plain("isfinite")(lambda value: type(value) in (int, float) and math.isfinite(value))
plain("isnormal")(
    lambda value: type(value) in (int, float) and math.isfinite(value) and abs(value) >= 2.2250738585072014e-308
)
plain("frexp")(lambda value: list(math.frexp(number(value))))
plain("modf")(lambda value: list(math.modf(number(value))))


def _outside(name: str, value: float) -> float:
    """Return the result of a function where Python raises ValueError: a pole, or a number outside its domain."""
    if name in ("log", "log2", "log10", "log1p", "atanh", "lgamma", "logb"):
        if value == {"log1p": -1}.get(name, 0) or name == "lgamma":
            return math.inf if name == "lgamma" else -math.inf
        if name == "atanh" and abs(value) == 1:
            return math.copysign(math.inf, value)
    return math.copysign(math.inf, value) if name == "tgamma" and value == 0 else math.nan


def _of_one(name: str, function: Callable[[float], float]) -> None:
    def run(value: Any) -> float:
        given = float(number(value))
        try:
            return float(function(given))
        except OverflowError:
            return -math.inf if name in ("sinh", "expm1") and given < 0 else math.inf
        except ValueError:
            return _outside(name, given)

    plain(name)(lambda value: run(value))


def _logb(value: float) -> float:
    return math.frexp(value)[1] - 1.0 if math.isfinite(value) and value else math.log(abs(value))


def _significand(value: float) -> float:
    return math.frexp(value)[0] * 2 if math.isfinite(value) else value


_OF_ONE: dict[str, Callable[[float], float]] = {
    **{name: getattr(math, name) for name in ("sqrt", "log", "log2", "log10", "log1p", "exp", "expm1", "cbrt", "exp2")},
    **{name: getattr(math, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")},
    **{name: getattr(math, name) for name in ("asinh", "acosh", "atanh", "lgamma")},
    "tgamma": math.gamma,
    "exp10": lambda value: 10.0**value,
    "pow10": lambda value: 10.0**value,
    "trunc": lambda value: math.trunc(value) if math.isfinite(value) else value,
    "rint": lambda value: round(value) if math.isfinite(value) else value,
    "nearbyint": lambda value: _half_up(value) if math.isfinite(value) else value,  # as jaq has it
    "logb": _logb,
    "significand": _significand,
}
for _name, _function in _OF_ONE.items():
    _of_one(_name, _function)


def _of_two(name: str, function: Callable[[float, float], float]) -> None:
    def run(a: Any, b: Any) -> float:
        first, second = float(number(a)), float(number(b))
        try:
            return float(function(first, second))
        except OverflowError:
            return math.copysign(math.inf, first)
        except ValueError:
            return math.nan

    plain(name)(lambda _value, a, b: run(a, b))


def _lesser(a: float, b: float) -> float:
    return b if a != a else a if b != b else min(a, b)


def _greater(a: float, b: float) -> float:
    return b if a != a else a if b != b else max(a, b)


def _above(a: float, b: float) -> float:
    """Return how much `a` is above `b`, or 0."""
    return a - b if a > b else 0.0 if a <= b else math.nan


def _scaled(value: float, exponent: float) -> float:
    return math.ldexp(value, need(int(exponent) if exponent.is_integer() else exponent, int))


_of_two("pow", lambda a, b: _power(a, b))
_of_two("atan2", math.atan2)
_of_two("copysign", math.copysign)
_of_two("drem", math.remainder)
_of_two("fdim", _above)
_of_two("fmax", _greater)
_of_two("fmin", _lesser)
_of_two("fmod", math.fmod)
_of_two("hypot", math.hypot)
_of_two("ldexp", _scaled)
_of_two("scalb", lambda a, b: a * _power(2.0, b))
_of_two("scalbln", _scaled)
_of_two("nextafter", math.nextafter)
_of_two("nexttoward", math.nextafter)
plain("fma")(lambda _value, a, b, c: float(number(a)) * number(b) + number(c))


def _power(a: float, b: float) -> float:
    """Return the power as in IEEE 754: infinity or NaN where Python raises."""
    try:
        power = float(a) ** b
    except (OverflowError, ZeroDivisionError):
        negative = math.copysign(1.0, a) < 0 and float(b).is_integer() and float(b) % 2 == 1
        return -math.inf if negative else math.inf
    return math.nan if isinstance(power, complex) else power
