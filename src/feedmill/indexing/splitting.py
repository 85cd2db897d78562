"""Divide shards into train, val and test."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import accumulate, pairwise

from feedmill.errors import PATTERN_ERRORS, ConfigError
from feedmill.formats.hub_splits import CARDS, splits_among
from feedmill.formats.tar.names import expand
from feedmill.formats.unread_files import listed
from feedmill.storage import Store

NAMES = ("train", "val", "test")


def parse_ratio(text: str) -> list[Fraction]:
    """Parse ``"8,1,1"`` or ``"0.5, 0.2, 0.3"`` as exact fractions for train, val, test.

    Raises:
        ConfigError: not one to three finite numbers, a number is negative, or all are zero.
    """
    try:
        # Parse as float first: Fraction also accepts 1e400, or 1e20000000, which takes minutes.
        ratio = [Fraction(word if "/" in word else repr(float(word))) for word in text.split(",")]
    except (ValueError, ZeroDivisionError):
        ratio = []
    if not 1 <= len(ratio) <= 3 or min(ratio) < 0 or not sum(ratio):
        raise ConfigError(
            f"invalid split ratio {text!r}",
            kind="bad-option",
            fix="Give one to three finite numbers for train, val and test, none negative and not all 0, e.g. 8,1,1.",
        )
    return ratio


def ratio_of(given: Sequence[float | Fraction] | str) -> list[Fraction]:
    """Return a ratio given as text or numbers as exact fractions, see `parse_ratio`."""
    return parse_ratio(given if isinstance(given, str) else ",".join(map(str, given)))


def by_ratio(shards: Sequence[str], ratio: Sequence[Fraction], *, cumulative: bool = False) -> dict[str, list[str]]:
    """Divide the shard list into consecutive runs by a ratio; every shard is in exactly one.

    Args:
        cumulative: cut at the floor of the running sum, as Energon does, but with exact sums (Energon's float sums
            lose shards). Otherwise sizes are nearest to the ratio, by largest remainder.
    """
    cuts = list(accumulate(_sizes(len(shards), ratio, cumulative=cumulative)))
    begins = [0, *cuts[:-1]]
    out: dict[str, list[str]] = {name: [] for name in NAMES} | {
        name: list(shards[a:b]) for name, a, b in zip(NAMES, begins, cuts, strict=False)
    }
    return {name: out[name] for name in NAMES}


def _sizes(whole: int, ratio: Sequence[Fraction], *, cumulative: bool) -> list[int]:
    """Return the size of each split of a ratio, see `by_ratio`."""
    if not cumulative:
        return list(sizes_by_ratio(whole, ratio).values())[: len(ratio)]
    cuts = [int(whole * part // sum(ratio)) for part in accumulate(ratio)]
    return [cuts[0], *(b - a for a, b in pairwise(cuts))]


def sizes_by_ratio(whole: int, ratio: Sequence[Fraction]) -> dict[str, int]:
    """Return sizes of train, val and test that are nearest to the ratio (largest remainder) and sum to `whole`."""
    exact = [whole * r / sum(ratio) for r in ratio]
    sizes = [int(e) for e in exact]
    for i in sorted(range(len(ratio)), key=lambda i: (sizes[i] - exact[i], i))[: whole - sum(sizes)]:
        sizes[i] += 1
    return dict(zip(NAMES, sizes + [0] * (len(NAMES) - len(sizes)), strict=True))


def empty_splits(
    splits: Mapping[str, int], ratio: Sequence[Fraction], noun: str, *, cumulative: bool = False
) -> list[str]:
    """Return warnings about empty splits of a ratio, with the number of `noun` that would be enough.

    >>> empty_splits({"train": 5, "val": 1, "test": 0}, parse_ratio("8,1,1"), "shards")
    ["the split 'test' is empty: 6 shards are too few for this ratio, 7 are enough"]
    """
    names = [name for name, part in zip(NAMES, ratio, strict=False) if part and not splits.get(name)]
    if not names:
        return []
    whole = sum(splits.values())
    low, high = whole, max(whole + 1, math.ceil(sum(ratio) / min(part for part in ratio if part)))  # then each has one
    while high - low > 1:
        middle = (low + high) // 2
        sizes = _sizes(middle, ratio, cumulative=cumulative)
        low, high = (low, middle) if all(n for n, part in zip(sizes, ratio, strict=True) if part) else (middle, high)
    which = f"the split {names[0]!r} is" if len(names) == 1 else f"the splits {' and '.join(map(repr, names))} are"
    return [f"{which} empty: {whole:,} {noun} are too few for this ratio, {high:,} are enough"]


def by_pattern(shards: Sequence[str], patterns: Sequence[str], *, strict: bool = True) -> dict[str, list[str]]:
    """Return splits by ``NAME:REGEX`` patterns. Braces are expanded first; the regex is matched from the path's start.

    A shard may be in several splits or in none. Several patterns with the same name form one split, in the order of
    the shards.

    Raises:
        ConfigError: a pattern does not have that form or is not a regular expression. With `strict`, also if it matches
            no shard, or looks like a glob pattern that would match other shards.
    """
    out: dict[str, list[str]] = {}
    for text in patterns:
        name, colon, pattern = text.partition(":")
        if not colon or not name:
            raise ConfigError(
                f"{text!r} is not of the form NAME:REGEX", kind="bad-pattern", fix="E.g. 'train:train/.*'."
            )
        try:
            tests = [re.compile(one) for one in expand(pattern)]
        except PATTERN_ERRORS as error:
            raise ConfigError(f"{pattern!r} is not a regular expression ({error})", kind="bad-pattern") from None
        found = [shard for shard in shards if any(test.match(shard) for test in tests)]
        as_glob = [shard for shard in shards if "*" in pattern and fnmatchcase(shard, pattern)]
        if strict and as_glob and as_glob != found:
            raise ConfigError(
                f"the regular expression {pattern!r} looks like a glob pattern: it matches {len(found)} shards, as a"
                f" glob pattern it would match {len(as_glob)}",
                kind="bad-pattern",
                fix=f"Write a regular expression: '{pattern.replace('.', chr(92) + '.').replace('*', '.*')}'.",
            )
        if strict and not found:
            raise ConfigError(
                f"the pattern {pattern!r} of the split {name!r} matches none of {len(shards)} shards"
                f" (the first is {shards[0]!r})",
                kind="bad-pattern",
                fix="The pattern is a regular expression on the path relative to the dataset. Write '.*' to match any"
                " text; a single '*' repeats the preceding character.",
            )
        both = {*out.get(name, ()), *found}
        out[name] = [shard for shard in shards if shard in both]
    return out


def by_names(store: Store, shards: Sequence[str]) -> dict[str, list[str]]:
    """Return the splits that the card of a folder or the names of its shards tell; empty if they tell none.

    They are those of the folder before it is prepared, but what is ``validation`` there is ``val`` here.
    """
    splits = splits_among(store, shards, [card for card in CARDS if store.exists(card)])
    return {"val" if name == "validation" else name: files for name, files in splits.files.items()}


def in_none(splits: Mapping[str, Sequence[str]], shards: Set[str]) -> list[str]:
    """Return a warning about shards that are in no split, which names of others tell."""
    rest = sorted(shards - {shard for names in splits.values() for shard in names})
    return (
        [f"{listed(rest)} in no split: names of other shards tell splits. --split-parts divides otherwise"]
        if rest
        else []
    )


def extended(
    parts: Mapping[str, Sequence[str]], shards: Sequence[str], named: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return the splits with new shards added, so that no shard ever moves from val to train.

    If the present splits are those that names tell, new shards are where theirs tell; else they join the first split.

    Args:
        named: see `by_names`.
    """
    known = {shard for names in parts.values() for shard in names}
    present = set(shards)
    kept = {name: [s for s in names if s in present] for name, names in parts.items()}
    if named and all(set(named.get(name, ())) & known == set(kept.get(name, ())) for name in {*named, *kept}):
        return {name: list(named.get(name, ())) for name in {**kept, **named}}
    first = next(iter(kept), "train")
    return {**kept, first: [*kept.get(first, []), *(shard for shard in shards if shard not in known)]}


def leaving(parts: Mapping[str, Sequence[str]], shards: Sequence[str]) -> list[str]:
    """Return warnings about lost shards of all splits except the first, which `extended` would add to the first."""
    present, first = set(shards), next(iter(parts), "train")
    gone = {name: [s for s in names if s not in present] for name, names in parts.items() if name != first}
    return [
        f"the split {name!r} loses {len(names)} of its {len(parts[name])} shards (the first is {names[0]!r}). If they"
        f" are restored, they join {first!r} unless you use --split-parts."
        for name, names in gone.items()
        if names
    ]
