"""Byte-level loops compiled by numba, each next to the NumPy or Python reference that tests compare it with."""
