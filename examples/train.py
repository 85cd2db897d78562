"""A complete training program: a recipe, batches as tensors, a checkpoint of model and position, and resuming.

    python examples/train.py recipe.yaml --steps 100 --checkpoint run.pt

Run it again with more steps to resume, also with another batch size.
Every sample must have a part `json` with a text field "text", like the documents of `make demo`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import feedmill as fm

BUCKETS = 256


def encode(sample: fm.Sample, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the counts of byte pairs in a random piece of the text, and the target: the length of the text."""
    text = sample["json"]["text"].encode()
    begin = int(rng.integers(max(1, len(text) - 64)))
    piece = np.frombuffer(text[begin : begin + 64].ljust(2), np.uint8).astype(np.int64)
    counts = np.bincount((piece[1:] * 31 + piece[:-1]) % BUCKETS, minlength=BUCKETS)
    return {"x": counts.astype(np.float32), "y": np.float32(np.log1p(len(text)))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--steps", type=int, default=100, help="total number of steps, including those of earlier runs")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path, default=Path("run.pt"))
    options = parser.parse_args()

    torch.manual_seed(0)
    model = torch.nn.Linear(BUCKETS, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    plan = fm.Recipe.load(options.recipe).plan()
    loader = fm.Loader(plan, options.batch_size, workers=options.workers, transform=encode, output="torch")

    step = 0
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(json.loads(saved["data"]))
        step = saved["step"]
        print(f"resumed at step {step}, sample {loader.position}")

    for batch in loader:
        if step >= options.steps:
            break
        loss = torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0 or step == options.steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save({**state, "data": json.dumps(loader.state_dict())}, options.checkpoint)
            print(f"step {step}: loss {loss.item():.4f}, {loader.position} samples seen")


if __name__ == "__main__":
    main()
