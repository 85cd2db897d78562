from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.tokens import documents
from feedmill.tokens.documents import ranged_lines
from feedmill.tokens.textpath import TextReader, parse_path


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab\n\r", max_size=60), st.lists(st.integers(0, 60), max_size=6), st.integers(1, 9))
def test_ranges_together_give_each_line_once(text: str, cuts: list[int], block: int) -> None:
    data = text.encode()
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    before = documents.BLOCK, documents._TAIL
    documents.BLOCK, documents._TAIL = block, max(1, block // 2)
    try:
        found = []
        for begin, end in pairwise(bounds):
            for lines in ranged_lines(lambda at, size: data[at : at + size], begin, end, len(data)):
                found += lines
    finally:
        documents.BLOCK, documents._TAIL = before
    wanted = data.split(b"\n")
    assert found == (wanted[:-1] if wanted[-1] == b"" else wanted)


def test_paths() -> None:
    for text, steps in (
        ("text", ["text"]),
        (".text", ["text"]),
        (".a.b", ["a", "b"]),
        (".a[0].b[-1]", ["a", 0, "b", -1]),
        ('.["a b"].c', ["a b", "c"]),
        ('.a["x\\"y"]', ["a", 'x"y']),
        (".", []),
        ("body-text", ["body-text"]),
        (".a | .b", None),
        (".a?", None),
        ("..", None),
        (".[]", None),
        (".a b", None),
    ):
        assert parse_path(text) == steps, text


def test_fields_beside_the_text() -> None:
    reader = TextReader("text", ("id", "metadata"))
    assert reader.record(b'{"id": 3, "text": "a", "metadata": {"x": 1}}').fields == (3, {"x": 1})
    assert reader.record(b'{"text": "a", "y": NaN}').fields == (None, None)
    inside = TextReader(".metadata.text", ("metadata",))
    assert inside.record(b'{"metadata": {"text": "a"}}').text == "a"
    assert TextReader(".").record(b'"just text"').text == "just text"
    assert TextReader(".a[1]").read([b'{"a": ["x", "y"]}']) == ["y"]
    assert TextReader(".a[1]").read([b'{"a": ["x"]}']) is None
    assert "there is no .a[1]" in TextReader(".a[1]").record(b'{"a": ["x"]}').reason
