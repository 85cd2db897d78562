"""A loader in the workers of a torch `DataLoader` and of torchdata's: the same batches, and states that are exact."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError, DataError
from feedmill.loading.adapters import iterable
from feedmill.loading.encoder import TaskEncoder
from feedmill.loading.loader import Loader
from feedmill.planning.plan import Plan
from helpers.durations import slow_but
from helpers.fakes import FakePlan
from helpers.number_dataset import Numbered
from helpers.torch_workers import raises

data = pytest.importorskip("torch.utils.data")
WORKERS = (0, 1, 2, 3)


@pytest.fixture(scope="module", autouse=True)
def short_waits() -> Iterator[None]:
    """Workers that an error left are joined for five seconds each before they are ended, when garbage is collected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
        yield


def positions(batches: Any) -> list[list[int]]:
    return [batch["position"].tolist() for batch in batches]


def loader(plan: FakePlan, batch_size: int = 4, rank: int = 1, world_size: int = 2, **options: Any) -> Loader:
    return Loader(plan, batch_size, rank=rank, world_size=world_size, **options)


@pytest.mark.parametrize("workers", WORKERS)
def test_workers_share_the_batches_of_the_rank(workers: int) -> None:
    plan = FakePlan(length=101)
    wanted = positions(loader(plan))
    dataset = loader(plan).as_iterable_dataset()
    batches = data.DataLoader(dataset, batch_size=None, num_workers=workers)
    assert positions(batches) == positions(batches) == wanted, "each iteration starts at the beginning"
    assert len(batches) == len(wanted) == 13


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_plain_data_loader_resumes_after_a_number_of_batches(taken: int) -> None:
    plan = FakePlan()
    source = loader(plan).as_iterable_dataset()
    list(islice(data.DataLoader(source, batch_size=None, num_workers=2), taken))
    again = loader(plan, 6, 0, 1).as_iterable_dataset()
    again.load_state_dict(source.state_after(taken))
    found = positions(islice(data.DataLoader(again, batch_size=None, num_workers=3), 4))
    assert list(chain(*found)) == list(range(taken * 8, taken * 8 + 24))


