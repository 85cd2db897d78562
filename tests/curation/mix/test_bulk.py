"""Documents mixed at once come out as those mixed one by one: rows, counts and errors."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedmill.curation.mix import attributes, merging, shard
from feedmill.curation.mix.config import read_config
from feedmill.curation.mix.job import _plan
from feedmill.curation.mix.report import Counts
from feedmill.curation.mix.spans import Bulk
from feedmill.errors import FeedmillError
from helpers.durations import examples

TEXT = st.lists(
    st.sampled_from(["a", " ", "\n", '"', "\\", "\x01", "\u00e9", "\U0001f600", "word ", "\u3000"]), max_size=9
).map("".join)
ID = st.sampled_from(["0", "0", "0", "0", 'a"', "\u00e9", 7, 7.0, True, None])
PLACE = st.integers(0, 9) | st.sampled_from([0, 3, 6, -1, 2.0, True, None, 10**17, 10**30])
SCORE = st.sampled_from([0, 1, 1.0, 0.5, 0.25, 0.6666666865348816, 1e300, -3, "1", None])
GOOD = st.tuples(st.integers(0, 9), st.integers(0, 12), st.sampled_from([0, 1, 0.5, 0.6666666865348816])).map(list)
SPANS = st.lists(GOOD, max_size=4)
ODD = st.lists(st.tuples(PLACE, PLACE, SCORE).map(list) | GOOD, max_size=3) | st.sampled_from([None, {}, "", 0, [[]]])
DRAWN = st.fixed_dictionaries(
    {"text": TEXT, "dup": SPANS, "n": st.integers(0, 3)},
    optional={
        "mail": SPANS,
        "metadata": st.sampled_from([{"a": -0.0}, {"a": 1}, "x", None]),
        "id": ID,
        "escape": st.just(1),
    },
)
WRONG = st.fixed_dictionaries(
    {"text": TEXT | st.sampled_from([None, 5]), "dup": ODD, "n": st.sampled_from([0, "x", None])},
    optional={
        "mail": ODD,
        "other": ID,
        "attributes": st.sampled_from([{"mail": [[0, 1, 1]]}, {"n": [[0, 1, 9]]}, 5]),
        "raw": st.sampled_from([b"", b"{", b"5", b'{"id":-0,"text":"a"}']),
    },
)
SYNTAX = {
    "jsonpath": ("$.attributes[?(@.n[0][2] < 3)]", "$.attributes[?(@.n[0][2] > 1)]", "$.attributes."),
    "jq": (".attributes.n[0][2] < 3", ".attributes.n[0][2] > 1", ".attributes."),
}


def write(root, drawn):
    """A file of documents and its two of attributes."""
    documents, made, more = [], [], []
    for one in drawn:
        document = {"id": one.get("id", "0"), "text": one["text"], "source": "\u00fc"}
        document |= {key: one[key] for key in ("metadata", "attributes") if key in one}
        row = json.dumps(document, ensure_ascii="escape" in one).encode()
        documents.append(one.get("raw", row))
        other = one.get("other", document["id"])
        n = one["n"] if type(one["n"]) is not int else [[0, 1, one["n"]]]
        made.append(
            json.dumps({"id": other, "attributes": {"n": n, "dup": one["dup"]}}, separators=(",", ":")).encode()
        )
        more.append(json.dumps({"id": other, "attributes": {"mail": one["mail"]} if "mail" in one else {}}).encode())
    for folder, rows in (("documents", documents), ("attributes/made", made), ("attributes/more", more)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "0.jsonl").write_bytes(b"".join(row + b"\n" for row in rows))


def outcome(root, syntax, exact, shortest, new):
    include, exclude, path = SYNTAX[syntax]
    spans = [
        {"span": "$.attributes.dup", "min_score": 0.5, "replacement": ""},
        {"span": f"{path}mail", "max_score": 0.9, "replacement": new, "syntax": syntax},
        {"span": "$.attributes.dup", "max_score": 0.5, "replacement": "<\u00e9>"},
    ]
    output = {"path": f"{root}/mixed", "discard_fields": ["attributes"], "min_text_length": shortest}
    stream = {
        "name": "m", "documents": [f"{root}/documents/*"], "attributes": ["made", "more"], "output": output,
        "filter": {"syntax": syntax, "include": [include], "exclude": [exclude]}, "span_replacement": spans,
    }  # fmt: skip
    config = read_config({"streams": [stream]}, exact=exact)
    counts = Counts()
    try:
        one = _plan(config.streams[0], config, [])[0]
        rows = [shard.dump(document) for block in shard.mixed(one, counts) for document in block]
    except FeedmillError as error:
        return str(error), error.kind, error.file, error.record
    return rows, counts.as_dict()


@settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(DRAWN, min_size=1, max_size=6) | st.lists(DRAWN | WRONG, min_size=1, max_size=4),
    st.sampled_from(sorted(SYNTAX)), st.booleans(), st.sampled_from([0, 1, 2, 3, 4, 1 << 63]),
    st.sampled_from(["", "{}", "\n", "new", "$.id"]),
)  # fmt: skip
def test_at_once_as_one_by_one(tmp_path, drawn, syntax, exact, shortest, new):
    write(tmp_path, drawn)
    rest = syntax, exact, shortest, new
    found = outcome(tmp_path, *rest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "texts_unseen", lambda _: False)
        patch.setattr(attributes, "needed_attributes", lambda _: None)
        patch.setattr(Bulk, "of", lambda *_, **__: None)
        assert found == outcome(tmp_path, *rest)
