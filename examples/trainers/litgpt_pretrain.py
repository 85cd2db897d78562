"""Pretrain with LitGPT's own `litgpt pretrain`, whose `data` is a recipe; run it again to resume (`resume="auto"`).

    python litgpt_pretrain.py tokens.yaml --steps 100 --batch-size 8
    torchrun --nproc-per-node 2 litgpt_pretrain.py tokens.yaml --steps 200 --batch-size 4

FSDP is not for CPU: `Replicated` stands where LitGPT makes its strategy. Its schedule counts batches, so a resume with
another number of batches per step has the same samples and another learning rate.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import common
import numpy as np
import torch
from lightning.fabric.strategies import DDPStrategy
from litgpt import pretrain
from litgpt.args import EvalArgs, TrainArgs
from litgpt.config import Config
from litgpt.data import DataModule
from litgpt.utils import find_resume_path
from torch.utils.data import DataLoader

import feedmill as fm

SEQ_LEN = 32


def stack(rows: list[Any]) -> torch.Tensor:
    return torch.from_numpy(np.stack([row["input_ids"] for row in rows]).astype(np.int64))


class Batches(DataLoader[Any]):
    """The batches of a loader, and its state on all ranks, in a class that Fabric takes."""

    def __init__(self, loader: fm.Loader[Any]) -> None:
        super().__init__(loader.as_iterable_dataset(), batch_size=None)
        self.loader, self.checkpoint = loader, fm.Checkpoint(loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, str]:
        return self.checkpoint.state_dict()

    def load_state_dict(self, state: dict[str, str]) -> None:
        self.checkpoint.load_state_dict(state)


class Recipe(DataModule):
    """The rows of a recipe, each with one token more than the model's inputs. Its loader's state is in checkpoints."""

    def __init__(self, recipe: str) -> None:
        super().__init__()
        self.recipe, self.batch_size = recipe, 1

    def connect(self, tokenizer: Any = None, batch_size: int = 1, max_seq_length: int | None = None, **_: Any) -> None:
        self.batch_size = batch_size

    def train_dataloader(self) -> Batches:
        return Batches(fm.Loader(fm.Recipe.load(self.recipe).plan(), self.batch_size, collate=stack))

    val_dataloader = train_dataloader


class Replicated:
    """Makes the strategy for several ranks. It is no subclass of it: LitGPT leaves weights of `FSDPStrategy` empty."""

    def __new__(cls, **_: Any) -> Any:
        return DDPStrategy(process_group_backend="gloo")


def main() -> None:
    options = common.options(__doc__)
    sys.argv = ["litgpt", "pretrain", "pythia-14m"]  # which LitGPT reads again for what it saves
    log, loss_of = common.Log(options), pretrain.chunked_cross_entropy
    last = find_resume_path("auto", options.folder)
    first = 0 if last is None else int(last.parent.name.removeprefix("step-"))
    count = 0

    def noted(logits: torch.Tensor, targets: torch.Tensor, **more: Any) -> torch.Tensor:
        nonlocal count
        loss = loss_of(logits, targets, **more)
        if logits.requires_grad and not logits.is_meta:  # in no validation, nor when operations are counted
            log(first + count // options.accumulate + 1, loss.item(), {"id": common.checksums(targets.numpy())})
            count += 1
        return loss

    pretrain.chunked_cross_entropy, pretrain.FSDPStrategy = noted, Replicated
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    batch = options.batch_size * options.accumulate * ranks
    pretrain.setup(
        "pythia-14m",
        Config(block_size=SEQ_LEN, vocab_size=256, padded_vocab_size=256, n_layer=2, n_head=2, n_embd=32),
        out_dir=options.folder,
        precision="32-true",
        resume="auto",
        data=Recipe(options.recipe),  # the changed line
        train=TrainArgs(
            save_interval=options.every,
            log_interval=1,
            global_batch_size=batch,
            micro_batch_size=options.batch_size,
            max_tokens=options.steps * batch * SEQ_LEN,
            max_seq_length=SEQ_LEN,
            max_norm=1.0,
            lr_warmup_steps=0,
        ),
        eval=EvalArgs(interval=1_000_000, max_iters=1),
        devices=ranks,
        logger_name="csv",
    )


if __name__ == "__main__":
    main()
