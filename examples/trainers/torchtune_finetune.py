"""Fine-tune with torchtune's own recipes, one process or several; run it again to resume, also with other ranks.

    python torchtune_finetune.py recipe.yaml --steps 100 --batch-size 8
    torchrun --nproc-per-node 2 torchtune_finetune.py recipe.yaml --steps 200 --batch-size 4

An epoch of torchtune, after which it saves, is `--every` steps. Its recipe for several processes counts and frees
the memory of GPUs at its start, which is left out.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from torchtune import training
from torchtune.models.llama3 import llama3
from torchtune.modules.loss import CEWithChunkedOutputLoss

import feedmill as fm
from feedmill.loading.adapters.torchtune import feed

LENGTH = 32


def model() -> torch.nn.Module:
    """Return a tiny Llama."""
    sizes: dict[str, Any] = {"vocab_size": 256, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "embed_dim": 32}
    return llama3(**sizes, max_seq_len=LENGTH)


def encode(sample: fm.Sample, rng: np.random.Generator) -> dict[str, Any]:
    """Return the bytes of a random piece of the text, repeated to a length, as tokens."""
    tokens = common.piece_of(sample, rng, LENGTH)
    return {"tokens": tokens, "labels": tokens}


def main() -> None:
    options = common.options(__doc__)
    kind = "distributed" if "RANK" in os.environ else "single_device"
    recipes = Path(importlib.util.find_spec("torchtune").origin).parents[1] / "recipes"  # type: ignore[union-attr,arg-type]
    log, loss_of = common.Log(options), CEWithChunkedOutputLoss.forward

    def change(recipe: Any) -> None:
        def noted(self: Any, logits: Any, labels: torch.Tensor) -> torch.Tensor:
            loss = loss_of(self, logits, labels)
            log(recipe.global_step + 1, loss.item(), {"id": common.checksums(labels.numpy())})
            return loss

        CEWithChunkedOutputLoss.forward = noted
        plan = fm.Recipe.load(options.recipe).plan()
        feed(recipe, fm.Loader(plan, options.batch_size, transform=encode, output="torch"))  # the changed line

    for name in ("get_memory_stats", "log_memory_stats", "cleanup_before_training"):
        setattr(training, name, lambda *given, **more: {})
    saved, first = options.folder / "recipe_state" / "recipe_state.pt", "model.pt"
    if saved.exists():
        first = f"epoch_{torch.load(saved, weights_only=True)['epochs_run'] - 1}/model-00001-of-00001.bin"
    start = Path(tempfile.mkdtemp(prefix="torchtune-"))
    torch.manual_seed(0)
    torch.save(model().state_dict(), start / "model.pt")
    given = {
        "model": "torchtune_finetune.model",
        "tokenizer": "types.SimpleNamespace",
        "tokenizer.pad_id": 0,
        "checkpointer": "torchtune.training.FullModelTorchTuneCheckpointer",
        "checkpointer.checkpoint_dir": start,
        "checkpointer.checkpoint_files": f"[{first}]",
        "optimizer": "torch.optim.AdamW",
        "optimizer.lr": 1e-3,
        "output_dir": options.folder,
        "resume_from_checkpoint": saved.exists(),
        "device": "cpu",
        "dtype": "fp32",
        "seed": 0,
        "batch_size": options.batch_size,
        "gradient_accumulation_steps": options.accumulate,
        "optimizer_in_bwd": False,
        "enable_activation_checkpointing": False,
        "enable_activation_offloading": False,
        "max_steps_per_epoch": options.every,
        "epochs": options.steps // options.every,
    }
    config = recipes / "configs" / "llama3_2" / f"1B_full{'' if kind == 'distributed' else '_single_device'}.yaml"
    sys.argv[1:] = ["--config", str(config), *(f"{name}={value}" for name, value in given.items())]
    source = (recipes / f"full_finetune_{kind}.py").read_text()
    exec(
        common.with_line(source, "    recipe.setup(", "    change(recipe)\n"),
        {"__name__": "__main__", "change": change},
    )


if __name__ == "__main__":
    main()
