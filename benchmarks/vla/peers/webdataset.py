"""Measure the same work on top of WebDataset and its decoders: ``pth FOLDER WORKERS``, ``robotics FOLDER WORKERS``."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.side import answer
from benchmarks.vla.batches import ACTIONS, FUTURE, IMAGES, PAST, STATE, check_pth, check_robotics, rate


def pth(folder: str, workers: str) -> dict[str, float]:
    import webdataset as wds

    urls = sorted(str(path) for path in Path(folder).glob("shards/*.tar"))
    dataset = (
        wds.WebDataset(urls, shardshuffle=False, empty_check=False)
        .decode()
        .batched(64, collation_fn=list, partial=False)
    )
    return rate(_looped(wds, dataset, int(workers)), 64, check_pth)


def _looped(wds: Any, dataset: Any, workers: int) -> Iterator[Any]:
    loader = wds.WebLoader(dataset.repeat(100), batch_size=None, num_workers=workers)
    return iter(loader)


class Robotics:
    """The code that a user writes on top of WebDataset for the same batches."""

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


def robotics(folder: str, workers: str) -> dict[str, float]:
    import webdataset as wds

    work = Robotics(folder)
    urls = sorted(str(path) for path in Path(folder).glob("shards/*.tar"))
    dataset = wds.WebDataset(urls, shardshuffle=False, empty_check=False).decode("rgb8").map(work.sample)
    return rate(
        _looped(wds, dataset.batched(32, collation_fn=work.batch, partial=False), int(workers)), 32, check_robotics
    )


if __name__ == "__main__":
    answer(globals())
