"""jq as jaq evaluates it. What Dolma itself makes of 65 expressions is in the golden runs (tests/compat/dolma)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.documents.expressions import JqError, compile_jq
from feedmill.errors import ConfigError

UNFIT = [
    *(".n | floor", ".o | from_entries", ".a | from_entries", '[{"key": {}}] | from_entries'),
    *(".o | with_entries(1)", ".o | with_entries({value: 1})", "{(.o): 1}"),
    *('[[1]] | flatten("a")', ".s | sub(.s; .o)", '.s | test("(")'),
    "reduce range(400) as $i (9; . * 9) | . * 1.5",
]
"""Functions of what they cannot work on."""
DOCUMENT = {"a": [1, 2.5, "x", None], "o": {"k": {"d": True}, "j": 0}, "s": "one two", "n": None}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (".", [DOCUMENT]),
        (".a[0], .a[1]", [1, 2.5]),
        (".a[-1]", [None]),
        (".a[1:3]", [[2.5, "x"]]),
        (".a | length", [4]),
        (".a[] | numbers", [1, 2.5]),
        ('[.a[] | select(type == "number") | . * 2]', [[2, 5.0]]),
        (".o.k.d and .o.j", [True]),
        ('(.n // .s) | split(" ")', [["one", "two"]]),
        ("if .o.j > 0 then 1 elif .s then 2 else 3 end", [2]),
        ("reduce .a[:2][] as $x (0; . + $x)", [3.5]),
        (".none", [None]),
        (".a | map(. == 1) | any", [True]),
        ('"<\\(.s)>"', ["<one two>"]),
        ("{s, j: .o.j}", [{"s": "one two", "j": 0}]),
        (".o | keys", [["j", "k"]]),
        ('.s | test("t.o")', [True]),
        ('try error("x") catch .', ["x"]),
        ("empty", []),
        ("7 / 2", [3.5]),
        ("[range(-1)], [range(2.5)]", [[], [0, 1, 2]]),
        ('.s | sub("o"; "0"; null)', ["0ne two"]),
        ('.s | gsub("(?<x>o)(?!n)"; "<" + .x + ">")', ["one tw<o>"]),
        ("(.n | floor)? // 7", [7]),
        ("[1, 2] | [recurse]", [[[1, 2], 1, 2]]),
    ],
)
def test_expressions(text, wanted):
    assert list(compile_jq(text)(DOCUMENT)) == wanted


@pytest.mark.parametrize("text", [".n[0]", ".none.deeper[0]", ".s.k", ".a.k", ".n.k", '1 + "x"', ".s[0]", *UNFIT])
def test_what_jaq_refuses(text):
    """Where jq gives null for an index of null, jaq has an error, and so has Dolma."""
    with pytest.raises(JqError):
        list(compile_jq(text)(DOCUMENT))
    assert list(compile_jq(f"({text})?")(DOCUMENT)) == []


def test_a_question_mark_is_for_the_last_step():
    """So it is with jaq 1.2, and with Dolma."""
    assert list(compile_jq(".o.none[0]?")(DOCUMENT)) == []
    assert list(compile_jq(".n[0]?[2]?")(DOCUMENT)) == []
    assert list(compile_jq("(.n[0][2])? // 7")(DOCUMENT)) == [7]
    assert list(compile_jq(".a[.o.j]?")(DOCUMENT)) == [1]
    for text in (".n[0][2]?", ".s.k.j?", ".n[0][]?", "[.n[0][1:]?]"):
        with pytest.raises(JqError):
            list(compile_jq(text)(DOCUMENT))


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".a |",
        "[.a",
        "{",
        "1 +",
        "(" * 9000,
        ".a as x | 1",
        "nothing_known",
        '"open',
        ".a = 1",
        "def f: 1; f",
        "9" * 5000,
    ],
)
def test_what_is_no_expression(text):
    with pytest.raises(ConfigError) as caught:
        compile_jq(text)
    assert caught.value.kind == "bad-expression"


@given(st.text('.[]|()a01"+,:{}?/ $', max_size=12))
def test_any_text_is_an_expression_or_an_error(text):
    try:
        run = compile_jq(text)
    except ConfigError:
        return
    outcomes = []
    for _ in range(2):
        try:
            outcomes.append(repr(run(DOCUMENT)))
        except JqError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1] and outcomes[0]  # nothing is kept from one value to the next


LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.sampled_from(["", "ab", "1"])
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)
SIGNS = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])


@given(st.dictionaries(st.sampled_from("ab"), TREES), SIGNS, st.sampled_from(["1", "0.5", "-1", "2.0"]))
def test_the_short_way_for_a_number_is_the_long_one(value, sign, number):
    for path in (".a", ".a[1]", ".a.b[0]", ".b[0][1]", '.["a"].b'):
        outcomes = []
        for text in (f"{path} {sign} {number}", f"{path} | . {sign} {number}"):
            try:
                outcomes.append(compile_jq(text)(value))
            except JqError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1], (path, sign, number)


def test_an_error_before_the_alternative_is_one_of_the_whole() -> None:
    """As with Dolma's jaq: only ``?`` stands errors."""
    with pytest.raises(JqError, match="cannot index null"):
        compile_jq("(.n[0][2] // 0) >= 0.5")({"n": []})
    assert compile_jq("((.n[0][2])? // 0) >= 0.5")({"n": []}) == [False]


@pytest.mark.parametrize(
    ("name", "hint"), [("getpath(1)", "Dolma does not support it either"), ("now", "Dolma may support it")]
)
def test_functions_that_are_not_there_are_named_with_whose_limit_it_is(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"Feedmill does not support {name.partition('(')[0]}/.*{hint}"):
        compile_jq(name)


@pytest.mark.parametrize(
    ("expression", "what", "character"),
    [
        (".n | sqrt", "sqrt/0", 6),
        ("pow(.n; 2) > 4", "pow/2", 1),
        ("infinite", "infinite/0", 1),
        ("(.date | fromdate) > 0", "fromdate/0", 10),
        ("1 + foreach .a[] as $x (0; . + $x)", "foreach", 5),
        ("def f: 1; f", "def", 1),
        ("until(. > 3; . + 1)", "until/2", 1),
        ("[range(0; 9; 3)]", "range/3", 2),
        ("recurse(.a)", "recurse/1", 1),
        ('.s | match("a")', "match/1", 6),
        (".a | group_by(.b)", "group_by/1", 6),
        (".s | @base64", "@base64 (formats)", 6),
        ('@json "x"', "@json (formats)", 1),
        (".a = 1", "= (assignments)", 4),
        (".a |= 1", "|= (assignments)", 4),
        (".a == $x", "$x", 7),
        ("$ENV.HOME", "$ENV", 1),
        ("(.a as $x | 1), $x", "$x", 17),
        (".a | ..*", "", 0),
    ],
)
def test_what_is_not_supported_is_named_with_its_place_and_what_is(expression: str, what: str, character: int) -> None:
    with pytest.raises(ConfigError) as caught:
        compile_jq(expression)
    if what:
        assert f"does not support {what}, at character {character} of the jq expression" in str(caught.value)
        assert "Supported are paths, comparisons" in str(caught.value) and " map, " in str(caught.value)
    assert caught.value.kind == "bad-expression"
