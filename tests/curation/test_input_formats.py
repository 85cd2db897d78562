"""Files that are no JSON lines, and documents that lack something or hold odd values: named as what they are."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedmill.curation.dedupe.job import dedupe
from feedmill.curation.mix.config import read_config
from feedmill.curation.mix.job import mix
from feedmill.curation.mix.report import MixReport
from feedmill.curation.stat import stat
from feedmill.curation.tag import tag
from feedmill.documents.rows import large_integers
from feedmill.errors import ConfigError, DataError, FeedmillError
from helpers.document_folders import read, write_lines

ROW = b'{"id": "a", "text": "b"}\n'
FILES = {
    "x.rows": (b"PAR1\x15\x04" + bytes(40), r"Parquet.*\.parquet"),
    "x_xz": (lzma.compress(ROW), r"data compressed by xz.*\.xz"),
    "x_warc": (b"WARC/1.0\r\n\r\n", r"a web archive.*feedmill documents extract"),
    "x_bz2": (bz2.compress(ROW), r"data compressed by bzip2.*\.bz2"),
    "x.jsonl": (gzip.compress(ROW), r"data compressed by gzip.*\.gz"),
    "note": (b"It was a dark night.\nIt rained.\n", "plain text.*'id' and 'text'"),
    "note.gz": (gzip.compress(b"It was a dark night.\n"), "plain text.*'id' and 'text'"),
    "x": (bytes(range(256)), "binary data"),
}
NOT_DOCUMENTS = {
    "x.jsonl.zip": "this file is not documents: .*x.jsonl.zip",
    "notes.md": "this file is not documents: .*notes.md",
    "note.txt.gz": "this file is not documents: .*note.txt.gz",
    "x.csv": "this file is not documents: .*x.csv",
    "README.md": "no documents in this folder",
    "x.jpg": "no documents in this folder",
}


def by_tag() -> object:
    return tag(["d/documents"], ["char_length_v1"], name="n", progress=False)


def by_dedupe() -> object:
    return dedupe(["d/documents"], name="n", keep_empty=True, workers=1)


def by_mix(**more: Any) -> MixReport:
    dolma, exact = more.pop("dolma", False), more.pop("exact", False)
    stream = {"name": "m", "documents": ["d/documents"], "output": {"path": "out"}, **more}
    if dolma:
        stream["filter"] = {"exclude": ["$.nothing"]}
    return mix(read_config({"streams": [stream]}, dolma=dolma, exact=exact), workers=1, progress=False)


VERBS: dict[str, Callable[[], object]] = {
    "tag": by_tag,
    "dedupe": by_dedupe,
    "neardedupe": lambda: dedupe(["d/documents"], near=True, name="n", workers=1, progress=False),
    "mix": by_mix,
    "stat": lambda: stat(["d/documents"], workers=1, progress=False),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d/documents").mkdir(parents=True)


@pytest.mark.parametrize("verb", VERBS)
def test_files_of_other_formats_are_named_with_a_way_out(verb: str) -> None:
    for name, (data, message) in FILES.items():
        path = Path("d/documents", name)
        path.write_bytes(data)
        with pytest.raises(DataError, match=f"{name}: expected JSON lines, found {message}") as caught:
            VERBS[verb]()
        assert caught.value.kind == "other-format"
        path.unlink()


@pytest.mark.parametrize("verb", VERBS)
def test_files_that_are_not_documents_are_named_before_anything_is_read(verb: str) -> None:
    for name, message in NOT_DOCUMENTS.items():
        path = Path("d/documents", name)
        path.write_bytes(b"anything")
        with pytest.raises(FeedmillError, match=message):
            VERBS[verb]()
        path.unlink()
    for name in ("a.csv", "b.csv", "c.md"):
        Path("d/documents", name).write_bytes(b"anything")
    with pytest.raises(
        ConfigError, match=r"these 3 files are not documents: d/documents/a.csv, .*c.md\. Documents are"
    ):
        VERBS[verb]()
    write_lines(Path("d/documents/a.jsonl"), ['{"id": "a", "text": "b"}'])
    with pytest.raises(ConfigError, match=r"several kinds: 1 lines file \(.*a.jsonl'\), 3 unreadable files"):
        VERBS[verb]()


@pytest.mark.parametrize("verb", VERBS)
def test_files_about_documents_are_skipped_with_a_warning(verb: str) -> None:
    write_lines(Path("d/documents/a.jsonl"), ['{"id": "a", "text": "b"}'])
    for name in ("README.md", "LICENSE", ".hidden"):
        Path("d/documents", name).write_bytes(b"about these documents")
    report: Any = VERBS[verb]()
    folder = Path("d/documents").resolve()
    assert report.warnings == [f"2 files ({folder}/LICENSE, {folder}/README.md) skipped: no documents"]


@pytest.mark.parametrize("verb", VERBS)
def test_lines_that_are_called_text_are_refused(verb: str) -> None:
    Path("d/documents/a.txt").write_bytes(ROW)
    with pytest.raises(
        DataError, match=r"a.txt: the file has the suffix of plain text, but contains JSON lines.*to .jsonl"
    ):
        VERBS[verb]()


def test_indices_beside_documents_are_none() -> None:
    write_lines(Path("d/documents/a.jsonl"), ['{"id": "a", "text": "b"}'])
    Path("d/documents/a.jsonl.idx").write_bytes(bytes(16))
    for pattern in ("d/documents", "d/documents/*"):
        assert stat([pattern], workers=1, progress=False).files == 1


@pytest.mark.parametrize("verb", ["tag", "dedupe", "neardedupe", "stat"])
def test_documents_without_an_id_are_told_what_to_do(verb: str) -> None:
    write_lines(Path("d/documents/a.jsonl"), ['{"text": "b"}'])
    with pytest.raises(DataError, match=r"'line 1'.*the document has no 'id'.*Add an 'id' to each document"):
        VERBS[verb]()


def test_a_mix_counts_documents_without_an_id() -> None:
    write_lines(Path("d/documents/a.jsonl"), ['{"text": "b"}', '{"id": "a", "text": "c"}'])
    report = by_mix()
    assert report.streams[0].counts.as_dict()["without_id"] == 1
    assert report.warnings == ["stream m: 1 documents have no id"]


def test_ids_may_be_numbers_everywhere() -> None:
    write_lines(Path("d/documents/a.jsonl"), ['{"id": 7, "text": "b"}', '{"id": "x", "text": "b"}'])
    for go in VERBS.values():
        go()
    by_tag()
    assert [row["id"] for row in read(Path("d/attributes/n/a.jsonl"))] == [7, "x"]
    assert by_mix(attributes=["n"], output={"path": "second"}).streams[0].counts.kept == 2


def test_ids_that_occur_twice_are_found() -> None:
    rows = [{"id": one, "text": f"text {n}"} for n, one in enumerate([7, "x", 8, 7, "x"])]
    write_lines(Path("d/documents/a.jsonl"), map(json.dumps, rows))
    assert dedupe(["d/documents"], name="same_id", key="$.id", keep_empty=True, workers=1).documents == 2
    found = [row["attributes"].get("same_id") for row in read(Path("d/attributes/same_id/a.jsonl"))]
    assert [bool(spans) for spans in found] == [False, False, False, True, True]


LARGE = 123456789012345678901234567890


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (f'"n": [{LARGE}]', f"the integer {LARGE} has more than 64 bits"),
        (f'"n": {{"a": -{1 << 64}}}', f"the integer -{1 << 64} has more"),
        ('"metadata": "str"', "'metadata' is not an object"),
        ('"attributes": [1]', "'attributes' is not an object"),
    ],
)
def test_what_a_mix_would_not_write_as_it_is_is_refused_or_counted(more: str, message: str) -> None:
    rows = ['{"id": "a", "text": "b"}', f'{{"id": "b", "text": "c", {more}}}', '{"id": "c", "text": "d"}']
    write_lines(Path("d/documents/a.jsonl"), rows)
    with pytest.raises(DataError, match=rf"a\.jsonl 'line 2': {message}"):
        by_mix()
    for exact in (False, True):
        report = by_mix(dolma=True, exact=exact)
        assert report.streams[0].counts.lost == 1
        assert "1 documents lost values that Dolma does not keep" in report.warnings[0]


def test_large_integers_are_found_where_they_are_numbers() -> None:
    whole = [
        {"n": (1 << 64) - 1, "m": -(1 << 63)},
        {"text": str(LARGE), "f": 1e300, "g": 0.1234567890123456789012},
        {"n": 1 << 64},
        {"deep": [{"n": -(1 << 63) - 1}], "text": "1" * 40},
    ]
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in whole)
    lines += b'{"n": 1' + b"0" * 5000 + b"}\n"
    assert {row: text[:4] for row, text in large_integers(lines).items()} == {2: "1844", 3: "-922", 4: "1000"}
    assert large_integers(b"") == large_integers(b'{"id": 1}\n') == {}


def test_no_large_integer_is_missed_between_other_digits() -> None:
    dice = random.Random(3)
    rows, wanted = [], {}
    for number in range(3000):
        digits = (
            "".join(dice.choices("0123456789", k=dice.choice([1, 8, 9, 10, 17, 18, 19, 20, 21, 30]))).lstrip("0") or "0"
        )
        text = " ".join(f"w{dice.randrange(10 ** dice.randint(1, 9))}" for _ in range(dice.randint(0, 9)))
        rows.append(json.dumps({"t": text, "n": int(digits)}))
        if int(digits) >= 1 << 64:
            wanted[number] = digits
    assert large_integers("\n".join([*rows, ""]).encode()) == wanted
    for shift in range(9):
        assert list(large_integers(b"{" + b" " * shift + b'"n": %d}' % LARGE)) == [0]
