"""Read and write lists of pairs of integers as Python pickles, without unpickling.

The reader accepts one list of 2-tuples of integers from 0 to 2^63 - 1, in the few opcodes that pickle protocols 2 to 5
use for it:

    PROTO FRAME* EMPTY_LIST memo? ( MARK pair* APPENDS | pair APPEND )* STOP        pair: int int TUPLE2 memo?
    int: BININT1 BININT2 BININT LONG1        memo: MEMOIZE BINPUT LONG_BINPUT        FRAME: between any two

The writer writes the same bytes as CPython 3.8 to 3.13 (protocol 4): groups of up to 1,000 pairs, and frames that end
before the first tuple or integer after 64 KiB of opcodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import kernel

Int64s = npt.NDArray[np.int64]

FRAME_BYTES = 1 << 16
GROUP = 1000
MOST = (1 << 63) - 1

PROTO, FRAME, EMPTY_LIST, MARK, STOP, APPEND, APPENDS, TUPLE2 = 0x80, 0x95, 0x5D, 0x28, 0x2E, 0x61, 0x65, 0x86
MEMOIZE, BINPUT, LONG_BINPUT = 0x94, 0x71, 0x72
BININT1, BININT2, BININT, LONG1 = 0x4B, 0x4D, 0x4A, 0x8A

# Faults. A listed opcode can still be invalid at its position.
FINE, FOREIGN_OPCODE, MISPLACED, BAD_NUMBER, BAD_PROTOCOL, BAD_FRAME, TRAILING, TRUNCATED = range(8)

# States: the expected next opcode.
AT_START, AT_LIST, IN_LIST, IN_GROUP, AT_SECOND, AT_TUPLE, AT_APPEND, AT_END = range(8)

MEMOS = (MEMOIZE, BINPUT, LONG_BINPUT)
INTS = (BININT1, BININT2, BININT, LONG1)
KNOWN = frozenset((PROTO, FRAME, EMPTY_LIST, MARK, STOP, APPEND, APPENDS, TUPLE2, *MEMOS, *INTS))
# Number of bytes of each opcode with its argument; LONG1 stores the number of further bytes.
SIZES = {PROTO: 2, FRAME: 9, BINPUT: 2, LONG_BINPUT: 5, BININT1: 2, BININT2: 3, BININT: 5, LONG1: 2}

# State of `_step` between blocks, int64[STATE].
PHASE, SINGLE, MEMO, HELD, FRAME_END, OFFSET, COUNT, CODE, OPCODE, STATE = range(10)


class Fault(NamedTuple):
    """Fault of a pickle: one of the codes above, its byte, and the opcode at that byte (or -1)."""

    code: int
    offset: int
    opcode: int


class PickleFault(ValueError):
    """Raised for a pickle that is not a list of pairs; ``fault`` has the reason."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def decode(blocks: Iterable[bytes]) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield the pairs of one pickle in batches.

    Args:
        blocks: the bytes of exactly one pickle, divided anywhere.

    Yields:
        The first and the second numbers of consecutive pairs, int64[n] each; about 100,000 at most.

    Raises:
        PickleFault: the pickle is not a list of pairs. Batches before the fault have been yielded.
    """
    state, rest = np.zeros(STATE, np.int64), b""
    for block in blocks:
        data = np.frombuffer(rest + block if rest else block, np.uint8)
        starts, lengths = (np.empty(len(data) // 5 + 1, np.int64) for _ in range(2))
        state[COUNT] = 0
        used = _step(data, state, starts, lengths)
        if state[CODE] != FINE:
            raise PickleFault(Fault(int(state[CODE]), int(state[OFFSET]), int(state[OPCODE])))
        count = int(state[COUNT])
        yield starts[:count].copy(), lengths[:count].copy()
        rest = data[used:].tobytes()
    if state[PHASE] != AT_END:
        raise PickleFault(Fault(TRUNCATED, int(state[OFFSET]), rest[0] if rest else -1))


def encode(starts: Int64s, lengths: Int64s) -> Iterator[bytes]:
    """Yield the pickle of ``list(zip(starts, lengths))`` in pieces of about 64 KiB; int64[n] each, not negative."""
    yield bytes((PROTO, 4))
    out, state = np.empty(FRAME_BYTES + 64, np.uint8), np.zeros(2, np.int64)
    while state[0] <= len(starts):
        frame = out[: _fill_frame(starts, lengths, state, out)].tobytes()
        if len(frame) >= 4:
            yield bytes((FRAME,)) + len(frame).to_bytes(8, "little")
        yield frame


def opcode_name(opcode: int) -> str:
    """Return the documented name of an opcode, or its number."""
    import pickletools

    found: Any = {ord(op.code): op.name for op in pickletools.opcodes}.get(opcode)
    return f"{found} ({opcode:#04x})" if found else f"{opcode:#04x}"


# --- compiled ---------------------------------------------------------------------------------------------------------

_SIZES = np.array([SIZES.get(opcode, 1) if opcode in KNOWN else 0 for opcode in range(256)], np.int64)


@kernel
def _read_number(data, at, size, signed):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(data[at + i]) << np.int64(8 * i)
    if signed and 0 < size < 8 and data[at + size - 1] >= 128:
        value -= np.int64(1) << np.int64(8 * size)
    return value


@kernel
def _following(op, phase):  # type: ignore[no-untyped-def]
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


@kernel("u8[:], out i64[:], out i64[:], out i64[:] -> i64")
def _step(data, state, starts, lengths):  # type: ignore[no-untyped-def]
    """Decode one block. Return the bytes used; the rest is the beginning of an opcode."""
    phase, single, memo, held = state[PHASE], state[SINGLE], state[MEMO], state[HELD]
    base, count, code, at, op = state[OFFSET], state[COUNT], FINE, 0, 0
    frame_end = state[FRAME_END] - base
    while at < len(data):
        op = data[at]
        size = _SIZES[op]
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
            length = _read_number(data, at + 1, 8, False)
            if length < 0 or length > MOST - (base + at + size):
                code = BAD_FRAME
                break
            frame_end = at + size + length
        elif op in (MEMOIZE, BINPUT, LONG_BINPUT) and memo:
            memo = 0
        elif op in (BININT1, BININT2, BININT, LONG1) and phase in (IN_GROUP, AT_SECOND, IN_LIST):
            skip = 2 if op == LONG1 else 1
            value = _read_number(data, at + skip, size - skip, op in (BININT, LONG1))
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
            following = _following(op, phase)
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


@kernel("i64[:], i64[:], out i64[:], out u8[:] -> i64")
def _fill_frame(starts, lengths, state, out):  # type: ignore[no-untyped-def]
    """Write the next frame to `out`, and return its length.

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
