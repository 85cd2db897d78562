"""Task encoders: hooks in order, packs and groups as functions of the stream alone, states that serve any layout."""

from __future__ import annotations

import json
import pickle
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.loading.encoder import Cooker, Prepared, TaskEncoder, padded, stateless
from feedmill.loading.failures import SkipSample
from feedmill.loading.loader import Loader
from feedmill.loading.typed import TypedTaskEncoder
from feedmill.loading.workers import Workers
from feedmill.planning.plan import Plan
from helpers.durations import examples
from helpers.fakes import FakePlan
from helpers.number_dataset import Numbered

SEQ = 12


class Plain(TaskEncoder):
    """Hooks that leave their marks."""

    def encode_sample(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"position": sample["position"], "x": np.arange(sample["position"] % 4), "noise": float(rng.random())}

    def encode_batch(self, batch: Any) -> Any:
        return {**batch, "encoded": True}


class Packer(TaskEncoder):
    """Packs samples of 1 to 7 tokens first-fit into `SEQ`; those of length 7 at odd positions are never selected."""

    def preencode_sample(self, sample: dict[str, Any]) -> tuple[int, int]:
        if sample["position"] % 13 == 5:
            raise SkipSample
        return sample["position"], 1 + sample["position"] * 5 % 7

    def select_samples_to_pack(self, samples: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        packs: list[list[tuple[int, int]]] = []
        for sample in samples:
            if sample[1] == 7 and sample[0] % 2:
                continue
            fitting = (pack for pack in packs if sum(n for _, n in pack) + sample[1] <= SEQ)
            pack = next(fitting, None)
            if pack is None:
                packs.append([sample])
            else:
                pack.append(sample)
        return packs

    def postencode_sample(self, sample: tuple[int, int], rng: np.random.Generator) -> tuple[int, int, float]:
        return (*sample, float(rng.random()))

    def pack_selected_samples(self, samples: list[tuple[int, int, float]]) -> dict[str, Any]:
        return {"positions": json.dumps([p for p, _, _ in samples]), "noise": json.dumps([r for _, _, r in samples])}


class Grouper(TaskEncoder):
    """Batches by position modulo 3, of 2, 3 or the loader's batch size."""

    def batch_group_criterion(self, sample: dict[str, Any]) -> tuple[int, int | None]:
        key = sample["position"] % 3
        return key, (2, 3, None)[key]


def tokens_of(batches: list[Any]) -> list[tuple[str, str]]:
    return [pack for batch in batches for pack in zip(batch["positions"], batch["noise"], strict=True)]


def test_hooks_in_their_order_and_default_padding() -> None:
    batch = next(iter(Loader(FakePlan(), 4, task_encoder=Plain())))
    assert batch["x"].tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 2]] and batch["encoded"]
    moved = next(iter(Loader(FakePlan(), 2, rank=1, world_size=2, task_encoder=Plain(), workers=1, deal="contiguous")))
    assert moved["noise"].tolist() == batch["noise"].tolist()[2:]


def test_padding_of_tensors_and_of_what_cannot_be_padded() -> None:
    torch = pytest.importorskip("torch")
    assert padded([{"t": torch.ones(1, 2)}, {"t": torch.ones(2, 1)}])["t"].tolist() == [
        [[1, 1], [0, 0]],
        [[1, 0], [1, 0]],
    ]
    odd = padded([np.zeros(2), np.zeros((2, 2))])
    assert isinstance(odd, list) and padded([(np.ones(1), "a"), (np.ones(2), "b")])[1] == ["a", "b"]


def test_cookers_are_chosen_by_subflavors() -> None:
    class Crude:
        def __init__(self, subflavors: dict[str, Any]) -> None:
            self.subflavors = subflavors

    class Cooking(TaskEncoder):
        cookers = (Cooker(lambda s: "ocr", {"kind": "ocr"}), Cooker(lambda s, rng: f"any {rng.integers(1)}", {"v": 2}))

    cook = Prepared(Cooking())
    rng = np.random.default_rng(0)
    assert cook(Crude({"kind": "ocr", "v": 2}), rng) == "ocr" and cook(Crude({"v": 2}), rng) == "any 0"
    with pytest.raises(ConfigError, match=r"no cooker fits .*'kind': 'text'"):
        cook(Crude({"kind": "text"}), rng)


