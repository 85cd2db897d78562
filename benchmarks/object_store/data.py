"""Create the data in the bucket: once, always with the same contents, in ``bucket/bkt`` of the benchmarks' folder.

Each collection exists as prepared tars, as MosaicML's shards and as LitData's chunks, with the same samples.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks import peers
from benchmarks.lib import corpus, pictures
from benchmarks.lib.measure import child, feedmill, run
from benchmarks.object_store.server import BUCKET
from benchmarks.prepared.suite import CRUDE
from benchmarks.vla import suite as vla

SHARD, BYTES, POOL = 1_000, 15_000, 64
IMAGES_SHARD = 250
TOKEN, SEQ_LEN = "uint16", 2048
MANY = 5
"""Size of the large dataset, as a multiple of the other one."""

SAMPLES = int(os.environ.get("FEEDMILL_BENCH_BUCKET_SAMPLES", "20000"))
"""Number of samples of 15 KB. There are a fifth as many images, and twice as many token windows."""


def root() -> Path:
    """Return the folder of the buckets."""
    path = corpus.folder() / "bucket"
    (path / BUCKET).mkdir(parents=True, exist_ok=True)
    return path


def url(path: Path) -> str:
    """Return the URL of a folder or file of the bucket."""
    return f"s3://{BUCKET}/{path.relative_to(root() / BUCKET)}"


def samples(count: int = SAMPLES) -> Path:
    """Return prepared tars of 1,000 samples with 15,000 random bytes and a small JSON."""
    return _prepared(f"samples_{count}", count, SHARD, _blobs)


def images() -> Path:
    """Return prepared tars of 250 photographs (375 x 500, about 50 KB) with a label."""
    return _prepared(f"images_{SAMPLES // 5}", SAMPLES // 5, IMAGES_SHARD, _photographs)


def copied(tars: Path, peer: str) -> Path:
    """Return the samples of tars as 16 MB shards of a peer: ``streaming`` or ``litdata``."""
    path = tars.with_name(f"{tars.name}_{peer}")
    if not (path / "done").exists():
        shutil.rmtree(path, ignore_errors=True)
        child(peers.need("streaming"), f"object_store.peers.{peer}", "make", tars, path, env=peers.environment())
        (path / "done").touch()
    return _warmed(path)


def tokens() -> Path:
    """Return a folder with ``a.pbin``: documents of 2-byte tokens for the requested windows of 2,048."""
    from feedmill.formats.tokens.pbin import write_pbin
    from feedmill.storage import LocalStore

    count = SAMPLES * 2
    path = root() / BUCKET / f"tokens_{count}"
    if not (path / "done").exists():
        import numpy as np

        rng = np.random.default_rng(0)
        with write_pbin(LocalStore(path), "a.pbin", 2) as writer:
            for low in range(0, count, 1_000):
                ids = rng.integers(0, 50_000, min(1_000, count - low) * SEQ_LEN, dtype=np.uint16)
                writer.add(ids, np.full(len(ids) // 512, 512, np.int64))
        (path / "done").touch()
    return _warmed(path)


def windows(peer: str) -> Path:
    """Return the same windows of 2,049 tokens as the shards of a peer."""
    source = tokens() / "a.pbin"
    path = source.parent.with_name(f"{source.parent.name}_{peer}")
    if not (path / "done").exists():
        shutil.rmtree(path, ignore_errors=True)
        words = ("make-windows", source, SEQ_LEN + 1, path)
        child(peers.need("streaming"), f"object_store.peers.{peer}", *words, env=peers.environment())
        (path / "done").touch()
    return _warmed(path)


def robotics() -> Path:
    """Return the robotics samples of ``vla/``."""
    return _linked("robotics", vla.robotics())


def captions() -> Path:
    """Return the captioning dataset of ``prepared/``: 40,000 JPEGs of 5 KB."""
    from benchmarks.prepared.suite import prepared

    return _linked("captions", prepared(8))


def size(path: Path) -> int:
    """Return the bytes of all files of a folder, without its completion marker."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and file.name != "done")


def shards(path: Path) -> int:
    """Return the number of tars of a folder."""
    return sum(1 for _ in path.rglob("*.tar"))


def _prepared(name: str, count: int, shard: int, parts: Callable[[int], Iterator[list[tuple[str, bytes]]]]) -> Path:
    path = root() / BUCKET / name
    if not (path / "done").exists():
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        stream = parts(count)
        for number in range(-(-count // shard)):
            with open(path / f"shard-{number:03d}.tar", "wb", buffering=1 << 20) as out:
                for key in range(number * shard, min(count, (number + 1) * shard)):
                    _write(out.write, f"{key:08d}", next(stream))
                out.write(b"\0" * 1024)
        words = ("--sample-type", "CrudeWebdataset", "--split-ratio", "1,0,0")
        run(feedmill("prepare", path, "--non-interactive", *words))
        (path / ".nv-meta" / "crude.yaml").write_text(CRUDE)
        (path / "done").touch()
    return _warmed(path)


def _write(write: Callable[[bytes], object], key: str, parts: Iterable[tuple[str, bytes]]) -> None:
    for part, content in parts:
        write(corpus.tar_header(f"{key}.{part}", len(content)))
        write(content.ljust(-(-len(content) // 512) * 512, b"\0"))


def _blobs(count: int) -> Iterator[list[tuple[str, bytes]]]:
    rng = random.Random(0)
    pool = [rng.randbytes(BYTES) for _ in range(POOL)]
    for number in range(count):
        yield [("bin", pool[number % POOL]), ("json", json.dumps({"i": number, "caption": "a" * 50}).encode())]


def _photographs(count: int) -> Iterator[list[tuple[str, bytes]]]:
    rng, pool = random.Random(5), pictures.photographs()
    for number in range(count):
        yield [("jpg", rng.choice(pool)), ("json", json.dumps({"label": number % 10}).encode())]


def _linked(name: str, target: Path) -> Path:
    path = root() / BUCKET / name
    if not path.exists():
        path.symlink_to(target, target_is_directory=True)
    return _warmed(path)


_warm: set[Path] = set()


def _warmed(path: Path) -> Path:
    """Read a folder once per run, so that every measurement finds it in the page cache."""
    if path not in _warm:
        _warm.add(path)
        for file in path.rglob("*"):
            if file.is_file():
                corpus.warm(file)
    return path
