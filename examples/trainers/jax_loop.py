"""Train with JAX and Orbax; run it again to resume, also with another number of processes and another batch size.

    python jax_loop.py recipe.yaml --steps 100 --batch-size 8
    torchrun --nproc-per-node 2 jax_loop.py recipe.yaml --steps 200 --batch-size 4

Any launcher works that sets RANK, WORLD_SIZE and MASTER_ADDR.
"""

from __future__ import annotations

import os
from typing import Any

import common
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import feedmill as fm
from feedmill.loading.adapters.jax import GlobalBatches


def loss_of(model: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    return jnp.mean((batch["x"] @ model["weight"] + model["bias"] - batch["y"]) ** 2)


@jax.jit
def gradients(model: dict[str, Any], batch: dict[str, Any]) -> Any:
    return jax.value_and_grad(loss_of)(model, batch)


def main() -> None:
    options = common.options(__doc__)
    log = common.Log(options)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        address = f"{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT']) + 1}"
        jax.distributed.initialize(address, ranks, int(os.environ["RANK"]))
    mesh = Mesh(np.array(jax.devices()), ("data",))
    model: Any = {"weight": jnp.zeros(common.BUCKETS), "bias": jnp.zeros(())}
    model = jax.device_put(model, NamedSharding(mesh, PartitionSpec()))
    plan = fm.Recipe.load(options.recipe).plan()
    loader = fm.Loader(plan, options.batch_size, transform=common.encode, workers=1)
    batches = GlobalBatches(loader, NamedSharding(mesh, PartitionSpec("data")))

    with ocp.CheckpointManager(options.folder.absolute()) as manager:
        step = manager.latest_step() or 0
        if step:
            parts = {"model": ocp.args.StandardRestore(model), "data": ocp.args.JsonRestore()}
            saved = manager.restore(step, args=ocp.args.Composite(**parts))
            model = saved["model"]
            batches.set_state(saved["data"]["feedmill"].encode())
        while step < options.steps:
            total = jax.tree.map(jnp.zeros_like, model)
            for _ in range(options.accumulate):
                batch = next(batches)
                mine = [np.asarray(shard.data) for shard in batch["id"].addressable_shards]
                loss, found = gradients(model, {"x": batch["x"], "y": batch["y"]})
                total = jax.tree.map(jnp.add, total, found)
                log(step + 1, float(loss), {"id": np.concatenate(mine)})
            model = jax.tree.map(lambda value, slope: value - 1e-3 * slope / options.accumulate, model, total)
            step += 1
            if step % options.every == 0:
                parts = {
                    "model": ocp.args.StandardSave(model),
                    "data": ocp.args.JsonSave({"feedmill": batches.get_state().decode()}),
                }
                manager.save(step, args=ocp.args.Composite(**parts))
                manager.wait_until_finished()


if __name__ == "__main__":
    main()
