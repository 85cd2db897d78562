"""Cells from columns: which cell each sample is in, block by block.

Values of a column become numbers from 0, in order: texts and whole numbers as they are, other numbers by `edges` or
`quantiles`. The number of a sample's combination of values is its cell; cells are in the order of their values.

- ``edges: [0.2, 0.5]`` makes the bins ``..0.2`` (below 0.2), ``0.2..0.5`` (from 0.2, below 0.5) and ``0.5..``.
- ``quantiles: 4`` makes the bins 0 to 3. Edge k of n is the value at place ``k * count // n`` of the sorted values of
  the dataset's samples, so samples with equal values are never divided. Equal edges are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from sys import float_info
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError, DataError
from feedmill.formats.base import Dataset
from feedmill.formats.cells import MOST_CELLS, OUTSIDE, Rule
from feedmill.formats.tokens.base import TokenDataset
from feedmill.mixture.columnfiles import INDEX, ColumnData, Floats, Value, Wanted, order_of, plain
from feedmill.mixture.columns import Block, Found

Int64s = npt.NDArray[np.int64]
AT_ONCE = 1 << 20
"""Samples of a block."""
MOST_NUMBERS = 1024
"""Different numbers that can make cells without edges or quantiles."""
_MOST_QUANTILES = 1000
_DENSE = 1 << 24
"""Combinations of values up to which a table has a place for each."""
_NAMED = 5
_OPTIONS = ("column", "edges", "quantiles", "missing")
_TESTS = ("min", "max", "not")


@dataclass(frozen=True)
class Spec:
    """A column of `by` in a rule.

    Attributes:
        name: the column.
        edges: where bins begin, ascending.
        quantiles: number of bins; 0 for none.
        missing: value of samples without one; None: they are in no cell.
    """

    name: str
    edges: tuple[float, ...] = ()
    quantiles: int = 0
    missing: Value | None = None

    @classmethod
    def of(cls, given: Any) -> Spec:
        """Return an item of `by`. Raises `ConfigError` if it is invalid."""
        if isinstance(given, str) and given:
            return cls(given)
        if not isinstance(given, Mapping) or not isinstance(given.get("column"), str) or set(given) - {*_OPTIONS}:
            raise _bad(f"invalid column {given!r}", f"Write a name, or a mapping of {', '.join(_OPTIONS)}.")
        edges, quantiles = given.get("edges"), given.get("quantiles")
        name, missing = given["column"], given.get("missing")
        if edges is not None and quantiles is not None:
            raise _bad(f"the column {name!r} has edges and quantiles", "Give one of them.")
        if edges is not None and not (
            isinstance(edges, Sequence)
            and edges
            and all(isinstance(each, int | float) and not isinstance(each, bool) for each in edges)
            and all(abs(each) <= float_info.max for each in edges)
            and all(low < high for low, high in pairwise(edges))
        ):
            raise _bad(f"the edges of {name!r} are {edges!r}: expected finite, ascending numbers", "Correct them.")
        if quantiles is not None and (type(quantiles) is not int or not 2 <= quantiles <= _MOST_QUANTILES):
            raise _bad(f"the column {name!r} has {quantiles!r} quantiles: expected 2 to {_MOST_QUANTILES:,}", "")
        if missing is not None and not isinstance(missing, str | int | float | bool):
            raise _bad(f"the value of 'missing' of {name!r} is {missing!r}", "Give a text or a number.")
        return cls(name, tuple(edges or ()), quantiles or 0, missing)


def _bad(what: str, fix: str) -> ConfigError:
    return ConfigError(what, kind="bad-option", fix=fix or None)


def specs_of(rule: Rule) -> tuple[Spec, ...]:
    """Return the columns of `by` of a rule. Raises `ConfigError` if they are invalid."""
    specs = tuple(map(Spec.of, rule.by))
    names = [spec.name for spec in specs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _bad(f"the column {twice!r} is given twice", "Give it once.")
    return specs


@dataclass(frozen=True)
class Test:
    """What the values of a column must be."""

    name: str
    given: Any

    def check(self) -> None:
        """Raise `ConfigError` if it is invalid."""
        given = self.given
        if isinstance(given, Mapping):
            if not given or set(given) - {*_TESTS}:
                raise _bad(f"'where' of {self.name!r} is {dict(given)!r}", f"Use {', '.join(_TESTS)}.")
            for name in ("min", "max"):
                if name in given and (isinstance(given[name], bool) or not isinstance(given[name], int | float)):
                    raise _bad(f"{name!r} of {self.name!r} is {given[name]!r}: expected a number", "Correct it.")
            given = given.get("not", 0)
        for value in given if isinstance(given, Sequence) and not isinstance(given, str) else (given,):
            if not isinstance(value, str | int | float | bool):
                raise _bad(f"'where' of {self.name!r} has {value!r}: expected texts or numbers", "Correct it.")
        if given == []:
            raise _bad(f"'where' of {self.name!r} has an empty list, which no value is in", "List values.")

    def numbers(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Return whether numbers, float64[n], pass; NaN does not."""
        there = ~np.isnan(values)
        if not isinstance(self.given, Mapping):
            return there & _among(values, self.given)
        with np.errstate(invalid="ignore"):
            if "min" in self.given:
                there &= values >= _nearest(self.given["min"], up=True)
            if "max" in self.given:
                there &= values <= _nearest(self.given["max"], up=False)
        return there & ~_among(values, self.given["not"]) if "not" in self.given else there

    def one(self, value: Value) -> bool:
        """Return whether a value passes. Whole numbers are compared as they are: float64 has not all beyond 2^53."""
        if not isinstance(self.given, Mapping):
            return _is_among(value, self.given)
        limits = [name for name in ("min", "max") if name in self.given]
        if isinstance(value, str | bool):
            inside = not limits
        else:
            inside = all(value >= self.given[each] if each == "min" else value <= self.given[each] for each in limits)
        return inside and ("not" not in self.given or not _is_among(value, self.given["not"]))

    @property
    def listed(self) -> list[Any]:
        """The values that a value is compared with."""
        if not isinstance(self.given, Mapping):
            return _listed(self.given)
        return [
            *_listed(self.given.get("not", [])),
            *(self.given[name] for name in ("min", "max") if name in self.given),
        ]


