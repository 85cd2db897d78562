import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.jsonl import spanrows
from oracles.spanrows import span_rows

SPAN = st.tuples(st.integers(0, 10**12), st.integers(0, 10**18), st.integers(0, 2))
ROWS = st.lists(st.tuples(st.text(max_size=5), st.booleans(), st.lists(SPAN, max_size=3)), min_size=1, max_size=8)
SCORES = [b"1", b"0.6666666865348816", b"0.5"]


def _flat(strings):
    return np.frombuffer(b"".join(strings) or b" ", np.uint8), np.cumsum([len(s) for s in strings], dtype=np.int64)


@settings(deadline=None)
@given(ROWS)
def test_as_the_reference(rows):
    ids = [one.encode() for one, _, _ in rows]
    spans = [(n, *span) for n, (_, _, found) in enumerate(rows) for span in found]
    wanted = span_rows(ids, [bare for _, bare, _ in rows], [(*s[:3], SCORES[s[3]]) for s in spans], b'"dup"')
    marks = [b'{"attributes":{"dup":[', b'{"attributes":{', b']},"id":', b'},"id":', b"}\n"]
    columns = np.array(spans, np.int64).reshape(-1, 4).T.copy()
    out = np.empty(2000, np.uint8)
    bare = np.array([bare for _, bare, _ in rows])
    size = spanrows.fill_rows(*_flat(ids), bare, *columns, *_flat(SCORES), *_flat(marks), out)
    assert out[:size].tobytes() == wanted
