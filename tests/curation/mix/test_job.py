"""Mixing: what stays, how often, in what order; alignment; reruns; bad input."""

import gzip
import json
import os
import shutil
from collections import Counter

import pytest

from feedmill.curation.dedupe.job import find_duplicates
from feedmill.curation.mix.config import read_config
from feedmill.curation.mix.job import mix
from feedmill.curation.options import Dedupe
from feedmill.curation.tag import tag
from feedmill.errors import ConfigError, DataError, EmptyResult, FeedmillError
from helpers import warm
from helpers.document_datasets import DEEP
from helpers.document_folders import read, texts, write_documents, write_lines
from helpers.kills import command, contents, kill_at_random, kill_everywhere, moments

FILES = [texts(23), texts(17, seed=1), texts(5, seed=2)]


def prepare(root, files=FILES):
    """Documents with attributes: their number as a score, a span for each paragraph."""
    write_documents(root, *files, metadata={"a": 1})
    for n, members in enumerate(files):
        rows = []
        for m, text in enumerate(members):
            cut = text.find("\n")
            spans = [[0, max(0, cut), 1.0], [cut + 1, len(text), 0.25]] if cut > 0 else []
            attributes = {"number": [[0, len(text), float(m)]], "lines": spans}
            rows.append(json.dumps({"id": f"{n}-{m}", "attributes": attributes, "source": "test"}))
        write_lines(root / f"attributes/made/part-{n}.jsonl.gz", rows)


def stream(root, name="m", **more):
    out = {"path": f"{root}/mixed", "max_size_in_bytes": 1, **more.pop("output", {})}
    tree = {"name": name, "documents": [f"{root}/documents/*"], "attributes": ["made"], "output": out}
    return {**tree, **more}


def run(tree, **more):
    streams = tree if isinstance(tree, list) else [tree]
    top = {key: more.pop(key) for key in ("seed", "permute", "allow_missing", "allow_empty", "shuffle") if key in more}
    return mix(read_config({"streams": streams, **top}), **{"workers": 1, **more})


def mixed(root, name="m"):
    return [row for path in sorted((root / "mixed").glob(f"{name}-*")) for row in read(path)]


def ids(root):
    return [row["id"] for row in mixed(root)]


ALL = [f"{n}-{m}" for n, members in enumerate(FILES) for m in range(len(members))]
FEW = {"filter": {"include": ["$.attributes[?(@.number[0][2] < 4)]"], "exclude": ["$.attributes[?(@.lines[1])]"]}}


def test_filters_and_their_report(tmp_path):
    prepare(tmp_path)
    report = run(stream(tmp_path, **FEW))
    kept = [f"{n}-{m}" for n, f in enumerate(FILES) for m, t in enumerate(f) if m < 4 and t.find("\n") <= 0]
    assert ids(tmp_path) == kept
    counts = report.streams[0].counts
    assert (counts.read, counts.kept, counts.written) == (len(ALL), len(kept), len(kept))
    dropped = {"include": len(ALL) - 12, f"exclude {FEW['filter']['exclude'][0]}": 12 - len(kept)}
    assert counts.dropped == dropped and sum(dropped.values()) + len(kept) == len(ALL)
    assert counts.examples["include"] == ["0-4", "0-5", "0-6"]
    assert report.streams[0].outputs == [f"{tmp_path}/mixed/m-000{n}.jsonl.gz" for n in range(3)]


def test_rows(tmp_path):
    prepare(tmp_path)
    run(stream(tmp_path, output={"discard_fields": ["source"]}))
    row = mixed(tmp_path)[1]
    assert list(row) == ["attributes", "id", "metadata", "text"]
    assert row["metadata"] == {"a": 1, "provenance": "part-0.jsonl.gz:2"} and row["text"] == FILES[0][1]