_KINDS = {str: "texts", bool: "booleans", float: "numbers"}


def _kind(value: Value) -> type:
    return type(value) if isinstance(value, str | bool) else float


def _check_kind(value: Value, option: str, series: Series) -> None:
    """Raise `ConfigError` for a value of a kind that a column does not have: it would be equal to none in silence."""
    there = {_kind(each): each for data in series.data for each in data.values}
    if series.numeric and (series.wanted.place == INDEX or any(each.missing < each.rows for each in series.data)):
        there[float] = 0
    if there and _kind(value) not in there:
        other = next(iter(there))
        such = "" if other is float else f" such as {there[other]!r}"
        raise ConfigError(
            f"{option!r} of {series.wanted.name!r} has {value!r}, but the column has {_KINDS[other]}{such}",
            file=series.dataset.url,
            kind="bad-option",
            fix="Write it in quotes: YAML reads no, off, yes and on as booleans, and digits as numbers."
            if other is str
            else f"Write it as the {_KINDS[other]} of the column, without quotes.",
        )


def _nearest(limit: float, *, up: bool) -> float:
    """Return the float64 at a limit or, where it has none, the next one above or below: numpy would take either."""
    near = float(limit)
    if near == limit or limit != limit or (near > limit) == up:
        return near
    return float(np.nextafter(near, np.inf if up else -np.inf))


def _listed(given: Any) -> list[Any]:
    return [given] if isinstance(given, str) or not isinstance(given, Sequence) else list(given)


def _is_among(value: Value, given: Any) -> bool:
    return any(_kind(each) is _kind(value) and each == value for each in _listed(given))


def _among(values: Floats, given: Any) -> npt.NDArray[np.bool_]:
    numbers = [each for each in _listed(given) if _kind(each) is float and float(each) == each]
    return np.isin(values, np.array(numbers, np.float64)) if numbers else np.zeros(len(values), np.bool_)


