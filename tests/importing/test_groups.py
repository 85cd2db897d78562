"""What workers get, and what they write, is what it was before it took less time."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.importing import scanning
from feedmill.importing.documents import Unit, _encode_texts
from feedmill.importing.layouts import Group, Part, Planned, groups_of
from feedmill.importing.scanning import File, scan
from feedmill.jobs.reports import LeftOut
from feedmill.writing.shard import cut

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PARTS = st.builds(Part, TEXT, st.integers(0, 9), st.integers(0, 1), TEXT, st.none() | st.binary(max_size=3))
SAMPLES = st.lists(
    st.builds(Planned, TEXT, st.lists(PARTS, min_size=1, max_size=3).map(tuple), st.integers(1, 99)), min_size=1
)
FILES = st.lists(st.builds(File, st.integers(0, 1), TEXT, st.integers(0, 9), TEXT), min_size=1)


@given(SAMPLES, st.integers(1, 5), st.integers(1, 200))
def test_groups_arrive_as_they_were_sent(samples: list[Planned], count: int, most: int) -> None:
    groups = list(groups_of(samples, count, most))
    assert [planned for group in groups for planned in group] == samples
    assert all(len(group) <= count and (group.size <= most or len(group) == 1) for group in groups)
    for group in groups:
        there = pickle.loads(pickle.dumps(group))
        assert isinstance(there, Group) and list(there) == list(group)
        assert all(type(planned) is Planned and type(planned.parts[0]) is Part for planned in there)


@given(st.lists(st.integers(0, 20)), st.integers(1, 5), st.integers(1, 40))
def test_shards_are_as_large_as_the_limits_allow(sizes: list[int], samples: int, size: int) -> None:
    wanted, at = [0], 0
    for number in range(1, len(sizes) + 1):
        within = number < len(sizes) and number - at < samples and sum(sizes[at : number + 1]) <= size
        if not within:
            wanted.append(number)
            at = number
    assert cut(len(sizes), np.asarray(sizes, np.int64), samples, size) == wanted
    assert cut(len(sizes), None, samples, None) == [*range(0, len(sizes), samples), len(sizes)]


@given(st.integers(0, 9), FILES)
def test_units_arrive_as_they_were_sent(number: int, files: list[File]) -> None:
    there: Any = pickle.loads(pickle.dumps(Unit(number, files)))
    assert there == Unit(number, files) and all(type(file) is File for file in there.files)


@given(TEXT, TEXT)
def test_a_text_is_encoded_as_a_table_would_be(name: str, text: str) -> None:
    document = {"id": f"{name}:1", "text": text, "source": name, "metadata": {"file": name, "title": text}}
    assert _encode_texts(document) == msgspec.json.encode(document)


def test_workers_are_started_during_the_scan_of_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").touch()
    called: list[int] = []
    for many, times in ((4, 0), (3, 1)):
        monkeypatch.setattr(scanning, "MANY", many)
        assert len(scan([str(tmp_path)], "out", LeftOut(), on_many=lambda: called.append(1)).files) == 3
        assert len(called) == times
