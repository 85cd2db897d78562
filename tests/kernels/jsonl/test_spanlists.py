import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.jsonl.spanlists import choose, pack, unpack

PLACE = st.integers(0, 10**18 - 1)
SCORE = st.integers(-(10**15) + 1, 10**15 - 1) | st.floats(allow_nan=False, allow_infinity=False)
SPAN = st.tuples(PLACE, PLACE, SCORE)
LISTS = st.lists(st.lists(SPAN, max_size=4), max_size=5)


@settings(deadline=None)
@given(LISTS, st.sampled_from([(",", ":"), (", ", ": ")]))
def test_packed_and_back(lists, separators):
    written = [json.dumps(one, separators=separators).encode() for one in lists]
    assert [unpack(one) for one in pack(written)] == [[(a, b, float(c)) for a, b, c in one] for one in lists]


@pytest.mark.parametrize("score", ["0.6666666865348816", "1e-3", "-0.0", "123456789012345.6", "1E5", "5e-324", "-1.50"])
def test_scores_as_python_reads_them(score):
    found = unpack(pack([f"[[0,1,{score}]]".encode()])[0])[0][2]
    assert (found, str(found)) == (float(score), str(float(score)))


@pytest.mark.parametrize(
    "text",
    ["null", "{}", "[1]", "[[0,1]]", "[[0,1,2,3]]", "[[-1,1,2]]", "[[0.0,1,2]]", "[[1e1,1,2]]", "[[true,1,2]]",
     '[[0,1,"2"]]', "[[0,1,null]]", "[[0,1000000000000000000,1]]", "[[0,1,1234567890123456]]", "[[0,1,1e999]]",
     "[[01,1,2]]", "[[0,1,02]]", "[[0,1,1.]]", "[[0,1,.5]]", "[[0,1,1e]]", "[[0,1,-]]", "[[0,1,2],]", "[[0,1,2]", "",
     "[[0,1,2]]x", "[]]", "[[0,1,2][0,1,2]]", "[\n[0,1,2]]"],
)  # fmt: skip
def test_what_is_not_plain(text):
    assert pack([b"[]", text.encode(), b"[[1,2,3]]"]) is None


@settings(deadline=None)
@given(
    st.integers(0, 4).flatmap(
        lambda rows: st.lists(
            st.tuples(
                st.tuples(*[st.lists(st.tuples(st.integers(0, 5), PLACE, st.integers(0, 3)), max_size=12)] * rows),
                st.tuples(st.integers(0, 2) | st.just(-float("inf")), st.integers(1, 4) | st.just(float("inf"))),
            ),
            max_size=3,
        ).map(lambda choices: (rows, choices))
    )
)
def test_chosen_by_row_and_start(drawn):
    rows, choices = drawn
    packed = [pack([json.dumps(one).encode() for one in lists]) for lists, _ in choices]
    first, *columns = choose(packed, [bounds for _, bounds in choices], rows)
    found = list(zip(*(column.tolist() for column in columns), strict=True))
    for row in range(rows):
        wanted = [
            (start, end, k)
            for k, (lists, (low, high)) in enumerate(choices)
            for start, end, score in lists[row]
            if low <= score < high
        ]
        assert found[first[row] : first[row + 1]] == sorted(wanted, key=lambda span: span[0])


def test_many_spans_out_of_order_take_no_square_of_time():
    spans = [[n % 1000, n, 1] for n in range(100_000, 0, -1)]
    first, starts, ends, _ = choose([pack([json.dumps(spans).encode()])], [(0, 2)], 1)
    assert first.tolist() == [0, len(spans)]
    assert list(zip(starts, ends, strict=True)) == [(a, b) for a, b, _ in sorted(spans, key=lambda one: one[0])]
