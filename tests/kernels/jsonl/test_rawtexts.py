import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.curation.mix.spans import SpanEdits, replace
from feedmill.documents.rows import dump
from feedmill.kernels.jsonl.rawtexts import cut, lift
from feedmill.kernels.jsonl.spanlists import choose, pack
from helpers.durations import examples

LETTERS = st.sampled_from('ab \n\t"\\/\x00\x1f\x7fé\u2028中😀') | st.characters(exclude_categories=["Cs"])
TEXT = st.lists(LETTERS | st.just("abcdefghi"), max_size=12).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.just("text"), inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.dictionaries(TEXT | st.sampled_from(["id", "text"]), VALUES, max_size=4)


def back(lines):
    """The rows put together again; those of texts that were lifted."""
    found = lift(lines)
    if found is None:
        return None, 0
    rows, lifted = orjson.loads(found.rows), 0
    for row, (low, high) in zip(rows, found.texts, strict=True):
        if low >= 0:
            assert row["text"] == ""
            row["text"] = orjson.loads(lines[low:high])
            assert dump(row["text"]) == lines[low:high]
            lifted += 1
    return rows, lifted


@settings(deadline=None)
@given(st.lists(st.tuples(DOCUMENTS, TEXT | st.none(), st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_lifted_and_put_back(drawn):
    rows, plain = [], 0
    for document, text, escape, spaces in drawn:
        whole = document if text is None else {**document, "text": text}
        row = json.dumps(whole, ensure_ascii=escape, separators=(", ", ": ") if spaces else (",", ":"))
        rows.append(row if escape else dump(whole).decode())
        text = whole.get("text")
        plain += not escape and type(text) is str and all(c >= " " or c in "\b\f\n\r\t" for c in text)
    lines = "".join(f"{row}\n" for row in rows).encode()
    found, lifted = back(lines)
    if any("\\" in json.dumps(key, ensure_ascii=escape) for one, _, escape, _ in drawn for key in one):
        return  # escaped keys are left alone
    if any(len(row) < len('{"text":""}') for row in rows):
        return  # of such rows there is no place for all
    assert found == [json.loads(row) for row in rows] and lifted >= plain
    assert back(lines[:-1]) == (found, lifted)


BROKEN = [
    b"", b"null", b"[]", b"1", b'"text"', b'{"text":"a"', b'{"text":"a}', b'{"text":"a"}}', b'{"text":"a"]', b"{",
    b'{"text":"a"}{"text":"b"}', b' {"text":"a"}', b'{"text":"a"} ', b'{"text":"a"}\r', b'{"text":"a","text":"b"}',
    b'{"text":"a","te\\u0078t":"b"}', b'{"te\\u0078t":"b"}', b'{"text"',
]  # fmt: skip


@pytest.mark.parametrize("row", BROKEN)
def test_what_looks_like_no_document(row):
    assert lift(b'{"text":"a"}\n' + row + b'\n{"text":"b"}\n') is None


UNUSUAL = [
    b'{"text":"\\u0041"}', b'{"text":"\\/"}', b'{"text":"\\u000a"}', b'{"text":"\xff"}', b'{"text":"\xc3"}', b'{"a":1}',
    b'{"text":"\xed\xa0\x80"}', b'{"text":"\xc0\x80"}', b'{"text":"\xf4\x90\x80\x80"}', b'{"text":"\xe4\xb8"}',
    b'{"text":"\x01"}', b'{"text":"a\tb"}', b'{"text":"\\x"}', b'{"text":null}', b'{"text":["a"]}',
    b'{"text":{"text":"a"}}',
    b'{"a":{"text":"b"}}', b'{"a":"text"}', b'{"a":["text","b"]}',
]  # fmt: skip


@pytest.mark.parametrize("row", UNUSUAL)
def test_texts_that_stay_where_they_are(row):
    assert lift(row + b"\n") == (b"[" + row + b"]", [[-1, -1]])


@settings(deadline=None, max_examples=examples(300))
@given(
    st.binary(max_size=30),
    st.sampled_from([b'{"text":"', b'{"text":"a",', b'{"a":[', b""]),
    st.sampled_from([b'"}', b"}", b""]),
)
def test_what_is_no_json_stays_so(middle, head, tail):
    """Whatever the bytes are: without its text a row is JSON only if it was, and the same but for the text."""
    row = (head + middle + tail).replace(b"\n", b"")
    found = lift(row + b"\n")
    if found is None or found.texts == [[-1, -1]]:
        return
    try:
        rows = orjson.loads(found.rows)
    except orjson.JSONDecodeError:
        with pytest.raises(orjson.JSONDecodeError):
            orjson.loads(row)
        return
    assert back(row + b"\n")[0] == [orjson.loads(row)] and len(rows) == 1


SPANS = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 16) | st.just(10**17)), max_size=5)


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(st.tuples(TEXT, SPANS, SPANS), max_size=3), TEXT.filter(lambda s: "{}" not in s), st.integers(0, 5))
def test_cut_as_the_reference_replaces(rows, new, enough):
    texts = [dump(text) for text, _, _ in rows]
    plain = [n for n, text in enumerate(texts) if lift(b'{"text":' + text + b"}").texts[0][0] >= 0]
    texts = [texts[n] for n in plain]
    lists = [[pack([json.dumps([[*span, 1] for span in rows[n][k]]).encode()])[0] for n in plain] for k in (1, 2)]
    news = ["", new]
    found = cut(texts, choose(lists, [(0, 2), (0, 2)], len(plain)), [dump(one)[1:-1] for one in news], enough)
    for i, n in enumerate(plain):
        text, *groups = rows[n]
        spans = sorted(((*span, news[k]) for k, some in enumerate(groups) for span in some), key=lambda span: span[0])
        wanted, passed = replace(text, SpanEdits(spans, None))
        assert bytes(found.data[found.bounds[i] : found.bounds[i + 1]]) == dump(wanted)
        assert found.passed[i] == passed
        assert found.odd[i] == any(end <= start or start >= len(text) for start, end, _ in spans)
        assert not found.sound[i] or len(wanted.strip().encode()) >= enough
        assert found.sound[i] == (sum("!" <= c <= "~" and c not in '"\\' for c in wanted) >= enough)
