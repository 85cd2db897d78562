"""Numba intrinsics for single machine operations: unaligned loads, 128-bit products, byte copies, trailing zeros.

They can be called from compiled kernels only. Bytes are read as little-endian, as on every machine that numba supports.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from feedmill.kernels.native import Lazy


def _load(bits: int) -> Any:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    kind = {16: types.uint16, 32: types.uint32, 64: types.uint64}[bits]

    def load(typingctx, array, index):  # type: ignore[no-untyped-def] # noqa: ARG001
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            view = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=args[0])
            at = builder.gep(view.data, [args[1]])
            word = builder.load(builder.bitcast(at, ir.IntType(bits).as_pointer()), align=1)
            return word if bits == 64 else builder.zext(word, ir.IntType(64))

        return types.uint64(array, index), codegen

    load.__doc__ = f"``load{bits}(bytes, i)``: the {bits} bits from byte `i` of a uint8 array, as uint64 ({kind})."
    return intrinsic(load)


def _trailing() -> Any:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    def trailing(typingctx, word):  # type: ignore[no-untyped-def] # noqa: ARG001
        """``trailing(word)``: number of zeros below the lowest set bit of a uint64; 64 if no bit is set."""

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def] # noqa: ARG001
            return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

        return types.uint64(types.uint64), codegen

    return intrinsic(trailing)


def _product() -> Any:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    def product(typingctx, a, b):  # type: ignore[no-untyped-def] # noqa: ARG001
        """``product(a, b)``: the low and the high half of the 128-bit product of two uint64, as a pair."""

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            wide = ir.IntType(128)
            full = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
            low = builder.trunc(full, ir.IntType(64))
            high = builder.trunc(builder.lshr(full, ir.Constant(wide, 64)), ir.IntType(64))
            return context.make_tuple(builder, signature.return_type, (low, high))

        return types.UniTuple(types.uint64, 2)(types.uint64, types.uint64), codegen

    return intrinsic(product)


def _copier() -> Any:
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    def copy(typingctx, out, at, data, low, size):  # type: ignore[no-untyped-def] # noqa: ARG001
        """``copy(out, at, data, low, size)``: copy `size` bytes between uint8 arrays that do not overlap."""

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            views = [cgutils.create_struct_proxy(signature.args[n])(context, builder, value=args[n]) for n in (0, 2)]
            places = [builder.gep(view.data, [args[n]]) for view, n in zip(views, (1, 3), strict=True)]
            cgutils.raw_memcpy(builder, *places, args[4], 1)
            return context.get_dummy_value()

        return types.none(out, types.int64, data, types.int64, types.int64), codegen

    return intrinsic(copy)


def _wide_copier() -> Any:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    def copy64(typingctx, out, at, data, low):  # type: ignore[no-untyped-def] # noqa: ARG001
        """``copy64(out, at, data, low)``: copy 64 bytes between uint8 arrays.

        Returns a uint64 whose bit `i` is set if byte `i` must be escaped in a JSON string: a quote, a backslash or an
        ASCII control character.
        """

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            views = [cgutils.create_struct_proxy(signature.args[n])(context, builder, value=args[n]) for n in (0, 2)]
            wide = ir.VectorType(ir.IntType(8), 64)
            there, here = (
                builder.bitcast(builder.gep(view.data, [args[n]]), wide.as_pointer())
                for view, n in zip(views, (1, 3), strict=True)
            )
            found = builder.load(here, align=1)
            builder.store(found, there, align=1)

            def every(byte: int) -> Any:
                return ir.Constant(wide, [byte] * 64)

            marks = builder.or_(
                builder.icmp_unsigned("<", found, every(0x20)),
                builder.or_(
                    builder.icmp_unsigned("==", found, every(0x22)), builder.icmp_unsigned("==", found, every(0x5C))
                ),
            )
            return builder.bitcast(marks, ir.IntType(64))

        return types.uint64(out, types.int64, data, types.int64), codegen

    return intrinsic(copy64)


load16: Any = Lazy(partial(_load, 16))
load32: Any = Lazy(partial(_load, 32))
load64: Any = Lazy(partial(_load, 64))
product: Any = Lazy(_product)
trailing: Any = Lazy(_trailing)
copy: Any = Lazy(_copier)
copy64: Any = Lazy(_wide_copier)
