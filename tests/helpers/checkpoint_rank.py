"""One process of a group that saves or loads a distributed checkpoint: see `helpers.forked_ranks`."""

from __future__ import annotations

import json
import warnings
from itertools import islice
from typing import Any

import feedmill as fm
from helpers.fakes import FakePlan
from helpers.forked_ranks import fork_groups

LENGTH = 192


class Packer(fm.TaskEncoder):
    """Packs of samples that lie five apart; some wait for others."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        left = {sample["position"] % 5: [] for sample in samples}
        for sample in samples:
            left[sample["position"] % 5].append(sample)
        return list(left.values())

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return [sample["position"] for sample in samples]

    def batch(self, samples: list[Any]) -> Any:
        return {"position": samples}


def new_loader(packs: bool, rank: int | None = None, world_size: int | None = None) -> fm.Loader:
    options = {"task_encoder": Packer(), "buffer": 16} if packs else {}
    return fm.Loader(FakePlan(length=LENGTH), 3 if packs else 4, rank=rank, world_size=world_size, **options)


def positions(batch: Any) -> list[Any]:
    found = batch["position"]
    return found if isinstance(found, list) else found.tolist()


def main(options: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=options["meet"], rank=options["rank"], world_size=options["size"])
    loader = new_loader(options["packs"])
    weight = torch.full((4,), float(options["size"]))
    state = {"model": {"weight": weight}, "data": loader if options["bare"] else fm.Checkpoint(loader)}
    if options["load"]:
        dcp.load(state, checkpoint_id=options["folder"])
        seen = [positions(batch) for batch in loader]
    else:
        seen = [positions(batch) for batch in islice(loader, options["steps"])]
        dcp.save(state, checkpoint_id=options["folder"])
    ends: list[Any] = [None] * options["size"]
    dist.all_gather_object(ends, seen)
    if options["rank"] == 0:
        print(json.dumps(ends))
    dist.destroy_process_group()


if __name__ == "__main__":  # the tests need only what is above
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    fork_groups(main)
