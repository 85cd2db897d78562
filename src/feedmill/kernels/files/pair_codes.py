"""Opcodes, faults and states of `feedmill.kernels.files.pairs`."""

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
