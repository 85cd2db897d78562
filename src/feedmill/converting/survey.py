"""What kinds of values the parts of all samples have: what formats with one type for a column need to know before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from feedmill.converting.fields import Coded, Taken, is_text

Survey = dict[str, dict[str, int]]
"""Part -> kind -> samples. Kinds: text, bytes, jpeg, png, int, float, bool, json, big (an integer beyond 64 bits),
null, ``array:<dtype>:<axes>``; the name "" counts samples as "samples", those with a key of their own as "keyed"."""

COUNTS = ""


def survey(samples: Iterable[tuple[int, Taken]]) -> Survey:
    """Count the kinds of values of samples, each given with its number."""
    found: dict[str, Counter[str]] = {COUNTS: Counter(samples=0, keyed=0)}
    for number, taken in samples:
        found[COUNTS]["samples"] += 1
        found[COUNTS]["keyed"] += taken.key != str(number)
        for name, value in taken.values.items():
            found.setdefault(name, Counter())[kind_of(name, value, typed=taken.typed)] += 1
    return {name: dict(counts) for name, counts in found.items()}


def merge(surveys: Iterable[Survey]) -> Survey:
    """Several surveys as one; names in the order in which they first come."""
    out: dict[str, Counter[str]] = {}
    for found in surveys:
        for name, counts in found.items():
            out.setdefault(name, Counter()).update(counts)
    return {name: dict(counts) for name, counts in out.items()}


def kind_of(name: str, value: Any, *, typed: bool) -> str:
    """The kind of a value, see `Survey`."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        if isinstance(value, Coded):
            return {"jpg": "jpeg", "jpeg": "jpeg", "png": "png"}.get(value.suffix, "bytes")
        if not typed and is_text(name, value):
            return "text"
        suffix = name.rpartition(".")[2].lower()
        return {"jpg": "jpeg", "jpeg": "jpeg", "png": "png"}.get(suffix, "bytes") if not typed else "bytes"
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "big"
    if isinstance(value, float):
        return "float"
    if isinstance(value, np.ndarray):
        return f"array:{value.dtype.newbyteorder('<').str}:{value.ndim}"
    return "json"


def kinds(found: Survey, name: str) -> tuple[set[str], bool]:
    """The kinds of a part but for null, and whether some sample has none."""
    counts = found[name]
    missing = sum(n for kind, n in counts.items() if kind != "null") < found[COUNTS]["samples"]
    return set(counts) - {"null"}, missing


def names(found: Survey) -> list[str]:
    """All parts."""
    return [name for name in found if name != COUNTS]
