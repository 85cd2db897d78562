from __future__ import annotations

import copy
import gc
import json
import pickle
import threading
import time
import weakref
from collections.abc import Iterator
from itertools import chain, islice, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.jobs.threads import THREAD_NAME
from feedmill.loading.batches import takes_rng
from feedmill.loading.generators import generator
from feedmill.loading.loader import Loader
from helpers.durations import examples
from helpers.fakes import FakePlan
from helpers.torch_workers import raises

RANKS, WORKERS, BATCH_SIZES = (1, 2, 3, 8), (0, 1, 3), (1, 4, 7)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())  # those of earlier tests may still be ending
    yield
    assert [t.name for t in set(threading.enumerate()) - before if t.name.startswith(THREAD_NAME)] == []


def jitter(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": float(rng.random())}


def stream(
    plan: FakePlan, ranks: int, workers: int, batch_size: int, steps: int | None, state: dict[str, Any] | None = None
) -> tuple[list[tuple[int, str, float]], dict[str, Any]]:
    """What all ranks see in `steps` steps, each step in the plan's order, and the state after them."""
    loaders = [
        Loader(plan, batch_size, rank=rank, world_size=ranks, workers=workers, transform=jitter, remainder="pad")
        for rank in range(ranks)
    ]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    batches = [list(islice(loader, steps)) for loader in loaders]
    seen: list[tuple[int, str, float]] = []
    for step in range(max(map(len, batches), default=0)):
        together: list[tuple[int, str, float]] = []
        for mine in batches:
            if step < len(mine):
                batch = mine[step]
                rows = zip(batch["position"].tolist(), batch["__key__"], batch["noise"].tolist(), strict=True)
                mask = batch.get("__mask__", [True] * batch_size)
                mine_now = [row for row, real in zip(rows, mask, strict=True) if real]
                assert mine_now == sorted(mine_now), "on its rank a batch is in the plan's order"
                together += mine_now
        seen += sorted(together)
    states = {json.dumps(loader.state_dict()) for loader in loaders}
    assert len(states) == 1, "all ranks have the same state"
    return seen, json.loads(states.pop())


@pytest.mark.parametrize(("ranks", "workers", "batch_size"), list(product(RANKS, WORKERS, BATCH_SIZES)))
def test_the_stream_depends_on_the_plan_alone(ranks: int, workers: int, batch_size: int) -> None:
    wanted, _ = stream(FakePlan(length=101), 1, 0, 101, None)
    assert [position for position, _, _ in wanted] == list(range(101))
    found, state = stream(FakePlan(length=101), ranks, workers, batch_size, None)
    assert found == wanted
    assert state["position"] == 101


legs = st.tuples(st.sampled_from(RANKS), st.sampled_from(WORKERS), st.integers(1, 9), st.integers(0, 5))


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(legs, min_size=1, max_size=4), st.sampled_from([None, 97, 150]))
def test_resume_between_any_two(runs: list[tuple[int, int, int, int]], length: int | None) -> None:
    plan, state, seen = FakePlan(length=length), None, []
    for ranks, workers, batch_size, steps in runs:
        part, state = stream(plan, ranks, workers, batch_size, steps, state)
        seen += part
    wanted, _ = stream(plan, 1, 0, max(len(seen), 1), 1)
    assert seen == wanted[: len(seen)]
    assert state is not None and state["position"] == len(seen)


def test_leaving_the_loop_and_iterating_again_goes_on() -> None:
    loader = Loader(FakePlan(), 4, workers=2)
    first = [batch["position"].tolist() for batch in islice(loader, 3)]
    for batch in loader:
        first.append(batch["position"].tolist())
        break
    first.append(next(iter(loader))["position"].tolist())
    loader.close()
    assert list(chain.from_iterable(first)) == list(range(20))
    assert loader.position == 20


def test_exhausted_until_moved() -> None:
    loader = Loader(FakePlan(length=10), 4)
    fresh = loader.state_dict()
    assert [len(batch["x"]) for batch in loader] == [4, 4, 2]
    assert list(loader) == []
    loader.load_state_dict(fresh)
    assert [len(batch["x"]) for batch in loader] == [4, 4, 2]


