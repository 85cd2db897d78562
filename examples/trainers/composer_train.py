"""Train with Composer; run it again to resume, also with another batch size.

python composer_train.py recipe.yaml --steps 100 --batch-size 8
torchrun --nproc-per-node 2 composer_train.py recipe.yaml --steps 200 --batch-size 4
"""

from __future__ import annotations

import os
from typing import Any

import common
import torch
from composer import ComposerModel, DataSpec, Trainer
from torch.utils.data import DataLoader

import feedmill as fm


class Model(ComposerModel):
    def __init__(self, log: common.Log) -> None:
        super().__init__()
        self.layer, self.losses, self.trainer = torch.nn.Linear(common.BUCKETS, 1), log, None

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.layer(batch["x"]).squeeze(1)

    def loss(self, outputs: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(outputs, batch["y"])
        self.losses(int(self.trainer.state.timestamp.batch) + 1, loss.item(), batch)
        return loss


def main() -> None:
    options = common.options(__doc__)
    os.environ.setdefault("NODE_RANK", os.environ.get("GROUP_RANK", "0"))  # Composer's launcher sets it, torchrun not
    torch.manual_seed(0)
    model = Model(common.Log(options))
    plan = fm.Recipe.load(options.recipe).plan()
    dataset = fm.Loader(plan, options.batch_size, transform=common.encode).as_iterable_dataset()
    batches = DataLoader(dataset, batch_size=None, num_workers=2)
    trainer = Trainer(
        model=model,
        train_dataloader=DataSpec(batches, get_num_samples_in_batch=lambda batch: len(batch["y"])),
        optimizers=torch.optim.Adam(model.parameters(), lr=1e-2),
        max_duration=f"{options.steps}ba",
        device="cpu",
        device_train_microbatch_size=options.batch_size,
        run_name="run",
        save_folder=str(options.folder),
        save_interval=f"{options.every}ba",
        autoresume=True,
        progress_bar=False,
        seed=0,
    )
    model.trainer = trainer
    trainer.fit()
    trainer.close()


if __name__ == "__main__":
    main()
