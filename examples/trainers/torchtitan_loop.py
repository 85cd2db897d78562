"""Train with torchtitan's data loader interface and distributed checkpoints; run it again to resume on other ranks.

    python torchtitan_loop.py tokens.yaml --steps 100 --batch-size 8
    torchrun --nproc-per-node 2 torchtitan_loop.py tokens.yaml --steps 200 --batch-size 4

In torchtitan itself, a configuration names the loader, and its trainer does what this loop does:

    config.dataloader = FeedmillDataLoader.Config(recipe="tokens.yaml")
"""

from __future__ import annotations

import os
import warnings

import common
import torch
import torch.distributed.checkpoint as dcp
from token_model import TokenModel, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from feedmill.loading.adapters.torchtitan import FeedmillDataLoader

SEQ_LEN = 32


def main() -> None:
    options = common.options(__doc__)
    log = common.Log(options)
    warnings.simplefilter("ignore")  # a checkpoint of one process
    torch.manual_seed(0)
    mesh = None
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("dp",))
    config = FeedmillDataLoader.Config(recipe=options.recipe)
    data = config.build(
        dp_rank=0 if mesh is None else mesh.get_local_rank("dp"),
        dp_world_size=1 if mesh is None else mesh.size(0),
        tokenizer=None,
        seq_len=SEQ_LEN,
        local_batch_size=options.batch_size,
    )
    model = TokenModel()
    parallel = model if mesh is None else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    last = options.folder / "last"
    state = {"model": model.state_dict(), "data": data, "step": torch.tensor(0)}
    if last.exists():
        dcp.load(state, checkpoint_id=last)
        model.load_state_dict(state["model"])
    step, batches = int(state["step"]), iter(data)
    while step < options.steps:
        for _ in range(options.accumulate):
            inputs, labels = next(batches)
            loss = loss_of(parallel(inputs["input"], inputs["positions"]), labels)
            log(step + 1, loss.item(), {"id": common.checksums(inputs["input"].numpy())})
            (loss / options.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % options.every == 0:
            dcp.save({"model": model.state_dict(), "data": data, "step": torch.tensor(step)}, checkpoint_id=last)


if __name__ == "__main__":
    main()
