"""Tables that the user names: about media, or unclear. A source that was typed is used, or is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.demo.sample_data import card
from feedmill.errors import ConfigError


def put(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return root


def run(sources: Any, out: Path, **options: Any) -> fm.reports.ImportReport:
    return fm.import_data(sources, out, progress=False, workers=1, **options)


def reasons(report: fm.reports.ImportReport) -> dict[str, str]:
    return {name: reason for reason, names in report.left_out.names.items() for name in names}


def images(root: Path, folder: str = "") -> Path:
    return put(root, {f"{folder}{n}.jpg": card(n) for n in range(4)})


def captions_of(out: Path) -> dict[str, str]:
    return {sample.__key__: sample.caption for sample in fm.open(out)}


def documents(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "documents/000000.jsonl").read_text().splitlines()]


LINES = [("0", "zero"), ("1", "one"), ("2", "two"), ("9", "none")]
HERE = {"0": "zero", "1": "one", "2": "two"}


@pytest.mark.parametrize("column", ["file_name", "image", "path", "filename", "file", "img", "image_path", "Image"])
@pytest.mark.parametrize("option", [False, True])
def test_a_table_of_captions_may_lie_anywhere(column: str, option: bool, tmp_path: Path) -> None:
    root = images(tmp_path / "imgs")
    table = (
        put(tmp_path / "far", {"t.csv": f"{column},caption\n" + "".join(f"{n}.jpg,{t}\n" for n, t in LINES)}) / "t.csv"
    )
    sources, options = ([root], {"captions": [table]}) if option else ([root, table], {})
    report = run(sources, tmp_path / "out", **options)
    assert report.type == "captioning" and captions_of(tmp_path / "out") == HERE
    assert reasons(report) == {
        "t.csv:4 9.jpg": "metadata of a file that is not there or not image",
        "3.jpg": "not listed in the metadata",
    }


@pytest.mark.parametrize(
    "form", ["imgs/{}.jpg", "/gone/imgs/{}.jpg", "./{}.jpg", "imgs\\{}.jpg", "{}", "a/imgs/{}.jpg"]
)
def test_paths_in_a_table_are_found_by_their_ends(form: str, tmp_path: Path) -> None:
    root = images(tmp_path / "imgs")
    rows = [{"image": form.format(n), "text": t} for n, t in LINES]
    table = put(tmp_path, {"t.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}) / "t.jsonl"
    run([root, table], tmp_path / "out")
    assert captions_of(tmp_path / "out") == HERE


def test_a_path_that_names_two_files_names_none(tmp_path: Path) -> None:
    root = images(images(tmp_path / "imgs", "a/"), "b/")
    table = put(tmp_path, {"t.csv": "image,caption\n0.jpg,which\na/1.jpg,one\nc/1.jpg,no\n"}) / "t.csv"
    report = run([root, table], tmp_path / "out")
    assert captions_of(tmp_path / "out") == {"a/1": "one"}
    assert reasons(report)["t.csv:1 0.jpg"] == reasons(report)["t.csv:3 c/1.jpg"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.txt", "image,caption\n" + "".join(f"{n}.jpg,{t}\n" for n, t in LINES)),
        ("t.json", json.dumps({f"{n}.jpg": t for n, t in LINES})),
        ("t.json", json.dumps([{"image": f"{n}.jpg", "sentence": t} for n, t in LINES])),
        ("imgs/t.csv", "file;text\n" + "".join(f"{n}.jpg;{t}\n" for n, t in LINES)),
    ],
)
def test_other_forms_of_tables(name: str, text: str, tmp_path: Path) -> None:
    root = images(tmp_path / "imgs")
    run(root, tmp_path / "out", captions=[put(tmp_path, {name: text}) / name])
    assert captions_of(tmp_path / "out") == HERE


def test_a_table_of_labels_and_one_without_either(tmp_path: Path) -> None:
    root = images(tmp_path / "imgs")
    put(tmp_path, {"l.csv": "image,label\n0.jpg,cat\n1.jpg,dog\n", "w.csv": "image,width\n0.jpg,7\n"})
    assert run([root, tmp_path / "l.csv"], tmp_path / "labels").type == "classification"
    run([root, tmp_path / "w.csv"], tmp_path / "widths")
    assert [sample["json"] for sample in fm.open(tmp_path / "widths", raw=True)] == [{"width": "7"}]
    with pytest.raises(ConfigError, match="no column of --captions has captions: expected one of text, caption"):
        run(root, tmp_path / "no", captions=[tmp_path / "w.csv"])


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("instances.json", '{"images": [], "annotations": [], "categories": []}', "annotations of COCO, which cannot"),
        (
            "t.csv",
            "image,caption\nx.jpg,no\n",
            "no row names an image file: the column 'image' has for example 'x.jpg'",
        ),
        ("t.csv", "name,caption\nx.jpg,no\n", "needs a column of their files"),
        ("labels.xml", "<annotation/>", "this source is not used: unsupported kind of file"),
        ("x.tar", "-", "this source is not used: a dataset already"),
        ("notes.md", "text", "this source is not used: document beside image files"),
    ],
)
def test_a_source_that_was_typed_is_used_or_an_error(name: str, text: str, why: str, tmp_path: Path) -> None:
    root = put(tmp_path / "imgs", {f"{n}.jpg": card(n % 4) for n in range(12)})
    put(tmp_path, {name: text})
    for dry_run in (False, True):
        with pytest.raises(fm.FeedmillError, match=why):
            run([root, tmp_path / name], tmp_path / "out", dry_run=dry_run)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="document beside image files"):
        run([root, put(tmp_path / "texts", {"a.txt": "x"})], tmp_path / "out")


def test_captions_are_for_media(tmp_path: Path) -> None:
    put(tmp_path, {"texts/a.txt": "x", "t.csv": "image,caption\n"})
    with pytest.raises(ConfigError, match="--captions is for images, audio and video"):
        run(tmp_path / "texts", tmp_path / "out", captions=[tmp_path / "t.csv"])


def test_a_few_files_of_another_kind_are_left_out_both_ways(tmp_path: Path) -> None:
    texts = put(tmp_path / "texts", {**{f"{n}.txt": f"text {n}" for n in range(40)}, "logo.png": card(0)})
    assert reasons(run(texts, tmp_path / "a")) == {"logo.png": "image beside documents"}
    pictures = put(tmp_path / "imgs", {**{f"{n}.jpg": card(n % 4) for n in range(40)}, "note.txt": "x"})
    assert list(reasons(run(pictures, tmp_path / "b"))) == ["note.txt"]


def unclear(root: Path) -> Path:
    row, chat = {"prompt": "p", "response": "r"}, {"messages": [{"role": "user", "content": "hi"}]}
    texts: dict[str, str | bytes] = {f"{name}.jsonl": json.dumps(row) for name in "abc"}
    return put(
        root, {**texts, "chat.jsonl": json.dumps(chat), "two.csv": "a,a\n1,2\n", "t.txt": "text", "x.parquet": b"no"}
    )


def test_all_unclear_files_are_in_one_error(tmp_path: Path) -> None:
    raw = unclear(tmp_path / "raw")
    found = []
    for dry_run in (True, False):
        with pytest.raises(ConfigError) as error:
            run(raw, tmp_path / "out", dry_run=dry_run)
        found.append(str(error.value))
    assert found[0] == found[1] and "how to read 5 files" in found[0] and not (tmp_path / "out").exists()
    assert "(the columns are: prompt, response): a.jsonl, b.jsonl, c.jsonl;" in found[0]
    assert "2 columns named 'a': two.csv" in found[0] and f"feedmill tokenize {raw}/chat.jsonl" in found[0]
    assert "--on-error skip" in found[0]
    report = run(raw, tmp_path / "out", on_error="skip")
    assert report.samples == 1 and set(reasons(report)) == {
        *(f"{n}.jsonl" for n in "abc"),
        "chat.jsonl",
        "two.csv",
        "x.parquet",
    }
    assert report.recognized == ["1 file of text"]


def test_one_unclear_file_keeps_its_own_advice(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", {"a.jsonl": '{"prompt": "p", "response": "r"}'})
    with pytest.raises(
        ConfigError, match=r"a.jsonl: which column .* --text COLUMN, or leave it out with --on-error skip"
    ):
        run(raw, tmp_path / "out", dry_run=True)
    assert run(raw, tmp_path / "out", text="response").samples == 1


def test_a_dataset_is_no_source(tmp_path: Path) -> None:
    fm.write(tmp_path / "prepared", [{"__key__": "a", "txt": "x"}], progress=False)
    fm.convert(tmp_path / "prepared", tmp_path / "mds", "mds", progress=False)
    lit = {"chunks": [{"filename": "chunk-0-0.bin"}], "config": {"data_format": ["str"]}}
    put(tmp_path / "lit", {"index.json": json.dumps(lit), "chunk-0-0.bin": b"12345678"})
    for name in ("prepared", "mds", "lit"):
        with pytest.raises(ConfigError, match="this is a dataset already") as error:
            run(tmp_path / name, tmp_path / "out", dry_run=True)
        assert error.value.kind == "other-format"


def test_a_hugging_face_dataset_on_disk_is_one_too(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    (tmp_path / "hf").mkdir()
    table = pa.table({"text": ["a"]})
    with (
        pa.OSFile(str(tmp_path / "hf/data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as out,
    ):
        out.write_table(table)
    put(tmp_path / "hf", {"state.json": '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}'})
    put(tmp_path / "hf", {"dataset_info.json": '{"features": {"text": {"dtype": "string", "_type": "Value"}}}'})
    with pytest.raises(ConfigError, match=r"a dataset already .*tokenize, convert"):
        run(tmp_path / "hf", tmp_path / "out")
    assert run(tmp_path / "hf", tmp_path / "out", type="documents", include=["*.arrow"]).samples == 1


WORD = "schönes"


def test_utf8_comes_first_and_files_are_counted(tmp_path: Path) -> None:
    raw = put(
        tmp_path / "raw",
        {
            **{f"u{n}.txt": WORD for n in range(3)},
            "plain.txt": "ascii",
            "mark.txt": b"\xef\xbb\xbf" + WORD.encode(),
            "old.txt": WORD.encode("cp1252"),
            "old.csv": f"text\n{WORD}\n".encode("cp1252"),
            "new.csv": f"text\n{WORD}\n",
        },
    )
    report = run(raw, tmp_path / "out", encoding="cp1252")
    texts = [row["text"].strip() for row in documents(tmp_path / "out")]
    assert sorted(texts) == ["ascii", *[WORD] * 7]
    assert report.encodings == {"utf-8": 6, "cp1252": 2} and not report.left_out
    assert not run(put(tmp_path / "plain", {"a.txt": "x"}), tmp_path / "b").encodings


@pytest.mark.parametrize("encoding", ["utf-16-le", "iso2022_jp", "utf-7", "shift_jis", "cp1251", "latin-1"])
def test_encodings_whose_texts_may_be_ascii_bytes(encoding: str, tmp_path: Path) -> None:
    text = {"iso2022_jp": "日本語", "shift_jis": "日本語 abc", "cp1251": "Привет"}.get(encoding, "schön + gut")
    raw = put(
        tmp_path / "raw",
        {"a.txt": text.encode(encoding), "u.txt": "日本語 Привет", "a.csv": f"text\n{text}\n".encode(encoding)},
    )
    report = run(raw, tmp_path / "out", encoding=encoding)
    found = {row["metadata"]["file"]: row["text"] for row in documents(tmp_path / "out")}
    assert found == {"a.txt": text, "a.csv": text, "u.txt": "日本語 Привет"} and report.encodings == {
        encoding: 2,
        "utf-8": 1,
    }


def test_captions_beside_media_are_counted_too(tmp_path: Path) -> None:
    root = images(tmp_path / "imgs")
    put(root, {"0.txt": WORD, "1.txt": WORD.encode("cp1252"), "2.txt": "x", "3.txt": "y"})
    report = run(root, tmp_path / "out", encoding="cp1252")
    assert captions_of(tmp_path / "out") == {"0": WORD, "1": WORD, "2": "x", "3": "y"}
    assert report.encodings == {"utf-8": 3, "cp1252": 1}


def test_files_of_systems_are_left_out(tmp_path: Path) -> None:
    root = images(tmp_path / "imgs")
    put(
        root,
        {"__MACOSX/._0.jpg": b"x", "PaxHeaders.1/0.jpg": b"x", "._1.jpg": b"x", ".DS_Store": b"x", "Thumbs.db": b"x"},
    )
    report = run(root, tmp_path / "out")
    assert report.samples == 4 and set(report.left_out.counts) == {"made by a system or archiver"}
    assert len(report.left_out) == 5


def test_suffixes_in_capitals_are_the_same(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "d").mkdir()
    table = pyarrow.table({"text": ["a", "b"]})
    parquet.write_table(table, tmp_path / "d/A.PARQUET")
    with pyarrow.ipc.new_file(tmp_path / "d/B.ARROW", table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "d/C.JSONL").write_text('{"text": "c"}\n')
    (tmp_path / "d/D.CSV").write_text("text\nd\n")
    report = fm.import_data([str(tmp_path / "d")], tmp_path / "out", progress=False)
    assert report.samples == 6 and not report.left_out.counts


def conversation(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize(
    "row",
    [
        lambda name: {"image": name, "conversations": [{"from": "human", "value": "<image>"}]},
        lambda name: {"images": [f"imgs/{name}"], "messages": conversation("<image>?")},
        lambda name: {"images": [{"path": name}], "messages": conversation("<image>?"), "videos": []},
        lambda name: {"messages": [{"role": "user", "content": [{"type": "image", "image": f"file:///x/{name}"}]}]},
    ],
)
def test_conversations_keep_their_rows(row: Any, tmp_path: Path) -> None:
    """Each form that names pictures: samples have the conversation as a part, whatever reads them."""
    root = images(tmp_path / "imgs")
    table = put(tmp_path, {"t.jsonl": "".join(json.dumps(row(f"{n}.jpg")) + "\n" for n in range(3))}) / "t.jsonl"
    report = run([root, table], tmp_path / "out")
    assert report.sample_type == "CrudeWebdataset" and reasons(report) == {"3.jpg": "not listed in the metadata"}
    samples = list(fm.open(tmp_path / "out"))
    assert [sample.key for sample in samples] == ["0", "1", "2"]
    assert all({"jpg", "json"} <= set(sample) and "image" not in sample["json"] for sample in samples)


def test_conversations_about_several_pictures_or_none(tmp_path: Path) -> None:
    """A sample for each row: pictures in their order, one that is in two rows, text alone, and rows that do not fit."""
    root = images(tmp_path / "imgs")
    rows = [
        {"images": ["3.jpg", "0.jpg"], "messages": conversation("<image><image>")},
        {"images": ["3.jpg"], "messages": conversation("<image>")},
        {"messages": conversation("text")},
        {"images": ["9.jpg"], "messages": conversation("<image>")},
        {"images": [5], "messages": conversation("<image>")},
        {"images": ["1.jpg"]},
    ]
    table = put(tmp_path, {"t.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}) / "t.jsonl"
    report = run([root, table], tmp_path / "out")
    found = {sample.key: sample for sample in fm.open(tmp_path / "out", raw=True)}
    assert {key: sorted(each) for key, each in found.items()} == {
        "000001": ["0.jpg", "1.jpg", "json"],
        "000002": ["jpg", "json"],
        "000003": ["json"],
    }
    assert bytes(found["000001"].raw("0.jpg")) == card(3) and bytes(found["000001"].raw("1.jpg")) == card(0)
    assert report.recognized[:2] == [
        "2 conversations about 2 image files, and 1 of text alone, in t.jsonl",
        "1 file of several conversations, stored with each of them",
    ]
    assert reasons(report) == {
        "t.jsonl:4 9.jpg": "a conversation with a file that is not there or not image",
        "t.jsonl:5": "a conversation with a file that is not a path",
        "t.jsonl:6": "metadata: a row without a conversation",
        "1.jpg": "not listed in the metadata",
        "2.jpg": "not listed in the metadata",
    }
    put(tmp_path, {"t.jsonl": json.dumps(rows[3])})
    with pytest.raises(
        ConfigError, match=r"no conversation names an image file: for example '9.jpg' is none, and a file"
    ):
        run([root, table], tmp_path / "none")
