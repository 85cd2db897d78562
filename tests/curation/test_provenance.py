"""Attributes are used with the documents that they were made of, and with no others unless the user says so."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from feedmill.curation.dedupe.job import dedupe
from feedmill.curation.mix.config import read_config
from feedmill.curation.mix.job import mix
from feedmill.curation.mix.report import MixReport
from feedmill.curation.stat import stat
from feedmill.curation.tag import tag
from feedmill.errors import DataError
from feedmill.tracing.forget import forget
from helpers.document_folders import read, write_lines

TEXT = "Write to me@example.org now please."
OTHER = "Dear reader, the best sentence here"
assert len(TEXT) == len(OTHER)
DOCUMENTS, NAME = "d/documents/a.jsonl", "set"


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write()


def write(text: str = TEXT, path: str = DOCUMENTS) -> None:
    write_lines(Path(path), [json.dumps({"id": n, "text": text}) for n in "ab"])


def by_tag() -> None:
    tag(["d/documents"], ["pii_regex_v2"], name=NAME, progress=False)


def by_dedupe(**more: Any) -> None:
    dedupe(["d/documents"], name=NAME, keep_empty=True, workers=1, **more)


def by_bloom() -> None:
    by_dedupe(bloom="x.bin", items=1000)


def by_neardedupe() -> None:
    dedupe(["d/documents"], near=True, name=NAME, workers=1, progress=False)


MAKERS = {"tag": by_tag, "dedupe": by_dedupe, "a Bloom filter": by_bloom, "neardedupe": by_neardedupe}


def run(**more: Any) -> MixReport:
    stream = {"name": "m", "documents": ["d/documents/*"], "attributes": [NAME], "output": {"path": "out"}}
    dry_run, exact = more.pop("dry_run", False), more.pop("exact", False)
    config = read_config({"streams": [stream], **more}, exact=exact)
    return mix(config, workers=1, progress=False, dry_run=dry_run)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("other", [OTHER, OTHER * 2], ids=["of the same size", "longer"])
def test_attributes_of_other_texts_are_refused(maker: str, other: str) -> None:
    MAKERS[maker]()
    write(other)
    for more in ({}, {"dry_run": True}, {"exact": True}):
        with pytest.raises(
            DataError, match=r"set/a\.jsonl.*another version of d/documents/a\.jsonl.*--allow-s"
        ) as caught:
            run(**more)
        assert caught.value.kind == "stale-attributes" and not Path("out").exists()


@pytest.mark.parametrize("maker", MAKERS)
def test_attributes_are_used_with_documents_that_have_the_same_bytes(maker: str) -> None:
    """Copies, and files that were touched, have another time."""
    MAKERS[maker]()
    os.utime(DOCUMENTS, (1, 1))
    assert run().stale == 0
    shutil.copytree("d", "e")
    os.utime("e/documents/a.jsonl", (2, 2))
    shutil.rmtree("d")
    shutil.move("e", "d")
    os.utime(f"d/attributes/{NAME}/a.jsonl", (3, 3))
    assert run().stale == 0
    write(OTHER)
    with pytest.raises(DataError, match="another version"):
        run()


def test_the_user_may_go_on_knowingly() -> None:
    by_tag()
    write(OTHER)
    report = run(allow_stale=True)
    assert report.stale == 1 == report.as_dict()["stale"]
    assert "1 attribute files were computed from other documents" in report.warnings[0]
    write_lines(Path(DOCUMENTS), [json.dumps({"id": n, "text": OTHER}) for n in "ac"])
    with pytest.raises(DataError, match='the id "b"'):  # rows have to line up all the same
        run(allow_stale=True)


def test_statistics_of_attributes_of_other_texts_are_refused() -> None:
    by_tag()
    assert stat(["d/attributes/**"], workers=1, progress=False).stats.rows == 2
    write(OTHER)
    with pytest.raises(DataError, match=r"another version of .*documents/a\.jsonl"):
        stat(["d/attributes"], workers=1, progress=False)
    assert len(stat(["d/attributes"], workers=1, on_error="skip", progress=False).failed) == 1
    report = stat(["d/attributes"], workers=1, allow_stale=True, progress=False)
    assert (report.stale, report.stats.rows, len(report.warnings)) == (1, 2, 1)
    Path(DOCUMENTS).unlink()  # then there is nothing that the attributes could be of instead
    assert stat(["d/attributes"], workers=1, progress=False).stale == 0


def foreign(*spans: list[Any]) -> None:
    """Attributes as something else writes them, without a record."""
    rows = [json.dumps({"id": one, "attributes": {"x": [span]}}) for one, span in zip("ab", spans, strict=True)]
    write_lines(Path(f"d/attributes/{NAME}/a.jsonl"), rows)


def test_spans_behind_the_text_show_that_attributes_without_a_record_are_of_another_text() -> None:
    size = len(TEXT)
    foreign([0, size, 1.0], [3, size + 1, 0.5])  # Dolma's last paragraph may end one character behind the text
    assert run().streams[0].counts.kept == 2
    foreign([0, size, 1.0], [0, size + 2, 0.5])
    with pytest.raises(DataError, match=r"line 2.*'x' has the span \[0, 37, 0\.5\].*35 characters") as caught:
        run()
    assert caught.value.kind == "stale-attributes"
    assert run(allow_stale=True).streams[0].counts.kept == 2 == run(exact=True).streams[0].counts.kept
    foreign([0, size, 1.0], [0, 900, 1])  # Dolma's mark of a duplicate by another key than the text
    assert run().streams[0].counts.kept == 2


def test_rows_of_another_source_are_of_other_documents() -> None:
    rows = [{"id": one, "text": TEXT, "source": "wiki"} for one in "ab"]
    write_lines(Path(DOCUMENTS), map(json.dumps, rows))
    for source, fails in (("wiki", False), (None, False), ("news", True)):
        made = [{"id": one, "attributes": {}, "source": source} for one in "ab"]
        write_lines(Path(f"d/attributes/{NAME}/a.jsonl"), map(json.dumps, made))
        if not fails:
            assert run().streams[0].counts.kept == 2
            continue
        with pytest.raises(DataError, match=r"'line 1'.*the source 'news', but .* to 'wiki'"):
            run()


def test_a_set_that_something_else_wrote_over_is_compared_by_ids() -> None:
    by_tag()
    write(OTHER)
    foreign([0, 5, 1.0], [0, 5, 1.0])
    assert run().streams[0].counts.kept == 2


def test_manifests_of_earlier_versions_have_no_hashes() -> None:
    by_dedupe()
    path = Path(f"d/.feedmill/mix-attributes/{NAME}/manifest.json")
    manifest = json.loads(path.read_text())
    entry = manifest["files"]["a.jsonl"]
    assert len(entry.pop("xxh3")) == 32 == len(entry["documents"].pop("xxh3"))
    path.write_text(json.dumps(manifest))
    assert run().stale == 0
    write()  # the same bytes, but nobody can tell
    with pytest.raises(DataError, match="Compute the attributes again"):
        run()


def test_attributes_made_before_the_texts_changed_do_not_touch_them() -> None:
    """The way a user meets it: the texts were extracted again, under the ids that they had."""
    by_tag()
    name = f"{NAME}__pii_regex_v2__EMAIL_ADDRESS"
    stream = {
        "name": "m",
        "documents": ["d/documents/*"],
        "attributes": [NAME],
        "output": {"path": "out"},
        "span_replacement": [{"span": f"$.attributes.{name}", "min_score": 0.5, "replacement": "|||"}],
    }
    mix(read_config({"streams": [stream]}), workers=1, progress=False)
    assert read(Path("out/m-0000.jsonl.gz"))[0]["text"] == "Write to|||now please."
    write(OTHER)
    with pytest.raises(DataError, match="another version"):
        mix(read_config({"streams": [stream]}), workers=1, progress=False)
    by_tag()
    mix(read_config({"streams": [stream]}), workers=1, progress=False)
    assert read(Path("out/m-0000.jsonl.gz"))[0]["text"] == OTHER


def write_copies() -> None:
    """Two datasets: of five documents in three files, four have the same text."""
    for path, *texts in (("d/documents/a", TEXT), ("d/documents/b", TEXT, OTHER), ("e/documents/c", TEXT, TEXT)):
        write_lines(Path(f"{path}.jsonl"), [json.dumps({"id": f"{path} {n}", "text": t}) for n, t in enumerate(texts)])


COMPARED = {
    "exact": lambda *of: dedupe(of, name=NAME, workers=1),
    "near": lambda *of: dedupe(of, near=True, name=NAME, workers=1, progress=False),
}


def mixed(*documents: str, **more: Any) -> MixReport:
    stream = {"name": "m", "documents": documents, "attributes": [NAME], "output": {"path": "out"}}
    stream["filter"] = {"keep": [f"{NAME} < 1"]}
    return mix(read_config({"streams": [stream], **more}), workers=1, progress=False)


def filtered(*documents: str, **more: Any) -> list[str]:
    """Return the texts of the documents that are no marked copies."""
    mixed(*documents, **more)
    return [row["text"] for path in sorted(Path("out").glob("*.gz")) for row in read(path)]


@pytest.mark.parametrize("verb", COMPARED)
@pytest.mark.parametrize("how", ["gone", "changed", "marked alone since"])
def test_copies_of_documents_that_are_gone_are_not_dropped(verb: str, how: str) -> None:
    """Before, the last copies were dropped without a word."""
    write_copies()
    COMPARED[verb]("d/documents", "e/documents")
    assert filtered("d/documents/*", "e/documents/*", allow_empty=True) == [TEXT, OTHER]
    if how == "gone":
        Path(DOCUMENTS).unlink()
    else:
        write("Another text, which is not like the others at all.")
        if how == "marked alone since":
            COMPARED[verb]("d/documents/a.jsonl")
    for documents in ("d/documents/b*", "e/documents/*"):
        for more in ({}, {"dryrun": True}):
            with pytest.raises(DataError, match=r"copies of documents that are gone .* since: \S*a\.jsonl") as caught:
                filtered(documents, **more)
            assert caught.value.kind == "stale-attributes"
    with pytest.raises(DataError, match="copies of documents that are gone"):
        forget(f"e/attributes/{NAME}", "out")
    with pytest.raises(DataError, match="copies of documents that are gone"):
        stat(f"e/attributes/{NAME}", workers=1, progress=False)
    skipped = stat(f"e/attributes/{NAME}", workers=1, on_error="skip", progress=False)
    assert (len(skipped.failed), skipped.files) == (1, 0)
    allowed = stat(f"e/attributes/{NAME}", workers=1, allow_stale=True, progress=False)
    assert (allowed.stale, allowed.files) == (1, 1)
    assert filtered("d/documents/b*", allow_stale=True, allow_empty=True) == [OTHER]
    COMPARED[verb]("d/documents/b.jsonl", "e/documents")
    assert filtered("d/documents/b*", "e/documents/*", allow_empty=True) == [TEXT, OTHER]


def test_datasets_that_were_compared_are_moved_together(tmp_path: Path) -> None:
    write_copies()
    COMPARED["exact"]("d/documents", "e/documents")
    (tmp_path / "elsewhere").mkdir()
    for name in "de":
        shutil.move(name, "elsewhere")
    os.utime("elsewhere/d/documents/a.jsonl", (1, 1))
    assert filtered("elsewhere/d/documents/*") == [TEXT, OTHER]
    assert filtered("elsewhere/d/documents/b*") == [OTHER]


def test_marks_of_runs_that_did_not_compare_their_documents_are_named() -> None:
    write_copies()
    dedupe("d/documents", name=NAME, workers=1)
    dedupe("e/documents", name=NAME, workers=1)
    assert any("by 2 runs, which did not compare" in text for text in mixed("d/documents/*", "e/documents/*").warnings)
    dedupe("e/documents", name=NAME, workers=1, against=["d/documents"])
    assert not mixed("d/documents/*", "e/documents/*", allow_empty=True).warnings
