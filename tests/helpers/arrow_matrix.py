"""Columns of every type of Arrow, alone and in every nesting, each with the values that a sample must have.

The values come from pyarrow (`to_pylist`), or are written here where the table of types says another than pyarrow: a
time that needs nanoseconds is text, tensors are arrays. Nestings are made from arrays, so their values are lists,
dicts and tuples of those values.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa


class Column(NamedTuple):
    """An array, and the value of each row."""

    name: str
    array: Any
    values: list[Any]


ROWS = 6
"""Rows of a base column; the fourth is null."""
ZONES = None, "UTC", "Europe/Berlin", "+05:30"
NULL = 3


def _column(name: str, array: Any, values: list[Any] | None = None) -> Column:
    return Column(name, array, array.to_pylist() if values is None else values)


def _numbers() -> Iterator[Column]:
    yield _column("null", pa.nulls(ROWS))
    yield _column("bool", pa.array([True, False, True, None, True, False]))
    for bits in (8, 16, 32, 64):
        for kind, low in ((f"int{bits}", -(2 ** (bits - 1))), (f"uint{bits}", 0)):
            high = low + 2**bits - 1
            yield _column(kind, pa.array([low, high, 0, None, 5, 7], getattr(pa, kind)()))
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        floats = [1.5, float("nan"), float("inf"), None, -0.0, 2.25]
        halves = [None if one is None else np.float16(one) for one in floats]
        yield _column(str(kind), pa.array(halves if kind == pa.float16() else floats, kind))
    for bits, digits in ((32, 9), (64, 18), (128, 38), (256, 76)):
        make = getattr(pa, f"decimal{bits}")
        for scale in (0, 3, -2):
            exact = [Decimal(one).scaleb(-scale) for one in ("1", "-99", "123456", "0", "10", "7")]
            yield _column(f"decimal{bits}({scale})", pa.array([*exact[:3], None, *exact[4:]], make(digits, scale)))


def _bytes() -> Iterator[Column]:
    words = ["", "a", "text ü 漢 longer than twelve bytes", None, "x" * 40, "z"]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        yield _column(str(kind), pa.array(words, kind))
    data = [None if word is None else word.encode() + b"\x00\xff" for word in words]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        yield _column(str(kind), pa.array(data, kind))
    yield _column(
        "fixed_size_binary", pa.array([b"abc", b"\0\0\0", b"xyz", None, b"\xff\xd8\xff", b"123"], pa.binary(3))
    )


def _times() -> Iterator[Column]:
    days = [0, -719_162, 2_932_896, None, 19_000, -1]  # the years 1 and 9999 are the ends
    yield _column("date32", pa.array(days, pa.int32()).view(pa.date32()))
    yield _column("date64", pa.array([d and d * 86_400_000 for d in days], pa.int64()).view(pa.date64()))
    seconds = [0, 1, 86_399, None, 3_600, 43_200]
    for unit, per in (("s", 1), ("ms", 1000)):
        yield _column(f"time32[{unit}]", pa.array([s and s * per for s in seconds], pa.int32()).view(pa.time32(unit)))
    yield _column("time64[us]", pa.array([s and s * 10**6 + 7 for s in seconds], pa.int64()).view(pa.time64("us")))
    for unit, per in (("s", 1), ("ms", 10**3), ("us", 10**6)):
        ends = [-62_135_510_400, 253_402_200_000, 0, None, 1_700_000_000, -1]
        stamps = pa.array([s if s is None else s * per + (per > 1) for s in ends], pa.int64())
        for zone in ZONES:
            yield _column(f"timestamp[{unit}, {zone}]", stamps.view(pa.timestamp(unit, zone)))
        spans = pa.array([0, -1, 86_400 * per, None, 10**9 * per, 7], pa.int64())
        yield _column(f"duration[{unit}]", spans.view(pa.duration(unit)))


def _nanoseconds() -> Iterator[Column]:
    """Times of nanoseconds: rows 0, 1 and 5 need them. Arrow's own text is the value, with a T."""
    numbers = pa.array([1, 1_700_000_000_123_456_789, 1_700_000_000_123_456_000, None, 0, 999_999_999], pa.int64())
    whole = pa.array([None if n is None else n // 1000 for n in numbers.to_pylist()], pa.int64())
    kinds = [(f"timestamp[ns, {zone}]", pa.timestamp("ns", zone), pa.timestamp("us", zone)) for zone in ZONES]
    kinds = [(name, stamps, numbers, whole, coarse) for name, stamps, coarse in kinds]
    day = pa.array([1, 86_399_999_999_999, 86_399_999_999_000, None, 0, 999_999_999], pa.int64())
    micro = pa.array([None if n is None else n // 1000 for n in day.to_pylist()], pa.int64())
    kinds.append(("time64[ns]", pa.time64("ns"), day, micro, pa.time64("us")))
    for name, kind, stored, coarse, of in kinds:
        array = stored.view(kind)
        texts = [text and text.replace(" ", "T") for text in array.cast(pa.string()).to_pylist()]
        values = [
            text if at in (0, 1, 5) else value
            for at, (text, value) in enumerate(zip(texts, coarse.view(of).to_pylist(), strict=True))
        ]
        yield _column(name, array, values)
    spans = pa.array([1, -1_500_000_001, 2000, None, 0, 999_999_999], pa.int64()).view(pa.duration("ns"))
    fine = ["PT0.000000001S", "-PT1.500000001S", "PT0.999999999S"]
    two, _, zero = pa.array([2, None, 0], pa.int64()).view(pa.duration("us")).to_pylist()
    yield _column("duration[ns]", spans, [fine[0], fine[1], two, None, zero, fine[2]])


def _extensions() -> Iterator[Column]:
    def stored(kind: Any, array: Any) -> Any:
        return pa.ExtensionArray.from_storage(kind, array)

    yield _column(
        "month_day_nano", pa.array([pa.MonthDayNano([n, -n, n * 10**9]) if n != NULL else None for n in range(ROWS)])
    )
    ids = [uuid.UUID(int=n) if n != NULL else None for n in range(ROWS)]
    yield _column("uuid", stored(pa.uuid(), pa.array([one and one.bytes for one in ids], pa.binary(16))), ids)
    flags = [0, 1, 5, None, -1, 0]
    yield _column(
        "bool8", stored(pa.bool8(), pa.array(flags, pa.int8())), [None if f is None else f != 0 for f in flags]
    )
    texts = ['{"a": 1}', "[2]", '"x"', None, "null", "3"]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        yield _column(f"json({kind})", stored(pa.json_(kind), pa.array(texts, kind)), texts)
    yield _column(
        "opaque",
        stored(pa.opaque(pa.int32(), "type", "vendor"), pa.array([1, 2, 3, None, 5, 6], pa.int32())),
        [1, 2, 3, None, 5, 6],
    )
    flat = np.arange(ROWS * 24, dtype=np.int32)
    rows = pa.array([None if n == NULL else flat[n * 24 : n * 24 + 24] for n in range(ROWS)], pa.list_(pa.int32(), 24))
    for order in (None, [2, 0, 1]):
        kind = pa.fixed_shape_tensor(pa.int32(), [2, 3, 4], permutation=order)
        arrays = [flat[n * 24 : n * 24 + 24].reshape(2, 3, 4).transpose(order or [0, 1, 2]) for n in range(ROWS)]
        yield _column(f"tensor({order})", stored(kind, rows), [None if n == NULL else a for n, a in enumerate(arrays)])


def bases() -> list[Column]:
    """Return a column of each type that holds no others."""
    return [*_numbers(), *_bytes(), *_times(), *_nanoseconds(), *_extensions()]


def _list(make: Callable[..., Any], index: Any) -> Callable[[Column], Column]:
    def nest(of: Column) -> Column:
        array = make.from_arrays(
            pa.array([0, 2, 2, 3, 5, 6], index), of.array, mask=pa.array([False, False, False, True, False])
        )
        e = of.values
        return Column("", array, [e[0:2], [], e[2:3], None, e[5:6]])

    return nest


def _fixed(of: Column) -> Column:
    array = pa.FixedSizeListArray.from_arrays(of.array, 2, mask=pa.array([False, True, False]))
    return Column("", array, [of.values[0:2], None, of.values[4:6]])


def _view(make: Any, index: Any) -> Callable[[Column], Column]:
    def nest(of: Column) -> Column:
        begins, sizes = [4, 0, 2, 0, 1], [2, 3, 0, 1, 2]
        mask = pa.array([False, False, False, True, False])
        array = make.from_arrays(pa.array(begins, index), pa.array(sizes, index), of.array, mask=mask)
        rows = [of.values[b : b + n] for b, n in zip(begins, sizes, strict=True)]
        return Column("", array, [*rows[:3], None, rows[4]])

    return nest


def _struct(of: Column) -> Column:
    rest = pa.array(list(range(len(of.values))), pa.int64())
    mask = pa.array([n == 1 for n in range(len(of.values))])
    array = pa.StructArray.from_arrays([of.array, rest], ["f", "n"], mask=mask)
    return Column("", array, [None if n == 1 else {"f": v, "n": n} for n, v in enumerate(of.values)])


def _map(of: Column) -> Column:
    keys = pa.array([f"k{n}" for n in range(len(of.values))])
    array = pa.MapArray.from_arrays(pa.array([0, 2, 2, len(of.values)], pa.int32()), keys, of.array)
    pairs = [(f"k{n}", v) for n, v in enumerate(of.values)]
    return Column("", array, [pairs[:2], [], pairs[2:]])


def _sparse(of: Column) -> Column:
    n = len(of.values)
    codes = [0 if at % 3 else 1 for at in range(n)]
    array = pa.UnionArray.from_sparse(pa.array(codes, pa.int8()), [of.array, pa.array(list(range(n)), pa.int64())])
    return Column("", array, [at if code else of.values[at] for at, code in enumerate(codes)])


def _dense(of: Column) -> Column:
    n = len(of.values)
    codes, places = [7, 5] * n, [at // 2 for at in range(2 * n)]
    array = pa.UnionArray.from_dense(
        pa.array(codes, pa.int8()), pa.array(places, pa.int32()), [of.array, pa.array(list(range(n)), pa.int64())],
        ["x", "y"], [7, 5],
    )  # fmt: skip
    return Column("", array, [of.values[at] if code == 7 else at for code, at in zip(codes, places, strict=True)])


def _dictionary(of: Column) -> Column:
    numbers = [len(of.values) - 1, 0, None, 1, 1, 0]
    array = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int8()), of.array)
    return Column("", array, [None if n is None else of.values[n] for n in numbers])


def _runs(of: Column) -> Column:
    ends = np.cumsum([1 + n % 2 for n in range(len(of.values))])
    array = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), of.array)
    return Column("", array, [v for n, v in enumerate(of.values) for _ in range(1 + n % 2)])


NESTINGS: dict[str, Callable[[Column], Column]] = {
    "list": _list(pa.ListArray, pa.int32()),
    "large_list": _list(pa.LargeListArray, pa.int64()),
    "fixed_size_list": _fixed,
    "list_view": _view(pa.ListViewArray, pa.int32()),
    "large_list_view": _view(pa.LargeListViewArray, pa.int64()),
    "struct": _struct,
    "map": _map,
    "sparse_union": _sparse,
    "dense_union": _dense,
    "dictionary": _dictionary,
    "run_end_encoded": _runs,
}


def nested(column: Column, by: str) -> Column:
    """Return a column of a nesting of another column's values, repeated so that it has `ROWS` rows or more."""
    while len(column.values) < ROWS:
        column = Column(column.name, pa.concat_arrays([column.array] * 2), column.values * 2)
    column = Column(column.name, column.array.slice(0, ROWS), column.values[:ROWS])
    return NESTINGS[by](column)._replace(name=f"{by}<{column.name}>")


def columns(depth: int, limit: int | None = None) -> list[Column]:
    """Return the columns nested `depth` times; those that pyarrow cannot make are left out.

    Args:
        limit: about how many, chosen evenly, always the same.
    """
    found: list[Column] = []
    chains = list(product(bases(), *[NESTINGS] * depth))
    step = 1 if limit is None or limit >= len(chains) else len(chains) // limit | 1  # odd: meets every nesting
    for column, *chain in chains[::step]:
        try:
            for by in chain:
                column = nested(column, by)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            continue
        found.append(column)
    return found
