"""Rows of numbers from ranges of remote files: read ahead or not, of every type, aligned or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.range_server import range_server

from feedmill.errors import DataError
from feedmill.formats import offsets
from feedmill.formats.offsets import read_rows
from feedmill.kernels.files.ranges import copy_rows
from feedmill.storage.fetching.read_ahead import ReadAhead, Starving
from feedmill.storage.remote.object_store import RemoteStore

_SIZE = 1 << 16
_PATHS = ["a", "b"]


@pytest.fixture(scope="module")
def server():
    with range_server() as running:
        running.objects["a"] = bytes(np.random.default_rng(3).integers(0, 256, _SIZE, np.uint8))
        running.objects["b"] = running.objects["a"][::-1]
        yield running


def _ahead(store: RemoteStore, files: np.ndarray, offsets: np.ndarray, size: int) -> ReadAhead:
    reader = ReadAhead(1 << 20)
    reader.want(store, _PATHS, files, offsets, offsets + size, np.zeros_like(files), Starving())
    return reader


def _expected(server, files, offsets, dtype, width):
    return [
        np.frombuffer(server.objects[_PATHS[file]], dtype, width, offset).tolist()
        for file, offset in zip(files.tolist(), offsets.tolist(), strict=True)
    ]


@given(st.data())
@pytest.mark.parametrize("ahead", [True, False])
def test_rows_are_the_numbers_of_their_ranges(server, ahead, data):
    stored = data.draw(st.sampled_from(["<u1", "<u2", "<u4", "<i4", "<i8", ">u2", ">u4"]))
    dtype, width = np.dtype(stored), data.draw(st.integers(1, 40))
    into = data.draw(st.sampled_from([np.dtype(np.int64), dtype]))
    one = st.tuples(st.integers(0, 1), st.integers(0, _SIZE - width * dtype.itemsize))
    files, offsets = np.asarray(sorted(data.draw(st.lists(one, min_size=1, max_size=20))), np.int64).T
    rows = np.asarray(data.draw(st.permutations(range(len(files) + 2))), np.int64)[: len(files)]
    out = np.full((len(files) + 2, width), 77, into)
    store = RemoteStore("s3://bkt", **server.options)
    reader = _ahead(store, files, offsets, width * dtype.itemsize) if ahead else None
    asked = len(server.asked)
    read_rows(store, _PATHS, files, offsets, dtype, out, rows)
    assert out[rows].tolist() == _expected(server, files, offsets, dtype, width)
    assert (np.delete(out, rows, axis=0) == into.type(77)).all()
    if reader is not None:
        reader.close()
        assert len(server.asked) <= asked + reader.requests  # nothing was requested again


def test_what_was_read_ahead_is_widened_where_it_is(server, monkeypatch):
    monkeypatch.setattr("feedmill.formats.offsets.read_remote", None)
    store, files, offsets = RemoteStore("s3://bkt", **server.options), np.zeros(3, np.int64), np.array([1, 7, 300])
    reader = _ahead(store, files, offsets, 10)
    out = np.zeros((3, 5), np.int64)
    read_rows(store, _PATHS, files, offsets, np.dtype(np.uint16), out, np.arange(3))
    assert out.tolist() == _expected(server, files, offsets, np.uint16, 5)
    reader.close()


def test_rows_of_a_slice_of_columns_are_filled_in_place(server):
    store, files, offsets = RemoteStore("s3://bkt", **server.options), np.zeros(2, np.int64), np.array([0, 40])
    reader = _ahead(store, files, offsets, 6)
    out = np.zeros((2, 8), np.int64)
    read_rows(store, _PATHS, files, offsets, np.dtype(np.uint16), out[:, 2:5], np.arange(2))
    assert out[:, 2:5].tolist() == _expected(server, files, offsets, np.uint16, 3)
    assert not out[:, :2].any() and not out[:, 5:].any()
    reader.close()


def test_a_range_behind_the_end_of_a_file_is_an_error_of_that_file(server):
    store = RemoteStore("s3://bkt", **server.options)
    with pytest.raises(DataError, match="a"):
        read_rows(
            store, _PATHS, np.zeros(1, np.int64), np.array([_SIZE - 4]), np.dtype(np.uint16),
            np.zeros((1, 5), np.int64), np.arange(1),
        )  # fmt: skip


def test_rows_are_copied_without_memory_of_their_own():
    memory = np.arange(40, dtype=np.uint8)
    row, out = np.empty(3, np.uint16), np.zeros((4, 3), np.int64)
    origins = memory.ctypes.data + np.array([1, 8], np.int64)
    copy_rows(origins, row, row.ctypes.data, np.array([3, 0]), out)
    assert out[3].tolist() == np.frombuffer(memory.tobytes(), np.uint16, 3, 1).tolist()
    assert out[0].tolist() == np.frombuffer(memory.tobytes(), np.uint16, 3, 8).tolist()
    assert not out[1:3].any()


@given(st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(-2, 10), max_size=6)), min_size=1, max_size=5))
def test_spans_of_records_are_two_neighbors_in_the_offsets_of_their_file(files):
    rng = np.random.default_rng(len(files))
    tables = [np.cumsum(rng.integers(1, 1 << 40, records + 1)).astype("<i8") for records, _ in files]
    tables[0] = np.repeat(tables[0], 2)[::2]  # not contiguous, as a column of a table
    counts = np.asarray([len(wanted) for _, wanted in files], np.int64)
    numbers = np.asarray([number for _, wanted in files for number in wanted], np.int64)
    if any(not 0 <= number < records for records, wanted in files for number in wanted):
        with pytest.raises(IndexError):
            offsets.gather_spans(tables, counts, numbers)
        return
    begins, ends = offsets.gather_spans(tables, counts, numbers)
    pairs = zip(tables, files, strict=True)
    expected = [(table[number], table[number + 1]) for table, (_, wanted) in pairs for number in wanted]
    assert list(zip(begins.tolist(), ends.tolist(), strict=True)) == expected
