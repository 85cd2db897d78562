"""Runs of rows: their encoding, both directions, and lineages that are damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.documents.lineage.sidecar import (
    Origins,
    Runs,
    decode,
    decode_runs,
    decoded,
    encode,
    encode_runs,
    joined,
    lineage_path,
    read_lineage,
    sequences_of,
)
from feedmill.errors import DataError, NotFound

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=60)


def runs_of(rows: list[tuple[int, int]]) -> Runs:
    return Runs.of(np.array([file for file, _ in rows], np.int64), [row for _, row in rows])


@given(ROWS)
def test_runs_keep_the_origin_of_every_row(rows: list[tuple[int, int]]) -> None:
    runs = decode_runs(*encode_runs(runs_of(rows)))
    file, row = runs.origins(np.arange(len(rows)))
    assert list(zip(file.tolist(), row.tolist(), strict=True)) == rows and runs.rows == len(rows)
    for one in {*rows, (0, 0), (9, 9)}:
        assert sorted(runs.found(*one).tolist()) == [n for n, other in enumerate(rows) if other == one]


@given(ROWS, st.integers(0, 60), st.integers(0, 60))
def test_parts_of_runs_are_those_of_their_rows(rows: list[tuple[int, int]], first: int, last: int) -> None:
    part = joined([runs_of(rows).part(first, last)])
    wanted = runs_of(rows[first:last])
    assert all((a == b).all() for a, b in zip(part, wanted, strict=True))
    both = joined([runs_of(rows[:first]), runs_of(rows[first:])])
    assert all((a == b).all() for a, b in zip(both, runs_of(rows), strict=True))


@given(st.lists(st.integers(0, (1 << 62) - 1), max_size=50))
def test_numbers_keep_their_value(values: list[int]) -> None:
    assert decode(encode(np.array(values, np.int64))).tolist() == values


@pytest.mark.parametrize("data", [b"\x80", b"\x01\xff", b"\xff" * 9 + b"\x01"])
def test_damaged_numbers_are_errors(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


@pytest.mark.parametrize("kept", [0.9, 0.5, 0.1, 0.01, 0.001])
def test_any_share_of_rows_takes_less_than_two_bytes(kept: float) -> None:
    rows = np.flatnonzero(np.random.default_rng(3).random(1_000_000) < kept)
    assert sum(map(len, encode_runs(Runs.of(0, rows)))) < 2 * len(rows)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(2, 12))
def test_sequences_know_their_documents(lengths: list[int], size: int) -> None:
    origins = Origins("tokenize")
    origins.add(Runs.whole(origins.number("/raw/a.jsonl", 1), len(lengths)))
    count = sum(lengths) // size
    batches = [np.array(lengths[:7], np.int64), np.array(lengths[7:], np.int64)]
    data = origins.encoded("/out/x", 1, (count, sequences_of(batches, size)))
    lineage = decoded(data, "/out/x", "/out/x.lineage")
    owner = np.repeat(np.arange(len(lengths)), lengths)
    for sequence in range(count):
        wanted = np.unique(owner[sequence * size : (sequence + 1) * size]).tolist()
        assert [row for _, row in lineage.origins(sequence)] == wanted
    for document in range(len(lengths)):
        wanted = [s for s in range(count) if document in owner[s * size : (s + 1) * size]]
        assert lineage.found(0, document) == wanted
    with pytest.raises(NotFound, match="no row"):
        lineage.origins(count)


def test_many_runs_are_encoded_in_parts_that_do_not_depend_on_how_they_were_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("feedmill.documents.lineage.sidecar._TOGETHER", 16)
    numbers = np.random.default_rng(5)
    file, rows = numbers.integers(0, 3, 700), numbers.integers(0, 60, 700)
    found = set()
    for step in (1, 7, 64, 700):
        origins = Origins("shuffle")
        for name in "abc":
            origins.number(f"/raw/{name}", 1)
        for low in range(0, 700, step):
            origins.add(Runs.of(file[low : low + step], rows[low : low + step]))
        found.add(origins.encoded("/out/x", 1))
    (data,) = found
    lineage = decoded(data, "/out/x", "")
    assert all((a == b).all() for a, b in zip(lineage.runs.origins(np.arange(700)), (file, rows), strict=True))
    order = numbers.permutation(700)
    origins.reorder(order.tolist())
    again = decoded(origins.encoded("/out/x", 1), "/out/x", "")
    assert (again.runs.origins(np.arange(700))[1] == rows[order]).all()


def test_damaged_lineages_are_errors(tmp_path: Path) -> None:
    output = tmp_path / "x.pbin"
    output.write_bytes(b"12345")
    origins = Origins("tokenize")
    origins.add(Runs.of(origins.number(str(tmp_path / "a.jsonl"), 9), [0, 1, 5]))
    data = origins.encoded(str(output), 5)
    place = tmp_path / lineage_path("x.pbin")
    place.write_bytes(data)
    lineage = read_lineage(str(output))
    assert lineage is not None and lineage.inputs == [str(tmp_path / "a.jsonl")] and lineage.origins(2) == [(0, 5)]
    for damaged in (b"", data[:-1], data[:20], data[:30] + b"\0" + data[31:], b"X" + data[1:]):
        place.write_bytes(damaged)
        with pytest.raises(DataError, match="the lineage is corrupt") as caught:
            read_lineage(str(output))
        assert caught.value.file == str(place)
    place.unlink()
    assert read_lineage(str(output)) is None
