"""The dialect of JSONPath. What Dolma itself makes of 69 expressions is in the golden runs (tests/compat/dolma)."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.documents.expressions import compile_path, compile_test
from feedmill.errors import ConfigError
from helpers.dolma_runs import GOLDEN

CONFIG = json.loads((GOLDEN / "configs/mix_sem_jsonpath_include.json").read_text())
EXPRESSIONS = sorted({text for stream in CONFIG["streams"] for text in stream["filter"]["include"]})
KEYS = st.sampled_from(["a", "b", "v", "attributes", "text", "id", "x"])
LEAVES = st.none() | st.booleans() | st.integers(-2, 4) | st.sampled_from([0.5, 1.0, "a", "", "x"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12
)


@settings(deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.sampled_from(EXPRESSIONS))
def test_testing_is_finding_anything(document, text):
    assert compile_test(text)(document) == bool(compile_path(text)(document))


DOCUMENT = {"n": [3, 1.5, "3", None, True], "o": [{"k": 1}, {"k": 2.0}, {"j": 1}], "s": "text", "e": [], "z": None}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("$.n[0]", [3]),
        ("$.n[0,2]", [3, "3"]),
        ("$.n[-2:]", [None, True]),
        ("$.n[1:3]", [1.5, "3"]),
        ("$['n']['0']", []),
        ("$.o[*].k", [1, 2.0]),
        ("$..k", [1, 2.0]),
        ("$.o[?(@.k > 1)]", [{"k": 2.0}]),
        ("$.o[?(@.k >= 1)]", [{"k": 1}, {"k": 2.0}]),
        ("$.o[?(@.k >= 2)]", []),  # 2.0 is not 2, and not more
        ("$.o[?(@.k == 1 || @.j)]", [{"k": 1}, {"j": 1}]),
        ("$.o[?(!@.k)]", [{"j": 1}]),
        ("$.n[?(@ > 1)]", [3, 1.5]),
        ("$.n[?(@ < true)]", []),
        ("$.z", [None]),
        ("$.e", [[]]),
        ("$.none", []),
        ("$.s[?(@ ~= '^t.*t$')]", ["text"]),
        ("$.o.length()", [3]),
        ("$.s[?(@ in ['text'])]", ["text"]),
    ],
)
def test_paths(text, wanted):
    found = compile_path(text)(DOCUMENT)
    assert found == wanted and list(map(type, found)) == list(map(type, wanted))


@pytest.mark.parametrize(
    "text",
    ["", "a", "$.", "$[", "$[?(@.a]", "$.a[-1]", "$.a[?(@.b >)]", "$.a b", "$['a'", "$.a[?(@ == 'x)]", "$.a[1:2:0]"],
)
def test_what_is_no_path(text):
    with pytest.raises(ConfigError, match="character") as caught:
        compile_path(text)
    assert caught.value.kind == "bad-expression"


@given(st.text("$@.[]?()*,:'\"ab01 ><=!&|~-", max_size=14))
def test_any_text_is_a_path_or_an_error(text):
    try:
        path = compile_path(text)
    except ConfigError:
        return
    found = path(DOCUMENT)
    assert isinstance(found, list) and compile_test(text)(DOCUMENT) == bool(found)


def test_long_expressions_are_not_deep() -> None:
    tests, keys = " || ".join(f"@.k == {n}" for n in range(2000)), ",".join(f"'{n}'" for n in range(2000))
    assert compile_path(f"$.o[?({tests})]")(DOCUMENT) == [{"k": 1}]
    assert compile_path(f"$[{keys},'s']")(DOCUMENT) == ["text"]
    with pytest.raises(ConfigError, match="too deeply"):
        compile_path("$" + "[?(@" * 2000)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.sampled_from(["", "ab", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
)


@given(st.dictionaries(st.sampled_from("ab"), TREES), st.sampled_from("<>"), st.sampled_from(["1", "0.5", "0"]))
def test_the_short_way_for_a_number_is_the_long_one(value, sign, number):
    for path in ("@.a", "@.a[1]", "@.b[0]", "@.b[0][1]", "@.a.b"):
        short = f"$.a[?({path} {sign} {number})]"
        long = f"$.a[?({number} {'<>'[sign == '<']} {path})]"
        assert compile_test(short)(value) == bool(compile_path(long)(value)), (path, sign, number)
