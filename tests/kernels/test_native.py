"""Calls of kernels: what they take, which library is loaded, and that nothing compiles anything."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError
from feedmill.kernels import interface, machine, native
from helpers.kernel_module import compiled

SOURCE = """
@kernel
def _twice(x):
    return 2 * x


@kernel("token[:], i64 -> i64")
def total(values, start):
    found = start
    for i in range(len(values)):
        found += _twice(values[i])
    return found


@kernel("out f64[:,:], f64")
def fill(table, value):
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            table[i, j] = value + i


@kernel("u8[:], out u64[:]")
def first_word(data, out):
    out[0] = load64(data, 1)


@kernel("u64, u64 -> i64")
def low_of_sum(a, b):
    return np.int64((a + b) & np.uint64(255))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        yield compiled(SOURCE, tmp_path_factory.mktemp("kernels"), patch)


def test_arrays_of_all_kinds_and_numbers(made: Any) -> None:
    for kind in (np.uint8, np.int32, np.int64, np.uint16):
        values = np.arange(10, dtype=kind)
        assert made.total(values, 1) == 91 == made.total(values[2:], np.int64(1)) + 2
        values.flags.writeable = False
        assert made.total(values, True) == 91
        assert made.total(values[::2], 0) == 40 and made.total(values[::-1], 0) == 90
    unaligned = np.frombuffer(bytes(3) + np.arange(4).tobytes(), np.uint8)[3:].view(np.int64)
    assert not unaligned.flags.aligned and made.total(unaligned, 0) == 12
    table = np.zeros((4, 3))
    assert made.fill(table, 0.5) is None
    assert table.tolist() == [[n + 0.5] * 3 for n in range(4)]
    assert made.fill(table, 1) is None and table[0, 0] == 1.0
    word = np.zeros(1, np.uint64)
    made.first_word(np.arange(9, dtype=np.uint8), word)
    assert word[0] == int.from_bytes(bytes(range(1, 9)), "little")
    assert made.low_of_sum(np.uint64(1 << 63), (1 << 63) + 7) == 7
    assert made.total(np.zeros(0, np.int64), -(1 << 63)) == -(1 << 63)


def test_what_a_kernel_does_not_take(made: Any) -> None:
    values, table = np.arange(10), np.zeros((3, 4))
    with pytest.raises(TypeError, match=r"total takes u8\[:\] or .* or i64\[:\] as values, not list"):
        made.total([1, 2], 0)
    with pytest.raises(TypeError, match="an array of >i8"):
        made.total(values.astype(">i8"), 0)
    with pytest.raises(TypeError, match=r"fill takes f64\[:,:\] as table, not an array of float64, 2 .* contiguous"):
        made.fill(table.T, 0.5)
    table.flags.writeable = False
    with pytest.raises(TypeError, match="read-only"):
        made.fill(table, 0.5)
    with pytest.raises(TypeError, match="i64 as start, not float"):
        made.total(values, 0.5)
    with pytest.raises(TypeError, match="total takes 2 arguments"):
        made.total(values)
    for number in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(OverflowError, match="64 bits"):
            made.total(values, number)
    with pytest.raises(OverflowError, match="64 bits"):
        made.low_of_sum(-1, 0)
    with pytest.raises(TypeError, match="_twice takes no arguments"):
        made._twice(1)
    with pytest.raises(TypeError, match="load64 can be called in kernels only"):
        machine.load64(values.view(np.uint8), 0)


