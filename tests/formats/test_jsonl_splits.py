"""Splits of a JSONL file: pieces of records, their file, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.formats.jsonl.splits import LineSplits, Pieces, read_splits, splits_name, write_splits
from feedmill.storage import LocalStore
from helpers.tars import write_tar

EDGES = st.lists(st.integers(0, 60), max_size=12).map(sorted)


def pieces(edges: list[int]) -> Pieces:
    return Pieces(list(pairwise(edges))[::2])


def numbers(some: Pieces) -> list[int]:
    return some.records(np.arange(len(some))).tolist()


@given(EDGES)
def test_samples_are_the_records_of_the_pieces_and_back(edges: list[int]) -> None:
    some = pieces(edges)
    expected = [n for begin, end in list(pairwise(edges))[::2] for n in range(begin, end)]
    assert numbers(some) == expected
    assert [some.index(n) for n in range(70)] == [expected.index(n) if n in expected else None for n in range(70)]
    for count in range(len(some) + 1):
        assert numbers(Pieces(some.first(count))) == expected[:count]


@given(EDGES, EDGES)
def test_the_file_gives_back_what_was_written(tmp_path_factory: pytest.TempPathFactory, a: list, b: list) -> None:  # type: ignore[type-arg]
    store = LocalStore(tmp_path_factory.mktemp("s"))
    write_splits(store, "x.jsonl", LineSplits(60, 777, {"train": pieces(a), "odd name": pieces(b)}))
    found = read_splits(store, "x.jsonl")
    assert found is not None and (found.samples, found.last_at) == (60, 777)
    assert {name: p.ranges for name, p in found.parts.items()} == {
        "train": pieces(a).ranges,
        "odd name": pieces(b).ranges,
    }


@given(EDGES, st.sets(st.integers(0, 79)))
def test_without_records_the_others_stay_where_they_were(edges: list[int], gone: set[int]) -> None:
    offsets = np.arange(81, dtype=np.int64) * 10
    before = LineSplits(60, 590, {"train": pieces(edges)})
    after = before.without(sorted(gone), offsets)
    kept = [n for n in range(80) if n not in gone]
    assert [kept[n] for n in numbers(after.parts["train"])] == [
        n for n in numbers(before.parts["train"]) if n not in gone
    ]
    assert not after.samples or after.fits(np.arange(len(kept) + 1, dtype=np.int64) * 10)


def test_new_records_join_the_first_split() -> None:
    old = LineSplits(4, 30, {"train": Pieces([(0, 2)]), "val": Pieces([(2, 4)])})
    offsets = np.arange(7, dtype=np.int64) * 10
    new = old.extended(offsets)
    assert (new.samples, new.last_at) == (6, 50)
    assert {name: p.ranges for name, p in new.parts.items()} == {"train": [(0, 2), (4, 6)], "val": [(2, 4)]}
    assert new.fits(offsets) and old.fits(offsets) and not new.fits(offsets[:-1]) and not old.fits(offsets * 2)
    assert new.extended(offsets).parts["train"].ranges == new.parts["train"].ranges
    later = offsets + np.asarray([0, 0, 0, 0, 1, 1, 1])  # the last line had no line break
    assert old.fits(later)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "invalid split file: expected"),
        ("samples: 3\nlast_at: 9\n", "invalid split file: expected"),
        ("samples: 3\nlast_at: 9\nsplit_parts: {a: []}\nmore: 1\n", "invalid split file: expected"),
        ("samples: true\nlast_at: 9\nsplit_parts: {}\n", "'samples' must be a number"),
        ("samples: 3\nlast_at: -1\nsplit_parts: {}\n", "'last_at' must be a number"),
        ("samples: 3\nlast_at: 9\nsplit_parts:\n  a: 7\n", ":4: the split 'a' must be a list"),
        ("samples: 3\nlast_at: 9\nsplit_parts:\n  a: [[0, 1], [1]]\n", "a range must be two record numbers"),
        ("samples: 3\nlast_at: 9\nsplit_parts:\n  a: [[0, 4]]\n", "not within the 3 records"),
        ("samples: 3\nlast_at: 9\nsplit_parts:\n  a: [[2, 1]]\n", "not within the 3 records"),
        ("samples: 3\nlast_at: 9\nsplit_parts:\n  a: [[1, 3], [0, 1]]\n", "begins before the end"),
    ],
)
def test_a_file_that_makes_no_sense(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / splits_name("x.jsonl")).write_text(text)
    with pytest.raises(ConfigError) as error:
        read_splits(LocalStore(tmp_path), "x.jsonl")
    assert said in str(error.value) and "x.jsonl.split.yaml" in str(error.value)


def test_a_split_of_a_file_without_splits_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Energon reads all of the file for any split, so the data of validation can be that of training."""
    path = tmp_path / "d.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\n')
    note = f"{path}: it has no splits, and 'val' is all of it"
    for opened in (
        lambda split: fm.open(path, split=split),
        lambda split: fm.Recipe.parse({"source": {"path": str(path), "split": split}, "epochs": 1}).plan(),
    ):
        caplog.clear()
        with caplog.at_level("WARNING", "feedmill"):
            assert [len(opened(split)) for split in ("*", "train")] == [2, 2] and not caplog.messages
            assert len(opened("val")) == 2 and caplog.messages == [note]
    (tmp_path / "d").mkdir()
    write_tar(tmp_path / "d/0.tar", [("a.txt", b"x")])
    with pytest.raises(ConfigError, match="'split_config' is only for prepared folders, this is webdataset"):
        fm.open(tmp_path / "d", split_config="other.yaml")
