"""Memory that is used again: never by two arrays at once, and never more of it than is promised."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.jobs import buffers
from feedmill.loading.collate import collate


@pytest.fixture(scope="module", autouse=True)
def little_garbage() -> None:
    """What other tests have left is not searched again before each of these."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_waits() -> None:
    gc.collect()
    buffers._free.clear()


def address(array: np.ndarray) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def test_memory_is_used_again_once_the_last_view_is_gone() -> None:
    array = buffers.empty((64, 2049), np.int64)
    array[:] = 7
    at, row = address(array), array[3]
    del array
    other = buffers.empty((64, 2049), np.int64)
    assert address(other) != at and (row == 7).all()
    del row
    assert address(buffers.empty((64, 2049), np.int64)) == at


def test_a_smaller_array_takes_larger_memory_up_to_twice_its_size() -> None:
    array = buffers.empty((1000, 1000), np.uint8)
    at = address(array)
    del array
    small = buffers.empty((400, 1000), np.uint8)
    assert address(small) != at
    less = buffers.empty((700, 1000), np.uint8)
    assert address(less) == at and less.shape == (700, 1000)
    less[:], small[:] = 1, 2
    assert (less == 1).all() and (small == 2).all()
    del less
    assert address(buffers.empty((1000, 1000), np.uint8)) == at


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32", ">i4", "complex128", "bool"])
def test_arrays_are_as_any_other(dtype: str) -> None:
    array = buffers.empty((300, 700), dtype)
    array[:] = 1
    assert array.shape == (300, 700) and array.dtype == np.dtype(dtype) and address(array) % 64 == 0
    assert array.flags.c_contiguous and array.flags.writeable and (pickle.loads(pickle.dumps(array)) == 1).all()


@pytest.mark.parametrize("dtype", [object, [("a", "i4"), ("b", "f8")]])
def test_other_types_and_small_arrays_are_numpy_s(dtype: object) -> None:
    assert buffers.empty((100_000,), dtype).flags.owndata  # type: ignore[arg-type]
    assert buffers.empty((0, 5), np.int64).shape == (0, 5) and buffers.empty((3,), np.int64).flags.owndata


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_types_beyond_numpy_s_keep_theirs(name: str) -> None:
    kind = getattr(pytest.importorskip("ml_dtypes"), name)
    assert buffers.empty((1 << 17,), kind).dtype == kind
    rows = [np.full(1 << 17, number, kind) for number in range(3)]
    stacked = collate(rows)
    assert stacked.dtype == kind and stacked[:, 0].astype(float).tolist() == [0, 1, 2]


def test_torch_keeps_it_alive() -> None:
    torch = pytest.importorskip("torch")
    array = buffers.empty((64, 2049), np.int64)
    array[:] = 5
    tensor = torch.from_numpy(array)
    del array
    other = buffers.empty((64, 2049), np.int64)
    other[:] = 0
    assert (tensor == 5).all()


@given(st.lists(st.integers(1 << 14, 1 << 24), max_size=30))
def test_the_pool_has_an_end(sizes: list[int]) -> None:
    arrays = [buffers.empty((size,), np.uint8) for size in sizes]
    assert len({address(array) for array in arrays}) == len(arrays)
    del arrays
    assert buffers.waiting() <= buffers.KEPT


def test_from_many_threads() -> None:
    wrong = []

    def use(number: int) -> None:
        for turn in range(200):
            array = buffers.empty((64, 300 + turn % 3), np.int64)
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@given(st.integers(1, 1 << 40))
def test_sizes_are_rounded_up_by_an_eighth_at_most(size: int) -> None:
    assert size <= buffers._rounded(size) <= size + max(size // 8, 1)


def test_an_array_that_outlives_the_module_at_exit_says_nothing() -> None:
    program = """
import sys
import numpy
import feedmill.jobs.buffers as buffers
numpy.kept = buffers.empty((1000, 1000), "i8")
sys.modules_kept = [numpy, buffers]  # so that their names are cleared one after another, the pool's first
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
