"""The state of a page: the parameters of its address, in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import quote_plus, urlencode

from feedmill.errors import ConfigError

FIRST = (
    *("split", "as", "q", "sort", "page", "document", "source", "at", "step", "batch", "world", "rank", "row", "doc"),
    *("steps", "stage", "with", "over", "cols", "marked", "theme"),
)
"""Parameters that come first, in this order; then ranges of columns by name."""
RANGE = "f."
"""Beginning of the parameters that limit a column: ``f.bytes=100:2000``."""
VALUE = "v."
"""Beginning of the parameters that choose a value of a field: ``v.source=news``."""
_PLACES = {name: place for place, name in enumerate(FIRST)}
_MOST = 1 << 62


class State(Mapping[str, str]):
    """Parameters of an address. Empty ones do not count."""

    def __init__(self, items: Iterable[tuple[str, str]] = ()) -> None:
        self._items: dict[str, str] = {}
        for name, value in items:
            if name == "cols" and name in self._items:  # a list of checked boxes
                value = f"{self._items[name]},{value}"
            if value != "":
                self._items[name] = value

    def __getitem__(self, name: str) -> str:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def number(self, name: str, default: int | None = None, *, least: int = 0) -> int | None:
        """Return a parameter as a whole number, commas allowed. Raises `ConfigError`."""
        text = self.get(name)
        if text is None:
            return default
        plain = text.replace(",", "").replace("_", "").strip()
        if not (plain.isascii() and plain.removeprefix("-").isdigit()) or len(plain) > 19:
            raise ConfigError(f"{name}={text[:40]} is not a whole number", kind="bad-address")
        if not least <= int(plain) < _MOST:
            raise ConfigError(f"{name} must be at least {least:,}, not {text[:40]}", kind="bad-address")
        return int(plain)

    def choice(self, name: str, known: Iterable[str], default: str) -> str:
        """Return a parameter that must be one of `known`. Raises `ConfigError`."""
        value, allowed = self.get(name, default), list(known)
        if value not in allowed:
            raise ConfigError(f"{name}={value[:40]} is unknown", kind="bad-address", fix=f"Use {', '.join(allowed)}.")
        return value

    def ranges(self) -> dict[str, tuple[float | None, float | None]]:
        """Return the chosen range of each limited column: first and last value, None where it is open."""
        ranges = {}
        for name, text in self.items():
            if name.startswith(RANGE):
                low, _, high = text.partition(":")
                ranges[name.removeprefix(RANGE)] = (_limit(low, name), _limit(high, name))
        return ranges

    def chosen(self) -> dict[str, str]:
        """Return the chosen value of each field."""
        return {name.removeprefix(VALUE): text for name, text in self.items() if name.startswith(VALUE)}

    def link(self, **changes: object) -> str:
        """Return the query of this state with some parameters changed; None removes one."""
        items = {**self._items, **{name: str(value) for name, value in changes.items() if value is not None}}
        for name, value in changes.items():
            if value is None:
                items.pop(name, None)
        return "?" + urlencode([(name, items[name]) for name in sorted(items, key=_order)])

    def each(self, name: str) -> Callable[[object], str]:
        """Return a function that returns `link` with a value of this parameter, for the many links of a table."""
        pairs = [(other, self._items[other]) for other in sorted({*self._items} - {name}, key=_order)]
        place = sum(_order(other) < _order(name) for other, _ in pairs)
        before, after = urlencode(pairs[:place]), urlencode(pairs[place:])
        begin = f"?{before}{'&' if before else ''}{quote_plus(name)}="
        end = f"&{after}" if after else ""
        return lambda value: f"{begin}{quote_plus(str(value))}{end}"

    def limited(self, column: str, low: object = None, high: object = None) -> str:
        """Return the query with another range of a column, from the first page; no range if both are None."""
        text = None if low is None and high is None else f"{'' if low is None else low}:{'' if high is None else high}"
        return self.link(**{RANGE + column: text, "page": None, "at": None})

    def valued(self, field: str, value: str | None) -> str:
        """Return the query with another value of a field, from the first page; None for all."""
        return self.link(**{VALUE + field: value, "page": None, "at": None})

    def without_ranges(self) -> str:
        """Return the query without filters and search."""
        gone = dict.fromkeys([name for name in self if name.startswith((RANGE, VALUE))])
        return self.link(**gone, q=None, page=None, at=None, split=None, marked=None)


def _order(name: str) -> tuple[int, str]:
    return _PLACES.get(name, len(_PLACES)), name


def _limit(text: str, name: str) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        raise ConfigError(f"{name}={text[:40]} is not a number", kind="bad-address", fix="Use LOW:HIGH.") from None
    if value != value:  # NaN
        raise ConfigError(f"{name}={text[:40]} is not a number", kind="bad-address", fix="Use LOW:HIGH.")
    return value
