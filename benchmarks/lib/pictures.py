"""Create photographs to decode: the same JPEGs as a folder of tars, as MosaicML shards and as LitData chunks."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path

import numpy as np

from benchmarks.lib import corpus

COUNT, SHARD, POOL, SIZE = 4_000, 1_000, 48, (375, 500)


def folder() -> Path:
    """Return a folder of tars, prepared by Feedmill: `COUNT` samples of a JPEG (375 x 500, about 50 KB) and a JSON."""
    path = corpus.folder() / f"pictures_{COUNT}"
    if not (path / "done").exists():
        rng, pool = random.Random(5), photographs()
        (path / "shards").mkdir(parents=True, exist_ok=True)
        for shard in range(COUNT // SHARD):
            with tarfile.open(path / "shards" / f"shard_{shard:03d}.tar", "w") as tar:
                for number in range(shard * SHARD, (shard + 1) * SHARD):
                    label = json.dumps({"label": number % 10}).encode()
                    for part, data in (("jpg", rng.choice(pool)), ("json", label)):
                        info = tarfile.TarInfo(f"{number:06d}.{part}")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
        (path / "done").touch()
    return path


def jpegs() -> list[bytes]:
    """Return the JPEGs of all samples, in stored order."""
    found = []
    for shard in sorted((folder() / "shards").glob("*.tar")):
        with tarfile.open(shard) as tar:
            found += [tar.extractfile(member).read() for member in tar if member.name.endswith(".jpg")]  # type: ignore[union-attr]
    return found


def photographs() -> list[bytes]:
    """Return JPEGs whose detail decreases with its scale, as in photographs."""
    from PIL import Image

    rng, out = np.random.default_rng(2), []
    height, width = SIZE
    for _ in range(POOL):
        picture = np.zeros((height, width, 3), np.float32)
        for level in range(7):
            rows, columns = 3 << level, 4 << level
            layer = rng.normal(0, 62 / 1.55**level, (rows, columns, 3)).astype(np.float32)
            y = (np.arange(height) * rows // height)[:, None]
            picture += layer[y, np.arange(width) * columns // width]
        file = io.BytesIO()
        Image.fromarray(np.clip(picture + 128, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
        out.append(file.getvalue())
    return out
