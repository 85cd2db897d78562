"""What callers of kernels and their compiler (``tools/kernels``) agree on: types, names in the library, its sources.

The definition of a kernel declares its types: ``"u8[:], i64, out i64[:,:] -> i64"``. A type is a number (`NUMBERS`) or,
with brackets, an array of it. ``out`` marks an array that the kernel writes to.
``u16|u32[:]`` stands for either type, ``token[:]`` for `TOKENS`; a declaration with several of these has all their
combinations. A kernel returns an i64 or nothing.

This module needs nothing but Python, because builds import it.
"""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from itertools import product
from typing import NamedTuple

NUMBERS = {
    "b": "bool", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "f32": "float32", "f64": "float64",
}  # fmt: skip
"""Names of the types of numbers, and of their NumPy dtypes."""
_ARGUMENT = re.compile(r"(out )?([a-z0-9|]+)(\[:(?:,:)*\])?")
TOKENS = "u8|u16|u32|i32|i64"
"""Types of tokens; u64 can be viewed as i64. Others are rare, and read without kernels."""
_SCALARS = ("i64", "u64", "f64")
FOLDER = os.path.dirname(os.path.abspath(__file__))
COMPILER = os.path.normpath(f"{FOLDER}/../../../tools/kernels")
"""Where the compiler is in a checkout; an installed package has none."""


class Argument(NamedTuple):
    """Type of one argument.

    Attributes:
        number: key of `NUMBERS`.
        dimensions: of the array; 0 for a number.
        out: whether the kernel writes to the array.
    """

    number: str
    dimensions: int = 0
    out: bool = False

    def __str__(self) -> str:
        return self.number + (f"[{','.join(':' * self.dimensions)}]" if self.dimensions else "")


class Signature(NamedTuple):
    """Types of the arguments, and whether the kernel returns an i64."""

    arguments: tuple[Argument, ...]
    returns: bool

    @property
    def words(self) -> int:
        """Number of 64-bit words that the arguments take: one for a number, one for an address and each length."""
        return sum(1 + argument.dimensions for argument in self.arguments)


def parse(*declarations: str) -> list[Signature]:
    """Return all combinations of types.

    Raises:
        ValueError: a declaration is invalid.

    >>> [str(signature.arguments[0]) for signature in parse("u16|u32[:], f64 -> i64")]
    ['u16[:]', 'u32[:]']
    """
    found = []
    for declaration in declarations:
        given, arrow, result = declaration.partition("->")
        if arrow and result.strip() != "i64":
            raise ValueError(f"a kernel returns i64 or nothing, not {result.strip()!r}")
        choices = [_choices(word) for word in re.split(r",(?![:\]])", given) if word.strip()]
        found += [Signature(arguments, bool(arrow)) for arguments in product(*choices)]
    return found


def symbol(module: str, name: str, number: int) -> str:
    """Return the name in the library of a kernel for the signature of this number."""
    return f"{module.removeprefix('feedmill.kernels.').replace('.', '_')}_{name.lstrip('_')}{number}"


def machine() -> str:
    """Return the kind of this machine's processors; a library is named after it, or after a level of it."""
    found = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(found, found)


@cache
def fingerprint() -> str:
    """Return a hash of the sources of a checkout that decide what its library does."""
    from _blake2 import blake2b  # not that of `hashlib`, as in `feedmill.planning.permutation`

    found = blake2b(digest_size=16)
    for folder in (FOLDER, COMPILER):
        paths = (f"{top}/{name}" for top, _, names in os.walk(folder) for name in names if name.endswith((".py", ".c")))
        for path in sorted(paths):
            with open(path, "rb") as file:
                found.update(f"{os.path.relpath(path, folder)}\0".encode() + file.read() + b"\0")
    return found.hexdigest()


def _choices(word: str) -> list[Argument]:
    match = _ARGUMENT.fullmatch(word.strip())
    if match is None:
        raise ValueError(f"invalid type {word.strip()!r}: expected one like u8, i64[:], out f64[:,:] or u16|u32[:]")
    out, numbers, brackets = match.groups()
    dimensions = brackets.count(":") if brackets else 0
    numbers = TOKENS if numbers == "token" else numbers
    for number in numbers.split("|"):
        if number not in NUMBERS:
            raise ValueError(f"unknown type {number!r}: expected one of {', '.join(NUMBERS)}")
        if not dimensions and (out or number not in _SCALARS):
            raise ValueError(f"invalid type {word.strip()!r}: a number is one of {', '.join(_SCALARS)}, without out")
    return [Argument(number, dimensions, bool(out)) for number in numbers.split("|")]