def test_restored_seeds() -> None:
    class Old(TaskEncoder):
        @stateless(restore_seeds=True)
        def encode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
            return {"a": random.random(), "b": float(np.random.random())}

    random.seed(5)
    before = random.getstate()
    first = [
        batch["a"].tolist() + batch["b"].tolist() for batch in islice(Loader(FakePlan(), 2, task_encoder=Old()), 3)
    ]
    threads = Loader(FakePlan(), 2, task_encoder=Old(), workers=3)
    assert [batch["a"].tolist() + batch["b"].tolist() for batch in islice(threads, 3)] == first
    threads.close()
    assert random.getstate() == before and len({x for row in first for x in row}) == 12


def test_restored_seeds_leave_the_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    class Draw(TaskEncoder):
        @stateless(restore_seeds=True)
        def encode_sample(self, sample: dict[str, Any]) -> Any:
            return {"drawn": float(torch.rand(()))}

    def refused(*_: Any) -> None:
        raise AssertionError("the training's own generator was seeded")

    for api in (getattr(torch, name) for name in ("cuda", "xpu") if hasattr(torch, name)):
        monkeypatch.setattr(api, "manual_seed_all", refused)
    before = torch.get_rng_state()
    batches = [next(iter(Loader(FakePlan(), 4, task_encoder=Draw())))["drawn"].tolist() for _ in range(2)]
    assert batches[0] == batches[1] and len(set(batches[0])) == 4 and torch.equal(before, torch.get_rng_state())


class Draws(TaskEncoder):
    """Every hook behind the samples draws from a global generator."""

    @stateless(restore_seeds=True)
    def batch(self, samples: list[Any]) -> Any:
        return {"packs": samples, "batch": random.random()}

    @stateless(restore_seeds=True)
    def encode_batch(self, batch: Any) -> Any:
        return json.dumps({**batch, "encoded": float(np.random.random())})


class DrawsPacks(Draws):
    def preencode_sample(self, sample: dict[str, Any]) -> int:
        return int(sample["position"])

    @stateless(restore_seeds=True)
    def select_samples_to_pack(self, samples: list[int]) -> list[list[int]]:
        mixed = random.sample(samples, len(samples))
        return [mixed[first : first + 3] for first in range(0, len(mixed), 3)]

    @stateless(restore_seeds=True)
    def pack_selected_samples(self, samples: list[int]) -> Any:
        return [*samples, random.random()]


@pytest.mark.parametrize("packing", [False, True])
def test_restored_seeds_behind_the_samples(packing: bool) -> None:
    def loader(workers: int) -> Loader:
        if packing:
            return Loader(FakePlan(length=60), 4, task_encoder=DrawsPacks(), buffer=10, workers=workers)
        collated = Draws()
        collated.preencode_sample = lambda sample: sample["position"]  # type: ignore[method-assign]
        return Loader(FakePlan(length=60), 4, task_encoder=collated, workers=workers)

    wanted = list(loader(0))
    assert len({json.loads(batch)["batch"] for batch in wanted}) == len(wanted) > 5
    for workers in (0, 2):
        assert list(loader(workers)) == wanted
        first, second = loader(workers), loader(workers)
        half = list(islice(first, 3))
        second.load_state_dict(first.state_dict())
        assert half + list(second) == wanted


@pytest.mark.parametrize("workers", [0, 2])
def test_hooks_of_batches_know_where_they_are(workers: int) -> None:
    class Indexed(TypedTaskEncoder):
        def batch(self, samples: list[Any]) -> Any:
            return self.current_batch_index, self.current_sample_index

    class Packs(Singles, Indexed):
        pass

    plan = FakePlan(length=32, fails_at=frozenset([5]))
    found = list(Loader(plan, 8, task_encoder=Indexed(), on_error="substitute", workers=workers))
    assert found == [(0, 0), (1, 8), (2, 16), (3, 24)]
    packs = list(Loader(plan, 8, task_encoder=Packs(), buffer=16, on_error="substitute", workers=workers))
    assert packs == [(0, 0), (0, 0), (1, 16), (1, 16)]


