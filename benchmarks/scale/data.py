"""Create the data of the simulation: large by name, small on the disk, and kept between runs.

`prepared` is a folder of tar shards with an index, whose samples are holes in sparse files. All shards are links to a
few files, because a file system limits the links of a file. At full size it has 10^5 shards of 10^4 samples of 1 MB,
which is 1 PB in 300 MB on the disk.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np

from benchmarks.lib import corpus

SHARDS, SAMPLES, BYTES = 100_000, 10_000, 1_000_000
"""Shards at full size, samples of a shard, and bytes of a sample."""


def scaled(count: int, size: float) -> int:
    """Return a fraction of a count, at least 2."""
    return max(2, round(count * size))


def prepared(size: float) -> Path:
    """Return a prepared folder with a fraction of the shards. It has no ``index.sqlite``, which would take 130 GB."""
    from feedmill.formats.energon import sidecar, write
    from feedmill.storage import LocalStore

    shards = scaled(SHARDS, size)
    path = corpus.folder() / "scale" / f"prepared_{shards}x{SAMPLES}"
    if (path / ".nv-meta/split.yaml").exists():
        return path
    shutil.rmtree(path, ignore_errors=True)
    (path / "shards").mkdir(parents=True)
    starts = _sparse_tar(path / "shard.tar")
    (path / "shard.idx").write_bytes(starts.astype("<u8").tobytes())
    names = [f"shards/shard_{number:06d}.tar" for number in range(shards)]
    for name in names:
        _link(path / "shard.tar", path / name)
        _link(path / "shard.idx", path / f"{name}.idx")
    store = LocalStore(path)
    records = _records(store, names)
    write.write_uuid(store, records)
    write.write_info(store, dict.fromkeys(names, SAMPLES))
    sidecar.write(store, records)
    write.write_yaml(store, "dataset.yaml", {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"})
    write.write_splits(store, {"train": names})
    for source in ("shard.tar", "shard.idx"):
        (path / source).unlink()
    return path


def _records(store, names):
    """Return a record of each shard. The first is hashed, and the others are links to the same bytes."""
    from feedmill.formats.energon import sidecar

    facts = store.stat(names[0])
    one = sidecar.ShardRecord(facts.size, facts.version, SAMPLES, "0" * 32)
    one = sidecar.with_words(store, {names[0]: one})[names[0]]
    versions = {name: store.stat(name).version for name in names}
    return {
        name: sidecar.ShardRecord(one.size, versions[name], SAMPLES, f"{number:032x}", one.word, one.middle)
        for number, name in enumerate(names)
    }


def _sparse_tar(path: Path) -> np.ndarray:
    """Write a tar whose contents are holes; return the offset of each sample and the end, int64[samples + 1]."""
    step = 512 + -(-BYTES // 512) * 512
    with open(path, "wb", buffering=0) as out:
        for number in range(SAMPLES):
            out.seek(number * step)
            out.write(corpus.tar_header(f"{number:09d}.bin", BYTES))
        out.truncate(SAMPLES * step + 1024)
    return np.arange(SAMPLES + 1, dtype=np.int64) * step


def _link(source: Path, target: Path) -> None:
    """Create a link, to a new copy if the file has as many as it may."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        mtime = source.stat().st_mtime_ns
        source.unlink()
        if source.suffix == ".tar":
            _sparse_tar(source)
        else:
            shutil.copyfile(target.parent / "shard_000000.tar.idx", source)
        os.utime(source, ns=(mtime, mtime))
        os.link(source, target)


def small_tars(size: float) -> Path:
    """Return an unprepared folder of tars with a sample each, in folders of 1,000."""
    count = scaled(SHARDS, size)
    path = corpus.folder() / "scale" / f"tars_{count}"
    if not (path / ".complete").exists():
        shutil.rmtree(path, ignore_errors=True)
        for number in range(count):
            folder = path / f"{number // 1000:03d}"
            if not number % 1000:
                folder.mkdir(parents=True)
            body = corpus.tar_header(f"{number:09d}.txt", 100) + b"x" * 100 + b"\0" * 412 + b"\0" * 1024
            (folder / f"{number:06d}.tar").write_bytes(body)
        (path / ".complete").touch()
    corpus.unprepare(path)
    return path


def small_files(size: float, per_file: int = 1) -> Path:
    """Return a folder ``documents/`` of JSONL files with a few documents each, without results of earlier runs."""
    count = scaled(SHARDS, size)
    path = corpus.folder() / "scale" / f"files_{count}x{per_file}"
    if not (path / ".complete").exists():
        shutil.rmtree(path, ignore_errors=True)
        for number in range(count):
            folder = path / "documents" / f"{number // 1000:03d}"
            if not number % 1000:
                folder.mkdir(parents=True)
            rows = (
                json.dumps({"id": f"{number}-{n}", "text": f"Page {number} {n}. " * 4, "source": "web"})
                for n in range(per_file)
            )
            (folder / f"{number:06d}.jsonl").write_text("".join(row + "\n" for row in rows))
        (path / ".complete").touch()
    for made in ("attributes", "kept"):
        shutil.rmtree(path / made, ignore_errors=True)
    return path


