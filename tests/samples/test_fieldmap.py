from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.samples.decode import Decoder
from feedmill.samples.fieldmap import FieldMap, Option, parse_expression
from feedmill.samples.types import CaptioningSample, ImageClassificationSample, TextSample
from helpers.raw_samples import sample_of

DOC = {"a": {"b": ["x", {"c": "deep"}], "0": "zero"}, "n": None, "list": [1, 2, 3], "text": "abc"}
PARTS = {"json": json.dumps(DOC).encode(), "txt": b"hello", "seg.json": b'{"v": 7}'}


def apply(expression: str, parts: dict[str, bytes] = PARTS):
    sample = sample_of(parts, decode=Decoder())
    return FieldMap.parse({"text": expression}, TextSample).apply(sample)["text"]


@pytest.mark.parametrize(
    ("expression", "options"),
    [
        ("jpg,png", [("jpg",), ("png",)]),
        ("json[a][0]", [("json", "a", "0")]),
        ("detail.json[meta][tags][-1],txt", [("detail.json", "meta", "tags", "-1"), ("txt",)]),
        (" jpg, png", [(" jpg",), (" png",)]),
        ("json[a b.c]", [("json", "a b.c")]),
        # The newline that a YAML block scalar ends with.
        ("json[a]\n", [("json", "a")]),
        # Outside the grammar: a part named like the whole expression.
        ("json[a", [("json[a",)]),
        ("jpg,json[a", [("jpg",), ("jpg,json[a",)]),
        ("json[]", [("json[]",)]),
        ("json[a]x", [("json[a]x",)]),
        ("json[[a]]", [("json[[a]]",)]),
        ("jpg,,png", [("jpg",), ("jpg,,png",), ("png",)]),
    ],
)
def test_grammar(expression: str, options: list[tuple[str, ...]]) -> None:
    assert parse_expression(expression) == tuple(Option(part, tuple(keys)) for part, *keys in options)


name = st.text(st.characters(exclude_characters="[],", exclude_categories=["Cs"]), min_size=1, max_size=6)


@given(st.lists(st.builds(Option, name, st.lists(name, max_size=3).map(tuple)), min_size=1, max_size=4))
def test_what_is_printed_parses_back(options: list[Option]) -> None:
    assert parse_expression(",".join(map(str, options))) == tuple(options)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("txt", "hello"),
        ("json[a][b][1][c]", "deep"),
        ("json[a][b][-2]", "x"),
        ("json[a][0]", "zero"),
        ("json[list][-1]", 3),
        ("json[list]", [1, 2, 3]),
        ("seg.json[v]", 7),
        ("json[n]", None),
        ("__key__", "k0"),
        ("gone,txt", "hello"),
        ("json[gone],txt", "hello"),
        ("json[list][9],txt", "hello"),
        ("json[list][one],txt", "hello"),
        ("json[text][0],txt", "hello"),
        ("json[n][x],txt", "hello"),
        ("txt,json[gone]", "hello"),
        ("json[list][3],json[list][2],txt", 3),
    ],
)
def test_values_and_fall_through(expression: str, value: object) -> None:
    assert apply(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("gone", "the sample has no part 'gone' (it has: json, seg.json, txt)"),
        ("txt[0]", "txt is str 'hello', which has no item '0'"),
        ("json[a][x]", "json[a] has no key 'x' (it has: b, 0)"),
        ("json[list][3]", "json[list] is a list of 3 items, index 3 is out of range"),
        ("json[list][x]", "json[list] is a list, 'x' is not an index"),
        ("json[n][x]", "json[n] is null, which has no item 'x'"),
        ("gone,json[gone]", "json has no key 'gone' (it has: a, n, list, text)"),
    ],
)
def test_the_last_failure_is_the_error(expression: str, reason: str) -> None:
    with pytest.raises(NotFound) as caught:
        apply(expression)
    assert str(caught.value).startswith(
        f"ds/0.tar 'k0' at byte 512: no value for the field 'text' = {expression!r}: {reason}"
    )


def test_a_part_that_cannot_be_decoded_never_falls_through() -> None:
    with pytest.raises(DataError, match=r"ds/0.tar 'k0.json' at byte 512: the part 'json' cannot be decoded"):
        apply("json[a],txt", {"json": b"{", "txt": b"hello"})


def test_parts_are_the_first_elements_and_only_they_are_decoded() -> None:
    fields = FieldMap.parse({"image": "png,jpg", "caption": "a.json[x][y],txt"}, CaptioningSample)
    assert fields.parts == {"png", "jpg", "a.json", "txt"}
    seen: list[str] = []
    sample = sample_of({"jpg": b"1", "txt": b"2", "bad": b"3"}, decode=lambda name, data: seen.append(name) or data)
    assert fields.apply(sample) == {"image": b"1", "caption": b"2"}
    assert seen == ["jpg", "txt"]


@pytest.mark.parametrize(
    ("field_map", "message"),
    [
        ({"image": "jpg", "capton": "txt"}, r"no field 'capton' \(did you mean 'caption'\?\)"),
        ({"image": "jpg"}, "required field 'caption'. Add .* field map: CaptioningSample requires image, caption"),
        ({"image": "jpg", "caption": 7}, "has 7 for 'caption'"),
        ({"image": "jpg", "caption": ""}, "has '' for 'caption'"),
        ({"image": "jpg", "caption": "txt", "__sources__": "x"}, "__sources__ is set by the loader"),
        (["image"], "must map field names"),
        (None, "must map field names"),
    ],
)
def test_bad_field_maps_are_refused_when_parsed(field_map, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        FieldMap.parse(field_map, CaptioningSample, where="dataset.yaml:3")
    assert str(caught.value).startswith("dataset.yaml:3: ")


def test_optional_fields_may_be_left_out_and_the_key_mapped() -> None:
    fields = FieldMap.parse({"image": "jpg", "__key__": "json[id]"}, ImageClassificationSample)
    sample = sample_of(
        {"jpg": b"i", "json": b'{"id": "real"}'}, decode=lambda n, d: json.loads(d) if n == "json" else d
    )
    assert fields.apply(sample) == {"image": b"i", "__key__": "real"}
