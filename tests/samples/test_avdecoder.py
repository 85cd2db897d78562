"""The handle itself: what it holds, pickles, refuses and says of damaged files."""

from __future__ import annotations

import io
import pickle
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from feedmill.errors import ConfigError, DataError, MissingExtra
from feedmill.formats.avfile import announced_size
from feedmill.samples.avdecoder import AVDecoder, get_clips_uniform
from feedmill.storage import LocalStore
from feedmill.storage.window import Window
from helpers import media_files as clips

pytest.importorskip("av")


def first(decoder: AVDecoder) -> np.ndarray:
    return decoder.get_video_clips([(1, 1.5)])[0][0]


def test_bytes_paths_and_files_are_alike(tmp_path: Path) -> None:
    data = clips.movie("mp4")
    (tmp_path / "x.mp4").write_bytes(b"head" + data)
    (tmp_path / "y.mp4").write_bytes(data)
    wanted = first(AVDecoder(data))
    window = io.BufferedReader(Window(LocalStore(tmp_path), "x.mp4", 4, len(data)))
    with open(tmp_path / "y.mp4", "rb") as file:
        for source in (io.BytesIO(data), str(tmp_path / "y.mp4"), tmp_path / "y.mp4", file, window):
            decoder = AVDecoder(source)
            assert np.array_equal(first(decoder), wanted)
            assert decoder.get_clips([(0, 0)], [(0, 1)]).audio_clips[0].shape == (1, clips.RATE)
            assert np.array_equal(first(decoder), wanted)  # the audio's reading has not moved the video's
            assert f"{len(data):,} bytes" in repr(decoder)
            assert decoder.stream.read(4) == data[:4]


def test_pickles_carry_the_bytes_once_and_nothing_that_is_open() -> None:
    data = clips.movie("mp4")
    decoder = AVDecoder(data, name="k.mp4", threads=2)
    before = pickle.dumps(decoder)
    wanted = first(decoder)
    decoder.get_clips([(3, 8)], [(0, 1)], "frames")
    after = pickle.dumps(decoder)
    assert before == after and len(after) < len(data) + 500
    again = pickle.loads(after)
    assert np.array_equal(first(again), wanted)
    assert (again.name, again.threads) == ("k.mp4", 2)


