"""Kernels that start without numba."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import pytest

from feedmill.kernels import codecache, native
from feedmill.kernels.machine import load64
from feedmill.kernels.native import kernel, njit


@kernel
def _twice(x):
    return 2 * x


@kernel
def total(values, start):
    found = start
    for i in range(len(values)):
        found += _twice(values[i])
    return found


@kernel
def fill(table, value):
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            table[i, j] = value + i


@kernel
def first_word(data):
    return np.int64(load64(data, 1))


@numba.njit
def by_numba(values):
    return _twice(values[0]) + 1


@njit(inline="always")
def _squares(count):
    return np.arange(count) ** 2


@njit()
def squares_of_twice(number):
    return _squares(_twice(number))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(codecache, "folders", lambda: (tmp_path / "a", tmp_path / "b"))
    monkeypatch.setattr(native, "_waited", 0.0)
    for one in (total, fill, first_word):
        monkeypatch.setattr(one, "_calls", {})
    return tmp_path


def test_a_kernel_tells_that_another_thread_loads_it():
    assert not total.loading
    with ThreadPoolExecutor(1) as pool:
        with native._loading:
            running = pool.submit(total, np.arange(3), 1)
            until = time.monotonic() + 120
            while not total.loading and time.monotonic() < until:
                time.sleep(0.001)
            assert total.loading and not total.loaded
        assert running.result() == 7
    assert total.loaded and not total.loading


def test_arrays_of_all_kinds_and_numbers():
    for kind in (np.uint8, np.int32, np.int64, np.uint32):
        values = np.arange(10, dtype=kind)
        assert total(values, 1) == 91
        assert total(values[::2], np.int64(1)) == 41  # with strides
        values.flags.writeable = False
        assert total(values, True) == 91
    unaligned = np.frombuffer(bytes(3) + np.arange(4).tobytes(), np.uint8)[3:].view(np.int64)
    assert not unaligned.flags.aligned and total(unaligned, 0) == 12
    table = np.zeros((3, 4))
    assert fill(table.T, 0.5) is None
    assert table.tolist() == [[0.5, 1.5, 2.5, 3.5]] * 3
    assert first_word(np.arange(9, dtype=np.uint8)) == int.from_bytes(bytes(range(1, 9)), "little")
    assert by_numba(np.array([3])) == 7


def test_what_a_kernel_cannot_take_or_do():
    with pytest.raises(TypeError, match="arrays and numbers"):
        total([1, 2], 0)
    with pytest.raises(TypeError, match="byte order"):
        total(np.arange(3, dtype=">i8"), 0)
    for number in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(OverflowError, match="64 bits"):
            total(np.arange(3), number)
    assert total(np.zeros(1, np.int64), -(1 << 63)) == -(1 << 63)
    with pytest.raises(numba.core.errors.NumbaError, match="NRT required"):
        kernel(lambda n: np.zeros(n).sum() > 0)(3)
    with pytest.raises(TypeError, match="returns float64"):
        kernel(lambda x: x + 0.5)(3)
    with pytest.raises(TypeError, match="returns uint64"):  # whose upper half is no int64
        kernel(lambda x: np.uint64(x))(3)
    read_only = np.zeros((2, 2))
    read_only.flags.writeable = False
    with pytest.raises(numba.core.errors.NumbaError, match="Cannot modify readonly"):
        fill(read_only, 1.0)


def cached(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kernel"))


def test_the_cache_is_used_and_damage_is_mended(cache, monkeypatch):
    values = np.arange(5)
    assert total(values, 0) == 20
    (one,) = cached(cache)
    whole = one.read_bytes()
    made = []
    real = native._compile
    monkeypatch.setattr(native, "_compile", lambda *args: made.append(args) or real(*args))
    for damage in (whole, whole[:-5], b"", b"{}\n" + whole, whole[:-1] + bytes([whole[-1] ^ 1]), b"\xff\n"):
        one.write_bytes(damage)
        total._calls.clear()
        assert total(values, 0) == 20
        assert one.read_bytes() == whole
        assert len(made) == (damage != whole)
        made.clear()


def test_kernels_of_older_sources_go(cache, monkeypatch):
    assert total(np.arange(5), 0) == 20
    monkeypatch.setattr(native, "_sources", lambda: "other")
    total._calls.clear()
    assert total(np.arange(5), 0) == 20
    assert [path.stem.rpartition("-")[2] for path in cached(cache)] == ["other"]


def test_another_release_has_other_kernels(monkeypatch):
    here = native._sources.__wrapped__()
    assert native._sources.__wrapped__() == here
    monkeypatch.setattr(native, "__version__", "another")
    assert native._sources.__wrapped__() != here


def test_kernels_survive_the_layers_of_an_image(monkeypatch):
    """Times of files in a layer are whole seconds."""
    stat = os.stat
    here = native._sources.__wrapped__()

    def whole(path, **options):
        found = stat(path, **options)
        seconds = int(found.st_mtime)
        return SimpleNamespace(st_size=found.st_size, st_mtime=float(seconds), st_mtime_ns=seconds * 10**9)

    monkeypatch.setattr(native.os, "stat", whole)
    assert native._sources.__wrapped__() == here


def test_a_folder_that_cannot_be_written(cache):
    (cache / "a").write_text("a file")
    assert total(np.arange(5), 0) == 20
    assert [path.parent.name for path in cached(cache)] == ["b"]
    (cache / "b").rename(cache / "c")
    (cache / "b").write_text("a file")
    total._calls.clear()
    assert total(np.arange(5), 0) == 20


def test_what_others_may_write_is_neither_run_nor_used(cache, monkeypatch):
    assert total(np.arange(5), 0) == 20
    (one,) = cached(cache / "a")
    assert one.parent.stat().st_mode & 0o777 == 0o700 and not one.stat().st_mode & 0o022
    made = []
    real = native._compile
    monkeypatch.setattr(native, "_compile", lambda *args: made.append(args) or real(*args))
    for mode in (0o666, 0o664):
        one.chmod(mode)
        total._calls.clear()
        assert total(np.arange(5), 0) == 20
        assert len(made) == 1 and not one.stat().st_mode & 0o022  # made again in its place
        made.clear()
    one.parent.chmod(0o777)
    for count in (1, 0):
        total._calls.clear()
        assert total(np.arange(5), 0) == 20
        assert len(made) == count and len(cached(cache / "b")) == 1
        made.clear()


def test_many_threads_at_once():
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda n: total(np.arange(1000), 0), range(200))) == {999000}


def test_numba_is_not_imported_for_what_is_cached():
    code = (
        "import sys, numpy as np\nfrom feedmill.kernels.text.lengths import byte_lengths\n"
        "print(byte_lengths(np.frombuffer('aé'.encode('utf-32-le'), '<u4'), np.array([0, 2])), 'numba' in sys.modules)"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[3] False\n", done.stderr


def test_what_allocates_is_compiled_by_numba_once():
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(squares_of_twice, [3] * 20))
    assert all(array.tolist() == [0, 1, 4, 9, 16, 25] for array in found)
    assert len(squares_of_twice.made.signatures) == 1 and not _squares.made.signatures  # it is inlined


def test_importing_the_room_imports_no_numba():
    code = (
        "import importlib, pkgutil, sys\nfrom feedmill import kernels\n"
        "for info in pkgutil.walk_packages(kernels.__path__, 'feedmill.kernels.'):\n"
        "    importlib.import_module(info.name)\n"
        "print({'numba', 'llvmlite'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "set()\n", done.stderr


PROGRAM = """
import os, sys, time
from pathlib import Path

