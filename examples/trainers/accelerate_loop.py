"""Train in a loop with Accelerate; run it again to resume, also with other ranks and another batch size.

    python accelerate_loop.py recipe.yaml --steps 100 --batch-size 8
    torchrun --nproc-per-node 2 accelerate_loop.py recipe.yaml --steps 200 --batch-size 4

The loader is not passed to `prepare`: it deals the samples to the ranks itself, and copies batches to the device.
"""

from __future__ import annotations

import shutil

import common
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

import feedmill as fm


class Steps:
    """Counts steps; a part of the checkpoint."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def main() -> None:
    options = common.options(__doc__)
    log = common.Log(options)
    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=options.accumulate)
    model = torch.nn.Linear(common.BUCKETS, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    plan = fm.Recipe.load(options.recipe).plan()
    loader = fm.Loader(
        plan, options.batch_size, transform=common.encode, output="torch", device=accelerator.device, workers=1
    )
    steps = Steps()
    accelerator.register_for_checkpointing(steps, fm.Checkpoint(loader))
    last = options.folder / "last"
    if last.exists():
        accelerator.load_state(str(last))

    for batch in loader:
        if steps.done >= options.steps:
            break
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
            log(steps.done + 1, loss.item(), batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        steps.done += 1
        if steps.done % options.every == 0:
            accelerator.save_state(str(options.folder / "new"))
            if accelerator.is_main_process:  # a run that is killed in the middle keeps a whole checkpoint
                shutil.rmtree(last, ignore_errors=True)
                (options.folder / "new").rename(last)
            accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
