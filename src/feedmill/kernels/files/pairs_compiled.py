"""The compiled loops of `feedmill.kernels.files.pairs`."""

from __future__ import annotations

import numpy as np

from feedmill.kernels.files import pair_codes as pairs
from feedmill.kernels.native import kernel

# Copies, because numba reads globals of its own module only as constants.
FRAME_BYTES, GROUP, MOST = pairs.FRAME_BYTES, pairs.GROUP, pairs.MOST
PROTO, FRAME, EMPTY_LIST, MARK, STOP = pairs.PROTO, pairs.FRAME, pairs.EMPTY_LIST, pairs.MARK, pairs.STOP
APPEND, APPENDS, TUPLE2 = pairs.APPEND, pairs.APPENDS, pairs.TUPLE2
MEMOIZE, BINPUT, LONG_BINPUT = pairs.MEMOIZE, pairs.BINPUT, pairs.LONG_BINPUT
BININT1, BININT2, BININT, LONG1 = pairs.BININT1, pairs.BININT2, pairs.BININT, pairs.LONG1
FINE, FOREIGN_OPCODE, MISPLACED, BAD_NUMBER = pairs.FINE, pairs.FOREIGN_OPCODE, pairs.MISPLACED, pairs.BAD_NUMBER
BAD_PROTOCOL, BAD_FRAME, TRAILING = pairs.BAD_PROTOCOL, pairs.BAD_FRAME, pairs.TRAILING
AT_START, AT_LIST, IN_LIST, IN_GROUP = pairs.AT_START, pairs.AT_LIST, pairs.IN_LIST, pairs.IN_GROUP
AT_SECOND, AT_TUPLE, AT_APPEND, AT_END = pairs.AT_SECOND, pairs.AT_TUPLE, pairs.AT_APPEND, pairs.AT_END

# State of `step` between blocks, int64[STATE].
PHASE, SINGLE, MEMO, HELD, FRAME_END, OFFSET, COUNT, CODE, OPCODE, STATE = range(10)

_sizes = np.zeros(256, np.int64)  # 0: an unsupported opcode
for _opcode in pairs.KNOWN:
    _sizes[_opcode] = pairs.SIZES.get(_opcode, 1)


@kernel
def _number(data, at, size, signed):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(data[at + i]) << np.int64(8 * i)
    if signed and 0 < size < 8 and data[at + size - 1] >= 128:
        value -= np.int64(1) << np.int64(8 * size)
    return value


@kernel
def _structure(op, phase):  # type: ignore[no-untyped-def]
    """Return the phase after a structural opcode; -1 if the opcode is invalid at its position."""
    if op == MARK and phase == IN_LIST:
        return IN_GROUP
    if (op == APPENDS and phase == IN_GROUP) or (op == APPEND and phase == AT_APPEND):
        return IN_LIST
    if op == EMPTY_LIST and phase == AT_LIST:
        return IN_LIST
    if op == STOP and phase == IN_LIST:
        return AT_END
    return -1


@kernel
def step(data, state, starts, lengths):  # type: ignore[no-untyped-def]
    """Decode one block like `pairs.decode_plain`. Return the bytes used; the rest is the beginning of an opcode."""
    phase, single, memo, held = state[PHASE], state[SINGLE], state[MEMO], state[HELD]
    base, count, code, at, op = state[OFFSET], state[COUNT], FINE, 0, 0
    frame_end = state[FRAME_END] - base
    sizes = _sizes
    while at < len(data):
        op = data[at]
        size = sizes[op]
        if phase == AT_END:
            code = TRAILING
            break
        if size == 0:
            code = FOREIGN_OPCODE
            break
        if op == LONG1 and at + 1 < len(data):
            size += data[at + 1]
            if size > 10:
                code = BAD_NUMBER
                break
        if at + size > len(data):
            break
        if (at < frame_end and frame_end < at + size) or (op == FRAME and at < frame_end):
            code = BAD_FRAME
            break
        if op == FRAME and phase != AT_START:
            length = _number(data, at + 1, 8, False)
            if length < 0 or length > MOST - (base + at + size):
                code = BAD_FRAME
                break
            frame_end = at + size + length
        elif op in (MEMOIZE, BINPUT, LONG_BINPUT) and memo:
            memo = 0
        elif op in (BININT1, BININT2, BININT, LONG1) and phase in (IN_GROUP, AT_SECOND, IN_LIST):
            skip = 2 if op == LONG1 else 1
            value = _number(data, at + skip, size - skip, op in (BININT, LONG1))
            if value < 0:
                code = BAD_NUMBER
                break
            if phase == AT_SECOND:
                starts[count] = held
                lengths[count] = value
                count += 1
                phase = AT_TUPLE
            else:
                single = 1 if phase == IN_LIST else 0
                held = value
                phase = AT_SECOND
            memo = 0
        elif op == TUPLE2 and phase == AT_TUPLE:
            phase = AT_APPEND if single else IN_GROUP
            memo = 1
        elif op == PROTO and phase == AT_START:
            if data[at + 1] < 2 or data[at + 1] > 5:
                code = BAD_PROTOCOL
                break
            phase = AT_LIST
        else:
            following = _structure(op, phase)
            if following < 0:
                code = MISPLACED
                break
            phase = following
            memo = 1 if op == EMPTY_LIST else 0
        if op == STOP and at + 1 < frame_end:
            code = BAD_FRAME
            break
        at += size
    state[PHASE], state[SINGLE], state[MEMO], state[HELD], state[FRAME_END] = (
        phase,
        single,
        memo,
        held,
        frame_end + base,
    )
    state[OFFSET], state[COUNT], state[CODE], state[OPCODE] = base + at, count, code, op
    return at


@kernel
def _put(out, at, number):  # type: ignore[no-untyped-def]
    if number < 1 << 8:
        out[at] = BININT1
        size = 1
    elif number < 1 << 16:
        out[at] = BININT2
        size = 2
    elif number < 1 << 31:
        out[at] = BININT
        size = 4
    else:
        out[at] = LONG1
        size = 5
        while size < 8 and number >> (8 * size - 1):
            size += 1
        at += 1
        out[at] = size
    for i in range(size):
        out[at + 1 + i] = (number >> (8 * i)) & 255
    return at + 1 + size


@kernel
def fill_frame(starts, lengths, state, out):  # type: ignore[no-untyped-def]
    """Write the next frame to `out` like `pairs._frames_plain`, and return its length.

    Args:
        state: int64[2], the pair to continue with (one past the last at the end), and which of its numbers.
    """
    total = len(starts)
    first, half = state[0], state[1]
    at = 0
    if first == 0 and half == 0:
        out[0], out[1] = EMPTY_LIST, MEMOIZE
        at = 2
    resumed = half or first
    for i in range(first, total):
        if i % GROUP == 0 and total > 1 and not (resumed and i == first):
            out[at] = MARK
            at += 1
        for number in range(half, 2):
            if at >= FRAME_BYTES:
                state[0], state[1] = i, number
                return at
            at = _put(out, at, starts[i] if number == 0 else lengths[i])
        half = 0
        out[at], out[at + 1] = TUPLE2, MEMOIZE
        at += 2
        if total == 1:
            out[at] = APPEND
            at += 1
        elif i % GROUP == GROUP - 1 or i == total - 1:
            out[at] = APPENDS
            at += 1
    out[at] = STOP
    state[0] = total + 1
    return at + 1
