"""Train with TRL's own script for supervised fine-tuning; run it again to resume, also with other ranks.

python trl_sft.py recipe.yaml --steps 100 --batch-size 8
torchrun --nproc-per-node 2 trl_sft.py recipe.yaml --steps 200 --batch-size 4
"""

from __future__ import annotations

from typing import Any

import common
import numpy as np
import torch
import trl_scripts

import feedmill as fm

LENGTH = 32


def encode(sample: fm.Sample, rng: np.random.Generator) -> dict[str, Any]:
    """Return the bytes of a random piece of the text, repeated to a length, as tokens."""
    return {"input_ids": common.piece_of(sample, rng, LENGTH), "id": sample["json"]["id"]}


def collate(trainer: Any, samples: list[Any]) -> dict[str, Any]:
    tokens = torch.from_numpy(np.stack([sample["input_ids"] for sample in samples]))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


if __name__ == "__main__":
    trl_scripts.run("sft", {"text": "a"}, encode, collate)
