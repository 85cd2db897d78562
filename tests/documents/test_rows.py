import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.documents.rows import (
    dump,
    has_negative_zero,
    id_bytes,
    ids_of,
    is_blank,
    load,
    negative_zeros,
    parse_texts,
)
from feedmill.errors import DataError
from helpers.document_datasets import DEEP

PIECES = st.lists(st.sampled_from(["-0", "-", "0", ",", "]", "}", " ", "\n", "a", "漢", "-0,", "--0]"]), max_size=12)


@given(PIECES)
def test_both_ways_find_the_same_rows(pieces):
    lines = "".join(pieces).encode()
    rows = lines.split(b"\n")
    if not rows[-1]:
        rows.pop()
    wanted = {n for n, row in enumerate(rows) if has_negative_zero(row)}
    assert negative_zeros(lines) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"b":1.10,"a":1e5}', '{"a":100000.0,"b":1.1}'),
        ('{"a":-0}', '{"a":-0.0}'),
        ("[-0 ]", "[-0.0]"),
        ("-0", "-0.0"),
        ('["x -0, y",-0]', '["x -0, y",-0.0]'),
        ("18446744073709551616", "1.8446744073709552e19"),
        ("[18446744073709551615,-9223372036854775808]", "[18446744073709551615,-9223372036854775808]"),
        ('{"é/":{"z":1,"a":[{"y":1,"x":2}]}}', '{"é/":{"a":[{"x":2,"y":1}],"z":1}}'),
    ],
)
def test_numbers_and_keys_as_dolma_writes_them(text, wanted):
    assert json.loads(dump(load(text.encode()))) == json.loads(wanted)
    assert dump(load(text.encode())).decode() in (wanted, wanted.replace("e19", "e+19"))


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(), st.lists, max_leaves=9))
def test_round_trip(value):
    assert load(dump(value)) == value


def test_load_refuses_what_orjson_refuses():
    with pytest.raises(orjson.JSONDecodeError):
        load(b'{"a":-0,"b":NaN}')


def test_equal_ids_have_equal_bytes():
    rows = parse_texts(b'{"id":"\\u0061","text":""}\n{"id": "a" ,"text":""}\n', "f", 1)
    assert id_bytes(rows[0].id) == id_bytes(rows[1].id) == b'"a"'


def test_lines_count_from_the_first():
    with pytest.raises(DataError, match="line 8"):
        parse_texts(b'{"id":1,"text":""}\n{}', "f", 7)
    # Two halves of one object are no two rows.
    with pytest.raises(DataError, match="line 1"):
        parse_texts(b'{"text":"a"\n"id":1},{"text":"b"}', "f", 1)


@given(st.text(" \t\n\x1c\u3000\u00a0\u200b\u2028a", max_size=5))
def test_blank(text):
    white = set("\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200B)}
    assert is_blank(text) == (set(text) <= white)


@pytest.mark.parametrize("one", [b'"\xff"', b'"\xc3"', b'["\xff"]'])
def test_ids_that_are_no_text_are_told_with_the_line(one):
    rows = parse_texts(b'{"id":"a","text":""}\n{"id":%b,"text":""}\n' % one, "f", 7)
    with pytest.raises(DataError, match="the id is not valid JSON") as caught:
        ids_of(rows, "f", 7)
    assert (caught.value.kind, caught.value.record) == ("bad-document", "line 8")


@pytest.mark.parametrize("depth", [DEEP, 2 * DEEP])
def test_rows_that_are_nested_too_deeply(depth):
    row = b'{"id":"a","text":"","x":%b%b}' % (b"[" * depth, b"]" * depth)
    with pytest.raises(DataError, match="too deeply"):
        parse_texts(b'{"id":"a","text":""}\n' + row, "f", 1)
    with pytest.raises(orjson.JSONDecodeError):
        load(row.replace(b'""', b"-0"))


def test_a_byte_order_mark_is_told():
    with pytest.raises(DataError, match="byte order mark"):
        parse_texts(b'\xef\xbb\xbf{"id":"a","text":""}\n', "f", 1)