def test_arguments_are_taken_in_c(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values, table, refused = np.arange(10), np.zeros((2, 3)), NotImplemented
    assert made.total(values, 1) == 91 and made.total._quick(values, np.int64(-2)) == 88
    assert made.total._quick(values.astype(np.uint8), True) == 91 == made.total._quick(values.astype(np.int32), 1)
    for given in (
        (values,),
        (values[::2], 0),
        (values, 0.5),
        (values, 1 << 63),
        (values, np.int32(1)),
        ([1], 0),
        (0, 0),
    ):
        assert made.total._quick(*given) is refused
    assert made.total._quick(values.view(type("Own", (np.ndarray,), {})), 0) is refused
    assert made.low_of_sum(0, 7) == 7 and made.low_of_sum._quick(-1, 0) is refused
    assert made.fill(table, np.float64(2)) is None and made.fill._quick(table[:1], 3) is None
    assert table.tolist() == [[3] * 3, [3] * 3]
    table.flags.writeable = False
    assert made.fill._quick(table, 0.5) is refused
    assert sys.getrefcount(made.total._quick(values, 1 << 40)) <= 2  # none of the result is left behind

    monkeypatch.setattr(native, "_maker", lambda _: None)  # as in interpreters whose objects are not known
    other = native.Kernel(made.total.function, *made.total.types)
    assert other(values, 1) == 91 == other(values[::-1], 1) and other._quick(values, 1) is refused


@pytest.mark.parametrize("in_c", [True, False])
def test_objects_of_memory(monkeypatch: pytest.MonkeyPatch, in_c: bool) -> None:
    native._in_c.cache_clear()
    if not in_c:
        monkeypatch.setattr(native, "_maker", lambda _: None)
    data = np.frombuffer("aé".encode() + bytes(range(256)) + "日本".encode(), np.uint8)
    starts = np.array([0, 0, 1, 4, 259, 3, 0, 5], np.int64)
    lengths = np.array([1, 3, 2, 255, 6, 1, 0, 1], np.int64)
    at = starts + native.address_of(data)
    whole = data.tobytes()
    wanted = [whole[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
    for _ in range(3):
        assert native.bytes_at(at, lengths) == wanted
        assert native.texts_at(at, lengths) == [each.decode("utf-8", "surrogateescape") for each in wanted]
    assert native.bytes_at(at[::2], lengths[::2]) == wanted[::2], "arrays that are not contiguous"
    assert native.bytes_at(at[:0], lengths[:0]) == [] == native.texts_at(at[:0], lengths[:0])
    empty = native.bytes_at(np.zeros(3, np.int64), np.array([0, 1, 5000]))
    held = sys.getrefcount(empty[2])
    assert list(map(len, empty)) == [0, 1, 5000] and held == 2, "in the list, and as an argument"
    with pytest.raises((MemoryError, OverflowError)):
        native.bytes_at(np.zeros(2, np.int64), np.array([1, (1 << 63) - 1]))
    with pytest.raises(ValueError, match="shorter"):
        native.bytes_at(at, lengths[:3])
    native._in_c.cache_clear()


def test_many_threads_at_once(made: Any) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: made.total(np.arange(1000), 0), range(200))) == {999000}


# --- the library ------------------------------------------------------------------------------------------------------


def run(code: str, **variables: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )
    return done.stdout, done.stderr.strip().rpartition("\n")[2]


LENGTHS = (
    "import sys, numpy as np\nfrom feedmill.kernels.text.lengths import byte_lengths\n"
    "print(byte_lengths(np.frombuffer('aé'.encode('utf-32-le'), '<u4'), np.array([0, 2])))"
)


def test_a_level_can_be_forced() -> None:
    for level in ("", interface.machine()):
        assert run(LENGTHS, FEEDMILL_CPU=level) == ("[3]\n", "")
    out, error = run(LENGTHS, FEEDMILL_CPU="x86_64_v9")
    assert not out and "no compiled kernels for the processor level 'x86_64_v9'. Set FEEDMILL_CPU to one of" in error


@pytest.mark.skipif(interface.machine() != "x86_64", reason="other machines have one level")
def test_the_level_is_that_of_the_processor() -> None:
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    wide = {"avx2", "bmi1", "bmi2", "fma", "movbe", "f16c", "abm"} <= set(flags)
    assert bool(native._loaded("x86_64").feedmill_has_v3()) == wide


def test_a_checkout_says_that_its_library_is_old_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.path.exists(interface.COMPILER):
        pytest.skip("this is no checkout")
    assert native._loaded(interface.machine())
    monkeypatch.setattr(native, "fingerprint", lambda: "other")
    with pytest.raises(ConfigError, match=r"the compiled kernels are older than their sources\. Run `make`"):
        native._loaded(interface.machine())
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match=r"there are no compiled kernels .*\. Run `make`"):
        native._loaded(interface.machine())
    monkeypatch.setattr(native, "COMPILER", tmp_path / "none")
    with pytest.raises(ConfigError, match=r"there are no compiled kernels .*\. Install feedmill again"):
        native._loaded(interface.machine())


def test_an_installed_package_does_not_look_for_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "fingerprint", lambda: "other")
    monkeypatch.setattr(native, "COMPILER", Path("/none"))
    assert native._loaded(interface.machine())


def test_the_fingerprint_is_that_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "FOLDER", tmp_path)
    monkeypatch.setattr(interface, "COMPILER", tmp_path / "none")
    found = set()
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b/a.py", "2"), ("b/c.txt", "2")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        found.add(interface.fingerprint.__wrapped__())
    assert len(found) == 3  # a text is no source


def test_the_sources_name_no_compiler() -> None:
    """No process can load numba, which the tests alone have."""
    compilers = {"numba", "llvmlite", "ziglang"}
    for path in Path(interface.FOLDER).parent.rglob("*.py"):
        text = path.read_text()
        if not any(name in text for name in compilers):
            continue
        names = {
            name
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([alias.name for alias in node.names] + [getattr(node, "module", None) or ""])
        }
        assert not {name.partition(".")[0] for name in names} & compilers, path


def test_importing_the_room_loads_no_library() -> None:
    code = (
        "import importlib, pkgutil, sys\nfrom feedmill import kernels\n"
        "for info in pkgutil.walk_packages(kernels.__path__, 'feedmill.kernels.'):\n"
        "    importlib.import_module(info.name)\n"
        "from feedmill.kernels import native\n"
        "print(native.library.cache_info().currsize, {'numba', 'llvmlite'} & set(sys.modules))"
    )
    assert run(code) == ("0 set()\n", "")


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        ("u8[:] -> f64", "returns i64 or nothing, not 'f64'"),
        ("u9[:]", "unknown type 'u9'"),
        ("u8[", r"invalid type 'u8\['"),
        ("u8", "a number is one of i64, u64, f64"),
        ("out i64", "a number is one of i64, u64, f64, without out"),
    ],
)
def test_declarations(declaration: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        interface.parse(declaration)
    (found,) = interface.parse("u8[:], out i64[:,:], f64 -> i64")
    assert [str(one) for one in found.arguments] == ["u8[:]", "i64[:,:]", "f64"] and found.returns
    assert (found.arguments[1].out, found.words) == (True, 6)
    assert len(interface.parse("u16|u32[:], token[:]", "i64")) == 11
