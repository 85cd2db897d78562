"""Measure Feedmill: ``pth FOLDER WORKERS`` (decoded, batches of 64), ``robotics FOLDER WORKERS`` (batches of 32)."""

from __future__ import annotations

from typing import Any

from benchmarks.lib.side import answer
from benchmarks.vla.batches import ACTIONS, FUTURE, IMAGES, PAST, STATE, check_pth, check_robotics, rate


def pth(folder: str, workers: str) -> dict[str, float]:
    import feedmill as fm

    plan = fm.Recipe.parse({"source": {"path": folder}, "shuffle": "none", "epochs": 100}).plan()
    loader = fm.Loader(plan, 64, rank=0, world_size=1, workers=int(workers), collate=_decoded)
    return rate(iter(loader), 64, check_pth)


def _decoded(samples: list[Any]) -> list[dict[str, Any]]:
    return [{name: sample[name] for name in sample} for sample in samples]


def robotics_run(folder: str, workers: str, shuffle: bool) -> Any:
    """Return the run whose loader yields robotics batches of 32, from a folder or a URL."""
    from feedmill.compat.vla import VlaRun

    return VlaRun(
        {
            "data": {
                "type": "robotics", "dataset_manifest": [f"{folder}/manifest.jsonl"], "dataset_weighting": [1],
                "dataset_modality": ["robotics"], "dataset_statistics": [f"{folder}/stats.json"],
                "image_names": list(IMAGES), "action_fields": list(ACTIONS), "proprioception_fields": list(STATE),
                "lowdim_past_timesteps": PAST, "lowdim_future_timesteps": FUTURE, "normalization": {"method": "std"},
                "allow_multiple_epochs": True, "num_workers": int(workers), "shuffle": shuffle,
            },
            "hparams": {"global_batch_size": 32}, "total_train_samples": 10**6,
        }
    )  # fmt: skip


def robotics(folder: str, workers: str) -> dict[str, float]:
    return rate(iter(robotics_run(folder, workers, shuffle=False).loader()), 32, check_robotics)


if __name__ == "__main__":
    answer(globals())
