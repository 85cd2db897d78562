from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.errors import DataError
from feedmill.storage import LocalStore
from feedmill.storage.window import Window

DATA = bytes(range(256)) * 3


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    root = tmp_path_factory.mktemp("window")
    (root / "f").write_bytes(b"before" + DATA + b"after")
    return LocalStore(root)


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(-20, 900), st.integers(0, 900))))
def test_a_window_reads_as_a_file_of_its_own(store: LocalStore, steps: list[tuple[int, int, int]]) -> None:
    ours, plain = Window(store, "f", 6, len(DATA)), io.BytesIO(DATA)
    for whence, offset, count in steps:
        base = {0: 0, 1: plain.tell(), 2: len(DATA)}[whence]
        if base + offset >= 0:
            assert ours.seek(offset, whence) == plain.seek(base + offset)
        assert ours.read(count) == plain.read(count)
        assert ours.tell() == plain.tell()


def test_windows_are_refused_before_their_beginning_and_pickle_without_data(store: LocalStore) -> None:
    window = Window(store, "f", 6, len(DATA))
    with pytest.raises(ValueError, match="negative position"):
        window.seek(-1)
    again = pickle.loads(pickle.dumps(window))
    assert io.BufferedReader(again).read() == DATA
    assert len(pickle.dumps(window)) < 300


def test_a_file_that_shrank_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    with pytest.raises(DataError, match="truncated"):
        Window(LocalStore(tmp_path), "f", 2, 9).read(9)