@pytest.mark.parametrize("discard", [[], ["attributes"]])
def test_spans(tmp_path, discard):
    """With attributes that are discarded, only those that are named are parsed; the same comes out."""
    prepare(tmp_path)
    replacement = [
        {"span": "$.attributes.lines", "min_score": 0.5, "replacement": "<{}>"},
        {"span": ".attributes.lines", "max_score": 0.5, "replacement": '$.source + "!"', "syntax": "jq"},
    ]
    report = run(stream(tmp_path, span_replacement=replacement, output={"discard_fields": discard}))
    wanted = []
    for text in (t for f in FILES for t in f):
        cut = text.find("\n")
        tail = "test!" if cut + 1 < len(text) else ""
        wanted.append(f"<{text[:cut]}>\n{tail}" if cut > 0 else text)
    assert [row["text"] for row in mixed(tmp_path)] == wanted
    assert report.streams[0].counts.replaced > 20
    assert bool(report.streams[0].counts.passed) == bool(report.warnings)


@pytest.mark.parametrize("rate", [0, 0.4, 1, 2.5])
def test_rates(tmp_path, rate):
    prepare(tmp_path, [texts(300)])
    report = run(stream(tmp_path, rate=rate), seed=3)
    times = Counter(Counter(ids(tmp_path)).values())
    counts = report.streams[0].counts
    assert counts.written == sum(n * many for n, many in times.items()) == len(ids(tmp_path))
    assert set(times) <= {int(rate), int(rate) + 1} - {0} and abs(counts.written - 300 * rate) < 50
    assert counts.dropped["rate"] == 300 - counts.kept
    first = ids(tmp_path)
    run(stream(tmp_path, rate=rate), seed=4)
    assert (ids(tmp_path) == first) == (rate in (0, 1))


def test_a_real_shuffle(tmp_path):
    prepare(tmp_path)
    big = {"max_size_in_bytes": 10**9}
    run(stream(tmp_path, output=big), permute=True, seed=1)
    first = ids(tmp_path)
    assert sorted(first) == sorted(ALL) and first != ALL
    assert {one.split("-")[0] for one in first[:12]} == {"0", "1", "2"}
    run(stream(tmp_path, output=big), permute=True, seed=2)
    assert sorted(ids(tmp_path)) == sorted(ALL) and ids(tmp_path) != first


@pytest.mark.parametrize("more", [{}, {"permute": True}, {"shuffle": False}])
def test_any_number_of_processes(tmp_path, more):
    results = []
    for processes in (1, 2, 3):
        root = tmp_path / str(processes)
        prepare(root)
        run(
            [stream(root, rate=1.5), stream(root, "n", output={"path": f"{root}/other"}, **FEW)],
            workers=processes,
            **more,
        )
        results.append(contents(root))
    assert results[0] == results[1] == results[2]


def test_reruns(tmp_path):
    prepare(tmp_path)
    first = run(stream(tmp_path, **FEW))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "mixed").glob("*")}
    again = run(stream(tmp_path, **FEW))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert again.streams[0].finished_before == 3 and first.streams[0].finished_before == 0
    assert again.streams[0].counts.as_dict() == first.streams[0].counts.as_dict()
    rows = [json.dumps({"id": f"2-{m}", "attributes": {"number": [[0, 1, 9]]}}) for m in range(5)]
    write_lines(tmp_path / "attributes/made/part-2.jsonl.gz", rows)
    assert run(stream(tmp_path, **FEW)).streams[0].finished_before == 2
    assert not [one for one in ids(tmp_path) if one.startswith("2-")]
    assert run(stream(tmp_path, rate=0.5)).streams[0].finished_before == 0
    (tmp_path / "mixed/m-0001.jsonl.gz").unlink()
    assert run(stream(tmp_path, rate=0.5)).streams[0].finished_before == 2


