"""Rare parts of samples: images, audio, video, checkpoints, arrays and other values."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from helpers.rare import Whole
from helpers.rare.archives import METHODS, _npy, _one, pack

PIXELS = np.arange(24 * 20 * 3, dtype=np.uint8).reshape(24, 20, 3)


def _part(name: str, data: bytes, same: Callable[[Any], bool] | None, *refused: str) -> Whole:
    ends = name.rpartition("/")[2].partition("-")[0]
    return Whole(f"part/{name}", partial(_one, f"p.{ends}", data), same, refused, read="part")  # type: ignore[arg-type]


def images() -> Iterator[Whole]:
    from PIL import Image

    picture = Image.fromarray(PIXELS)
    forms: dict[str, tuple[str, Any, dict[str, Any]]] = {
        **{f"png-{mode}": ("PNG", picture.convert(mode), {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")},
        **{f"png-level-{level}": ("PNG", picture, {"compress_level": level}) for level in (0, 9)},
        "png-bits-2": ("PNG", picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=4), {"bits": 2}),
        "png-transparent": ("PNG", picture, {"transparency": (1, 2, 3)}),
        **{
            f"jpg-{name}": ("JPEG", picture, how)
            for name, how in {
                "progressive": {"progressive": True},
                "optimized": {"optimize": True},
                "444": {"subsampling": 0},
                "420": {"subsampling": 2},
                "restarts": {"restart_marker_blocks": 2},
                "comment": {"comment": b"c" * 500},
                "icc": {"icc_profile": b"\0" * 3000},
                "quality-1": {"quality": 1},
                "quality-100": {"quality": 100},
            }.items()
        },
        **{f"jpg-{mode}": ("JPEG", picture.convert(mode), {}) for mode in ("L", "CMYK", "YCbCr")},
        "webp-lossless": ("WEBP", picture, {"lossless": True}),
        "webp-lossy": ("WEBP", picture, {}),
        "webp-alpha": ("WEBP", picture.convert("RGBA"), {"lossless": True}),
        "gif-plain": ("GIF", picture, {}),
        "gif-interlaced": ("GIF", picture, {"interlace": 1}),
        "gif-L": ("GIF", picture.convert("L"), {}),
        **{
            f"tiff-{name}": ("TIFF", picture, {"compression": how})
            for name, how in {
                "raw": None,
                "lzw": "tiff_lzw",
                "deflate": "tiff_adobe_deflate",
                "packbits": "packbits",
                "jpeg": "jpeg",
            }.items()
        },
        "tiff-1": ("TIFF", picture.convert("1"), {"compression": "group4"}),
        "tiff-big": ("TIFF", picture, {"big_tiff": True}),
        "tiff-L": ("TIFF", picture.convert("L"), {}),
        "tiff-CMYK": ("TIFF", picture.convert("CMYK"), {}),
        "bmp-plain": ("BMP", picture, {}),
        "bmp-1": ("BMP", picture.convert("1"), {}),
        "bmp-P": ("BMP", picture.convert("P"), {}),
        "ppm-plain": ("PPM", picture, {}),
        "pgm-plain": ("PPM", picture.convert("L"), {}),
        "pbm-plain": ("PPM", picture.convert("1"), {}),
    }
    for name, (kind, image, how) in forms.items():
        out = io.BytesIO()
        image.save(out, kind, **how)
        data = out.getvalue()
        with Image.open(io.BytesIO(data)) as found:
            size = found.size
        yield _part(name, data, partial(_sized, size))
        yield _part(f"{name}-and-more", data + b"\0" * 37, partial(_sized, size))
    for ends in ("jpg", "png"):
        out = io.BytesIO()
        picture.save(out, "PNG" if ends == "jpg" else "JPEG")
        yield _part(f"{ends}-of-another-kind", out.getvalue(), partial(_sized, picture.size))
    out = io.BytesIO()
    picture.save(out, "PNG", save_all=True, append_images=[picture.rotate(90), picture])
    yield _part("png-animated", out.getvalue(), partial(_sized, picture.size))
    yield _part("ppm-ascii", b"P3\n# a comment\n2 1\n255\n1 2 3 4 5 6\n", partial(_sized, (2, 1)))
    png = bytearray(_png(picture))
    more = struct.pack(">I", 5) + b"tESt" + b"hello" + struct.pack(">I", zlib.crc32(b"tEStwhat"[:4] + b"hello"))
    yield _part("png-private-chunk", bytes(png[:33] + more + png[33:]), partial(_sized, picture.size))
    for name, data in {
        "is-html": b"<!DOCTYPE html><html></html>",
        "is-text": b"404 not found",
        "is-pdf": b"%PDF-1.7\n" + b"%" * 80,
        "is-svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>',
        "is-json": b'{"error": 403}',
        "is-empty": b"",
        "is-pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    }.items():
        for ends in ("jpg", "png"):
            yield _part(f"{ends}-{name}", data, None, "bad-part")


def _png(picture: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def _sized(size: tuple[int, int], value: Any) -> bool:
    return bool(value.shape[:2] == size[::-1] and value.dtype == np.uint8)


def audio() -> Iterator[Whole]:
    import soundfile

    times = np.arange(4000) / 8000
    sound = np.stack([np.sin(440 * times), np.cos(300 * times)], 1) * 0.4
    kinds = {
        "wav": [
            ("WAV", s)
            for s in (
                "PCM_U8",
                "PCM_16",
                "PCM_24",
                "PCM_32",
                "FLOAT",
                "DOUBLE",
                "ULAW",
                "ALAW",
                "IMA_ADPCM",
                "MS_ADPCM",
            )
        ]
        + [(f, s) for f in ("WAVEX", "RF64") for s in ("PCM_16", "PCM_24", "FLOAT")],
        "flac": [("FLAC", s) for s in ("PCM_S8", "PCM_16", "PCM_24")],
        "ogg": [("OGG", s) for s in ("VORBIS", "OPUS")],
        "mp3": [("MP3", "MPEG_LAYER_III")],
    }
    held: dict[str, bytes] = {}
    for ends, forms in kinds.items():
        for form, kind in forms:
            for channels in (1, 2):
                out = io.BytesIO()
                soundfile.write(out, sound[:, :channels], 8000, format=form, subtype=kind)
                held[f"{ends}-{form}-{kind}-{channels}"] = out.getvalue()
    wav = held["wav-WAV-PCM_16-1"]
    at = wav.index(b"data")
    listed = struct.pack("<4sI", b"LIST", 6) + b"INFOab"
    held |= {
        "wav-list-before": _riff(wav[12:at] + listed + wav[at:]),
        "wav-list-after": _riff(wav[12:] + listed),
        "wav-odd-chunk": _riff(wav[12:at] + struct.pack("<4sI", b"junk", 3) + b"abc\0" + wav[at:]),
        "wav-size-0": wav[:4] + bytes(4) + wav[8 : at + 4] + bytes(4) + wav[at + 8 :],
        "wav-size-most": wav[:4] + b"\xff" * 4 + wav[8 : at + 4] + b"\xff" * 4 + wav[at + 8 :],
        "wav-bytes-after": wav + bytes(50),
        "wav-id3": wav + b"ID3\x04\0\0\0\0\0\x0a" + bytes(10),
        "wav-bext": _riff(struct.pack("<4sI", b"bext", 602) + bytes(602) + wav[12:]),
        "flac-id3": b"ID3\x04\0\0\0\0\0\x0a" + bytes(10) + held["flac-FLAC-PCM_16-1"],
        "mp3-id3": b"ID3\x04\0\0\0\0\0\x0a" + bytes(10) + held["mp3-MP3-MPEG_LAYER_III-1"],
        "mp3-id3v1": held["mp3-MP3-MPEG_LAYER_III-1"] + b"TAG" + bytes(125),
        "mp3-ape": held["mp3-MP3-MPEG_LAYER_III-1"]
        + b"APETAGEX"
        + struct.pack("<IIII", 2000, 32, 0, 1 << 31)
        + bytes(8),
        "flac-unknown-length": _unknown_flac(held["flac-FLAC-PCM_16-1"]),
        "wav-of-flac": held["flac-FLAC-PCM_16-1"],
        "mp3-of-wav": wav,
    }
    for name, data in held.items():
        yield _part(name, data, partial(_sounds, 2 if name.endswith("-2") else 1))


def _riff(chunks: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks


def _unknown_flac(data: bytes) -> bytes:
    """As an encoder to a pipe writes it: no number of samples, no hash."""
    out = bytearray(data)
    out[21] &= 0xF0
    out[22:42] = bytes(20)
    return bytes(out)


def _sounds(channels: int, value: Any) -> bool:
    sound = value.get_audio().audio_clips[0]
    rate = value.get_metadata().audio_sample_rate
    assert rate is not None
    return bool(sound.shape[0] == channels and abs(sound.shape[1] / rate - 0.5) < 0.08)


def videos() -> Iterator[Whole]:
    import av

    for ends, form, codec, how, options in (
        ("mp4", "mp4", "libx264", {}, {}),
        ("mp4", "mp4", "mpeg4", {}, {"movflags": "faststart"}),
        ("mp4", "mp4", "libx264", {"bf": "2"}, {"movflags": "frag_keyframe+empty_moov"}),
        ("mp4", "mp4", "libx264", {"bf": "3"}, {}),
        ("mp4", "mp4", "libx265", {"x265-params": "log-level=none"}, {}),
        ("mov", "mov", "mjpeg", {}, {}),
        ("mkv", "matroska", "ffv1", {}, {}),
        ("mkv", "matroska", "libx264", {}, {"live": "1"}),
        ("mkv", "matroska", "libx264", {}, {"cues_to_front": "1", "reserve_index_space": "2000"}),
        ("webm", "webm", "libvpx-vp9", {}, {}),
        ("webm", "webm", "libvpx", {}, {}),
        ("avi", "avi", "mpeg4", {}, {}),
        ("avi", "avi", "mjpeg", {}, {}),
        ("flv", "flv", "flv1", {}, {}),
        ("mkv", "matroska", "mpeg4", {}, {"cluster_size_limit": "2000"}),
        ("mov", "mov", "prores_ks", {}, {}),
        ("mov", "mov", "png", {}, {}),
    ):
        for gray in (False, True):
            out = io.BytesIO()
            try:
                with av.open(out, "w", format=form, options=options) as target:
                    stream = target.add_stream(codec, rate=10, options=how)
                    formats = [each.name for each in stream.codec_context.codec.video_formats or ()]
                    wanted = "gray" if gray else "yuv420p"
                    stream.width, stream.height, stream.pix_fmt = 64, 64, wanted if wanted in formats else formats[0]
                    if gray and wanted not in formats:
                        continue
                    for n in range(6):
                        frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 40 * n, np.uint8), "rgb24")
                        target.mux(stream.encode(frame))
                    target.mux(stream.encode(None))
            except (av.FFmpegError, ValueError):
                continue  # this FFmpeg has not this encoder
            name = f"{ends}-{codec}-{'-'.join([*how, *options.values()]) or 'plain'}{'-gray' * gray}".replace("/", "_")
            yield _part(name, out.getvalue(), _six_frames)
            yield _part(f"{name}-and-more", out.getvalue() + bytes(100), _six_frames)


def _six_frames(value: Any) -> bool:
    return len(value.get_video().video_clips[0]) == 6


def checkpoints() -> Iterator[Whole]:
    import torch

    tensors = {"w": torch.arange(12, dtype=torch.float32).reshape(3, 4), "n": torch.tensor(5)}
    same = _same_tensors
    out = io.BytesIO()
    torch.save(tensors, out)
    data = out.getvalue()
    yield _part("pth-zip", data, same)
    out = io.BytesIO()
    torch.save(tensors, out, _use_new_zipfile_serialization=False)
    yield _part("pth-legacy", out.getvalue(), same)
    from torch.utils.serialization import config

    for crc in (True, False):
        before = config.save.compute_crc32
        config.save.compute_crc32 = crc
        out = io.BytesIO()
        torch.save(tensors, out)
        config.save.compute_crc32 = before
        yield _part(f"pth-crc-{crc}", out.getvalue(), same)
    members = _members(data)
    yield _part("pth-python-zip", pack(members), same)
    for how in ("zip64", "comment", "extra", "before", "streamed"):
        yield _part(f"pth-{how}", pack(members, how=how), same, *["other-format"] * (how == "before"))
    for method in ("deflated", "bzip2", "lzma"):
        yield _part(f"pth-{method}", pack(members, METHODS[method]), same, "unsupported")
    yield _part("pth-encrypted", pack(members, how="encrypted"), None, "unsupported")
    yield _part("pth-no-byteorder", pack({k: v for k, v in members.items() if "byteorder" not in k}), same)
    program = {**members, "archive/constants.pkl": b"\x80\x02."}
    yield _part("pth-program", pack(program), None, "bad-pickle")
    for name, wrong in {
        "is-npz": pack({"x.npy": _npy(np.arange(3))}),
        "is-npy": _npy(np.arange(3)),
        "is-pickle": b"\x80\x04}q\0.",
        "is-text": b"hello",
        "is-gzip": gzip.compress(data),
        "is-safetensors": _safetensors(),
        "is-hdf5": b"\x89HDF\r\n\x1a\n" + bytes(90),
        "is-pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    }.items():
        yield _part(f"pth-{name}", wrong, None, "other-format", "bad-pickle", "unsafe-pickle")


def _members(data: bytes) -> dict[str, bytes]:
    import zipfile

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _safetensors() -> bytes:
    head = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(4)


def _same_tensors(value: Any) -> bool:
    return bool((value["w"] == np.arange(12).reshape(3, 4)).all() and value["n"] == 5)


def arrays() -> Iterator[Whole]:
    array = np.arange(12).reshape(3, 4)
    for kind in ("<i4", ">i4", "<f2", ">f8", "?", "<c16", "U5", "S4", "M8[s]", "longdouble"):
        for order in ("C", "F"):
            value = np.asarray(array.astype(kind), order=order)
            yield _part(f"npy-{kind}-{order}".replace("?", "bool"), _npy(value), partial(_same, value))
            for method in METHODS:
                yield _part(
                    f"npz-{kind}-{order}-{method}".replace("?", "bool"),
                    pack({"x.npy": _npy(value)}, METHODS[method]),
                    partial(_same_x, value),
                )
    fields = np.zeros(2, [("a", "i4"), ("b", "f4", 3)])
    yield _part("npy-fields", _npy(fields), partial(_same, fields))
    yield _part("npy-scalar", _npy(np.float32(2)), partial(_same, np.float32(2)))
    yield _part("npy-empty", _npy(np.zeros((0, 3))), partial(_same, np.zeros((0, 3))))
    yield _part("npy-objects", _npy(np.asarray([{}], object)), None, "bad-part")
    yield _part("npz-objects", pack({"x.npy": _npy(np.asarray([{}], object))}), None, "bad-part")
    yield _part("npz-zip64", pack({"x.npy": _npy(array)}, how="zip64"), partial(_same_x, array))
    yield _part("npz-streamed", pack({"x.npy": _npy(array)}, 8, how="streamed"), partial(_same_x, array))
    yield _part("npz-encrypted", pack({"x.npy": _npy(array)}, how="encrypted"), None, "bad-part")
    yield _part("json-bom", b'\xef\xbb\xbf{"a": 1}', lambda value: value == {"a": 1}, "bad-part")
    yield _part("json-utf16", '{"a": 1}'.encode("utf-16"), lambda value: value == {"a": 1})
    yield _part("json-constants", b"[NaN, Infinity]", lambda value: value[1] == float("inf"))
    yield _part("cls-spaces", b" 17\n", lambda value: value == 17)
    yield _part("txt-bom", b"\xef\xbb\xbfa", lambda value: value in ("a", "\ufeffa"))


def _same(array: Any, value: Any) -> bool:
    return bool(np.array_equal(value, array))


def _same_x(array: Any, value: Any) -> bool:
    return _same(array, value["x"])


def write(data: bytes, folder: Path) -> Path:
    """A part in a tar, as samples have it."""
    return _one("0.tar", data, folder)
