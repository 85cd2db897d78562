"""Orientation: EXIF and XMP of images, display matrices of videos; applied, or as stored."""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, features

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.formats.orientation import of_matrix, orientation_of_mp4, upright
from feedmill.samples.avdecoder import AVDecoder
from feedmill.samples.decode import Decoder, SampleDecoder
from feedmill.samples.imageheader import header_and_orientation, orientation_in
from feedmill.samples.images import decode_images
from feedmill.samples.media import probe_json
from feedmill.samples.sheet import as_image
from helpers import media_files as clips
from helpers.durations import examples

FORMATS = ["JPEG", "PNG", "WEBP", "TIFF", *(["AVIF"] if features.check("avif") else [])]
SPECS = ["rgb8", "l8", "torchrgb8", "pilrgb", "rgba8", "rgb"]


def stored(form: str, mode: str = "RGB") -> Image.Image:
    """Different in every corner, not square."""
    rows, columns = np.mgrid[:24, :32]
    pixels = np.stack([columns * 8, rows * 10, (rows > 12) * 200], -1).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def turned_file(form: str, orientation: int, mode: str = "RGB") -> bytes:
    exif = Image.Exif()
    exif[0x112] = orientation
    options: dict[str, Any] = {"quality": 95} if form in ("JPEG", "WEBP", "AVIF") else {}
    out = io.BytesIO()
    stored(form, mode).save(out, form, exif=exif, **options)
    return out.getvalue()


def as_array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.transpose(1, 2, 0) if array.ndim == 3 and array.shape[0] in (3, 4) else array


def untouched(form: str, mode: str = "RGB") -> bytes:
    return turned_file(form, 1, mode)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_upright_or_as_stored(form: str, orientation: int) -> None:
    data = turned_file(form, orientation)
    plain = np.asarray(Image.open(io.BytesIO(untouched(form))).convert("RGB"))
    viewer = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert orientation_in(data) == orientation
    assert np.array_equal(upright(plain, orientation), viewer)
    name = form.lower()
    for spec in SPECS:
        if spec.startswith("torch"):
            pytest.importorskip("torch")
        mode = {"l": "L", "rgba": "RGBA"}.get(spec.rstrip("8"), "RGB")
        for kept in ("apply", "stored"):
            found = as_array(Decoder(spec, orientation=kept)(name, data))
            wanted = np.asarray(Image.fromarray(viewer if kept == "apply" else plain).convert(mode))
            if mode == "L" and form == "JPEG":
                assert found.shape == wanted.shape  # decoded from its luma
            elif spec == "rgb":
                assert np.array_equal(found, wanted.astype(np.float32) / np.float32(255))
            else:
                assert np.array_equal(found, wanted), (spec, kept)
    again = ImageOps.exif_transpose(Decoder("pil")(name, data))
    assert np.array_equal(np.asarray(again), viewer)  # nothing is turned twice
    assert SampleDecoder(image_decode="rgb8")(name, data).shape == plain.shape  # Energon's decoder turns nothing
    sheet = as_image(data)
    assert sheet is not None and np.array_equal(np.asarray(sheet), viewer)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "I;16", "1", "CMYK"])
def test_other_modes_are_turned_too(mode: str) -> None:
    form = "TIFF" if mode == "CMYK" else "PNG"
    if mode == "I;16":
        exif = Image.Exif()
        exif[0x112] = 6
        out = io.BytesIO()
        Image.fromarray((np.arange(24 * 32).reshape(24, 32) * 80).astype(np.uint16)).save(out, form, exif=exif)
        data = out.getvalue()
        plain = (np.arange(24 * 32).reshape(24, 32) * 80 >> 8).astype(np.uint8)
        assert np.array_equal(Decoder("l8")("png", data), np.rot90(plain, -1))
        assert np.array_equal(Decoder("l8", orientation="stored")("png", data), plain)
        return
    data = turned_file(form, 6, mode)
    upright_image = Decoder("rgb8")(form.lower(), data)
    assert upright_image.shape == (32, 24, 3)
    assert np.array_equal(upright_image, np.rot90(Decoder("rgb8", orientation="stored")(form.lower(), data), -1))


