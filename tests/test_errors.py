"""The errors that several verbs share."""

from __future__ import annotations

import pytest

from feedmill.errors import EmptyResult, refuse_empty


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
