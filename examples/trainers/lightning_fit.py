"""Train with PyTorch Lightning; run it again to resume, also with another number of ranks and another batch size.

python lightning_fit.py recipe.yaml --steps 100 --batch-size 8
torchrun --nproc-per-node 2 lightning_fit.py recipe.yaml --steps 200 --batch-size 4
"""

from __future__ import annotations

import os
from typing import Any

import common
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import feedmill as fm
from feedmill.loading.adapters.lightning import FeedmillDataModule


class Model(lightning.LightningModule):
    def __init__(self, log: common.Log) -> None:
        super().__init__()
        self.layer, self.losses = torch.nn.Linear(common.BUCKETS, 1), log

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.layer(batch["x"]).squeeze(1), batch["y"])
        self.losses(self.trainer.global_step + 1, loss.item(), batch)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    options = common.options(__doc__)
    lightning.seed_everything(0)
    last = options.folder / "last.ckpt"
    trainer = lightning.Trainer(
        max_steps=options.steps,
        accumulate_grad_batches=options.accumulate,
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        logger=False,
        callbacks=[ModelCheckpoint(options.folder, save_last=True, every_n_train_steps=options.every, save_top_k=0)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    plan = fm.Recipe.load(options.recipe).plan()
    data = FeedmillDataModule(plan, options.batch_size, transform=common.encode, workers=1)
    trainer.fit(Model(common.Log(options)), datamodule=data, ckpt_path=last if last.exists() else None)


if __name__ == "__main__":
    main()
