"""Single machine operations for kernels, in C: unaligned loads, 128-bit products, copies, trailing zeros, prefetches.

They can be called from kernels only. Bytes are read as little-endian, as on every machine that Feedmill supports. An
address is an i64; nothing checks it.
"""

from __future__ import annotations

from feedmill.kernels.native import intrinsic


@intrinsic("u8[:], i64 -> u64", "uint16_t word; __builtin_memcpy(&word, data.p + at, 2); return word;")
def load16(data, at):  # type: ignore[no-untyped-def]
    """Return the 16 bits from byte `at` on, as uint64."""


@intrinsic("u8[:], i64 -> u64", "uint32_t word; __builtin_memcpy(&word, data.p + at, 4); return word;")
def load32(data, at):  # type: ignore[no-untyped-def]
    """Return the 32 bits from byte `at` on, as uint64."""


@intrinsic("u8[:], i64 -> u64", "uint64_t word; __builtin_memcpy(&word, data.p + at, 8); return word;")
def load64(data, at):  # type: ignore[no-untyped-def]
    """Return the 64 bits from byte `at` on, as uint64."""


@intrinsic("u64 -> u64", "return word ? (uint64_t)__builtin_ctzll(word) : 64;")
def trailing(word):  # type: ignore[no-untyped-def]
    """Return the number of zeros below the lowest set bit; 64 if no bit is set."""


@intrinsic(
    "u64, u64 -> u64, u64",
    "unsigned __int128 full = (unsigned __int128)a * b;\n"
    "    return (tuple_u64_u64){ (uint64_t)full, (uint64_t)(full >> 64) };",
)
def product(a, b):  # type: ignore[no-untyped-def]
    """Return the low and the high half of the 128-bit product, as a pair."""


@intrinsic("out u8[:], i64, u8[:], i64, i64", "__builtin_memcpy(out.p + at, data.p + low, size);")
def copy(out, at, data, low, size):  # type: ignore[no-untyped-def]
    """Copy `size` bytes between arrays that do not overlap."""


@intrinsic(
    "out u8[:], i64, u8[:], i64 -> u64",
    """#if defined(__clang__)
    typedef uint8_t wide __attribute__((vector_size(64), aligned(1)));
    typedef bool marks __attribute__((ext_vector_type(64)));
    wide bytes = *(const wide *)(data.p + low);
    *(wide *)(out.p + at) = bytes;
    marks found = __builtin_convertvector((bytes < 0x20) | (bytes == 0x22) | (bytes == 0x5C), marks);
    uint64_t word;
    __builtin_memcpy(&word, &found, 8);
    return word;
#else
    uint64_t word = 0;
    for (int i = 0; i < 64; i++) {
        uint8_t byte = data.p[low + i];
        out.p[at + i] = byte;
        word |= (uint64_t)(byte < 0x20 || byte == 0x22 || byte == 0x5C) << i;
    }
    return word;
#endif""",
)
def copy64(out, at, data, low):  # type: ignore[no-untyped-def]
    """Copy 64 bytes between arrays.

    Returns a uint64 whose bit `i` is set if byte `i` must be escaped in a JSON string: a quote, a backslash or an ASCII
    control character.
    """


@intrinsic("i64, i64, i64", "__builtin_memcpy((void *)to, (const void *)origin, size);")
def memcpy(to, origin, size):  # type: ignore[no-untyped-def]
    """Copy `size` bytes between addresses."""


@intrinsic("i64, i64, i64 -> i64", "return __builtin_memcmp((const void *)a, (const void *)b, size);")
def memcmp(a, b, size):  # type: ignore[no-untyped-def]
    """Compare the bytes at two addresses: the result is below, equal to or above 0."""


@intrinsic(
    "i64, i64, i64, i64 -> i64",
    "extern intptr_t pread(int, void *, uintptr_t, int64_t);\n    return pread((int)file, (void *)to, size, at);",
)
def pread(file, to, size, at):  # type: ignore[no-untyped-def]
    """Read `size` bytes at `at` of an open file to an address. Return how many were read; below 0 if none could be."""


@intrinsic("any[:], i64", "__builtin_prefetch(array.p + at, 0, 3);")
def prefetch(array, at):  # type: ignore[no-untyped-def]
    """Fetch the line with an element of an array into the processor's caches; it may be outside of the array."""