def test_a_file_of_others_is_replaced_only_if_asked(tmp_path, monkeypatch):
    prepare(tmp_path)
    mine = tmp_path / "mixed/m-0001.jsonl.gz"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match="no filter has written it") as caught:
            run(stream(tmp_path), dry_run=dry_run)
        assert caught.value.file == str(mine) and os.listdir(mine.parent) == [mine.name]
    run(stream(tmp_path), overwrite=True)
    assert sorted(ids(tmp_path)) == sorted(ALL)

    def killed(*_):
        raise KeyboardInterrupt

    for path in mine.parent.iterdir():
        path.unlink()
    shutil.rmtree(tmp_path / ".feedmill")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("feedmill.curation.mix.shard.Finished.write_lineage", killed)
        run(stream(tmp_path))
    assert len(list(mine.parent.glob("*.gz"))) == 1  # published, and not yet recorded as finished
    run(stream(tmp_path))
    assert sorted(ids(tmp_path)) == sorted(ALL)


def test_outputs_of_an_earlier_mix_are_named(tmp_path):
    prepare(tmp_path)
    run([stream(tmp_path), stream(tmp_path, "other", output={"path": f"{tmp_path}/mixed/more"})])
    report = run([stream(tmp_path), stream(tmp_path, "n", output={"path": f"{tmp_path}/mixed/more"})])
    (warning,) = report.warnings
    assert warning.startswith("outputs of other runs are in") and "mixed/more/other-0002.jsonl.gz" in warning
    (warning,) = run(stream(tmp_path, "renamed", output={"max_size_in_bytes": 10**6})).warnings
    assert warning.endswith("m-0002.jsonl.gz") and warning.count("jsonl.gz") == 3
    (tmp_path / "mixed/m-0001.jsonl.gz").unlink()
    (warning,) = run(stream(tmp_path, "renamed", output={"max_size_in_bytes": 10**6})).warnings
    assert "m-0001" not in warning


def spoil(root, how):
    path = root / "attributes/made/part-1.jsonl.gz"
    rows = gzip.decompress(path.read_bytes()).decode().splitlines()
    if how == "missing":
        path.unlink()
    elif how == "short":
        write_lines(path, rows[:-1])
    elif how == "long":
        write_lines(path, [*rows, rows[0]])
    elif how == "other id":
        write_lines(path, [*rows[:4], rows[4].replace('"1-4"', '"1-5"'), *rows[5:]])
    elif how == "no id":
        write_lines(path, [*rows[:4], rows[4].replace('"id": "1-4", ', ""), *rows[5:]])
    elif how == "number":
        write_lines(path, [*rows[:4], rows[4].replace('"1-4"', "4"), *rows[5:]])
    elif how == "broken":
        write_lines(path, [*rows[:4], rows[4][:-5], *rows[5:]])
    elif how == "blank":
        write_lines(path, [*rows[:4], "", *rows[4:]])
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("missing", "no-such-attribute", "no attributes 'made'.*part-1"),
        ("short", "misaligned-attributes", "16 rows.*17 documents"),
        ("long", "misaligned-attributes", "line 18.*more rows"),
        ("other id", "misaligned-attributes", 'line 5.*"1-5".*"1-4"'),
        ("number", "misaligned-attributes", 'line 5.*id 4.*"1-4"'),
        ("no id", "misaligned-attributes", 'line 5.*the row has no id, but.*is "1-4"'),
        ("broken", "bad-document", "part-1.*line 5"),
        ("blank", "bad-document", "line 5.*blank"),
        ("cut", "bad-compression", "truncated"),
    ],
)
def test_misaligned_attributes(tmp_path, how, kind, message):
    """Nothing is written, not even for the files before."""
    prepare(tmp_path)
    spoil(tmp_path, how)
    with pytest.raises(DataError, match=message) as caught:
        run(stream(tmp_path))
    assert caught.value.kind == kind and "part-1" in str(caught.value)
    assert not (tmp_path / "mixed").exists()


