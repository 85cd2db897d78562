"""Small files of audio and video, made with PyAV, and what decoding them from the beginning gives."""

from __future__ import annotations

import io
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

KINDS = {
    # name -> container, video codec, audio codec
    "mp4": ("mp4", "libx264", "aac"),
    "mov": ("mov", "libx264", "pcm_s16le"),
    "mkv": ("matroska", "libx264", "aac"),
    "webm": ("webm", "libvpx", "libopus"),
    "avi": ("avi", "mpeg4", "libmp3lame"),
    "ts": ("mpegts", "libx264", "aac"),
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

    container_name, codec, sound = KINDS[kind]
    stream = io.BytesIO()
    with av.open(stream, "w", format=container_name) as container:
        video = container.add_stream(codec, rate=fps)
        video.width, video.height, video.pix_fmt, video.gop_size = *size, "yuv420p", gop
        if gaps:
            video.codec_context.time_base = Fraction(1, 2 * fps)
        if codec == "libx264":
            video.options = {"preset": "veryfast", "bf": "2", "sc_threshold": "0"}
        tone = container.add_stream(sound, rate=RATE, layout="mono") if audio else None
        rows, columns = np.mgrid[0 : size[1], 0 : size[0]]
        for number in range(int(seconds * fps)):
            shades = [(columns * 3 + number * 5) % 256, (rows * 4 + number) % 256, np.full_like(rows, 2 * number % 256)]
            frame = av.VideoFrame.from_ndarray(np.stack(shades, -1).astype(np.uint8), format="rgb24")
            if gaps:
                frame.pts = 2 * number + (number % 3 == 0)
                frame.time_base = Fraction(1, 2 * fps)
            for packet in video.encode(frame):
                container.mux(packet)
        for packet in video.encode():
            container.mux(packet)
        if tone is not None:
            _sing(container, tone, seconds)
    return stream.getvalue()


@cache
def sound(kind: str = "wav", seconds: float = 3.0) -> bytes:
    """A rising tone alone."""
    import av

    container_name, codec = SOUNDS[kind]
    stream = io.BytesIO()
    with av.open(stream, "w", format=container_name) as container:
        _sing(container, container.add_stream(codec, rate=RATE, layout="mono"), seconds)
    return stream.getvalue()


def _sing(container: Any, tone: Any, seconds: float) -> None:
    import av

    times = np.arange(int(RATE * seconds)) / RATE
    wave = (np.sin(2 * np.pi * (300 + 200 * times) * times) * 12_000).astype(np.int16)
    for at in range(0, len(wave), 4096):
        frame = av.AudioFrame.from_ndarray(wave[None, at : at + 4096], format="s16", layout="mono")
        frame.sample_rate, frame.pts = RATE, at
        for packet in tone.encode(frame):
            container.mux(packet)
    for packet in tone.encode():
        container.mux(packet)


def all_frames(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Every frame, uint8[n, H, W, 3], and its time in seconds, float64[n]."""
    import av

    with av.open(io.BytesIO(data)) as container:
        shown = [(float(f.pts * f.time_base), f.to_ndarray(format="rgb24")) for f in container.decode(video=0)]
    return np.stack([pixels for _, pixels in shown]), np.asarray([time for time, _ in shown])


def all_samples(data: bytes) -> tuple[np.ndarray, int]:
    """Every sample of audio, [channels, n], and the number of the first by the file's clock."""
    import av

    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(audio=0))
    first = round(float(frames[0].pts * frames[0].time_base) * frames[0].sample_rate) if frames[0].pts else 0
    arrays = [f.to_ndarray() if f.format.is_planar else f.to_ndarray().reshape(f.samples, -1).T for f in frames]
    return np.concatenate(arrays, axis=1), first
