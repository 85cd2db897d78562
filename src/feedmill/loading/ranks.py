"""Find the data-parallel rank of this process: from torch.distributed, JAX, the launcher's environment, or a layout.

A `Loader` without `rank` and `world_size` uses `find_ranks`. Use `data_parallel` or `from_mesh` if several processes
must load the same data, as in tensor-parallel groups.

No network access is needed, and neither torch nor JAX is imported: a library that was not imported is not initialized.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feedmill.errors import ConfigError
from feedmill.jobs.policy import whole

# Each launcher's variables for the process's number and for the number of processes. Slurm's are those of a job step:
# a batch script itself has SLURM_PROCID too, and runs once.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
)
AXES = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True, slots=True)
class Ranks:
    """A data-parallel rank: `rank` of `world_size`; `source` names where the numbers come from.

    Attributes:
        leader: whether this process is the first of those that load the same data. If the others receive their
            batches from it (as in Megatron's tensor-parallel groups), only leaders need a loader.
        group: numbers of all processes that load the same data, in ascending order.
    """

    rank: int
    world_size: int
    source: str = "given"
    leader: bool = True
    group: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} of {self.world_size} ranks is invalid ({self.source})",
                fix="Give a rank from 0 to world_size - 1.",
            )


def find_ranks(environment: Mapping[str, str] | None = None) -> Ranks:
    """Return rank and world size from an initialized torch.distributed or JAX, else from the launcher, else 0 of 1.

    Every process gets different data. If several processes must get the same data (tensor, context and pipeline
    parallelism), use `data_parallel` or `from_mesh`.

    Raises:
        ConfigError: the launcher's variables contradict each other or are not numbers.
    """
    initialized = _torch() or _jax()
    if initialized is not None:
        return initialized
    variables = os.environ if environment is None else environment
    for launcher, rank, size in _LAUNCHERS:
        if rank in variables and size in variables:
            return Ranks(_int_variable(variables, rank), _int_variable(variables, size), f"{launcher}: {rank}, {size}")
    return Ranks(0, 1, "a single process")


def data_parallel(
    tensor: int = 1, context: int = 1, pipeline: int = 1, *, order: str = "tp-cp-dp-pp", ranks: Ranks | None = None
) -> Ranks:
    """Return the data-parallel rank of this process in a layout of tensor, context and pipeline parallel groups.

    Args:
        tensor, context, pipeline: sizes of the groups; the remaining factor of the world size is data parallel.
        order: the axes from the innermost (adjacent processes) to the outermost, as in Megatron-LM.
        ranks: rank of this process among all processes; default: `find_ranks()`.

    Raises:
        ConfigError: the groups do not divide the processes, or `order` does not name each axis once.

    >>> [data_parallel(tensor=2, ranks=Ranks(r, 8)).rank for r in range(8)]
    [0, 0, 1, 1, 2, 2, 3, 3]
    """
    every = find_ranks() if ranks is None else ranks
    axes = order.split("-")
    if sorted(axes) != sorted(AXES):
        raise ConfigError(f"order={order!r} does not name each of {', '.join(AXES)} once", fix="Use 'tp-cp-dp-pp'.")
    model = tensor * context * pipeline
    if min(tensor, context, pipeline) < 1 or every.world_size % model:
        raise ConfigError(
            f"{every.world_size} processes do not divide into groups of {tensor} x {context} x {pipeline}",
            fix="Give sizes whose product divides the number of processes.",
        )
    sizes = {"tp": tensor, "cp": context, "pp": pipeline, "dp": every.world_size // model}

    def coordinates(process: int) -> dict[str, int]:
        out = {}
        for axis in axes:
            process, out[axis] = divmod(process, sizes[axis])
        return out

    mine = coordinates(every.rank)
    group = tuple(process for process in range(every.world_size) if coordinates(process)["dp"] == mine["dp"])
    return Ranks(mine["dp"], sizes["dp"], f"{order} of {every.source}", every.rank == group[0], group)


def from_mesh(mesh: Any, *names: str) -> Ranks:
    """Return the data-parallel rank in a torch `DeviceMesh`: its coordinates along the named axes, outermost first.

    Args:
        mesh: the mesh, with named axes.
        names: data-parallel axes, for example ``"dp"``, or ``"dp_replicate", "dp_shard"``.

    Raises:
        ConfigError: the mesh has no such axis, or this process is not in it.
    """
    known = tuple(mesh.mesh_dim_names or ())
    coordinate = mesh.get_coordinate()
    unknown = [name for name in names if name not in known]
    if unknown or not names or coordinate is None:
        raise ConfigError(
            "this process is not in the mesh" if coordinate is None else f"the mesh has no axis {unknown or names}",
            fix=f"Use axes of the mesh: {', '.join(known) or 'they have no names'}.",
        )
    dims = [known.index(name) for name in names]
    rank, size = 0, 1
    for dim in dims:
        rank, size = rank * mesh.size(dim) + int(coordinate[dim]), size * mesh.size(dim)
    leader = all(int(at) == 0 for dim, at in enumerate(coordinate) if dim not in dims)
    return Ranks(rank, size, f"mesh axes {', '.join(names)}", leader)


def given_or_found(rank: int | None, world_size: int | None) -> Ranks:
    """Return the given rank and world size, or `find_ranks()` without both. Raises ConfigError if only one is given."""
    if (rank is None) != (world_size is None):
        raise ConfigError(
            f"rank={rank} and world_size={world_size}: one of them is missing",
            fix="Give both, or neither to find them.",
        )
    if rank is None or world_size is None:
        return find_ranks()
    return Ranks(whole("rank", rank), whole("world_size", world_size))


def _torch() -> Ranks | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Ranks(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _jax() -> Ranks | None:
    jax = sys.modules.get("jax")
    if jax is None or not getattr(jax.distributed, "is_initialized", lambda: False)():
        return None
    return Ranks(jax.process_index(), jax.process_count(), "JAX")


def _int_variable(variables: Mapping[str, str], name: str) -> int:
    try:
        return int(variables[name])
    except ValueError:
        raise ConfigError(
            f"the environment variable {name}={variables[name]!r} is not a number",
            fix="Unset it, or give rank and world_size to the loader.",
        ) from None
