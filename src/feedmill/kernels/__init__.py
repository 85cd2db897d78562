"""The few byte-level loops: numba, each beside its numpy/Python reference, which tests compare it with."""
