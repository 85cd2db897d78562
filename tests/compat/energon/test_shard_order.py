"""Training without a shuffle buffer: shards are shuffled, and the samples of a shard keep their order."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from feedmill.indexing.prepare import prepare

torch = pytest.importorskip("torch")

from feedmill.compat.energon import WorkerConfig, get_loader, get_train_dataset  # noqa: E402

SIZES = (5, 3, 8, 5, 5, 1)
SAMPLES = sum(SIZES)


def shards(folder: Path, sizes: Sequence[int] = SIZES) -> Path:
    folder.mkdir()
    number = 0
    for shard, size in enumerate(sizes):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for _ in range(size):
                member = tarfile.TarInfo(f"{shard}-{number:03d}.txt")
                member.size = 1
                tar.addfile(member, io.BytesIO(b"x"))
                number += 1
    (folder / ".nv-meta").mkdir()
    (folder / ".nv-meta" / "dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    prepare(folder, split_ratio="1,0,0")
    return folder


def keys(folder: Path, count: int, *, world: int = 1, batch_size: int = 1, **options: Any) -> list[str]:
    """Return the keys of global batches: those of all ranks, in the order of the plan within each rank."""
    ranks = []
    for rank in range(world):
        where = WorkerConfig(rank=rank, world_size=world, num_workers=0)
        loader = get_loader(get_train_dataset(folder, worker_config=where, batch_size=batch_size, **options))
        ranks.append([key for batch in islice(loader, count) for key in batch["__key__"]])
    return [key for rank in ranks for key in rank]


def test_samples_of_a_shard_keep_their_order_and_every_epoch_has_all(tmp_path: Path) -> None:
    folder = shards(tmp_path / "d")
    found = keys(folder, 3 * SAMPLES)
    orders = []
    for epoch in range(3):
        here = found[epoch * SAMPLES : (epoch + 1) * SAMPLES]
        assert len(set(here)) == SAMPLES
        for shard in map(str, range(len(SIZES))):
            own = [key for key in here if key.startswith(f"{shard}-")]
            assert own == sorted(own)
        orders.append(here)
    assert orders[0] != orders[1] != orders[2]
    assert all(a[0] != b[0] for a, b in pairwise(orders[0][: len(SIZES)]))  # the shards are read side by side
    assert sorted(keys(folder, SAMPLES // 3, world=3)) == sorted(orders[0])  # any number of ranks


def test_shards_one_after_another(tmp_path: Path) -> None:
    found = keys(shards(tmp_path / "d"), SAMPLES, parallel_shard_iters=1)
    assert sum(a[0] != b[0] for a, b in pairwise(found)) == len(SIZES) - 1


def test_one_shard_is_read_in_stored_order(tmp_path: Path) -> None:
    found = keys(shards(tmp_path / "d", [20]), 40)
    assert found == [f"0-{number:03d}" for number in range(20)] * 2


@pytest.mark.parametrize("options", [{"shuffle_buffer_size": 10}, {"max_samples_per_sequence": 2}])
def test_a_buffer_or_sequences_shuffle_samples(tmp_path: Path, options: dict[str, int]) -> None:
    folder = shards(tmp_path / "d", [20])
    assert keys(folder, 20, **options) != [f"0-{number:03d}" for number in range(20)]


def test_a_state_resumes_exactly_with_another_number_of_workers(tmp_path: Path) -> None:
    folder = shards(tmp_path / "d")

    def loader(workers: int) -> Any:
        where = WorkerConfig(rank=0, world_size=1, num_workers=workers)
        return get_loader(get_train_dataset(folder, worker_config=where, batch_size=4))

    first = loader(0)
    list(islice(first, 5))
    state = first.save_state_rank()
    rest = [batch["__key__"] for batch in islice(first, 20)]
    second = loader(2)
    second.restore_state_rank(state)
    assert [batch["__key__"] for batch in islice(second, 20)] == rest
    second.close()
