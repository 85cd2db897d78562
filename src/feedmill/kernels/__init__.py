"""Byte-level loops compiled by numba, each in one file with the functions that call it.

Plain forms that run too, where compiled code is not worth loading, are beside them; others are in ``tests/oracles``.
"""
