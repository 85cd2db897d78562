"""Plain lines: the kernel against its oracle, and what it accepts against `json.loads`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.jsonl.jsonlines import plain_lines
from helpers.durations import examples
from oracles.jsonlines import is_plain

WORDS = [
    *"{}[]:,\"\\ \t\r-+.eE0123456789",
    "true", "false", "null", "NaN", "Infinity", "tru", '"a"', '"a":', "\\u00e9", "\\ud83d", "\\u12g4", "\\n", "\\x",
    "é", "€", "😀", "\x00", "\x1f", "\x7f", "\x0b", "\ufeff", "1" * 299, "1" * 301, "[" * 64, "]" * 64,
    "long plain text ",
]  # fmt: skip
TEXT = st.lists(st.sampled_from(WORDS), max_size=14).map(lambda words: "".join(words).encode())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
GOOD = st.builds(
    lambda value, ascii, indent: json.dumps(value, ensure_ascii=ascii).encode("utf-8", "surrogatepass") + indent,
    JSON,
    st.booleans(),
    st.sampled_from([b"", b" ", b"\r"]),
)


@pytest.mark.parametrize("depth", [64, 65, 900, 20_000])
def test_depth(depth: int) -> None:
    for line in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        assert is_plain(line) == (depth <= 64)


def judged(lines: list[bytes]) -> list[bool]:
    data = np.frombuffer(b"\n".join(lines) + b"\n", np.uint8)
    ends, good = plain_lines(data)
    assert ends.tolist() == (np.cumsum([len(line) + 1 for line in lines]) - 1).tolist()
    return [bool(one) for one in good]


@st.composite
def edited(draw: st.DrawFn) -> bytes:
    """A line that is JSON, with some bytes of it changed, put in or taken out."""
    line = bytearray(draw(GOOD))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(line)))
        line[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(line).replace(b"\n", b"")


BYTES = st.binary(max_size=6).map(lambda b: b.replace(b"\n", b""))


@settings(max_examples=examples(600), deadline=None)
@given(
    st.lists(
        TEXT | GOOD | edited() | st.binary(max_size=6).map(lambda b: b.replace(b"\n", b"")), min_size=1, max_size=8
    )
)
def test_the_kernel_is_its_oracle_and_json_accepts_what_is_plain(lines: list[bytes]) -> None:
    found = judged(lines)
    assert found == [is_plain(line) for line in lines]
    for line, plain in zip(lines, found, strict=True):
        if plain:
            json.loads(line)


@pytest.mark.parametrize("length", [0, 3, 8, 21])
def test_every_byte_at_every_place_of_a_word(length: int) -> None:
    for byte in range(256):
        lines = []
        for place in range(length + 1):
            text = bytearray(b"a" * length)
            text.insert(place, byte)
            lines.append(b'"' + bytes(text).replace(b"\n", b"") + b'"')
        assert judged(lines) == [is_plain(line) for line in lines], byte


@pytest.mark.parametrize("first", range(0xC0, 0x100))
def test_every_two_bytes_of_utf8(first: int) -> None:
    for tail in (b"", b"\x80", b"\xbf\xbf", b"\x80\x80\x80"):
        lines = [b'"' + bytes([first, second]) + tail + b'"' for second in range(256) if second != 10]
        assert judged(lines) == [is_plain(line) for line in lines]


def test_limits() -> None:
    lines = [b"[" * n + b"]" * n for n in (63, 64, 65)] + [b'{"a":' * n + b"1" + b"}" * n for n in (64, 65)]
    lines += [b"1" * n for n in (300, 301)]
    assert judged(lines) == [True, True, False, True, False, True, False]


def test_the_last_line_may_lack_its_newline_and_blocks_may_be_empty() -> None:
    for text, expected in ((b"[1]\n{", [True, False]), (b"", []), (b"\n", [False]), (b"1", [True])):
        ends, good = plain_lines(np.frombuffer(text, np.uint8))
        assert good.tolist() == expected and len(ends) == len(expected)
