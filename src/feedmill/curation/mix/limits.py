"""Short rules, `keep: [gopher_v2.word_count >= 50]`: limits of scores that all documents that are kept satisfy.

A rule names an attribute by its tagger and kind, or by its whole name. Every span of the attribute has to satisfy the
limit. A document without the attribute satisfies it: taggers write some attributes for few documents only, and a name
that no row has is an error, as for all rules.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from feedmill.errors import ConfigError, suggestion

_TESTS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt
}  # fmt: skip
_ANY = "|".join(_TESTS)  # the longer ones first
_RULE = re.compile(rf"\s*([A-Za-z_][\w.-]*)\s*({_ANY})\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")

PRESETS: dict[str, tuple[str, ...]] = {
    "gopher": (
        "gopher_v2.word_count >= 50",
        "gopher_v2.word_count <= 100000",
        "gopher_v2.median_word_length >= 3",
        "gopher_v2.median_word_length <= 10",
        "gopher_v2.symbol_to_word_ratio <= 0.1",
        "gopher_v2.fraction_of_lines_starting_with_bullet_point <= 0.9",
        "gopher_v2.fraction_of_lines_ending_with_ellipsis <= 0.3",
        "gopher_v2.fraction_of_words_with_alpha_character >= 0.8",
        "gopher_v2.required_word_count >= 2",
        "gopher_v2.fraction_of_duplicate_lines <= 0.3",
        "gopher_v2.fraction_of_characters_in_duplicate_lines <= 0.2",
        "gopher_v2.fraction_of_characters_in_most_common_2grams <= 0.2",
        "gopher_v2.fraction_of_characters_in_most_common_3grams <= 0.18",
        "gopher_v2.fraction_of_characters_in_most_common_4grams <= 0.16",
        "gopher_v2.fraction_of_characters_in_duplicate_5grams <= 0.15",
        "gopher_v2.fraction_of_characters_in_duplicate_6grams <= 0.14",
        "gopher_v2.fraction_of_characters_in_duplicate_7grams <= 0.13",
        "gopher_v2.fraction_of_characters_in_duplicate_8grams <= 0.12",
        "gopher_v2.fraction_of_characters_in_duplicate_9grams <= 0.11",
        "gopher_v2.fraction_of_characters_in_duplicate_10grams <= 0.1",
    ),
    "c4": (
        "c4_v2.line_count >= 3",
        "c4_v2.has_naughty_word < 1",
        "c4_v2.has_lorem_ipsum < 1",
        "c4_v2.has_javascript < 1",
        "c4_v2.has_curly_brace < 1",
    ),
    "fineweb": (
        "fineweb_v1.fraction_of_lines_ending_with_punctuation >= 0.12",
        "fineweb_v1.fraction_of_short_lines <= 0.67",
        "fineweb_v1.fraction_of_characters_in_duplicate_lines <= 0.01",
        "fineweb_v1.newlines_per_word <= 0.3",
    ),
}
"""Published limits by name.

``gopher``: Rae et al. 2021 (arXiv:2112.11446), tables A1 and A2; the median length of words stands for the mean, as in
the tagger. ``c4``: Raffel et al. 2020 (arXiv:1910.10683), those of the rules for whole pages that the tagger scores.
``fineweb``: Penedo et al. 2024 (arXiv:2406.17557), its own rules after Gopher's and C4's.
"""


@dataclass(frozen=True, slots=True)
class Limit:
    """A rule: name of an attribute, a test, and the number that scores are compared with."""

    name: str
    test: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Return the rule of a text. Raises `ConfigError`."""
        match = _RULE.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{text[:100]!r} is not a valid rule: expected NAME OP NUMBER",
                kind="bad-config",
                fix="OP is one of >= <= > < == !=, as in 'gopher_v2.word_count >= 50'. "
                "For JSONPath and jq use 'include' and 'exclude'.",
            )
        return cls(match[1], match[2], float(match[3]))

    @property
    def key(self) -> str:
        """The attribute's name, or its end if the name has parts."""
        return re.sub(r"[^A-Za-z0-9_]", "_", self.name.replace(".", "__"))

    def violated(self, document: Any) -> bool:
        """Return whether a score of a document is outside the limit."""
        attributes = document.get("attributes")
        spans = attributes.get(self.key) if type(attributes) is dict else None
        if spans is None:
            return False
        test, value = _TESTS[self.test], self.value
        if type(spans) is not list:  # a bare number, as some programs write
            return not _is_number(spans) or not test(spans, value)
        return not all(
            type(span) is list and len(span) == 3 and _is_number(span[2]) and test(span[2], value) for span in spans
        )


def _is_number(value: Any) -> bool:
    return type(value) is float or type(value) is int


DUPLICATES = "duplicates"
"""A preset of documents that are given without a configuration: its rules are those of the sets beside them."""

MARKS = ("dup_documents", "dup_near", "dup_meaning")
"""Attribute sets in which `dedupe` marks whole documents, by their default names; the first one is that of copies."""


def preset(name: str, where: str, *, marks: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the rules of a preset. Raises `ConfigError` if there is none of this name.

    Args:
        marks: attribute sets of marked duplicates, which make `DUPLICATES` a preset.
    """
    if name == DUPLICATES and marks:
        return tuple(f"{mark} < 1" for mark in marks)
    if name not in PRESETS:
        known = [*PRESETS, *[DUPLICATES] * bool(marks)]
        fix = suggestion(name, known, f"Known: {', '.join(known)}.")
        raise ConfigError(
            f"{where} names the preset {name[:40]!r}, which does not exist",
            kind="bad-config",
            fix=f"In a configuration, write keep: [{MARKS[0]} < 1]." if name == DUPLICATES else fix,
        )
    return PRESETS[name]


def resolved(rules: Iterable[str], known: Iterable[str], stream: str) -> tuple[str, ...]:
    """Return rules with the whole names of their attributes.

    Args:
        rules: texts of rules.
        known: names of attributes that the stream can have.
        stream: name of the stream, for errors.

    Raises:
        ConfigError: several attributes have the tagger and kind of a rule.
    """
    names, found = sorted(set(known)), []
    for text in rules:
        limit = Limit.parse(text)
        fits = [name for name in names if name == limit.key] or [
            name for name in names if name.endswith(f"__{limit.key}")
        ]
        if len(fits) > 1:
            raise ConfigError(
                f"stream {stream}: {text!r} could mean {' or '.join(fits[:4])}",
                kind="bad-config",
                fix="Write the whole name in 'keep'; for a preset, list one set in 'attributes' of a configuration.",
            )
        name = fits[0] if fits else limit.key  # an unknown name is reported when all names are checked
        number = text.rpartition(limit.test)[2].strip()
        found.append(f"{name} {limit.test} {number}")
    return tuple(found)
