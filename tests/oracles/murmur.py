"""MurmurHash3_x64_128 with seed 0 in plain Python, see `feedmill.kernels.hashing.murmur`."""

from __future__ import annotations

from collections.abc import Sequence

C1, C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
F1, F2 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_MASK = (1 << 64) - 1


def hash_bytes(data: bytes) -> tuple[int, int]:
    """Return the two 64-bit halves of the hash.

    >>> [hex(half) for half in hash_bytes(b"hello")]
    ['0xcbd8a7b341bd9b02', '0x5b1e906a48ae1d19']
    """
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        h1, h2 = block(h1, h2, _word(data[at : at + 8]), _word(data[at + 8 : at + 16]))
    tail = data[whole:]
    h2 ^= _rotl(_word(tail[8:]) * C2 & _MASK, 33) * C1 & _MASK
    h1 ^= _rotl(_word(tail[:8]) * C1 & _MASK, 31) * C2 & _MASK
    return _finish(h1, h2, len(data))


def hash_key(parts: Sequence[bytes]) -> tuple[int, int]:
    """Return the hash of a key: the hashes of its parts, folded together half by half.

    The result is never (0, 0), which marks an empty slot in tables. The folding is cheap, because its input is already
    random.
    """
    h1 = h2 = 0
    for part in parts:
        k1, k2 = hash_bytes(part)
        h1 = _rotl((h1 ^ k1) * C1 & _MASK, 29)
        h2 = _rotl((h2 ^ k2) * C2 & _MASK, 31)
    h1, h2 = _finish(h1, h2, len(parts))
    return (h1, h2) if h1 or h2 else (0, 1)


def block(h1: int, h2: int, k1: int, k2: int) -> tuple[int, int]:
    """Return the state after 16 more bytes, given as two little-endian integers of 64 bits."""
    h1 ^= _rotl(k1 * C1 & _MASK, 31) * C2 & _MASK
    h1 = ((_rotl(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
    h2 ^= _rotl(k2 * C2 & _MASK, 33) * C1 & _MASK
    h2 = ((_rotl(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    return h1, h2


def _finish(h1: int, h2: int, size: int) -> tuple[int, int]:
    h1, h2 = h1 ^ size, h2 ^ size
    h1 = (h1 + h2) & _MASK
    h2 = (h1 + h2) & _MASK
    h1, h2 = _mix(h1), _mix(h2)
    h1 = (h1 + h2) & _MASK
    return h1, (h1 + h2) & _MASK


def _mix(k: int) -> int:
    k = (k ^ k >> 33) * F1 & _MASK
    k = (k ^ k >> 33) * F2 & _MASK
    return k ^ k >> 33


def _word(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _rotl(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def first_seen(keys: Sequence[tuple[int, int]]) -> list[bool]:
    """Return whether each key occurred before: the test oracle of the compiled table."""
    seen: set[tuple[int, int]] = set()
    found = []
    for key in keys:
        found.append(key in seen)
        seen.add(key)
    return found
