"""Measure Feedmill over prepared shards. With several cores it decodes several videos at once, as workers do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.side import answer
from benchmarks.media.clips import COUNT, RATE, SECONDS, Clips, timed, timed_frames


def clips(path: str, cores: str) -> dict[str, float]:
    """Yield the clips of each video for `timed`."""
    return timed(_decode, path, cores)


def _decode(path: Path, threads: int) -> Clips:
    import feedmill as fm
    from feedmill.jobs.threads import ordered_map
    from feedmill.samples.avdecoder import get_clips_uniform

    def look(sample: Any) -> tuple[Any, list[Any]]:
        video = sample["mp4"]
        facts = video.get_metadata(get_audio=False)
        return facts.video_num_frames, get_clips_uniform(video, SECONDS, COUNT, request_video=True).video_clips

    dataset = fm.open(path / "wds")
    samples = (dataset[number] for number in range(len(dataset)))
    yield from ordered_map(look, samples, workers=0 if threads == 1 else threads, in_flight=threads)


def frames(path: str, together: str) -> dict[str, float]:
    """Read frames as a LeRobot dataset does."""
    from feedmill.formats.avvideo import FrameRequest, Frames
    from feedmill.storage import open_store

    file = Path(path)
    videos = Frames(open_store(str(file.parent)), 0.5 / RATE)

    def read(numbers: Sequence[int]) -> list[Any]:
        batch = videos.request([FrameRequest(file.name, number / RATE) for number in numbers])
        return [batch.take(at) for at in range(len(numbers))]

    return timed_frames(read, int(together))


if __name__ == "__main__":
    answer(globals())
