"""Train with the samplers of Megatron-LM; run it again to resume, also with other ranks and another batch size.

    python megatron_loop.py tokens.yaml --steps 100 --batch-size 8
    torchrun --nproc-per-node 2 megatron_loop.py tokens.yaml --steps 200 --batch-size 4

In Megatron-LM itself, `pretrain(datasets_provider(train, valid), ...)` does what this loop does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import common
import torch
from token_model import TokenModel, loss_of
from torch.nn.parallel import DistributedDataParallel

import feedmill as fm
from feedmill.loading.adapters.megatron import datasets_provider


def sampler(samples: int, consumed: int, size: int, rank: int, ranks: int) -> Iterator[list[int]]:
    """Yield the indices of each batch of a rank, as Megatron-LM's `MegatronPretrainingSampler` does."""
    for first in range(consumed, samples - size * ranks + 1, size * ranks):
        yield list(range(first + rank * size, first + (rank + 1) * size))


def main() -> None:
    options = common.options(__doc__)
    log = common.Log(options)
    torch.manual_seed(0)
    model = TokenModel()
    parallel: torch.nn.Module = model
    rank, ranks = 0, 1
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step, consumed, last = 0, 0, options.folder / "last.pt"
    if last.exists():
        saved = torch.load(last, weights_only=True)
        model.load_state_dict(saved["model"])
        step, consumed = saved["step"], saved["consumed_train_samples"]

    global_batch = options.batch_size * ranks * options.accumulate
    provide = datasets_provider(fm.Recipe.load(options.recipe).plan())
    dataset, _, _ = provide([consumed + (options.steps - step) * global_batch, 0, 0])
    assert dataset is not None
    order = sampler(len(dataset), consumed, options.batch_size, rank, ranks)
    batches = iter(torch.utils.data.DataLoader(dataset, batch_sampler=list(order), num_workers=2))
    while step < options.steps:
        for _ in range(options.accumulate):
            batch = next(batches)
            labels = torch.where(batch["loss_mask"] > 0, batch["labels"], -100)
            loss = loss_of(parallel(batch["tokens"], batch["position_ids"]), labels)
            log(step + 1, loss.item(), {"id": common.checksums(batch["tokens"].numpy())})
            (loss / options.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        step, consumed = step + 1, consumed + global_batch
        if step % options.every == 0 and rank == 0:
            options.folder.mkdir(parents=True, exist_ok=True)
            state = {"model": model.state_dict(), "step": step, "consumed_train_samples": consumed}
            torch.save(state, options.folder / "new.pt")
            os.replace(options.folder / "new.pt", last)


if __name__ == "__main__":
    main()
