"""Addresses of arrays, against the property that numpy documents."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from feedmill.jobs.buffers import empty
from feedmill.kernels.native import address_field, address_of

BASE = np.arange(600, dtype=np.int32).reshape(20, 30)
ARRAYS = {
    "plain": BASE,
    "slice": BASE[3:, 4::2],
    "reversed": BASE[::-1],
    "transposed": BASE.T,
    "none": np.zeros((0, 3)),
    "scalar": np.array(7),
    "read only": np.frombuffer(b"abcdef", np.uint8)[1:],
    "mapped": np.frombuffer(mmap.mmap(-1, 4096), np.uint16),
    "pooled": empty((300, 300), np.int64)[2],
    "structured": np.zeros(4, [("a", "i4"), ("b", "f8")])["b"],
    "subclass": BASE.view(np.recarray),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_the_address_is_that_of_the_interface(name: str) -> None:
    array = ARRAYS[name]
    assert address_of(array) == array.__array_interface__["data"][0]


def test_cpython_takes_the_field() -> None:
    assert address_of is address_field
