"""Train with TRL's own script for preferences (DPO); run it again to resume, also with other ranks.

python trl_dpo.py recipe.yaml --steps 100 --batch-size 8
torchrun --nproc-per-node 2 trl_dpo.py recipe.yaml --steps 200 --batch-size 4
"""

from __future__ import annotations

from typing import Any

import numpy as np
import trl_scripts

import feedmill as fm


def encode(sample: fm.Sample, rng: np.random.Generator) -> dict[str, Any]:
    """Return a prompt, the text that follows as the chosen answer, and a random other one, as byte tokens."""
    text = list(sample["json"]["text"].encode()[:48])
    other = rng.integers(97, 123, 24).tolist()
    return {"prompt_ids": text[:8], "chosen_ids": text[8:], "rejected_ids": other, "id": sample["json"]["id"]}


def collate(trainer: Any, samples: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = trainer.data_collator(samples)
    return found


if __name__ == "__main__":
    trl_scripts.run("dpo", {"prompt": "a", "chosen": "b", "rejected": "c"}, encode, collate)