def test_orientation_by_xmp_and_invalid_values() -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    out = io.BytesIO()
    stored("JPEG").save(out, "JPEG", xmp=xmp)
    assert Decoder()("jpg", out.getvalue()).shape == (32, 24, 3)
    for bad in (0, 9, 77):
        assert Decoder()("jpg", turned_file("JPEG", bad)).shape == (24, 32, 3)
    for form, mode in (("JPEG", "RGB"), ("JPEG", "CMYK"), ("WEBP", "RGB")):
        damaged = turned_file(form, 6, mode).replace(b"MM\0*", b"MX\0*").replace(b"II*\0", b"IX*\0")
        assert Decoder()(form.lower(), damaged).shape == (24, 32, 3)
        assert Decoder(orientation="stored")(form.lower(), damaged).shape == (24, 32, 3)
        assert probe_json(f"x.{form}", damaged, "image")[2] == ""
    assert orientation_in(b"") == orientation_in(b"\xff\xd8\xff\xe1\x00") == orientation_in(b"RIFF....WEBPVP8X") == 1
    assert orientation_in(memoryview(turned_file("JPEG", 3))) == 3


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0x0112, 0x010F, 0x8769, 0x0100]), st.integers(0, 9)), max_size=4),
    st.sampled_from("<>"),
    st.sampled_from([3, 4, 1]),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.booleans(),
)
def test_the_orientation_of_jpegs_is_pillows(
    tags: list[tuple[int, int]], order: str, kind: int, values: int, twice: bool, after_size: bool
) -> None:
    entries = b"".join(struct.pack(f"{order}HHIHH", tag, kind, values, value, 0) for tag, value in tags)
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(tags))
    exif = b"Exif\0\0" + head + entries + b"\0\0\0\0"
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    plain = untouched("JPEG")
    at = plain.index(b"\xff\xda") if after_size else 2
    data = plain[:at] + segment * (1 + twice) + plain[at:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = Image.open(io.BytesIO(data))
        try:
            found = image.getexif().get(0x0112, 1)
        except Exception:
            found = 1
        wanted = found if isinstance(found, int) and 1 <= found <= 8 else 1
        assert orientation_in(data) == wanted
        assert header_and_orientation(data) == ((32, 24, "JPEG", "RGB"), wanted)


def test_a_batch_of_images_is_turned_as_single_ones_are() -> None:
    pytest.importorskip("simplejpeg")
    turned, plain = turned_file("JPEG", 6), untouched("JPEG")
    assert decode_images([plain, plain], "rgb8").shape == (2, 24, 32, 3)
    assert decode_images([plain, turned], "rgb8") is None
    assert decode_images([plain, turned], "rgb8", orient=False).shape == (2, 24, 32, 3)


def test_settings() -> None:
    with pytest.raises(ConfigError, match=r"unknown orientation 'aply' \(did you mean 'apply'\?\)"):
        Decoder(orientation="aply")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown orientation"):
        AVDecoder(b"", orientation="up")  # type: ignore[arg-type]
    assert Decoder() != Decoder(orientation="stored")
    assert "orientation='stored'" in repr(Decoder(orientation="stored"))


TURNS = {
    1: (0, 0, 0),
    2: (0, 1, 0),
    3: (180, 0, 0),
    4: (0, 0, 1),
    5: (90, 0, 1),
    6: (-90, 0, 0),
    7: (90, 1, 0),
    8: (90, 0, 0),
}


def movie_at(degrees: float, hflip: int, vflip: int, container: str = "mp4") -> bytes:
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=container) as target:
        stream = target.add_stream("libx264", rate=25, options={"crf": "1", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.set_display_rotation(degrees, bool(hflip), bool(vflip))
        for frame in clips.pictures(6, (64, 48)):
            target.mux(stream.encode(frame))
        target.mux(stream.encode())
    return out.getvalue()


@pytest.mark.parametrize("container", ["mp4", "mov", "matroska"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_videos_are_upright_or_as_stored(orientation: int, container: str) -> None:
    pytest.importorskip("av")
    data = movie_at(*TURNS[orientation], container)
    if container == "matroska" and TURNS[orientation][1:] != (0, 0):
        pytest.skip("Matroska has angles only")
    if container != "matroska":
        assert orientation_of_mp4(data) == orientation
    plain = AVDecoder(data, orientation="stored").get_video().video_clips[0].transpose(0, 2, 3, 1)
    decoder = AVDecoder(data)
    found = decoder.get_video().video_clips[0].transpose(0, 2, 3, 1)
    assert plain.shape[1:3] == (48, 64)
    assert np.array_equal(found, np.stack([np.asarray(_transposed(frame, orientation)) for frame in plain]))
    about, kept = decoder.get_metadata(), AVDecoder(data, orientation="stored").get_metadata()
    assert (about.video_height, about.video_width, about.orientation) == (*found.shape[1:3], None)
    assert (kept.video_height, kept.video_width, kept.orientation or 1) == (48, 64, orientation)
    small = decoder.get_video_clips([(0, 0)], video_out_frame_size=(20, 30))[0][0]
    assert small.shape == (1, 3, 30, 20)


def _transposed(frame: np.ndarray, orientation: int) -> Image.Image:
    exif = Image.Exif()
    exif[0x112] = orientation
    image = Image.fromarray(frame)
    image.getexif()[0x112] = orientation
    return ImageOps.exif_transpose(image)


def test_another_angle_is_named_and_not_applied(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("av")
    data = movie_at(30, 0, 0)
    assert AVDecoder(data).get_video().video_clips[0].shape == (6, 3, 48, 64)
    assert "states an angle of 30 degrees, which is not applied" in caplog.text
    assert of_matrix(np.zeros(9, np.int32).tobytes()) is None


def test_headers_of_other_and_damaged_files_state_nothing() -> None:
    data = clips.movie("turned", seconds=0.4)
    assert orientation_of_mp4(data) == 8  # behind the track of sound, or before it
    assert orientation_of_mp4(clips.movie("turned-av1", seconds=0.4)) == 6
    for bad in (b"", data[:100], data[100:], clips.movie("mkv", seconds=0.4), b"\0\0\0\1moov", b"\0\0\0\0moov" + data):
        assert orientation_of_mp4(bad) == 1
    for end in range(len(data) - 1200, len(data), 7):
        assert orientation_of_mp4(data[:end]) in (1, 8)


@pytest.mark.parametrize("workers", [1, 2])
def test_import_counts_what_is_turned(workers: int, tmp_path: Path) -> None:
    files = {
        "images": {
            f"{n}.{form.lower()}": turned_file(form, 6 if n < 4 else 1) for n, form in enumerate(FORMATS[:4] * 2)
        },
        "videos": {f"{kind}.mp4": clips.movie(kind, seconds=0.4) for kind in ("turned", "mp4", "turned-av1")},
        "upright": {"a.jpg": untouched("JPEG")},
    }
    words = {"images": (4, "4 of 8 images have an"), "videos": (2, "2 of 3 videos have an"), "upright": (0, "")}
    for name, contents in files.items():
        source = tmp_path / name
        source.mkdir()
        for file, data in contents.items():
            (source / file).write_bytes(data)
        report = fm.import_data(source, tmp_path / f"{name} out", type="media", workers=workers, progress=False)
        count, line = words[name]
        assert report.turned == count
        lines = [one for one in report.recognized if "orientation" in one]
        assert len(lines) == bool(count) and all(one.startswith(f"warning: {line}") for one in lines)


def test_pages_and_previews_show_upright_images(tmp_path: Path) -> None:
    from feedmill.samples.preview import preview
    from feedmill.web.parts import FULL, picture

    (tmp_path / "in").mkdir()
    for number, form in enumerate(FORMATS[:4]):
        (tmp_path / f"in/{number}.{form.lower()}").write_bytes(turned_file(form, 6))
    fm.import_data(tmp_path / "in", tmp_path / "out", type="media", workers=1, progress=False)
    dataset = fm.open(tmp_path / "out")
    for sample in dataset.read_raw(range(4)):
        part = next(name for name in sample if not name.startswith("__") and name != "json")
        data, _ = picture(sample, part, FULL)
        assert Image.open(io.BytesIO(data)).size == (24, 32), part
    shown = preview(tmp_path / "out", count=4)
    assert sum("image 24 x 32" in str(one["parts"]) for one in shown.samples) == 4


def test_recipes_choose_it(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x.jpg").write_bytes(turned_file("JPEG", 6))
    (tmp_path / "in/x.txt").write_text("a picture")
    fm.import_data(tmp_path / "in", tmp_path / "out", workers=1, progress=False)
    assert fm.open(tmp_path / "out")[0].image.shape == (32, 24, 3)
    kept = fm.open(tmp_path / "out", decode=Decoder(orientation="stored"))
    assert kept[0].image.shape == (24, 32, 3)
    for choice, shape in (("stored", (24, 32, 3)), ("apply", (32, 24, 3))):
        recipe = tmp_path / "r.yaml"
        recipe.write_text(f"source: {{path: out, decode: {{orientation: {choice}}}}}\n")
        assert fm.Recipe.load(str(recipe)).plan().read([0])[0].image.shape == shape
