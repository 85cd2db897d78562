"""Sets of word shingles, their MinHash signatures and band keys, by which near-duplicates are found.

A text is split into words. Every n consecutive words are hashed to a shingle of 64 bits, and the distinct shingles are
the text's set. The similarity of two texts is the Jaccard similarity of their sets: shared shingles divided by all
shingles. Words follow these rules:

* Classes of characters are those of the Unicode Character Database (``data/shingles.txt`` states the version;
  unassigned characters count as letters). White space and control characters separate words; format characters
  (soft hyphens, joiners, byte order marks) and variation selectors are ignored.
* Punctuation and symbols separate words too, or are parts of them (`punctuation=False`).
* Letters are converted to lower case one by one, or kept (`lower=False`).
* A character of a script that is written without spaces (Han, kana, Thai, Lao, Khmer, Burmese, Yi) is a word.

A text of fewer than n words has one shingle of all its words. A text without words has none.

MinHash (Broder 1997): with ``x`` the upper 32 bits of a shingle, value p of the signature is the minimum of
``(a[p] * x + b[p]) mod 2^32`` over the set, with `a` (odd) and `b` from SplitMix64. Two sets share a value with
a probability of about their Jaccard similarity. The key of a band is made of `rows` consecutive values (Indyk and
Motwani 1998).

This is plain Python, the oracle of `feedmill.kernels.hashing.shingles_compiled`.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SEPARATOR, LETTER, WORD, IGNORED = range(4)
SEED, STEP, POWER = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F
F1, F2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_PAGE = 256


class Characters(NamedTuple):
    """Class and replacement of each character c.

    ``pages[(where[c >> 8] << 8) + (c & 255)]`` is ``kind + 4 * (replacement - c)``.

    `where` is uint16[4352], `pages` int32[pages * 256].
    """

    where: npt.NDArray[np.uint16]
    pages: npt.NDArray[np.int32]

    def of(self, code: int) -> tuple[int, int]:
        """Return the kind of a character, and its replacement."""
        entry = int(self.pages[(int(self.where[code >> 8]) << 8) + (code & 255)])
        return entry & 3, code + (entry >> 2)


@cache
def characters(lower: bool = True, punctuation: bool = True) -> Characters:
    """Return the table for the given rules: `lower` converts letters to lower case, `punctuation` separates words."""
    flat = np.full(0x110000, LETTER, np.int32)
    kinds = {"White_Space": SEPARATOR, "Other_Separator": SEPARATOR, "Ignored": IGNORED, "Word": WORD}
    if punctuation:
        kinds["Punctuation"] = SEPARATOR
    for line in files("feedmill.kernels.hashing").joinpath("data/shingles.txt").read_text("ascii").splitlines():
        name, *ranges = line.split()
        if name in kinds:
            for piece in ranges:
                low, _, high = piece.partition("-")
                flat[int(low, 16) : int(high or low, 16) + 1] = kinds[name]
        elif name == "Lower" and lower:
            for piece in ranges:
                where, _, difference = piece.partition(":")
                low, _, rest = where.partition("-")
                high, _, step = rest.partition("/")
                flat[int(low, 16) : int(high, 16) + 1 : int(step)] += 4 * int(difference)
    pages: dict[bytes, int] = {}
    index = [pages.setdefault(page.tobytes(), len(pages)) for page in flat.reshape(-1, _PAGE)]
    return Characters(np.array(index, np.uint16), np.frombuffer(b"".join(pages), np.int32))


def words(text: str, table: Characters) -> list[str]:
    """Return the words of a text.

    >>> words("Don't stop\\u00adping: \\u6f22\\u5b57!", characters())
    ['don', 't', 'stopping', '漢', '字']
    """
    found, current = [], ""
    for character in text:
        kind, code = table.of(ord(character))
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


def mix(value: int) -> int:
    """Return the finalizer of SplitMix64."""
    value = (value ^ value >> 30) * F1 & _MASK
    value = (value ^ value >> 27) * F2 & _MASK
    return value ^ value >> 31


def splitmix(count: int, state: int = 0) -> list[int]:
    """Return the first numbers of SplitMix64 (Steele, Lea and Flood 2014)."""
    return [mix(state + (i + 1) * SEED & _MASK) for i in range(count)]


def permutations(count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return the parameters of the MinHash functions: `a` (odd) and `b`, uint32[count] each."""
    numbers = splitmix(count)
    return (
        np.array([n >> 32 | 1 for n in numbers], np.uint32),
        np.array([n & 0xFFFFFFFF for n in numbers], np.uint32),
    )


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