@pytest.mark.parametrize("workers", [0, 2, Workers(1, processes=True)])
def test_packs_are_those_of_the_stream(workers: Any) -> None:
    loader = Loader(FakePlan(length=100), 4, task_encoder=Packer(), buffer=30, workers=workers)
    batches = list(loader)
    packs = tokens_of(batches)
    positions = [p for pack, _ in packs for p in json.loads(pack)]
    counts = Counter(positions)
    wanted = {p for p in range(100) if not (1 + p * 5 % 7 == 7 and p % 2) and p % 13 != 5}
    assert wanted <= counts.keys() and all(len(batch["positions"]) == 4 for batch in batches[:-1])
    assert all(sum(1 + p * 5 % 7 for p in json.loads(pack)) <= SEQ for pack, _ in packs)
    assert loader.skipped > 0 and loader.position == 100
    assert packs == tokens_of(list(Loader(FakePlan(length=100), 4, task_encoder=Packer(), buffer=30)))


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 7)), min_size=1, max_size=4),
    st.sampled_from([7, 20]),
    st.booleans(),
)
def test_any_layouts_give_every_pack_once(legs: list[tuple[int, int, int]], buffer: int, grouped: bool) -> None:
    encoder: TaskEncoder = Grouper() if grouped else Packer()
    plan = FakePlan(length=150)

    def items(batches: list[Any], size: int) -> list[str]:
        if not grouped:
            return [repr(pack) for pack in tokens_of(batches)]
        return [repr(batch["position"].tolist()) for batch in batches]

    # In groups the loader's batch size decides, so it must not change; packs do not depend on it.
    fixed = legs[0][1]
    wanted = Counter(items(list(Loader(plan, fixed, task_encoder=encoder, buffer=buffer)), fixed))
    states: list[Any] | None = None
    found: list[str] = []
    for number, (ranks, batch_size, steps) in enumerate(legs):
        size = fixed if grouped else batch_size
        after = []
        for rank in range(ranks):
            loader = Loader(plan, size, rank=rank, world_size=ranks, task_encoder=encoder, buffer=buffer)
            if states is not None:
                loader.load_state_dict(states)
            found += items(list(islice(loader, None if number == len(legs) - 1 else steps)), size)
            after.append(json.loads(json.dumps(loader.state_dict())))
            loader.close()
        states = after
    assert Counter(found) == wanted


def test_one_rank_goes_on_from_its_own_state_bit_by_bit() -> None:
    def loaders() -> list[Loader]:
        return [Loader(FakePlan(), 3, rank=r, world_size=2, task_encoder=Packer(), buffer=25) for r in range(2)]

    calm = [tokens_of(list(islice(loader, 12))) for loader in loaders()]
    first = loaders()
    half = [tokens_of(list(islice(loader, 5))) for loader in first]
    second = loaders()
    for loader, old in zip(second, first, strict=True):
        loader.load_state_dict(old.state_dict())
    assert [a + tokens_of(list(islice(loader, 7))) for a, loader in zip(half, second, strict=True)] == calm
    with pytest.raises(ConfigError, match=r"each of 2 ranks.* found 1"):
        Loader(FakePlan(), 3, rank=0, world_size=3, task_encoder=Packer(), buffer=25).load_state_dict(
            first[0].state_dict()
        )
    with pytest.raises(ConfigError, match="buffer of 25 samples, this loader 26"):
        Loader(FakePlan(), 3, rank=0, world_size=1, task_encoder=Packer(), buffer=26).load_state_dict(
            first[0].state_dict()
        )
    with pytest.raises(ConfigError, match="not of a loader that packs"):
        second[0].load_state_dict(Loader(FakePlan(), 3).state_dict())


