import json

import msgspec
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feedmill.formats.documents import json_fault

PIECES = ["a", "d800", "\\\\", '\\"', "\\n", "\\u0041", "\\ud83d", "\\uDe00", "\\udbff", "\\uDFFF", "\\uD800"]


@given(st.lists(st.sampled_from(PIECES), max_size=6))
@example(["\\\\", "ud800"])
@example(["\\ud83d", "\\uDe00"])
def test_a_lone_surrogate_is_called_one(pieces):
    row = f'{{"text": "{"".join(pieces)}"}}'.encode()
    text = json.loads(row)["text"]
    lone = any("\ud800" <= letter <= "\udfff" for letter in text)
    assert ("lone surrogate" in json_fault(row, "something else")) == lone
    for parse in (msgspec.json.decode, orjson.loads):  # why it is the cause: no parser here takes one
        if lone:
            with pytest.raises(ValueError):
                parse(row)
        else:
            parse(row)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"", "the line is blank"),
        (b" \r", "the line is blank"),
        (b'{"text": "a', "the parser's words"),
        (b'{"text": "\\ud8', "the parser's words"),
        (b'{"text": "\\ud800', "it has a lone surrogate, which is not a valid character: \\ud800 at byte 10"),
    ],
)
def test_faults(row, said):
    assert json_fault(row, "the parser's words") == said