def test_attributes_that_may_be_missing(tmp_path):
    prepare(tmp_path)
    spoil(tmp_path, "missing")
    report = run(stream(tmp_path, **FEW), allow_missing=True)
    assert not [one for one in ids(tmp_path) if one.startswith("1-")]
    assert report.streams[0].counts.dropped["include"] == len(ALL) - 8


def test_the_record_of_an_attribute_set_spares_comparing_ids(tmp_path, monkeypatch):
    from feedmill.curation import provenance
    from feedmill.curation.mix import align, job

    write_documents(tmp_path, *FILES)
    find_duplicates(Dedupe([f"{tmp_path}/documents"], name="dup", keep_empty=True, workers=1))
    compared = []
    monkeypatch.setattr(align, "_compare", lambda store, pairing, paths: compared.append(paths))
    looked = []
    read_manifest = provenance.read_manifest
    monkeypatch.setattr(job, "_LOOKS", 1)
    monkeypatch.setattr(provenance, "read_manifest", lambda *given: looked.append(given) or read_manifest(*given))
    tree = stream(tmp_path, attributes=["dup"], filter={"exclude": ["$.attributes.dup[0]"]})
    run(tree)
    assert not compared and len(ids(tmp_path)) < len(ALL) and len(looked) < len(FILES)
    path = tmp_path / "attributes/dup/part-0.jsonl.gz"
    path.write_bytes(path.read_bytes() + b"")
    run(tree)
    assert not compared  # its hash is the recorded one
    write_lines(path, [json.dumps(row) for row in read(path)])
    run(tree)
    assert compared == [{"attributes/dup/part-0.jsonl.gz": True}]


BAD_ROWS = {
    "broken": ('{"id": "y", "tex', "line 2"),
    "blank": ("", "line 2.*blank"),
    "lone surrogate": ('{"id": "y", "text": "\\ud800"}', "line 2.*lone surrogate"),
    "no text": ('{"id": "y"}', "line 2.*text"),
    "null text": ('{"id": "y", "text": null}', "line 2.*text"),
    "a list": ("[1]", "line 2"),
    "nested": (f'{{"id": "y", "text": "", "x": {"[" * DEEP}{"]" * DEEP}}}', "2.*too deeply"),
    "nested, and a zero": (f'{{"id": "y", "text": "", "x": {"[" * DEEP}-0{"]" * DEEP}}}', "line 2.*too deeply"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows(tmp_path, name):
    row, message = BAD_ROWS[name]
    write_lines(tmp_path / "documents/a.jsonl", ['{"id": "x", "text": "t"}', row])
    with pytest.raises(DataError, match=message) as caught:
        run(stream(tmp_path, attributes=[]))
    assert caught.value.kind == "bad-document" and "a.jsonl" in str(caught.value)
    assert not [p for p in (tmp_path / "mixed").rglob("*") if p.is_file()]


@pytest.mark.parametrize("include", ["$..none", "$.x[?(@.a == @.b)]", "$[?(@.x == @.x)]"])
def test_expressions_on_rows_that_are_nested_too_deeply(tmp_path, include):
    row = f'{{"id": "y", "text": "", "x": {"[" * DEEP}{"]" * DEEP}}}'
    write_lines(tmp_path / "documents/a.jsonl", ['{"id": "x", "text": "t"}', row])
    with pytest.raises(DataError, match="too deeply"):
        run(stream(tmp_path, attributes=[], filter={"include": [include, "$.text"]}))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"filter": {"include": [".none[0][2] > 1"], "syntax": "jq"}}, "null"),
        ({"span_replacement": [{"span": "$.text", "min_score": 0}]}, "not a list of spans"),
        ({"span_replacement": [{"span": "$.attributes", "min_score": 0}]}, "not a list of spans"),
        ({"span_replacement": [{"span": "$.pairs", "min_score": 0}]}, "not a span"),
        (
            {"span_replacement": [{"span": "$.attributes.number", "min_score": 0, "replacement": "$.metadata"}]},
            "not a string",
        ),
    ],
)
def test_rules_that_fail(tmp_path, rules, message):
    """The document is named; outputs that were finished before are kept."""
    prepare(tmp_path)
    rows = [json.dumps({"id": "9-0", "text": "long", "pairs": [[0, 1]]})]
    write_lines(tmp_path / "documents/part-9.jsonl.gz", rows)
    write_lines(tmp_path / "attributes/made/part-9.jsonl.gz", ['{"id": "9-0", "attributes": {"number": [[0, 1, 1]]}}'])
    with pytest.raises(DataError, match=message) as caught:
        run(stream(tmp_path, **rules))
    assert caught.value.kind == "bad-document" and "line 1" in str(caught.value)


