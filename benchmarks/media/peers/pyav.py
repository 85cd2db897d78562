"""Measure PyAV alone over files, with seeks to key frames. With several cores its decoder uses threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.lib.side import answer
from benchmarks.media.clips import COUNT, RATE, SECONDS, Clips, timed, timed_frames


def clips(path: str, cores: str) -> dict[str, float]:
    """Yield the clips of each video for `timed`."""
    return timed(_decode, path, cores)


def _decode(path: Path, threads: int) -> Clips:
    import av
    import numpy as np

    for file in sorted((path / "files").glob("*.mp4")):
        with av.open(str(file)) as container:
            stream = container.streams.video[0]
            if threads > 1:
                stream.thread_type = "AUTO"
            tick = stream.time_base
            duration, frames = float(stream.duration * tick), stream.frames
            clips = []
            for start in np.linspace(0, duration - SECONDS, COUNT):
                container.seek(int(start / tick), stream=stream)
                clip = []
                for frame in container.decode(stream):
                    if float((frame.pts + frame.duration) * tick) <= start:
                        continue
                    if float(frame.pts * tick) > start + SECONDS:
                        break
                    clip.append(frame.to_ndarray(format="rgb24"))
                clips.append(np.stack(clip).transpose(0, 3, 1, 2))
        yield frames, clips


def frames(path: str, together: str) -> dict[str, float]:
    """Read frames of an open file, each after a seek to its key frame, without threads."""
    import av

    container = av.open(path)
    stream = container.streams.video[0]
    stream.thread_type, stream.codec_context.thread_count = "NONE", 1

    def read(number: int) -> Any:
        tick = round(number / RATE / stream.time_base)
        container.seek(tick, stream=stream)
        return next(frame for frame in container.decode(stream) if frame.pts >= tick).to_ndarray(format="rgb24")

    return timed_frames(lambda numbers: [read(number) for number in numbers], int(together))


if __name__ == "__main__":
    answer(globals())
