"""Which share of the data is this process's: from torch.distributed, JAX, the launcher's environment, or a layout.

Nothing is asked for over the network, and neither torch nor JAX is imported: what has not been imported has not been
set up either.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feedmill.errors import ConfigError

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
    """A share of the data: `rank` of `world_size`; `source` says where that is known from.

    Attributes:
        leader: whether this process is the first of those that get the same share. Where the others receive their
            batches from it (as Megatron's tensor-parallel groups do), only leaders need a loader.
        group: numbers of all processes that get this share, rising.
    """

    rank: int
    world_size: int
    source: str = "given"
    leader: bool = True
    group: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} of {self.world_size} ranks is impossible ({self.source})",
                fix="Ranks count from 0 to one less than their number.",
            )


def find_ranks(environment: Mapping[str, str] | None = None) -> Ranks:
    """Return this process among all: from an initialised torch.distributed or JAX, else from the launcher, else alone.

    Every process has a share of its own. Where several are to get the same (tensor, context and pipeline parallel),
    use `data_parallel` or `from_mesh`.

    Raises:
        ConfigError: the launcher's variables contradict each other or are no numbers.
    """
    found = _torch() or _jax()
    if found is not None:
        return found
    variables = os.environ if environment is None else environment
    for launcher, rank, size in _LAUNCHERS:
        if rank in variables and size in variables:
            return Ranks(_number(variables, rank), _number(variables, size), f"{launcher}: {rank}, {size}")
    return Ranks(0, 1, "a single process")


def data_parallel(
    tensor: int = 1, context: int = 1, pipeline: int = 1, *, order: str = "tp-cp-dp-pp", ranks: Ranks | None = None
) -> Ranks:
    """Return this process's data-parallel share in a layout of tensor, context and pipeline parallel groups.

    Args:
        tensor, context, pipeline: sizes of the groups; what is left of the processes is data parallel.
        order: the axes from the one whose neighbours are neighbouring processes to the outermost, as in Megatron-LM.
        ranks: this process among all; `find_ranks()` where None.

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
            fix="tensor * context * pipeline must divide the number of processes.",
        )
    sizes = {"tp": tensor, "cp": context, "pp": pipeline, "dp": every.world_size // model}

    def place(process: int) -> dict[str, int]:
        out = {}
        for axis in axes:
            process, out[axis] = divmod(process, sizes[axis])
        return out

    mine = place(every.rank)
    group = tuple(process for process in range(every.world_size) if place(process)["dp"] == mine["dp"])
    return Ranks(mine["dp"], sizes["dp"], f"{order} of {every.source}", every.rank == group[0], group)


def from_mesh(mesh: Any, *names: str) -> Ranks:
    """Return the share by a torch `DeviceMesh`: its coordinates along the named axes, the first of them outermost.

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
            fix=f"Its axes are: {', '.join(known) or 'without names'}.",
        )
    dims = [known.index(name) for name in names]
    rank, size = 0, 1
    for dim in dims:
        rank, size = rank * mesh.size(dim) + int(coordinate[dim]), size * mesh.size(dim)
    leader = all(int(place) == 0 for dim, place in enumerate(coordinate) if dim not in dims)
    return Ranks(rank, size, f"mesh axes {', '.join(names)}", leader)


def given_or_found(rank: int | None, world_size: int | None) -> Ranks:
    """Return what a loader is given, or `find_ranks()` where it is given nothing. Raises ConfigError for half of it."""
    if (rank is None) != (world_size is None):
        raise ConfigError(
            f"rank={rank} and world_size={world_size}: one of them is missing",
            fix="Give both, or neither to find them.",
        )
    if rank is None or world_size is None:
        return find_ranks()
    return Ranks(whole("rank", rank), whole("world_size", world_size))


def whole(name: str, value: Any) -> int:
    """Return a whole number of whatever type (NumPy's too) as an int, as states are JSON. Raises ConfigError."""
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"{name}={value!r} is no whole number", fix="Give a whole number.") from None


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


def _number(variables: Mapping[str, str], name: str) -> int:
    try:
        return int(variables[name])
    except ValueError:
        raise ConfigError(
            f"the environment variable {name}={variables[name]!r} is no number",
            fix="Unset it, or give rank and world_size to the loader.",
        ) from None
