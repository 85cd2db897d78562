"""Planes of numbers are what NumPy's division gives, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from feedmill.kernels.pixels import unit_planes


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 16, 16), (2, 7, 13), (5, 96, 64)])
def test_planes(shape: tuple[int, int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    pixels.reshape(-1)[:256] = np.arange(256)[: pixels.size]
    out = np.full((shape[0], 3, *shape[1:]), np.nan, np.float32)
    unit_planes(pixels.reshape(shape[0], -1), out.reshape(shape[0], -1))
    np.testing.assert_array_equal(out, pixels.transpose(0, 3, 1, 2) / np.float32(255))
