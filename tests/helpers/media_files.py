"""Small files of audio and video, made with PyAV, and what decoding them from the beginning gives."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np


class Video(NamedTuple):
    """How a video is written.

    Attributes:
        container, codec, sound: names of FFmpeg.
        options: of the encoder; None for those of libx264 and libx265 with frames in another order than shown.
        movflags: of the container.
        start: time of the first frame in seconds.
        rotation: of the display matrix, in degrees counter-clockwise.
        hidden: frames before the edit list begins.
    """

    container: str
    codec: str
    sound: str
    options: dict[str, str] | None = None
    movflags: str = ""
    start: int = 0
    rotation: int = 0
    hidden: int = 0


_X264 = {"preset": "veryfast", "bf": "2", "sc_threshold": "0"}
_X265 = "bframes=3:scenecut=0:pools=1:frame-threads=1:log-level=none:keyint={gop}:min-keyint={gop}:open-gop={open}"
_OPEN = {"open": "1"}
KINDS = {
    "mp4": Video("mp4", "libx264", "aac"),
    "mov": Video("mov", "libx264", "pcm_s16le"),
    "mkv": Video("matroska", "libx264", "aac"),
    "webm": Video("webm", "libvpx", "libopus"),
    "avi": Video("avi", "mpeg4", "libmp3lame"),
    "ts": Video("mpegts", "libx264", "aac"),
    # codecs, and groups in which pictures precede their key frame
    "av1": Video("mp4", "libsvtav1", "aac"),
    "av1-mkv": Video("matroska", "libsvtav1", "libopus"),
    "hevc": Video("mp4", "libx265", "aac"),
    "hevc-open": Video("mp4", "libx265", "aac", _OPEN),
    "hevc-open-mkv": Video("matroska", "libx265", "aac", _OPEN),
    "hevc-open-ts": Video("mpegts", "libx265", "aac", _OPEN, start=2),
    "h264-open": Video("mp4", "libx264", "aac", {**_X264, "x264-params": "open-gop=1:b-pyramid=normal", "bf": "3"}),
    "h264-open-ts": Video("mpegts", "libx264", "aac", {**_X264, "x264-params": "open-gop=1", "bf": "3"}),
    "h264-avi": Video("avi", "libx264", "libmp3lame"),
    "vp9": Video("webm", "libvpx-vp9", "libopus", {"cpu-used": "8", "auto-alt-ref": "1", "lag-in-frames": "16"}),
    "mpeg2-ts": Video("mpegts", "mpeg2video", "aac", {"bf": "2"}, start=2),
    "mpeg4-mkv": Video("matroska", "mpeg4", "aac", {"bf": "2"}),
    "h264-refresh-ts": Video("mpegts", "libx264", "aac", {**_X264, "x264-params": "intra-refresh=1", "bf": "0"}),
    # times and orientation
    "late": Video("mp4", "libx264", "aac", start=2),
    "late-ts": Video("mpegts", "libx264", "aac", start=2),
    "late-mkv": Video("matroska", "libx264", "aac", start=2),
    "fragmented": Video("mp4", "libx264", "aac", movflags="frag_keyframe+empty_moov+default_base_moof"),
    "edited": Video("mp4", "libx264", "aac", hidden=10),
    "turned": Video("mp4", "libx264", "aac", rotation=90),
    "turned-av1": Video("mp4", "libsvtav1", "aac", rotation=-90),
    "upside-down": Video("matroska", "libx265", "aac", rotation=180),
}
SOUNDS = {
    # name -> container, codec
    "wav": ("wav", "pcm_s16le"),
    "flac": ("flac", "flac"),
    "mp3": ("mp3", "libmp3lame"),
    "m4a": ("mp4", "aac"),
    "ogg": ("ogg", "libopus"),
}
RATE = 48_000


@cache
def movie(
    kind: str = "mp4",
    seconds: float = 4.0,
    fps: int = 25,
    size: tuple[int, int] = (64, 48),
    gop: int = 20,
    audio: bool = True,
    gaps: bool = False,
) -> bytes:
    """A moving gradient and a rising tone. With `gaps` the time between frames varies."""
    import av

    how = KINDS[kind]
    stream = io.BytesIO()
    options = {"movflags": how.movflags} if how.movflags else {}
    with at_its_priority(), av.open(stream, "w", format=how.container, container_options=options) as container:
        video = container.add_stream(how.codec, rate=fps)
        video.width, video.height, video.pix_fmt, video.gop_size = *size, "yuv420p", gop
        video.options = _options(how, gop)
        if how.rotation:
            video.set_display_rotation(how.rotation)
        if gaps:
            video.codec_context.time_base = Fraction(1, 2 * fps)
        tone = container.add_stream(how.sound, rate=RATE, layout="mono") if audio else None
        for number, frame in enumerate(pictures(int(seconds * fps) + how.hidden, size)):
            frame.pts = 2 * number + (gaps and number % 3 == 0) + 2 * fps * how.start
            frame.time_base = Fraction(1, 2 * fps)
            for packet in video.encode(frame):
                _mux(container, packet, how, fps)
        for packet in video.encode():
            _mux(container, packet, how, fps)
        if tone is not None:
            _sing(container, tone, seconds, how.start)
    return stream.getvalue()


@contextlib.contextmanager
def at_its_priority() -> Iterator[None]:
    """Restore the scheduling of this thread at the end: for root, SVT-AV1 makes the one that opens it real-time.

    Every thread and process that it starts later would be so too, and one that is busy would keep all others waiting
    (`findings/pyav_svtav1_realtime.sh`).
    """
    if not hasattr(os, "sched_getscheduler"):
        yield
        return
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def pictures(count: int, size: tuple[int, int], form: str = "rgb24") -> Iterator[Any]:
    """Frames that all differ, and move."""
    import av

    rows, columns = np.mgrid[0 : size[1], 0 : size[0]]
    for number in range(count):
        if form == "rgb24":
            shades = [(columns * 3 + number * 5) % 256, (rows * 4 + number) % 256, np.full_like(rows, 2 * number % 256)]
            yield av.VideoFrame.from_ndarray(np.stack(shades, -1).astype(np.uint8), format="rgb24")
        else:
            most = 1 << int(form.removeprefix("gray").removesuffix("le"))
            deep = (columns * 37 + rows * 11 + number * 3) % most
            yield av.VideoFrame.from_ndarray(deep.astype(np.uint16), format=form)


def _options(how: Video, gop: int) -> dict[str, str]:
    if how.codec == "libx264":
        return how.options or _X264
    if how.codec == "libx265":
        opened = (how.options or {}).get("open", "0")
        return {"preset": "ultrafast", "x265-params": _X265.format(gop=gop, open=opened)}
    return {"preset": "12", "crf": "30"} if how.codec == "libsvtav1" else how.options or {}


def _mux(container: Any, packet: Any, how: Video, fps: int) -> None:
    """Write a packet of video; frames before an edit list begins have times below 0."""
    if how.hidden:
        back = round(Fraction(how.hidden, fps) / packet.time_base)
        packet.pts, packet.dts = packet.pts - back, packet.dts - back
    container.mux(packet)


@cache
def sound(kind: str = "wav", seconds: float = 3.0, start: int = 0) -> bytes:
    """A rising tone alone, which begins at a second of the file's clock."""
    import av

    container_name, codec = SOUNDS[kind]
    stream = io.BytesIO()
    with av.open(stream, "w", format=container_name) as container:
        _sing(container, container.add_stream(codec, rate=RATE, layout="mono"), seconds, start)
    return stream.getvalue()


