"""The errors that several verbs share."""

from __future__ import annotations

import ast
import json
import runpy
from difflib import SequenceMatcher
from itertools import combinations

import pytest

from feedmill.curation.measure import compiled
from feedmill.documents.expressions import compile_jq, compile_path
from feedmill.errors import ConfigError, DataError, EmptyResult, refuse_empty, whole
from feedmill.jobs.parts import PartEngine
from feedmill.storage.limits import parse_size
from helpers.kinds import LISTED, OF_THE_SYSTEM
from test_rooms import ROOT, house


def test_a_result_with_something_in_it_passes() -> None:
    refuse_empty(1, 100)


def test_an_empty_result_names_counts_and_reasons_most_frequent_first() -> None:
    reasons = {"too short": 3, "too long": 97}
    with pytest.raises(EmptyResult) as error:
        refuse_empty(0, 100, file="x.pbin", skipped=reasons, fix="Lower the limit.")
    assert str(error.value) == (
        "x.pbin: the result would be empty: 0 of 100 documents kept (97: too long; 3: too short). "
        "Lower the limit. Pass --allow-empty if this is intended."
    )
    assert error.value.kind == "empty-result"


def test_inputs_without_anything_are_told_from_inputs_of_which_nothing_is_kept() -> None:
    with pytest.raises(EmptyResult, match="the inputs hold no samples"):
        refuse_empty(0, 0, "sample")


def test_many_reasons_are_counted() -> None:
    with pytest.raises(EmptyResult, match="and 2 more reasons"):
        refuse_empty(0, 28, skipped={str(number): number for number in range(1, 8)})


def test_an_empty_result_that_is_allowed_passes() -> None:
    refuse_empty(0, 100, allow=True)
    refuse_empty(0, 0, allow=True)


def test_numbers_of_users_may_have_any_number_of_digits() -> None:
    """Python refuses to convert more than 4,300 digits, with a `ValueError`."""
    long = "9" * 5000
    assert whole("-0012", "x") == -12 and whole("9" * 18, "x") == 10**18 - 1
    for text in (long, "²", "٣", "", "-", "1.5", "0x1"):
        with pytest.raises(ConfigError) as caught:
            whole(text, "the number")
        assert caught.value.kind == "bad-option" and len(str(caught.value)) < 200
    for path in ("$[?(@.n == %s)]", "$[?(@.n == -%s)]", "$[%s]", "$[0][%s]", "$[?(@.a size %s)]"):
        with pytest.raises(ConfigError, match="digits"):
            compile_path(path % long)
    assert compile_path("$[?(@.n == 123456789012345678901234567890)]")
    for part in (f"{long}/{long}", f"1/{long}", f"{long}/4"):
        with pytest.raises(ConfigError):
            PartEngine.parse(part)
    for size in (long, f"{long}GB", f"1.{long}kB"):
        with pytest.raises(ConfigError):
            parse_size(size, "--x")


@pytest.mark.parametrize("pattern", ["a{99999999999}", "a{" + "9" * 5000 + "}", "[", "(" * 5000 + ")" * 5000])
def test_patterns_of_users_are_errors_of_users(pattern: str) -> None:
    """Huge repetitions and deep nesting are no `re.error`."""
    with pytest.raises(ConfigError, match="is not a valid regular expression"):
        compiled(pattern)
    assert list(compile_jq(f'try test({json.dumps(pattern)}) catch "caught"')("a")) == ["caught"]


def test_every_kind_that_is_raised_is_listed() -> None:
    """`helpers.kinds` sees those that functions and tables hand on, in every test."""
    for name, path in house.modules().items():
        if "kind=" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            if not getattr(node.func, "attr", getattr(node.func, "id", "")).endswith(("Error", "NotFound")):
                continue
            given = [value.value for value in node.keywords if value.arg == "kind"]
            constants = (word.value for value in given for word in ast.walk(value) if isinstance(word, ast.Constant))
            unlisted = {word for word in constants if isinstance(word, str)} - {*LISTED, *OF_THE_SYSTEM}
            assert not unlisted, f"{name}:{node.lineno}: list {unlisted} in feedmill.errors.KINDS, or use a listed kind"


def test_a_kind_that_is_not_listed_is_refused_wherever_it_comes_from() -> None:
    namespace = {"__name__": "feedmill.somewhere", "DataError": DataError}
    assert eval("DataError('x', kind='truncated')", namespace).kind == "truncated"
    assert DataError("of a user", kind="own-word").kind == "own-word"
    with pytest.raises(AssertionError, match="own-word"):
        eval("DataError('x', kind='own-word')", namespace)


def test_every_listed_kind_is_raised() -> None:
    left = set(LISTED)
    for path in house.modules().values():
        text = path.read_text()
        if any(f'"{kind}"' in text for kind in left):
            left -= set(house.kinds_named(path))
    assert not left


def test_no_kind_is_nearly_another() -> None:
    """A program that misspells one must not match another."""
    assert len(LISTED) == len({*LISTED})
    for one, other in combinations(LISTED, 2):
        near = SequenceMatcher(None, one, other).ratio()
        assert near < 0.9 and {*one.split("-")} != {*other.split("-")}, (one, other)


def test_the_page_of_kinds_is_made_from_the_list() -> None:
    made = runpy.run_path(str(ROOT / "docs/reference/write.py"))
    assert made["PAGE"].read_text() == made["page"](), "run: python docs/reference/write.py"
