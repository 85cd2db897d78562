"""Train a language model with VLA Foundry's own `main`, whose batches are a recipe; run it again to resume.

    python vla_foundry_train.py tokens.yaml --steps 100 --batch-size 8
    torchrun --nproc-per-node 2 vla_foundry_train.py tokens.yaml --steps 200 --batch-size 4

VLA Foundry saves at the end of each part of a training: parts have `--every` steps. A resume names the checkpoint
(`--model.resume_from_checkpoint`). Its DistributedDataParallel names a GPU: `replicated` stands in its place.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import common
import torch
from vla_foundry import main as vla_main

import feedmill as fm
from feedmill.loading.adapters.vla_foundry import feed

SEQ_LEN = 32
MODEL = {"hidden_dim": 32, "n_layers": 2, "n_heads": 2, "max_seq_len": SEQ_LEN, "vocab_size": 256}


def replicated(model: Any, device: Any, config: Any) -> Any:
    return torch.nn.parallel.DistributedDataParallel(model.to(device, dtype=torch.float32))


def main() -> None:
    options = common.options(__doc__)
    feed(vla_main, fm.Recipe.load(options.recipe).plan())  # the changed line
    vla_main.wrap_fsdp_ddp = replicated
    saved = sorted(options.folder.glob("run/checkpoints/optimizer_*.pt"), key=number)  # written after the model
    last = number(saved[-1]) if saved else 0
    note(common.Log(options), options, last * options.every)
    sys.argv[1:] = arguments(options)
    if last:
        sys.argv.append(f"--model.resume_from_checkpoint={saved[-1].with_name(f'checkpoint_{last}.pt')}")
        sys.argv.append("--model.resume_weights_only=false")
    vla_main.main()


def number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def note(log: common.Log, options: Any, first: int) -> None:
    """Log the samples and the loss of each batch."""
    make, count = vla_main.get_loss_function, 0

    def made(*args: Any, **more: Any) -> Any:
        loss_of = make(*args, **more)

        def noted(outputs: Any, targets: Any, **given: Any) -> Any:
            nonlocal count
            loss = loss_of(outputs, targets, **given)
            log(first + count // options.accumulate + 1, loss.item(), {"id": common.checksums(targets.numpy())})
            count += 1
            return loss

        return noted

    vla_main.get_loss_function = made


def arguments(options: Any) -> list[str]:
    """Return the arguments of `vla_foundry.main`: a tiny transformer on CPU."""
    batch = options.batch_size * options.accumulate * int(os.environ.get("WORLD_SIZE", "1"))
    given = {
        "name": "run",
        "save_path": options.folder,
        "wandb": False,
        "db_logging": False,
        "total_train_samples": options.steps * batch,
        "num_checkpoints": options.steps // options.every,
        "data.type": "text",
        "data.dataset_manifest": f"['{options.recipe}']",
        "data.dataset_modality": "['text']",
        "data.dataset_weighting": "[1.0]",
        "data.seq_len": SEQ_LEN,
        "data.num_workers": 1,
        "distributed.dist_backend": "gloo",
        "hparams.precision": "fp32",
        "hparams.global_batch_size": batch,
        "hparams.per_gpu_batch_size": options.batch_size,
        "hparams.warmup": 0,
        "hparams.lr": 1e-3,
        "model.type": "transformer",
        **{f"model.{name}": value for name, value in MODEL.items()},
    }
    return [f"--{name}={value}" for name, value in given.items()]


if __name__ == "__main__":
    main()
