"""One side of the benchmark of writing: samples to shards in one process, printed as a line of JSON.

python benchmarks/writing_side.py feedmill|webdataset bytes|json|npz|jpgbytes|pth SAMPLES PER_SHARD FOLDER [--runs 3]

Feedmill's time includes everything that makes the result a prepared dataset: hashing, syncing to disk and the index.
webdataset writes bare tars. The number is samples per second, the best of the runs.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import time
from typing import Any

import numpy as np


def fields(mode: str) -> dict[str, Any]:
    """The parts of a sample: the same values for both sides."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50_000, 512)
    if mode == "bytes":
        return {"a.bin": rng.bytes(4096), "b.bin": rng.bytes(4096), "c.bin": rng.bytes(512)}
    if mode == "json":
        return {"json": ids.tolist()}
    if mode == "npz":
        return {"lowdim.npz": {f"f{i}": rng.standard_normal((16, 6)) for i in range(12)}}
    if mode == "pth":
        import torch

        mask = torch.ones(512, dtype=torch.bool)
        tokens = torch.from_numpy(ids)
        return {"input_ids.pth": tokens, "labels.pth": tokens.clone(), "attention_mask.pth": mask}
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (256, 256, 3), np.uint8)).resize((256, 256)).save(out, "JPEG", quality=60)
    return {"jpg": out.getvalue(), "cls": 3}


def feedmill(folder: str, samples: int, per_shard: int, parts: dict[str, Any]) -> None:
    """Write with Feedmill, index and all."""
    import feedmill as fm

    with fm.writer(folder, samples_per_shard=per_shard) as writer:
        for i in range(samples):
            writer.write({"__key__": f"sample_{i:08d}", **parts})


def webdataset(folder: str, samples: int, per_shard: int, parts: dict[str, Any]) -> None:
    """Write with webdataset's ShardWriter: tars only."""
    import webdataset as wds

    os.makedirs(folder)
    with wds.ShardWriter(f"{folder}/s-%06d.tar", maxcount=per_shard, verbose=0) as writer:
        for i in range(samples):
            writer.write({"__key__": f"sample_{i:08d}", **parts})


def main() -> None:
    """Measure one side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=("feedmill", "webdataset"))
    parser.add_argument("mode", choices=("bytes", "json", "npz", "jpgbytes", "pth"))
    parser.add_argument("samples", type=int)
    parser.add_argument("per_shard", type=int)
    parser.add_argument("folder")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    parts, best = fields(options.mode), float("inf")
    work = {"feedmill": feedmill, "webdataset": webdataset}[options.side]
    for _ in range(options.runs):
        shutil.rmtree(options.folder, ignore_errors=True)
        begin = time.perf_counter()
        work(options.folder, options.samples, options.per_shard, parts)
        best = min(best, time.perf_counter() - begin)
    shutil.rmtree(options.folder)
    print(json.dumps({"samples_s": options.samples / best}))


if __name__ == "__main__":
    main()
