"""The compiler of kernels: its typing is numba's, its arithmetic Python's, and what it refuses it names."""

from __future__ import annotations

import itertools
import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.kernels.interface import NUMBERS
from helpers.kernel_module import ROOT, compiled, translated

assert ROOT
from kernels.translate import KernelError, joined, operation, wide  # noqa: E402

EDGES = {
    "b": [0, 1],
    "u8": [0, 1, 7, 128, 255],
    "u32": [0, 1, 7, 2**31, 2**32 - 1],
    "u64": [0, 1, 7, 2**63 - 1, 2**63, 2**64 - 1],
    "i32": [0, 1, -1, 7, -7, 2**31 - 1, -(2**31)],
    "i64": [0, 1, -1, 7, -7, 2**63 - 1, -(2**63)],
}
SIGNS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
COMPARISONS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def number(kind: str) -> np.dtype[Any]:
    return np.dtype(NUMBERS[kind])


def result(one: str, other: str) -> str:
    return "u64" if {one, other} <= {"u8", "u32", "u64"} else "i64"


def wrapped(value: int, kind: str) -> int:
    value &= 2**64 - 1
    return value - 2**64 if kind == "i64" and value >> 63 else value


def test_the_types_are_those_of_numba() -> None:
    import ast

    from numba import types
    from numba.core.registry import cpu_target

    context = cpu_target.typing_context
    context.refresh()
    theirs = {kind: getattr(types, name) for kind, name in NUMBERS.items() if kind != "b"} | {"b": types.boolean}
    ours = {theirs[kind]: kind for kind in theirs}
    nodes = {
        operator.add: ast.Add, operator.mul: ast.Mult, operator.and_: ast.BitAnd, operator.lshift: ast.LShift,
        operator.rshift: ast.RShift, operator.truediv: ast.Div, operator.floordiv: ast.FloorDiv, operator.mod: ast.Mod,
    }  # fmt: skip
    for one, other in itertools.product(theirs, theirs):
        for function, node in nodes.items():
            found = operation(node, one, other)
            if found is not None:
                wanted = context.resolve_function_type(function, (theirs[one], theirs[other]), {})
                assert found == ours[wanted.return_type], (one, function, other)
        unified = ours[context.unify_types(theirs[one], theirs[other])]
        # where numba makes a float64 of two integers, ours is an error
        assert joined(one, other) == (None if unified == "f64" and one[0] + other[0] in ("ui", "iu") else unified)
    for one in ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"):
        assert wide(one) == ours[context.resolve_function_type(operator.neg, (theirs[one],), {}).return_type]