class Singles(TaskEncoder):
    """Each sample a pack of its own."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [[sample] for sample in samples]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0].get("position")


class Endless(FakePlan):
    """As recipes' plans are: where it ends is no part of its fingerprint."""

    fingerprint = "the same"


def packed(length: int | None, ranks: int, steps: int | None, states: Any = None) -> tuple[list[int], list[Any]]:
    """What all ranks see of a plan in batches of 2 packs, and their states then."""
    seen, after = [], []
    for rank in range(ranks):
        loader = Loader(Endless(length=length), 2, rank=rank, world_size=ranks, task_encoder=Singles(), buffer=8)
        if states is not None:
            loader.load_state_dict(states)
        for batch in islice(loader, steps):
            seen += batch.tolist()
        loader.close()
        after.append(json.loads(json.dumps(loader.state_dict())))
    return seen, after


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("length", [30, 32])
def test_a_plan_with_packs_made_longer(ranks: int, length: int) -> None:
    first, states = packed(length, ranks, None)
    assert sorted(first) == list(range(length))
    then, _ = packed(60, 4 - ranks, None, states)
    assert sorted(first + then) == list(range(60))
    begun, states = packed(length, 1, 2)
    then, _ = packed(60, ranks, None, states)  # the window that the end cuts is not begun
    assert sorted(begun + then) == list(range(60))


def test_a_window_that_the_old_end_cut_is_not_gone_on_with() -> None:
    _, states = packed(30, 1, 13)
    with pytest.raises(
        ConfigError, match="the plan had 30 samples, and a rank has begun the window that was truncated"
    ):
        packed(60, 1, None, states)
    seen, _ = packed(30, 1, None, states)
    assert seen == list(range(26, 30))


def test_a_loader_in_use_takes_the_states_of_other_ranks() -> None:
    wanted, states = packed(None, 2, 6)
    loader = Loader(Endless(length=60), 2, task_encoder=Singles(), buffer=8)
    list(islice(loader, 20))
    loader.load_state_dict(states)
    assert sorted(wanted + [position for batch in loader for position in batch.tolist()]) == list(range(60))


def test_groups_of_another_size_are_not_gone_on_with() -> None:
    loader = Loader(FakePlan(), 4, task_encoder=Grouper(), buffer=32)
    list(islice(loader, 3))
    with pytest.raises(ConfigError, match="groups of 4 samples, this loader makes groups of 8"):
        Loader(FakePlan(), 8, task_encoder=Grouper(), buffer=32).load_state_dict(loader.state_dict())


def test_a_skip_list_that_moves_the_windows_is_refused() -> None:
    plan = Plan.over(Numbered("docs", 200), shuffle="none", epochs=1)
    loader = Loader(plan, 2, task_encoder=Singles(), buffer=8)
    list(islice(loader, 5))
    state = loader.state_dict()
    behind = Loader(plan.skipping([(100, 110)]), 2, task_encoder=Singles(), buffer=8)
    behind.load_state_dict(state, allow_skip=True)
    before = Loader(plan.skipping([(3, 5)]), 2, task_encoder=Singles(), buffer=8)
    with pytest.raises(ConfigError, match="has moved them"):
        before.load_state_dict(state, allow_skip=True)


@pytest.mark.parametrize(
    "change",
    [
        {"size": "8"},
        {"size": 0},
        {"rank": 1},
        {"rank": -1},
        {"ranks": None},
        {"start": 1.5},
        {"next": -1},
        {"pending": [[1]]},
        {"pending": [[8, "a"]]},
        {"pending": 7},
        {"length": "x"},
    ],
)
def test_damaged_states_of_packs(change: dict[str, Any]) -> None:
    loader = Loader(FakePlan(), 2, task_encoder=Singles(), buffer=8)
    state = loader.state_dict()
    with pytest.raises(ConfigError, match="the state of the packs is corrupt"):
        loader.load_state_dict({**state, "windows": {**state["windows"], **change}})
    with pytest.raises(ConfigError, match="corrupt"):
        loader.load_state_dict({**state, "windows": []})
    with pytest.raises(ConfigError, match="each of 1000000000000 ranks"):
        loader.load_state_dict({**state, "windows": {**state["windows"], "ranks": 10**12}})