def test_remainders() -> None:
    def batches(length: int, rank: int, remainder: Any) -> list[list[int]]:
        loader = Loader(FakePlan(length=length), 2, rank=rank, world_size=2, remainder=remainder, deal="contiguous")
        found = [batch["position"].tolist() for batch in loader]
        assert len(loader) == len(found)
        assert loader.position == (length - length % 4 if remainder == "drop" else length)
        return found

    assert [batches(10, rank, "drop") for rank in range(2)] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert [batches(10, rank, "uneven")[-1] for rank in range(2)] == [[8], [9]]
    assert [batches(9, rank, "pad")[-1] for rank in range(2)] == [[8, 0], [1, 2]]
    with pytest.raises(TypeError, match="never ends"):
        len(Loader(FakePlan(), 2))


@pytest.mark.parametrize(("length", "ranks", "said"), [(7, 2, True), (8, 2, False), (3, 1, True), (None, 2, False)])
def test_a_loader_that_drops_everything_says_so(
    length: int | None, ranks: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    loader = Loader(FakePlan(length=length), 4, rank=0, world_size=ranks, remainder="drop")
    assert ("this loader yields no batch" in caplog.text) is said
    if said:
        assert (len(loader), list(loader)) == (0, [])
        assert len(caplog.records) == 1


def test_pad_tells_what_is_real() -> None:
    loader = Loader(FakePlan(length=9), 2, rank=1, world_size=2, remainder="pad", deal="contiguous")
    assert [batch["__mask__"].tolist() for batch in loader] == [[True, True], [True, True], [False, False]]
    torch = pytest.importorskip("torch")
    mask = next(iter(Loader(FakePlan(length=3), 4, remainder="pad", output="torch")))["__mask__"]
    assert mask.dtype == torch.bool and mask.tolist() == [True, True, True, False]
    with pytest.raises(ConfigError, match="requires batches that are dicts"):
        Loader(FakePlan(length=9), 2, remainder="pad", output="samples")
    with pytest.raises(ConfigError, match="requires batches that are dicts"):
        list(Loader(FakePlan(length=9), 2, remainder="pad", collate=tuple))
    Loader(FakePlan(), 2, remainder="pad", output="samples")  # it never ends: there is nothing to fill up
    assert "__mask__" not in next(iter(Loader(FakePlan(), 2, remainder="pad")))


def test_ranks_that_could_not_end_together_are_refused() -> None:
    loader = Loader(FakePlan(length=9), 2, rank=1, world_size=2)
    with pytest.raises(ConfigError, match="1 samples for 2 ranks"):
        iter(loader)
    loader.load_state_dict({**loader.state_dict(), "position": 1})  # from here on all steps are whole
    assert [len(batch["x"]) for batch in loader] == [2, 2]


def test_state_is_small_json_and_tells_of_yielded_batches_only() -> None:
    loader = Loader(FakePlan(), 4, rank=0, world_size=8, workers=2, prefetch=3)
    loader.load_state_dict({**loader.state_dict(), "position": 2**62})
    batches = iter(loader)
    next(batches)
    text = json.dumps(loader.state_dict())
    assert json.loads(text)["position"] == 2**62 + 32
    assert len(text) < 1024
    loader.close()


def test_a_changed_plan_is_refused_with_what_changed() -> None:
    state = Loader(FakePlan(), 4).state_dict()
    with pytest.raises(ConfigError, match="source 'docs' changed") as caught:
        Loader(FakePlan(revision="b"), 4).load_state_dict(state)
    assert caught.value.kind == "plan-changed"
    with pytest.raises(ConfigError, match="its fingerprint was"):
        Loader(FakePlan(length=5), 4).load_state_dict(state)
    with pytest.raises(ConfigError, match="seed was 7 and is 8"):
        Loader(FakePlan(), 4, seed=8).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"epoch": 3}, "not the state of a feedmill loader .found the keys epoch"),
        (lambda s: [1], "not the state of a feedmill loader .found list"),
        (lambda s: {**s, "feedmill_loader": 3}, "version 3, this release reads version 2"),
        (lambda s: {k: v for k, v in s.items() if k != "position"}, "corrupt at: position"),
        (lambda s: {**s, "position": "7", "plan": None}, "corrupt at: position, plan"),
        (lambda s: {**s, "position": -1}, "position -1"),
        (lambda s: {**s, "position": 100}, "position 100, the plan has 99"),
        (lambda s: {**s, "plan": "other", "sources": {"docs": 5}}, "corrupt at: sources"),
    ],
)
def test_bad_states_are_refused(change: Any, message: str) -> None:
    loader = Loader(FakePlan(length=99), 4)
    with pytest.raises(ConfigError, match=message):
        loader.load_state_dict(change(loader.state_dict()))
    assert loader.position == 0


