"""What a processor does in one instruction and numba does not offer: unaligned loads, the 128-bit product, the place
of the lowest bit.

Callable from compiled kernels only. The bytes are taken as little-endian, as on every machine that numba runs on.
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
        """``trailing(word)``: how many zeros are below the lowest bit that is set in a uint64, 64 where none is."""

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


load16: Any = Lazy(partial(_load, 16))
load32: Any = Lazy(partial(_load, 32))
load64: Any = Lazy(partial(_load, 64))
product: Any = Lazy(_product)
trailing: Any = Lazy(_trailing)