def test_finished_outputs_are_kept(tmp_path):
    prepare(tmp_path)
    write_lines(tmp_path / "documents/part-9.jsonl.gz", ["{"])
    tree = stream(tmp_path, attributes=[])
    with pytest.raises(DataError, match="part-9"):
        run(tree)
    assert sorted(p.name for p in (tmp_path / "mixed").glob("m-*")) == [f"m-000{n}.jsonl.gz" for n in range(3)]
    write_lines(tmp_path / "documents/part-9.jsonl.gz", ['{"id": "9-0", "text": ""}'])
    assert run(tree).streams[0].finished_before == 3 and ids(tmp_path) == [*ALL, "9-0"]


def test_dry_run(tmp_path):
    prepare(tmp_path)
    never = {"filter": {"include": ["$.nothing"], "exclude": ["$.attributes.lines[9]"]}}
    spans = {"span_replacement": [{"span": "$.attributes.lines", "min_score": 7}]}
    with pytest.raises(EmptyResult, match="dropped by include"):  # all documents were read
        run(stream(tmp_path, **never), dry_run=True)
    report = run([stream(tmp_path, **never), stream(tmp_path, "n", **spans)], dry_run=True, allow_empty=True)
    assert report.dry_run is not None and not (tmp_path / "mixed").exists()
    assert [out.path for out in report.dry_run.outputs] == [path for one in report.streams for path in one.outputs]
    assert report.streams[0].counts.read == len(ALL)
    assert report.streams[0].counts.dropped == {"include": len(ALL), "exclude $.attributes.lines[9]": 0}
    assert report.streams[1].counts.replaced == 0 and ["none of" in line for line in report.warnings] == [True]
    spoil(tmp_path, "other id")
    with pytest.raises(DataError, match="line 5"):
        run(stream(tmp_path), dry_run=True)


def test_misspelt_attributes_are_noticed(tmp_path):
    prepare(tmp_path)
    with pytest.raises(DataError, match="no attributes 'maed'"):
        run(stream(tmp_path, attributes=["maed"]), dry_run=True)


def test_rules_without_effect_are_counted_and_not_warned_of(tmp_path):
    prepare(tmp_path)
    rule = "$.attributes[?(@.lines[9])]"
    for _ in range(2):
        report = run(stream(tmp_path, filter={"exclude": [rule]}))
        assert report.warnings == [] and report.streams[0].counts.dropped == {f"exclude {rule}": 0}
    (tmp_path / "mix.yaml").write_text(json.dumps({"streams": [stream(tmp_path, filter={"exclude": [rule]})]}))
    done = warm.run(command("filter", "mix.yaml", "--dry-run"), cwd=tmp_path, capture_output=True, text=True)
    assert f"dropped 0 by exclude {rule}" in done.stdout and "warning" not in done.stderr


