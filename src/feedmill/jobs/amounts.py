"""Numbers, sizes and durations: for display, and as people write them."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"([+-]?(?:\d+|\d{1,3}(?:[_,]\d{3})+)(?:\.\d+)?(?:e\+?\d{1,2})?)\s*([kmbgt]?)", re.I)
_TIMES = {"": 0, "k": 3, "m": 6, "b": 9, "g": 9, "t": 12}


def human_size(count: float) -> str:
    """Return a number of bytes for display: ``"3.4 MB"`` (decimal units)."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}" if count < 100 else f"{count:,.0f} {unit}"


def human_duration(seconds: float) -> str:
    """Return a duration for display.

    >>> human_duration(42), human_duration(61), human_duration(7300)
    ('42 s', '1 min 1 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def short_number(value: float) -> str:
    """Return a positive number with three digits, or all of its whole part, and never with an exponent.

    >>> short_number(2.5), short_number(2284.3), short_number(0.00001)
    ('2.5', '2,284', '< 0.001')
    """
    if 0 < value < 1e-3:
        return "< 0.001"
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def parse_count(text: str) -> int | None:
    """Return a whole number that is written as people do; None if the text is none.

    Separators stand between thousands only: the comma of ``1,5M`` may be a decimal one.

    >>> parse_count("1.5M"), parse_count("1e9"), parse_count("2_000"), parse_count("1,5M")
    (1500000, 1000000000, 2000, None)
    """
    if len(text) < 20 and text.isascii() and text.isdigit():
        return int(text)
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    from decimal import Decimal

    number = Decimal(match[1].replace("_", "").replace(",", "")).scaleb(_TIMES[match[2].lower()])
    return int(number) if number == number.to_integral_value() else None


_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|)", re.I)


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration that is written as a number with a unit; None if the text is none.

    >>> parse_duration("90"), parse_duration("30m"), parse_duration("1.5h"), parse_duration("soon")
    (90.0, 1800.0, 5400.0, None)
    """
    match = _DURATION.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _SECONDS[match[2].lower()]
