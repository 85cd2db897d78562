"""Texts and tables become documents; what is left out is named with its reason."""

from __future__ import annotations

import csv
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedmill as fm
from feedmill.documents.find import find_documents
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.storage.codec import unpacked


def put(root: Path, **files: str | bytes) -> Path:
    for name, data in files.items():
        path = root / name.replace("__", ".").replace("_in_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return root


def documents(out: Path) -> list[dict[str, Any]]:
    rows = []
    for path in sorted((out / "documents").iterdir()):
        kind = path.suffix.removeprefix(".").replace("jsonl", "")
        with open(path, "rb") as raw, unpacked(raw, kind, file=str(path)) as stream:
            rows += [json.loads(line) for line in stream.read().splitlines()]
    return rows


def run(source: Path, out: Path, **options: Any) -> fm.reports.ImportReport:
    return fm.import_data(source, out, progress=False, workers=1, **options)


def test_every_kind_of_text_and_table(tmp_path: Path) -> None:
    raw = put(
        tmp_path / "raw",
        a__txt="plain",
        deep_in_b__md="# Title",
        c__html="<title>T</title><p>one <i>two</i></p><script>no</script>",
        d__csv='id,content,n\nx,"two\nlines",1\n,second,2\n',
        e__tsv="text\tn\ntabbed\t3\n",
        f__jsonl='{"text": "line", "k": [1]}\n\n"bare"\n',
        g__json='[{"text": "first"}, {"text": "last", "source": "web"}]',
        h__csv__gz=gzip.compress(b"text\npacked\n"),
        i__json='{"text": "alone"}',
    )
    pq.write_table(pa.table({"body": ["column"], "day": [pa.scalar(1)]}), raw / "j.parquet")
    report = run(raw, tmp_path / "out")
    found = {document["id"]: document for document in documents(tmp_path / "out")}
    assert {key: document["text"] for key, document in found.items()} == {
        "a.txt:1": "plain",
        "deep/b.md:1": "# Title",
        "c.html:1": "one two",
        "x": "two\nlines",
        "d.csv:2": "second",
        "e.tsv:1": "tabbed",
        "f.jsonl:1": "line",
        "f.jsonl:3": "bare",
        "g.json:1": "first",
        "g.json:2": "last",
        "h.csv.gz:1": "packed",
        "i.json:1": "alone",
        "j.parquet:1": "column",
    }
    assert found["x"]["metadata"] == {"file": "d.csv", "row": 1, "n": "1"}
    assert found["f.jsonl:1"]["metadata"] == {"file": "f.jsonl", "row": 1, "k": [1]}
    assert found["c.html:1"]["metadata"]["title"] == "T"
    assert (found["a.txt:1"]["source"], found["g.json:2"]["source"]) == ("raw", "web")
    assert (report.type, report.samples, report.files, len(report.left_out)) == ("documents", 13, 10, 0)


def test_the_output_is_what_other_verbs_read(tmp_path: Path) -> None:
    put(tmp_path / "raw", a__txt="some words here", b__txt="more words")
    run(tmp_path / "raw", tmp_path / "out", compression="zst")
    assert [file.kind for file in find_documents([tmp_path / "out"]).files] == ["lines"]
    report = fm.tag([str(tmp_path / "out/documents")], ["char_length_v1"], workers=1, progress=False)
    assert report.rows == 2


def test_links_out_of_the_source_are_followed_and_named(tmp_path: Path) -> None:
    put(tmp_path / "other/folder", secret__txt="of another folder", more__txt="more of it")
    raw = put(tmp_path / "raw", a__txt="own", b__txt="own, too", skipped__txt="x")
    put(raw / "folder-2", c__txt="between the names of the link and what is below it")
    (raw / "inside").symlink_to("a.txt")
    (raw / "inside.txt").symlink_to("a.txt")
    (raw / "out.txt").symlink_to("../other/folder/secret.txt")
    (raw / "folder").symlink_to(tmp_path / "other/folder")
    (raw / "not-read").symlink_to(tmp_path / "other/folder")
    (tmp_path / "named").symlink_to("raw")
    for source in ("raw", "named"):  # a link that the user names is where the user wants it
        report = run(tmp_path / source, tmp_path / f"out-{source}", exclude=["not-read/*", "skipped.txt"])
        assert report.samples == 7
        warnings = [line for line in report.recognized if "link" in line]
        assert warnings == ["warning: 2 links lead out of the sources, and what they lead to is read (folder, out.txt)"]


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    raw = put(
        tmp_path / "raw",
        good__txt="good",
        empty__txt="",
        blank__txt=" \n",
        latin__txt=b"caf\xe9",
        paper__pdf="%PDF",
        data__tar="x",
        README__md="about",
        rows__jsonl='{"text": 1}\n{"text": null}\n{"text": ""}\n{bad\n[1]\n{"text": "\\ud800"}\n{"text": "kept"}\n',
        table__csv="text,n\nkept too\n",
        broken__csv__gz=b"\x1f\x8b no gzip",
    )
    (raw / "lost").symlink_to("nowhere")
    (raw / "loop").symlink_to(".")
    (raw / ".hidden").write_text("x")
    (raw / "pipe").unlink(missing_ok=True)
    (raw / "list.csv").write_text("text\nrow\n")
    report = run(raw, tmp_path / "out")
    assert sorted(d["text"] for d in documents(tmp_path / "out")) == ["good", "kept", "row"]
    left = {name: reason for reason, names in report.left_out.names.items() for name in names}
    assert left.pop("broken.csv.gz").startswith("cannot be read: ")
    assert left == {
        ".hidden": "hidden",
        "lost": "a link without a target",
        "loop": "a link to a folder above it",
        "README.md": "a file about the data, such as README (use --include to import it)",
        "paper.pdf": "unsupported kind of file (.pdf)",
        "data.tar": "a dataset already (use feedmill prepare, convert or tokenize)",
        "empty.txt": "an empty file",
        "blank.txt:1": "a file without text",
        "latin.txt": "cannot be read: not valid utf-8 (use --encoding)",
        "rows.jsonl:1": "a row whose text is not a string",
        "rows.jsonl:2": "a row without text",
        "rows.jsonl:3": "a row without text",
        "rows.jsonl:4": "a line of invalid JSON",
        "rows.jsonl:5": "a line that is not a JSON object",
        "rows.jsonl:6": "a line with a lone surrogate",
        "table.csv:1": "a row of 1 cells, expected 2",
    }
    lines = (tmp_path / "out/.feedmill/left_out.jsonl").read_text().splitlines()
    assert len(lines) == len(report.left_out) == 17
    assert report.as_dict()["left_out"]["an empty file"] == {"count": 1, "examples": ["empty.txt"]}


def test_options_of_reading(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", a__txt="caf\xe9".encode("cp1252"), u__txt="é".encode("utf-16"), README__md="x")
    run(raw, tmp_path / "out", encoding="cp1252", include=["*.txt", "README*"])
    assert [d["text"] for d in documents(tmp_path / "out")] == ["x", "café", "é"]
    raw = put(tmp_path / "qa", qa__jsonl='{"q": "why", "a": "so", "n": 7}\n')
    with pytest.raises(ConfigError, match=r"not clear \(the columns are: q, a, n\).*--text"):
        run(raw, tmp_path / "no")
    with pytest.raises(ConfigError, match=r"no column 'qq'.*did you mean 'q'"):
        run(raw, tmp_path / "no", text="qq")
    run(raw, tmp_path / "qa_out", text="a", id="n")
    assert documents(tmp_path / "qa_out") == [
        {"id": "7", "text": "so", "source": "qa", "metadata": {"file": "qa.jsonl", "row": 1, "q": "why", "n": 7}}
    ]
    with pytest.raises(ConfigError, match="documents"):
        run(raw, tmp_path / "no", split_ratio="8,1,1", text="a")
    assert not (tmp_path / "no").exists()


def test_all_columns_that_are_not_used_become_metadata(tmp_path: Path) -> None:
    raw = put(
        tmp_path / "raw",
        a__jsonl='{"id": "1", "text": "hello", "metadata": "lang=en", "source": 5}\n'
        '{"text": "x", "metadata": {"lang": "en", "n": 1}, "source": null, "lang": "de"}\n'
        '{"text": "y", "metadata": {"n": 1}, "source": "", "lang": "de"}\n{"text": "z", "metadata": null}\n',
        b__jsonl='{"content": "first"}\n{"text": "a", "content": "zz"}\n',
    )
    run(raw, tmp_path / "out")
    found = {document["text"]: document for document in documents(tmp_path / "out")}
    assert found["hello"]["metadata"] == {"file": "a.jsonl", "row": 1, "metadata": "lang=en", "source": 5}
    both = {"lang": "de", "metadata": {"lang": "en", "n": 1}}
    assert found["x"]["metadata"] == {"file": "a.jsonl", "row": 2, **both} and found["x"]["source"] == "raw"
    assert found["y"]["metadata"] == {"file": "a.jsonl", "row": 3, "lang": "de", "n": 1}
    assert found["z"]["metadata"] == {"file": "a.jsonl", "row": 4}
    assert found["zz"]["metadata"] == {"file": "b.jsonl", "row": 2, "text": "a"}
    raw = put(tmp_path / "csv", a__csv="id,uid,text,body,,\n7,u7,short title,the long body,x,\n")
    run(raw, tmp_path / "csv_out", text="body", id="uid")
    more = {"id": "7", "uid": "u7", "text": "short title", "column 5": "x", "column 6": ""}
    metadata = {"file": "a.csv", "row": 1, **more}
    assert documents(tmp_path / "csv_out") == [
        {"id": "u7", "text": "the long body", "source": "csv", "metadata": metadata}
    ]


def test_two_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", a__csv="text,text,label\nhello,world,1\n")
    with pytest.raises(ConfigError, match=r"a.csv: the file has 2 columns named 'text'. Rename or drop"):
        run(raw, tmp_path / "out")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
def test_the_delimiter_is_found_in_the_header(tmp_path: Path, name: str, delimiter: str) -> None:
    rows = [["text", "la;b|e,l"], ["hello there", "pos"], ["hi, you|me;\tshe", "neg"]]
    raw = tmp_path / "raw"
    raw.mkdir()
    with open(raw / name, "w", newline="") as file:
        csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows(rows)
    run(raw, tmp_path / "out")
    found = [(document["text"], document["metadata"]["la;b|e,l"]) for document in documents(tmp_path / "out")]
    assert found == [("hello there", "pos"), ("hi, you|me;\tshe", "neg")]


def test_times_with_nanoseconds_are_text(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    times = pa.array([1_700_000_000_123_456_789, 1_000, None], pa.timestamp("ns"))
    pq.write_table(pa.table({"text": ["a", "b", "c"], "at": times}), raw / "a.parquet")
    run(raw, tmp_path / "out")
    assert [document["metadata"].get("at") for document in documents(tmp_path / "out")] == [
        "2023-11-14T22:13:20.123456789",
        "1970-01-01T00:00:00.000001",
        None,
    ]


def test_shards_are_bounded_and_do_not_depend_on_workers(tmp_path: Path) -> None:
    put(tmp_path / "raw", **{f"n{i:03}__txt": f"{i} " * 200 for i in range(40)})
    put(tmp_path / "raw", big__csv="text\n" + "\n".join("word " * 50 for _ in range(100)))
    for out, workers in (("one", 1), ("two", 2)):
        fm.import_data(tmp_path / "raw", tmp_path / out, max_shard_size="10kB", workers=workers, progress=False)
    shards = {path.name: path.read_bytes() for path in sorted((tmp_path / "one/documents").iterdir())}
    assert shards == {path.name: path.read_bytes() for path in sorted((tmp_path / "two/documents").iterdir())}
    assert len(shards) > 5 and max(map(len, shards.values())) <= 10_000
    ids = [document["id"] for document in documents(tmp_path / "one")]
    assert len(set(ids)) == 140


def test_several_sources_and_files(tmp_path: Path) -> None:
    put(tmp_path / "a/raw", x__txt="1")
    put(tmp_path / "b/raw", x__txt="2")
    put(tmp_path / "c", y__txt="3", z__txt="4")
    sources = [tmp_path / "a/raw", tmp_path / "b/raw", tmp_path / "c/y.txt", tmp_path / "c/y.txt"]
    report = fm.import_data(sources, tmp_path / "out", progress=False, workers=1)
    ids = {document["id"]: document["text"] for document in documents(tmp_path / "out")}
    assert ids == {"raw/x.txt:1": "1", "raw-2/x.txt:1": "2", "c/y.txt:1": "3"} and report.files == 3


@pytest.mark.parametrize("inner", ["raw/sub", "raw/sub/x.txt"])
def test_a_source_in_another_is_rejected(inner: str, tmp_path: Path) -> None:
    put(tmp_path / "raw", y__txt="1", sub_in_x__txt="2")
    sources = [tmp_path / inner, tmp_path / "raw"]
    with pytest.raises(ConfigError, match=r"/raw/sub: this source lies in another, .*/raw: 1 file would") as raised:
        fm.import_data(sources, tmp_path / "out", progress=False, workers=1)
    assert "--exclude 'sub/*'" in str(raised.value)
    fm.import_data(sources, tmp_path / "out", exclude=["sub/*"], progress=False, workers=1)
    assert [d["id"] for d in documents(tmp_path / "out")] == ["sub/x.txt:1", "raw/y.txt:1"]
    only_files = [tmp_path / "raw/y.txt", tmp_path / "raw/sub/x.txt"]  # no file twice
    assert fm.import_data(only_files, tmp_path / "two", progress=False, workers=1).samples == 2


def test_a_source_whose_name_cannot_be_written_is_rejected(tmp_path: Path) -> None:
    raw = put(tmp_path / os.fsdecode(b"t\xe9"), a__txt="1", sub_in_b__txt="2")
    for sources in ([raw], [raw, put(tmp_path / "other", a__txt="1")]):
        with pytest.raises(ConfigError, match=r"t\\udce9: the name is not valid UTF-8"):
            fm.import_data(sources, tmp_path / "out", progress=False, workers=1)
    assert fm.import_data(raw / "sub", tmp_path / "out", progress=False, workers=1).samples == 1


def test_the_output_inside_the_source_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, a__txt="a")
    run(tmp_path, tmp_path / "out")
    report = run(tmp_path, tmp_path / "out", overwrite=True)
    assert report.samples == 1 and report.left_out.names["the output folder itself"] == ["out"]


def test_errors_are_clear(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", a__txt="a")
    with pytest.raises(NotFound, match="no such file"):
        run(tmp_path / "none", tmp_path / "out")
    run(raw, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"not empty.*--overwrite"):
        run(raw, tmp_path / "out")
    put(tmp_path / "raw", b__txt="b")
    assert run(raw, tmp_path / "out", overwrite=True).samples == 2
    put(tmp_path / "out", mine__txt="x")
    with pytest.raises(ConfigError, match=r"has for example 'mine.txt'"):
        run(raw, tmp_path / "out", overwrite=True)
    for nothing in (tmp_path / "folder", put(tmp_path / "blank", a__txt="")):
        nothing.mkdir(exist_ok=True)
        with pytest.raises(DataError, match="nothing to import"):
            run(nothing, tmp_path / "no")
        assert not (tmp_path / "no/documents").exists()
    for options in ({"type": "captions"}, {"compression": "zip"}, {"encoding": "klingon"}, {"max_shard_size": 0}):
        with pytest.raises(ConfigError):
            run(raw, tmp_path / "no", **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="also the output"):
        run(raw, raw)


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", a__txt="a", b__csv="text\nx\n", c__exe="")
    report = run(raw, tmp_path / "out", dry_run=True)
    assert report.recognized == ["1 file of text", "1 file of CSV or TSV"] and report.samples is None
    assert report.left_out.as_dict() == {"unsupported kind of file (.exe)": {"count": 1, "examples": ["c.exe"]}}
    assert not (tmp_path / "out").exists()
