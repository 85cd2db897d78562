"""The errors that several verbs share."""

from __future__ import annotations

import json

import pytest

from feedmill.curation.measure import compiled
from feedmill.documents.expressions import compile_jq, compile_path
from feedmill.errors import ConfigError, EmptyResult, refuse_empty, whole
from feedmill.jobs.parts import PartEngine
from feedmill.storage.limits import parse_size


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
        assert caught.value.kind == "bad-number" and len(str(caught.value)) < 200
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
