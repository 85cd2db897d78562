"""One measurement of reading VLA Foundry's data, in a process of its own; prints JSON.

vla_side.py feedmill-pth FOLDER WORKERS         .pth samples through a Loader, decoded, batches of 64
vla_side.py webdataset-pth FOLDER WORKERS       the same through WebDataset and WebLoader
vla_side.py feedmill-robotics FOLDER WORKERS    robotics batches of 32: images, windows, normalised actions
vla_side.py webdataset-robotics FOLDER WORKERS  the same work on top of WebDataset's decoders
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SECONDS, FIRST = 6.0, 4
ACTIONS, STATE, OTHERS = ("action_xyz", "action_rot"), ("actual_xyz", "actual_rot", "actual_grip"), 7
PAST, FUTURE = 2, 13
IMAGES = ("left_t-1", "wrist_t-1", "left_t0", "wrist_t0")


def _rate(batches: Iterator[Any], size: int, check: Any) -> dict[str, float]:
    """Samples per second once the first batches are there."""
    for _ in range(FIRST):
        check(next(batches))
    begun, done = time.perf_counter(), 0
    for batch in batches:
        done += size
        check(batch)
        if time.perf_counter() - begun > SECONDS:
            break
    return {"rate": done / (time.perf_counter() - begun)}


def _check_pth(batch: Any) -> None:
    ids = batch["input_ids.pth"] if isinstance(batch, dict) else [one["input_ids.pth"] for one in batch]
    assert len(ids) == 64 and len(ids[0]) == 512


def feedmill_pth(folder: str, workers: str) -> dict[str, float]:
    import feedmill as fm

    plan = fm.Recipe.parse({"source": {"path": folder}, "shuffle": "none", "epochs": 100}).plan()
    loader = fm.Loader(plan, 64, rank=0, world_size=1, workers=int(workers), collate=_decoded)
    return _rate(iter(loader), 64, _check_pth)


def _decoded(samples: list[Any]) -> list[dict[str, Any]]:
    return [{name: sample[name] for name in sample} for sample in samples]


def webdataset_pth(folder: str, workers: str) -> dict[str, float]:
    import webdataset as wds

    urls = sorted(str(path) for path in Path(folder).glob("shards/*.tar"))
    dataset = (
        wds.WebDataset(urls, shardshuffle=False, empty_check=False)
        .decode()
        .batched(64, collation_fn=list, partial=False)
    )
    return _rate(_looped(wds, dataset, int(workers)), 64, _check_pth)


def _looped(wds: Any, dataset: Any, workers: int) -> Iterator[Any]:
    loader = wds.WebLoader(dataset.repeat(100), batch_size=None, num_workers=workers)
    return iter(loader)


def _check_robotics(batch: Any) -> None:
    assert batch["actions"].shape == (32, PAST + FUTURE + 1, 9) and batch["proprioception"].shape == (32, PAST + 1, 10)
    assert batch["pixel_values"].shape[:2] == (32, len(IMAGES))


def feedmill_robotics(folder: str, workers: str) -> dict[str, float]:
    from feedmill.compat.vla import VlaRun

    run = VlaRun(
        {
            "data": {
                "type": "robotics", "dataset_manifest": [f"{folder}/manifest.jsonl"], "dataset_weighting": [1],
                "dataset_modality": ["robotics"], "dataset_statistics": [f"{folder}/stats.json"],
                "image_names": list(IMAGES), "action_fields": list(ACTIONS), "proprioception_fields": list(STATE),
                "lowdim_past_timesteps": PAST, "lowdim_future_timesteps": FUTURE, "normalization": {"method": "std"},
                "allow_multiple_epochs": True, "num_workers": int(workers), "shuffle": False,
            },
            "hparams": {"global_batch_size": 32}, "total_train_samples": 10**6,
        }
    )  # fmt: skip
    return _rate(iter(run.loader()), 32, _check_robotics)


class _Robotics:
    """What a user writes over WebDataset for the same batches."""

    def __init__(self, folder: str) -> None:
        stats = json.loads(Path(folder, "stats.json").read_text())
        self.stats = {
            name: (np.asarray(stats[name]["mean"], np.float32), np.asarray(stats[name]["std"], np.float32))
            for name in (*ACTIONS, *STATE)
        }

    def sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        anchor = sample["metadata.json"]["anchor_relative_idx"]
        lowdim, cut = sample["lowdim.npz"], slice(anchor - PAST, anchor + FUTURE + 1)
        if isinstance(lowdim, bytes):
            lowdim = np.load(io.BytesIO(lowdim))
        fields = {name: np.asarray(lowdim[name][cut], np.float32) for name in (*ACTIONS, *STATE)}
        masks = {name: lowdim[name][cut] for name in ("past_mask", "future_mask")}
        images = np.stack([sample[f"{name}.jpg"] for name in IMAGES])
        text = sample["language_instructions.json"]["original"][0]
        return {"key": sample["__key__"], "images": images, "text": text, **fields, **masks}

    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        done = {}
        for name, (mean, std) in self.stats.items():
            done[name] = (np.stack([one[name] for one in samples]) - mean) / np.maximum(std, np.float32(1e-8))
        return {
            "keys": [one["key"] for one in samples],
            "text": [one["text"] for one in samples],
            "pixel_values": np.stack([one["images"] for one in samples]),
            "past_mask": np.stack([one["past_mask"] for one in samples]),
            "future_mask": np.stack([one["future_mask"] for one in samples]),
            "actions": np.concatenate([done[name] for name in ACTIONS], axis=-1),
            "proprioception": np.concatenate([done[name] for name in STATE], axis=-1)[:, : PAST + 1],
        }


def webdataset_robotics(folder: str, workers: str) -> dict[str, float]:
    import webdataset as wds

    work = _Robotics(folder)
    urls = sorted(str(path) for path in Path(folder).glob("shards/*.tar"))
    dataset = wds.WebDataset(urls, shardshuffle=False, empty_check=False).decode("rgb8").map(work.sample)
    return _rate(
        _looped(wds, dataset.batched(32, collation_fn=work.batch, partial=False), int(workers)), 32, _check_robotics
    )


SIDES = {
    "feedmill-pth": feedmill_pth,
    "webdataset-pth": webdataset_pth,
    "feedmill-robotics": feedmill_robotics,
    "webdataset-robotics": webdataset_robotics,
}

if __name__ == "__main__":
    print(json.dumps(SIDES[sys.argv[1]](*sys.argv[2:])))