import numpy as np

from feedmill.kernels import codecache

from feedmill.kernels import native
from feedmill.kernels.text.lengths import byte_lengths

folder, log = map(Path, sys.argv[1:])
codecache.folders = lambda: (folder,)
real = native._compile

def compiled(*args):
    with log.open("a") as out:
        out.write(f"{os.getpid()}\\n")
    time.sleep(1)  # so that the others, which begin at the same time, would be here too
    return real(*args)

native._compile = compiled
print("ready", flush=True)
sys.stdin.readline()
print(byte_lengths(np.frombuffer("aé".encode("utf-32-le"), "<u4"), np.array([0, 2])))
"""


def test_processes_with_an_empty_cache_compile_once(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "cache"), str(log)]
    begun = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [process.stdout.readline() for process in begun] == ["ready\n"] * 4
    for process in begun:
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [process.communicate(timeout=100) for process in begun]
    assert ends == [("[3]\n", "")] * 4
    assert len(log.read_text().split()) == 1
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".kernel"]


@pytest.fixture
def held(cache):
    """The folder, locked by someone else."""
    assert codecache.writable(cache / "a")
    with closing(codecache.Turn()) as other:
        assert other.mine()
        yield cache / "a"


def test_a_process_that_compiles_for_ever_is_not_waited_for(held, monkeypatch):
    monkeypatch.setattr(native, "PATIENCE", 0.2)
    begin = time.monotonic()
    assert total(np.arange(5), 0) == 20
    assert time.monotonic() - begin > 0.2 and len(cached(held)) == 1
    assert native._waited >= 0.2  # for the next kernel it does not wait again


def test_what_is_waited_for_is_taken_as_soon_as_it_is_there(held, cache, monkeypatch):
    monkeypatch.setattr(native, "PATIENCE", 0)
    assert total(np.arange(5), 0) == 20
    (one,) = cached(held)
    data = one.read_bytes()
    one.unlink()
    total._calls.clear()
    monkeypatch.setattr(native, "PATIENCE", 60)
    monkeypatch.delattr(native, "_compile")
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(total, np.arange(5), 0)
        time.sleep(0.1)
        assert not found.done()
        codecache.write(held / "beside", data)
        (held / "beside").rename(one)
        assert found.result(30) == 20


def test_a_file_system_without_locks(cache, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert total(np.arange(5), 0) == 20
    assert len(cached(cache)) == 1
