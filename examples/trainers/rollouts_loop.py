"""Train by policy gradients on rollouts that the policy adds; run it again to resume, also with other ranks.

    python rollouts_loop.py recipe.yaml --steps 100 --batch-size 8
    torchrun --nproc-per-node 2 rollouts_loop.py recipe.yaml --steps 200 --batch-size 4

The first rank answers the prompts of a step, and names its answers by the step: a run that was killed finds them there,
and a step that it repeats has the same groups.
"""

from __future__ import annotations

import os
from typing import Any

import common
import numpy as np
import torch
import torch.distributed as dist
from token_model import TokenModel

import feedmill as fm

ANSWERS, PROMPT, LENGTH = 2, 4, 12


def sample(model: TokenModel, texts: list[str], step: int) -> list[dict[str, Any]]:
    """Return answers of the policy to the beginnings of texts; a reward is the number of letters."""
    rows, generator = [], torch.Generator().manual_seed(step)
    for number, text in enumerate(texts):
        for _ in range(ANSWERS):
            tokens = list(text.encode()[:PROMPT])
            while len(tokens) < LENGTH:
                places = torch.arange(len(tokens))
                with torch.no_grad():
                    shares = model(torch.tensor(tokens), places)[-1].softmax(-1)
                tokens.append(int(torch.multinomial(shares, 1, generator=generator)))
            answer = {"token_ids": tokens, "loss_mask": [at >= PROMPT for at in range(LENGTH)]}
            reward = sum(map(str.isalpha, map(chr, tokens[PROMPT:])))
            rows.append({"group": f"{step}.{number}", "version": step, "reward": reward, **answer})
    return rows


def loss_of(model: TokenModel, batch: dict[str, Any]) -> torch.Tensor:
    """Return the mean loss of answers, each weighted by its advantage over its group (REINFORCE, Williams 1992)."""
    tokens, mask = torch.from_numpy(batch["input_ids"]), torch.from_numpy(batch["loss_mask"])[:, 1:]
    found = model(tokens, torch.arange(tokens.shape[1]).expand_as(tokens)).log_softmax(-1)[:, :-1]
    found = found.gather(2, tokens[:, 1:, None])[:, :, 0]
    rewards = torch.from_numpy(batch["reward"]).reshape(-1, ANSWERS)
    advantages = (rewards - rewards.mean(1, keepdim=True)).flatten().float()
    return -(advantages[:, None] * found * mask).sum(1).mean()


def main() -> None:
    options = common.options(__doc__)
    log = common.Log(options)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = TokenModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    groups = options.batch_size * options.accumulate * ranks // ANSWERS
    prompts = fm.Recipe.load(options.recipe).plan()
    rollouts = fm.loading.Rollouts(str(options.folder / "rollouts"))
    drawn = {"path": str(rollouts.path), "groups": groups, "max_age": 0}
    loader = fm.loading.RolloutLoader({"rollouts": drawn}, rank=rank, world_size=ranks, steps=options.steps)
    last = options.folder / "last.pt"
    if last.exists():
        saved = torch.load(last, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    batches = iter(loader)
    for step in range(loader.step, options.steps):
        if rank == 0:
            texts = [found["json"]["text"] for found in prompts.read(np.arange(groups) + step * groups)]
            rollouts.append(sample(model, texts, step), id=f"step-{step}")
        batch = next(batches)  # which waits for them
        loss = loss_of(model, batch)
        log(step + 1, loss.item(), {"id": common.checksums(batch["input_ids"])})
        optimizer.zero_grad()
        loss.backward()
        if ranks > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= ranks
        optimizer.step()
        if rank == 0 and (step + 1) % options.every == 0:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save(parts, last.with_suffix(".new"))
            last.with_suffix(".new").replace(last)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
