from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.documents.rows import negative_zeros
from feedmill.formats.documents import one_a_line, rows_of
from feedmill.kernels.jsonl.plainrows import plain_rows
from helpers.durations import examples

PIECES = ["{", "}", "\n", "-", "0", "-0", ",", "]", " ", "\r", "abcdefgh", "é", "{}", "}\n{", "-0\t"]


@settings(deadline=None, max_examples=examples(500))
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_as_two_passes_say(text):
    lines = text.encode()
    rows = rows_of(lines)
    whole = all(row[:1] == b"{" and row[-1:] == b"}" for row in rows)
    assert plain_rows(lines) == (len(rows) if whole and not negative_zeros(lines) else -1)
    if rows and plain_rows(lines) > 0:
        assert one_a_line(lines, len(rows))
