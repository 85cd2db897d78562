"""Measure Energon's AVDecoder over files."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lib.side import answer
from benchmarks.media.clips import COUNT, SECONDS, Clips, timed


def clips(path: str, cores: str) -> dict[str, float]:
    """Yield the clips of each video for `timed`."""
    return timed(_decode, path, cores)


def _decode(path: Path, _threads: int) -> Clips:
    import io
    import warnings

    from megatron.energon.av import AVDecoder, get_clips_uniform

    warnings.simplefilter("ignore")
    for file in sorted((path / "files").glob("*.mp4")):
        video = AVDecoder(io.BytesIO(file.read_bytes()))
        facts = video.get_metadata(get_audio=False)
        yield facts.video_num_frames, get_clips_uniform(video, SECONDS, COUNT, request_video=True).video_clips


if __name__ == "__main__":
    answer(globals())