def test_samples_that_are_one_object_are_each_packed() -> None:
    class Lengths(Singles):
        def preencode_sample(self, sample: dict[str, Any]) -> int:
            return int(sample["position"] % 3)

        def select_samples_to_pack(self, samples: list[int]) -> list[list[int]]:
            return [samples[:2]]

        def pack_selected_samples(self, samples: list[int]) -> int:
            return len(samples)

    loader = Loader(FakePlan(length=100), 2, task_encoder=Lengths(), buffer=10)
    assert sum(int(batch.sum()) for batch in loader) == 100


def test_hooks_that_select_copies_or_fail_are_told() -> None:
    class Copies(Singles):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [[dict(sample)] for sample in samples]

    with pytest.raises(ConfigError, match="none of the samples that it received"):
        next(iter(Loader(FakePlan(), 2, task_encoder=Copies(), buffer=10)))

    class Fails(Singles):
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            raise ValueError("too long")

    with pytest.raises(ValueError, match="too long") as caught:
        next(iter(Loader(FakePlan(), 2, task_encoder=Fails(), buffer=10)))
    assert caught.value.__notes__ == ["in the window of positions 0 to 9"]


@pytest.mark.parametrize("remainder", ["uneven", "drop"])
def test_groups(remainder: Any) -> None:
    loader = Loader(FakePlan(length=50), 4, task_encoder=Grouper(), buffer=20, remainder=remainder)
    batches = [batch["position"].tolist() for batch in loader]
    assert all(len({p % 3 for p in batch}) == 1 for batch in batches)
    whole = [batch for batch in batches if len(batch) == (2, 3, 4)[batch[0] % 3]]
    if remainder == "drop":
        assert len(whole) == len(batches) and loader.skipped == 50 - sum(map(len, batches)) > 0
    else:
        assert sorted(p for batch in batches for p in batch) == list(range(50))


def test_hooks_that_do_not_go_together() -> None:
    class Half(TaskEncoder):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [samples]

    class Both(Packer, Grouper):
        pass

    class Twice(Plain):
        def preencode_sample(self, sample: Any) -> Any:
            return sample

    for arguments in (
        {"task_encoder": Half(), "buffer": 5},
        {"task_encoder": Both(), "buffer": 5},
        {"task_encoder": Twice()},
        {"task_encoder": Packer()},
        {"task_encoder": Packer(), "buffer": 5, "remainder": "pad"},
        {"task_encoder": Plain(), "buffer": 5},
        {"task_encoder": Plain(), "transform": str},
        {"task_encoder": Plain(), "output": "samples"},
    ):
        with pytest.raises(ConfigError):
            Loader(FakePlan(), 4, **arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not known before"):
        len(Loader(FakePlan(length=9), 4, task_encoder=Grouper()))


def test_a_prepared_encoder_can_be_sent() -> None:
    again = pickle.loads(pickle.dumps(Prepared(Plain())))
    assert again({"position": 3}, np.random.default_rng(1))["x"].tolist() == [0, 1, 2]


def test_hooks_are_never_seen_in_part_by_other_threads() -> None:
    """A thread that calls while another one lists the hooks must run all of them, not those listed so far."""
    listing, called = threading.Event(), threading.Event()

    class Slow(TaskEncoder):
        def encode_sample(self, sample: int) -> int:
            return sample + 1

        def overrides(self, hook: str) -> bool:
            if threading.current_thread() is not threading.main_thread() and not called.is_set():
                listing.set()
                called.wait(240)
            return super().overrides(hook)

    encoder = Slow()
    called.set()
    prepared = Prepared(encoder)
    called.clear()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(prepared, 1)
        assert listing.wait(240)
        assert prepared(1) == 2
        called.set()
        assert other.result() == 2