def _sing(container: Any, tone: Any, seconds: float, start: int = 0) -> None:
    import av

    times = np.arange(int(RATE * seconds)) / RATE
    wave = (np.sin(2 * np.pi * (300 + 200 * times) * times) * 12_000).astype(np.int16)
    for at in range(0, len(wave), 4096):
        frame = av.AudioFrame.from_ndarray(wave[None, at : at + 4096], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, start * RATE + at, Fraction(1, RATE)
        for packet in tone.encode(frame):
            container.mux(packet)
    for packet in tone.encode():
        container.mux(packet)


def all_frames(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Every frame, uint8[n, H, W, 3], turned upright, and its time in seconds, float64[n]."""
    import av

    with av.open(io.BytesIO(data)) as container:
        shown = [
            (float(f.pts * f.time_base), np.rot90(f.to_ndarray(format="rgb24"), f.rotation // 90))
            for f in container.decode(video=0)
        ]
    return np.stack([pixels for _, pixels in shown]), np.sort([time for time, _ in shown])  # AVI states them unordered


def all_samples(data: bytes) -> tuple[np.ndarray, int]:
    """Every sample of audio, [channels, n], and the number of the first by the file's clock."""
    import av

    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(audio=0))
    first = round(float(frames[0].pts * frames[0].time_base) * frames[0].sample_rate) if frames[0].pts else 0
    arrays = [f.to_ndarray() if f.format.is_planar else f.to_ndarray().reshape(f.samples, -1).T for f in frames]
    return np.concatenate(arrays, axis=1), first
