"""Suite of VLA Foundry's data, compared with WebDataset: samples of ``.pth`` tensors, and robotics batches."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import Row, alternate, child
from benchmarks.vla.batches import ACTIONS, IMAGES, OTHERS, STATE

PEERS = ("webdataset",)
SAMPLES, SHARDS = 20_000, 16
ROBOTICS, SIDE = 2_000, 224


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _made(folder: Path, samples: int, shards: int, parts: Any) -> Path:
    """Return a folder of shards with a manifest; created once."""
    from feedmill.indexing.manifests import write_manifest

    if not (folder / "done").exists():
        (folder / "shards").mkdir(parents=True, exist_ok=True)
        for shard in range(shards):
            with tarfile.open(folder / "shards" / f"shard-{shard:06d}.tar", "w") as tar:
                for number in range(shard, samples, shards):
                    for name, data in parts(number):
                        _add(tar, f"sample_{number:06d}.{name}", data)
        write_manifest(str(folder), progress=False, overwrite=True)
        (folder / "done").touch()
    for path in folder.rglob("*"):
        if path.is_file():
            corpus.warm(path)
    return folder


def tensors() -> Path:
    """Return 20,000 samples of three tensors saved by torch: int64[512] twice, bool[512]."""
    import torch

    def parts(number: int) -> list[tuple[str, bytes]]:
        ids = torch.randint(0, 50_000, (512,), generator=torch.Generator().manual_seed(number))
        found = []
        for name, value in (("input_ids", ids), ("labels", ids.roll(-1)), ("attention_mask", ids > 100)):
            out = io.BytesIO()
            torch.save(value, out)
            found.append((f"{name}.pth", out.getvalue()))
        return found

    return _made(corpus.folder() / "vla_pth", SAMPLES, SHARDS, parts)


def robotics() -> Path:
    """Return 2,000 samples of four camera frames of 224 x 224, twelve fields of 20 steps, and their metadata."""
    import orjson
    from PIL import Image

    from feedmill.samples.robotics.job import compute_statistics

    rng = np.random.default_rng(0)
    scenes = [
        np.asarray(Image.fromarray(rng.integers(0, 256, (14, 14, 3), np.uint8)).resize((SIDE, SIDE))) for _ in range(40)
    ]
    names = [*ACTIONS, *STATE, *(f"other_{i}" for i in range(OTHERS))]

    def parts(number: int) -> list[tuple[str, bytes]]:
        found = []
        for place, name in enumerate(IMAGES):
            out = io.BytesIO()
            noise = rng.integers(0, 12, (SIDE, SIDE, 3), np.uint8)
            Image.fromarray(np.maximum(scenes[(number + place) % 40], 12) - noise).save(out, "JPEG", quality=90)
            found.append((f"{name}.jpg", out.getvalue()))
        widths = {"xyz": 3, "rot": 6, "grip": 1}
        fields = {name: np.cumsum(rng.normal(size=(20, widths.get(name.split("_")[1], 7))), axis=0) for name in names}
        past = np.arange(20) < 4
        lowdim = io.BytesIO()
        np.savez_compressed(lowdim, **fields, past_mask=past, future_mask=~past)
        found.append(("lowdim.npz", lowdim.getvalue()))
        found.append(("metadata.json", orjson.dumps({"anchor_relative_idx": 4, "camera_names": ["left", "wrist"]})))
        found.append(("language_instructions.json", orjson.dumps({"original": [f"do thing {number % 9}"]})))
        return found

    folder = _made(corpus.folder() / "vla_robotics", ROBOTICS, 8, parts)
    if not (folder / "stats.json").exists():
        compute_statistics(str(folder), str(folder / "stats.json"), progress=False)
    return folder


def _rows(part: str, folder: Path, what: str, name: str, wanted: float, repeat: int) -> list[Row]:
    peer, environment = peers.need("webdataset"), peers.environment()
    rows = []
    for workers in (0, 2):
        found, theirs = alternate(
            repeat,
            lambda workers=workers: child(sys.executable, "vla.peers.feedmill", name, folder, workers),
            lambda workers=workers: child(peer, "vla.peers.webdataset", name, folder, workers, env=environment),
        )
        said = f"{what}, {workers} workers"
        rows.append(
            Row(part, said, "/s", found["rate"], theirs["rate"], wanted=wanted, note="samples; beside: WebDataset")
        )
    return rows


def pth(repeat: int) -> list[Row]:
    """Measure decoded `.pth` samples, in lists of 64."""
    return _rows("vla-pth", tensors(), "samples of three .pth tensors", "pth", 8, repeat)


def robot(repeat: int) -> list[Row]:
    """Measure robotics batches."""
    return _rows("vla-robotics", robotics(), "robotics samples in batches of 32", "robotics", 3, repeat)


PARTS = {"vla-pth": pth, "vla-robotics": robot}
