import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.curation.dedupe import exact
from oracles import murmur

PAIR = st.tuples(st.sampled_from([0, 1, 2, 1 << 63, 2**64 - 1]), st.integers(1, 3))
SLICES = st.lists(st.tuples(st.lists(PAIR, max_size=12), st.booleans()), min_size=1, max_size=4)


def _arrays(slices):
    return [np.array(one, np.uint64).reshape(-1, 2) for one, _ in slices], [goes_in for _, goes_in in slices]


@settings(deadline=None)
@given(SLICES)
def test_keys_seen_before(slices):
    seen, wanted = set(), []
    for one, goes_in in slices:
        local = []
        for pair in one:
            local.append(pair in seen)
            if goes_in:
                seen.add(pair)
        wanted.append(local)
    assert [one.tolist() for one in exact.first_seen(*_arrays(slices))] == wanted
    if all(goes_in for _, goes_in in slices):
        assert [there for one in wanted for there in one] == murmur.first_seen(
            [pair for one, _ in slices for pair in one]
        )


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_the_order_by_the_first_bits(halves):
    hashes = np.array([(half, i) for i, half in enumerate(halves)], np.uint64).reshape(-1, 2)
    starts, order = exact.partition(hashes, 12)
    parts = [half >> 52 for half in halves]
    assert order.tolist() == sorted(range(len(halves)), key=parts.__getitem__)
    assert np.diff(starts).tolist() == [parts.count(part) for part in range(1 << 12)]
