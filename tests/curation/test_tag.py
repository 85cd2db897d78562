"""The job: what it writes where, what it refuses, what it does not do twice."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from feedmill.curation.tag import tag
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from helpers.document_datasets import contents, document, read_json, write_documents, write_tree

TAGGERS = ["char_length_with_paragraphs_v1", "c4_v2", "gopher_v2"]


def run(root: Path, **options: Any) -> Any:
    settings = {"name": "e", "progress": False, **options}
    taggers = settings.pop("taggers", TAGGERS)
    return tag([f"{root}/documents/**/*"], taggers, **settings)


def test_attributes_lie_beside_documents_row_by_row(tmp_path: Path) -> None:
    write_tree(tmp_path)
    write_documents(tmp_path / "documents/deep/er/x.jsonl.zst", [document(1), document(2, "é\n\nü" * 3)])
    write_documents(tmp_path / "documents/deep/plain.jsonl", [document(3, source="other")])
    report = run(tmp_path)
    assert (report.files, report.reused, report.rows) == (6, 0, 503)
    for path in sorted((tmp_path / "documents").rglob("*.*")):
        rows = read_json(tmp_path / "attributes/e" / path.relative_to(tmp_path / "documents"))
        wanted = read_json(path)
        assert [(row["id"], row["source"]) for row in rows] == [(row["id"], row["source"]) for row in wanted]
        assert all(list(row) == ["id", "attributes", "source"] for row in rows)
        lengths = [row["attributes"]["e__char_length_with_paragraphs_v1__document"] for row in rows]
        assert lengths == [[[0, len(row["text"]), len(row["text"])]] for row in wanted]


def test_any_number_of_processes_writes_the_same_bytes(tmp_path: Path) -> None:
    one, three = write_tree(tmp_path / "one"), write_tree(tmp_path / "three")
    run(one, workers=1)
    run(three, workers=3)
    raw = [{p.name: p.read_bytes() for p in (root / "attributes/e").glob("*.gz")} for root in (one, three)]
    assert raw[0] == raw[1] and len(raw[0]) == 4


def test_a_large_file_is_cut_over_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.jobs.run.LARGE", 1000)
    rows = [document(k, "Some words, and then more.\n" * (k % 90)) for k in range(1200)]
    raw = []
    for n in (1, 3):
        write_documents(tmp_path / f"{n}/documents/large.jsonl.gz", rows)
        write_documents(tmp_path / f"{n}/documents/small.jsonl", rows[:3])
        report = run(tmp_path / str(n), workers=n)
        assert (report.files, report.rows) == (2, 1203)
        raw.append({p.name: p.read_bytes() for p in (tmp_path / f"{n}/attributes/e").glob("*.json*")})
    assert raw[0] == raw[1] and len(raw[0]) == 2
    lines = [json.dumps(row) for row in rows]
    lines[1000] = '{"id": 7}'
    (tmp_path / "bad/documents").mkdir(parents=True)
    (tmp_path / "bad/documents/large.jsonl").write_text("\n".join(lines) + "\n")
    for n in (1, 3):
        with pytest.raises(DataError) as caught:
            run(tmp_path / "bad", workers=n)
        assert "large.jsonl" in str(caught.value) and "line 1001" in str(caught.value)
        assert run(tmp_path / "bad", workers=n, on_error="skip").failed
        assert not [path for path in (tmp_path / "bad/attributes").rglob("*") if path.is_file()]


def test_without_a_name_each_tagger_has_a_set_of_its_own(tmp_path: Path) -> None:
    write_tree(tmp_path, 1)
    run(tmp_path, name=None)
    assert sorted(p.name for p in (tmp_path / "attributes").iterdir()) == sorted(TAGGERS)
    row = read_json(tmp_path / "attributes/c4_v2/part-0.jsonl.gz")[0]
    assert next(iter(row["attributes"])).startswith("c4_v2__c4_v2__")


def test_what_is_up_to_date_is_not_made_again(tmp_path: Path) -> None:
    write_tree(tmp_path)
    run(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "attributes").rglob("*.gz")}
    assert run(tmp_path).reused == 4
    write_documents(tmp_path / "documents/part-9.jsonl.gz", [document(1)])
    report = run(tmp_path)
    assert (report.files, report.reused, report.rows) == (5, 4, 501)
    assert all(p.stat().st_mtime_ns == time for p, time in before.items())
    assert run(tmp_path, overwrite=True).reused == 0


@pytest.mark.parametrize("change", ["documents", "output", "no output", "record", "taggers", "exact"])
def test_what_is_stale_is_made_again(tmp_path: Path, change: str) -> None:
    write_tree(tmp_path, 2)
    run(tmp_path)
    options: dict[str, Any] = {}
    output = tmp_path / "attributes/e/part-0.jsonl.gz"
    good = output.read_bytes()
    if change == "documents":
        write_documents(tmp_path / "documents/part-0.jsonl.gz", [document(k) for k in range(49, -1, -1)])
    elif change == "output":
        output.write_bytes(gzip.compress(b"{}\n"))
    elif change == "no output":
        output.unlink()
    elif change == "record":
        (tmp_path / ".feedmill/mix-attributes/e/part-0.jsonl.gz.json").write_text('{"fingerprint":')
    elif change == "taggers":
        options["taggers"] = TAGGERS[:2]
    elif change == "exact":
        options["exact"] = True
    report = run(tmp_path, **options)
    assert report.reused == (0 if options else 1)
    if change in ("output", "no output", "record"):
        assert output.read_bytes() == good


def test_a_list_that_changed_is_read_again_by_the_same_process(tmp_path: Path) -> None:
    write_documents(tmp_path / "documents/x.jsonl", [document(1, metadata={"url": "http://www.a.org/x"})])
    (tmp_path / "list").write_text("a.org\n")
    taggers = [f"domain_list={tmp_path}/list"]
    run(tmp_path, taggers=taggers)
    assert read_json(tmp_path / "attributes/e/x.jsonl")[0]["attributes"]
    (tmp_path / "list").write_text("longer.org\n")
    assert run(tmp_path, taggers=taggers).reused == 0
    assert not read_json(tmp_path / "attributes/e/x.jsonl")[0]["attributes"]
    (tmp_path / "list").write_text("||www.a.org^\n")
    run(tmp_path, taggers=taggers)
    assert read_json(tmp_path / "attributes/e/x.jsonl")[0]["attributes"]


@pytest.mark.parametrize("by_path", [True, False])
def test_attributes_are_stale_when_any_file_of_a_package_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_path: bool
) -> None:
    code = (
        "from dolma import BaseTagger, add_tagger\nfrom dolma.core.data_types import DocResult, Span\n"
        "@add_tagger('{name}')\nclass T(BaseTagger):\n"
        "    def predict(self, doc): return DocResult(doc, [Span(0, {end}, 'a')])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_documents(tmp_path / "documents/x.jsonl", [document(1)])
    name = f"in_a_package_{by_path:d}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("from . import inner\n")
    for end in (1, 22, 333):
        (tmp_path / name / "inner.py").write_text(code.format(name=name, end=end))
        module = f"{tmp_path}/{name}" if by_path else name
        assert [run(tmp_path, taggers=[name], tagger_modules=[module]).reused for _ in range(2)] == [0, 1]
        assert read_json(tmp_path / "attributes/e/x.jsonl")[0]["attributes"] == {f"e__{name}__a": [[0, end, 1.0]]}


def test_a_copied_data_set_with_new_times_is_known_by_its_hashes(tmp_path: Path) -> None:
    write_tree(tmp_path, 2)
    run(tmp_path)
    for path in tmp_path.rglob("*.gz"):
        os.utime(path, ns=(1, 1))
    assert run(tmp_path).reused == 2


def test_the_record_says_what_the_attributes_were_made_of(tmp_path: Path) -> None:
    write_tree(tmp_path, 1)
    run(tmp_path)
    record = json.loads((tmp_path / ".feedmill/mix-attributes/e/part-0.jsonl.gz.json").read_text())
    assert record["rows"] == 50
    assert record["options"]["taggers"] == TAGGERS
    assert record["input"]["size"] == (tmp_path / "documents/part-0.jsonl.gz").stat().st_size
    assert len(record["input"]["xxh3"]) == len(record["output"]["xxh3"]) == 32


def bad(tmp_path: Path, data: bytes, name: str = "bad.jsonl") -> FeedmillError:
    path = tmp_path / "documents" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    with pytest.raises(FeedmillError) as caught:
        run(tmp_path)
    assert not list((tmp_path / "attributes").rglob(f"{name}*")) if (tmp_path / "attributes").exists() else True
    return caught.value


GOOD = b'{"id": "a", "text": "x"}\n'


@pytest.mark.parametrize(
    ("row", "part"),
    [
        (b'{"id": "b", "text": ', "not a document"),
        (b"", "blank"),
        (b"   ", "blank"),
        (b'{"text": "x"}', "id"),
        (b'{"id": "b"}', "text"),
        (b'{"id": [7], "text": "x"}', "`$.id`"),
        (b'{"id": "b", "text": null}', "`$.text`"),
        (b'["id", "text"]', "object"),
        (b'{"id": "b", "text": "\xff"}', "line 3"),
        (b'{"id": "b", "text": "\\ud800"}', "lone surrogate"),
        (b'{"id": "b", "text": "x", "source": 1}', "`$.source`"),
    ],
)
def test_a_bad_line_is_named_and_nothing_of_its_file_is_written(tmp_path: Path, row: bytes, part: str) -> None:
    error = bad(tmp_path, GOOD * 2 + row + b"\n" + GOOD)
    assert isinstance(error, DataError)
    assert part in str(error) and "line 3" in str(error) and "bad.jsonl" in str(error)


@pytest.mark.parametrize("name", ["cut.jsonl.gz", "cut.jsonl.zst"])
def test_a_cut_file_is_refused(tmp_path: Path, name: str) -> None:
    rows = [document(k, os.urandom(200).hex()) for k in range(2000)]
    path = write_documents(tmp_path / "whole" / name, rows)
    error = bad(tmp_path, path.read_bytes()[:-100], name)
    assert error.kind == "bad-compression" and name in str(error)


def test_finished_files_stay_when_another_is_bad(tmp_path: Path) -> None:
    write_tree(tmp_path)
    error = bad(tmp_path, b"{}\n" * 3)
    assert "bad.jsonl" in str(error)
    assert len(list((tmp_path / "attributes/e").glob("*.gz"))) == 4
    (tmp_path / "documents/bad.jsonl").write_bytes(GOOD)
    assert run(tmp_path).reused == 4


def test_a_run_may_go_on_over_bad_files_and_reports_them(tmp_path: Path) -> None:
    write_tree(tmp_path, 2)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / "documents" / name).write_bytes(GOOD + b"\n")
    report = run(tmp_path, on_error="skip", workers=2)
    assert len(report.failed) == 2 and report.files == 4 and report.rows == 150
    assert [error["kind"] for error in report.as_dict()["failed"]] == ["bad-document"] * 2


def test_rows_end_with_newlines_only_and_the_last_may_lack_it(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    rows = ['{"id":"a","text":"one\u2028two\x85"}\r', '{"id":"b","text":"\u2029","added":null}']
    (tmp_path / "documents/x.jsonl").write_text("\n".join(rows))
    (tmp_path / "documents/empty.jsonl").write_text("")
    run(tmp_path, taggers=["char_length_v1"])
    found = read_json(tmp_path / "attributes/e/x.jsonl")
    assert [row["attributes"]["e__char_length_v1__length"] for row in found] == [[[0, 8, 8]], [[0, 1, 1]]]
    assert contents(tmp_path / "attributes/e")["empty.jsonl"] == b""


def test_times_that_are_not_texts_are_refused_as_dolma_does_when_exact(tmp_path: Path) -> None:
    write_documents(tmp_path / "documents/x.jsonl", [document(1, added=None)])
    run(tmp_path)
    with pytest.raises(DataError, match=r"\$\.added"):
        run(tmp_path, exact=True)


def test_folders_that_all_files_share_are_kept_and_lost_only_when_exact(tmp_path: Path) -> None:
    write_documents(tmp_path / "documents/a/b/x.jsonl", [document(1)])
    run(tmp_path)
    assert list(contents(tmp_path / "attributes/e")) == ["a/b/x.jsonl"]
    run(tmp_path, exact=True, name="exact")
    assert list(contents(tmp_path / "attributes/exact")) == ["x.jsonl"]


def test_destinations_take_the_place_of_attributes(tmp_path: Path) -> None:
    write_documents(tmp_path / "one/deep/x.jsonl", [document(1)])
    write_documents(tmp_path / "two/y.jsonl", [document(2)])
    patterns = [f"{tmp_path}/one/**/*.jsonl", f"{tmp_path}/two"]
    tag(patterns, ["doc_count_v1"], output=[f"{tmp_path}/out"], name="e", progress=False)
    assert list(contents(tmp_path / "out")) == ["deep/x.jsonl", "y.jsonl"]
    tag(patterns, ["doc_count_v1"], output=[f"{tmp_path}/o1", f"{tmp_path}/o2"], progress=False)
    assert list(contents(tmp_path / "o2")) == ["doc_count_v1/y.jsonl"]
    with pytest.raises(ConfigError, match="destinations"):
        tag(patterns, ["doc_count_v1"], output=[f"{tmp_path}/out"], exact=True, progress=False)


def test_a_file_that_two_patterns_name_is_tagged_once(tmp_path: Path) -> None:
    write_tree(tmp_path, 2)
    documents = [f"{tmp_path}/documents/*", f"{tmp_path}/documents/part-0*"]
    assert tag(documents, TAGGERS, name="e", progress=False).files == 2


def test_a_file_is_tagged_once_however_its_folder_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "d", 2)
    (tmp_path / "link").symlink_to("d")
    monkeypatch.chdir(tmp_path)
    roots = ["d", "./d", "d/", str(tmp_path / "d"), f"file://{tmp_path}/d", "link"]
    report = tag([f"{root}/documents" for root in roots], TAGGERS, name="e", workers=2, progress=False)
    assert (report.files, report.rows, report.outputs) == (2, 150, ["d/attributes/e"])


@pytest.mark.parametrize("options", [{"output": ["{}/documents"]}, {"output": ["{}/documents/."], "exact": True}])
def test_documents_are_not_written_over(tmp_path: Path, options: dict[str, Any]) -> None:
    write_tree(tmp_path, 2)
    before = contents(tmp_path)
    options = {**options, "output": [place.format(tmp_path) for place in options["output"]]}
    with pytest.raises(ConfigError, match="overwrite the documents"):
        run(tmp_path, **options)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"taggers": []}, "no tagger"),
        ({"taggers": ["c4_v2", "c4_v2"]}, "twice"),
        ({"taggers": ["c4_v3"]}, "Did you mean .c4_v2"),
        ({"taggers": ["c4_v2=x"]}, "takes no file"),
        ({"taggers": ["pii_presidio_v1"]}, "Dolma.s tagger .pii_presidio_v1. is not available"),
        ({"taggers": ["ft_lang_id_doc_v1"]}, "models are not downloaded"),
        ({"taggers": ["ft_lang_id_doc_v1=no.bin"]}, "does not exist"),
        ({"name": "7up"}, "digit"),
        ({"name": "../documents"}, "not a valid name"),
        ({"name": "\udcff"}, "not valid UTF-8"),
        ({"output": ["\udcff"]}, "not valid UTF-8"),
        ({"on_error": "ignore"}, "policy"),
        ({"output": ["a", "b"]}, "destinations"),
        ({"tagger_modules": ["no_such.py"]}, "module with taggers not found"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], part: str
) -> None:
    write_tree(tmp_path, 1)
    with pytest.raises(FeedmillError, match=part):
        run(tmp_path, **options)
    assert not (tmp_path / "attributes").exists()


def test_documents_with_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    write_documents(tmp_path / os.fsdecode(b"documents/\xff.jsonl"), [document(1)])
    with pytest.raises(ConfigError, match="not valid UTF-8"):
        run(tmp_path)
    assert not (tmp_path / "attributes").exists()


def test_places_that_would_be_shared_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_documents(tmp_path / name / "x.jsonl", [document(1)])
    patterns = [f"{tmp_path}/a/*", f"{tmp_path}/b/*"]
    with pytest.raises(ConfigError, match="share the attribute file"):
        tag(patterns, TAGGERS, output=[f"{tmp_path}/o"], name="e", progress=False)
    with pytest.raises(ConfigError, match="'documents'"):
        tag(patterns, TAGGERS, name="e", progress=False)


def test_patterns_without_files(tmp_path: Path) -> None:
    write_tree(tmp_path, 1)
    documents = [f"{tmp_path}/nothing/*", f"{tmp_path}/documents/*"]
    with pytest.raises(NotFound, match="nothing"):
        tag(documents, TAGGERS, progress=False)
    report = tag(documents, TAGGERS, progress=False, allow_empty=True)
    assert (report.files, report.missing) == (1, documents[:1])
    with pytest.raises(NotFound, match="any pattern"):
        tag(documents[:1], TAGGERS, progress=False, allow_empty=True)


def test_documents_and_attributes_may_lie_in_an_object_store(tmp_path: Path, s3_bucket: str) -> None:
    from feedmill.storage import open_store

    write_tree(tmp_path, 2)
    for path in (tmp_path / "documents").iterdir():
        open_store(f"{s3_bucket}/data/documents/sub").write_bytes(path.name, path.read_bytes())
    pattern = [f"{s3_bucket}/data/documents/**/*.gz"]
    report = tag(pattern, TAGGERS, name="e", progress=False)
    assert report.rows == 150
    run(tmp_path)
    there = open_store(f"{s3_bucket}/data/attributes/e/sub").read("part-0.jsonl.gz")
    assert there == (tmp_path / "attributes/e/part-0.jsonl.gz").read_bytes()
    assert tag(pattern, TAGGERS, name="e", progress=False).reused == 2
