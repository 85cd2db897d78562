"""`prepare-media`: golden tables, plain folders, broken files, killed runs, and the defects of the original."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import struct
import wave
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import xxhash
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.errors import ConfigError, DataError, NotFound, StorageError
from feedmill.formats.energon.media import read_tables
from feedmill.indexing.prepare import prepare
from feedmill.indexing.prepare_media import prepare_media
from feedmill.samples import mediacollection as collecting
from feedmill.samples.media import MediaFilter
from feedmill.samples.mediafacts import MediaFacts
from feedmill.storage import LocalStore, open_store
from helpers.digests import GOLDEN, expected
from helpers.tars import tar_bytes

Image = pytest.importorskip("PIL.Image")
EXTENSION, HEADER = MediaFilter.parse(extension=True), MediaFilter.parse(header=True)


def picture(width: int = 5, height: int = 3, format: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, height), (width, height, 7)).save(stream, format)
    return stream.getvalue()


def sound(samples: int = 80) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(2 * samples))
    return stream.getvalue()


def folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def dump(root: Path) -> dict[str, list[Any]]:
    with sqlite3.connect(f"file:{root}/.nv-meta/index.sqlite?mode=ro", uri=True) as connection:
        names = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        tables = {name: [list(row) for row in connection.execute(f"SELECT * FROM {name}")] for name in names}
        tables["schema"] = [
            [kind, name, table, " ".join(sql.split()) if sql else None]
            for kind, name, table, sql in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
        ]
        return tables


def same(found: dict[str, list[Any]], golden: dict[str, list[Any]]) -> None:
    for table, rows in golden.items():
        ours = [row[:3] for row in found[table]] if table == "media_filters" else found[table]
        assert sorted(map(str, ours)) == sorted(map(str, rows)), table


@pytest.mark.parametrize("verb", [["compat", "energon", "prepare-media"], ["edit", "prepare-media"]])
@pytest.mark.parametrize("option", ["--media-by-extension", "--media-metadata-by-extension"])
def test_a_plain_folder_gets_energons_tables(tmp_path: Path, verb: list[str], option: str) -> None:
    root = tmp_path / "sounds"
    shutil.copytree(GOLDEN / "crude_polylithic/sounds", root)
    shutil.rmtree(root / ".nv-meta")
    done = CliRunner().invoke(app, [*verb, str(root), option])
    assert done.exit_code == 0, done.output
    same(dump(root), expected("crude_polylithic")["disk"]["nv_meta"]["sounds"]["index.sqlite"])
    assert [path.name for path in (root / ".nv-meta").iterdir()] == ["index.sqlite"]


def test_a_prepared_data_set_gets_energons_tables_and_keeps_its_uuid(tmp_path: Path) -> None:
    root = tmp_path / "ds"
    shutil.copytree(GOLDEN / "media_wds/ds", root)
    prepare(str(root), progress=False)
    shutil.rmtree(root / ".nv-meta")
    prepare(str(root), split_ratio="1,0,0", progress=False)
    before = {path.name: path.read_bytes() for path in (root / ".nv-meta").iterdir() if path.name != "index.sqlite"}
    report = prepare_media(str(root), EXTENSION, progress=False)
    assert (report.kind, report.files, report.images, report.av, report.media) == ("webdataset", 5, 3, 2, 5)
    same(dump(root), expected("media_wds")["disk"]["nv_meta"]["ds"]["index.sqlite"])
    after = {path.name: path.read_bytes() for path in (root / ".nv-meta").iterdir() if path.name != "index.sqlite"}
    assert after == before


def test_metadata_is_read_by_name(tmp_path: Path) -> None:
    for case, folders in (("media_wds", ["ds"]), ("crude_polylithic", ["images", "sounds"])):
        for name in folders:
            index = MediaFacts(LocalStore(GOLDEN / case / name), name)
            for file, golden in expected(case)["filestore"].get(name, {}).items():
                wanted = golden["media_metadata"]
                if wanted is None:
                    with pytest.raises(NotFound):
                        index.find(file)
                    continue
                found = {key: value for key, value in asdict(index.find(file)).items() if value is not None}
                assert found == {key: wanted[key] for key in wanted if key != "type"}


def test_a_name_that_is_no_text_is_not_there() -> None:
    with pytest.raises(NotFound):
        MediaFacts(LocalStore(GOLDEN / "media_wds" / "ds"), "ds").find("\udcff.jpg")


def test_again_with_another_choice_merges(tmp_path: Path) -> None:
    root = folder(tmp_path, {"a.png": picture(), "b.wav": sound(), "deep/c.dat": picture(9, 9), "t.txt": b"text"})
    first = prepare_media(str(root), MediaFilter.parse(glob="*.png"), progress=False)
    assert (first.files, first.media, first.images) == (1, 1, 1)
    created = dump(root)["media_filters"]
    second = prepare_media(str(root), HEADER, progress=False)
    assert (second.files, second.media, second.images, second.av) == (4, 3, 2, 1)
    tables = dump(root)
    assert tables["media_filters"][0] == created[0]
    assert [row[1:3] for row in tables["media_filters"]] == [["GLOB", "*.png"], ["HEADER", ""]]
    assert prepare_media(str(root), HEADER, progress=False).media == 3
    assert dump(root) == tables
    (root / "a.png").write_bytes(picture(8, 8))
    (root / "b.wav").unlink()
    third = prepare_media(str(root), HEADER, progress=False)
    assert (third.gone, third.media) == (1, 2)
    assert read_tables(LocalStore(root)).rows[0] == (
        "a.png", "image", '{"width":8,"height":8,"format":"PNG","mode":"RGB"}', "",
    )  # fmt: skip


def test_a_broken_file_is_reported_and_the_rest_is_stored(tmp_path: Path) -> None:
    jpg = picture(400, 300, "JPEG")
    files = {"a.jpg": jpg[: len(jpg) // 2], "b.jpg": jpg, "c.mp4": b"no video", "d.wav": sound(), "e.png": b""}
    root = folder(tmp_path, files)
    for chosen in (EXTENSION, HEADER, MediaFilter.parse(glob="*.*")):  # the original hangs on such folders
        shutil.rmtree(root / ".nv-meta", ignore_errors=True)
        report = prepare_media(str(root), chosen, progress=False)
        assert [(Path(error.file or "").name, error.record, error.kind) for error in report.broken] == [
            (name, name, "bad-media") for name in ("a.jpg", "c.mp4", "e.png")
        ]
        assert [row[0] for row in read_tables(LocalStore(root)).rows] == ["b.jpg", "d.wav"]
    done = CliRunner().invoke(app, ["edit", "prepare-media", str(root), "--media-by-extension"])
    assert done.exit_code == 0 and done.stderr.count("broken: ") == 3 and "Traceback" not in done.output
    plain = json.loads(
        CliRunner().invoke(app, ["edit", "prepare-media", str(root), "--media-by-extension", "--json"]).stdout
    )
    assert (plain["media"], [error["record"] for error in plain["broken"]]) == (2, ["a.jpg", "c.mp4", "e.png"])


def test_one_bad_image_does_not_hide_the_rest_of_its_shard(tmp_path: Path) -> None:
    root = tmp_path / "ds"
    shutil.copytree(GOLDEN / "negative/truncated_image", root)
    prepare(str(root), split_ratio="1,0,0", progress=False)
    report = prepare_media(str(root), EXTENSION, progress=False)
    assert report.media == 2
    (error,) = report.broken
    assert (error.file or "").endswith("0.tar") and error.offset and error.record
    glob = prepare_media(str(root), MediaFilter.parse(glob="*.png"), progress=False)  # stores nothing in the original
    assert glob.media == 2


def test_what_is_no_place_for_media_metadata_is_refused(tmp_path: Path) -> None:
    for name in ("x.jsonl", "x.yaml", "x.tar"):
        with pytest.raises(ConfigError, match="expected a folder"):
            prepare_media(str(tmp_path / name), EXTENSION)
    with pytest.raises(NotFound, match="the folder is empty"):
        prepare_media(str(tmp_path), EXTENSION)
    shutil.copy(GOLDEN / "media_wds/ds/p/m-0.tar", tmp_path)
    with pytest.raises(NotFound, match="prepare --media-metadata"):
        prepare_media(str(tmp_path), EXTENSION)
    with pytest.raises(NotFound):
        prepare_media(str(tmp_path / "missing"), EXTENSION)
    assert not (tmp_path / ".nv-meta/index.sqlite").exists()
    old = tmp_path / "old"
    shutil.copytree(GOLDEN / "legacy_layouts/v5", old)
    with pytest.raises(ConfigError, match="tar-index-only"):
        prepare_media(str(old), EXTENSION)


def test_an_index_without_parts_is_completed_by_a_scan(tmp_path: Path) -> None:
    root = tmp_path / "ds"
    shutil.copytree(GOLDEN / "legacy_layouts/v6", root)
    report = prepare_media(str(root), MediaFilter.parse(glob="*.txt"), progress=False)
    assert (report.files, report.media, report.broken) == (6, 0, [])
    assert "no media files match" in report.warnings[0]


def test_a_missing_shard_and_a_shard_that_shrank(tmp_path: Path) -> None:
    root = tmp_path / "ds"
    shutil.copytree(GOLDEN / "media_wds/ds", root)
    os.truncate(root / "p/m-1.tar", 2000)
    report = prepare_media(str(root), EXTENSION, progress=False)
    assert report.media == 3 and {error.kind for error in report.broken} == {"truncated"}
    (root / "p/m-1.tar").unlink()
    with pytest.raises(NotFound, match="file is missing"):
        prepare_media(str(root), EXTENSION, progress=False)


def test_large_files_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ds"
    shutil.copytree(GOLDEN / "media_wds/ds", root)
    prepare_media(str(root), EXTENSION, progress=False)
    wanted = dump(root)
    monkeypatch.setattr(collecting, "LARGE", 500)
    prepare_media(str(root), EXTENSION, progress=False)
    assert dump(root)["media_metadata"] == wanted["media_metadata"]


def test_a_full_disk_and_a_damaged_index_are_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder(tmp_path, {"0.tar": tar_bytes([(f"{i}.png", picture()) for i in range(300)])})
    prepare(str(root), media=EXTENSION, progress=False)
    index = root / ".nv-meta" / "index.sqlite"
    before = index.read_bytes()

    class Full(sqlite3.Connection):
        def executemany(self, *_: Any) -> Any:
            raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        connect = sqlite3.connect
        patch.setattr(sqlite3, "connect", lambda path, **given: connect(path, **{"factory": Full, **given}))
        with pytest.raises(StorageError, match="disk is full"):
            prepare_media(str(root), HEADER, progress=False)
    assert index.read_bytes() == before

    def copy(*_: Any) -> None:
        raise OSError(28, "No space left on device", str(index))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", copy)
        with pytest.raises(StorageError, match="disk is full"):
            prepare_media(str(root), HEADER, progress=False)
    with sqlite3.connect(index) as connection:
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE tbl_name = 'media_metadata' AND type = 'index'"
        ).fetchone()
    index.write_bytes(before[: 4096 * (page - 1)] + b"\xa5" * 4096 + before[4096 * page :])
    with pytest.raises(DataError, match="Run 'feedmill prepare' again"):
        prepare_media(str(root), HEADER, progress=False)
    prepare(str(root), media=EXTENSION, progress=False)
    assert prepare_media(str(root), HEADER, progress=False).media == 300


def test_a_killed_run_takes_up_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder(tmp_path, {f"{i:03d}.png": picture(i + 1) for i in range(40)})
    monkeypatch.setattr(collecting, "AT_ONCE", 4)
    looked: list[str] = []
    original = collecting.look

    def dying(store: Any, piece: Any) -> Any:
        looked.extend(piece.names)
        if len(looked) > 24:
            raise KeyboardInterrupt
        return original(store, piece)

    monkeypatch.setattr(collecting, "look", dying)
    with pytest.raises(KeyboardInterrupt):
        prepare_media(str(root), EXTENSION, workers=1, progress=False)
    assert not (root / ".nv-meta/index.sqlite").exists()
    looked.clear()
    with open(root / ".feedmill-work/media.scanned", "ab") as units:
        units.write(b"torn")
    monkeypatch.setattr(collecting, "look", lambda store, piece: looked.extend(piece.names) or original(store, piece))
    report = prepare_media(str(root), EXTENSION, workers=1, progress=False)
    assert report.media == 40 and len(looked) == 40 - 24  # the six pieces before the kill are not done again
    assert [path.name for path in (root / ".nv-meta").iterdir()] == ["index.sqlite"]


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"\x93\x01\x02\x03",
        b"\x93\xc4\x01a\x90\x91\x81\xa1k\x01",
        b"\x93\xc4\x01a\x90\x91\x81\xa1k" + b"\x91" * 5000,
    ],
)
def test_a_whole_frame_of_something_else_is_work_done_again(body: bytes, tmp_path: Path) -> None:
    frame = struct.pack("<QIQ", len(body), 0, xxhash.xxh3_64_intdigest(body)) + body
    root = folder(tmp_path / "media", {"a.png": picture(), ".feedmill-work/media.scanned": frame})
    assert prepare_media(str(root), EXTENSION, workers=1, progress=False).media == 1
    shards = folder(tmp_path / "d", {"0.tar": tar_bytes([("a.txt", b"a")]), ".feedmill-work/shards.scanned": frame})
    assert prepare(str(shards), split_ratio="1,0,0", workers=1, progress=False).samples == 1
    for place in (root, shards):
        assert not list(place.rglob("*.scanned"))


def test_modes_follow_the_folder(tmp_path: Path) -> None:
    root = folder(tmp_path / "media", {"a.png": picture()})
    root.chmod(0o755)
    before = os.umask(0o077)
    try:
        prepare_media(str(root), EXTENSION, progress=False)
    finally:
        os.umask(before)
    assert (root / ".nv-meta").stat().st_mode & 0o777 == 0o755
    assert (root / ".nv-meta/index.sqlite").stat().st_mode & 0o777 == 0o644


def test_an_object_store_is_completed_in_place(tmp_path: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("ds", "files"):
        store = open_store(f"{s3_bucket}/{name}")
        source = GOLDEN / ("media_wds/ds" if name == "ds" else "crude_polylithic/sounds")
        for path in source.rglob("*"):
            if path.is_file() and (name == "ds" or ".nv-meta" not in path.parts):
                store.write_bytes(str(path.relative_to(source)), path.read_bytes())
    report = prepare_media(f"{s3_bucket}/ds", MediaFilter.parse(glob="*.png"), progress=False)
    assert (report.kind, report.images, report.media) == ("webdataset", 1, 5)
    report = prepare_media(f"{s3_bucket}/files", EXTENSION, progress=False)
    assert (report.kind, report.av, report.media) == ("folder", 2, 2)
    assert MediaFacts(open_store(f"{s3_bucket}/files"), "files").find("s0.wav").audio_num_samples == 400  # type: ignore[union-attr]
    assert not list((tmp_path / "cache").glob("media-*"))


def test_an_empty_folder_is_no_matter_of_choosing(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"the folder is empty\. Check the path"):
        prepare_media(str(tmp_path), EXTENSION, progress=False)


def test_no_bar_is_shown_where_there_is_no_media(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a bar")

    monkeypatch.setattr(collecting, "Progress", refuse)
    assert collecting.collect(LocalStore(tmp_path), [], progress=True) == ([], [])


@pytest.mark.parametrize("prepared", [True, False])
def test_choosing_the_same_media_again_leaves_the_index_as_it_is(
    prepared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "d"
    if prepared:
        folder(root, {"s.tar": tar_bytes([("a.png", picture()), ("b.png", picture(4))])})
        prepare(str(root), progress=False)
    else:
        folder(root, {"a.png": picture(), "b.png": picture(4)})
    prepare_media(str(root), EXTENSION, progress=False)
    index = root / ".nv-meta/index.sqlite"
    with sqlite3.connect(index) as connection:  # as if that had been long ago
        connection.execute("UPDATE media_filters SET created_at_utc = '2020-01-01 00:00:00'")
    connection.close()
    first = prepare_media(str(root), EXTENSION, progress=False)
    before = index.read_bytes()
    again = prepare_media(str(root), EXTENSION, progress=False)
    assert index.read_bytes() == before and b"2020-01-01" in before
    assert (first.media, again.media) == (2, 2)
    prepare_media(str(root), HEADER, progress=False)
    assert index.read_bytes() != before


def test_messages_about_broken_images_have_no_addresses(tmp_path: Path) -> None:
    root = folder(tmp_path, {"a.jpg": b"no image", "b.png": picture()})
    (error,) = prepare_media(str(root), EXTENSION, progress=False).broken
    assert "cannot identify image file (the file begins with b'no image')" in str(error)


def oriented(orientation: int, format: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[0x112] = orientation
    out = io.BytesIO()
    Image.new("RGB", (6, 4)).save(out, format, exif=exif)
    return out.getvalue()


def test_orientations_are_counted_and_kept_beside_energons_metadata(tmp_path: Path) -> None:
    from helpers import media_files as clips

    pytest.importorskip("av")
    files = {
        "a.jpg": oriented(6),
        "b.jpg": oriented(1),
        "c.webp": oriented(3, "WEBP"),
        "d.tiff": oriented(8, "TIFF"),  # Pillow, and so Energon, turns these when it reads the size
        "e.png": picture(6, 4),
        "f.mp4": clips.movie("turned", seconds=0.4),
        "g.mp4": clips.movie("mp4", seconds=0.4),
    }
    plain = prepare_media(str(folder(tmp_path / "plain", files)), MediaFilter.parse(extension=True), progress=False)
    (tmp_path / "set").mkdir()
    (tmp_path / "set/0.tar").write_bytes(tar_bytes(files.items()))
    prepare(str(tmp_path / "set"), progress=False, split_ratio="1,0,0")
    shards = prepare_media(str(tmp_path / "set"), MediaFilter.parse(extension=True), progress=False)
    for report in (plain, shards):
        assert report.warnings[0].startswith("2 of 5 images have an orientation")
        assert report.warnings[1].startswith("1 of 2 audio and video files have an orientation")
        assert len(report.warnings) == 2
        tables = dump(Path(report.path))
        assert sorted(tables["media_corrections"]) == [
            ["a.jpg", '{"orientation":6}'], ["c.webp", '{"orientation":3}'], ["f.mp4", '{"orientation":8}'],
        ]  # fmt: skip
        index = MediaFacts(LocalStore(Path(report.path)), "x")
        found = {name: index.find(name) for name in files}
        assert [found[name].orientation for name in files] == [6, None, 3, None, None, 8, None]
        assert (found["a.jpg"].width, found["a.jpg"].height) == (6, 4)
        assert (found["d.tiff"].width, found["d.tiff"].height) == (4, 6)
        assert (found["f.mp4"].video_width, found["f.mp4"].video_height) == (64, 48)
    root = tmp_path / "plain"
    (root / "a.jpg").write_bytes(oriented(1))
    (root / "c.webp").unlink()
    again = prepare_media(str(root), MediaFilter.parse(extension=True), progress=False)
    assert again.warnings[0].startswith("1 of 2") and dump(root)["media_corrections"] == [
        ["f.mp4", '{"orientation":8}']
    ]


def test_durations_that_headers_state_wrongly_are_named_and_corrected(tmp_path: Path) -> None:
    from fractions import Fraction

    from helpers import media_files as clips

    av = pytest.importorskip("av")
    out = io.BytesIO()  # FFmpeg states the sum of the first differences of frames in the order of decoding
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=10, options={"bf": "2"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for frame, time in zip(clips.pictures(6, (64, 48)), (0, 100, 150, 1400, 2000, 3100), strict=True):
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    late = {name: clips.movie(name, seconds=1.0, audio=False) for name in ("late", "late-ts", "fragmented")}
    files = {"vary.mp4": out.getvalue(), "late.mp4": late["late"], "late.ts": late["late-ts"]}
    files |= {"piece.m4v": late["fragmented"], "code.ts": b"const a: number = 1;\n" * 20}
    root = folder(tmp_path / "in", files)
    report = prepare_media(str(root), MediaFilter.parse(extension=True), progress=False)
    assert (report.av, report.broken) == (4, [])
    assert any(line.startswith("2 of 4 audio and video files have another duration") for line in report.warnings)
    stored = {key: json.loads(text) for key, _, text in dump(root)["media_metadata"]}
    index = MediaFacts(LocalStore(root), "x")
    from feedmill.samples.avdecoder import AVDecoder

    for name in stored:
        assert stored[name]["video_duration"] > 0
        right = AVDecoder(root / name).get_metadata()
        assert index.find(name).video_duration == pytest.approx(right.video_duration, abs=0.05)
    assert index.find("vary.mp4").video_duration > 3.1 > stored["vary.mp4"]["video_duration"]
    assert stored["late.mp4"]["video_duration"] == pytest.approx(1.0)  # Energon would store -1.0
