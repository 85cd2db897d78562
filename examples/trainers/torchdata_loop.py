"""Train with torchdata's StatefulDataLoader; run it again to resume, also with other ranks and another batch size.

python torchdata_loop.py recipe.yaml --steps 100 --batch-size 8
torchrun --nproc-per-node 2 torchdata_loop.py recipe.yaml --steps 200 --batch-size 4
"""

from __future__ import annotations

import os

import common
import torch
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader

import feedmill as fm


def main() -> None:
    options = common.options(__doc__)
    log = common.Log(options)
    torch.manual_seed(0)
    model = torch.nn.Linear(common.BUCKETS, 1)
    parallel: torch.nn.Module = model
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
        parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    plan = fm.Recipe.load(options.recipe).plan()
    loader = fm.Loader(plan, options.batch_size, transform=common.encode)
    dataset = loader.as_iterable_dataset()

    step, last = 0, options.folder / "last.pt"
    if last.exists():
        saved = torch.load(last, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(saved["data"])  # before the DataLoader is made: workers and batches may change
        step = saved["step"]
    batches = StatefulDataLoader(dataset, batch_size=None, num_workers=2)

    for batch in batches:
        if step >= options.steps:
            break
        loss = torch.nn.functional.mse_loss(parallel(batch["x"]).squeeze(1), batch["y"])
        log(step + 1, loss.item(), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % options.every == 0 and loader.ranks.rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            options.folder.mkdir(parents=True, exist_ok=True)
            torch.save({**state, "data": batches.state_dict()}, options.folder / "new.pt")
            os.replace(options.folder / "new.pt", last)


if __name__ == "__main__":
    main()
