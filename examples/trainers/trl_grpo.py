"""Train with TRL's own script for GRPO, whose prompts are a recipe; run it again to resume, also with other ranks.

    python trl_grpo.py recipe.yaml --steps 100 --batch-size 8
    torchrun --nproc-per-node 2 trl_grpo.py recipe.yaml --steps 200 --batch-size 4

The batch size counts completions; each prompt has two. They are sampled with a seed of each prompt, so that runs can be
compared: TRL's own sampling depends on the number of ranks.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
import trl_scripts

import feedmill as fm

GENERATIONS, LENGTH = 2, 8


def encode(sample: fm.Sample, rng: np.random.Generator) -> dict[str, Any]:
    """Return a piece of the text as a prompt."""
    text = sample["json"]["text"].ljust(12)
    begin = int(rng.integers(len(text) - 11))
    return {"prompt": text[begin : begin + 12]}


def collate(trainer: Any, samples: list[Any]) -> list[Any]:
    trainer.rollout_func = rollout
    return [dict(sample) for sample in samples for _ in range(GENERATIONS)]


def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Return completions that the model samples."""
    given = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    made: dict[str, Any] = {"prompt_ids": given, "completion_ids": [], "logprobs": []}
    for number, (prompt, tokens) in enumerate(zip(prompts, given, strict=True)):
        seed = zlib.crc32(f"{prompt}{number % GENERATIONS}".encode())
        generator, row, logprobs = torch.Generator().manual_seed(seed), list(tokens), []
        for _ in range(LENGTH):
            with torch.no_grad():
                found = trainer.model(torch.tensor([row])).logits[0, -1].log_softmax(-1)
            row.append(int(torch.multinomial(found.exp(), 1, generator=generator)))
            logprobs.append(float(found[row[-1]]))
        made["completion_ids"].append(row[len(tokens) :])
        made["logprobs"].append(logprobs)
    return made


def letters(completions: list[str], **_: Any) -> list[float]:
    """Return the number of letters of each completion, which is its reward."""
    return [float(sum(map(str.isalpha, text))) for text in completions]


def more(options: Any) -> dict[str, Any]:
    size = {"per_device_train_batch_size": options.batch_size, "num_generations": GENERATIONS}
    return {**size, "max_completion_length": LENGTH, "beta": 2.0, "reward_funcs": "trl_grpo.letters"}


if __name__ == "__main__":
    trl_scripts.run("grpo", {"prompt": "a"}, encode, collate, more)
