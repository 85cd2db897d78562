"""Pickled lists of pairs: equal to CPython's bytes, read back, and nothing else accepted."""

from __future__ import annotations

import os
import pickle
import pickletools
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.files import pairs
from helpers.durations import examples
from oracles import pairs as plain_pairs

NUMBERS = st.one_of(
    st.integers(0, 300),
    st.integers(0, 2**17),
    st.sampled_from([2**p + d for p in (8, 15, 16, 31, 32, 39, 40, 47, 55, 62) for d in (-1, 0, 1)] + [2**63 - 1]),
)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=40)


def arrays(entries: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(entries, np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def read(data: bytes, compiled: bool, step: int = 1 << 16) -> list[tuple[int, int]] | pairs.Fault:
    blocks = [data[at : at + step] for at in range(0, len(data), step)]
    try:
        pieces = list(pairs.decode(blocks)) if compiled else [plain_pairs.decode(data)]
    except pairs.PickleFault as error:
        return error.fault
    return [pair for a, b in pieces for pair in zip(a.tolist(), b.tolist(), strict=True)]


def encode(entries: list[tuple[int, int]], compiled: bool) -> bytes:
    return b"".join(pairs.encode(*arrays(entries))) if compiled else plain_pairs.encode(*arrays(entries))


def documents(count: int, seed: int = 0) -> list[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, [200, 70_000, 2**33][seed % 3], count)
    starts = np.cumsum(lengths) - lengths + 2**32 * (seed % 2)
    return list(zip(starts.tolist(), lengths.tolist(), strict=True))


@pytest.mark.parametrize("compiled", [False, True])
def test_bytes_equal_to_cpython_for_every_small_count(compiled: bool) -> None:
    entries = documents(3000, 1)
    for count in [*range(0, 3000, 1 if compiled else 53), 1000, 1001, 2000, 2001]:
        written = encode(entries[:count], compiled)
        assert written == pickle.dumps(entries[:count], 4), count


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_long_lists_written_and_read(compiled: bool, seed: int) -> None:
    entries = documents(300_000 if compiled else 30_000, seed)
    written = encode(entries, compiled)
    assert written == pickle.dumps(entries, 4)
    assert read(written, compiled, 70_001) == entries


@settings(max_examples=examples(150), deadline=None)
@given(entries=PAIRS, protocol=st.integers(2, 5), step=st.integers(1, 40))
def test_round_trip(entries: list[tuple[int, int]], protocol: int, step: int) -> None:
    # CPython stores a tuple that occurs twice as a reference; from a file read or an index made, none does.
    data = pickle.dumps([(int(str(a)), b) for a, b in entries], protocol)
    for compiled in (False, True):
        assert encode(entries, compiled) == pickle.dumps(entries, 4) or len({id(e) for e in entries}) < len(entries)
        assert read(data, compiled, step) == entries


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("compiled", [False, True])
def test_other_writers_forms(protocol: int, compiled: bool) -> None:
    entries = documents(700, 2)
    data = pickle.dumps(entries, protocol)
    assert read(data, compiled) == entries
    assert read(pickletools.optimize(data), compiled) == entries  # no memos


class Attack:
    def __reduce__(self):  # type: ignore[no-untyped-def]
        return os.system, ("echo unpickled",)


HOSTILE = {
    "code": Attack(),
    "code inside": [(0, 1), (1, Attack())],
    "dict": {0: 1},
    "ordered dict": OrderedDict(a=1),
    "text": "x",
    "floats": [(0.0, 1.0)],
    "lists": [[0, 1]],
    "triples": [(0, 1, 2)],
    "singles": [(0,), (1,)],
    "numbers": [0, 1],
    "tuple of pairs": ((0, 1), (1, 2)),
    "negative": [(0, -1)],
    "negative long": [(-(2**40), 1)],
    "too large": [(2**63, 1)],
    "huge": [(2**4000, 1)],
    "none": [(None, 1)],
    "true": [(True, 1)],
    "numpy": np.arange(4),
    "shared pair": [(0, 1)] * 3,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_everything_else_is_refused(name: str, protocol: int) -> None:
    data = pickle.dumps(HOSTILE[name], protocol)
    faults = [read(data, compiled) for compiled in (False, True)]
    assert isinstance(faults[0], pairs.Fault)
    assert faults[0] == faults[1]
    assert 0 <= faults[0].offset <= len(data)


@settings(max_examples=examples(400), deadline=None)
@given(
    count=st.integers(0, 30),
    protocol=st.sampled_from([2, 4]),
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 60),
    extra=st.binary(max_size=2),
    step=st.integers(1, 50),
)
def test_damaged_pickles_are_the_same_to_both_readers(
    count: int, protocol: int, edits: list[tuple[int, int]], cut: int, extra: bytes, step: int
) -> None:
    data = bytearray(pickle.dumps(documents(count, 2), protocol))
    for at, value in edits:
        data[at % len(data)] = value
    whole = bytes(data[: len(data) - cut if cut < len(data) else 0]) + extra
    plain = read(whole, False)
    assert read(whole, True, step) == plain
    if not isinstance(plain, pairs.Fault):
        assert plain == pickle.loads(whole)  # what is accepted is what Python would have read


def test_every_cut_is_noticed() -> None:
    data = pickle.dumps(documents(20, 2), 4)
    for cut in range(len(data)):
        for compiled in (False, True):
            assert isinstance(read(data[:cut], compiled), pairs.Fault)


def test_bytes_behind_the_end() -> None:
    data = pickle.dumps(documents(3), 4) + b"\0"
    assert read(data, False) == pairs.Fault(pairs.TRAILING, len(data) - 1, 0)


def test_opcodes_have_names() -> None:
    assert pairs.opcode_name(0x63) == "GLOBAL (0x63)"
    assert pairs.opcode_name(0xFF) == "0xff"