@pytest.mark.parametrize("apart", [(0, 2, 3), pytest.param((1, 4, 5), marks=pytest.mark.slow)])
def test_arithmetic_is_that_of_integers_that_wrap(
    apart: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operation of two types, over arrays: in the default run of each type with itself and four others."""
    kinds = list(enumerate(EDGES))
    both = [(one, other) for (m, one), (n, other) in itertools.product(kinds, kinds) if (m - n) % len(kinds) in apart]
    arithmetic = "\n".join(
        f'@kernel("{one}[:], {other}[:], out {"b" if sign in COMPARISONS else result(one, other)}[:]")\n'
        f"def {function.__name__.strip('_')}_{one}_{other}(a, b, out):\n"
        f"    for i in range(len(a)):\n        out[i] = a[i] {sign} b[i]\n"
        for one, other in both
        for sign, function in (SIGNS | COMPARISONS).items()
    )
    made = compiled(arithmetic, tmp_path, monkeypatch)
    for one, other in both:
        pairs = list(itertools.product(EDGES[one], EDGES[other]))
        kind = result(one, other)
        for function in (*SIGNS.values(), *COMPARISONS.values()):
            divides = function in (operator.floordiv, operator.mod)
            # a divisor of 0 is the caller's fault; the operands of a division are of the type of its result
            used = [(a, b) for a, b in pairs if not divides or wrapped(b, kind) not in (0, -1)]
            a, b = (
                np.array(column, number(k)) for column, k in zip(zip(*used, strict=True), (one, other), strict=True)
            )
            out = np.empty(len(used), np.bool_ if function in COMPARISONS.values() else number(kind))
            getattr(made, f"{function.__name__.strip('_')}_{one}_{other}")(a, b, out)
            for (x, y), found in zip(used, out.tolist(), strict=True):
                if function in COMPARISONS.values():
                    assert found == function(x, y), (x, function, y)
                else:
                    x, y = (wrapped(x, kind), wrapped(y, kind)) if divides else (x, y)
                    assert found == wrapped(int(function(x, y)), kind), (one, x, function, other, y)


SUBSET = """
_TABLE = np.array([10, 20, 30], np.int64)
_WORDS = (3, 1, 2)
_BIG = (1 << 63) - 1


@kernel
def _pair(a, b):
    if a > b:
        return a, b
    return b, a


@kernel("i64, i64, out i64[:]")
def control(low, high, out):
    n = 0
    for i in range(high, low - 1, -2):
        if i == 3:
            continue
        if i < -100:
            break
        out[n] = i
        n += 1
    step = -3
    for i in range(high, low, step):
        out[n] = i
        n += 1
    for word in _WORDS:
        out[n] = _TABLE[word - 1] if word in (1, 3) else -1
        n += 1
    for value in (low, high):
        out[n] = value
        n += 1
    while n < 30 and not (n % 7 == 0 or n > 28):
        out[n] = -n
        n += 1
    first, second = _pair(low, high)
    first, second = second, first
    out[n], out[n + 1] = first, second
    out[n + 2] = out[n + 3] = low or high
    out[n + 4] = low and high
    out[n + 5] = min(low, high, _BIG)
    out[n + 6] = 1 < high <= 7
    out[n + 7] = max(len(out), 3) - 4 * (low < high)


@kernel("out i64[:], i64, i64, out i64[:,:], out u8[:]")
def slices(values, low, high, table, bytes_):
    part = values[low:high]
    for i in range(len(part)):
        part[i] = i
    values[high:] = len(part)
    table[:] = -1
    table[1, 1:3] = 7
    table[:, 3] = 5
    row = table[2]
    row[0] = len(row) * row.itemsize
    bytes_[:2] = 300
    table[0][:2] = values[:2]


@kernel("f64[:], f32[:], out f64[:]")
def floats(a, b, out):
    out[0] = a[0] / 3 - np.inf
    out[1] = b[0] / np.float32(3)
    out[2] = np.int64(a[0]) // 2 / 3
    out[3] = a[0] if a[0] < b[0] else 1
    out[4] = 0.1
    out[5] = -a[0] * 1e300


@kernel("u64, u64, out u64[:]")
def machine(a, b, out):
    low, high = product(a, b)
    out[0], out[1], out[2] = low, high, trailing(a)
    out[3] = np.uint64(np.uint8(a)) << np.uint64(3)
    out[4] = ~a
    out[5] = -np.uint32(5)
"""


def test_the_subset_means_what_python_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled(SUBSET, tmp_path, monkeypatch)
    for low, high in ((-5, 9), (0, 4), (4, 0), (7, 7)):
        found, wanted = (np.full(64, 99) for _ in range(2))
        made.control(low, high, found)
        monkeypatch.setattr(made, "_pair", made._pair.function if hasattr(made._pair, "function") else made._pair)
        made.control.function(low, high, wanted)
        assert found.tolist() == wanted.tolist()
    for low, high in itertools.product((-9, -3, 0, 2, 6, 9), repeat=2):
        results = []
        for function in (made.slices, made.slices.function):
            arrays = np.full(6, 88), np.full((3, 4), 9), np.zeros(3, np.uint8)
            if function is made.slices:
                function(arrays[0], low, high, *arrays[1:])
            else:
                function(arrays[0], low, high, arrays[1], np.zeros(3, np.int64))
                arrays[2][:2] = 300 & 255
            results.append([array.tolist() for array in arrays])
        assert results[0] == results[1], (low, high)
    out = np.zeros(6)
    made.floats(np.array([5.5]), np.array([2.5], np.float32), out)
    assert out.tolist() == [-np.inf, float(np.float32(2.5) / np.float32(3)), 2 / 3, 1.0, 0.1, -5.5e300]
    words = np.zeros(6, np.uint64)
    a, b = 2**63 + 2**40, 2**64 - 3
    made.machine(a, b, words)
    assert words.tolist() == [a * b & 2**64 - 1, a * b >> 64, 40, 0, ~a & 2**64 - 1, 2**64 - 5]


REFUSED = [
    ("def f(x, out):\n    out[0] = x ** 2", "no such operation: x ** 2"),
    ("def f(x, out):\n    y = [x]\n    out[0] = 1", "List is not in the subset"),
    (
        "def f(x, out):\n    y = x\n    y = np.uint64(1)\n    out[0] = y",
        "y is assigned u64 here and i64 elsewhere",
    ),
    ("def f(x, out):\n    out[0] = y", "y is neither a variable assigned before nor a constant of the module"),
    ("def f(x, out):\n    out[0] = missing(x)", "missing is neither a kernel nor in the subset"),
    ("def f(x, out):\n    out[0] = f(x, out)", "f calls itself"),
    ("def f(x, out):\n    out[0] = _inner(x, 1)", "takes 1 arguments, is given 2"),
    ("def f(x, out):\n    out[0] = _inner(x=x)", "by position only"),
    ("def f(x, out):\n    with x:\n        out[0] = 1", "With is not in the subset"),
    ("def f(x, out):\n    x = 0.5\n    out[0] = 1", "the argument x is i64 and is assigned f64: use another variable"),
    ("def f(x, out):\n    out[0] = 1\n    return x", "returns i64, but its types say nothing"),
    ("def f(x, out):\n    out[0] = 1\n    return out", "a kernel returns numbers"),
    ("def f(x, out):\n    pass", "is not written to, but its type is out i64[:]"),
    ("def f(x, out):\n    y = out[0.5]\n    out[0] = y", "the index 0.5 is f64"),
    ("def f(x, out):\n    out[0] = out[0, 1]", "no array of 2 dimensions"),
    ("def f(x, out):\n    for i in x:\n        out[0] = i", "for goes over range, a tuple or an array"),
    ("def f(x, out):\n    for i in range(np.uint64(x)):\n        out[0] = i", "cast them with np.int64"),
    ("def f(x, out):\n    out[0] = 0 < _inner(x) < 3", "which would be made twice"),
    ("def f(x, out):\n    a, b = _inner(x)\n    out[0] = a", "no tuple of this length"),
]


@pytest.mark.parametrize(("function", "problem"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused_is_named_with_its_line(function: str, problem: str, tmp_path: Path) -> None:
    text = f'@kernel("i64, out i64[:]")\n{function}\n\n@kernel\ndef _inner(x):\n    return x\n\n'
    text += '@kernel("i64 -> i64")\ndef g(x):\n    return _inner(x)\n'
    with pytest.raises(KernelError) as caught:
        translated(text, tmp_path)
    assert problem in str(caught.value)
    where, line, name, _ = str(caught.value).split(":", 3)
    assert Path(where).parent == tmp_path and int(line) >= 6 and name.strip() in ("f", "_inner")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('@kernel("i64[:]")\ndef f(x):\n    x[0] = 1\n', "x is written to, but its type is i64[:]"),
        ('@kernel("i64[:]")\ndef f(x):\n    y = x[1:]\n    y[0] = 1\n', "x is written to, but its type is i64[:]"),
        ('@kernel("i64[:]")\ndef f(x):\n    _g(x)\n\n@kernel\ndef _g(y):\n    y[0] = 1\n', "x is written to"),
        ("@kernel\ndef f(x):\n    return x\n", "no kernel calls it, and it has no types"),
        (
            '@kernel("i64 -> i64")\ndef f(x):\n    return x / 2\n',
            "returns f64; kernels that Python calls return an i64",
        ),
        ('@kernel("u64 -> i64")\ndef f(x):\n    return x\n', "returns u64; kernels that Python calls return"),
        ('@kernel("i46 -> i64")\ndef f(x):\n    return x\n', "unknown type 'i46'"),
        ('@kernel("i64 -> i64")\ndef f(x, y):\n    return x\n', "takes 2 arguments, is given 1"),
    ],
)
def test_declarations_are_compared_with_what_a_kernel_does(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(KernelError) as caught:
        translated(text, tmp_path)
    assert problem in str(caught.value)
