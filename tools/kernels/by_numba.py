"""Compile kernels with numba, from the same sources: the oracle of tests, and a measure of speed, for one release."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from feedmill.kernels.native import Kernel

_memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))
_memcmp = types.ExternalFunction("memcmp", types.int32(types.int64, types.int64, types.int64))
_pread = types.ExternalFunction("pread", types.int64(types.int32, types.int64, types.int64, types.int64))


@intrinsic
def _trailing(_, word):  # type: ignore[no-untyped-def] # noqa: ARG001
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def] # noqa: ARG001
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def _product(_, a, b):  # type: ignore[no-untyped-def] # noqa: ARG001
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        wide = ir.IntType(128)
        full = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.lshr(full, ir.Constant(wide, 64))
        halves = (builder.trunc(half, ir.IntType(64)) for half in (full, high))
        return context.make_tuple(builder, signature.return_type, tuple(halves))

    return types.UniTuple(types.uint64, 2)(types.uint64, types.uint64), generate


def _load(size: int) -> Any:
    @numba.njit
    def load(data, at):  # type: ignore[no-untyped-def]
        word = np.uint64(0)
        for i in range(size):
            word |= np.uint64(data[at + i]) << np.uint64(8 * i)
        return word

    return load


@numba.njit
def _copy(out, at, data, low, size):  # type: ignore[no-untyped-def]
    for i in range(size):
        out[at + i] = data[low + i]


@numba.njit
def _copy64(out, at, data, low):  # type: ignore[no-untyped-def]
    word = np.uint64(0)
    for i in range(64):
        byte = data[low + i]
        out[at + i] = byte
        word |= np.uint64((byte < 0x20) | (byte == 0x22) | (byte == 0x5C)) << np.uint64(i)
    return word


@numba.njit
def _read(file, to, size, at):  # type: ignore[no-untyped-def]
    return _pread(np.int32(file), to, size, at)


@numba.njit
def _prefetch(array, at):  # type: ignore[no-untyped-def] # noqa: ARG001
    return None


_INTRINSICS = {
    "load16": _load(2), "load32": _load(4), "load64": _load(8), "trailing": _trailing, "product": _product,
    "copy": _copy, "copy64": _copy64, "memcpy": _memcpy, "memcmp": _memcmp, "pread": _read, "prefetch": _prefetch,
}  # fmt: skip


@cache
def by_numba(kernel: Kernel) -> Callable[..., Any]:
    """Return a kernel as numba compiles it, for any types."""
    function = kernel.function
    names = dict(sys.modules[kernel.__module__].__dict__) if kernel.__module__ in sys.modules else function.__globals__
    given: dict[str, Any] = {}
    for name in function.__code__.co_names:
        found = names.get(name)
        if isinstance(found, Kernel):
            given[name] = by_numba(found)
        elif getattr(found, "__module__", "") == "feedmill.kernels.machine":
            given[name] = _INTRINSICS[found.__name__]
    copy = FunctionType(function.__code__, {**names, **given}, function.__name__)
    copies = kernel.__module__.endswith(".text_order")  # numba copies slices through memory of its own
    return numba.njit(nogil=True, _nrt=copies)(copy)  # type: ignore[no-any-return]
