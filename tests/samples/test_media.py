from __future__ import annotations

import io
import json
import sys
import tarfile
import zlib

import numpy as np
import pytest

from feedmill.errors import ConfigError, DataError, MissingExtra
from feedmill.samples.imageheader import image_header
from feedmill.samples.media import MediaFilter, kind_of_header, kind_of_name, metadata_json, probe
from helpers.digests import GOLDEN, expected

Image = pytest.importorskip("PIL.Image")


def encoded(mode: str, format: str, size: tuple[int, int] = (13, 9), **options) -> bytes:
    noise = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise, "RGBA").convert(mode).save(stream, format, **options)
    return stream.getvalue()


def wav(samples: int = 400, rate: int = 8000) -> bytes:
    soundfile = pytest.importorskip("soundfile")
    stream = io.BytesIO()
    soundfile.write(stream, np.zeros((samples, 2)), rate, format="WAV")
    return stream.getvalue()


def test_golden_media_metadata() -> None:
    pytest.importorskip("av")
    golden = expected("media_wds")["disk"]["nv_meta"]["ds"]["index.sqlite"]
    found, chosen = [], MediaFilter.parse(extension=True)
    for path in sorted((GOLDEN / "media_wds/ds/p").glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                data = tar.extractfile(member).read()
                kind = chosen.kind(member.name, data)
                if kind:
                    kind, metadata = probe(member.name, data, kind)
                    found.append([member.name, kind, metadata_json(metadata)])
    assert sorted(found) == golden["media_metadata"]
    assert [list(chosen.row)] == [row[1:3] for row in golden["media_filters"]]


IMAGES = [
    *[("JPEG", mode, {}) for mode in ("RGB", "L", "CMYK")],
    ("JPEG", "RGB", {"progressive": True}),
    ("JPEG", "RGB", {"exif": b"Exif\0\0" + b"x" * 50, "comment": b"hello"}),
    *[("PNG", mode, {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")],
    ("PNG", "P", {"bits": 2}),
    *[("WEBP", mode, {"lossless": lossless}) for mode in ("RGB", "RGBA") for lossless in (True, False)],
    *[("GIF", mode, {}) for mode in ("P", "L")],
    *[("BMP", mode, {}) for mode in ("1", "L", "P", "RGB")],
    *[("TIFF", mode, {}) for mode in ("L", "RGB", "CMYK")],
    ("JPEG2000", "RGB", {}),
    ("ICO", "RGBA", {}),
    ("MPO", "RGB", {"save_all": True, "append_images": [Image.new("RGB", (13, 9))]}),
]


@pytest.mark.parametrize(("format", "mode", "options"), IMAGES)
@pytest.mark.parametrize("size", [(13, 9), (16, 16), (300, 1)])
def test_image_metadata_is_pillows(format: str, mode: str, options: dict, size: tuple[int, int]) -> None:
    if format == "ICO":
        size = (16, 16)
    if mode != "I;16":
        data = encoded(mode, format, size, **options)
    else:
        stream = io.BytesIO()
        Image.fromarray(np.zeros(size[::-1], np.uint16)).save(stream, format)
        data = stream.getvalue()
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        wanted = {"width": image.width, "height": image.height, "format": image.format, "mode": image.mode}
    assert probe("x", data) == ("image", wanted)
    answered = image_header(data)
    assert answered is None or answered == tuple(wanted.values())
    if format in ("JPEG", "PNG"):
        assert answered is not None
    assert kind_of_header(data[:64]) == "image"


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


@pytest.mark.parametrize(("colour", "depths"), [(0, (1, 2, 4, 8, 16)), (2, (8, 16)), (4, (8, 16)), (6, (8, 16))])
def test_every_kind_of_png_has_pillows_mode(colour: int, depths: tuple[int, ...]) -> None:
    for depth in depths:
        row = -(-depth * {0: 1, 2: 3, 4: 2, 6: 4}[colour] * 5 // 8)
        head = (5).to_bytes(4, "big") + (2).to_bytes(4, "big") + bytes([depth, colour, 0, 0, 0])
        data = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head)
        data += png_chunk(b"IDAT", zlib.compress(bytes(2 * (1 + row)))) + png_chunk(b"IEND", b"")
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            assert image_header(data) == (5, 2, "PNG", image.mode)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.gif", "a.tiff"])
def test_a_picture_cut_short_is_reported(name: str) -> None:
    data = encoded("RGB", {"jpg": "JPEG", "tiff": "TIFF"}.get(name[2:], name[2:].upper()), (200, 200))
    assert probe(name, data)[1]["width"] == 200
    for length in (0, 3, 20, len(data) // 2, len(data) - 40):
        with pytest.raises(DataError) as caught:
            probe(name, data[:length])
        assert (caught.value.record, caught.value.kind) == (name, "bad-media")


@pytest.mark.parametrize("name", ["a.mp4", "a.wav", "a.flac", "a.mp3"])
def test_broken_audio_and_video_are_reported(name: str) -> None:
    pytest.importorskip("av")
    for data in (b"", b"nothing of the kind" * 20):
        with pytest.raises(DataError, match="no media metadata"):
            probe(name, data)


def test_short_flac_and_wav_have_their_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile = pytest.importorskip("soundfile")
    stream = io.BytesIO()
    soundfile.write(stream, np.zeros(100), 8000, format="FLAC")
    flac = stream.getvalue()
    wanted = {"audio_duration": 0.0125, "audio_channels": 1, "audio_sample_rate": 8000, "audio_num_samples": 100}
    assert probe("x.flac", flac) == ("av", wanted)
    stereo = {"audio_duration": 0.05, "audio_channels": 2, "audio_sample_rate": 8000, "audio_num_samples": 400}
    assert probe("x.wav", wav()) == ("av", stereo)
    # Without PyAV soundfile says the same; without both the extra is named.
    monkeypatch.setitem(sys.modules, "av", None)
    assert probe("x.flac", flac) == ("av", wanted)
    assert probe("x.wav", wav()) == ("av", stereo)
    with pytest.raises(DataError, match="no media metadata"):
        probe("x.flac", flac[:-20])
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingExtra, match=r"feedmill\[media\]"):
        probe("x.flac", flac)


def test_exactly_one_way_to_choose() -> None:
    for options in ({}, {"header": True, "extension": True}, {"glob": "*.jpg", "header": True}):
        with pytest.raises(ConfigError, match="exactly one"):
            MediaFilter.parse(**options)
    with pytest.raises(ConfigError, match="no pattern"):
        MediaFilter.parse(glob=" , ")
    assert MediaFilter.parse(glob="*.jpg, b/*").row == ("GLOB", "*.jpg,b/*")
    assert MediaFilter.parse(header=True).row == ("HEADER", "")


def test_which_files_are_chosen() -> None:
    png, text = encoded("RGB", "PNG"), b"BMW is a maker of cars"
    extension, header = MediaFilter("EXTENSION"), MediaFilter("HEADER")
    glob = MediaFilter.parse(glob="*.seg.*,imgs/*")
    names = ("k.PNG", "k.txt", "a/k.seg.dat", "imgs/deep/k", "k.json")
    assert [extension.kind(name, png) for name in names] == ["image", None, None, None, None]
    assert [header.kind(name, png) for name in names] == ["image"] * 5
    assert [glob.kind(name, png) for name in names] == [None, None, "image", "image", None]
    assert [header.kind(name, text) for name in names] == ["image", None, None, None, None]
    assert [extension.may_hold(name) for name in names] == [True, False, False, False, False]
    assert header.may_hold("k.txt") and not glob.may_hold("k.txt")
    assert [kind_of_name(name) for name in ("a.b.MP4", "x.webm", "noext", ".png", "a.jpg.gz")] == [
        "av",
        "av",
        None,
        None,
        None,
    ]
    assert kind_of_header(wav()) == "av" and kind_of_header(b"") is None


def test_nothing_known_is_an_error() -> None:
    with pytest.raises(DataError, match="neither the first bytes nor the extension"):
        probe("k.txt", b"hello")


def test_metadata_json_is_compact() -> None:
    assert metadata_json({"width": 2, "format": "PNG"}) == '{"width":2,"format":"PNG"}'
    assert json.loads(metadata_json({"video_fps": 29.97})) == {"video_fps": 29.97}
