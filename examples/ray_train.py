"""A training program on Ray Train: each worker is a rank of the loader, and checkpoints hold the position in the data.

    pip install 'feedmill[torch]' 'ray[train]'
    python examples/ray_train.py recipe.yaml --steps 100 --ranks 2 --storage /shared/runs --name first

A worker that is lost restarts all from the last checkpoint. Run it again with more steps to resume, also with another
number of ranks: `--batch-size` is that of all ranks together, so each step sees the same samples as before.
Every sample must have a part `json` with a text field "text", like the documents of `make demo`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model

import feedmill as fm

BUCKETS = 256
FILE = "state.pt"


def encode(sample: fm.Sample, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the counts of byte pairs in a random piece of the text, and the target: the length of the text."""
    text = sample["json"]["text"].encode()
    begin = int(rng.integers(max(1, len(text) - 64)))
    piece = np.frombuffer(text[begin : begin + 64].ljust(2), np.uint8).astype(np.int64)
    counts = np.bincount((piece[1:] * 31 + piece[:-1]) % BUCKETS, minlength=BUCKETS)
    return {"x": counts.astype(np.float32), "y": np.float32(np.log1p(len(text)))}


def train(options: dict[str, Any]) -> None:
    """Train on one worker. Rank and world size of the loader are those of torch.distributed, which Ray Train starts."""
    torch.manual_seed(0)
    model = torch.nn.Linear(BUCKETS, 1)
    parallel = prepare_model(model)  # the checkpoint has the bare model, which fits any number of ranks
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ranks = ray.train.get_context().get_world_size()
    plan = fm.Recipe.load(options["recipe"]).plan()
    loader = fm.Loader(plan, options["batch_size"] // ranks, workers=1, transform=encode, output="torch")
    data = fm.Checkpoint(loader)

    step = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / FILE, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        data.load_state_dict(saved["data"])
        step = saved["step"]

    begun = step
    for batch in loader:
        if step >= options["steps"]:
            break
        loss = torch.nn.functional.mse_loss(parallel(batch["x"]).squeeze(1), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % options["every"] == 0 or step == options["steps"]:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": data.state_dict()}
            mean = loss.detach()
            torch.distributed.all_reduce(mean)
            found = {"step": step, "loss": mean.item() / ranks, "samples": loader.position, "ranks": ranks}
            report({**found, "resumed_at": begun}, {**state, "step": step})


def report(found: dict[str, Any], state: dict[str, Any]) -> None:
    """Report to Ray Train on all ranks. The states are equal, and rank 0 saves its own."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            torch.save(state, Path(folder) / FILE)
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report(found, checkpoint=checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--steps", type=int, default=100, help="total number of steps, including those of earlier runs")
    parser.add_argument("--batch-size", type=int, default=16, help="samples per step over all ranks")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--storage", default="runs", help="folder or URL that all machines reach")
    parser.add_argument("--name", default="first", help="name of the run, by which it is resumed")
    options = parser.parse_args()
    if options.batch_size % options.ranks:
        parser.error(f"--batch-size {options.batch_size} is not a multiple of --ranks {options.ranks}")

    storage = options.storage if "://" in options.storage else os.path.abspath(options.storage)
    recipe = options.recipe if "://" in options.recipe else os.path.abspath(options.recipe)
    trainer = TorchTrainer(
        train,
        train_loop_config={
            "recipe": recipe,
            "batch_size": options.batch_size,
            "steps": options.steps,
            "every": options.every,
        },
        scaling_config=ray.train.ScalingConfig(num_workers=options.ranks),
        run_config=ray.train.RunConfig(
            name=options.name,
            storage_path=storage,
            failure_config=ray.train.FailureConfig(max_failures=3),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    found = trainer.fit().metrics
    print(
        f"step {found['step']}: loss {found['loss']:.4f}, {found['samples']} samples seen;"
        f" {found['ranks']} ranks, resumed at step {found['resumed_at']}"
    )


if __name__ == "__main__":
    main()
