"""One process of a group under torch.distributed (gloo), for tests: see `helpers.forked_ranks`."""

from __future__ import annotations

import json
import time
from typing import Any

import torch
import torch.distributed as dist

import feedmill as fm
from helpers.fakes import FakePlan
from helpers.forked_ranks import fork_groups


def main(options: dict[str, Any]) -> None:
    dist.init_process_group("gloo", init_method=options["meet"], rank=options["rank"], world_size=options["size"])
    plan = FakePlan(length=options["length"], fails_at=frozenset(options["bad"]))
    settings = {"remainder": options["remainder"], "on_error": "substitute", "deal": "contiguous"}
    loader = fm.Loader(plan, 4, workers=2, output="torch", **settings)
    seen: list[list[int]] = []
    for epoch in range(2):
        fresh = {**loader.state_dict(), "position": 0}
        loader.load_state_dict(fresh)
        for batch in loader:
            if options["rank"] == options["size"] - 1:
                time.sleep(0.01)
            mask = batch.get("__mask__", torch.ones(len(batch["position"]), dtype=torch.bool))
            total = mask.sum()
            dist.all_reduce(total)  # where a rank had ended before the others, this would wait for ever
            assert total.item() <= 4 * options["size"]
            if epoch == 1:
                seen.append(batch["position"][mask].tolist())
    ends: list[Any] = [None] * options["size"]
    dist.all_gather_object(ends, (seen, loader.state_dict(), loader.failures))
    if options["rank"] == 0:
        print(json.dumps(ends))
    dist.destroy_process_group()


if __name__ == "__main__":
    fork_groups(main)
