"""Which share of the data a process has."""

from __future__ import annotations

import sys
import types
from itertools import product
from typing import Any

import pytest

from feedmill.errors import ConfigError
from feedmill.loading.layout import Ranks, data_parallel, find_ranks, from_mesh
from feedmill.loading.loader import Loader
from helpers.fakes import FakePlan


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "rank", "size"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, 3, 8),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "16", "SLURM_NTASKS": "32"}, 5, 16),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "32"}, 0, 1),  # the batch script itself
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 1, 2),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, 1, 4),
        ({"RANK": "3"}, 0, 1),
        ({}, 0, 1),
    ],
)
def test_launchers(environment: dict[str, str], rank: int, size: int) -> None:
    found = find_ranks(environment)
    assert (found.rank, found.world_size) == (rank, size)


def test_variables_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="RANK='x' is not a number"):
        find_ranks({"RANK": "x", "WORLD_SIZE": "2"})
    with pytest.raises(ConfigError, match="rank 2 of 2"):
        find_ranks({"RANK": "2", "WORLD_SIZE": "2"})


def test_frameworks_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("torch.distributed")
    fake.is_available = fake.is_initialized = lambda: True
    fake.get_rank, fake.get_world_size = lambda: 2, lambda: 4
    monkeypatch.setitem(sys.modules, "torch.distributed", fake)
    assert find_ranks({"RANK": "0", "WORLD_SIZE": "2"}) == Ranks(2, 4, "torch.distributed")
    fake.is_initialized = lambda: False
    jax: Any = types.ModuleType("jax")
    jax.distributed = types.SimpleNamespace(is_initialized=lambda: True)
    jax.process_index, jax.process_count = lambda: 1, lambda: 3
    monkeypatch.setitem(sys.modules, "jax", jax)
    assert find_ranks({}) == Ranks(1, 3, "JAX")


def test_a_loader_finds_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repr(Loader(FakePlan(), 2)).startswith("Loader(endless, position 0, rank 0 of 1")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert next(iter(Loader(FakePlan(), 2, deal="contiguous")))["position"].tolist() == [2, 3]
    assert next(iter(Loader(FakePlan(), 2, rank=0, world_size=1)))["position"].tolist() == [0, 1]
    with pytest.raises(ConfigError, match="rank=1 and world_size=None: one of them is missing"):
        Loader(FakePlan(), 2, rank=1)


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "dp-tp-pp-cp", "pp-dp-cp-tp"])
def test_layouts_divide_the_processes(order: str) -> None:
    shares = [data_parallel(2, 3, 2, order=order, ranks=Ranks(r, 24)) for r in range(24)]
    assert {share.world_size for share in shares} == {2}
    for share, wanted in product(shares, range(2)):
        if share.rank == wanted:
            assert share.group == tuple(r for r in range(24) if shares[r].rank == wanted)
    assert sum(share.leader for share in shares) == 2
    assert sum(len(share.group) for share in shares if share.leader) == 24


def test_megatron_s_usual_order() -> None:
    # 16 processes, tensor 2, pipeline 4: the example in Megatron-LM's parallel_state
    groups = sorted({data_parallel(2, 1, 4, ranks=Ranks(r, 16)).group for r in range(16)})
    assert groups == [(0, 1, 4, 5, 8, 9, 12, 13), (2, 3, 6, 7, 10, 11, 14, 15)]


@pytest.mark.parametrize("arguments", [{"tensor": 3}, {"pipeline": 0}, {"order": "tp-dp"}, {"order": "tp-cp-dp-dp"}])
def test_layouts_that_make_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        data_parallel(**arguments, ranks=Ranks(0, 8))


class Mesh:
    """The part of a torch DeviceMesh that is asked."""

    mesh_dim_names = ("pp", "dp_replicate", "dp_shard", "tp")

    def __init__(self, coordinate: list[int] | None) -> None:
        self.coordinate = coordinate

    def get_coordinate(self) -> list[int] | None:
        return self.coordinate

    def size(self, dim: int) -> int:
        return (2, 2, 3, 4)[dim]


def test_meshes() -> None:
    found = from_mesh(Mesh([1, 1, 2, 0]), "dp_replicate", "dp_shard")
    assert (found.rank, found.world_size, found.leader) == (5, 6, False)
    assert from_mesh(Mesh([0, 1, 0, 0]), "dp_shard").leader is False
    assert from_mesh(Mesh([0, 0, 2, 0]), "dp_shard").leader is True
    with pytest.raises(ConfigError, match="no axis"):
        from_mesh(Mesh([0, 0, 0, 0]), "dp")
    with pytest.raises(ConfigError, match="not in the mesh"):
        from_mesh(Mesh(None), "tp")
