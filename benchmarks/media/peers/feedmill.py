"""One side of the video benchmark in one process: metadata and five uniform clips of a second of every video.

    python benchmarks/media_side.py feedmill|pyav|energon FOLDER [--cores 2]

Feedmill reads them from prepared shards, the others from files. With several cores Feedmill decodes several videos at
once, as a loader's workers do, and bare PyAV lets its decoder have threads.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS, COUNT = 1.0, 5


def feedmill(path: Path, threads: int) -> Iterator[tuple[Any, list[Any]]]:
    import feedmill as fm
    from feedmill.jobs.threads import ordered_map
    from feedmill.samples.avclips import get_clips_uniform

    def look(sample: Any) -> tuple[Any, list[Any]]:
        video = sample["mp4"]
        facts = video.get_metadata(get_audio=False)
        return facts.video_num_frames, get_clips_uniform(video, SECONDS, COUNT, request_video=True).video_clips

    dataset = fm.open(path / "wds")
    samples = (dataset[number] for number in range(len(dataset)))
    yield from ordered_map(look, samples, workers=0 if threads == 1 else threads, in_flight=threads)


def energon(path: Path, _threads: int) -> Iterator[tuple[Any, list[Any]]]:
    import io
    import warnings

    from megatron.energon.av import AVDecoder, get_clips_uniform

    warnings.simplefilter("ignore")
    for file in sorted((path / "files").glob("*.mp4")):
        video = AVDecoder(io.BytesIO(file.read_bytes()))
        facts = video.get_metadata(get_audio=False)
        yield facts.video_num_frames, get_clips_uniform(video, SECONDS, COUNT, request_video=True).video_clips


def pyav(path: Path, threads: int) -> Iterator[tuple[Any, list[Any]]]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=("feedmill", "pyav", "energon"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--cores", type=int, default=1, help="cores to run on")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    os.sched_setaffinity(0, cores)
    stream = {"feedmill": feedmill, "pyav": pyav, "energon": energon}[options.how](options.path, len(cores))
    next(stream)  # imports and the first file do not count
    videos, frames, total, begin, cpu = 0, 0, 0, time.perf_counter(), time.process_time()
    for _, clips in stream:
        videos += 1
        frames += sum(len(clip) for clip in clips)
        total += sum(int(clip[::7, 1, ::16, ::16].sum()) for clip in clips)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    print(json.dumps({"per_s": videos / seconds, "cpu": cpu, "frames": frames, "sum": total}))


if __name__ == "__main__":
    main()
