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