EPISODES, LENGTH, CAMERAS = 92_000, 300, ("top", "left", "wrist")
"""Episodes of robots at full size, frames of one, and its cameras."""
IN_VIDEO, IN_FILE = 40, 400
"""Episodes of a video file, and of a data file."""


def robots(size: float) -> Path:
    """Return a folder with a LeRobot data set in ``set`` and the tables of its videos in ``cache``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    episodes = scaled(EPISODES // IN_FILE, size) * IN_FILE
    path = corpus.folder() / "scale" / f"robots_{episodes}"
    if (path / ".complete").exists():
        return path
    shutil.rmtree(path, ignore_errors=True)
    (path / "set/meta/episodes/chunk-000").mkdir(parents=True)
    feature = {"dtype": "float32", "shape": [7], "names": None}
    camera = {"dtype": "video", "shape": [48, 64, 3], "names": ["height", "width", "channels"]}
    numbers = {name: {"dtype": "int64", "shape": [1]} for name in ("frame_index", "episode_index", "task_index")}
    info = {
        "codebase_version": "v3.0", "fps": 15, "robot_type": "franka", "total_episodes": episodes,
        "total_frames": episodes * LENGTH, "chunks_size": 1000, "splits": {},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {
            **{f"observation.images.{name}": camera for name in CAMERAS},
            "observation.state": feature, "action": feature, "timestamp": {"dtype": "float32", "shape": [1]}, **numbers,
        },
    }  # fmt: skip
    (path / "set/meta/info.json").write_text(json.dumps(info))
    pq.write_table(pa.table({"task_index": [0], "task": ["Stack."]}), path / "set/meta/tasks.parquet")
    episode = np.arange(episodes)
    columns = {"episode_index": episode, "length": np.full(episodes, LENGTH)}
    columns |= {"data/chunk_index": episode // IN_FILE // 1000, "data/file_index": episode // IN_FILE % 1000}
    for name in CAMERAS:
        key, file = f"videos/observation.images.{name}", episode // IN_VIDEO
        columns |= {f"{key}/chunk_index": file // 1000, f"{key}/file_index": file % 1000}
        columns |= {f"{key}/from_timestamp": episode % IN_VIDEO * LENGTH / 15}
    pq.write_table(pa.table(columns), path / "set/meta/episodes/chunk-000/file-000.parquet")
    rows = IN_FILE * LENGTH
    states = pa.FixedSizeListArray.from_arrays(np.random.default_rng(0).random(7 * rows, np.float32), 7)
    frame = np.arange(rows) % LENGTH
    table = {"observation.state": states, "action": states, "timestamp": (frame / 15).astype(np.float32)}
    table |= {"frame_index": frame, "episode_index": np.arange(rows) // LENGTH, "task_index": np.zeros(rows, np.int64)}
    pq.write_table(pa.table(table), path / "rows.parquet", row_group_size=LENGTH)  # as its recorder does
    _robot_video(path / "video.mp4")
    for number in range(episodes // IN_FILE):
        _link(path / "rows.parquet", path / f"set/data/chunk-{number // 1000:03d}/file-{number % 1000:03d}.parquet")
    videos = [
        f"videos/observation.images.{name}/chunk-{number // 1000:03d}/file-{number % 1000:03d}.mp4"
        for name in CAMERAS for number in range(-(-episodes // IN_VIDEO))
    ]  # fmt: skip
    for video in videos:
        _link(path / "video.mp4", path / "set" / video)
    _keep_tables(path, videos)
    (path / ".complete").touch()
    return path


def _robot_video(path: Path) -> None:
    import av

    scene = np.random.default_rng(0).integers(0, 255, (48, 64 + 300, 3), np.uint8)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=15, options={"g": "2", "bf": "0", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for at in range(IN_VIDEO * LENGTH):
            pixels = np.ascontiguousarray(scene[:, at % 300 : at % 300 + 64])
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        out.mux(stream.encode())


def _keep_tables(path: Path, videos: list[str]) -> None:
    """Make the tables of all videos, as runs over all of them do."""
    from feedmill.formats.avvideo import Frames
    from feedmill.storage import open_store

    known = os.environ.get("FEEDMILL_CACHE_DIR")
    os.environ["FEEDMILL_CACHE_DIR"] = str(path / "cache")
    frames = Frames(open_store(str(path / "set")), 0.02)
    for video in videos:
        frames.table(video)
    os.environ.pop("FEEDMILL_CACHE_DIR")
    if known is not None:
        os.environ["FEEDMILL_CACHE_DIR"] = known