@pytest.mark.parametrize(
    "rules",
    [
        {"filter": {"exclude": ["$.attributes[?(@.lnies[1])]"]}},
        {"filter": {"include": ["$.attributes.lnies"]}},
        {"filter": {"exclude": ["((.attributes.lnies[0][2])? // 0) > 0.5"], "syntax": "jq"}},
        {"span_replacement": [{"span": "$.attributes.lnies", "min_score": 0}]},
        {"span_replacement": [{"span": "$.attributes.lines", "min_score": 0, "replacement": "$.attributes.lnies"}]},
    ],
)
@pytest.mark.parametrize("more", [{}, {"dry_run": True}])
def test_an_attribute_that_no_row_has_is_an_error(tmp_path, rules, more):
    """It is misspelt, and the rule would do nothing."""
    prepare(tmp_path)
    with pytest.raises(ConfigError, match=r"stream m: no row has an attribute 'lnies'.*Did you mean 'lines'") as caught:
        run(stream(tmp_path, **rules), **more)
    assert caught.value.kind == "no-such-attribute" and not (tmp_path / "mixed").exists()
    if "filter" in rules and "include" not in rules["filter"]:
        assert "no row has" in run(stream(tmp_path, **rules), allow_missing=True, **more).warnings[0]


def test_an_attribute_of_a_single_row_is_one(tmp_path):
    prepare(tmp_path)
    path = tmp_path / "attributes/made/part-2.jsonl.gz"
    rows = [{"id": f"2-{m}", "attributes": {"rare": [[0, 1, 1]]} if m == 4 else {}} for m in range(5)]
    write_lines(path, map(json.dumps, rows))
    report = run(stream(tmp_path, filter={"exclude": ["$.attributes.rare"]}))
    assert report.streams[0].counts.dropped["exclude $.attributes.rare"] == 1


def test_an_attribute_of_the_documents_themselves_is_one(tmp_path):
    write_documents(tmp_path, ["a", "b"], attributes={"owns": [[0, 1, 1]], "lines": []})
    rules = {"filter": {"exclude": ["$.attributes[?(@.owns[0][2] > 1)]"]}}
    assert run(stream(tmp_path, attributes=[], **rules)).streams[0].counts.kept == 2
    with pytest.raises(ConfigError, match=r"'onws'.*none is named in 'attributes'.*Did you mean 'owns'"):
        run(stream(tmp_path, "n", attributes=[], filter={"exclude": ["$.attributes.onws"]}))
    other = run(stream(tmp_path, "o", attributes=[], filter={"exclude": ["$.attributes.missing"]}))
    assert other.absent == ["missing"] and other.streams[0].counts.kept == 2


