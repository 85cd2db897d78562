"""Pickled lists of pairs in plain Python, see `feedmill.kernels.files.pairs`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from feedmill.kernels.files.pairs import (
    APPEND,
    APPENDS,
    AT_APPEND,
    AT_END,
    AT_LIST,
    AT_SECOND,
    AT_START,
    AT_TUPLE,
    BAD_FRAME,
    BAD_NUMBER,
    BAD_PROTOCOL,
    BININT,
    BININT1,
    BININT2,
    EMPTY_LIST,
    FOREIGN_OPCODE,
    FRAME,
    FRAME_BYTES,
    GROUP,
    IN_GROUP,
    IN_LIST,
    INTS,
    KNOWN,
    LONG1,
    MARK,
    MEMOIZE,
    MEMOS,
    MISPLACED,
    MOST,
    PROTO,
    SIZES,
    STOP,
    TRAILING,
    TRUNCATED,
    TUPLE2,
    Fault,
    Int64s,
    PickleFault,
)


def decode(data: bytes) -> tuple[Int64s, Int64s]:
    """Return the first and the second numbers of the pairs. Raises `PickleFault`."""
    starts: list[int] = []
    lengths: list[int] = []
    phase, single, memo, held, frame_end, at = AT_START, False, False, 0, 0, 0
    while at < len(data):
        op = data[at]
        size = SIZES.get(op, 1)
        if phase == AT_END:
            raise PickleFault(Fault(TRAILING, at, op))
        if op not in KNOWN:
            raise PickleFault(Fault(FOREIGN_OPCODE, at, op))
        if op == LONG1 and at + 1 < len(data):
            size += data[at + 1]
            if size > 10:
                raise PickleFault(Fault(BAD_NUMBER, at, op))
        if at + size > len(data):
            raise PickleFault(Fault(TRUNCATED, at, op))
        if (at < frame_end < at + size) or (op == FRAME and at < frame_end):
            raise PickleFault(Fault(BAD_FRAME, at, op))
        argument = data[at + 1 : at + size]
        if op == FRAME and phase != AT_START:
            frame_end = at + size + int.from_bytes(argument, "little")
            if frame_end > MOST:
                raise PickleFault(Fault(BAD_FRAME, at, op))
        elif op in MEMOS and memo:
            memo = False
        elif op in INTS and phase in (IN_LIST, IN_GROUP, AT_SECOND):
            value = _number(op, argument)
            if value < 0:
                raise PickleFault(Fault(BAD_NUMBER, at, op))
            if phase == AT_SECOND:
                starts.append(held)
                lengths.append(value)
                phase = AT_TUPLE
            else:
                phase, single, held = AT_SECOND, phase == IN_LIST, value
            memo = False
        elif op == TUPLE2 and phase == AT_TUPLE:
            phase, memo = AT_APPEND if single else IN_GROUP, True
        else:
            phase, memo = _structure(op, phase, argument, at)
        if op == STOP and at + 1 < frame_end:
            raise PickleFault(Fault(BAD_FRAME, at, op))
        at += size
    if phase != AT_END:
        raise PickleFault(Fault(TRUNCATED, at, -1))
    return np.asarray(starts, np.int64), np.asarray(lengths, np.int64)


_STRUCTURE = {
    (EMPTY_LIST, AT_LIST): IN_LIST,
    (MARK, IN_LIST): IN_GROUP,
    (APPENDS, IN_GROUP): IN_LIST,
    (APPEND, AT_APPEND): IN_LIST,
    (STOP, IN_LIST): AT_END,
}


def _structure(op: int, phase: int, argument: bytes, at: int) -> tuple[int, bool]:
    """Return the next phase, and whether a memo may follow."""
    if op == PROTO and phase == AT_START:
        if not 2 <= argument[0] <= 5:
            raise PickleFault(Fault(BAD_PROTOCOL, at, op))
        return AT_LIST, False
    if (op, phase) not in _STRUCTURE:
        raise PickleFault(Fault(MISPLACED, at, op))
    return _STRUCTURE[op, phase], op == EMPTY_LIST


def _number(op: int, argument: bytes) -> int:
    if op == LONG1:
        return int.from_bytes(argument[1:], "little", signed=True)
    return int.from_bytes(argument, "little", signed=op == BININT)


def encode(starts: Int64s, lengths: Int64s) -> bytes:
    """Return the pickle of ``list(zip(starts, lengths))``."""
    frames = list(_frames(starts.tolist(), lengths.tolist()))
    heads = (bytes((FRAME,)) + len(frame).to_bytes(8, "little") if len(frame) >= 4 else b"" for frame in frames)
    return bytes((PROTO, 4)) + b"".join(head + frame for head, frame in zip(heads, frames, strict=True))


def _frames(starts: list[int], lengths: list[int]) -> Iterator[bytes]:
    frame = bytearray((EMPTY_LIST, MEMOIZE))
    total = len(starts)
    for i in range(total):
        if i % GROUP == 0 and total > 1:
            frame.append(MARK)
        for number in (starts[i], lengths[i]):
            if len(frame) >= FRAME_BYTES:
                yield bytes(frame)
                frame.clear()
            frame += _pickled_int(number)
        frame += bytes((TUPLE2, MEMOIZE))
        if total == 1:
            frame.append(APPEND)
        elif i % GROUP == GROUP - 1 or i == total - 1:
            frame.append(APPENDS)
    frame.append(STOP)
    yield bytes(frame)


def _pickled_int(number: int) -> bytes:
    if number < 1 << 8:
        return bytes((BININT1, number))
    if number < 1 << 16:
        return bytes((BININT2,)) + number.to_bytes(2, "little")
    if number < 1 << 31:
        return bytes((BININT,)) + number.to_bytes(4, "little")
    size = number.bit_length() // 8 + 1
    return bytes((LONG1, size)) + number.to_bytes(size, "little")
