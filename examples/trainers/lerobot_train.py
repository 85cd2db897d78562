"""Train with LeRobot's own `lerobot-train`, whose batches are a recipe; run it again to resume (`--resume=true`).

    python lerobot_train.py recipe.yaml --steps 100 --batch-size 8
    torchrun --nproc-per-node 2 lerobot_train.py recipe.yaml --steps 200 --batch-size 4

The recipe has one source, a LeRobot dataset, from which LeRobot takes features and statistics. The policy is a small
ACT without dropout and latent: their random numbers depend on the ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import common
import yaml
from lerobot.scripts import lerobot_train

import feedmill as fm
from feedmill.loading.adapters.lerobot import feed

POLICY = {
    "chunk_size": 8,
    "n_action_steps": 8,
    "use_vae": False,
    "dropout": 0,
    "dim_model": 32,
    "n_heads": 2,
    "dim_feedforward": 64,
    "n_encoder_layers": 1,
    "pretrained_backbone_weights": "null",
}


def main() -> None:
    options = common.options(__doc__)
    feed(lerobot_train, fm.Recipe.load(options.recipe).plan())  # the changed line
    note(common.Log(options), options)
    sys.argv[1:] = arguments(options)
    lerobot_train.main()


def note(log: common.Log, options: Any) -> None:
    """Log the samples and the loss of each batch."""
    update, load = lerobot_train.update_policy, lerobot_train.load_training_state
    step = 0

    def loaded(*args: Any, **more: Any) -> Any:
        nonlocal step
        found = load(*args, **more)
        step = found[0]
        return found

    def noted(metrics: Any, policy: Any, batch: Any, *args: Any, **more: Any) -> Any:
        nonlocal step
        found = update(metrics, policy, batch, *args, **more)
        step += 1
        log(step, found[0].loss.val, {"id": batch["index"]})
        return found

    lerobot_train.load_training_state, lerobot_train.update_policy = loaded, noted


def arguments(options: Any) -> list[str]:
    """Return the arguments of `lerobot-train`: those of a new run, or those of a resume."""
    robot = Path(options.recipe).parent / yaml.safe_load(Path(options.recipe).read_text())["source"]["path"]
    given = {
        "steps": options.steps,
        "batch_size": options.batch_size,
        "save_freq": options.every,
        "num_workers": 1,
    }
    last = options.folder / "checkpoints" / "last" / "pretrained_model" / "train_config.json"
    if last.exists():
        given |= {"resume": "true", "config_path": last}
    else:
        given |= {
            "dataset.repo_id": "local/robot",
            "dataset.root": robot,
            "dataset.use_imagenet_stats": "false",
            "output_dir": options.folder,
            "seed": 0,
            "policy.type": "act",
            "policy.device": "cpu",
            "policy.push_to_hub": "false",
            **{f"policy.{name}": value for name, value in POLICY.items()},
            "use_policy_training_preset": "false",  # Adam makes much of rounding where gradients are almost zero
            "optimizer.type": "sgd",
            "optimizer.lr": 1e-3,
            "optimizer.momentum": 0.9,
            "scheduler.type": "cosine_decay_with_warmup",
            "scheduler.num_warmup_steps": 0,
            "scheduler.num_decay_steps": 1000,
            "scheduler.peak_lr": 1e-3,
            "scheduler.decay_lr": 1e-4,
        }
    return [f"--{name}={value}" for name, value in given.items()]


if __name__ == "__main__":
    main()