def test_threads_and_a_closed_handle_give_the_same() -> None:
    data = clips.movie("mp4")
    wanted = first(AVDecoder(data))
    shared = AVDecoder(data, threads=0)
    found: list[np.ndarray] = []
    workers = [threading.Thread(target=lambda: found.append(first(shared))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4 and all(np.array_equal(one, wanted) for one in found)
    shared.close()
    assert np.array_equal(first(shared), wanted)


def test_clips_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    decoder = AVDecoder(clips.movie("mp4"), arrays="torch")
    data = get_clips_uniform(decoder, 0.5, 2, request_video=True, request_audio=True)
    assert data.video_clips[0].dtype == torch.uint8 and data.video_clips[0].shape == (13, 3, 48, 64)
    assert data.audio_clips[0].dtype == torch.float32 and data.audio_clips[0].shape == (1, clips.RATE // 2)


def test_metadata_is_only_what_is_asked_for() -> None:
    decoder = AVDecoder(clips.movie("mkv"))
    assert decoder.get_video_fps() == 25.0
    assert decoder.get_video_duration(get_frame_count=True) == (4.0, 100)
    few = decoder.get_metadata(get_video_frame_size=False, get_audio=False)
    assert few.video_width is None and few.audio_channels is None and few.video_fps == 25.0
    full = decoder.get_metadata(get_audio_num_samples=True)
    assert (full.video_width, full.video_height, full.audio_sample_rate) == (64, 48, clips.RATE)
    assert full.audio_num_samples is not None and full.audio_num_samples > 4 * clips.RATE - 2000
    with pytest.raises(DataError, match="no video fps"):
        AVDecoder(clips.sound("wav")).get_video_fps()


@pytest.mark.parametrize("kind", clips.KINDS)
def test_a_damaged_file_names_sample_and_file(kind: str) -> None:
    data = clips.movie(kind)
    noise = np.random.default_rng(3).integers(0, 256, 4000, dtype=np.uint8).tobytes()
    broken = [b"", noise]
    if kind != "fragmented":  # which may end anywhere, as a stream may
        broken += [data[:200]] + ([data[: len(data) // 2]] if clips.KINDS[kind].container != "mpegts" else [])
    for bad in broken:
        decoder = AVDecoder(bad)
        decoder.came_from("ds/shard.tar", 512, f"k.{kind}")
        for ask in (decoder.get_video, decoder.get_audio, decoder.get_metadata, decoder.has_video_stream):
            with pytest.raises(DataError) as caught:
                ask()
            error = caught.value
            assert (error.file, error.offset, error.record) == ("ds/shard.tar", 512, f"k.{kind}")
            assert "Errno" not in str(error)


def test_a_video_damaged_inside_is_refused() -> None:
    data = clips.movie("mp4")
    middle = len(data) // 2
    noise = np.random.default_rng(0).integers(0, 256, 3000, dtype=np.uint8).tobytes()
    decoder = AVDecoder(data[:middle] + noise + data[middle + 3000 :], name="k.mp4")
    with pytest.raises(DataError, match=r"'k\.mp4': the audio or video cannot be decoded"):
        decoder.get_video()
    assert len(decoder.get_video_clips([(0, 0.5)])[0][0]) == 13  # what is before the damage is good


def test_senseless_clips_are_refused() -> None:
    decoder = AVDecoder(clips.movie("mp4"))
    for ranges, unit in (([(2, 1)], "seconds"), ([(float("nan"), 1)], "seconds"), ([(0, 1)], "minutes")):
        with pytest.raises(ConfigError):
            decoder.get_video_clips(ranges, unit)
        with pytest.raises(ConfigError):
            decoder.get_audio_clips(ranges, unit)
    for options in ({}, {"num_clips": -1, "request_video": True}):
        with pytest.raises(ConfigError):
            get_clips_uniform(decoder, **{"clip_duration_seconds": 1.0, "num_clips": 2, **options})
    assert decoder.get_clips([], []).video_clips == []


def test_without_pyav_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtra, match=r"feedmill\[media\]"):
        AVDecoder(b"x").get_video()


def test_sizes_that_headers_promise() -> None:
    assert announced_size(b"RIFF\x10\0\0\0WAVE") == 24
    assert announced_size(b"RIFF\xff\xff\xff\xffWAVE") is None
    assert announced_size(b"RIFF") is None and announced_size(b"") is None
    for kind in ("mkv", "webm", "avi"):
        data = clips.movie(kind)
        assert announced_size(data[:4096]) == len(data)
    unknown = b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x01" + b"\xff" * 7
    assert announced_size(unknown) is None
    assert announced_size(b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x84") == 14


def test_a_cover_picture_makes_no_video_of_music() -> None:
    import av
    from av.stream import Disposition

    out = io.BytesIO()
    with av.open(out, "w", format="mp3") as container:
        tone = container.add_stream("libmp3lame", rate=clips.RATE, layout="mono")
        cover = container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt, cover.disposition = 32, 32, "yuvj420p", Disposition.attached_pic
        picture = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        for packet in [*cover.encode(picture), *cover.encode()]:
            container.mux(packet)
        clips._sing(container, tone, 1.0)
    about = AVDecoder(out.getvalue()).get_metadata()
    assert about.audio_duration == pytest.approx(1.0, abs=0.05) and about.video_width == 32
    data = AVDecoder(out.getvalue()).get_frames(video_decode_audio=True)
    assert data.video_clips == [] and data.audio_clips[0].shape[1] >= clips.RATE


def test_a_sample_that_names_files_opens_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.mp4").write_bytes(clips.movie("mp4"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError):
        AVDecoder(b"ffconcat version 1.0\nfile secret.mp4\n").get_video()