@pytest.mark.parametrize("workers", slow_but(WORKERS, 0, 2))
@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
def test_torchdata_saves_and_resumes_at_every_step(workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    plan = FakePlan(length=61)
    wanted = positions(loader(plan))

    def batches() -> Any:
        return stateful(loader(plan).as_iterable_dataset(), batch_size=None, num_workers=workers)

    for taken in (0, 3, len(wanted) - 1):
        first, second = batches(), batches()
        head = positions(islice(first, taken))
        state = first.state_dict()
        second.load_state_dict(state)
        assert head + positions(second) == wanted
        assert positions(second) == wanted, "the epoch after it is whole"
        elastic = loader(plan, 5, 0, 1).as_iterable_dataset()
        elastic.load_state_dict({"data": [state]})
        rest = positions(data.DataLoader(elastic, batch_size=None, num_workers=2))
        assert list(chain(*rest)) == list(range(taken * 8, 61))


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
def test_a_workers_state_in_another_layout_is_refused_with_the_way_to_load_it() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    plan = FakePlan(length=61)
    first = stateful(loader(plan).as_iterable_dataset(), batch_size=None, num_workers=2)
    next(iter(first))
    second = stateful(loader(plan, 8).as_iterable_dataset(), batch_size=None, num_workers=2)
    second.load_state_dict(first.state_dict())
    with raises(ConfigError, r"(?s)batch size 4 on 2 ranks.*dataset\.load_state_dict\(state\)"):
        next(iter(second))
    rarely = stateful(loader(plan).as_iterable_dataset(), batch_size=None, num_workers=2, snapshot_every_n_steps=4)
    list(islice(rarely, 3))
    with pytest.raises(ConfigError, match="snapshot_every_n_steps=1"):
        loader(plan).as_iterable_dataset().load_state_dict(rarely.state_dict())
    with pytest.raises(ConfigError, match="no state of a feedmill loader"):
        loader(plan).as_iterable_dataset().load_state_dict({"model": {}})


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
@pytest.mark.parametrize("taken", [1, 2, 3, 5, 6, 8])
def test_workers_whose_batches_were_not_taken_in_order_have_no_position_together(taken: int) -> None:
    """The latest position would lose the batches that a slower worker has not given yet."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    plan = FakePlan(length=61)
    first = stateful(loader(plan).as_iterable_dataset(), batch_size=None, num_workers=3)
    list(islice(first, taken))
    state = first.state_dict()
    loader(plan).as_iterable_dataset().load_state_dict(state)
    workers = list(iterable._states_in(state, iterable._MARK))
    assert len(workers) == 3 and [worker["global_batch"] for worker in workers] == [8] * 3
    latest = max(workers, key=lambda worker: worker["loader"]["position"])
    latest["loader"]["position"] += 3 * 8  # what in_order=False gives if this worker is faster by one batch
    with pytest.raises(ConfigError, match=r"positions .*not taken in order.*in_order=False"):
        loader(plan).as_iterable_dataset().load_state_dict(state)


def test_composer_asks_for_the_state_after_a_number_of_samples() -> None:
    dataset = loader(FakePlan(), start=16).as_iterable_dataset()
    assert dataset.state_dict(24, True)["position"] == 40
    dataset.load_state_dict(dataset.state_dict(24, True))
    assert dataset.state_dict(8, False)["position"] == 48 and dataset.state_dict(32, True)["position"] == 48
    assert next(iter(dataset))["position"].max() < 48


def test_an_error_in_a_worker_names_the_sample_and_a_bare_loader_is_told_the_method() -> None:
    failing = loader(FakePlan(length=61, fails_at=frozenset([14])), 4, 0, 1).as_iterable_dataset()
    with raises(DataError, "position 14"):
        list(data.DataLoader(failing, batch_size=None, num_workers=2))

    class Bare(data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(Loader(FakePlan(length=8), 4))

    with raises(ConfigError, r"Pass loader\.as_iterable_dataset\(\) to the DataLoader"):
        list(data.DataLoader(Bare(), batch_size=None, num_workers=1))


class Pairs(TaskEncoder):
    """Packs of two samples."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"position": [sample["position"] for sample in samples]}

    def batch(self, samples: list[Any]) -> Any:
        return {"position": np.array([sample["position"] for sample in samples])}


def test_batches_by_budget_are_shared() -> None:
    plan = Plan.over([Numbered("a", 90, tokens=3), Numbered("b", 30, tokens=9)], [0.6, 0.4])

    def keys(batches: Any) -> list[list[str]]:
        return [batch["__key__"] for batch in batches]

    def by_budget() -> Loader:
        return Loader(plan, {"tokens": 40}, rank=1, world_size=2)

    wanted = keys(islice(by_budget(), 20))
    dataset = by_budget().as_iterable_dataset()
    assert keys(islice(data.DataLoader(dataset, batch_size=None, num_workers=3), 20)) == wanted
    dataset.load_state_dict(dataset.state_after(7))
    assert keys(islice(data.DataLoader(dataset, batch_size=None, num_workers=2), 13)) == wanted[7:]


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
def test_packs_are_made_by_one_worker() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def packs(workers: int) -> Any:
        made = loader(FakePlan(length=80), task_encoder=Pairs(), buffer=8).as_iterable_dataset()
        return stateful(made, batch_size=None, num_workers=workers)

    wanted = [batch["position"].tolist() for batch in loader(FakePlan(length=80), task_encoder=Pairs(), buffer=8)]
    for workers in (0, 1):
        first, second = packs(workers), packs(workers)
        head = positions(islice(first, 2))
        second.load_state_dict(first.state_dict())
        assert head + positions(second) == wanted and len(wanted) > 3
    with raises(ConfigError, "divided over 2 workers"):
        next(iter(packs(2)))
    with pytest.raises(ConfigError, match="position after a number of batches is unknown"):
        packs(0).dataset.state_after(2)
