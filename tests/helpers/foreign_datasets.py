"""Small datasets of other tools, written by their published layouts: sample number n has the part ``n``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from helpers.tars import write_tar

FPS = 10


def table(low: int, high: int, **more: Any) -> pa.Table:
    numbers = list(range(low, high))
    return pa.table({"n": numbers, "text": [f"text {n} ü" for n in numbers], **more})


def spans(counts: Sequence[int]) -> list[tuple[int, int]]:
    ends = np.cumsum(counts).tolist()
    return [(end - count, end) for end, count in zip(ends, counts, strict=True)]


def parquet(root: Path, counts: Sequence[int]) -> Path:
    for file, (low, high) in enumerate(spans(counts)):
        pq.write_table(table(low, high), root / f"{file}.parquet", row_group_size=3)
    return root


def with_a_wrong_offset(data: bytes, offsets: Sequence[int]) -> bytes:
    """An Arrow file of text in which the first of the column's int32 offsets that are these is negative."""
    found = data.index(np.asarray(offsets, "<i4").tobytes())
    return data[:found] + np.int32(-(2**30)).tobytes() + data[found + 4 :]


def write_arrow(path: Path, data: pa.Table, *, form: str = "stream", rows: int = 3) -> Path:
    new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    path.parent.mkdir(parents=True, exist_ok=True)
    with new(str(path), data.schema) as writer:
        writer.write_table(data, max_chunksize=rows)
    return path


def arrow(root: Path, counts: Sequence[int]) -> Path:
    return write_arrow(root / "one.arrow", table(0, sum(counts)), form="file")


def huggingface(root: Path, counts: Sequence[int]) -> Path:
    names = [f"data-{file:05d}-of-{len(counts):05d}.arrow" for file in range(len(counts))]
    for name, (low, high) in zip(names, spans(counts), strict=True):
        write_arrow(root / name, table(low, high))
    (root / "state.json").write_text(json.dumps({"_data_files": [{"filename": n} for n in names], "_split": "train"}))
    (root / "dataset_info.json").write_text(json.dumps({"features": {}}))
    return root


def mds_shard(samples: Sequence[Sequence[bytes]], sizes: Sequence[int | None]) -> bytes:
    """One shard of these columns of each sample."""
    bodies = []
    for sample in samples:
        heads = [len(part) for part, size in zip(sample, sizes, strict=True) if size is None]
        bodies.append(np.asarray(heads, "<u4").tobytes() + b"".join(sample))
    described = b'{"format": "mds"}'
    offsets = np.cumsum([0, *map(len, bodies)]) + 8 + 4 * len(bodies) + len(described)
    head = np.asarray([len(bodies), *offsets], "<u4").tobytes()
    return head + described + b"".join(bodies)


