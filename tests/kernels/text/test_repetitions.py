"""Units found by hashes, against trying every one."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.text import characters
from feedmill.kernels.text.lengths import encode
from feedmill.kernels.text.repetitions import _GRAM, _long_units, _room_for_long_units, repetitions

TABLE = characters.table()
PIECES = st.sampled_from(["a", "b", " ", "\t", "\n", "abaab", "abcdefg", "abcdefgh ", "  x", "\u3000"])
TEXTS = st.builds(
    lambda before, unit, blanks, after: "".join([*before, *(unit + blank for blank in blanks), *after]),
    st.lists(PIECES, max_size=12),
    st.lists(PIECES, min_size=1, max_size=8).map("".join),
    st.lists(st.sampled_from(["", " ", "\n"]), max_size=6),
    st.lists(PIECES, max_size=6),
)


def shortest(text: str, start: int) -> int:
    match = re.compile(r"(.+?)(?:\s?\1){3}").match(text, start)
    return len(match[1]) if match else 0


@settings(deadline=None)
@given(TEXTS)
def test_long_units_are_the_shortest_that_repeat(text: str) -> None:
    scratch = _room_for_long_units(len(text))
    _long_units(encode([text])[0], TABLE, *scratch)
    for start, unit in enumerate(scratch[-1].tolist()):
        wanted = shortest(text, start)
        if wanted >= _GRAM:
            assert unit == wanted, (ascii(text), start)
        else:
            assert unit == 0 or wanted, (ascii(text), start)


def thue_morse(bits: int) -> str:
    """A text without three copies of anything."""
    return "".join(str(n.bit_count() & 1) for n in range(1 << bits))


def test_repetitions_in_a_long_line_in_which_each_gram_occurs_often() -> None:
    """Took 20 seconds and more when each occurrence was looked at."""
    line, unit = thue_morse(17), thue_morse(10)
    text = f"{line}\n{line}x{unit} {unit}{unit} {unit}"
    codes, offsets = encode([text])
    found = repetitions(codes, offsets[:-1], offsets[1:], TABLE)
    start = 2 * len(line) + 2
    assert np.array_equal(found, [[0], [start], [len(text)], [len(unit)]])
