"""Texts taken out of lines of JSON: what is taken is what `json.loads` gives, and plain lines are taken."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.jsonl.jsontexts import TextTaker
from helpers.durations import examples

LEAVES: Any = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    LEAVES | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
UNTOLD = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
PIECES = st.sampled_from(["\n", '"', "\\", "\t", "\x08", "\x0c", "\r", "/", "\x1f", "\x7f", "é", "€", "😀", "\u2028"])
RUNS = st.builds(lambda piece, times: piece * times, PIECES | st.text(UNTOLD, max_size=3), st.integers(0, 80))
TEXTS = st.lists(RUNS | st.integers(0, 130).map("x".__mul__), min_size=1, max_size=8).map("".join).filter(bool)
NAMES = st.sampled_from(["id", "texts", "tex", "a b", ""])


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, bytes]:
    """A text, and a line with it among other members, written in one of several ways."""
    text, others = draw(TEXTS), draw(st.dictionaries(NAMES, VALUES, max_size=3))
    members = list(others.items())
    members.insert(draw(st.integers(0, len(members))), ("text", text))
    separators = draw(st.sampled_from([(", ", ": "), (",", ":"), (" \t,\r ", "\t: ")]))
    line = json.dumps(dict(members), ensure_ascii=draw(st.booleans()), separators=separators)
    if draw(st.booleans()):
        line = line.replace("/", "\\/")
    return text, line.encode()


@settings(max_examples=examples(400))
@given(st.lists(documents(), min_size=1, max_size=6), st.sampled_from([b"\n", b"\r\n", b" \n"]), st.booleans())
def test_plain_lines_are_taken(found: list[tuple[str, bytes]], end: bytes, ended: bool) -> None:
    lines = end.join(line for _, line in found) + (end if ended else b"")
    assert TextTaker("text").take(lines) == [text for text, _ in found]


def by_python(lines: bytes) -> list[str] | None:
    """The text of each line, by Python's own parser; None where one has none."""
    found = []
    for line in lines.removesuffix(b"\n").split(b"\n"):
        try:
            value = json.loads(line.decode())
        except ValueError:
            return None
        if not isinstance(value, dict) or not isinstance(value.get("text"), str) or not value["text"]:
            return None
        found.append(value["text"])
    return found


@settings(max_examples=examples(800))
@given(
    st.lists(documents(), min_size=1, max_size=4),
    st.lists(
        st.tuples(
            st.integers(0, 10**6), st.integers(0, 2), st.binary(max_size=2) | st.sampled_from([b"\\", b'"', b"\\u00"])
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_what_is_taken_from_damaged_lines_is_what_python_reads(
    found: list[tuple[str, bytes]], edits: list[tuple[int, int, bytes]]
) -> None:
    lines = bytearray(b"\n".join(line for _, line in found) + b"\n")
    for at, out, new in edits:
        at %= len(lines) + 1
        lines[at : at + out] = new
    taken = TextTaker("text").take(bytes(lines))
    assert taken is None or taken == by_python(bytes(lines))


@pytest.mark.parametrize(
    "line",
    [
        b"", b" ", b"{}", b'{"id":1}', b'{"text":1}', b'{"text":null}', b'{"text":""}', b'["text","a"]', b'"text"',
        b'{"text":"a","text":"b"}', b'{"\\u0074ext":"a"}', b'{"text":"a"', b'{"text":"a"}x',
        b'{"text":"a"} {"text":"b"}',
        b'{"text":"a",}', b'{,"text":"a"}', b'{"text" "a"}', b'{"text":"a","b":}', b'{"text":"a","b":tru}',
        b'{"text":"a","b":01}', b'{"text":"a","b":NaN}', b'{"text":"\t"}', b'{"text":"\\x"}', b'{"text":"\\u12g4"}',
        b'{"text":"\\ud83d"}', b'{"text":"\\ude00\\ud83d"}', b'{"text":"\\ud83d\\u0041"}', b'{"text":"\\u0000"}',
        b'{"text":"\xff"}', b'{"text":"\xed\xa0\xbd"}', b'{"text":"a","b":"\xff"}', b'{"b":{"text":"a"}}',
        b'\xef\xbb\xbf{"text":"a"}', b'{"text":"a\n"}', b'{"text":"a\\',
    ],
)  # fmt: skip
@pytest.mark.parametrize("pad", [0, 70])
def test_a_line_that_is_not_plain_is_left_to_others(line: bytes, pad: int) -> None:
    good = b'{"text":"good"}\n'
    assert TextTaker("text").take(good * (pad // 4) + line + b"\n" + good * pad) is None


def test_every_length_and_place_of_an_escape() -> None:
    pieces = ('"', "\\", "é", "😀", "")
    texts = ["x" * before + p + "y" * after for p in pieces for before in range(1, 70) for after in (0, 1, 63, 64, 65)]
    taker = TextTaker("text")
    for text in texts:
        for ascii in (True, False):
            assert taker.take(json.dumps({"text": text}, ensure_ascii=ascii).encode()) == [text]


def test_any_name_and_growing_blocks() -> None:
    chance = random.Random(0)
    for name in ("ä text", "content", "", "a" * 80):
        taker = TextTaker(name)
        for size in (1, 40, 3000):
            texts = ["".join(chance.choices('ab\n"\\é', k=chance.randint(1, 200))) for _ in range(size)]
            assert (
                taker.take(b"\n".join(json.dumps({"text": 1, name: t}, ensure_ascii=False).encode() for t in texts))
                == texts
            )


def test_names_that_json_escapes_are_left_to_others() -> None:
    assert TextTaker('a"b').take(json.dumps({'a"b': "text"}).encode()) is None
