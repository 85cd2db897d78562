"""Byte-level loops, compiled when the package is built; each is in one file with the functions that call it.

`native` declares and calls them. Their plain forms, for tests, are in ``tests/oracles``.
"""
