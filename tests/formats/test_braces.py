"""Brace patterns: expansion as in a shell, and the shortest patterns for a list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.formats.tar.names import collapse, expand

EXPANSIONS = [
    ("a.tar", ["a.tar"]),
    ("s{000..002}.tar", ["s000.tar", "s001.tar", "s002.tar"]),
    ("{9..11}", ["9", "10", "11"]),
    ("{2..0}", ["2", "1", "0"]),
    ("{0..6..3}", ["0", "3", "6"]),
    ("{a,b{0..1}}x", ["ax", "b0x", "b1x"]),
    ("{a..c}", ["a", "b", "c"]),
    ("{x}{1,2}", ["{x}1", "{x}2"]),
    ("open{brace", ["open{brace"]),
    ("{,a}b", ["b", "ab"]),
    ("{01..3}", ["01", "02", "03"]),
]


@pytest.mark.parametrize(("pattern", "wanted"), EXPANSIONS)
def test_expand(pattern: str, wanted: list[str]) -> None:
    assert expand(pattern) == wanted


def test_an_absurd_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than"):
        expand("{0..99999999999}")


@pytest.mark.parametrize("pattern", ["{" * 5000, "{a," * 5000 + "b" + "}" * 5000, "{0.." + "9" * 5000 + "}"])
def test_what_no_one_means_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="too many braces or digits"):
        expand(pattern)


COLLAPSED = [
    (["a/0.tar", "a/1.tar", "a/2.tar"], ["a/{0..2}.tar"]),
    (["9.tar", "10.tar"], ["9.tar", "10.tar"]),
    (["s_0001.tar", "s_0003.tar", "s_0004.tar"], ["s_0001.tar", "s_{0003..0004}.tar"]),
    (["a1b2", "a1b3", "a2b3"], ["a1b{2..3}", "a2b3"]),
    (["x.tar"], ["x.tar"]),
    ([], []),
]


@pytest.mark.parametrize(("names", "wanted"), COLLAPSED)
def test_collapse(names: list[str], wanted: list[str]) -> None:
    assert collapse(names) == wanted


@given(st.lists(st.from_regex(r"[ab]{0,2}[0-9]{1,3}(_[0-9]{1,2})?\.tar", fullmatch=True), max_size=30))
def test_collapse_loses_nothing(names: list[str]) -> None:
    patterns = collapse(names)
    assert [name for pattern in patterns for name in expand(pattern)] == names
    assert len(patterns) <= len(names)
