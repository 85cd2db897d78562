"""Quality signals of Gopher (Rae et al. 2021, https://arxiv.org/abs/2112.11446, appendix A1) in plain Python.

The test oracle of `feedmill.kernels.text.gopher_compiled`. Signals that a text is too short for are omitted.
"""

from __future__ import annotations

import re
from collections import Counter
from statistics import median

SIGNALS = (
    *(f"fraction_of_characters_in_most_common_{n}grams" for n in (2, 3, 4)),
    *(f"fraction_of_characters_in_duplicate_{n}grams" for n in (5, 6, 7, 8, 9, 10)),
    "character_count",
    "word_count",
    "median_word_length",
    "symbol_to_word_ratio",
    "fraction_of_words_with_alpha_character",
    "required_word_count",
    "fraction_of_lines_starting_with_bullet_point",
    "fraction_of_lines_ending_with_ellipsis",
    "fraction_of_duplicate_lines",
    "fraction_of_characters_in_duplicate_lines",
)
REQUIRED = ("the", "be", "to", "of", "and", "that", "have", "with")
SCALARS = SIGNALS[9:]


def signals(text: str, joined_newlines: bool) -> dict[str, float]:
    """Return the signals of a text, in the order of `SIGNALS`.

    Args:
        joined_newlines: whether a run of newlines separates lines (version 2) rather than each newline (version 1).
    """
    if not text:
        return dict.fromkeys(SCALARS, 0.0)
    words = text.split()
    characters = max(1, sum(map(len, words)))
    found = _grams(words, characters)
    count = max(1, len(words))
    lines = re.split(r"\n+", text) if joined_newlines else text.split("\n")
    repeated = {line: n for line, n in Counter(lines).items() if n > 1}
    values = (
        len(text),
        len(words),
        median(map(len, words)) if words else 0,
        sum("#" in word or "…" in word for word in words) / count,
        sum(any(map(str.isalpha, word)) for word in words) / count,
        sum(word in REQUIRED for word in words),
        sum(line.startswith(("*", "-")) for line in lines) / len(lines),
        sum(line.endswith("…") for line in lines) / len(lines),
        sum(repeated.values()) / len(lines),
        sum(len(line) * n for line, n in repeated.items()) / characters,
    )
    return found | dict(zip(SCALARS, map(float, values), strict=True))


def _grams(words: list[str], characters: int) -> dict[str, float]:
    found = {}
    for n in range(2, 11):
        if len(words) < n:
            break
        counts = Counter(zip(*(words[i:] for i in range(n)), strict=False))
        if n < 5:
            gram, count = counts.most_common(1)[0]
            found[SIGNALS[n - 2]] = count * sum(map(len, gram)) / characters
        else:
            size = {gram: count * sum(map(len, gram)) for gram, count in counts.items()}
            found[SIGNALS[n - 2]] = sum(size[g] for g, count in counts.items() if count > 1) / sum(size.values())
    return found
