"""The samples that Feedmill and the peer write, timed as samples per second, the best of three runs."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Callable
from typing import Any

import numpy as np

RUNS = 3


def fields(mode: str) -> dict[str, Any]:
    """Return the parts of a sample."""
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


def timed(write: Callable[[str, int, int, dict[str, Any]], None], mode: str, *words: str) -> dict[str, float]:
    """Time `write(folder, samples, per_shard, parts)`; the arguments are SAMPLES PER_SHARD FOLDER."""
    samples, per_shard, folder = int(words[0]), int(words[1]), words[2]
    parts, best = fields(mode), float("inf")
    for _ in range(RUNS):
        shutil.rmtree(folder, ignore_errors=True)
        begin = time.perf_counter()
        write(folder, samples, per_shard, parts)
        best = min(best, time.perf_counter() - begin)
    shutil.rmtree(folder)
    return {"samples_s": samples / best}