def test_a_set_may_say_that_it_writes_an_attribute_now_and_then(tmp_path):
    """No document occurs twice and none has a naughty word, so no row has the attributes."""
    write_documents(tmp_path, [f"text {n} of its own." for n in range(9)])
    find_duplicates(Dedupe([f"{tmp_path}/documents"], name="dup", attribute="again", keep_empty=True, workers=1))
    tag([f"{tmp_path}/documents"], ["c4_v2"], name="q", progress=False)
    rules = {"exclude": ["$.attributes[?(@.again[0])]", "$.attributes[?(@.q__c4_v2__has_naughty_word[0])]"]}
    report = run(stream(tmp_path, attributes=["dup", "q"], filter=rules))
    assert report.streams[0].counts.kept == 9 and report.absent == ["again", "q__c4_v2__has_naughty_word"]
    for wrong, hint in (("agian", "'again'"), ("q__c4_v2__line_cuont", "'q__c4_v2__line_count'")):
        with pytest.raises(ConfigError, match=f"{wrong}.*{hint}"):
            run(stream(tmp_path, "n", attributes=["dup", "q"], filter={"exclude": [f"$.attributes.{wrong}"]}))
    # as Dolma wrote them: nothing says what there may be
    for name in ("dup", "q"):
        shutil.rmtree(tmp_path / ".feedmill/mix-attributes" / name)
    assert run(stream(tmp_path, "o", attributes=["dup", "q"], filter=rules)).streams[0].counts.kept == 9
    only = {"exclude": rules["exclude"][1:]}
    assert run(stream(tmp_path, "p", attributes=["q"], filter=only)).streams[0].counts.kept == 9
    with pytest.raises(ConfigError, match="no row has an attribute 'again'"):
        run(stream(tmp_path, "r", attributes=["q"], filter=rules))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fliter": {"include": ["$.a"]}}, r"unknown option streams\[0\]\.fliter.*'filter'"),
        ({"nmae": 1}, r"unknown option streams\[0\]\.nmae.*'name'"),
        ({"documents": "x"}, r"streams\[0\]\.documents"),
        ({"name": None}, "name is missing"),
        ({"name": "a/b"}, "cannot begin a file name"),
        ({"rate": -1}, "rate is -1"),
        ({"filter": {"include": ["$.a[?(@.b >"]}}, r"streams\[0\]\.filter.*character"),
        ({"filter": {"include": [".a |"], "syntax": "jq"}}, r"streams\[0\]\.filter.*character"),
        ({"filter": {"include": [".a"], "syntax": "sql"}}, "sql"),
        ({"span_replacement": [{"span": "$.a"}]}, "neither min_score nor max_score"),
        ({"span_replacement": [{"span": "$.a", "min_score": float("nan")}]}, "not a number"),
        ({"span_replacement": [{"span": "$.a", "min_score": "nan"}]}, "not a number"),
        ({"span_replacement": [{"span": "$.a", "min_score": "x"}]}, "wrong type"),
        ({"rate": "x"}, "wrong type"),
        ({"span_replacement": [{"span": "$.a", "min_score": 1, "replacement": "$..a["}]}, "character"),
        ({"compression": {"output": "lz4"}}, "lz4"),
        ({"output": {"path": "x", "max_size_in_bytes": True}}, "wrong type"),
        ({"documents": ["nowhere/documents/*"]}, "nowhere/documents/\\*: no files match"),
    ],
)
def test_bad_configurations(tmp_path, monkeypatch, change, message):
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    tree = {**stream("."), **change}
    with pytest.raises(FeedmillError, match=message):
        run(tree)
    assert not (tmp_path / "mixed").exists()


def test_two_streams_do_not_share_outputs(tmp_path):
    with pytest.raises(ConfigError, match="two streams write to"):
        read_config({"streams": [stream(tmp_path), stream(tmp_path)]})


CONFIG = """
streams:
- name: m
  documents: [documents/*]
  attributes: [made]
  output: {path: mixed, max_size_in_bytes: 1, discard_fields: [attributes]}
  filter: {include: ['$.attributes[?(@.number[0][2] < 9)]']}
  span_replacement: [{span: $.attributes.lines, min_score: 0.5, replacement: '-'}]
"""


def make(root):
    prepare(root)
    (root / "mix.yaml").write_text(CONFIG)


def make_many(root):
    prepare(root, [texts(900, seed=n) for n in range(8)])
    (root / "mix.yaml").write_text(CONFIG)


@moments(4, least=12)
def test_killed_before_any_file_is_in_place(tmp_path, moments, least):
    """Each of three outputs has a note that it is begun, a lineage and a record."""
    assert kill_everywhere(["filter", "mix.yaml", "--workers", 1], make, tmp_path, moments) == least


@pytest.mark.slow
def test_killed_at_fifty_moments(tmp_path):
    assert kill_at_random(["filter", "mix.yaml", "--workers", 2], make_many, tmp_path, 50) > 5


