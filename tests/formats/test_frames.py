"""Frames of video files."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from feedmill.errors import DataError
from feedmill.formats.avvideo import Frames
from feedmill.storage import open_store
from helpers import media_files as clips

av = pytest.importorskip("av")


def write_video(path: Path, container: str) -> None:
    with av.open(str(path), "w", format=container) as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, 10)
        for number in range(5):
            pixels = np.full((64, 64, 3), 40 * number, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        out.mux(stream.encode())


@pytest.mark.parametrize("container", ["mp4", "matroska", "avi", "mov"])
def test_the_containers_of_videos(container: str, tmp_path: Path) -> None:
    write_video(tmp_path / "v", container)
    frame = Frames(open_store(str(tmp_path)), 0.02).at("v", 0.2)
    assert frame.shape == (64, 64, 3) and abs(int(frame.mean()) - 80) < 8


def test_a_list_of_files_is_no_video(tmp_path: Path) -> None:
    write_video(tmp_path / "secret.mp4", "mp4")
    (tmp_path / "v.mp4").write_text("ffconcat version 1.0\nfile secret.mp4\n")
    with pytest.raises(DataError, match="cannot be decoded"):
        Frames(open_store(str(tmp_path)), 0.02).at("v.mp4", 0.2)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for kind in clips.KINDS:
        (folder / kind).write_bytes(clips.movie(kind, seconds=2.0, gop=12, audio=False))
    return folder


@pytest.mark.parametrize("kind", clips.KINDS)
def test_any_frame_in_any_order_is_that_of_a_full_decode(kind: str, videos: Path) -> None:
    wanted, times = clips.all_frames((videos / kind).read_bytes())
    frames = Frames(open_store(str(videos)), 0.5 / 25)
    numbers = np.arange(len(times))
    random = np.random.default_rng(1).permutation(numbers)
    for number in (*random, *numbers[:30], *numbers[::-1][:30], *np.repeat(numbers[::7], 2)):
        found = frames.at(kind, float(np.float32(times[number])))
        assert np.array_equal(found, wanted[number]), (kind, number)
    for number in numbers[::5]:  # by a new decoder each
        assert np.array_equal(Frames(frames.store, 0.02).at(kind, times[number]), wanted[number]), (kind, number)


@pytest.mark.parametrize("kind", ["hevc-open", "hevc-open-mkv", "hevc-open-ts", "h264-open", "h264-open-ts"])
def test_the_files_have_pictures_before_their_key_frame(kind: str, videos: Path) -> None:
    with av.open(str(videos / kind)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.pts is not None]
    keys = [number for number, packet in enumerate(packets) if packet.is_keyframe]
    assert any(packets[key + 1].pts < packets[key].pts for key in keys[1:-1])


def test_a_time_between_frames_has_the_nearest_within_the_tolerance(videos: Path) -> None:
    wanted, times = clips.all_frames((videos / "hevc-open").read_bytes())
    for tolerance in (0.019, 0.05):
        frames = Frames(open_store(str(videos)), tolerance)
        for time in np.random.default_rng(2).uniform(-0.1, 2.1, 60):
            away = np.abs(times - time)
            if away.min() <= tolerance - 1e-4:
                assert np.array_equal(frames.at("hevc-open", time), wanted[away.argmin()])
            elif away.min() > tolerance + 1e-4:
                with pytest.raises(DataError, match="no frame within"):
                    frames.at("hevc-open", time)


@pytest.mark.parametrize("form", ["gray10le", "gray12le", "gray16le"])
def test_gray_of_many_bits_keeps_its_values(form: str, tmp_path: Path) -> None:
    codec = "ffv1" if form == "gray16le" else "libx265"
    options = {"x265-params": "lossless=1:keyint=4:log-level=none:pools=1"} if codec == "libx265" else {}
    with av.open(str(tmp_path / "v.mkv"), "w") as out:
        stream = out.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 66, 48, form
        true = []
        for frame in clips.pictures(10, (66, 48), form):
            true.append(frame.to_ndarray())
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    frames = Frames(open_store(str(tmp_path)), 0.02)
    for number in (7, 2, 3, 9, 0):
        found = frames.at("v.mkv", number / 25)
        assert (found.dtype, found.shape) == (np.uint16, (48, 66, 1))
        assert np.array_equal(found[:, :, 0], true[number])
