"""Train Lightning's own demo, a transformer, with its `Trainer`; run it again to resume (`ckpt_path`), on any ranks.

    python lightning_fit.py recipe.yaml --steps 100 --batch-size 8
    torchrun --nproc-per-node 2 lightning_fit.py recipe.yaml --steps 200 --batch-size 4

The demo downloads WikiText and drops out at random: both are left out.
"""

from __future__ import annotations

import os
from typing import Any

import common
import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos import LightningTransformer

import feedmill as fm
from feedmill.loading.adapters.lightning import FeedmillDataModule

SEQ_LEN = 32


def pairs(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, int64[n, 32], as the demo's dataset does."""
    rows = torch.from_numpy(np.stack([sample["input_ids"] for sample in samples]))
    return rows[:, :-1], rows[:, 1:].contiguous()


class Demo(LightningTransformer):
    """The demo without what differs from run to run, and with a log."""

    def __init__(self, log: common.Log) -> None:
        super().__init__(vocab_size=256)
        self.losses = log
        for module in self.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            elif isinstance(module, torch.nn.MultiheadAttention):
                module.dropout = 0.0

    def prepare_data(self) -> None:
        """Download nothing."""

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = super().training_step(batch, index)
        self.losses(self.trainer.global_step + 1, loss.item(), {"id": common.checksums(batch[1].numpy())})
        return loss


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
    data = FeedmillDataModule(plan, options.batch_size, transform=common.tokens, collate=pairs, workers=1)
    trainer.fit(Demo(common.Log(options)), datamodule=data, ckpt_path=last if last.exists() else None)


if __name__ == "__main__":
    main()