class Span:
    """Consecutive samples of a dataset, with where their values are.

    Attributes:
        start, stop: their numbers.
    """

    def __init__(self, start: int, stop: int, locate: Callable[[Series], Block]) -> None:
        self.start, self.stop, self._locate = start, stop, locate
        self._known: dict[tuple[str, ...], Block] = {}

    def block(self, series: Series) -> Block:
        """Return where the values of a column are."""
        key = series.leaves
        if key not in self._known:
            self._known[key] = self._locate(series)
        return self._known[key]

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass
class Series:
    """The values of a column for all samples of a dataset.

    Attributes:
        dataset: the dataset.
        found: the column.
        leaves: names of the files, or ranges of samples, that it is read from.
        starts: number of the first sample of each range.
        data: the column of each of them, once they were read.
    """

    dataset: Dataset
    found: Found
    leaves: tuple[str, ...] = ()
    starts: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    data: list[ColumnData] = field(default_factory=list)

    @property
    def wanted(self) -> Wanted:
        """The column."""
        return self.found.wanted

    @property
    def digest(self) -> str:
        """Hash of all values."""
        return xxhash.xxh3_128_hexdigest("\n".join(each.digest for each in self.data).encode())

    @property
    def numeric(self) -> bool:
        """Whether all values are numbers that float64 has."""
        return all(each.numbers is not None for each in self.data)

    def numbers(self, span: Span) -> Floats:
        """Return the numbers of samples, float64[n], NaN without one."""
        if self.wanted.place == INDEX:
            return costs_of(self.dataset, self.wanted.name, span.start, span.stop).astype(np.float64)
        out = np.empty(len(span))
        for leaf, part, rows in self._parts(span):
            numbers = self.data[leaf].numbers
            assert numbers is not None
            out[part] = numbers[rows]
        return out

    def codes(self, span: Span, luts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return what tables say of samples, [n].

        Args:
            span: the samples.
            luts: for each file the number of each of its values, and one more for none.
        """
        out = np.empty(len(span), luts[0].dtype if luts else np.int64)
        for leaf, part, rows in self._parts(span):
            codes = self.data[leaf].codes
            assert codes is not None
            out[part] = luts[leaf][codes[rows]]
        return out

    def _parts(self, span: Span) -> Iterator[tuple[int, Any, Int64s]]:
        for leaf, part, rows in span.block(self).parts():
            if len(rows) and int(rows.max()) >= self.data[leaf].rows:
                raise DataError(
                    f"the column {str(self.wanted)!r} has {self.data[leaf].rows:,} rows, but the lineage names row"
                    f" {int(rows.max()) + 1:,}",
                    file=self.leaves[leaf],
                    kind="changed",
                    fix="Restore the documents, or make the outputs again.",
                )
            yield leaf, part, rows

    def coded(self) -> None:
        """Make values of all files codes, so that there is one form."""
        for number, each in enumerate(self.data):
            if each.numbers is not None:
                there = ~np.isnan(each.numbers)
                values, places = np.unique(each.numbers[there], return_inverse=True)
                _check_count(self.wanted.name, len(values), values[:_NAMED].tolist(), self.dataset.url)
                codes = np.full(each.rows, len(values), np.int32)
                codes[there] = places
                self.data[number] = ColumnData(
                    each.rows, each.missing, each.digest, None, codes, tuple(map(plain, values.tolist()))
                )


def costs_of(dataset: Dataset, name: str, start: int, stop: int) -> Int64s:
    """Return a column of the index of consecutive samples, int64[n], without those of all others if possible."""
    if name not in ("tokens", "bytes") or not _has_bounds(dataset):
        costs = dataset.costs(name)
        assert costs is not None
        return costs[start:stop]
    assert isinstance(dataset, TokenDataset)
    out, at = np.empty(stop - start, np.int64), start
    while at < stop:
        (shard,), (local,) = dataset.places([at])
        bounds = dataset.shards[int(shard)].bounds
        count = min(stop - at, len(bounds) - 1 - int(local))
        piece = bounds[int(local) : int(local) + count + 1]
        np.subtract(piece[1:], piece[:-1], out=out[at - start : at - start + count])
        if name == "bytes":
            out[at - start : at - start + count] *= dataset.shards[int(shard)].dtype.itemsize
        at += count
    return out


def _has_bounds(dataset: Dataset) -> bool:
    kind = type(dataset)
    return isinstance(dataset, TokenDataset) and (
        kind.lengths is TokenDataset.lengths and kind._find_costs is TokenDataset._find_costs
    )


def _check_count(name: str, count: int, first: Sequence[float], url: str) -> None:
    if count > MOST_NUMBERS:
        shown = ", ".join(f"{plain(value)!r}" for value in first)
        raise ConfigError(
            f"the column {name!r} has {count:,} different numbers ({shown}, ...): without bins, expected at most"
            f" {MOST_NUMBERS:,}",
            file=url,
            kind="bad-option",
            fix=f"Give bins: {{column: {name}, quantiles: 10}} or {{column: {name}, edges: [...]}}.",
        )


class Coder:
    """The values of a column of `by` as numbers from 0.

    Args:
        spec: the column in the rule.
        series: its values.
        spans: returns all samples, in blocks, for quantiles.

    Attributes:
        values: the values, in order.
        edges: where bins begin.
    """

    def __init__(self, spec: Spec, series: Series, spans: Callable[[], Iterator[Span]]) -> None:
        self.spec, self.series, self.edges = spec, series, np.array(spec.edges, np.float64)
        self._luts: list[Int64s] = []
        binned = spec.edges or spec.quantiles
        values: list[Value]
        if binned and not series.numeric:
            texts = [value for each in series.data for value in each.values if isinstance(value, str | bool)]
            raise ConfigError(
                f"the column {spec.name!r} has values that are no numbers, such as {texts[0]!r}"
                if texts
                else f"the column {spec.name!r} has numbers of more than 53 bits",
                file=series.dataset.url,
                kind="bad-option",
                fix="Remove 'edges' or 'quantiles', or choose another column.",
            )
        if binned:
            if spec.quantiles:
                self.edges = quantile_edges(lambda: map(series.numbers, spans()), spec.quantiles)
            values = _bins(self.edges) if spec.edges else list(range(len(self.edges) + 1))
        elif series.numeric:
            self._vocabulary = self._numbers(spans)
            values = [plain(value) for value in self._vocabulary.tolist()]
        else:
            series.coded()
            distinct = {(type(value) is bool, value) for each in series.data for value in each.values}
            values = sorted((plain(value) for _, value in distinct), key=order_of)
            place = {(type(value) is bool, value): number for number, value in enumerate(values)}
            for each in series.data:
                lut = [place[type(value) is bool, value] for value in each.values]
                self._luts.append(np.array([*lut, -1], np.int64))
        self.values = values
        self._missing = -1
        if spec.missing is not None:
            if isinstance(spec.missing, bool):
                _check_kind(spec.missing, "missing", series)
            if spec.missing not in values:
                values.append(spec.missing)
            self._missing = values.index(spec.missing)

    def _numbers(self, spans: Callable[[], Iterator[Span]]) -> Floats:
        """Return the different numbers of the samples."""
        found = np.zeros(0)
        for span in spans():
            numbers = self.series.numbers(span)
            found = np.union1d(found, _distinct(numbers))
            _check_count(self.spec.name, len(found), found[:_NAMED].tolist(), self.series.dataset.url)
        return found

    def codes(self, span: Span) -> tuple[Int64s, npt.NDArray[np.bool_] | None]:
        """Return the number of the value of each sample, int64[n], -1 for none, and which samples have no value.

        The second is None if all have one.
        """
        if self._luts:
            codes = self.series.codes(span, self._luts)
        else:
            numbers = self.series.numbers(span)
            if self.spec.edges or self.spec.quantiles:
                codes = np.searchsorted(self.edges, numbers, side="right")
            else:
                codes = np.searchsorted(self._vocabulary, numbers)
            codes[np.isnan(numbers)] = -1
        absent = codes < 0
        if not absent.any():
            return codes, None
        codes[absent] = self._missing
        return codes, absent


def _distinct(numbers: Floats) -> Floats:
    """Return the different numbers, ascending, without NaN: those of few values by counting."""
    numbers = numbers[~np.isnan(numbers)]
    if len(numbers) > 1 << 12:
        low, high = float(numbers.min()), float(numbers.max())
        if high - low < 1 << 16:
            whole = (numbers - low).astype(np.int64)
            if (whole + low == numbers).all():
                return np.flatnonzero(np.bincount(whole)).astype(np.float64) + low
    found: Floats = np.unique(numbers)
    return found


def _bins(edges: Floats) -> list[Value]:
    """Return the names of bins."""
    shown = [repr(plain(edge)) for edge in edges.tolist()]
    inner = [f"{low}..{high}" for low, high in pairwise(shown)]
    return [f"..{shown[0]}", *inner, f"{shown[-1]}.."]


def quantile_edges(numbers: Callable[[], Iterator[Floats]], count: int) -> Floats:
    """Return where quantiles begin, ascending and different, float64[up to count - 1].

    Two passes: the first counts values by their leading bits, the second sorts those of the bins that have an edge.
    So memory has a share of the values, and the result is exact.

    Args:
        numbers: returns the values, in blocks; NaN is no value.
        count: number of quantiles.
    """
    bins = np.zeros(1 << 20, np.int64)
    for block in numbers():
        bins += np.bincount((_ordered(block[~np.isnan(block)]) >> np.uint64(44)).astype(np.int64), minlength=len(bins))
    total, ends = int(bins.sum()), np.cumsum(bins)
    if not total:
        return np.zeros(0)
    places = np.array([number * total // count for number in range(1, count)], np.int64)
    chosen = np.searchsorted(ends, places, side="right")
    wanted = np.zeros(len(bins), np.bool_)
    wanted[chosen] = True
    values, counts = np.zeros(0), np.zeros(0, np.int64)
    for block in numbers():
        there = block[~np.isnan(block)]
        inside = there[wanted[(_ordered(there) >> np.uint64(44)).astype(np.int64)]]
        new, times = np.unique(inside, return_counts=True)
        values, slots = np.unique(np.concatenate([values, new]), return_inverse=True)
        counts = np.bincount(slots, np.concatenate([counts, times]), len(values)).astype(np.int64)
    # Values of chosen bins are consecutive within each; those of other bins before them are only counted.
    kept, skipped = np.cumsum(counts), np.cumsum(np.where(wanted, 0, bins))[chosen]
    at = np.searchsorted(kept, places - skipped, side="right")
    below = skipped + kept[at] - counts[at]
    found: Floats = np.unique(values[at[below > 0]])  # nothing is below the smallest value
    return found


def _ordered(numbers: Floats) -> npt.NDArray[np.uint64]:
    """Return integers in the order of numbers, uint64[n]."""
    bits = (numbers + 0.0).view(np.int64)  # without negative zeros
    flips = bits >> 63  # all bits of a negative number, the sign of others
    flips |= np.int64(-1 << 63)
    flips ^= bits
    return flips.view(np.uint64)


class Tests:
    """The conditions of `where` in a rule, over the values of their columns."""

    def __init__(self, tests: Sequence[Test], series: Sequence[Series]) -> None:
        self._all = list(zip(tests, series, strict=True))
        self._luts: dict[int, list[npt.NDArray[np.bool_]]] = {}
        for number, (test, one) in enumerate(self._all):
            if not one.numeric:
                one.coded()
            for value in test.listed:
                _check_kind(value, "where", one)
            if not one.numeric:
                self._luts[number] = [
                    np.array([*(test.one(value) for value in each.values), False], np.bool_) for each in one.data
                ]

    def passed(self, span: Span) -> npt.NDArray[np.bool_]:
        """Return which samples pass, bool[n]."""
        out = np.ones(len(span), np.bool_)
        for number, (test, series) in enumerate(self._all):
            if number in self._luts:
                out &= series.codes(span, self._luts[number])
            else:
                out &= test.numbers(series.numbers(span))
        return out


class Combinations:
    """Numbers combinations of values in the order in which they occur, and at the end in the order of the values."""

    def __init__(self, coders: Sequence[Coder], url: str) -> None:
        self._coders, self._url = coders, url
        self._sizes = [len(coder.values) for coder in coders]
        size = int(np.prod([float(max(1, each)) for each in self._sizes]))
        self._table = np.full(size, -1, np.int32) if size <= _DENSE else None
        self._known: dict[int, int] = {}
        self.keys: list[int] = []

    def codes(self, values: Sequence[Int64s], count: int) -> npt.NDArray[np.uint16]:
        """Return the provisional code of combinations, uint16[count].

        Args:
            values: for each column the number of its value, int64[count]; none is negative.
            count: number of samples.
        """
        keys = np.zeros(count, np.int64)
        for size, each in zip(self._sizes, values, strict=True):
            keys = keys * size + each
        found: npt.NDArray[Any]
        if self._table is not None:
            found = self._table[keys]
            if len(found) and found.min() < 0:
                new = np.unique(keys[found < 0])
                self._table[new] = np.arange(len(self.keys), len(self.keys) + len(new))
                self.keys += new.tolist()
                found = self._table[keys]
        else:
            distinct, places = np.unique(keys, return_inverse=True)
            for key in distinct.tolist():
                if key not in self._known:
                    self._known[key] = len(self.keys)
                    self.keys.append(key)
            found = np.array([self._known[key] for key in distinct.tolist()], np.int64)[places]
        if len(self.keys) > MOST_CELLS:
            shown = "; ".join(", ".join(map(str, self.values(key))) for key in self.keys[:_NAMED])
            raise ConfigError(
                f"the columns have {len(self.keys):,} or more combinations of values ({shown}; ...): expected at most"
                f" {MOST_CELLS:,}",
                file=self._url,
                kind="bad-option",
                fix="Choose fewer columns, or ones with fewer values; give numbers fewer edges or quantiles.",
            )
        return found.astype(np.uint16)

    def values(self, key: int) -> tuple[Value, ...]:
        """Return the values of a combination."""
        out: list[Value] = []
        for size, coder in zip(reversed(self._sizes), reversed(self._coders), strict=True):
            key, number = divmod(key, size)
            out.append(coder.values[number])
        return tuple(reversed(out))

    def final(self) -> tuple[list[tuple[Value, ...]], npt.NDArray[np.uint16]]:
        """Return the values of each cell, and the cell of each provisional code, uint16[65536]."""
        order = sorted(range(len(self.keys)), key=self.keys.__getitem__)
        lut = np.full(OUTSIDE + 1, OUTSIDE, np.uint16)
        lut[order] = np.arange(len(order))
        return [self.values(self.keys[number]) for number in order], lut