def test_command_line(tmp_path):
    make(tmp_path)
    words = command("filter", "mix.yaml", "--dry-run")
    done = warm.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "would be kept" in done.stdout and not (tmp_path / "mixed").exists()
    done = warm.run(command("filter", "mix.yaml", "--json"), cwd=tmp_path, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert report["streams"][0]["kept"] == 23 and report["streams"][0]["dropped"] == {"include": 22}
    spoil(tmp_path, "short")
    done = warm.run(command("filter", "mix.yaml"), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "part-1" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("more", "top"),
    [
        ({"output": {"path": "{}"}}, {"shuffle": False}),
        ({"output": {"path": "{}/link/documents"}, "name": "part"}, {}),
        ({"output": {"path": "{}/attributes/made"}, "name": "part"}, {}),
    ],
)
def test_inputs_are_not_written_over(tmp_path, more, top):
    prepare(tmp_path, [texts(3)])
    (tmp_path / "link").symlink_to(tmp_path)
    for folder in ("documents", "attributes/made"):  # as an earlier mix would call its output
        (tmp_path / folder / "part-0.jsonl.gz").rename(tmp_path / folder / "part-0000.jsonl.gz")
    before = contents(tmp_path)
    more["output"]["path"] = more["output"]["path"].format(tmp_path)
    for dry in (True, False):
        with pytest.raises(ConfigError, match="is also an input"):
            run(stream(tmp_path, **more), dry_run=dry, **top)
    assert contents(tmp_path) == before


def test_inputs_that_would_share_an_output_are_refused(tmp_path):
    for root in ("a", "b"):
        prepare(tmp_path / root, [texts(3)])
    both = stream(tmp_path, documents=[f"{tmp_path}/{root}/documents" for root in "ab"])
    with pytest.raises(ConfigError, match="would both become"):
        run(both, shuffle=False)
    again = stream(tmp_path, output={"path": f"{tmp_path}/./mixed"}, documents=[f"{tmp_path}/b/documents"])
    with pytest.raises(ConfigError, match="would both become"):
        run([stream(tmp_path, documents=[f"{tmp_path}/a/documents"]), again])
    assert not (tmp_path / "mixed").exists()


def test_documents_without_an_id_cannot_be_drawn(tmp_path):
    write_lines(tmp_path / "documents/x.jsonl", [json.dumps({"id": "a", "text": "x"}), json.dumps({"text": "x"})])
    with pytest.raises(DataError) as caught:
        run(stream(tmp_path, attributes=[], rate=0.999999))
    assert (caught.value.kind, caught.value.record) == ("bad-document", "line 2")
    assert run(stream(tmp_path, attributes=[], rate=3)).streams[0].counts.written == 6


def test_a_dry_run_and_processes_in_the_configuration_count(tmp_path):
    prepare(tmp_path)
    for top in ({"dryrun": True}, {"dryrun": True, "processes": 2}):
        report = mix(read_config({"streams": [stream(tmp_path)], **top}))
        assert report.dry_run is not None and not (tmp_path / "mixed").exists()
    assert mix(read_config({"streams": [stream(tmp_path)], "processes": 1})).dry_run is None
    for wrong in (0, -1, True, "two"):
        with pytest.raises(ConfigError, match="processes"):
            read_config({"streams": [stream(tmp_path)], "processes": wrong})


@pytest.mark.parametrize("marker", ["", "[]", "7", "{}", '{"fingerprint": 1, "size": 2}'])
def test_an_output_whose_marker_is_damaged_is_made_again(tmp_path, marker):
    prepare(tmp_path, FILES[:1])
    run(stream(tmp_path))
    (tmp_path / ".feedmill/mix-mixed/m-0000.jsonl.gz.json").write_text(marker)
    assert run(stream(tmp_path)).streams[0].finished_before == 0
    assert run(stream(tmp_path)).streams[0].finished_before == 1


def test_numbers_and_texts_are_taken_for_each_other_as_dolma_does(tmp_path):
    """YAML 1.1 reads ``1e-1`` as a text."""
    rules = [{"span": "$.a", "min_score": "5e-1", "max_score": 2, "replacement": 7}]
    output = {"path": "o", "max_size_in_bytes": "6_000_000"}
    made = read_config({"streams": [stream(tmp_path, 2024, rate="1e-1", span_replacement=rules, output=output)]})
    one = made.streams[0]
    assert (one.name, one.rate, one.max_size) == ("2024", 0.1, 6_000_000)
    assert (one.replacements[0].low, one.replacements[0].high, one.replacements[0].text) == (0.5, 2, "7")
