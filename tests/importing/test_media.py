"""Images, audio and video in the layouts of a disk become prepared datasets that open at once."""

from __future__ import annotations

import io
import json
import math
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import feedmill as fm
from feedmill.demo.sample_data import card
from feedmill.errors import ConfigError, DataError
from helpers import media_files as clips


def put(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return root


def run(source: Path, out: Path, **options: Any) -> fm.reports.ImportReport:
    return fm.import_data(source, out, progress=False, workers=1, **options)


def reasons(report: fm.reports.ImportReport) -> dict[str, str]:
    return {name: reason for reason, names in report.left_out.names.items() for name in names}


def png(color: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 3), color).save(file, "PNG")
    return file.getvalue()


def test_captions_beside_images(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"in/{i}.jpg": card(i) for i in range(6)}
    files |= {f"in/{i}.txt": f"caption {i}\n" for i in range(5)}
    files |= {"in/5.jpg.txt": "five", "p.PNG": png(), "p.caption": "upper", "in/1.json": '{"a": 1}'}
    report = run(put(tmp_path / "raw", files), tmp_path / "out")
    dataset = fm.open(tmp_path / "out")
    assert {s.__key__: s.caption for s in dataset} == {
        **{f"in/{i}": f"caption {i}\n" for i in range(5)},
        "in/5": "five",
        "p": "upper",
    }
    raw = fm.open(tmp_path / "out", raw=True)
    assert raw["in/3"].raw("jpg") == card(3) and raw["in/1"]["json"] == {"a": 1}
    assert (report.type, report.sample_type, report.samples) == ("captioning", "CaptioningSample", 7)
    assert not report.left_out and report.files == 15 and fm.check(tmp_path / "out").findings == []


def test_options_of_documents_are_without_effect(tmp_path: Path) -> None:
    source = put(tmp_path / "raw", {f"{i}.jpg": card(i) for i in range(3)})
    report = run(source, tmp_path / "out", text="body", id="name", compression="gz")
    assert "warning: without effect: --text, --id, --compression (only documents have them)" in report.recognized
    assert not any("without effect" in line for line in run(source, tmp_path / "plain").recognized)


def test_what_is_left_out_of_captions(tmp_path: Path) -> None:
    good = card(0)
    files: dict[str, str | bytes] = {f"{i}.jpg": good for i in range(10)} | {f"{i}.txt": "x" for i in range(10)}
    files |= {
        "cut.jpg": good[:200],
        "cut.txt": "x",
        "text.jpg": "no image",
        "text.txt": "x",
        "nil.jpg": "",
        "nil.txt": "x",
    }
    files |= {"bare.jpg": good, "orphan.txt": "x", "two.jpg": good, "two.txt": "first", "two.caption": "second"}
    files |= {"blank.jpg": good, "blank.txt": " \n", "none.jpg": good, "none.txt": ""}
    files |= {"latin.jpg": good, "latin.txt": b"caf\xe9", "json.jpg": good, "json.txt": "x", "json.json": "{"}
    files |= {"__meta__.jpg": good, "__meta__.txt": "x", "README.md": "about"}
    report = run(put(tmp_path / "raw", files), tmp_path / "out")
    assert report.samples == 11 == len(fm.open(tmp_path / "out"))
    left = reasons(report)
    assert left.pop("__meta__.jpg").startswith("the name cannot be a key (")
    beside = {name for name, reason in left.items() if reason == "beside a file that is left out"}
    names = ("nil", "cut", "text", "blank", "none", "latin", "json", "__meta__")
    assert beside == {*(f"{name}.txt" for name in names), "json.json"}
    left = {name: reason for name, reason in left.items() if name not in beside}
    assert left == {
        "README.md": "document beside image files",
        "orphan.txt": "a caption without an image file",
        "bare.jpg": "image without a caption",
        "two.caption": "a second caption (the first is .txt)",
        "none.jpg": "an empty caption",
        "nil.jpg": "an empty file",
        "cut.jpg": "an image that does not decode",
        "text.jpg": "an image that does not decode",
        "blank.jpg": "an empty caption",
        "latin.jpg": "its caption is not valid utf-8 (use --encoding)",
        "json.jpg": "the JSON beside it is invalid",
    }
    assert run(tmp_path / "raw", tmp_path / "cp", encoding="cp1252").samples == 12
    assert fm.open(tmp_path / "cp")["latin"].caption == "café"


