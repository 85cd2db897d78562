"""Measure Feedmill over prepared shards. With several cores it decodes several videos at once, as workers do."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.side import answer
from benchmarks.media.clips import COUNT, RATE, Clips, timed, timed_frames
from benchmarks.media.clips import SECONDS as CLIP
from benchmarks.media.windows import CAMERAS, SECONDS, timed_windows


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
        return facts.video_num_frames, get_clips_uniform(video, CLIP, COUNT, request_video=True).video_clips

    dataset = fm.open(path / "wds")
    samples = (dataset[number] for number in range(len(dataset)))
    yield from ordered_map(look, samples, workers=0 if threads == 1 else threads, in_flight=threads)


def rows(path: str, seq_len: str) -> dict[str, float]:
    """Load rows of samples that a plan has packed by the lengths in the cache folder."""
    import feedmill as fm
    from benchmarks.media.rows import timed_rows

    room = int(seq_len)
    recipe = Path(path).parent / f"rows_{room}.yaml"

    def load() -> Iterator[list[int]]:
        for (row,) in fm.Loader(fm.Recipe.load(recipe).plan(), batch_size=1, workers=0):
            assert sum(len(sample.raw(name)) for sample in row for name in sample)
            yield row.lengths.tolist()

    return timed_rows(load, room)


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


def windows(path: str, workers: str, warm: str) -> dict[str, float]:
    """Read windows of a LeRobot data set at random, and give their images as LeRobot does."""
    import feedmill as fm

    dataset = fm.open(path, windows=SECONDS, decode="torchrgb")

    def batches() -> Iterator[Any]:
        plan = fm.Plan.over(dataset, shuffle="global", epochs=1)
        return iter(fm.Loader(plan, batch_size=32, workers=int(workers)))

    return timed_windows(batches, int(warm))


def loaded(path: str, delay: str) -> dict[str, float]:
    """Read an epoch of windows at random from files, or from a bucket of this machine that answers after a delay.

    Returns the frames per second and the processor time of all but the first five batches. For a bucket, also the bytes
    and requests of videos beside those that the windows of each batch need, with the first bytes of each file once.
    """
    import feedmill as fm

    with _bucket(path, float(delay)) if float(delay) else nullcontext((path, dict)) as (folder, counts):
        dataset = fm.open(folder, windows=SECONDS)
        plan = fm.Plan.over(dataset, shuffle="global", epochs=1)
        rows, before = [], counts()
        for number, batch in enumerate(fm.Loader(plan, batch_size=30, workers=0)):
            if not rows:
                first = counts()
            rows.append(np.stack([batch["episode_index"], batch["frame_index"]], 1))
            if number == 4:
                wall, cpu = time.perf_counter(), time.process_time()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        after = counts()
    out = {"per_s": 3 * (len(dataset) - 150) / wall, "cpu": cpu}
    if after:
        needed, groups, files = _needed(path, rows)
        whole = sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
        out["first_bytes_share"] = first["bytes"] / whole
        out["bytes_ratio"] = (after["bytes.mp4"] - before.get("bytes.mp4", 0)) / needed
        out["requests_ratio"] = (after["get.mp4"] - before.get("get.mp4", 0)) / (1.1 * groups + 2 * files)
    return out


def _needed(path: str, rows: Sequence[Any]) -> tuple[int, int, int]:
    """Return bytes and groups that the windows of batches need, and the number of video files."""
    import feedmill as fm
    from feedmill.formats.mp4.decoder import runs_of
    from feedmill.formats.mp4.table import FIRST_READ

    dataset: Any = fm.open(path)
    frames, places = dataset._frames, dataset.episodes.videos
    files = {file for camera in CAMERAS for file, _ in places[camera]}
    needed = sum(min(Path(path, file).stat().st_size, FIRST_READ) for file in files)
    groups = 0
    for batch in rows:
        wanted: dict[str, set[int]] = {}
        for episode, frame in batch.tolist():
            for camera in CAMERAS:
                file, begin = places[camera][episode]
                for offset in SECONDS[camera]:
                    time = begin + max(frame + round(offset * RATE), 0) / RATE
                    wanted.setdefault(file, set()).add(frames.find(frames.table(file), time))
        for file, numbers in wanted.items():
            runs = runs_of(frames.table(file), sorted(numbers))
            groups += len(runs)
            needed += sum(frames.table(file).nbytes_of(run.packets) for run in runs)
    return needed, groups, len(files)


@contextmanager
def _bucket(root: str, delay: float) -> Iterator[tuple[str, Callable[[], dict[str, int]]]]:
    """Serve a folder in a process of its own: yields its URL, and what returns the counts of requests so far."""
    ours, other = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(root, delay, other), daemon=True)
    server.start()
    os.environ.update(ours.recv())

    def counts() -> dict[str, int]:
        ours.send(None)
        return dict(ours.recv())

    try:
        yield "s3://bkt", counts
    finally:
        server.terminate()


def _serve(root: str, delay: float, pipe: Any) -> None:
    from benchmarks.scale.store import fake_store

    with fake_store(Path(root), delay) as store:
        pipe.send(store.environment)
        while True:
            pipe.recv()
            pipe.send(dict(store.counts))


if __name__ == "__main__":
    answer(globals())
