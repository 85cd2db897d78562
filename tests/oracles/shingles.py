"""The words, shingles and signatures of `feedmill.kernels.hashing.shingles` in plain Python."""

from __future__ import annotations

from feedmill.kernels.hashing.shingles import (
    IGNORED,
    LETTER,
    POWER,
    SEED,
    STEP,
    WORD,
    Characters,
    mix,
    permutations,
)

_MASK = (1 << 64) - 1


def of(table: Characters, code: int) -> tuple[int, int]:
    """Return the kind of a character, and its replacement."""
    entry = int(table.pages[(int(table.where[code >> 8]) << 8) + (code & 255)])
    return entry & 3, code + (entry >> 2)


def words(text: str, table: Characters) -> list[str]:
    """Return the words of a text.

    >>> from feedmill.kernels.hashing.shingles import characters
    >>> words("Don't stop\\u00adping: \\u6f22\\u5b57!", characters())
    ['don', 't', 'stopping', '漢', '字']
    """
    found, current = [], ""
    for character in text:
        kind, code = of(table, ord(character))
        if kind == IGNORED:
            continue
        if kind != LETTER and current:
            found.append(current)
            current = ""
        if kind == LETTER:
            current += chr(code)
        elif kind == WORD:
            found.append(chr(code))
    return [*found, current] if current else found


def shingles(text: str, width: int, table: Characters) -> list[int]:
    """Return the distinct shingles of a text, in the order in which they first occur; none is 0."""
    hashes = []
    for word in words(text, table):
        value = SEED
        for character in word:
            value = (value ^ ord(character)) * STEP & _MASK
        hashes.append(mix(value))
    width = min(width, len(hashes))
    found: dict[int, None] = {}
    for start in range(len(hashes) - width + 1 if hashes else 0):
        value = 0
        for one in hashes[start : start + width]:
            value = (value * POWER + one) & _MASK
        found.setdefault(mix(value) or 1)
    return list(found)


def digest(values: list[int]) -> int:
    """Return a number that equal sets share."""
    return mix((sum(mix(value ^ SEED) for value in values) + len(values) * STEP) & _MASK)


def band_keys(values: list[int], bands: int, rows: int) -> list[int]:
    """Return the keys of a set's bands; zeros for an empty set."""
    if not values:
        return [0] * bands
    a, b = (part.tolist() for part in permutations(bands * rows))
    keys = []
    for band in range(bands):
        key = band
        for p in range(band * rows, (band + 1) * rows):
            key = mix((key ^ min((a[p] * (value >> 32) + b[p]) & 0xFFFFFFFF for value in values)) + SEED & _MASK)
        keys.append(key)
    return keys


def jaccard(one: list[int], other: list[int]) -> float:
    """Return the Jaccard similarity of two sets; 0 if both are empty."""
    shared = len(set(one) & set(other))
    return shared / (len(one) + len(other) - shared) if one or other else 0.0