def mds(root: Path, counts: Sequence[int], pack: Callable[[bytes], bytes] | None = None, name: str = "") -> Path:
    shards = []
    for number, (low, high) in enumerate(spans(counts)):
        rows = [[np.int64(n).tobytes(), f"text {n} ü".encode()] for n in range(low, high)]
        raw = mds_shard(rows, [8, None])
        path = f"shard.{number:05d}.mds"
        stored = {"basename": path, "bytes": len(raw), "hashes": {}}
        zipped = None
        data = raw
        if pack is not None:
            data = pack(raw)
            zipped = {"basename": f"{path}.{name}", "bytes": len(data), "hashes": {}}
        (root / (zipped or stored)["basename"]).write_bytes(data)  # type: ignore[operator]
        shards.append(
            {
                "format": "mds", "version": 2, "samples": high - low, "column_names": ["n", "text"],
                "column_encodings": ["int", "str"], "column_sizes": [8, None], "compression": name or None,
                "hashes": [], "raw_data": stored, "zip_data": zipped, "size_limit": 1 << 26,
            }
        )  # fmt: skip
    (root / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return root


def npz(root: Path, counts: Sequence[int], save: Callable[..., None] = np.savez) -> Path:
    """Files as NumPy writes them: a column of numbers, one of text."""
    for number, (low, high) in enumerate(spans(counts)):
        texts = np.asarray([f"text {n} ü" for n in range(low, high)])
        save(root / f"{number}.npz", n=np.arange(low, high), text=texts.astype("U12"))
    return root


def _frames(low: int, high: int, episode: int) -> pa.Table:
    count = high - low
    return table(
        low,
        high,
        **{
            "observation.state": pa.array([[n, n + 0.5] for n in range(low, high)], pa.list_(pa.float32(), 2)),
            "grid": [[[n, 1], [2, 3]] for n in range(low, high)],
            "timestamp": pa.array(np.arange(count) / FPS, pa.float32()),
            "frame_index": list(range(count)),
            "episode_index": [episode] * count,
            "index": list(range(low, high)),
            "task_index": [episode % 2] * count,
        },
    )


def _info(version: str, counts: Sequence[int], camera: str | None, **paths: str) -> dict[str, Any]:
    features: dict[str, Any] = {"n": {"dtype": "int64", "shape": [1]}, "text": {"dtype": "string", "shape": [1]}}
    features["observation.state"] = {"dtype": "float32", "shape": [2]}
    features["grid"] = {"dtype": "int16", "shape": [2, 2]}
    if camera:
        features[camera] = {"dtype": "video", "shape": [48, 64, 3]}
    half = len(counts) // 2
    return {
        "codebase_version": version, "robot_type": "arm", "fps": FPS, "features": features, "chunks_size": 1000,
        "total_episodes": len(counts), "total_frames": sum(counts),
        "splits": {"train": f"0:{half}", "test": f"{half}:{len(counts)}"}, **paths,
    }  # fmt: skip


def lerobot_v2(root: Path, counts: Sequence[int], camera: str | None = None) -> Path:
    info = _info(
        "v2.1",
        counts,
        camera,
        data_path="data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        video_path="videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    )
    (root / "meta").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    lines = [{"episode_index": e, "tasks": ["x"], "length": count} for e, count in enumerate(counts)]
    (root / "meta/episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = [{"task_index": n, "task": f"task {n}"} for n in range(2)]
    (root / "meta/tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in tasks))
    for episode, (low, high) in enumerate(spans(counts)):
        pq.write_table(_frames(low, high, episode), root / f"data/chunk-000/episode_{episode:06d}.parquet")
        if camera:
            write_video(root / f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4", range(low, high))
    return root


def lerobot_v3(root: Path, counts: Sequence[int], camera: str | None = None) -> Path:
    """Two episodes a data file; all videos of a camera in one file."""
    info = _info(
        "v3.0",
        counts,
        camera,
        data_path="data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        video_path="videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    )
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    pq.write_table(pa.table({"task_index": [0, 1], "task": ["task 0", "task 1"]}), root / "meta/tasks.parquet")
    starts = [low for low, _ in spans(counts)]
    episodes: dict[str, Any] = {
        "episode_index": list(range(len(counts))), "length": list(counts), "tasks": [["x"]] * len(counts),
        "data/chunk_index": [0] * len(counts), "data/file_index": [e // 2 for e in range(len(counts))],
        "dataset_from_index": starts, "dataset_to_index": [high for _, high in spans(counts)],
    }  # fmt: skip
    if camera:
        episodes[f"videos/{camera}/chunk_index"] = episodes[f"videos/{camera}/file_index"] = [0] * len(counts)
        episodes[f"videos/{camera}/from_timestamp"] = [start / FPS for start in starts]
        write_video(root / f"videos/{camera}/chunk-000/file-000.mp4", range(sum(counts)), keys=starts)
    pq.write_table(pa.table(episodes), root / "meta/episodes/chunk-000/file-000.parquet")
    tables = [_frames(low, high, episode) for episode, (low, high) in enumerate(spans(counts))]
    for file in range(0, len(tables), 2):
        pq.write_table(pa.concat_tables(tables[file : file + 2]), root / f"data/chunk-000/file-{file // 2:03d}.parquet")
    return root


def write_video(
    path: Path, numbers: Sequence[int], *, keys: Sequence[int] = (), codec: str = "mpeg4", **options: str
) -> Path:
    """Frames of 48 x 64 of one grey each, 5 times their number; a key frame every 6, and at `keys`."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=FPS, options=options or {"qmin": "1", "qmax": "1"})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 64, 48, "yuv420p", 6 if not options else 100
        for place, number in enumerate(numbers):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), grey(number), np.uint8), "rgb24")
            frame.pict_type = av.video.frame.PictureType.I if place in keys else av.video.frame.PictureType.NONE
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def grey(number: int) -> int:
    return 20 + number * 5 % 200


def images(root: Path, counts: Sequence[int], kind: str) -> Path:
    """A download of img2dataset; a third URL of each shard failed."""
    jpeg = b"\xff\xd8\xff\xe0 not really"
    for shard, (low, high) in enumerate(spans(counts)):
        name = f"{shard:05d}"
        keys = [f"{shard:05d}{number - low:04d}" for number in range(low, high)]
        rows = {"key": [*keys, f"{name}9999"], "status": ["success"] * len(keys) + ["failed_to_download"]}
        if kind == "parquet":
            rows |= {"n": [*range(low, high), None], "jpg": [jpeg + key.encode() for key in keys] + [None]}  # type: ignore[dict-item, operator]
        pq.write_table(pa.table(rows), root / f"{name}.parquet", row_group_size=2)
        members = [
            (f"{key}.{part}", data)
            for number, key in zip(range(low, high), keys, strict=True)
            for part, data in (("jpg", jpeg + key.encode()), ("json", json.dumps({"n": number}).encode()))
        ]
        if kind == "webdataset":
            write_tar(root / f"{name}.tar", members)
        elif kind == "files":
            (root / name).mkdir()
            for member, data in members:
                (root / name / member).write_bytes(data)
        stats = {"count": len(keys) + 1, "successes": len(keys), "failed_to_download": 1}
        (root / f"{name}_stats.json").write_text(json.dumps(stats))
    return root
