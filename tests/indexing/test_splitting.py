"""Ratio and pattern splits."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.indexing import splitting
from feedmill.indexing.prepare import prepare
from helpers.tars import make_shards

RATIO = st.lists(st.fractions(0, 10, max_denominator=20), min_size=1, max_size=3).filter(any)


@given(st.integers(0, 60), RATIO, st.booleans())
def test_ratio_splits_lose_and_repeat_nothing(count: int, ratio: list[Fraction], cumulative: bool) -> None:
    shards = [f"{i}.tar" for i in range(count)]
    found = splitting.by_ratio(shards, ratio, cumulative=cumulative)
    assert [shard for name in splitting.NAMES for shard in found[name]] == shards
    for part, name in zip(ratio, splitting.NAMES, strict=False):
        assert abs(len(found[name]) - count * part / sum(ratio)) < 1
        if not part and not cumulative:
            assert not found[name]


@pytest.mark.parametrize("text", ["8,1,1", "0.8, 0.1, 0.1", "80,10,10", "4/5,1/10,1/10"])
def test_ratios_are_exact(text: str) -> None:
    sizes = {n: len(s) for n, s in splitting.by_ratio(list("abcdefghij"), splitting.parse_ratio(text)).items()}
    assert sizes == {"train": 8, "val": 1, "test": 1}


@pytest.mark.parametrize(
    "text",
    [
        "1e400,1,1",
        "inf,1",
        "nan,1",
        "1,nan",
        "-1,2",
        "1,-1",
        "0,0,0",
        "1e20000000,1",
        "1e-20000000",
        "1,2,3,4",
        "",
        "1,",
        "x",
        "1/0,1",
        "-1/2,1",
        "8:1:1",
        "1" * 5000,
    ],
)
def test_what_divides_nothing_is_no_ratio(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid split ratio") as caught:
        splitting.parse_ratio(text)
    assert "finite numbers" in str(caught.value)


def test_patterns_match_from_the_start_and_may_overlap() -> None:
    shards = ["a/0.tar", "a/1.tar", "b/a/0.tar"]
    found = splitting.by_pattern(shards, ["x:a/.*", "y:{a,b}/.*0", "z:.*"])
    assert found == {"x": shards[:2], "y": ["a/0.tar", "b/a/0.tar"], "z": shards}
    assert splitting.by_pattern(shards, ["x:q.*"], strict=False) == {"x": []}
    with pytest.raises(ConfigError, match="matches none"):
        splitting.by_pattern(shards, ["x:q_.*"])
    named = ["train_0.tar", "train_1.tar", "trains.tar"]
    with pytest.raises(ConfigError, match=r"matches 3 shards, as a glob pattern it would match 2.* 'train_\.\*'"):
        splitting.by_pattern(named, ["train:train_*"])


def test_several_patterns_of_one_split_add_up() -> None:
    shards = ["a/0.tar", "a/1.tar", "b/0.tar", "c/0.tar"]
    found = splitting.by_pattern(shards, ["train:b/.*", "val:c/.*", "train:a/.*"])
    assert found == {"train": ["a/0.tar", "a/1.tar", "b/0.tar"], "val": ["c/0.tar"]}


def test_later_shards_join_the_first_split_only() -> None:
    parts = {"train": ["0", "1"], "val": ["2"]}
    assert splitting.extended(parts, ["0", "2", "3"], {}) == {"train": ["0", "3"], "val": ["2"]}
    other = {"train": ["0"], "val": ["2", "3"]}  # those of the user are not those of the names
    assert splitting.extended({"train": ["0", "2"]}, ["0", "2", "3"], other) == {"train": ["0", "2", "3"]}


def test_later_shards_join_the_split_of_their_names() -> None:
    parts, told = {"train": ["0", "1"], "val": ["2"]}, {"train": ["0", "4"], "val": ["2", "3"], "test": ["5"]}
    assert splitting.extended(parts, ["0", "2", "3", "4", "5", "6"], told) == told


def test_shards_that_leave_another_split_than_the_first_are_told() -> None:
    parts = {"train": ["0.tar", "1.tar"], "val": ["2.tar", "3.tar"], "test": ["4.tar"]}
    assert splitting.leaving(parts, ["0.tar", "2.tar", "4.tar"]) == [
        "the split 'val' loses 1 of its 2 shards (the first is '3.tar'). If they are restored, they join"
        " 'train' unless you use --split-parts."
    ]
    assert splitting.leaving(parts, ["2.tar", "3.tar", "4.tar"]) == []


@given(st.integers(1, 40), RATIO, st.booleans())
def test_an_empty_split_is_said_with_a_number_that_is_enough(
    count: int, ratio: list[Fraction], cumulative: bool
) -> None:
    def sizes(whole: int) -> dict[str, int]:
        shards = [str(i) for i in range(whole)]
        return {n: len(s) for n, s in splitting.by_ratio(shards, ratio, cumulative=cumulative).items()}

    found = splitting.empty_splits(sizes(count), ratio, "shards", cumulative=cumulative)
    asked = [name for name, part in zip(splitting.NAMES, ratio, strict=False) if part]
    assert bool(found) == (not all(sizes(count)[name] for name in asked))
    if found:
        enough = int(found[0].split(", ")[-1].split(" ")[0].replace(",", ""))
        assert enough > count and all(sizes(enough)[name] for name in asked)


def test_a_huge_ratio_is_quick() -> None:
    assert "500,001 are enough" in splitting.empty_splits({"train": 3}, [Fraction(10**6), Fraction(1)], "lines")[0]


@pytest.mark.parametrize("count", [5, 6])
def test_preparing_warns_of_empty_splits(tmp_path: Path, count: int) -> None:
    make_shards(tmp_path / "d", [2] * count)
    report = prepare(str(tmp_path / "d"), split_ratio="8,1,1", progress=False)
    assert report.splits["test"] == 0
    assert any("'test' is empty" in warning and "are enough" in warning for warning in report.warnings)
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' * count)
    assert "lines are too few" in prepare(str(tmp_path / "a.jsonl"), split_ratio="8,1,1", progress=False).warnings[0]
