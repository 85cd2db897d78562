from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.documents import read as documents
from feedmill.documents.read import ranged_lines
from feedmill.documents.textpath import TextReader, parse_path
from feedmill.documents.typed import Typed, TypedReader
from feedmill.formats.documents import rows_of
from helpers.durations import examples


@settings(max_examples=examples(500))
@given(st.text(alphabet="ab\n\r", max_size=60), st.lists(st.integers(0, 60), max_size=6), st.integers(1, 9))
def test_ranges_together_give_each_line_once(text: str, cuts: list[int], block: int) -> None:
    data = text.encode()
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})

    def fill(at: int, buffer: memoryview) -> None:
        buffer[:] = data[at : at + len(buffer)]

    before = documents.BLOCK, documents._TAIL
    documents.BLOCK, documents._TAIL = block, max(1, block // 2)
    try:
        found = []
        for begin, end in pairwise(bounds):
            for lines in ranged_lines(fill, begin, end, len(data)):
                found += rows_of(bytes(lines))
    finally:
        documents.BLOCK, documents._TAIL = before
    assert found == rows_of(data)


LINES = st.sampled_from(
    [
        '{"text":"a"}', '{"text": "b", "x": {"y": [{}, {}]}}', '{"text":"c"}{"text":"d"}', '{"text":\n"e"}', "", " ",
        "\r", '{"text":"f","x":"}\n{"}', '{"text":""}', '{"text":"\ud800"}', '"g"', '{"x":1}', "[{}\n{}]",
        '{"text":"h"}\r', '{"id":"1","text":" i "}', '{"id":"2","text":" ","metadata":{}}',
    ]
)  # fmt: skip


@settings(max_examples=examples(500))
@given(st.lists(LINES, max_size=6), st.booleans())
def test_lines_read_at_once_are_those_read_one_by_one(lines: list[str], closed: bool) -> None:
    block = ("\n".join(lines) + ("\n" if closed else "")).encode("utf-8", "surrogatepass")
    for reader in (TextReader("text"), TextReader("text", ("id", "metadata")), TypedReader(Typed())):
        found = reader.read(block)
        if found is not None:
            wanted = [reader.record(line) for line in rows_of(block)]
            assert found.texts == [record.text for record in wanted]
            assert not isinstance(reader, TextReader) or bool(found.fields) == bool(reader.fields)
            assert found.fields in ([], [record.fields for record in wanted])


def test_good_lines_are_read_at_once() -> None:
    assert TextReader("text").read(b'{"text":"a"}\n{"x":"}","text":"b"}\n{"text":"c"}') == (["a", "b", "c"], [])
    beside = TextReader("text", ("id", "y")).read(b'{"text":"a","id":1}\n{"id":[2],"text":"b","y":"z"}')
    assert beside == (["a", "b"], [(1, None), ([2], "z")])
    typed = TypedReader(Typed(id="meta.id"))
    assert typed.read(b'{"text":" a ","meta":{"id":"x"}}\n{"text":"b","meta":{"id":"y"}}') == (
        ["a", "b"],
        [("x",), ("y",)],
    )
    assert typed.read(b'{"text":" ","meta":{"id":"x"}}') is None
    assert TextReader("text").read(b'{"text":"a"}{"text":"b"}\n{"text":\n"c"}\n') is None


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
    assert TextReader(".a[1]").read(b'{"a": ["x", "y"]}') == (["y"], [])
    assert TextReader(".a[1]").read(b'{"a": ["x"]}') is None
    assert "there is no .a[1]" in TextReader(".a[1]").record(b'{"a": ["x"]}').reason