@pytest.mark.parametrize("arguments", [
    {"batch_size": 4.0}, {"batch_size": 0}, {"rank": 2, "world_size": 2}, {"workers": 1.5}, {"seed": "a"},
    {"rank": -1}, {"workers": -1}, {"prefetch": 0},
    {"remainder": "keep"}, {"on_error": "ignore"}, {"output": "jax"}, {"output": "samples", "collate": list},
])  # fmt: skip
def test_bad_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Loader(FakePlan(), **{"batch_size": 2, **arguments})


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_comes_at_its_batch_and_names_the_sample(workers: int) -> None:
    loader = Loader(FakePlan(fails_at=frozenset([14])), 4, workers=workers)
    batches = iter(loader)
    assert [next(batches)["position"][0] for _ in range(3)] == [0, 4, 8]
    with pytest.raises(DataError, match=r"cut short \(at position 14 \(source 0, sample 8, epoch 0\)\)") as caught:
        next(batches)
    assert (caught.value.file, caught.value.offset, caught.value.record) == ("docs/s0.tar", 512, "k14")
    assert loader.position == 12
    with pytest.raises(ConfigError, match="ended by an error"):
        next(batches)
    loader.plan.fails_at = frozenset()
    assert next(iter(loader))["position"].tolist() == [12, 13, 14, 15]
    loader.close()


def test_errors_of_user_code_name_the_sample() -> None:
    def transform(sample: dict[str, Any]) -> Any:
        if sample["position"] == 5:
            raise StopIteration("surprise")
        return sample

    with pytest.raises(
        FeedmillError, match=r"transforming the sample at position 5 .*StopIteration: surprise"
    ) as caught:
        list(Loader(FakePlan(length=8), 4, transform=transform, workers=1))
    assert isinstance(caught.value.__cause__, StopIteration)

    def bad_collate(samples: list[Any]) -> Any:
        if any(sample["position"] == 6 for sample in samples):
            raise KeyError("six")
        return samples

    with pytest.raises(FeedmillError, match=r"collating the sample at position 6 .*KeyError: 'six'"):
        list(Loader(FakePlan(length=8), 4, collate=bad_collate))


def test_an_old_iteration_does_not_go_on_silently() -> None:
    loader = Loader(FakePlan(), 4, workers=1)
    old = iter(loader)
    next(old)
    new = iter(loader)
    assert next(new)["position"][0] == 4
    with pytest.raises(ConfigError, match="newer iteration"):
        next(old)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(ConfigError, match="load_state_dict"):
        next(new)


@pytest.mark.parametrize("end", ["break", "collect", "cycle", "interrupt"])
def test_no_thread_is_left_behind(end: str) -> None:
    def transform(sample: Any) -> Any:
        time.sleep(0.0005)
        return sample

    loader = Loader(FakePlan(), 4, workers=3, transform=transform)
    if end == "break":
        for _ in loader:
            break
    elif end == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            for _ in loader:
                raise KeyboardInterrupt
    else:
        batches = iter(loader)
        next(batches)
        if end == "cycle":
            loader.mine = (loader, batches)  # type: ignore[attr-defined]
        alive = weakref.ref(batches)
        del loader, batches
        gc.collect()
        assert alive() is None


@pytest.mark.parametrize("workers", [0, 1])
def test_moved_while_another_thread_waits_for_a_batch(workers: int) -> None:
    entered, leave = threading.Event(), threading.Event()

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["position"] == 4:
            entered.set()
            leave.wait(120)
        return sample

    def take() -> None:
        with pytest.raises(ConfigError, match="ended by"):
            next(batches)
        taken.append(loader.position)

    loader, taken = Loader(FakePlan(), 4, transform=transform, workers=workers), list[int]()
    batches = iter(loader)
    next(batches)
    state = {**loader.state_dict(), "position": 40}
    thread = threading.Thread(target=take)
    thread.start()
    entered.wait(120)
    while workers and not batches._given.gi_running:  # type: ignore[attr-defined]
        time.sleep(0.001)
    loader.load_state_dict(state)
    leave.set()
    thread.join()
    assert taken == [40] and next(iter(loader))["position"][0] == 40
    loader.close()


def test_memory_is_bounded() -> None:
    plan = FakePlan()
    loader = Loader(plan, 4, workers=2, prefetch=3)
    for taken, _ in enumerate(islice(loader, 20), 1):
        time.sleep(0.001)
        assert len(plan.reads) <= taken + 6
    loader.close()


