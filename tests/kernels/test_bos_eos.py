"""Ids as they are stored, against one document at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feedmill.kernels.bos_eos import add_bos_eos

DOCUMENTS = st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=40), st.booleans()), max_size=20)
TOKEN = st.none() | st.integers(0, 9)


def model(ids: list[int], bos: int | None, eos: int | None, always: bool) -> tuple[list[int], int]:
    if not ids:
        return [], 0
    before = [] if bos is None or (not always and ids[0] == bos) else [bos]
    behind = [] if eos is None or (not always and ids[-1] == eos) else [eos]
    return [*before, *ids, *behind], len(before)


@given(DOCUMENTS, TOKEN, TOKEN, st.booleans(), st.sampled_from(["<u2", "<u4"]))
def test_as_one_document_at_a_time(
    documents: list[tuple[list[int], bool]], bos: int | None, eos: int | None, always: bool, dtype: str
) -> None:
    ids = np.array([i for one, _ in documents for i in one], np.uint32)
    ids.flags.writeable = False  # as what an engine gives
    ends = np.cumsum([0] + [len(one) for one, _ in documents])
    kept = np.array([keep for _, keep in documents], np.bool_)
    found = add_bos_eos(ids, ends[1:] - ends[:-1], kept, bos=bos, eos=eos, always=always, dtype=dtype)
    wanted = [model(one, bos, eos, always) if keep else ([], 0) for one, keep in documents]
    assert found.tokens.tolist() == [i for one, _ in wanted for i in one] and found.tokens.dtype == dtype
    assert found.lengths.tolist() == [len(one) for one, _ in wanted]
    assert found.before.tolist() == [before for _, before in wanted]


def test_the_largest_tokens() -> None:
    for dtype, largest in (("<u2", (1 << 16) - 1), ("<u4", (1 << 32) - 1)):
        ids = np.array([largest, 0], np.uint32)
        found = add_bos_eos(ids, np.array([2]), np.array([True]), bos=largest, eos=largest, always=False, dtype=dtype)
        assert found.tokens.tolist() == [largest, 0, largest]