def test_damage_behind_the_header_is_found_by_decoding(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.effect_noise((64, 64), 80).convert("RGB").save(file, "PNG")
    data = bytearray(file.getvalue())
    data[len(data) // 2] ^= 0xFF
    put(tmp_path / "raw", {"bad.png": bytes(data), "good.png": png()})
    assert run(tmp_path / "raw", tmp_path / "header").samples == 2
    report = run(tmp_path / "raw", tmp_path / "full", decode=True)
    assert reasons(report) == {"bad.png": "an image that does not decode"} and report.samples == 1


def test_class_folders_and_splits(tmp_path: Path) -> None:
    files = {
        f"{split}/{name}/{i}.jpg": card(i)
        for split, count in (("train", 3), ("validation", 2), ("test", 1))
        for name in ("dog", "cat")
        for i in range(count)
    }
    report = run(put(tmp_path / "raw", dict(files)), tmp_path / "out")
    assert report.splits == {"train": 6, "val": 4, "test": 2} and report.type == "classification"
    sample = fm.open(tmp_path / "out", split="val")["validation/dog/1"]
    assert (sample.label, sample.label_name) == (1, "dog")
    report = run(tmp_path / "raw", tmp_path / "ratio", split_ratio="1,1,0")
    assert report.splits == {"train": 6, "val": 6}
    assert run(tmp_path / "raw", tmp_path / "plain", type="media").sample_type == "ImageSample"
    flat = put(tmp_path / "flat", {"cat/1.jpg": card(0), "dog/1.jpg": card(1)})
    assert [s.label_name for s in fm.open(run(flat, tmp_path / "flat_out").path)] == ["cat", "dog"]
    sources = fm.import_data([flat / "cat", flat / "dog"], tmp_path / "two", progress=False, workers=1)
    assert [s.label_name for s in fm.open(sources.path)] == ["cat", "dog"]
    nested = put(tmp_path / "nested", {"2021/01/1.jpg": card(0), "2022/02/1.jpg": card(1)})
    assert run(nested, tmp_path / "nested_out").type == "media"


def pictures(pattern: str, count: int = 3) -> dict[str, str | bytes]:
    """Return images at the paths of a pattern such as ``{train,val}/{cat,dog}/#.jpg``, `count` for each folder."""
    paths = [pattern]
    while "{" in paths[0]:
        divided = [path.replace("}", "{", 1).split("{", 2) for path in paths]
        paths = [head + name + tail for head, names, tail in divided for name in names.split(",")]
    return {path.replace("#", str(i)): card(i) for path in paths for i in range(count)}


def test_a_stray_image_does_not_cost_splits_and_classes(tmp_path: Path) -> None:
    files = pictures("{train,val}/{cat,dog}/#.jpg") | {"overview.png": png()}
    report = run(put(tmp_path / "raw", files), tmp_path / "out")
    assert (report.type, report.splits) == ("classification", {"train": 6, "val": 6})
    assert reasons(report) == {"overview.png": "outside the folders of splits"}
    assert [s.label_name for s in fm.open(tmp_path / "out", split="val")] == ["cat"] * 3 + ["dog"] * 3
    flat = put(tmp_path / "flat", pictures("{cat,dog}/#.jpg", 5) | {"overview.png": png()})
    report = run(flat, tmp_path / "flat_out")
    assert (report.type, report.samples, reasons(report)) == ("classification", 10, {"overview.png": "no class"})
    parts = put(tmp_path / "parts", pictures("{train,val}/#.jpg", 5) | {"README": "x"})
    assert run(parts, tmp_path / "parts_out", type="parts").splits == {"train": 5, "val": 5}


def test_many_files_outside_the_folders_of_splits_ask_for_a_choice(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", pictures("{train,val,extra}/#.jpg"))
    with pytest.raises(ConfigError, match=r"6 of 9 image .* splits \(train, val\).*'extra/0.jpg'.*--exclude"):
        run(raw, tmp_path / "no")
    assert run(raw, tmp_path / "two", exclude=["extra/*"]).splits == {"train": 3, "val": 3}
    report = run(raw, tmp_path / "all", type="media")
    assert report.splits == {"train": 9} and "warning: no splits: 6 of 9 image files" in report.recognized[1]


def test_a_class_may_have_the_name_of_a_split(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", pictures("train/#.jpg", 12) | pictures("plane/#.jpg", 1))
    report = run(raw, tmp_path / "out")
    assert (report.type, report.samples, len(report.left_out)) == ("classification", 13, 0)
    assert "warning: no splits: 12 of 13 image files are in folders of splits (train)" in report.recognized[1]


def test_media_without_classes_say_so_if_most_are_in_class_folders(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", pictures("{cat,dog}/#.jpg") | pictures("#.jpg", 2))
    report = run(raw, tmp_path / "out")
    assert report.type == "media" and report.samples == 8
    assert "warning: no classes: 2 of 8 image files are in no class folder ('0.jpg')" in report.recognized[1]
    assert run(raw, tmp_path / "classes", type="classification").samples == 6


def test_a_folder_around_everything_is_neither_split_nor_class(tmp_path: Path) -> None:
    report = run(put(tmp_path / "raw", pictures("ds/v1/{cat,dog}/#.jpg")), tmp_path / "out")
    assert report.type == "classification" and report.samples == 6
    assert fm.open(tmp_path / "out")["ds/v1/dog/1"].label_name == "dog"
    files = pictures("ds/{train,val}/{cat,dog}/#.jpg") | {"ds/overview.png": png()}
    report = run(put(tmp_path / "splits", files), tmp_path / "splits_out")
    assert report.splits == {"train": 6, "val": 6} and "splits from the first folder in 'ds/'" in report.recognized
    assert reasons(report) == {"ds/overview.png": "outside the folders of splits"}
    only = put(tmp_path / "only", pictures("train/{cat,dog}/#.jpg"))
    assert run(only, tmp_path / "only_out").splits == {"train": 6}
    one = put(tmp_path / "one", pictures("cat/#.jpg"))
    assert run(one, tmp_path / "one_out", type="classification").samples == 3
    years = put(tmp_path / "years", pictures("2021/{may,june}/#.jpg", 10) | pictures("2022/may/#.jpg", 1))
    assert run(years, tmp_path / "years_out").type == "media"


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_metadata_files(tmp_path: Path, form: str) -> None:
    rows: list[dict[str, Any]] = [{"file_name": f"im/{i}.jpg", "text": f"t {i}", "score": str(i)} for i in range(3)]
    rows += [
        {"file_name": "im/9.jpg", "text": "no file", "score": ""},
        {"file_name": "im/0.jpg", "text": "2", "score": ""},
    ]
    rows += [{"file_name": "im/4.jpg", "text": "", "score": ""}, {"file_name": "../x.jpg", "text": "out", "score": ""}]
    raw = put(tmp_path / "raw", {f"im/{i}.jpg": card(i) for i in range(5)})
    if form == "csv":
        text = "file_name,text,score\n" + "".join(",".join(row.values()) + "\n" for row in rows)
        (raw / "metadata.csv").write_text(text)
    elif form == "jsonl":
        (raw / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), raw / "metadata.parquet")
    report = run(raw, tmp_path / "out")
    assert {s.__key__: s.caption for s in fm.open(tmp_path / "out")} == {f"im/{i}": f"t {i}" for i in range(3)}
    assert fm.open(tmp_path / "out", raw=True)["im/2"]["json"] == {"score": "2"}
    name = f"metadata.{form}"
    assert reasons(report) == {
        f"{name}:4 im/9.jpg": "metadata of a file that is not there or not image",
        f"{name}:7 ../x.jpg": "metadata of a file that is not there or not image",
        f"{name}:5 im/0.jpg": "a second row of metadata for a file",
        "im/3.jpg": "not listed in the metadata",
        "im/4.jpg": "no caption in its row of metadata",
    }


def test_values_of_metadata_that_json_does_not_have(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", {f"{i}.jpg": card(i) for i in range(2)})
    (raw / "metadata.jsonl").write_text('{"file_name": "0.jpg", "n": 170141183460469231731687303715884105727}\n')
    run(raw, tmp_path / "large")
    assert fm.open(tmp_path / "large", raw=True)["0"]["json"] == {"n": 2**127 - 1}
    (raw / "metadata.jsonl").unlink()
    columns = {
        "file_name": ["0.jpg", "1.jpg"],
        "x": [float("inf"), float("nan")],
        "none": [None, 1],
        "day": [date(2020, 1, 2)] * 2,
        "price": [Decimal("1.10")] * 2,
        "at": pa.array([1, 1000], pa.timestamp("ns")),
    }
    pq.write_table(pa.table(columns), raw / "metadata.parquet")
    run(raw, tmp_path / "out")
    first, second = (fm.open(tmp_path / "out", raw=True)[key]["json"] for key in "01")
    assert first == {"x": float("inf"), "day": "2020-01-02", "price": "1.10", "at": "1970-01-01T00:00:00.000000001"}
    assert math.isnan(second.pop("x"))
    assert second == {"none": 1, "day": "2020-01-02", "price": "1.10", "at": "1970-01-01T00:00:00.000001"}


@pytest.mark.parametrize(
    ("table", "kind"), [(b"file_name,text\na.png,caf\xe9\n", "bad-encoding"), (b"name\na.png\n", "no-column")]
)
def test_metadata_that_cannot_be_read_is_named(tmp_path: Path, table: bytes, kind: str) -> None:
    root = put(tmp_path / "raw", {"a.png": png(), "metadata.csv": table})
    with pytest.raises(DataError) as caught:
        run(root, tmp_path / "out")
    assert caught.value.kind == kind and caught.value.file == "metadata.csv" and "--exclude" in (caught.value.fix or "")
    assert not (tmp_path / "out").exists()


def test_labels_of_metadata(tmp_path: Path) -> None:
    rows = [{"file_name": f"{i}.jpg", "label": label, "w": i} for i, label in enumerate(["dog", "cat", None])]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    raw = put(tmp_path / "raw", {"metadata.jsonl": text, **{f"{i}.jpg": card(i) for i in range(3)}})
    report = run(raw, tmp_path / "out")
    assert [(s.label, s.label_name) for s in fm.open(tmp_path / "out")] == [(1, "dog"), (0, "cat")]
    assert reasons(report) == {"2.jpg": "no class"}
    (raw / "metadata.jsonl").write_text(
        "".join(json.dumps({"file_name": f"{i}.jpg", "label": 7 + i}) + "\n" for i in range(3))
    )
    run(raw, tmp_path / "numbers")
    assert [s.label for s in fm.open(tmp_path / "numbers")] == [7, 8, 9]
    (raw / "metadata.jsonl").write_text('{"name": "0.jpg"}\n')
    with pytest.raises(DataError, match="needs a column of their files, such as 'file_name'"):
        run(raw, tmp_path / "no")


def labeled(root: Path, table: str, labels: list[Any]) -> Path:
    """Write images, and their labels to metadata.csv as text or to metadata.jsonl as values."""
    names = [f"{i}.jpg" for i in range(len(labels))]
    if table == "csv":
        text = "file_name,label\n" + "".join(f"{name},{label}\n" for name, label in zip(names, labels, strict=True))
    else:
        rows = [{"file_name": name, "label": label} for name, label in zip(names, labels, strict=True)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
    return put(root, {f"metadata.{table}": text, **{name: card(i) for i, name in enumerate(names)}})


@pytest.mark.parametrize("table", ["csv", "jsonl"])
@pytest.mark.parametrize("labels", [[-1, 0, 1, 2, 10, 3], [0.0, 1.0, 10.0, 2.0], [1, 0, 1.0], [-3]])
def test_whole_numbers_stay_labels_as_they_are(tmp_path: Path, table: str, labels: list[float]) -> None:
    run(labeled(tmp_path / "raw", table, labels), tmp_path / "out")
    assert [s.label for s in fm.open(tmp_path / "out")] == labels


@pytest.mark.parametrize(
    ("table", "labels", "why"),
    [
        (
            "jsonl",
            [0, "cat", "dog", 1],
            r"whole numbers \(2, such as 0 of '0.jpg'\) and names \(2, .*'cat' of '1.jpg'\)",
        ),
        (
            "csv",
            [0.5, 1.0, 2.5, 1],
            r"fractions \(2, such as 0.5 of '0.jpg'\) and whole numbers \(2, .*1 of '1.jpg'\)",
        ),
        ("csv", [0.5, 2.5], r"fractions \(2, such as 0.5 of '0.jpg'\)"),
        ("csv", ["cat", "07"], r"names \(1, such as 'cat' of '0.jpg'\) and whole numbers \(1, such as 7 of '1.jpg'\)"),
    ],
)
def test_labels_of_two_kinds_are_an_error(tmp_path: Path, table: str, labels: list[Any], why: str) -> None:
    raw = labeled(tmp_path / "raw", table, labels)
    with pytest.raises(DataError, match=f"either whole numbers or names: column 'label' has {why}") as caught:
        run(raw, tmp_path / "out")
    assert (caught.value.file, caught.value.kind) == (f"metadata.{table}", "other-columns")
    assert not (tmp_path / "out").exists()
    run(raw, tmp_path / "plain", type="media")
    assert [str(s["json"]["label"]) for s in fm.open(tmp_path / "plain", raw=True)] == list(map(str, labels))


def test_a_name_of_a_class_beside_its_label_is_kept(tmp_path: Path) -> None:
    rows = [("n02", "cat"), ("n01", "dog"), ("n01", "n01")]
    text = "file_name,label,label_name\n" + "".join(f"{i}.jpg,{a},{b}\n" for i, (a, b) in enumerate(rows))
    run(
        put(tmp_path / "raw", {"metadata.csv": text, **{f"{i}.jpg": card(i) for i in range(3)}}),
        tmp_path / "out",
    )
    assert [(s.label, s.label_name) for s in fm.open(tmp_path / "out")] == [(1, "cat"), (0, "dog"), (0, "n01")]
    assert fm.open(tmp_path / "out", raw=True)["0"]["json"] == {"label_name": "cat", "label": "n02"}


def test_a_class_beside_media_may_be_negative(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", {"0.jpg": card(0), "0.cls": "-3\n", "1.jpg": card(1), "1.cls": "x"})
    report = run(raw, tmp_path / "out")
    assert [s["cls"] for s in fm.open(tmp_path / "out", raw=True)] == [-3]
    assert reasons(report)["1.jpg"] == "the class beside it is not a number"


def test_a_table_beside_media_may_be_their_metadata(tmp_path: Path) -> None:
    advice = "if it describes them, name it as a source too"
    raw = put(tmp_path / "raw", {**pictures("#.jpg", 6), "labels.csv": "filename,label\n0.jpg,1\n"})
    with pytest.raises(ConfigError, match=r"If 'labels.csv' describes the image files, name it as a source too"):
        run(raw, tmp_path / "no")
    report = run(raw, tmp_path / "out", type="media")
    assert reasons(report) == {"labels.csv": f"document beside image files ({advice})"}


def test_a_table_of_captions_in_the_folder_is_used(tmp_path: Path) -> None:
    table = "image,caption\n" + "".join(f"{number}.jpg,picture {number}\n" for number in range(12))
    raw = put(tmp_path / "raw", {**pictures("#.jpg", 12), "captions.csv": table})
    report = run(raw, tmp_path / "out")
    assert report.type == "captioning" and not reasons(report)
    assert {sample.caption for sample in fm.open(tmp_path / "out")} == {f"picture {number}" for number in range(12)}


def test_an_empty_table_of_captions_is_named(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", {**pictures("#.jpg", 3), "captions.csv": ""})
    with pytest.raises(DataError, match=r"captions\.csv: the table has no rows"):
        run(raw, tmp_path / "out")


def test_audio_and_video(tmp_path: Path) -> None:
    sound, movie = clips.sound("wav"), clips.movie("mp4", seconds=0.5)
    raw = put(tmp_path / "a", {"x.wav": sound, "x.txt": "a tone", "bad.wav": "no sound", "bad.txt": "y"})
    report = run(raw, tmp_path / "sounds")
    assert report.type == "captioning" and reasons(report) == {
        "bad.wav": "an audio file that does not decode",
        "bad.txt": "beside a file that is left out",
    }
    sample = fm.open(tmp_path / "sounds")["x"]
    assert sample["txt"] == "a tone" and sample.raw("wav") == sound
    raw = put(tmp_path / "v", {"train/jump/1.mp4": movie, "train/run/1.mp4": movie})
    assert run(raw, tmp_path / "movies").splits == {"train": 2}
    assert [s["cls"] for s in fm.open(tmp_path / "movies")] == [0, 1]


def test_mixed_kinds_ask_for_a_choice(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", {**{f"{i}.jpg": card(i) for i in range(5)}, "a.html": "<p>a", "b.html": "<p>b"})
    with pytest.raises(ConfigError, match=r"several kinds: 5 image files \('0.jpg'\), 2 documents \('a.html'\)"):
        run(raw, tmp_path / "no")
    assert run(raw, tmp_path / "texts", type="documents").samples == 2
    assert run(raw, tmp_path / "images", include=["*.jpg"]).samples == 5
    report = run(raw, tmp_path / "media", type="media")
    assert report.samples == 5 and report.left_out.counts == {"document beside image files": 2}
    some = put(tmp_path / "some", {**{f"{i}.jpg": card(i) for i in range(9)}, "1.txt": "only one"})
    with pytest.raises(ConfigError, match="only 1 of 9 image files have a caption"):
        run(some, tmp_path / "no")
    assert run(some, tmp_path / "one", type="captioning").samples == 1
    with pytest.raises(ConfigError, match="no images, audio or video"):
        run(put(tmp_path / "t", {"a.txt": "x"}), tmp_path / "no", type="media")


def test_keys(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"a.b.jpg": card(0), "a_b.jpg": card(1), "same.jpg": card(2), "same.png": png()}
    files |= {"d.ots/x.jpg": card(3), "ünï/ö.jpg": card(4)}
    report = run(put(tmp_path / "raw", files), tmp_path / "out")
    assert sorted(s.__key__ for s in fm.open(tmp_path / "out")) == sorted(
        ["a_b_jpg", "same_jpg", "same_png", "d.ots/x", "ünï/ö"]
    )
    assert reasons(report) == {"a_b.jpg": "the same key as another file (rename it)"}
    (tmp_path / "raw" / "caf\udce9.jpg").write_bytes(card(5))
    assert reasons(run(tmp_path / "raw", tmp_path / "again"))["caf\\udce9.jpg"] == "the name is not UTF-8 (rename it)"


def test_parts(tmp_path: Path) -> None:
    raw = put(
        tmp_path / "raw", {"a.jpg": card(0), "a.seg.png": png(), "a.txt": "t", "b.bin": b"\0", "none": "x", "e.x": ""}
    )
    report = run(raw, tmp_path / "out", type="parts")
    assert {s.key: sorted(s) for s in fm.open(tmp_path / "out")} == {"a": ["jpg", "seg.png", "txt"], "b": ["bin"]}
    assert reasons(report) == {"none": "a file without a suffix", "e.x": "an empty file"}


def test_shards_are_bounded_and_do_not_depend_on_workers(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", {f"{i:03}.jpg": card(i) for i in range(60)})
    for out, workers in (("one", 1), ("two", 2)):
        fm.import_data(
            raw, tmp_path / out, max_shard_size="40kB", max_shard_samples=25, workers=workers, progress=False
        )
    shards = {p.name: p.read_bytes() for p in (tmp_path / "one/shards").iterdir() if p.suffix == ".tar"}
    assert shards == {p.name: p.read_bytes() for p in (tmp_path / "two/shards").iterdir() if p.suffix == ".tar"}
    assert len(shards) > 2 and max(map(len, shards.values())) <= 40_000


def test_nothing_usable_is_an_error(tmp_path: Path) -> None:
    raw = put(tmp_path / "raw", {"a.jpg": "no", "b.jpg": "images"})
    with pytest.raises(
        DataError, match=r"nothing to import: left out 2 x an image that does not decode \(a.jpg, b.jpg\)"
    ):
        run(raw, tmp_path / "out")
    put(tmp_path / "raw", {"a.jpg": "version https://git-lfs.github.com/spec/v1\n", "b.jpg": "<html>404</html>"})
    with pytest.raises(DataError, match=r"does not decode \(it is HTML\) \(b.jpg\)") as raised:
        run(raw, tmp_path / "out")
    assert "1 x an image that does not decode (it is a pointer of Git LFS) (a.jpg)" in str(raised.value)
    run(put(tmp_path / "raw", {"c.jpg": card(0)}), tmp_path / "out")
    with pytest.raises(ConfigError, match="already exists"):
        run(raw, tmp_path / "out")
    assert run(raw, tmp_path / "out", overwrite=True).samples == 1
    run(put(tmp_path / "texts", {"a.txt": "x"}), tmp_path / "docs")
    with pytest.raises(ConfigError, match="the output has documents"):
        run(raw, tmp_path / "docs", overwrite=True)