def test_outputs() -> None:
    plan = FakePlan(length=4)
    (batch,) = Loader(plan, 4)
    assert batch["x"].dtype == np.int32 and batch["x"].shape == (4, 3) and batch["__key__"][0] == "0/3"
    (samples,) = Loader(plan, 4, output="samples")
    assert [sample["position"] for sample in samples] == [0, 1, 2, 3]
    assert list(Loader(plan, 2, collate=len)) == [2, 2]


def test_torch_output() -> None:
    torch = pytest.importorskip("torch")
    (batch,) = Loader(FakePlan(length=4), 4, output="torch")
    assert batch["x"].dtype == torch.int32 and batch["position"].tolist() == [0, 1, 2, 3]
    assert batch["__key__"] == ["0/3", "1/3", "0/10", "1/0"]


def test_a_batch_that_does_not_become_tensors_is_not_lost() -> None:
    pytest.importorskip("torch")

    def transform(sample: dict[str, Any]) -> Any:
        return np.zeros(2, np.longdouble if sample["position"] > 3 else np.float32)

    loader = Loader(FakePlan(), 4, transform=transform, output="torch")
    batches = iter(loader)
    next(batches)
    with pytest.raises(TypeError):
        next(batches)
    assert loader.position == 4


def test_which_transforms_take_a_generator() -> None:
    assert takes_rng(jitter)
    assert takes_rng(lambda sample, rng=None: sample)
    assert not takes_rng(lambda sample, size=224: sample)
    assert not takes_rng(lambda sample: sample)
    assert not takes_rng(dict)
    named = Loader(FakePlan(), 4, transform=lambda sample, *, rng: {"noise": float(rng.random())})
    assert next(iter(named))["noise"].tolist() == next(iter(Loader(FakePlan(), 4, transform=jitter)))["noise"].tolist()


def test_numbers_of_numpy_make_states_of_json() -> None:
    one, four = np.int64(1), np.int64(4)
    loader = Loader(FakePlan(), four, rank=one, world_size=four, workers=one, prefetch=one, seed=four)  # type: ignore[arg-type]
    next(iter(loader))
    loader.close()
    assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict()


def test_positions_beyond_all_plans_are_refused() -> None:
    loader = Loader(FakePlan(), 4)
    with pytest.raises(ConfigError, match="position 1000000000000000000000000"):
        loader.load_state_dict({**loader.state_dict(), "position": 10**24})


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_leaves_the_running_iteration_alone(copied: Any) -> None:
    loader = Loader(FakePlan(), 4, workers=1)
    batches = iter(loader)
    next(batches)
    other = copied(loader)
    assert next(iter(other))["position"][0] == 4 == next(batches)["position"][0]
    loader.close()
    other.close()


def test_generators_of_positions_are_reproducible_and_differ() -> None:
    draws = {(seed, p): generator(seed, p).random() for seed in (0, 1, -1, 2**80) for p in (0, 1, 2**62)}
    assert len(set(draws.values())) == len(draws) - 3  # 2**80 and 0 are the same seed modulo 2**64
    assert all(generator(seed, p).random() == value for (seed, p), value in draws.items())
    philox = np.random.Philox(key=(3 << 64) | 7, counter=2 << 192)
    assert generator(3, 7, 2).random(9).tolist() == np.random.Generator(philox).random(9).tolist()


def test_generators_spawn_and_are_copied_reproducibly() -> None:
    one = generator(3, 7)
    spawned = [each.random() for each in (*one.spawn(2), *one.spawn(1))]
    assert len({*spawned, one.random()}) == 4
    other = pickle.loads(pickle.dumps(generator(3, 7)))
    assert [each.random() for each in other.spawn(3)] == spawned
    assert generator(3, 7, 1).spawn(1)[0].random() != spawned[0]


@pytest.mark.parametrize(("options", "fix"), [({"batch_size": 0}, "1 or more"), ({"batch_size": 10**30}, "less than")])
def test_numbers_that_are_out_of_range(options: dict[str, Any], fix: str) -> None:
    with pytest.raises(ConfigError, match="is invalid") as caught:
        Loader(FakePlan(), **options)
    assert fix in str(caught.value)


def test_a_loader_inside_a_torch_worker_is_refused() -> None:
    """Each worker would give every batch."""
    data = pytest.importorskip("torch.utils.data")

    class Batches(data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(Loader(FakePlan(length=8), 4))

    assert len(list(data.DataLoader(Batches(), batch_size=None))) == 2
    with raises(ConfigError, r"worker of a torch DataLoader \(worker 0 of 2\)"):
        list(data.DataLoader(Batches(), batch_size=None, num_workers=2))
